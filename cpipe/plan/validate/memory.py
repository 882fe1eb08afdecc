"""Memory of every rank at every op, receive buffers included."""

from __future__ import annotations

from cpipe.ir import Problem, Stage
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report

__all__ = ["check_memory"]


def check_memory(
    layout: Layout, programs: dict[int, list[Step]], windows: dict[int, int], problem: Problem, report: Report
) -> None:
    """Check each rank's memory against its capacity, and its peak against the claim.

    What is copied to the host is free from the WAIT for that copy up to the copy back.
    The buffers of a channel are set up once, for its whole window; everything else comes and goes with the ops.
    """
    for rank, steps in programs.items():
        place = layout.programs[rank][0]
        static = sum(problem.stages[stage].static_bytes for stage in problem.stages_of(rank))
        buffers = sum(
            windows[index] * channel.message_bytes
            for index, channel in layout.channels.items()
            if channel.target == rank
        )
        capacity = problem.devices[rank].capacity_bytes
        resident = peak = static + buffers
        where: Step | None = None
        over = capacity is not None and resident > capacity
        if over:
            message = f"rank {rank}: {static} bytes static and {buffers} of receive buffers, capacity {capacity}"
            report.rank("memory", place, message)
        for position, step in enumerate(steps):
            if step.copy == "OFFLOAD":  # the host copy is made: the device's is given up
                resident -= problem.stages[step.stage].offload_bytes
            if step.op not in ("F", "D", "W", "B", "RELOAD"):
                continue
            during, after = _change(problem.stages[step.stage], step.op)
            if step.fused and step.op == "F":  # both run from now on; what the B frees it frees behind the F
                during += _change(problem.stages[steps[position + 1].stage], "B")[0]
            elif step.fused:
                during = 0
            if capacity is not None and resident + during > capacity and not over:
                over = True
                message = f"rank {rank}: {step} needs {resident + during} bytes, capacity {capacity}"
                report.step("memory", place, step.at, message)
            resident += after
            if max(resident - after + during, resident) > peak:
                peak, where = max(resident - after + during, resident), step
        if layout.plan.claims.peak_bytes[rank] != peak:
            at = f" at {where}" if where is not None else ""
            message = f"rank {rank}: the peak is {peak} bytes{at}, the plan says {layout.plan.claims.peak_bytes[rank]}"
            report.header("wrong-peak", f"$.claims.peak_bytes[{rank}]", message)


def _change(stage: Stage, op: str) -> tuple[int, int]:
    """Return what an op adds while it runs, and what is left of that after it [bytes]; the latter may be negative."""
    activation, held = stage.activation_bytes, stage.held_bytes
    input_grad, weight_grad = stage.input_grad_transient_bytes, stage.weight_grad_transient_bytes
    match op:
        case "RELOAD":
            return stage.offload_bytes, stage.offload_bytes
        case "F":
            return activation + stage.forward_transient_bytes, activation
        case "D":
            return max(0, held - activation) + input_grad, held - activation
        case "W":
            return weight_grad, -held
        case _:
            full = stage.full_backward_transient_bytes
            return max(input_grad, weight_grad) if full is None else full, -activation
