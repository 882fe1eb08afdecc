"""When a full backward can be better than its two halves."""

from __future__ import annotations

from cpipe.ir import Problem, Stage

__all__ = ["can_merge"]


def can_merge(problem: Problem, stage: Stage) -> bool:
    """Return whether B can be better than D and W on a stage that can split.

    B must cost less than D + W; or the device has a memory limit and D holds more than F did, so that B takes less
    memory. Otherwise D directly followed by W is never worse than B.
    """
    if not stage.can_split:
        return False
    limited = problem.devices[stage.device].capacity_bytes is not None
    cheaper = stage.full_backward_ns < stage.input_grad_ns + stage.weight_grad_ns
    return cheaper or (limited and stage.held_bytes > stage.activation_bytes)
