"""Tests of cpipe.report.view, waits and levels: what feeds what, why ops start when they do, memory over time."""

from __future__ import annotations

import msgspec
import pytest
from helpers import plan_of
from sample_plans import MS, make_problem, one_f_one_b
from view_cases import alone, random_views, replayed, small_view

from cpipe.ir import Schedule
from cpipe.report.build_view import plan_view, retimed
from cpipe.report.levels import memory_levels
from cpipe.report.view import PlanView
from cpipe.report.waits import Step, causes, critical_steps, describe
from cpipe.sim import simulate

SEEDS = range(8)


def labels(view: PlanView, steps: tuple[Step, ...]) -> list[str]:
    """Return the ops of a chain, messages as the op that made them with an arrow behind it."""
    found = []
    for step in steps:
        if step.kind == "op":
            found.append(view.ops[step.at].label)
        elif step.kind == "message":
            found.append(view.ops[view.messages[step.at].producer].label + ">")
        else:
            found.append(view.collectives[step.at].label)
    return found


def test_inputs_of_each_kind() -> None:
    """F reads the F before it, D and B the one behind them or, on the last stage, their own F; W reads its D."""
    view = alone(problem := make_problem(2, 2, latency_ms=1), one_f_one_b(problem, split=True))
    found = {op.label: [view.ops[made].label for made, _ in view.inputs[i]] for i, op in enumerate(view.ops)}
    assert found["0F0"] == []
    assert (found["1F1"], found["1D1"], found["0D1"]) == (["0F1"], ["1F1"], ["1D1"])
    assert (found["0W0"], found["1W0"]) == (["0D0"], ["1D0"])


def test_messages_join_ops_of_two_ranks() -> None:
    """Every input from another rank comes by a message of the channel between them, any other by none."""
    for view in random_views(12):
        for index, inputs in enumerate(view.inputs):
            for made, message in inputs:
                source, target = view.ops[made], view.ops[index]
                assert (message >= 0) == (source.rank != target.rank)
                if message >= 0:
                    channel = view.channels[view.messages[message].channel]
                    assert (channel.source, channel.target) == (source.rank, target.rank)
                    assert (channel.carries == "activation") == (source.kind == "F")


def test_every_message_is_there() -> None:
    """A view has the messages of the timeline, each with its window, and what feeds an op ends before it starts."""
    for view in random_views(12):
        assert view.timeline is not None
        assert len(view.messages) == len(view.timeline.messages)
        for message in view.messages:
            assert message.window is not None
            assert message.ready <= message.window.start <= message.window.end <= message.window.arrival <= message.read


def test_without_a_replay_windows_are_not_known() -> None:
    """A plan alone says when a message is ready and when it is read, nothing between."""
    problem = make_problem(3, 3, latency_ms=2)
    view = alone(problem, one_f_one_b(problem))
    assert view.timeline is None
    assert view.messages
    assert {message.window for message in view.messages} == {None}
    assert all(message.span == (message.ready, message.read) for message in view.messages)


def test_causes_explain_every_start() -> None:
    """In a replay each op starts exactly when what it waited for ends, and never before any of its inputs."""
    for view in random_views(20, seed=1):
        for op, cause in zip(view.ops, causes(view), strict=True):
            if cause.kind == "start":
                assert op.start == 0
            elif cause.kind == "message":
                window = view.messages[cause.at].window
                assert window is not None
                assert window.arrival == op.start
            elif cause.kind == "gather":
                assert view.collectives[cause.at].end == op.start
            else:
                assert cause.kind in ("device", "input")
                assert view.ops[cause.at].end == op.start


def test_critical_chain_is_the_simulators() -> None:
    """The chain of a replay has the pieces of `cpipe.sim.critical_path`, in order."""
    for view in random_views(20, seed=2):
        assert view.path is not None
        steps = critical_steps(view)
        wanted = [piece.label for piece in view.path if piece.kind == "compute"]
        assert [view.ops[step.at].label for step in steps if step.kind == "op"] == wanted
        runs = [piece for piece in view.path if piece.kind == "collective"]
        assert len([step for step in steps if step.kind == "collective"]) == len(runs)


