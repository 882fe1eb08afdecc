"""Tests of the monitor's judgement: who is late, who only waits, and what each rank of a plan may take."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

from hand_plans import hand_plan, link

from cpipe.runtime.faults import RuntimeFault
from cpipe.runtime.limits import Timetable
from cpipe.runtime.monitor import Activity, Beat, Monitor
from cpipe.runtime.watchdog import Watchdog

NAMES = ["rank 0", "rank 1", "rank 2"]
QUICK = Watchdog(floor_s=1.0, between_steps_s=5.0, heartbeat_s=0.05, silence_s=0.4)


class Board:
    """A bulletin in memory, with signs of life that the test writes."""

    def __init__(self) -> None:
        self.me, self.size = 0, len(NAMES)
        self.report: str | None = None
        self.notes: list[str | None] = [None] * self.size
        self.broken = False

    def fault(self) -> str | None:
        """Return the report of a failure."""
        if self.broken:
            raise RuntimeFault("the store is gone", code="store-lost")
        return self.report

    def post_fault(self, note: str) -> str:
        """Keep the first report."""
        self.report = self.report or note
        return self.report

    def beat(self, note: str) -> None:
        """Keep this process's sign of life."""
        self.notes[self.me] = note

    def beats(self) -> list[str | None]:
        """Return all signs of life."""
        return list(self.notes)

    def write(self, process: int, state: str, age_s: float, *, awaits: tuple[int, ...] = (), count: int = 1) -> None:
        """Write the sign of life of another process, which may take 2 s for what it does."""
        what = f"{state} of {NAMES[process]}"
        activity = Activity(state=state, what=what, awaits=awaits, expected_s=0.1, limit_s=2.0, stage=process)
        beat = Beat(count=count, step=4, age_s=age_s, activity=activity)
        self.notes[process] = msgspec.json.encode(beat).decode()


@pytest.fixture
def board() -> Board:
    """Return an empty board."""
    return Board()


@pytest.fixture
def monitor(board: Board) -> Iterator[Monitor]:
    """Return a monitor of rank 0 that watches the board."""
    made = Monitor(board, QUICK, NAMES, [0, 1, 2])  # type: ignore[arg-type]
    yield made
    made._stop.set()


def wait_for(monitor: Monitor, awaits: int, limit_s: float = 0.0) -> None:
    """Let rank 0 wait for another rank, longer than it may."""
    activity = Activity(state="wait", what="a gradient", awaits=(awaits,), limit_s=limit_s, expected_s=0.5)
    monitor.enter(activity)


def verdict(monitor: Monitor) -> str:
    """Return the message with which the monitor ends the run, after looking at once; empty when it does not."""
    time.sleep(0.01)
    monitor._check_limit()
    try:
        monitor.check()
    except RuntimeFault as fault:
        return f"{fault.diagnostics[0].message} <{fault.rank}>"
    return ""


def test_late_op_is_found_behind_those_who_wait(board: Board, monitor: Monitor) -> None:
    """The rank at the end of the chain of waits is the late one, and all who wait are told."""
    board.write(1, "wait", 9.0, awaits=(2,))
    board.write(2, "compute", 3.0)
    wait_for(monitor, 1)
    assert verdict(monitor) == (
        "rank 2 is late: step 4, it is in compute of rank 2 for 3.0 s; the plan expects 0.1 s, the limit is 2 s; "
        "rank 0 waits for a gradient; rank 1 waits for wait of rank 1 <2>"
    )


def test_progress_is_not_late(board: Board, monitor: Monitor) -> None:
    """A rank that waits long for one that works within its own limit goes on waiting."""
    board.write(1, "wait", 9.0, awaits=(2,))
    board.write(2, "compute", 1.9)
    wait_for(monitor, 1)
    assert verdict(monitor) == ""


def test_waits_in_a_circle(board: Board, monitor: Monitor) -> None:
    """Ranks that wait for each other make no progress: the run ends."""
    board.write(1, "wait", 9.0, awaits=(2,))
    board.write(2, "wait", 9.0, awaits=(1,))
    wait_for(monitor, 1)
    message = verdict(monitor)
    assert message.startswith("rank 1 is late: step 4, it waits for wait of rank 1 for 9.0 s")
    assert "; rank 2 waits for wait of rank 2" in message


def test_rank_between_steps(board: Board, monitor: Monitor) -> None:
    """A rank between two steps has longer, and one that has closed its executor never comes."""
    wait_for(monitor, 1)
    board.write(1, "outside", 4.0)
    assert verdict(monitor) == ""
    board.write(1, "outside", 6.0)
    assert verdict(monitor).startswith("rank 1 is late: it has not begun step 4 for 6.0 s (outside of rank 1)")


