"""One rank of a run: join the others, run the steps, check the gradients, and put together what was measured.

A worker is started by `cpipe run`, by ``torchrun`` or by hand; RANK and WORLD_SIZE say which rank it is. Steps start on
all ranks at one time of CLOCK_MONOTONIC where they share a machine: a barrier alone would let them start as far apart
as its own messages take, and that would be measured as waiting.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cpipe.errors import UsageError
from cpipe.ir import Plan
from cpipe.runtime.compare import compare_channels, compare_devices, step_seconds
from cpipe.runtime.emulate import Emulation
from cpipe.runtime.executor import PlanExecutor
from cpipe.runtime.failure import RUN_DIR, exits_are_failures
from cpipe.runtime.gradient_check import (
    Gradients,
    StageCheck,
    accumulation_orders,
    added,
    check_stage,
    reference_gradients,
)
from cpipe.runtime.models import Job, PipelineModel, SleepModel, load_factory
from cpipe.runtime.records import OpRecord, StepResult
from cpipe.runtime.specs import moved
from cpipe.runtime.trace import chrome_trace
from cpipe.runtime.watchdog import Watchdog

__all__ = ["RunOptions", "World", "join_world", "run_plan"]

_HEAD_START_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What to run.

    Attributes
    ----------
    model
        ``transformer``, ``sleep`` or ``MODULE:FACTORY``.
    steps
        Iterations; of several, the first warms up and the fastest of the others is reported.
    seed
        Of the model.
    time_scale
        Multiplies the plan's times, for the sleep model and for what is predicted.
    emulation
        Delays of messages, or None for the transport's own.
    check
        Whether to compare the gradients of the last step with those of a single process.
    trace
        Write the timeline of the reported step to this file.
    """

    model: str = "transformer"
    steps: int = 3
    seed: int = 0
    time_scale: float = 1.0
    emulation: Emulation | None = None
    check: bool = True
    trace: Path | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """Where this rank is: its device, a group for small objects, and whether all ranks are on this machine."""

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup
    one_machine: bool


def join_world() -> World:
    """Join the other ranks; accelerators are used when there is one for each rank of this machine.

    Raises
    ------
    UsageError
        When RANK and WORLD_SIZE do not say which rank this is.
    """
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local_rank, local_size = _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size)
    device = torch.device("cpu")
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_size:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    directory = os.environ.get(RUN_DIR)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    # A file needs no free port; torchrun brings its own meeting point.
    method = "env://" if directory is None else f"file://{directory}/store"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
    control = dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo")
    if control is None:
        raise AssertionError("the default group exists once it is initialised")
    names: list[Any] = [None] * size
    dist.all_gather_object(names, _machine(), group=control)
    return World(rank=rank, size=size, device=device, control=control, one_machine=len(set(names)) == 1)


def run_plan(plan: Plan, options: RunOptions) -> dict[str, Any] | None:
    """Run a plan as one rank of a world that this call joins and leaves.

    Parameters
    ----------
    plan
        A valid plan.
    options
        The same on every rank.

    Returns
    -------
    dict or None
        On rank 0 the result, plain enough for JSON; None elsewhere. Times [ms]: ``step_ms`` of every step, ``step``
        the reported one, ``predicted_ms``, ``devices`` and ``channels`` as in `cpipe.runtime.compare`, ``gradients``
        one `StageCheck` a stage (empty when not checked), ``losses`` by microbatch.

    Raises
    ------
    UsageError
        When the world has another size than the plan, or there is no such model.
    RuntimeFault
        When a rank fails; see `PlanExecutor`.
    NoSolutionError
        When the model's code exits.
    """
    world = join_world()
    try:
        if world.size != len(plan.ranks):
            message = f"the plan is for {len(plan.ranks)} ranks, but {world.size} were started"
            raise UsageError(message, code="wrong-world-size")
        with exits_are_failures(world.rank):
            return _run(plan, options, world)
    finally:
        dist.destroy_process_group()


def _run(plan: Plan, options: RunOptions, world: World) -> dict[str, Any] | None:
    length, flows = plan.problem.flow_length, plan.problem.flows
    sizes = {"num_stages": length, "microbatches": flows * plan.problem.microbatches}
    job = Job(**sizes, seed=options.seed, plan=plan, time_scale=options.time_scale)
    factory = load_factory(options.model)
    model = factory(job)
    mine = [stage for stage, rank in enumerate(plan.problem.placement) if rank == world.rank]
    by_plan = isinstance(model, SleepModel)  # copies sleep by their own ops
    stages = {stage: model.stage(stage if by_plan else stage % length).to(world.device) for stage in mine}
    steps, gradients = _steps(plan, options, world, model, stages)
    checks: list[StageCheck] = []
    if options.check:
        fresh = factory(Job(**sizes, seed=options.seed, plan=plan, time_scale=0.0))
        drawing: set[int] = set()
        orders = accumulation_orders(plan)
        of_flows = []
        for flow in range(flows):
            share = {stage: orders[flow * length + stage] for stage in range(length)}
            part = _share(plan, flow)
            of_flows.append(
                reference_gradients(fresh, share, options.steps - 1, world.device, part=part, drawing=drawing)
            )
        expected = added(of_flows)
        checks = [
            replace(check_stage(stage, found, expected[stage % length]), random=stage % length in drawing)
            for stage, found in gradients.items()
        ]
    told: list[Any] = [None] * world.size
    dist.all_gather_object(told, (steps, checks), group=world.control)
    return _result(plan, options, told) if world.rank == 0 else None