def test_critical_chain_of_a_plan_alone() -> None:
    """Without a profile the chain is followed through the plan's own times: from the end to an op that starts at 0."""
    problem = make_problem(2, 2, latency_ms=1)
    view = alone(problem, one_f_one_b(problem))
    assert labels(view, critical_steps(view)) == ["0F0", "0F0>", "1F0", "1B0", "1F1", "1B1", "1B1>", "0B1"]


@pytest.mark.parametrize("seed", SEEDS)
def test_own_chain_touches(seed: int) -> None:
    """The chain that is followed without the simulator's reaches the last end, without gaps where times are known."""
    for view in random_views(6, seed=seed):
        own = view._replace(path=None)
        steps = critical_steps(own)
        ends = [(op.end, op.start) for op in own.ops] + [(run.end, run.start) for run in own.collectives]
        assert steps
        last = steps[-1]
        reached = own.ops[last.at].end if last.kind == "op" else own.collectives[last.at].end
        assert reached == max(end for end, _ in ends)
        assert len(set(steps)) == len(steps)


def test_critical_chain_with_a_busy_link() -> None:
    """A message that waited for its link is preceded by the one that held it."""
    problem = make_problem(2, 4)
    hops = tuple(msgspec.structs.replace(hop, occupancy_ns=9 * MS) for hop in problem.forward_hops if hop is not None)
    problem = msgspec.structs.replace(problem, forward_hops=hops)
    order = "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"
    view = replayed(problem, Schedule.from_text(order, 4))
    chain = labels(view, critical_steps(view))
    assert chain == ["0F0", "0F0>", "0F1>", "0F2>", "0F3>", "1F3", "1B3", "0B3"]  # the last message takes no time
    assert labels(view, critical_steps(view._replace(path=None))) == [*chain[:-1], "1B3>", "0B3"]


def test_description_names_what_was_waited_for() -> None:
    """A cause reads as a sentence: the op before, an op of the same device, a message with its sender, nothing."""
    view = small_view(2, 2)
    found = {op.label: describe(view, cause) for op, cause in zip(view.ops, causes(view), strict=True)}
    assert found["0F0"] == "nothing"
    assert found["0F1"] == "0F0, the op before it"
    assert found["1F0"] == "the activation of 0F0 from g0"
    assert found["0D0"] == "the gradient of 1D0 from g1"


def test_memory_curve_reaches_the_peak() -> None:
    """The highest point of each curve is the peak of the report, and it ends where it began."""
    for view in random_views(20, seed=3):
        for level, figures in zip(memory_levels(view), view.figures, strict=True):
            assert level.unit == "bytes"
            assert level.peak == figures.peak_bytes
            assert level.points[0][1] == level.points[-1][1]
            assert [time for time, _ in level.points] == sorted(time for time, _ in level.points)


def test_memory_curve_by_hand() -> None:
    """F adds its activation at its start, B frees it at its end; static bytes and receive buffers are always there."""
    view = small_view(1, 2, split=False)
    (level,) = memory_levels(view)
    assert level.points == ((0, 5000), (0, 6000), (5 * MS, 5000), (5 * MS, 6000), (10 * MS, 5000))


def test_capacity_is_the_limit_of_the_device() -> None:
    """A curve knows the capacity of its device, or that it has none."""
    assert {level.capacity for level in memory_levels(small_view(capacity=9000))} == {9000}
    assert {level.capacity for level in memory_levels(small_view())} == {None}


def test_without_sizes_microbatches_are_counted() -> None:
    """Without a profile the curve counts the microbatches in flight, up to the figure of the table."""
    problem = make_problem(3, 6, latency_ms=1)
    view = alone(problem, one_f_one_b(problem))
    for level, figures in zip(memory_levels(view), view.figures, strict=True):
        assert level.unit == "microbatches"
        assert level.peak == figures.in_flight
        assert level.points[-1][1] == 0


