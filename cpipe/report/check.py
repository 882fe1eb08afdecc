"""What `cpipe check` says: one line a plan, and the JSON report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from cpipe.errors import Diagnostic
from cpipe.ir import Objective
from cpipe.ir.base import Frozen
from cpipe.report.document import DiagnosticReport, diagnostic_reports
from cpipe.report.tables import format_ms, format_percent
from cpipe.report.terminal import printable
from cpipe.units import ns_to_ms

__all__ = ["CheckReport", "CheckedPlanReport", "PlanCheck", "Verdict", "check_line", "check_report", "check_summary"]

Verdict = Literal["ok", "updated", "stale", "invalid", "worse", "unreadable", "missing-profile"]
"""What is to be said of a plan.

``ok``: valid, and made for its profile as it stands; ``updated``: it was not, and has been made anew; ``stale``: valid
by itself, but its profile is not the one that it was made for; ``invalid``: it has faults, whatever the profile;
``worse``: a search finds a better one today; ``unreadable``: it, or its profile, cannot be read; ``missing-profile``:
there is no profile for it.
"""

_GOOD = ("ok", "updated")


class PlanCheck(Frozen, frozen=True, kw_only=True):
    """One plan against its profile; times [ns].

    Attributes
    ----------
    file, profile
        Names of the plan and of its profile.
    verdict
        See `Verdict`.
    was
        Of a plan that was updated, the verdict before that.
    objective
        What the plan minimises; `claimed_ns`, `fresh_ns` and `bound_ns` are of it.
    claimed_ns, bound_ns
        What the plan claimed when it was found, and its lower bound; None where it cannot be read.
    replayed_ns
        Makespan of its program on the profile; None where it has none.
    fresh_ns
        What a search reaches today; None where none was asked for or none could be made.
    diagnostics
        Everything found.
    """

    file: str
    profile: str
    verdict: Verdict
    was: Verdict | None = None
    objective: Objective = "makespan"
    claimed_ns: int | None = None
    bound_ns: int | None = None
    replayed_ns: int | None = None
    fresh_ns: int | None = None
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether nothing is left to do."""
        return self.verdict in _GOOD


class CheckedPlanReport(Frozen, frozen=True, kw_only=True):
    """One plan; see `PlanCheck`. Times are [ms], `gap` is (claimed - lower bound) / claimed."""

    plan: str
    profile: str
    verdict: Verdict
    was: Verdict | None
    objective: Objective
    claimed_ms: float | None
    lower_bound_ms: float | None
    gap: float | None
    replayed_ms: float | None
    fresh_ms: float | None
    diagnostics: tuple[DiagnosticReport, ...]


class CheckReport(Frozen, frozen=True, kw_only=True):
    """What `cpipe check` found: ``ok``, ``failed`` when a plan is not ok, ``error`` when nothing was checked.

    Attributes
    ----------
    tolerance
        Share by which a plan may be worse than a search finds today; null when no search was asked for.
    plans
        In the order in which they were checked.
    diagnostics
        Of the call; those of a plan stand with it.
    """

    format: Literal["cpipe.report"] = "cpipe.report"
    version: Literal[1] = 1
    command: Literal["check"] = "check"
    status: Literal["ok", "failed", "error"]
    tolerance: float | None = None
    plans: tuple[CheckedPlanReport, ...] = ()
    diagnostics: tuple[DiagnosticReport, ...] = ()


def check_report(checks: Sequence[PlanCheck], tolerance: float | None) -> CheckReport:
    """Return the report of all plans that were checked."""
    return CheckReport(
        status="ok" if all(check.is_good for check in checks) else "failed",
        tolerance=tolerance,
        plans=tuple(map(_plan_report, checks)),
    )


def _plan_report(check: PlanCheck) -> CheckedPlanReport:
    return CheckedPlanReport(
        plan=check.file,
        profile=check.profile,
        verdict=check.verdict,
        was=check.was,
        objective=check.objective,
        claimed_ms=_ms(check.claimed_ns),
        lower_bound_ms=_ms(check.bound_ns),
        gap=_gap(check),
        replayed_ms=_ms(check.replayed_ns),
        fresh_ms=_ms(check.fresh_ns),
        diagnostics=diagnostic_reports(check.diagnostics),
    )


def check_line(check: PlanCheck) -> str:
    """Return what is said of one plan: ``VERDICT: FILE: WORDS``."""
    return f"{check.verdict}: {printable(check.file)}: {_words(check)}"


def check_summary(checks: Sequence[PlanCheck]) -> str:
    """Return how many plans there are of each verdict."""
    counts = Counter(check.verdict for check in checks)
    parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict.__args__ if counts[verdict])  # type: ignore[attr-defined]
    return f"{len(checks)} plan{'s' * (len(checks) != 1)}: {parts}"


def _words(check: PlanCheck) -> str:
    now, claimed = _time(check, check.fresh_ns), _time(check, check.claimed_ns)
    if check.verdict == "missing-profile":
        return f"there is no {printable(check.profile)}"
    if check.verdict == "updated":
        return f"was {check.was}, made anew; {check.objective} {claimed}, now {now}"
    if check.verdict == "stale":
        words = f"made for another profile, where it took {claimed}"
        replayed = None if check.replayed_ns is None else f"{format_ms(check.replayed_ns)} ms"
        return f"{words}; {'does not fit this one' if replayed is None else f'on this one it takes {replayed}'}"
    if check.verdict in ("invalid", "unreadable"):
        codes = list(dict.fromkeys(found.code for found in check.diagnostics if found.severity == "error"))
        num = sum(found.severity == "error" for found in check.diagnostics)
        by_hand = "changed after it was made; " if "plan-digest" in codes else ""
        more = f", {len(codes) - 3} more" if len(codes) > 3 else ""
        return f"{by_hand}{num} fault{'s' * (num != 1)} ({', '.join(codes[:3])}{more})"
    gap = _gap(check)
    words = f"{check.objective} {claimed}, gap {format_percent(0.0 if gap is None else gap)}"
    if check.fresh_ns is None or check.claimed_ns is None:
        return words
    return f"{words}; solved anew {now}{_change(check.claimed_ns, check.fresh_ns)}"


def _time(check: PlanCheck, time_ns: int | None) -> str:
    return "an unknown time" if time_ns is None else f"{format_ms(time_ns)} ms"


def _change(claimed: int, fresh: int) -> str:
    """Return by how much of the new plan the old one is longer or shorter, in words."""
    if claimed == fresh or not fresh:
        return ""
    return f", this one takes {format_percent(abs(claimed - fresh) / fresh)} {'more' if fresh < claimed else 'less'}"


def _gap(check: PlanCheck) -> float | None:
    if check.claimed_ns is None or check.bound_ns is None:
        return None
    return max(0.0, (check.claimed_ns - check.bound_ns) / check.claimed_ns) if check.claimed_ns > 0 else 0.0


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else ns_to_ms(time_ns)
