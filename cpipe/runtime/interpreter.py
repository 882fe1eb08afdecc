"""Walks the program of one rank: each instruction of the plan, in order, once a step."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cpipe.ir import Instruction, Plan
from cpipe.runtime.bulletin import Bulletin
from cpipe.runtime.channels import InPort
from cpipe.runtime.clock import Clock, Span
from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.lanes import Ticket
from cpipe.runtime.limits import Timetable
from cpipe.runtime.monitor import Monitor
from cpipe.runtime.records import OpRecord
from cpipe.runtime.specs import MessageSpec, decode_spec, encode_spec, gradients_of, spec_of
from cpipe.runtime.stages import StageRunner
from cpipe.runtime.wires import Wires

__all__ = ["Interpreter"]

_POLL_S = 0.005

Key = tuple[int, int]  # stage, microbatch
Tensors = tuple[Tensor, ...]


class Interpreter:
    """The program of one rank and what is under way in it.

    Parameters
    ----------
    plan, rank
        The program.
    runners
        The stages that stand here.
    wires, monitor, bulletin
        Connections to the others.
    specs
        Outputs that were declared, by stage; those of other stages are learned in the first step.
    board
        Prefix of this pipeline's notes on the bulletin.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        runners: Mapping[int, StageRunner],
        wires: Wires,
        monitor: Monitor,
        bulletin: Bulletin,
        *,
        timetable: Timetable,
        specs: Mapping[int, MessageSpec],
        board: str,
        clock: Clock,
    ) -> None:
        self._rank = rank
        self._program = next(program.ops for program in plan.ranks if program.rank == rank)
        self._placement = plan.problem.placement
        self._is_first, self._is_last = plan.problem.is_first, plan.problem.is_last
        self._inputs_of = next((stage for stage in runners if self._is_first(stage)), 0)
        self._runners = runners
        self._wires = wires
        self._monitor = monitor
        self._bulletin = bulletin
        self._timetable = timetable
        self._outputs: dict[int, MessageSpec] = dict(specs)
        self._known: dict[str, dict[int, MessageSpec]] = {"activation": {}, "gradient": {}}
        self._board = board
        self._clock = clock
        self._handlers: dict[str, Callable[[Instruction], Span | None]] = {
            "F": self._forward,
            "D": self._backward,
            "B": self._backward,
            "W": self._weight_grad,
            "FB": self._pair,
            "SEND": self._send,
            "RECV": self._receive,
            "WAIT": self._wait,
            "ALL_GATHER": self._collective,
            "ALL_REDUCE": self._collective,
            "REDUCE_SCATTER": self._collective,
            "OFFLOAD": self._copy,
            "RELOAD": self._copy,
        }
        self._begin((), ())
        for stage in self._outputs:
            self._learn(stage)

    def run(self, inputs: Sequence[Tensors], targets: Sequence[Any]) -> dict[int, Tensor]:
        """Run the program up to its STEP; return the losses by microbatch, of the last stage.

        Parameters
        ----------
        inputs, targets
            By microbatch; empty where the first, the last stage (of a flow) is not here.
        """
        self._begin(inputs, targets)
        for index, step in enumerate(self._program):
            self._monitor.check()
            if step.op == "STEP":
                break
            self._monitor.enter(self._timetable.activity(index))
            if self._behind:
                self._flush()
            span = self._handlers[step.op](step)
            if span is not None:
                self._spans.append((step, span))
        return self._losses

    def drain(self) -> None:
        """Wait until all messages of this rank have been taken."""
        self._monitor.enter(self._timetable.draining)
        self._wires.drain()
        self._monitor.check()

    def records(self) -> tuple[OpRecord, ...]:
        """Return when each instruction of the last step ran; call it after `drain`."""
        found = []
        for step, (start, end, waited) in self._spans:
            end_s = (end.done_s or end.posted_s) if isinstance(end, Ticket) else self._clock.seconds(end)
            if isinstance(end, Ticket):
                end_s = max(end_s, end.usable_s)
            found.append(
                OpRecord(step.op, step.stage, step.mb, step.channel, self._clock.seconds(start), end_s, waited)
            )
        return tuple(found)

    def _begin(self, inputs: Sequence[Tensors], targets: Sequence[Any]) -> None:
        self._activations: dict[Key, Tensors] = {(self._inputs_of, mb): tensors for mb, tensors in enumerate(inputs)}
        self._targets = targets
        self._gradients: dict[Key, Tensors] = {}
        self._outbox: dict[tuple[str, int, int], Tensors] = {}
        self._losses: dict[int, Tensor] = {}
        self._spans: list[tuple[Instruction, Span]] = []
        self._waited: dict[Key, float] = defaultdict(float)
        self._collectives: dict[int, deque[tuple[str, Ticket]]] = defaultdict(deque)
        self._behind: list[InPort] = []

    # --- compute

    def _forward(self, step: Instruction) -> Span:
        stage, mb = _key(step)
        inputs = self._activations.pop((stage, mb))
        target = self._targets[mb] if self._is_last(stage) else None
        start = self._clock.mark()
        outputs = self._runners[stage].forward(mb, inputs, target)
        span = self._clock.span(start, self._waited.pop((stage, mb), 0.0))
        if self._is_last(stage):
            self._losses[mb] = outputs[0]
            return span
        self._check_outputs(stage, mb, spec_of(outputs))
        if self._placement[stage + 1] == self._rank:
            handed = (tensor.detach().contiguous().requires_grad_(tensor.requires_grad) for tensor in outputs)
            self._activations[stage + 1, mb] = tuple(handed)  # contiguous, as a message would be
        else:
            self._outbox["activation", stage, mb] = outputs
        return span

    def _backward(self, step: Instruction) -> Span:
        stage, mb = _key(step)
        grads = () if self._is_last(stage) else self._gradients.pop((stage, mb))
        runner = self._runners[stage]
        start = self._clock.mark()
        found = runner.input_grad(mb, grads) if step.op == "D" else runner.full_backward(mb, grads)
        span = self._clock.span(start, self._waited.pop((stage, mb), 0.0))
        if self._is_first(stage):
            return span
        if self._placement[stage - 1] == self._rank:
            self._gradients[stage - 1, mb] = tuple(tensor.contiguous() for tensor in found)
        else:
            self._outbox["gradient", stage, mb] = found
        return span

    def _pair(self, step: Instruction) -> Span:
        """Run a forward and a full backward; what they make leaves behind both."""
        start, _, waited = self._forward(step)
        _, end, also_waited = self._backward(
            Instruction(op="B", stage=step.backward_stage, mb=step.backward_mb, start_ns=step.start_ns)
        )
        return start, end, waited + also_waited

    def _weight_grad(self, step: Instruction) -> Span:
        stage, mb = _key(step)
        start = self._clock.mark()
        self._runners[stage].weight_grad(mb)
        return self._clock.span(start, 0.0)

    # --- host memory

    def _copy(self, step: Instruction) -> Span:
        stage, mb = _key(step)
        start = self._clock.mark()
        self._runners[stage].move(mb, step.op, wait=False)
        return self._clock.span(start, 0.0)

    # --- messages

    def _send(self, step: Instruction) -> Span:
        stage, mb = _key(step)
        port = self._wires.outputs[_channel(step)]
        ticket = port.send(self._outbox.pop((port.channel.carries, stage, mb)))
        return ticket.posted_s, ticket, 0.0

    def _receive(self, step: Instruction) -> Span | None:
        port = self._wires.inputs[_channel(step)]
        port.post(*_key(step))
        if not port.flush(self._known[port.channel.carries]):
            self._behind.append(port)
        return None  # recorded when it is waited for

    def _wait(self, step: Instruction) -> Span:
        asked = time.monotonic()
        if step.copy is not None:
            stage, mb = _key(step)
            self._runners[stage].move(mb, step.copy, wait=True)
        elif step.channel is None:
            self._wait_collective(step)
        else:
            stage, mb = _key(step)
            port = self._wires.inputs[step.channel]
            if self._behind:
                self._monitor.wait(lambda: self._flush() or port.is_posted(stage, mb), _POLL_S)
            tensors, ticket = port.take(stage, mb)
            receive = Instruction(op="RECV", stage=stage, mb=mb, channel=step.channel)
            self._spans.append((receive, (ticket.posted_s, ticket, 0.0)))
            if port.channel.carries == "activation":
                spec = self._outputs[stage - 1]
                for tensor, item in zip(tensors, spec, strict=True):
                    tensor.requires_grad_(item.requires_grad)
                self._activations[stage, mb] = tensors
            else:
                self._gradients[stage, mb] = tensors
            self._waited[stage, mb] += time.monotonic() - asked
        ended = time.monotonic()
        return asked, ended, ended - asked

    def _flush(self) -> bool:
        """Post receives that were waiting to learn the size of their messages; return whether none is left."""
        for port in self._behind:
            stage = port.waits_for_spec
            producer = stage if stage is None or port.channel.carries == "gradient" else stage - 1
            if producer is not None and producer not in self._outputs:
                note = self._bulletin.peek(f"{self._board}/outputs/{producer}")
                if note is not None:
                    self._outputs[producer] = decode_spec(note)
                    self._learn(producer)
            port.flush(self._known[port.channel.carries])
        self._behind = [port for port in self._behind if port.waits_for_spec is not None]
        return not self._behind

    def _learn(self, stage: int) -> None:
        """Note what the outputs of a stage mean for those who receive them, and the gradients for them."""
        self._known["activation"][stage + 1] = self._outputs[stage]
        self._known["gradient"][stage] = gradients_of(self._outputs[stage])

    def _check_outputs(self, stage: int, mb: int, spec: MessageSpec) -> None:
        """Tell the next stage what it gets, the first time; from then on it must stay the same."""
        known = self._outputs.get(stage)
        if known is None:
            self._outputs[stage] = spec
            self._learn(stage)
            if self._placement[stage + 1] != self._rank:
                self._bulletin.put(f"{self._board}/outputs/{stage}", encode_spec(spec))
        elif known != spec:
            now, before = (", ".join(map(str, tensors)) for tensors in (spec, known))
            told = f"gave ({now}), but ({before}) was declared or given before; one shape holds for all steps"
            message = f"rank {self._rank}: stage {stage}, microbatch {mb}: {told}"
            raise RuntimeFault(message, code="shape-changed", rank=self._rank, stage=stage, microbatch=mb)

    # --- collectives

    def _collective(self, step: Instruction) -> Span:
        stage = _stage(step)
        replicated = self._wires.replicated[stage]
        ticket = replicated.gather() if step.op == "ALL_GATHER" else replicated.reduce()
        self._collectives[stage].append((step.op, ticket))
        return ticket.posted_s, ticket, 0.0

    def _wait_collective(self, step: Instruction) -> None:
        stage = _stage(step)
        name, ticket = self._collectives[stage].popleft()
        self._wires.replicated[stage].join(ticket)
        if name != "ALL_GATHER":
            with torch.no_grad():
                self._wires.replicated[stage].reduced()


def _stage(step: Instruction) -> int:
    assert step.stage is not None  # noqa: S101 (the plan was validated)
    return step.stage


def _key(step: Instruction) -> Key:
    assert step.stage is not None and step.mb is not None  # noqa: S101 (the plan was validated)
    return step.stage, step.mb


def _channel(step: Instruction) -> int:
    assert step.channel is not None  # noqa: S101 (the plan was validated)
    return step.channel
