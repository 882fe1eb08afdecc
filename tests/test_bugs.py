"""Bugs that were met, one story each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace
from oracle.cases import case
from oracle.exhaustive import shortest_makespan

from cpipe.ir import Schedule
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve import SolveLimits, lower_bound, solve
from cpipe.solve.crosspipe import crosspipe_greedy
from cpipe.solve.serial import serial_schedule
from cpipe.units import Bytes


def test_messages_that_wait_for_an_all_gather_do_not_keep_their_distance() -> None:
    """The bound spaced a stage's forwards like those before it, and was above a makespan that was replayed.

    While a stage waits for its parameters its messages pile up; afterwards its forwards follow in a row. With a long
    all-gather the spacing of the earlier stage made the bound 104 where 75 is the optimum, and `solve` ended as our
    own fault.
    """
    problem = case(5, [0, 1], forward=[10, 1], gather=[0, 60], reduce=[0, 0])
    assert solve(problem).makespan_ns == lower_bound(problem).value_ns == 75


def test_ops_of_no_length_keep_their_order_in_the_sub_block_greedy() -> None:
    """Whole ops were sorted by start and then by id, so D came before the F that made it, when both took no time."""
    problem = case(1, [0, 0], forward=0, input_grad=0, weight_grad=0)
    simulator = Simulator(problem)
    schedule = crosspipe_greedy(problem, simulator.tables)
    assert schedule is not None
    assert simulator.makespan(schedule.orders) == 0


def test_the_least_memory_is_not_always_a_full_backward() -> None:
    """The order of last resort ran B everywhere and called a device infeasible that D and a later W can live with."""
    problem = case(2, [0, 0], activation=2, held=0, capacity=5)
    stages = tuple(replace(stage, weight_grad_transient_bytes=Bytes(3)) for stage in problem.stages)
    problem = replace(problem, stages=stages)
    everywhere = Schedule.from_text("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1", 2)
    assert not fits(problem, everywhere.orders)
    assert fits(problem, serial_schedule(problem).orders)
    assert solve(problem, "greedy").makespan_ns == shortest_makespan(problem)


def test_a_loose_receive_window_is_not_proven_slow() -> None:
    """The search reserved all receives that a window allows and proved the order that was left to be optimal.

    A window is a cap: with more allowed, nothing may get worse, and no bound may come from a window of the user's.
    """
    from cpipe.compiler import SolveOptions, compile_profile
    from cpipe.profile import parse_profile

    text = Path(__file__).with_name("data").joinpath("tight_receives.json").read_bytes()
    profile = parse_profile(text, "tight_receives.json")
    makespans = {
        window: compile_profile(profile, SolveOptions(receive_window=window)).result.makespan_ns for window in (2, 8)
    }
    assert makespans[2] == makespans[8] == 474_000_000


def test_a_device_without_a_stage_is_not_an_error() -> None:
    """A profile may list a device that holds no stage; the greedy took the minimum of its no stages."""
    problem = case(2, [0, 2])
    result = solve(problem, "greedy")
    assert result.schedule.orders[1] == ()


def test_an_interrupt_between_two_lines_still_stops_the_solver() -> None:
    """Ctrl-C that came while the solver's thread was being started escaped the handler, and the solver went on.

    A fresh interpreter is interrupted as early as it can be, and must neither hang nor print an order.
    """
    script = (
        "import signal, threading\n"
        "from oracle.cases import case\n"
        "from cpipe.solve.milp import backend\n"
        "started = threading.Thread.start\n"
        "def start(self):\n"
        "    started(self)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "def patient(*arguments):\n"
        "    arguments[4].stop.wait(30)\n"
        "    return backend.RawOutcome('interrupt', None, 0.0, 0, False)\n"
        "backend._solve = patient\n"
        "threading.Thread.start = start\n"
        "try:\n"
        "    backend.run_solver(None, (), None, backend.Limits(1, None, 0.9, 0, 1e-6))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{root}:{root / 'tests'}", "PATH": ""},
    )
    assert done.stdout == "interrupted\n", done.stderr


def test_a_negative_seed_never_reaches_the_solver() -> None:
    """HiGHS refuses some seeds with an exception of its own; the largest that we accept works."""
    problem = case(6, [0, 1, 2], activation=2, held=1, capacity=4)
    assert solve(problem, "milp", SolveLimits(seed=(1 << 31) - 1)).makespan_ns == 25