def test_retimed_plan_has_the_times_of_the_replay() -> None:
    """Replayed on slower links, programs and claims have the new times, and nothing else is changed."""
    fast, slow = make_problem(3, 4), make_problem(3, 4, latency_ms=5)
    schedule = one_f_one_b(fast)
    plan = plan_of(fast, schedule)
    timeline = simulate(slow, schedule)
    later = retimed(plan, timeline)
    assert later.claims.makespan_ns == timeline.makespan_ns > plan.claims.makespan_ns
    for before, after, ends in zip(plan.ranks, later.ranks, timeline.ends, strict=True):
        assert [step.op for step in before.ops] == [step.op for step in after.ops]
        assert tuple(step.end_ns for step in after.ops if step.op in ("F", "B")) == ends


def test_collectives_are_retimed_too() -> None:
    """The collectives of a replayed view are those of the timeline."""
    seen = 0
    for view in random_views(30, seed=4):
        assert view.timeline is not None
        runs = sorted((run.device, run.stage, run.start_ns, run.end_ns) for run in view.timeline.collectives)
        assert sorted((run.rank, run.stage, run.start, run.end) for run in view.collectives) == runs
        seen += len(runs)
    assert seen


def test_only_some_ranks() -> None:
    """Of a view of some ranks the others are not drawn, but what waits for them still knows."""
    view = small_view(4, 4)
    part = view.only_ranks([1, 9])
    assert [program.rank for program in part.shown_plan().ranks] == [1]
    assert [figures.name for figures in part.shown_figures] == ["g1"]
    assert causes(part) == causes(view)
    assert critical_steps(part) == critical_steps(view)


def test_gap_is_of_the_objective() -> None:
    """The gap is between bound and makespan, or between bound and span where the span was the objective."""
    plan = plan_of(problem := make_problem(2, 2), one_f_one_b(problem))
    claims = msgspec.structs.replace(plan.claims, makespan_ns=100, lower_bound_ns=50)
    view = plan_view(msgspec.structs.replace(plan, claims=claims))
    assert (view.gap, view.reached_ns) == (0.5, 100)
    claims = msgspec.structs.replace(claims, objective="span", span_ns=80)
    assert plan_view(msgspec.structs.replace(plan, claims=claims)).gap == 0.375
    assert plan_view(plan, same_job=False).gap is None


def test_a_fused_pair_is_one_op() -> None:
    """A forward and a backward as one op read both inputs, feed both sides and hold memory as both do."""
    problem = make_problem(2, 3, latency_ms=1)
    plan = plan_of(problem, one_f_one_b(problem))
    first = plan.ranks[0]
    steps, forward = [], None
    for step in first.ops:
        if step.op == "F" and step.mb == 2:
            forward = step
            continue
        if step.op == "B" and step.mb == 0:
            assert forward is None
            step = msgspec.structs.replace(step, op="FB", mb=2, backward_stage=0, backward_mb=0)
        steps.append(step)
    fused = msgspec.structs.replace(plan, ranks=(msgspec.structs.replace(first, ops=tuple(steps)), plan.ranks[1]))
    view = plan_view(fused)
    (pair,) = [op for op in view.ops if op.kind == "FB"]
    assert pair.label == "0F2+0B0"
    at = view.ops.index(pair)
    assert [view.ops[made].label for made, _ in view.inputs[at]] == ["1B0"]
    assert [
        view.ops[made].label for i, op in enumerate(view.ops) if op.label == "1F2" for made, _ in view.inputs[i]
    ] == ["0F2+0B0"]
    assert memory_levels(view)[0].peak == 3


def test_flows_do_not_feed_each_other() -> None:
    """Of two flows in opposite directions, the first stage of the second reads nothing of the first's last."""
    problem = make_problem(2, 2, latency_ms=1)
    plan = plan_of(problem, one_f_one_b(problem))
    summary = msgspec.structs.replace(plan.problem, flows=2, stages=2)
    view = plan_view(msgspec.structs.replace(plan, problem=summary))  # each flow has a single stage
    found = {op.label: [view.ops[made].label for made, _ in view.inputs[i]] for i, op in enumerate(view.ops)}
    assert (found["1F0"], found["0B0"], found["1B1"]) == ([], ["0F0"], ["1F1"])


