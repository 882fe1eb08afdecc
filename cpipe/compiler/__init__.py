"""The arrows in order: profile -> problem -> schedule -> timeline -> plan, each result verified before the next."""

from cpipe.compiler.compile import Compiled, compile_profile
from cpipe.compiler.options import OFFLOADS, PLACEMENTS, SolveOptions
from cpipe.compiler.replay import problem_for_plan, simulate_plan
from cpipe.compiler.tables import import_table

__all__ = [
    "OFFLOADS",
    "PLACEMENTS",
    "Compiled",
    "SolveOptions",
    "compile_profile",
    "import_table",
    "problem_for_plan",
    "simulate_plan",
]
