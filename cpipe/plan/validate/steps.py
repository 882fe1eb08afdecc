"""Each instruction for itself: fields it must and must not have, and whether they name things that exist."""

from __future__ import annotations

from cpipe.ir import Instruction
from cpipe.plan.validate.layout import Layout, Step
from cpipe.plan.validate.report import Report

__all__ = ["check_steps"]

_FIELDS = ("stage", "mb", "backward_stage", "backward_mb", "channel", "group", "copy", "start_ns", "end_ns")
_COMPUTE = (("stage", "mb", "start_ns", "end_ns"),)
_PAIR = (("stage", "mb", "backward_stage", "backward_mb", "start_ns", "end_ns"),)
_MESSAGE = (("stage", "mb", "channel"),)
_COLLECTIVE = (("stage", "group", "start_ns", "end_ns"),)
_EXPECTED: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("F", "D", "W", "B", "OFFLOAD", "RELOAD"), _COMPUTE),
    "FB": _PAIR,
    **dict.fromkeys(("SEND", "RECV"), _MESSAGE),
    **dict.fromkeys(("ALL_GATHER", "REDUCE_SCATTER", "ALL_REDUCE"), _COLLECTIVE),
    "WAIT": (*_MESSAGE, ("stage", "group"), ("stage", "mb", "copy")),
    "STEP": ((), ("start_ns", "end_ns")),
}


def check_steps(layout: Layout, report: Report) -> dict[int, list[Step]]:
    """Return the instructions of each rank that are what they should be but for their times; report what is wrong.

    An FB becomes its F and its B; if one of them is not well formed, neither is there.
    """
    programs: dict[int, list[Step]] = {}
    for rank, (place, program) in layout.programs.items():
        steps = programs[rank] = []
        for index, instruction in enumerate(program.ops):
            read = _read(index, instruction)
            fault = _fields_fault(instruction)
            for step, prefix in zip(read, ("", "backward_"), strict=False):
                fault = fault or _place_fault(layout, rank, step, instruction, prefix)
            if fault is None and instruction.channel is not None:
                fault = _channel_fault(layout, rank, read[0])
            if fault is None or fault[0] == "time-range":  # with a wrong time the op is there all the same
                steps += read
            if fault is not None:
                code, field, message = fault
                report.step(code, place, index, f"rank {rank}: {message}", field)
    return programs


def _read(index: int, instruction: Instruction) -> tuple[Step, ...]:
    stage, mb, channel = instruction.stage, instruction.mb, instruction.channel
    group, start, end = instruction.group, instruction.start_ns, instruction.end_ns
    step = Step(
        index,
        instruction.op,
        -1 if stage is None else stage,
        -1 if mb is None else mb,
        -1 if channel is None else channel,
        -1 if group is None else group,
        -1 if start is None else start,
        -1 if end is None else end,
        copy=instruction.copy or "",
    )
    if instruction.op != "FB":
        return (step,)
    stage, mb = instruction.backward_stage, instruction.backward_mb
    forward = step._replace(op="F", fused=True)
    return forward, forward._replace(op="B", stage=-1 if stage is None else stage, mb=-1 if mb is None else mb)


_Fault = tuple[str, str, str]  # code, field, message


def _fields_fault(instruction: Instruction) -> _Fault | None:
    """An op has exactly the fields of its kind."""
    present = tuple([name for name in _FIELDS if getattr(instruction, name) is not None])
    expected = _EXPECTED[instruction.op]
    if present in expected:
        return None
    wanted = " or ".join(", ".join(names) or "no field" for names in expected)
    return "fields", "", f"{instruction.op} has {', '.join(present) or 'no field'}, expected {wanted}"


def _place_fault(layout: Layout, rank: int, step: Step, instruction: Instruction, prefix: str) -> _Fault | None:
    """Stage, microbatch and group exist, and the stage stands on this rank; no op ends before it starts.

    `prefix` is that of the fields that `step` was read from.
    """
    if step.op == "STEP":
        if instruction.start_ns is not None and not 0 <= step.start_ns <= step.end_ns:
            return "time-range", "start_ns", f"{step} runs from {step.start_ns} to {step.end_ns} ns"
        return None
    if not 0 <= step.stage < layout.num_stages:
        return "stage-range", f"{prefix}stage", f"{step}: stages are 0..{layout.num_stages - 1}"
    if layout.placement[step.stage] != rank:
        return "wrong-rank", f"{prefix}stage", f"{step}: the stage stands on rank {layout.placement[step.stage]}"
    if instruction.mb is not None and not 0 <= step.mb < layout.microbatches:
        return "mb-range", f"{prefix}mb", f"{step}: microbatches are 0..{layout.microbatches - 1}"
    if instruction.start_ns is not None and not 0 <= step.start_ns <= step.end_ns:
        return "time-range", "start_ns", f"{step} runs from {step.start_ns} to {step.end_ns} ns"
    if instruction.group is not None and step.stage not in _members(layout, step.group):
        return "group-member", "group", f"{step}: group {step.group} does not exist or lacks the stage"
    return None


def _members(layout: Layout, group: int) -> tuple[int, ...]:
    return layout.groups[group].stages if group in layout.groups else ()


def _channel_fault(layout: Layout, rank: int, step: Step) -> _Fault | None:
    """The channel exists, this rank is its right end, and the neighbour stage of the message is at the other end."""
    channel = layout.channels.get(step.channel)
    if channel is None:
        return "channel-range", "channel", f"{step}: there is no usable channel {step.channel}"
    sends = step.op == "SEND"
    here, there = (channel.source, channel.target) if sends else (channel.target, channel.source)
    if here != rank:
        end = "sends" if sends else "receives"
        return "wrong-channel", "channel", f"{step}: on channel {channel.id} rank {here} {end}, not this rank"
    op = "F" if channel.carries == "activation" else "D"
    peer = layout.target_of(op, step.stage) if sends else layout.source_of(op, step.stage)
    if peer == rank:
        return "local-message", "channel", f"{step}: the neighbour stage is on this rank too, no message is needed"
    if peer != there:
        found = f"with rank {peer}" if peer >= 0 else "with nobody"
        message = f"{step}: channel {channel.id} joins rank {there}, the stage exchanges {channel.carries}s {found}"
        return "wrong-channel", "channel", message
    return None
