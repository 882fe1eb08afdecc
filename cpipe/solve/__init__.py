"""Searches for the order that finishes soonest, and proofs of how good it is."""

import sys

from cpipe import CallablePackage
from cpipe.solve.auto import solve
from cpipe.solve.bounds import lower_bound
from cpipe.solve.limits import SolveLimits, Stop, TimeLimit
from cpipe.solve.methods import METHODS

__all__ = ["METHODS", "SolveLimits", "Stop", "TimeLimit", "lower_bound", "solve"]

# `cpipe.solve(profile)` is the library's front door, and the import system puts this package in that name.
sys.modules[__name__].__class__ = CallablePackage
