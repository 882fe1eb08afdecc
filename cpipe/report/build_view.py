"""A view of a plan: its programs read, its messages matched, its times replaced by those of a replay."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cpipe.ir import Instruction, MessageRun, Plan, Problem, RankProgram, Timeline
from cpipe.ir.explanation import Segment
from cpipe.report.figures import COMPUTE, DeviceFigures, plan_figures
from cpipe.report.lanes import COLLECTIVES, op_times
from cpipe.report.view import ChannelView, CollectiveView, Input, MessageView, OpView, PlanView, RankView, Window

__all__ = ["plan_view", "retimed"]


def plan_view(
    plan: Plan,
    problem: Problem | None = None,
    timeline: Timeline | None = None,
    figures: Sequence[DeviceFigures] | None = None,
    *,
    same_job: bool = True,
    path: Sequence[Segment] | None = None,
) -> PlanView:
    """Return the view of a plan.

    Parameters
    ----------
    plan
        Any plan that can be read; what has no times or no place is left out.
    problem
        The job, for memory and names of links.
    timeline
        The plan's replay on `problem`; its times replace the plan's.
    figures
        Of the replay; by default what the plan states.
    same_job
        Whether the plan's bound holds for `problem`.
    path
        The critical path of the replay (`cpipe.sim.critical_path`).
    """
    if timeline is not None:
        plan = retimed(plan, timeline)
    ranks, ops, collectives = _programs(plan)
    roles = {role: index for index, op in enumerate(ops) for role in _roles(op)}
    channels, messages = _messages(plan, problem, timeline, ops, roles)
    ends = [op.end for op in ops] + [run.end for run in collectives] + [message.span[1] for message in messages]
    return PlanView(
        plan=plan,
        problem=problem,
        timeline=timeline,
        bound_ns=plan.claims.lower_bound_ns if same_job else None,
        figures=tuple(plan_figures(plan, problem) if figures is None else figures),
        ranks=ranks,
        ops=ops,
        messages=messages,
        collectives=collectives,
        channels=channels,
        inputs=_inputs(ops, messages, roles, max(1, plan.problem.stages // max(1, plan.problem.flows))),
        horizon=max([0, plan.claims.makespan_ns, *ends]),
        visible=tuple(range(len(ranks))),
        path=None if path is None else tuple(path),
    )


def retimed(plan: Plan, timeline: Timeline) -> Plan:
    """Return the plan with the times of its replay in place of its own, in programs and claims (digests stay)."""
    collectives = {(run.kind, run.stage): run for run in timeline.collectives}

    def program(rank: RankProgram) -> RankProgram:
        times = iter(zip(timeline.starts[rank.rank], timeline.ends[rank.rank], strict=True))
        ops = []
        for op in rank.ops:
            if op.op in COMPUTE:
                start, end = next(times)
                if _backward(op) is not None:  # a schedule has both halves, the plan has them as one
                    end = max(end, next(times)[1])
                op = replace(op, start_ns=start, end_ns=end)
            elif op.op in COLLECTIVES and op.stage is not None:
                run = collectives.get((op.op, op.stage))  # type: ignore[arg-type]
                op = op if run is None else replace(op, start_ns=run.start_ns, end_ns=run.end_ns)
            ops.append(op)
        return replace(rank, ops=tuple(ops))

    claims = replace(plan.claims, makespan_ns=timeline.makespan_ns)
    if claims.span_ns is not None:
        claims = replace(claims, span_ns=timeline.span_ns)
    return replace(plan, claims=claims, ranks=tuple(map(program, plan.ranks)))


def _programs(plan: Plan) -> tuple[tuple[RankView, ...], tuple[OpView, ...], tuple[CollectiveView, ...]]:
    ranks: list[RankView] = []
    ops: list[OpView] = []
    collectives: list[CollectiveView] = []
    for place, program in enumerate(plan.ranks):
        first_op, first_run = len(ops), len(collectives)
        for step in program.ops:
            if step.stage is None or step.start_ns is None or step.end_ns is None:
                continue
            start, end = op_times(step)
            if step.op in COMPUTE and step.mb is not None:
                previous = len(ops) - 1 if len(ops) > first_op else -1
                ops.append(OpView(place, step.op, step.stage, step.mb, start, end, previous, _backward(step)))
            elif step.op in COLLECTIVES:
                collectives.append(CollectiveView(place, COLLECTIVES[step.op], step.stage, start, end))
        mine = tuple(range(first_op, len(ops))), tuple(range(first_run, len(collectives)))
        ranks.append(RankView(program.rank, program.device, *mine))
    return tuple(ranks), tuple(ops), tuple(collectives)


def _backward(step: Instruction) -> tuple[int, int] | None:
    """Return stage and microbatch of the backward half of an op that pairs a forward with one, else None."""
    stage, mb = getattr(step, "backward_stage", None), getattr(step, "backward_mb", None)
    return None if stage is None or mb is None else (stage, mb)


_Role = tuple[str, int, int]


def _roles(op: OpView) -> tuple[_Role, ...]:
    """Return what an op is, as those who wait for it see it: forward, backward (input gradient) or weight gradient."""
    if op.backward is not None:
        return ("forward", op.stage, op.mb), ("backward", *op.backward)
    role = {"F": "forward", "D": "backward", "B": "backward", "W": "weight"}.get(op.kind, op.kind)
    return ((role, op.stage, op.mb),)


def _messages(
    plan: Plan,
    problem: Problem | None,
    timeline: Timeline | None,
    ops: Sequence[OpView],
    roles: dict[_Role, int],
) -> tuple[tuple[ChannelView, ...], tuple[MessageView, ...]]:
    """Return the channels whose ends are there, and the messages that the plan sends on them, channel by channel."""
    place = {program.rank: index for index, program in enumerate(plan.ranks)}
    runs = {(run.kind, run.stage, run.microbatch): run for run in timeline.messages} if timeline else {}
    sent: dict[int, list[tuple[int, int]]] = {}
    for program in plan.ranks:
        for step in program.ops:
            if step.op == "SEND" and step.channel is not None and step.stage is not None and step.mb is not None:
                sent.setdefault(step.channel, []).append((step.stage, step.mb))
    channels: list[ChannelView] = []
    messages: list[MessageView] = []
    for channel in plan.channels:
        if channel.source not in place or channel.target not in place:
            continue
        first = len(messages)
        role, step_to = ("forward", 1) if channel.carries == "activation" else ("backward", -1)
        for stage, mb in sent.get(channel.id, ()):
            producer, consumer = roles.get((role, stage, mb)), roles.get((role, stage + step_to, mb))
            if producer is not None and consumer is not None:
                window = _window(runs.get((channel.carries, stage, mb)))
                times = ops[producer].end, ops[consumer].start
                messages.append(MessageView(len(channels), stage, mb, producer, consumer, *times, window))
        pipe = _pipe(problem, channel.source, channel.target, channel.carries)
        mine = tuple(range(first, len(messages)))
        ends = place[channel.source], place[channel.target]
        channels.append(ChannelView(channel.id, *ends, channel.carries, pipe, mine))
    return tuple(channels), tuple(messages)


def _window(run: MessageRun | None) -> Window | None:
    return None if run is None else Window(run.start_ns, run.end_ns, run.arrival_ns)


def _pipe(problem: Problem | None, source: int, target: int, carries: str) -> int | None:
    if problem is None:
        return None
    hops = problem.forward_hops if carries == "activation" else problem.backward_hops
    return next((hop.pipe for hop in hops if hop is not None and (hop.source, hop.target) == (source, target)), None)


def _inputs(
    ops: Sequence[OpView], messages: Sequence[MessageView], roles: dict[_Role, int], flow_length: int
) -> tuple[tuple[Input, ...], ...]:
    brings = {(message.producer, message.consumer): index for index, message in enumerate(messages)}
    found = []
    for index, op in enumerate(ops):
        producers = [roles[role] for role in _needs(op, flow_length) if role in roles]
        found.append(tuple(Input(made, brings.get((made, index), -1)) for made in producers if made != index))
    return tuple(found)


def _needs(op: OpView, flow_length: int) -> list[_Role]:
    """Return the roles that must be played before `op` can start; the last backward of a flow reads its forward."""
    if op.kind == "W":
        return [("backward", op.stage, op.mb)]
    needs: list[_Role] = []
    if op.kind == "F" or op.backward is not None:
        needs += [("forward", op.stage - 1, op.mb)] if op.stage % flow_length else []
    if op.kind != "F":
        stage, mb = op.backward or (op.stage, op.mb)
        needs.append(("backward", stage + 1, mb) if (stage + 1) % flow_length else ("forward", stage, mb))
    return needs
