"""Tests of cpipe.cli.options: values are checked before any work, all at once."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cpipe.cli.options import check_choice, check_solve_options
from cpipe.compiler import PLACEMENTS
from cpipe.errors import UsageError

METHODS = ("auto", "milp", "greedy", "1f1b", "zb-h1")
GOOD: dict[str, Any] = {
    "method": "auto",
    "methods": METHODS,
    "placement": "profile",
    "placements": PLACEMENTS,
    "max_gap": 0.0,
    "time_limit": None,
    "seed": 0,
    "receive_window": None,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_gap": 0.999},
        {"time_limit": 1e-3},
        {"seed": 2**31 - 1},
        {"receive_window": 1},
        {"placement": "wave", "method": "zb-h1"},
    ],
)
def test_good_values(changes: dict[str, Any]) -> None:
    """Values at the edge of what is allowed pass."""
    check_solve_options(**GOOD | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_gap": 1.0}, r"--max-gap: expected a share in \[0, 1\), got 1 \[value-out-of-range\]"),
        ({"max_gap": -0.1}, r"--max-gap: expected a share in \[0, 1\), got -0.1"),
        ({"max_gap": math.nan}, r"--max-gap: expected a share in \[0, 1\), got nan"),
        ({"time_limit": 0.0}, "--time-limit: expected seconds > 0, got 0"),
        ({"time_limit": math.inf}, "--time-limit: expected seconds > 0, got inf"),
        ({"seed": -1}, r"--seed: expected a number in \[0, 2147483647\], got -1"),
        ({"receive_window": 0}, "--receive-window: expected a number >= 1, got 0"),
        ({"placement": "snake"}, r"--placement: expected one of profile, .*, got 'snake' \[unknown-value\]"),
    ],
)
def test_bad_values(changes: dict[str, Any], message: str) -> None:
    """A value outside its range is refused with the range and the value."""
    with pytest.raises(UsageError, match=message):
        check_solve_options(**GOOD | changes)


def test_all_faults_at_once() -> None:
    """Every wrong option is reported, not only the first."""
    with pytest.raises(UsageError, match=r"--method.*\n.*--max-gap.*\n.*--receive-window") as caught:
        check_solve_options(**GOOD | {"method": "mlip", "max_gap": 2.0, "receive_window": -1})
    assert len(caught.value.diagnostics) == 3
    assert caught.value.hint == "did you mean 'milp'?"


@pytest.mark.parametrize(("value", "meant"), [("ZB-H1", "zb-h1"), ("greddy", "greedy"), ("quantum", None)])
def test_did_you_mean(value: str, meant: str | None) -> None:
    """A near miss names what was probably meant; nonsense gets no guess."""
    with pytest.raises(UsageError, match="--method: expected one of auto, milp, greedy, 1f1b, zb-h1") as caught:
        check_choice("--method", value, METHODS)
    assert caught.value.hint == (f"did you mean {meant!r}?" if meant else None)
