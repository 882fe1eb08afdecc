"""Small plans made by hand for the tests of reports and commands: real times, and programs without messages."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from cpipe.ir import (
    Channel,
    Claims,
    Device,
    Hop,
    Instruction,
    MadeBy,
    OpKind,
    Plan,
    Problem,
    ProblemSummary,
    RankProgram,
    Schedule,
    Stage,
    Timeline,
    decode_op,
    encode_op,
)
from cpipe.ir.plan import InstructionName
from cpipe.sim import memory_peaks, simulate
from cpipe.units import Bytes, Ns

__all__ = ["MS", "make_problem", "one_f_one_b", "sample_plan"]

MS = 1_000_000


def make_problem(
    num_devices: int = 2,
    microbatches: int = 4,
    *,
    placement: tuple[int, ...] = (),
    latency_ms: int = 0,
    names: tuple[str, ...] = (),
    capacity_bytes: int | None = None,
) -> Problem:
    """Return a problem of F 2 ms, D 2 ms, W 1 ms, B 3 ms on every stage, 1000 bytes an activation."""
    homes = placement or tuple(range(num_devices))
    hops: dict[tuple[int, int], Hop | None] = {}
    for source, target in [*pairwise(homes), *pairwise(homes[::-1])]:
        hop = Hop(
            source=source,
            target=target,
            message_bytes=Bytes(100),
            latency_ns=Ns(latency_ms * MS),
            occupancy_ns=Ns(0),
            pipe=source * num_devices + target,
        )
        hops[source, target] = None if source == target else hop
    capacity = None if capacity_bytes is None else Bytes(capacity_bytes)
    return Problem(
        name="sample",
        microbatches=microbatches,
        devices=tuple(
            Device(name=names[device] if names else f"g{device}", capacity_bytes=capacity)
            for device in range(num_devices)
        ),
        stages=tuple(
            Stage(
                name=f"s{stage}",
                device=home,
                forward_ns=Ns(2 * MS),
                input_grad_ns=Ns(2 * MS),
                weight_grad_ns=Ns(MS),
                full_backward_ns=Ns(3 * MS),
                activation_bytes=Bytes(1000),
                static_bytes=Bytes(5000),
            )
            for stage, home in enumerate(homes)
        ),
        forward_hops=tuple(hops[pair] for pair in pairwise(homes)),
        backward_hops=tuple(hops[target, source] for source, target in pairwise(homes)),
        pipes=tuple(f"{source}-{target}" for source in range(num_devices) for target in range(num_devices)),
    )


def one_f_one_b(problem: Problem, *, split: bool = False) -> Schedule:
    """Return 1F1B for one stage per device; `split` runs D and W one after the other in place of B."""
    n, last = problem.microbatches, problem.num_stages
    orders = []
    for stage in range(last):
        warm_up = min(n, last - stage)
        steps = [(OpKind.F, index) for index in range(warm_up)]
        for index in range(n):
            steps += [(OpKind.D, index), (OpKind.W, index)] if split else [(OpKind.B, index)]
            if warm_up + index < n:
                steps.append((OpKind.F, warm_up + index))
        orders.append(tuple(encode_op(kind, stage, index, n) for kind, index in steps))
    return Schedule(orders=tuple(orders))


def sample_plan(problem: Problem, schedule: Schedule) -> Plan:
    """Return a plan with the replayed times of `schedule` and no messages; it can be read and drawn, not run."""
    timeline = simulate(problem, schedule)
    windows = [
        Channel(id=0, source=hop.source, target=hop.target, carries="activation", message_bytes=100, window=2)
        for hop in problem.forward_hops[:1]
        if hop is not None
    ]
    return Plan(
        format="cpipe.plan",
        version=1,
        digest="sha256:0",
        made_by=MadeBy(cpipe="0.1.0", method="1f1b", seed=0, limits={}),
        problem=ProblemSummary(
            digest="sha256:0",
            name=problem.name,
            devices=problem.num_devices,
            stages=problem.num_stages,
            microbatches=problem.microbatches,
            placement=problem.placement,
        ),
        claims=Claims(
            makespan_ns=timeline.makespan_ns,
            lower_bound_ns=timeline.makespan_ns,
            proved_by="bound",
            peak_bytes=memory_peaks(problem, schedule.orders),
        ),
        channels=tuple(windows),
        groups=(),
        ranks=tuple(
            RankProgram(rank=device, device=problem.devices[device].name, ops=_ops(problem, schedule, timeline, device))
            for device in range(problem.num_devices)
        ),
    )


def _ops(problem: Problem, schedule: Schedule, timeline: Timeline, device: int) -> tuple[Instruction, ...]:
    ops = []
    for op, start, end in zip(schedule.orders[device], timeline.starts[device], timeline.ends[device], strict=True):
        kind, stage, microbatch = decode_op(op, problem.microbatches)
        ops.append(
            Instruction(op=cast(InstructionName, kind.name), stage=stage, mb=microbatch, start_ns=start, end_ns=end)
        )
    return (*ops, Instruction(op="STEP"))
