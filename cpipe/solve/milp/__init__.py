"""The exact search: a disjunctive MILP on HiGHS, for problems of up to a few hundred binaries."""

from cpipe.solve.milp.backend import solver_problem
from cpipe.solve.milp.outcome import MilpOutcome
from cpipe.solve.milp.solve import count_binaries, solve_milp

__all__ = ["MilpOutcome", "count_binaries", "solve_milp", "solver_problem"]