@pytest.mark.parametrize("flows", [0, -3, 10**9])
def test_odd_numbers_of_flows_are_drawn(flows: int) -> None:
    """Whatever number of flows a plan states, it can be shown."""
    plan = plan_of(problem := make_problem(2, 2), one_f_one_b(problem))
    odd = msgspec.structs.replace(plan, problem=msgspec.structs.replace(plan.problem, flows=flows))
    assert len(plan_view(odd).ops) == len(plan_view(plan).ops)


def test_replay_of_fused_pairs() -> None:
    """A replayed plan with fused pairs has one bar a pair, its memory reaches the peak, and its chain is whole."""
    problem = make_problem(2, 3, latency_ms=1)
    order = "0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"
    view = replayed(problem, Schedule.from_text(order, 3))
    (pair,) = [op for op in view.ops if op.kind == "FB"]
    assert (pair.label, pair.backward) == ("0F2+0B0", (0, 0))
    assert [level.peak for level in memory_levels(view)] == [figures.peak_bytes for figures in view.figures]
    assert "0F2+0B0" in labels(view, critical_steps(view))
    read = next(index for index, op in enumerate(view.ops) if op.label == "1F2")
    assert [view.ops[made].label for made, _ in view.inputs[read]] == ["0F2+0B0"]
    assert describe(view, causes(view)[view.ops.index(pair)]) == "the gradient of 1B0 from g1"
    assert sum(op.end - op.start for op in view.ops if op.rank == 0) == view.figures[0].busy_ns


@pytest.mark.parametrize("seed", SEEDS)
def test_own_chain_has_no_gaps(seed: int) -> None:
    """Without collectives, each step of the chain that is followed here begins as the one before it ends, from 0 on."""
    for view in random_views(10, seed=200 + seed):
        if view.collectives:
            continue
        own = view._replace(path=None)
        clocks = {0}
        for step in critical_steps(own):
            if step.kind == "op":
                op = own.ops[step.at]
                assert op.start in clocks
                clocks = {op.end}
            else:
                window = own.messages[step.at].window
                assert window is not None
                assert window.start in clocks
                clocks = {window.end, window.arrival}
        assert own.plan.claims.makespan_ns in clocks


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("num_devices", "microbatches"), [(1, 1), (2, 3), (4, 2), (3, 8)])
def test_levels_are_a_running_sum(num_devices: int, microbatches: int, split: bool) -> None:
    """At any moment a device holds its static bytes, its receive buffers and an activation for each open forward."""
    view = small_view(num_devices, microbatches, split=split)
    for place, level in enumerate(memory_levels(view)):
        first = level.points[0][1]
        ops = [view.ops[index] for index in view.ranks[place].ops]
        for time in sorted({op.start for op in ops} | {op.end for op in ops}):
            begun = sum(op.kind == "F" and op.start <= time for op in ops)
            ended = sum(op.kind in ("B", "D") and op.end <= time for op in ops)  # nothing is held for W here
            now = [value for at, value in level.points if at <= time][-1]
            assert now == first + 1000 * (begun - ended)


def test_steps_of_a_device_are_in_its_order() -> None:
    """Each op knows the one before it on its rank, and a rank lists its ops in that order."""
    for view in random_views(10, seed=31):
        for place, rank in enumerate(view.ranks):
            before = -1
            for index in rank.ops:
                assert (view.ops[index].rank, view.ops[index].previous) == (place, before)
                before = index


def test_channel_names_are_those_of_the_devices() -> None:
    """A channel is named after the devices at its ends and what it carries."""
    view = small_view(2, 2)
    names = [view.channel_name(number) for number in range(len(view.channels))]
    assert names == ["g0 to g1, activation", "g1 to g0, gradient"]
    assert [view.channels_of(place) for place in (0, 1)] == [[0], [1]]
    assert view.kinds == {"F", "D", "W"}
