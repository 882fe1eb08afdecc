"""cpipe compiles a measured pipeline profile into a proven schedule and a plan that a runtime executes.

The whole library in eight names::

    import cpipe

    profile = cpipe.load_profile("profile.json")
    plan = cpipe.solve(profile, method="auto")
    faults = cpipe.validate(plan, profile)
    timeline = cpipe.simulate(plan, profile)
    explanation = cpipe.explain(plan, profile)
    picture = cpipe.render_svg(plan, profile)
    cpipe.save_plan(plan, "plan.json")
    plan = cpipe.load_plan("plan.json")

Nothing is imported before it is used: ``import cpipe`` loads no solver, no torch and no command line.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan, Problem, Timeline
    from cpipe.ir.explanation import Explanation
    from cpipe.plan import load_plan
    from cpipe.profile import Profile, load_profile

    def solve(profile: Profile, **options: Any) -> Plan:
        """Search the order of operations that finishes soonest; see `_solve`."""


__all__ = [
    "__version__",
    "explain",
    "load_plan",
    "load_profile",
    "render_svg",
    "save_plan",
    "simulate",
    "solve",
    "validate",
]

__version__ = "0.1.0"

_LAZY = {"load_plan": "cpipe.plan", "load_profile": "cpipe.profile"}


def _solve(profile: Profile, **options: Any) -> Plan:
    """Search the order of operations that finishes soonest and return it as a plan.

    ``cpipe.solve`` is this function and, for those who import from it, the package that searches.

    Parameters
    ----------
    profile
        A profile, from `load_profile`.
    **options
        Fields of `cpipe.compiler.SolveOptions`: ``method``, ``placement``, ``seed``, ``max_gap``,
        ``time_limit`` [s], ``receive_window`` and ``node_limit``.

    Returns
    -------
    Plan
        The plan; its claims hold the makespan and the proven lower bound [ns].

    Raises
    ------
    cpipe.errors.ProfileError
        The profile does not describe a problem.
    cpipe.errors.InfeasibleError
        It is proven that no schedule exists.
    cpipe.errors.NoSolutionError
        Nothing acceptable was found within the limits.
    TypeError
        `profile` is no profile, or an option does not exist.
    """
    if not _is_profile(profile):
        raise TypeError(f"expected a Profile, as cpipe.load_profile returns, got {type(profile).__name__}")
    compiler = import_module("cpipe.compiler")
    plan: Plan = compiler.compile_profile(profile, compiler.SolveOptions(**options)).plan
    return plan


def validate(
    plan: Plan, against: Profile | Problem | None = None, *, transport: str = "channels"
) -> tuple[Diagnostic, ...]:
    """Check a plan; see `cpipe.plan.validate`.

    Parameters
    ----------
    plan
        The plan.
    against
        The profile (or problem) that it is for: costs, memory and claims are then checked too.
    transport
        The queue model that it will run on.

    Returns
    -------
    tuple of Diagnostic
        Every fault; empty when the plan is valid.
    """
    problem = import_module("cpipe.compiler").problem_for_plan(plan, against) if _is_profile(against) else against
    bound = None
    if problem is not None:
        bound = import_module("cpipe.compiler.claims").checkable_bound_ns(plan, problem)
    check = import_module("cpipe.plan").validate
    faults: tuple[Diagnostic, ...] = check(plan, problem, transport=transport, closed_bound_ns=bound)
    return faults


def simulate(plan: Plan, profile: Profile) -> Timeline:
    """Replay a plan's program on a profile, its own or another of the same sizes.

    Returns
    -------
    Timeline
        Start and end of every op and message [ns].

    Raises
    ------
    cpipe.errors.InputError
        The plan is not for this kind of job.
    cpipe.sim.DeadlockError
        The program cannot finish.
    """
    compiler = import_module("cpipe.compiler")
    timeline: Timeline = compiler.simulate_plan(plan, compiler.problem_for_plan(plan, profile))
    return timeline


def explain(plan: Plan, profile: Profile | None = None) -> Explanation:
    """Say why a plan takes as long as it does: critical path, idle time by cause, and what a change would give.

    Parameters
    ----------
    plan
        The plan.
    profile
        What it is replayed on, its own profile or another of the same sizes. Without one the plan's own times are
        explained, and costs of links, memory and what-ifs are left out.

    Raises
    ------
    cpipe.errors.PlanError
        The plan is not valid.
    cpipe.errors.InputError
        The plan is not for this kind of job.
    """
    analysis = import_module("cpipe.analysis")
    _check(plan)
    if profile is None:
        stated: Explanation = analysis.explain_stated(plan)
        return stated
    problem = import_module("cpipe.compiler").problem_for_plan(plan, profile)
    explanation: Explanation = analysis.explain_plan(plan, problem, simulate(plan, profile))
    return explanation


def render_svg(plan: Plan, profile: Profile | None = None) -> bytes:
    """Draw a plan as an SVG picture, UTF-8: lanes of every rank and channel, and the critical path.

    Parameters
    ----------
    plan
        The plan.
    profile
        What it is replayed on. Without one the times are the plan's own, and when messages arrive is not known.

    Raises
    ------
    cpipe.errors.PlanError
        The plan is not valid.
    cpipe.errors.InputError
        The plan is not for this kind of job.
    """
    _check(plan)
    if profile is None:
        view = import_module("cpipe.report.build_view").plan_view(plan)
    else:
        problem = import_module("cpipe.compiler").problem_for_plan(plan, profile)
        view = import_module("cpipe.analysis").replayed_view(plan, problem, simulate(plan, profile))
    drawing = import_module("cpipe.report.drawing").draw_plans([view], [plan.problem.name])
    picture: bytes = import_module("cpipe.report.svg").render_svg(drawing)
    return picture


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan as its canonical text: all of it or nothing, with ordinary permissions.

    Raises
    ------
    cpipe.errors.UsageError
        The file cannot be written.
    """
    import_module("cpipe.cli.files").OutputFile(str(path), []).write(import_module("cpipe.plan").encode_plan(plan))


class CallablePackage(ModuleType):
    """Lets the sub-package `cpipe.solve` be called as the function it is named after."""

    def __call__(self, profile: Profile, **options: Any) -> Plan:
        """Solve a profile; see `cpipe._solve`."""
        return _solve(profile, **options)


def _check(plan: Plan) -> None:
    """Raise a PlanError with every fault that the plan has by itself."""
    faults = tuple(fault for fault in validate(plan) if fault.severity == "error")
    if faults:
        raise import_module("cpipe.errors").PlanError(faults)


def _is_profile(value: object) -> bool:
    profile: type[Profile] = import_module("cpipe.profile").Profile
    return isinstance(value, profile)


def __getattr__(name: str) -> Any:
    """Import the named function on first use."""
    if name == "solve":
        return import_module("cpipe.solve")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
