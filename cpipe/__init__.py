"""cpipe compiles a measured pipeline profile into a proven schedule and a plan that a runtime executes.

The whole library in four names::

    import cpipe

    profile = cpipe.load_profile("profile.json")
    plan = cpipe.solve(profile, method="auto")
    problems = cpipe.validate(plan)

Nothing is imported before it is used: ``import cpipe`` loads no solver, no torch and no command line.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpipe.ir.plan import Plan
    from cpipe.plan import load_plan, validate
    from cpipe.profile import Profile, load_profile

    def solve(profile: Profile, **options: Any) -> Plan:
        """Search the order of operations that finishes soonest; see `_solve`."""


__all__ = ["__version__", "load_plan", "load_profile", "solve", "validate"]

__version__ = "0.1.0"

_LAZY = {"load_plan": "cpipe.plan", "load_profile": "cpipe.profile", "validate": "cpipe.plan"}


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
        An option does not exist.
    """
    compiler = import_module("cpipe.compiler")
    plan: Plan = compiler.compile_profile(profile, compiler.SolveOptions(**options)).plan
    return plan


class CallablePackage(ModuleType):
    """Lets the sub-package `cpipe.solve` be called as the function it is named after."""

    def __call__(self, profile: Profile, **options: Any) -> Plan:
        """Solve a profile; see `cpipe._solve`."""
        return _solve(profile, **options)


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