def test_closed_rank(board: Board, monitor: Monitor) -> None:
    """A rank that waits for one that has left ends the run."""
    board.write(1, "closed", 0.0)
    wait_for(monitor, 1)
    message = "rank 1 has closed its executor while others wait for it; rank 0 waits for a gradient <1>"
    assert verdict(monitor) == message


def test_within_limits(board: Board, monitor: Monitor) -> None:
    """Nothing is late before its limit, and between steps nothing is at all."""
    board.write(1, "compute", 99.0)
    wait_for(monitor, 1, limit_s=60.0)
    assert verdict(monitor) == ""
    monitor.enter(Activity(state="outside", what="reading"))
    assert verdict(monitor) == ""


def test_own_op_is_late(monitor: Monitor) -> None:
    """A rank reports its own op when it takes too long."""
    monitor.enter(Activity(state="compute", what="F of stage 0 microbatch 1", expected_s=0.002, stage=0, mb=1))
    assert verdict(monitor).startswith("rank 0 is late: step 0, it is in F of stage 0 microbatch 1 for 0.0 s")


def test_silence(board: Board, monitor: Monitor) -> None:
    """A rank that gives no sign of life is taken for dead, one that does or has left is not."""
    wait_for(monitor, 1, limit_s=60.0)
    board.write(2, "closed", 0.0)
    for count in itertools.count():
        board.write(1, "compute", 0.0, count=min(count, 5))
        monitor._listen()
        if monitor.failed:
            break
        assert count < 40
        time.sleep(0.05)
    assert count > 5
    with pytest.raises(RuntimeFault, match=r"rank 1 is gone: no sign of life for 0\.\d s; last seen in step 4"):
        monitor.check()


def test_first_report_counts(board: Board, monitor: Monitor) -> None:
    """All ranks raise the fault that was reported first, with its place, also the one that has a later one."""
    first = RuntimeFault("boom", code="failed", rank=2, stage=5, microbatch=3, hint="look there")
    Monitor(board, QUICK, NAMES, [0, 1, 2]).fail(first)  # type: ignore[arg-type]
    told = monitor.fail(RuntimeFault("lost", code="peer-lost", rank=1))
    assert (str(told), told.code, told.rank, told.stage, told.microbatch) == ("error: boom [failed]", "failed", 2, 5, 3)
    assert told.hint == "look there"
    with pytest.raises(RuntimeFault, match=r"boom \[failed\]"):
        monitor.wait(lambda: False)


def test_lost_store(board: Board, monitor: Monitor) -> None:
    """When the store that joins the ranks is gone, waiting ends."""
    monitor.start()
    board.broken = True
    with pytest.raises(RuntimeFault, match=r"the store is gone \[store-lost\]"):
        monitor.wait(lambda: False)


def table(watchdog: Watchdog, **options: Any) -> Timetable:
    """Return the timetable of rank 1 in a plan of two ranks, whose processes are 4 and 6."""
    programs = [
        "F0.0:0-2000000000 S0.0@0 R0.0@1 ?0.0@1 B0.0:5000000000-6000000000",
        "R1.0@0 ?1.0@0 F1.0:2000000000-3000000000 D1.0:3000000000-5000000000 S1.0@1 W1.0:5000000000-5500000000",
    ]
    plan = hand_plan((0, 1), 1, programs, [link(0, 1, "activation"), link(1, 0, "gradient")], 6_000_000_000)
    return Timetable(plan, 1, watchdog, (4, 6), ())


def test_limits_follow_the_plan() -> None:
    """Each op may take a multiple of its expected time since the op before, but no less than the floor."""
    times = table(Watchdog(factor=10.0, floor_s=8.0, first_step_s=50.0))
    times.first = False
    told = [times.activity(index) for index in range(7)]
    assert [activity.state for activity in told] == [
        "compute",
        "wait",
        "compute",
        "compute",
        "compute",
        "compute",
        "compute",
    ]
    assert [activity.limit_s for activity in told] == [8.0, 20.0, 30.0, 20.0, 8.0, 8.0, 8.0]
    assert told[1].what == "the activation of stage 1 microbatch 0 from rank 0"
    assert told[1].awaits == (4,)
    assert (told[3].what, told[3].expected_s, told[3].stage, told[3].mb) == ("D of stage 1 microbatch 0", 2.0, 1, 0)
    assert times.draining.limit_s == 8.0
    assert times.draining.awaits == (4,)
    assert times.stepping.what == "STEP"


def test_first_step_takes_longer() -> None:
    """The first step has a floor of its own: it compiles and connects."""
    times = table(Watchdog(factor=10.0, floor_s=8.0, first_step_s=50.0))
    assert {times.activity(index).limit_s for index in range(7)} == {50.0}
    assert times.draining.limit_s == 50.0
