"""The simulator: when everything happens, and how much memory it takes, given an order."""

from cpipe.sim.critical import critical_path
from cpipe.sim.engine import BlockedOp, DeadlockError, Simulator, simulate
from cpipe.sim.idle import idle_parts
from cpipe.sim.memory import MemoryStep, memory_peaks, memory_steps
from cpipe.sim.runs import Runs

__all__ = [
    "BlockedOp",
    "DeadlockError",
    "MemoryStep",
    "Runs",
    "Simulator",
    "critical_path",
    "idle_parts",
    "memory_peaks",
    "memory_steps",
    "simulate",
]
