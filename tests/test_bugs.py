"""Bugs that were met, one story each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call, write_json
from helpers import assert_plan_ok, signed
from msgspec.structs import replace
from oracle.cases import case
from oracle.exhaustive import shortest_makespan
from plan_edits import edit_op

from cpipe.compiler import problem_for_plan
from cpipe.ir import Bound, Schedule
from cpipe.plan import encode_plan, load_plan, validate
from cpipe.profile import load_profile
from cpipe.sim import Simulator
from cpipe.sim.memory import fits
from cpipe.solve import lower_bound, solve
from cpipe.solve.crosspipe import crosspipe_greedy
from cpipe.solve.milp import solve_milp
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
    """Ctrl-C that came while the threads around the solver were being started left the solver running.

    A fresh interpreter is interrupted as early as it can be; the solver's process is gone when the call has ended.
    """
    script = (
        "import signal, subprocess, threading\n"
        "from stub_workers import Number\n"
        "from cpipe.solve.child import run_child\n"
        "started, popen, children = threading.Thread.start, subprocess.Popen, []\n"
        "def start(self):\n"
        "    started(self)\n"
        "    if children:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "def record(*arguments, **options):\n"
        "    children.append(popen(*arguments, **options))\n"
        "    return children[-1]\n"
        "threading.Thread.start, subprocess.Popen = start, record\n"
        "try:\n"
        "    run_child('stub_workers:deaf', Number(value=1), Number)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', [child.returncode for child in children])\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{root}:{root / 'tests'}", "PATH": ""},
    )
    assert done.stdout == "interrupted [-9]\n", done.stderr


def test_a_negative_seed_never_reaches_the_solver() -> None:
    """HiGHS refuses some seeds with an exception of its own; the largest that we accept works."""
    problem = case(6, [0, 1, 2], activation=2, held=1, capacity=4)
    start = serial_schedule(problem)
    outcome = solve_milp(problem, start, lower_bound=Bound(value_ns=1), seed=(1 << 31) - 1)
    assert outcome.warnings == ()
    assert outcome.schedule is not None
    assert Simulator(problem).makespan(outcome.schedule.orders) == 25


def line_document(memory_bytes: int | None = None, microbatches: int = 2, num_devices: int = 5) -> dict[str, object]:
    """Return a profile of equal stages in line whose messages are as large as the activations they carry."""
    room = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
    times = {"forward_ms": 1, "input_grad_ms": 1, "weight_grad_ms": 1, "held_for_weight_grad_bytes": 0}
    stages = [
        {"id": f"s{index}", "device": f"g{index}", "activation_bytes": 1, "output_bytes": 1, **times}
        for index in range(num_devices)
    ]
    links = [{"between": [f"g{index}", f"g{index + 1}"], "latency_ms": 1} for index in range(num_devices - 1)]
    devices = [{"id": f"g{index}", **room} for index in range(num_devices)]
    head = {"format": "cpipe.profile", "version": 1, "microbatches": microbatches}
    return {**head, "devices": devices, "stages": stages, "links": links}


def test_an_order_that_fits_still_fits_when_it_is_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table without messages got as many posted receives as it liked, and our own plan came back as too large.

    The order fits when fewer receives are posted at once, as `solve` posts them; only then are they narrowed, and a
    table that no window makes fit keeps its faults.
    """
    profile = write_json(tmp_path / "profile.json", line_document(3))
    plan, table, again = tmp_path / "plan.json", tmp_path / "table.csv", tmp_path / "again.json"
    assert call(capsys, "solve", profile, "--method", "greedy", "-q", "-o", plan).code == 0
    assert call(capsys, "export", plan, "--to", "torch-csv", "-o", table).code == 0
    outcome = call(capsys, "import", table, "--from", "torch-csv", "--profile", profile, "-o", again)
    assert outcome.code == 0, outcome.err
    imported = load_plan(again)
    assert imported.claims.makespan_ns == load_plan(plan).claims.makespan_ns
    assert {channel.window for channel in imported.channels} == {1}
    assert_plan_ok(imported, problem_for_plan(imported, load_profile(profile)))
    tight = write_json(tmp_path / "tight.json", line_document(2))
    outcome = call(capsys, "import", table, "--from", "torch-csv", "--profile", tight, "-o", again)
    assert outcome.code == 1
    assert all(line.startswith(f"error: {again}: $.ranks[") for line in outcome.err.splitlines())
    assert "needs 3 bytes, capacity 2 [memory]" in outcome.err


