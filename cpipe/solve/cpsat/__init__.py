"""The CP-SAT search (extra ``cpipe[cpsat]``): intervals, cumulative memory, a few hundred ops."""

from cpipe.solve.cpsat.backend import solver_problem
from cpipe.solve.cpsat.outcome import CpsatOutcome
from cpipe.solve.cpsat.solve import solve_cpsat

__all__ = ["CpsatOutcome", "solve_cpsat", "solver_problem"]
