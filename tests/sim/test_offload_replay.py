"""Tests of activations in host memory in the IR and the simulator: what waits for what, and what is resident when."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from oracle.cases import case
from oracle.orders import random_schedule
from oracle.paired import draw_paired
from random_offloads import draw_offering, draw_offloads
from random_plans import draw_problem, draw_schedule

from cpipe.ir import CopyRun, InvariantError, Offload, OpKind, Problem, Schedule, decode_op
from cpipe.sim import Runs, critical_path, idle_parts, memory_peaks, simulate
from cpipe.sim.critical import levels_before
from cpipe.sim.memory import fits, memory_steps
from cpipe.units import Bytes, Ns


def offering(problem: Problem, size: int, length: int) -> Problem:
    """Return the problem with `size` bytes of each activation that may go to host memory in `length` ns."""
    stages = tuple(replace(stage, offload_bytes=Bytes(size), offload_ns=Ns(length)) for stage in problem.stages)
    return replace(problem, stages=stages)


ALONE = offering(case(3, (0,), split=False, activation=10, capacity=24), 8, 5)
ORDER = "0F0 0F1 0F2 0B0 0B1 0B2"


def scheduled(text: str, *offloads: tuple[int, int, int, int], problem: Problem = ALONE) -> Schedule:
    """Return the schedule of a text with these offloads, verified."""
    made = Schedule.from_text(text, problem.microbatches)
    made = replace(
        made,
        offloads=tuple(
            Offload(stage=stage, microbatch=mb, freed_before=freed, reloaded_before=reloaded)
            for stage, mb, freed, reloaded in offloads
        ),
    )
    made.verify(problem)
    return made


def copy(kind: str, mb: int, start: int, end: int) -> CopyRun:
    """Return a copy of stage 0 on device 0."""
    return CopyRun(kind=kind, stage=0, microbatch=mb, device=0, start_ns=start, end_ns=end)  # type: ignore[arg-type]


def test_waits() -> None:
    """The op at which memory is freed waits for the copy out, the backward for the copy back, and nothing else does."""
    timeline = simulate(ALONE, scheduled(ORDER, (0, 2, 4, 5)))
    # F 0-1 1-2 2-3, copy out 3-8; B0 3-5; B1 waits for the copy out
    assert timeline.starts == ((0, 1, 2, 3, 8, 15),)
    assert timeline.copies == (copy("OFFLOAD", 2, 3, 8), copy("RELOAD", 2, 10, 15))
    assert timeline.makespan_ns == 17


def test_copies_take_turns_each_way() -> None:
    """Copies out run in the order of their forwards, copies back in the order of posting; the two ways do not meet."""
    timeline = simulate(ALONE, scheduled(ORDER, (0, 1, 3, 4), (0, 2, 4, 5)))
    assert timeline.copies == (
        copy("OFFLOAD", 1, 2, 7),
        copy("OFFLOAD", 2, 7, 12),
        copy("RELOAD", 1, 12, 17),
        copy("RELOAD", 2, 19, 24),
    )
    assert timeline.starts == ((0, 1, 2, 7, 17, 24),)


def test_early_copy_back_is_hidden() -> None:
    """A copy back that is posted before other ops runs beside them."""
    problem = replace(ALONE, stages=(replace(ALONE.stages[0], offload_ns=Ns(2)),))
    timeline = simulate(problem, scheduled("0F0 0F1 0B0 0F2 0B1 0B2", (0, 1, 2, 3), problem=problem))
    # F 0-1 1-2; copy out 2-4; B0 4-6; copy back 6-8 beside F2 6-7; B1 8-10
    assert timeline.starts == ((0, 1, 4, 6, 8, 10),)


def test_free_copies_change_nothing() -> None:
    """Copies that take no time leave all times as they are."""
    for seed in range(40):
        draw = Random(seed)
        problem = draw_offering(draw, draw_problem(draw, windows=False))
        free = replace(problem, stages=tuple(replace(stage, offload_ns=Ns(0)) for stage in problem.stages))
        kept = draw_schedule(draw, problem)
        moved = draw_offloads(draw, problem, kept)
        found, expected = simulate(free, moved), simulate(free, kept)
        assert (found.starts, found.ends, found.messages) == (expected.starts, expected.ends, expected.messages)


def test_copies_only_delay() -> None:
    """No op is sooner for its device having to copy, and no copy takes turns with itself."""
    for seed in range(60):
        draw = Random(seed)
        problem = draw_offering(draw, replace(draw_problem(draw, windows=False), collectives=None))
        kept = draw_schedule(draw, problem)
        moved = draw_offloads(draw, problem, kept)
        timeline = simulate(problem, moved)
        timeline.verify(moved)
        assert timeline.makespan_ns >= simulate(problem, kept).makespan_ns
        assert len(timeline.copies) == 2 * len(moved.offloads)
        last: dict[tuple[int, str], int] = {}
        for run in timeline.copies:
            assert run.start_ns >= last.get((run.device, run.kind), 0)
            assert run.end_ns - run.start_ns == problem.stages[run.stage].offload_ns
            last[run.device, run.kind] = run.end_ns


def naive_peaks(problem: Problem, schedule: Schedule) -> list[int]:
    """Return the peaks by counting at every op what each microbatch has on the device."""
    n, peaks = problem.microbatches, list[int]()
    for device, order in enumerate(schedule.orders):
        static: int = sum(problem.stages[stage].static_bytes for stage in problem.stages_of(device))
        ops = [decode_op(op, n) for op in order]
        peak: int = static
        for now, running in enumerate(ops):
            total: int = static
            for stage in problem.stages_of(device):
                costs = problem.stages[stage]
                for mb in range(n):
                    place = {op.kind: at for at, op in enumerate(ops) if op[1:] == (stage, mb)}
                    done = {kind: at < now for kind, at in place.items()}
                    away = any(
                        entry.freed_before <= now < entry.reloaded_before
                        for entry in schedule.offloads
                        if (entry.stage, entry.microbatch) == (stage, mb)
                    )
                    held: int = 0
                    if done[OpKind.F] and not done.get(OpKind.D, done.get(OpKind.B, False)):
                        held = costs.activation_bytes - (costs.offload_bytes if away else 0)
                    elif done.get(OpKind.D, False) and not done[OpKind.W]:
                        held = costs.held_bytes
                    total += held
            costs = problem.stages[running.stage]
            total += {
                OpKind.F: costs.activation_bytes + costs.forward_transient_bytes,
                OpKind.D: max(0, costs.held_bytes - costs.activation_bytes) + costs.input_grad_transient_bytes,
                OpKind.W: costs.weight_grad_transient_bytes,
                OpKind.B: costs.whole_transient_bytes,
            }[running.kind]
            peak = max(peak, total)
        peaks.append(peak)
    return peaks


def test_memory_is_what_is_there() -> None:
    """Peaks are those of counting, op by op, what every microbatch has on the device."""
    for seed in range(60):
        draw = Random(seed)
        problem = draw_offering(draw, draw_problem(draw, windows=False))
        schedule = draw_offloads(draw, problem, draw_schedule(draw, problem))
        assert list(memory_peaks(problem, schedule.orders, (), schedule.offloads)) == naive_peaks(problem, schedule)


def test_fits_with_offloads() -> None:
    """What does not fit whole fits with an activation on the host, up to the byte."""
    moved = scheduled(ORDER, (0, 1, 2, 4))
    assert memory_peaks(ALONE, moved.orders) == (30,)
    assert memory_peaks(ALONE, moved.orders, (), moved.offloads) == (22,)
    for capacity, fitting in ((22, True), (21, False)):
        problem = replace(ALONE, devices=(replace(ALONE.devices[0], capacity_bytes=Bytes(capacity)),))
        assert fits(problem, moved.orders, (), moved.offloads) is fitting


def test_pairs() -> None:
    """A fused pair waits for what its backward needs back; waits come before the pair."""
    met = 0
    for seed in range(80):
        draw = Random(seed)
        problem = draw_offering(draw, case(3, (0, 1, 1, 0), full=3, latency=draw.randint(0, 2)))
        schedule = draw_offloads(draw, problem, draw_paired(draw, problem, random_schedule(problem, draw)))
        timeline = simulate(problem, schedule)
        timeline.verify(schedule)
        back = {(run.stage, run.microbatch): run.end_ns for run in timeline.copies if run.kind == "RELOAD"}
        starts = {
            op: start
            for order, row in zip(schedule.orders, timeline.starts, strict=True)
            for op, start in zip(order, row, strict=True)
        }
        for _, backward in schedule.pairs:
            key = decode_op(backward, problem.microbatches)[1:]
            if key in back:
                met += 1
                assert starts[backward] >= back[key]
    assert met > 10


@pytest.mark.parametrize(
    ("offload", "message"),
    [
        ((0, 2, 2, 5), "expected positions behind 2 and up to 5"),
        ((0, 2, 5, 4), "expected positions behind 2 and up to 5"),
        ((0, 2, 3, 6), "expected positions behind 2 and up to 5"),
        ((1, 0, 3, 5), "offload of stage 1 microbatch 0: the stage offers none"),
    ],
)
def test_wrong_offloads(offload: tuple[int, int, int, int], message: str) -> None:
    """An offload lies behind its forward, up to its backward, of a stage that offers it."""
    with pytest.raises(InvariantError, match=message):
        scheduled(ORDER, offload)


def test_offloads_are_sorted() -> None:
    """Each activation is offloaded once, and they are listed in order."""
    for twice in (((0, 2, 4, 5), (0, 1, 3, 4)), ((0, 1, 3, 4), (0, 1, 3, 4))):
        with pytest.raises(InvariantError, match="not sorted, or one is there twice"):
            scheduled(ORDER, *twice)


def test_no_wait_inside_a_pair() -> None:
    """Nothing is freed or posted between the two ops of a fused pair."""
    problem = offering(case(3, (0,), full=3), 1, 1)
    with pytest.raises(InvariantError, match="a fused pair is no place to wait"):
        scheduled("0F0 0F1 0F2+0B0 0B1 0B2", (0, 1, 3, 4), problem=problem)


def test_bytes_are_part_of_the_activation() -> None:
    """No more can be moved than there is."""
    with pytest.raises(InvariantError, match=r"stages\[0\]\.offload_bytes is too large"):
        offering(ALONE, 11, 1).verify()


def test_explained_copies() -> None:
    """A wait for a copy is on the critical path, and is an idle time of its own cause."""
    schedule = scheduled(ORDER, (0, 1, 3, 4), (0, 2, 4, 5))
    timeline = simulate(ALONE, schedule)
    runs = Runs(ALONE, schedule, timeline)
    path = critical_path(runs)
    assert [(piece.label, piece.follows, piece.length_ns) for piece in path] == [
        ("0F0", "start", 1),
        ("0F1", "order", 1),
        ("OFFLOAD of stage 0 microbatch 1", "input", 5),
        ("OFFLOAD of stage 0 microbatch 2", "queue", 5),
        ("RELOAD of stage 0 microbatch 1", "input", 5),
        ("0B1", "input", 2),
        ("RELOAD of stage 0 microbatch 2", "input", 5),
        ("0B2", "input", 2),
    ]
    assert sum(piece.length_ns for piece in path) == timeline.makespan_ns
    idle = idle_parts(runs)
    assert {part.cause for part in idle} == {"copy"}
    assert sum(part.length_ns for part in idle) == timeline.makespan_ns - 9


def test_explanations_add_up() -> None:
    """Critical paths reach from 0 to the makespan with nothing unknown; idle and busy times fill every device."""
    copied = 0
    for seed in range(60):
        draw = Random(seed)
        problem = draw_offering(draw, draw_problem(draw, windows=False))
        schedule = draw_offloads(draw, problem, draw_schedule(draw, problem))
        timeline = simulate(problem, schedule)
        runs = Runs(problem, schedule, timeline)
        path = critical_path(runs)
        assert sum(piece.length_ns for piece in path) == timeline.makespan_ns
        assert not any(piece.kind == "unknown" for piece in path)
        copied += sum(piece.kind == "copy" for piece in path)
        idle = idle_parts(runs)
        for device, (starts, ends) in enumerate(zip(timeline.starts, timeline.ends, strict=True)):
            busy = sum(end - start for start, end in zip(starts, ends, strict=True))
            waited = sum(part.length_ns for part in idle if part.device == device)
            assert busy + waited == timeline.makespan_ns
    assert copied > 20


def test_levels_know_what_is_away() -> None:
    """What explanations take for the memory in use leaves out what is on the host."""
    schedule = scheduled(ORDER, (0, 1, 3, 4))
    levels = levels_before(Runs(ALONE, schedule, simulate(ALONE, schedule)), memory_steps(ALONE))
    assert levels == [0, 10, 20, 22, 20, 10]