def test_a_signed_claim_that_nothing_proves_is_not_handed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`simulate --output` took a plan whose bound was raised and signed for untouched, and `validate` refused it."""
    profile = write_json(tmp_path / "profile.json", line_document(num_devices=3))
    plan, new = tmp_path / "plan.json", tmp_path / "new.json"
    assert call(capsys, "solve", profile, "--method", "1f1b", "-q", "-o", plan).code == 0
    made = load_plan(plan)
    assert made.claims.lower_bound_ns < made.claims.makespan_ns - 1
    raised = replace(made.claims, lower_bound_ns=made.claims.lower_bound_ns + 1)
    plan.write_bytes(encode_plan(signed(replace(made, claims=raised))))
    assert "[bound-not-proved]" in call(capsys, "validate", plan, "--profile", profile).err
    assert call(capsys, "simulate", plan, "--profile", profile, "-o", new).code == 0
    assert call(capsys, "validate", new, "--profile", profile).code == 0
    timed = load_plan(new)
    assert timed.claims.lower_bound_ns == made.claims.lower_bound_ns
    assert_plan_ok(timed, problem_for_plan(timed, load_profile(profile)))


def test_the_price_of_less_memory_is_never_that_of_as_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A leaner order that was as fast became row 1, and `compare` told what row 1 costs beside row 1."""
    profile = write_json(tmp_path / "profile.json", line_document(microbatches=3, num_devices=2))
    text = call(capsys, "compare", profile, "--method", "1f1b,greedy", "-q").out
    rows = json.loads(call(capsys, "compare", profile, "--method", "1f1b,greedy", "-q", "--json").out)["rows"]
    most = rows[0]["reached"]["peak_bytes"]
    leaner = [row["row"] for row in rows if row["memory_share"] and row["reached"]["peak_bytes"] < most]
    priced = [int(line.split()[3]) for line in text.splitlines() if line.startswith("less memory: row ")]
    assert priced == leaner
    assert rows[0]["memory_share"] is not None, "row 1 is itself a row with less memory"


@pytest.mark.parametrize("option", ["--emulate", "--profile"])
def test_a_profile_of_another_job_is_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run` said that "the profile" has more devices than the plan, and not which file that is."""
    profile, plan = write_json(tmp_path / "profile.json", line_document(num_devices=2)), tmp_path / "plan.json"
    other = write_json(tmp_path / "other.json", line_document(num_devices=3))
    assert call(capsys, "solve", profile, "--method", "1f1b", "-q", "-o", plan).code == 0
    outcome = call(capsys, "run", plan, "--model", "sleep", option, other)
    assert outcome.code == 3
    assert outcome.err.startswith(
        f"error: {other}: $.devices: the plan has 2 devices, the profile 3 [different-size]\n"
    )
    assert all(line.startswith(f"error: {other}: ") for line in outcome.err.splitlines())


def test_the_option_that_would_write_over_an_input_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run --trace PLAN` blamed an --output that it does not have."""
    profile, plan = write_json(tmp_path / "profile.json", line_document(num_devices=2)), tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "--method", "1f1b", "-q", "-o", plan).code == 0
    before = plan.read_bytes()
    outcome = call(capsys, "run", plan, "--model", "sleep", "--trace", plan)
    assert outcome == (2, "", f"error: {plan}: --trace is the same file as the input {plan} [output-is-input]\n")
    assert plan.read_bytes() == before


@pytest.mark.parametrize("times", [{"start_ns": -1}, {"end_ns": 0, "start_ns": 5}])
def test_an_op_with_a_wrong_time_is_not_missing(
    times: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An F that starts before 0 was reported as missing, too, and its message as one without an op."""
    profile, path = write_json(tmp_path / "profile.json", line_document(num_devices=2)), tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "--method", "1f1b", "-q", "-o", path).code == 0
    plan = edit_op(load_plan(path), 0, 0, **times)
    assert plan.ranks[0].ops[0].op == "F"
    assert [fault.code for fault in validate(signed(plan))] == ["time-range"]


def test_what_no_choice_of_recomputation_can_mend_is_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that fits neither with nor without recomputation was left undecided, with exit code 5 in place of 4.

    The proof looked at what a stage keeps between its forward and backward, not at the whole activation that is
    there during the backward whichever is chosen. One byte more, and there is an answer.
    """
    document = line_document(num_devices=3)
    for stage in document["stages"]:  # type: ignore[attr-defined]
        stage |= {"activation_bytes": 4, "recompute": {"activation_bytes": 0, "extra_ms": 0}}
    for memory, code in ((5, 4), (6, 0)):
        for device in document["devices"]:  # type: ignore[attr-defined]
            device["memory_bytes"] = memory
        profile = write_json(tmp_path / "profile.json", document)
        outcome = call(capsys, "solve", profile, "--method", "greedy", "-q", "-o", tmp_path / "plan.json")
        assert outcome.code == code, outcome.err
        assert ('device "g1" needs 6 bytes for one microbatch' in outcome.err) is (code == 4)
    plan = load_plan(tmp_path / "plan.json")
    assert_plan_ok(plan, problem_for_plan(plan, load_profile(tmp_path / "profile.json")))
