"""The simulator: when everything happens, and how much memory it takes, given an order."""

from cpipe.sim.engine import BlockedOp, DeadlockError, Simulator, simulate
from cpipe.sim.memory import MemoryStep, memory_peaks, memory_steps

__all__ = ["BlockedOp", "DeadlockError", "MemoryStep", "Simulator", "memory_peaks", "memory_steps", "simulate"]
