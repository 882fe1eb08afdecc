"""Searches for the order that finishes soonest, and proofs of how good it is."""

from cpipe.solve.auto import SolveLimits, solve
from cpipe.solve.bounds import lower_bound
from cpipe.solve.methods import METHODS

__all__ = ["METHODS", "SolveLimits", "lower_bound", "solve"]
