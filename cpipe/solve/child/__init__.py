"""Solvers run in a process of their own: `run_child` here, `worker.Link` on the other side."""

from cpipe.solve.child.parent import Ended, StopSignal, run_child, warning_of

__all__ = ["Ended", "StopSignal", "run_child", "warning_of"]
