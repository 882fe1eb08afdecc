"""One point solved: the same in this process, in a worker's and on a cluster."""

from __future__ import annotations

from cpipe.compiler import Compiled, SolveOptions, compile_profile
from cpipe.errors import CpipeError, InfeasibleError, NoSolutionError
from cpipe.ir.base import Frozen
from cpipe.profile import parse_profile
from cpipe.report.figures import plan_figures
from cpipe.report.sweep import PointStatus
from cpipe.study.sweep.grid import Point, Settings
from cpipe.study.sweep.vary import point_profile
from cpipe.units import ns_to_ms

__all__ = ["Outcome", "failed", "point_outcome"]


class Outcome(Frozen, frozen=True, kw_only=True):
    """What was found at a point; see `cpipe.report.sweep.SweepPoint`."""

    status: PointStatus
    makespan_ms: float | None = None
    lower_bound_ms: float | None = None
    gap: float | None = None
    bubble: float | None = None
    peak_bytes: tuple[int, ...] = ()
    found_by: str | None = None
    proved_by: str | None = None
    reason: str | None = None


def failed(reason: str) -> Outcome:
    """Return the outcome of a point that nobody could finish."""
    return Outcome(status="failed", reason=" ".join(reason.split()))


def point_outcome(data: bytes, point: Point, settings: Settings) -> Outcome:
    """Solve one point; never raises what belongs to the point alone.

    Parameters
    ----------
    data
        The profile as JSON text, valid.
    point, settings
        What to change, and how to solve.
    """
    try:
        profile = point_profile(parse_profile(data, "profile"), point, settings)
        options = SolveOptions(
            method=point.method,
            placement=point.placement,
            seed=settings.seed,
            max_gap=settings.max_gap,
            time_limit=settings.time_limit,
        )
        return _found(compile_profile(profile, options))
    except InfeasibleError as error:
        return Outcome(status="infeasible", reason=_reason(error))
    except NoSolutionError as error:
        return Outcome(status="no_solution", reason=_reason(error))
    except CpipeError as error:
        return Outcome(status="error", reason=_reason(error))
    except Exception as error:  # a bug of ours costs this point, not the others
        return failed(f"internal error: {type(error).__name__}: {error}")


def _found(compiled: Compiled) -> Outcome:
    result, figures = compiled.result, plan_figures(compiled.plan, compiled.problem)
    total = result.makespan_ns * len(figures)
    busy = sum(device.busy_ns for device in figures)
    return Outcome(
        status=result.status,
        makespan_ms=ns_to_ms(result.makespan_ns),
        lower_bound_ms=ns_to_ms(result.bound.value_ns),
        gap=result.gap,
        bubble=(total - busy) / total if total else 0.0,
        peak_bytes=tuple(device.peak_bytes for device in figures),
        found_by=result.found_by,
        proved_by=result.bound.proved_by,
    )


def _reason(error: CpipeError) -> str:
    """Return the first fault on one line, its code at the end."""
    first = error.diagnostics[0]
    return " ".join(f"{first.message} [{first.code}]".split())
