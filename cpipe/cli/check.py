"""``cpipe check``: do plans under version control still hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli.options import check_ranges
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cpipe.errors import Diagnostic
    from cpipe.report.check import PlanCheck

__all__ = ["check"]

_MENDABLE = ("stale", "invalid", "worse")
_UNREAD = ("unreadable", "missing-profile")


def check(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Plans, or folders that hold plan.json files.")],
    profile: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Of the plans named [profile.json beside each]."),
    ] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="Solve anew as each plan was made, and compare.")] = False,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="With --resolve: how much longer than the new plan one may be.")
    ] = 0.01,
    update: Annotated[
        bool, typer.Option("--update", help="Make plans anew that are stale, invalid or worse, and rewrite them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No details, no progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every detail, and progress.")] = False,
) -> int:
    """Check that plans are valid, and made for their profiles as these stand.

    One line a plan: ok, updated, stale (the profile changed), invalid, worse (a search finds a better one today),
    unreadable or missing-profile. A folder is searched for plan.json with profile.json beside it.

    Exits with 0 when every plan is ok or was updated, with 3 when none could be read, else with 1.
    """
    check_ranges([("--tolerance", tolerance, 0 <= tolerance < math.inf, "a share >= 0")])

    from cpipe.cli.pins import PinCheck, find_pins
    from cpipe.report.check import check_line, check_report, check_summary

    pins = find_pins(paths, profile)
    printer = Printer(quiet=quiet, verbose=verbose)
    checks: list[PlanCheck] = []
    for number, pin in enumerate(pins, start=1):
        with printer.working() as progress:
            tell = _placed(progress, f"{number} of {len(pins)}: {pin.plan}")
            found = PinCheck(pin)
            if resolve:
                found.resolve(tolerance, tell)
            if update:
                found.update(tell)
        checks.append(found.result)
        printer.warnings(_details(found.result, verbose))
        if not as_json:
            printer.answer(check_line(found.result))
    if as_json:
        printer.document(check_report(checks, tolerance if resolve else None))
    printer.note(check_summary(checks))
    newer = (fault.hint for found in checks for fault in found.diagnostics if fault.code == "newer-version")
    if hint := next(newer, None):
        printer.note(f"hint: {hint}")
    if not update and any(found.verdict in _MENDABLE for found in checks):
        printer.note("hint: --update makes plans anew that are stale, invalid or worse")
    return _exit_code(checks)


def _placed(progress: Callable[[str], None], place: str) -> Callable[[str], None]:
    """Say where the work is; return a function that says how it goes there."""
    progress(place)
    return lambda text: progress(f"{place}: {text}")


def _details(check: PlanCheck, verbose: bool) -> Iterator[Diagnostic]:
    """Yield what is worth a line: of a plan for another profile that alone, as all its times are wrong with it."""
    for fault in check.diagnostics:
        consequence = check.verdict == "updated" or not (fault.path or "$.problem").startswith("$.problem")
        if verbose or check.verdict not in ("stale", "updated") or fault.severity == "warning" or not consequence:
            yield fault


def _exit_code(checks: Sequence[PlanCheck]) -> int:
    """Return 0 when all is well, 3 when nothing could be checked, else 1."""
    if all(check.is_good for check in checks):
        return 0
    return 3 if all(check.verdict in _UNREAD for check in checks) else 1
