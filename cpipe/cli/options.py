"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpipe.errors import Diagnostic

__all__ = ["OBJECTIVES", "SCHEMAS", "check_choice", "check_ranges", "check_solve_options"]

OBJECTIVES = ("makespan", "span")
SCHEMAS = ("profile", "plan", "report")
_MAX_SEED = 2**31 - 1  # what solvers take


def check_solve_options(
    *,
    method: str,
    methods: Collection[str],
    placement: str,
    placements: Collection[str],
    max_gap: float,
    time_limit: float | None,
    seed: int,
    receive_window: int | None,
) -> None:
    """Check the values of `solve`'s options, all at once.

    Raises
    ------
    UsageError
        With one diagnostic per option that is wrong.
    """
    faults = [
        *_choice("--method", method, methods),
        *_choice("--placement", placement, placements),
        *_range("--max-gap", max_gap, 0 <= max_gap < 1, "a share in [0, 1)"),
        *_range("--seed", seed, 0 <= seed <= _MAX_SEED, f"a number in [0, {_MAX_SEED}]"),
    ]
    if time_limit is not None:
        faults += _range("--time-limit", time_limit, 0 < time_limit < math.inf, "seconds > 0")
    if receive_window is not None:
        faults += _range("--receive-window", receive_window, receive_window >= 1, "a number >= 1")
    _raise(faults)


def check_choice(option: str, value: str, allowed: Collection[str]) -> None:
    """Check that `value` is one of `allowed`.

    Raises
    ------
    UsageError
        Naming what is allowed, and what was probably meant.
    """
    _raise(list(_choice(option, value, allowed)))


def check_ranges(checks: Iterable[tuple[str, float, bool, str]]) -> None:
    """Check numbers, all at once: each entry is (option, value, whether it fits, what is expected).

    Raises
    ------
    UsageError
        With one diagnostic per number that does not fit.
    """
    _raise([fault for check in checks for fault in _range(*check)])


def _raise(faults: list[Diagnostic]) -> None:
    from cpipe.errors import UsageError

    if faults:
        raise UsageError(faults, hint=next((fault.hint for fault in faults if fault.hint), None))


def _choice(option: str, value: str, allowed: Collection[str]) -> Iterator[Diagnostic]:
    from difflib import get_close_matches

    from cpipe.errors import Diagnostic

    if value not in allowed:
        close = get_close_matches(value.lower(), allowed, n=1)
        yield Diagnostic(
            code="unknown-value",
            message=f"{option}: expected one of {', '.join(allowed)}, got {value!r}",
            hint=f"did you mean {close[0]!r}?" if close else None,
        )


def _range(option: str, value: float, fits: bool, expected: str) -> Iterator[Diagnostic]:
    from cpipe.errors import Diagnostic

    if not fits:
        yield Diagnostic(code="value-out-of-range", message=f"{option}: expected {expected}, got {value:g}")