def _share(plan: Plan, flow: int) -> slice:
    """Return which of the model's microbatches a flow trains."""
    return slice(flow * plan.problem.microbatches, (flow + 1) * plan.problem.microbatches)


@dataclass(frozen=True)
class _Step:
    """What one rank measured in one step, times from the common start [s]; picklable."""

    records: tuple[OpRecord, ...]
    losses: dict[int, float]


def _steps(
    plan: Plan, options: RunOptions, world: World, model: PipelineModel, stages: dict[int, nn.Module]
) -> tuple[list[_Step], dict[int, Gradients]]:
    """Run all steps; return what they measured, and the gradients of the last."""
    measured: list[_Step] = []
    length = plan.problem.flow_length
    reads = next((_share(plan, stage // length) for stage in stages if plan.problem.is_first(stage)), None)
    ends = next((_share(plan, stage // length) for stage in stages if plan.problem.is_last(stage)), None)
    with PlanExecutor(
        plan,
        stages,
        model.loss_fn,
        device=world.device,
        watchdog=_watchdog(options.time_scale),
        scale_grads=False,  # the sum is what the check recomputes
        emulation=options.emulation,
        record=True,
    ) as executor:
        for step in range(options.steps):
            inputs = None if reads is None else [moved(value, world.device) for value in model.inputs(step)[reads]]
            targets = None if ends is None else [moved(value, world.device) for value in model.targets(step)[ends]]
            for stage, module in stages.items():
                for parameter in (*module.parameters(), *executor.parameters(stage)):
                    parameter.grad = None
            start = _common_start(world)
            result = executor.step(inputs, targets)
            measured.append(_step(result, start, ends.start if ends is not None else 0))
        gradients = {stage: _gradients(module, executor.parameters(stage)) for stage, module in stages.items()}
    return measured, gradients


def _watchdog(time_scale: float) -> Watchdog:
    """Return limits that leave ops as much room when the plan's times are stretched; never less than without."""
    usual, stretch = Watchdog(), max(1.0, time_scale)
    return Watchdog(factor=usual.factor * stretch, first_step_s=usual.first_step_s * stretch)


def _common_start(world: World) -> float:
    """Wait for all ranks and return the time at which the step starts, CLOCK_MONOTONIC [s]."""
    dist.barrier(group=world.control)
    if not world.one_machine:
        return time.monotonic()
    agreed: list[Any] = [time.monotonic() + _HEAD_START_S]
    dist.broadcast_object_list(agreed, src=0, group=world.control)
    start = float(agreed[0])
    time.sleep(max(0.0, start - time.monotonic()))
    return start


def _step(result: StepResult, start: float, first_mb: int) -> _Step:
    """Return what is kept of a step; `first_mb` is the model's microbatch that is 0 of the flow that ends here."""
    records = tuple(
        record._replace(start_s=record.start_s - start, end_s=record.end_s - start) for record in result.records
    )
    return _Step(records, {first_mb + mb: float(loss) for mb, loss in sorted(result.losses.items())})


def _result(plan: Plan, options: RunOptions, told: Sequence[tuple[list[_Step], list[StageCheck]]]) -> dict[str, Any]:
    """Put together what all ranks measured."""
    seconds = [
        step_seconds({rank: steps[step].records for rank, (steps, _) in enumerate(told)})
        for step in range(options.steps)
    ]
    best = min(range(min(1, options.steps - 1), options.steps), key=seconds.__getitem__)
    records = {rank: steps[best].records for rank, (steps, _) in enumerate(told)}
    if options.trace is not None:
        options.trace.write_text(json.dumps(chrome_trace(records, plan)) + "\n", encoding="utf-8")
    losses = {mb: loss for steps, _ in told for mb, loss in steps[best].losses.items()}
    return {
        "model": options.model,
        "step_ms": [value * 1e3 for value in seconds],
        "step": best,
        "predicted_ms": plan.claims.makespan_ns * options.time_scale / 1e6,
        "devices": [asdict(item) for item in compare_devices(plan, records, options.time_scale)],
        "channels": [asdict(item) for item in compare_channels(plan, records, options.time_scale)],
        "gradients": sorted((asdict(item) for _, checks in told for item in checks), key=lambda item: item["stage"]),
        "losses": [losses[mb] for mb in sorted(losses)],
    }


def _gradients(module: nn.Module, trained: Sequence[nn.Parameter]) -> Gradients:
    """Return the gradients of a stage by name, also where they lie in one flat shard per dtype (zero1, one replica)."""
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if {id(parameter) for parameter in trained} == {id(parameter) for parameter in named.values()}:
        return {name: parameter.grad for name, parameter in named.items()}
    gradients: Gradients = dict.fromkeys(named)
    shards = {shard.dtype: shard.grad for shard in trained}
    offsets = dict.fromkeys(shards, 0)
    for name, parameter in named.items():
        shard, start = shards[parameter.dtype], offsets[parameter.dtype]
        offsets[parameter.dtype] += parameter.numel()
        if shard is not None:
            gradients[name] = shard[start : start + parameter.numel()].view_as(parameter)
    return gradients


def _machine() -> str:
    """Return what names this machine's clock: the boot where it is known, else the host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return platform.node()


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        message = f"the environment variable {name} must be a number, got {text!r}"
        raise UsageError(message, code="no-rank", hint="start workers with 'cpipe run' or torchrun")
    return int(text)
