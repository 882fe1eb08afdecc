"""Plan -> the instruction lists that a `PipeSchedule` of DeepSpeed yields, where its engine can run them.

The engine (DeepSpeed 0.19) walks each rank's list and blocks in every send and receive until the other rank is there
too. So a plan's messages, which block nobody, are put into one order for all ranks: what one rank sends, the other
receives, and the lists finish. When a message leaves is no longer the plan's: a rank may stand still until its peer
arrives. A received gradient has but one place, so it is received after the backward before the one that it is for.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from cpipe.ir import Plan
from cpipe.plan.exchange.rendezvous import Event, rendezvous_order

__all__ = ["Command", "RankInstructions", "deepspeed_instructions", "deepspeed_text"]


class Command(NamedTuple):
    """An instruction by its class in `deepspeed.runtime.pipe.schedule`; `buffer` is -1 where it has none."""

    name: str
    buffer: int = -1


class RankInstructions(NamedTuple):
    """What a rank runs: the instructions of each step, and how many buffers they number."""

    steps: tuple[tuple[Command, ...], ...]
    num_pipe_buffers: int


def deepspeed_instructions(plan: Plan) -> tuple[RankInstructions, ...]:
    """Return what each rank of a plan without `deepspeed_faults` runs, rank 0 first.

    A step is a forward or backward with the messages and the load before it; the last one reduces and updates. A
    microbatch has a buffer from its load or receive until its gradient is sent; the lowest free one.
    """
    last = plan.problem.stages - 1
    commands: list[list[Event]] = [[] for _ in range(last + 1)]
    for event in rendezvous_order(plan):
        commands[event.stage].append(event)
        if event.is_message:
            commands[event.reader].append(event)
    return tuple(_rank(stage, last, events) for stage, events in enumerate(commands))


def deepspeed_text(plan: Plan) -> str:
    """Return the instructions of a plan without `deepspeed_faults` as JSON, one step a line.

    An instruction is ``[class, buffer]``, or ``[class]`` where it has no buffer.
    """
    head = (
        '{\n"target": "deepspeed.runtime.pipe.schedule",\n'
        f'"micro_batches": {plan.problem.microbatches},\n"stages": {plan.problem.stages},\n"ranks": [\n'
    )
    ranks = []
    for stage, rank in enumerate(deepspeed_instructions(plan)):
        steps = ",\n".join(json.dumps([_listed(command) for command in step]) for step in rank.steps)
        ranks.append(f'{{"stage_id": {stage}, "num_pipe_buffers": {rank.num_pipe_buffers}, "steps": [\n{steps}]}}')
    return head + ",\n".join(ranks) + "]\n}\n"


def _listed(command: Command) -> list[str | int]:
    return [command.name] if command.buffer < 0 else [*command]


def _rank(stage: int, last: int, events: list[Event]) -> RankInstructions:
    """Return the instructions of one stage from what it takes part in, in order."""
    steps: list[tuple[Command, ...]] = []
    step: list[Command] = []
    held: dict[int, int] = {}
    buffers = 0
    for event in events:
        if event.mb not in held:
            held[event.mb] = next(number for number in range(len(held) + 1) if number not in held.values())
            buffers = max(buffers, held[event.mb] + 1)
        buffer = held[event.mb]
        if event.is_message:
            verb = "Send" if event.stage == stage else "Recv"
            step.append(Command(verb + ("Activation" if event.kind == "activation" else "Grad"), buffer))
        else:
            if event.kind == "F" and stage in (0, last):
                step.append(Command("LoadMicroBatch", buffer))
            step.append(Command("ForwardPass" if event.kind == "F" else "BackwardPass", buffer))
            steps.append(tuple(step))
            step = []
        if (event.kind, event.stage) == (("gradient" if stage else "B"), stage):
            del held[event.mb]
    end = (*step, Command("ReduceTiedGrads"), Command("ReduceGrads"), Command("OptimizerStep"))
    return RankInstructions((*steps, end), buffers)
