"""Tests of `cpipe run`: processes, gradients, the comparison with the plan, and how a run that fails ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

from command_line import ROOT, Outcome, call, profile_document, spawn, write_json
from helpers import plan_of
from sample_plans import make_problem, one_f_one_b

from cpipe.cli import run as command
from cpipe.cli.launch import _failures
from cpipe.plan import encode_plan, load_plan
from cpipe.runtime.watchdog import Watchdog
from cpipe.runtime.worker import _watchdog

LIMIT_S = 60
"""No run here may take longer; each takes a few seconds."""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """Write split 1F1B on two ranks, four microbatches: F, D and W, messages both ways."""
    problem = make_problem(2, 4, latency_ms=1)
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(plan_of(problem, one_f_one_b(problem, split=True))))
    return path


def run(*arguments: object, timeout: int = LIMIT_S) -> Outcome:
    """Run `cpipe run` with a time limit, the toy models within its reach."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    return spawn("run", *arguments, "--timeout", timeout, environ={"PYTHONPATH": path})


@pytest.mark.slow
def test_run(plan_file: Path, tmp_path: Path) -> None:
    """The built-in model runs: gradients equal bit by bit, every op in the plan's order, and a trace to look at."""
    profile = write_json(tmp_path / "profile.json", profile_document())
    trace = tmp_path / "trace.json"
    outcome = run(plan_file, "--emulate", profile, "--steps", 2, "--trace", trace, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    report = outcome.document
    assert (report["command"], report["status"], report["model"]) == ("run", "done", "transformer")
    assert (report["gradients_checked"], report["max_abs_difference"]) == (True, 0.0)
    assert [(device["num_ops"], device["order_kept"]) for device in report["devices"]] == [(12, True)] * 2
    assert [(channel["carries"], channel["num_messages"]) for channel in report["channels"]] == [
        ("activation", 4),
        ("gradient", 4),
    ]
    assert len(report["step_ms"]) == 2
    assert report["makespan_ms"] == report["step_ms"][1]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) == 8


@pytest.mark.slow
def test_sleep_model_predicts(plan_file: Path) -> None:
    """The sleep model sleeps what the plan says, scaled: the prediction is the claim times the scale."""
    outcome = run(plan_file, "--model", "sleep", "--time-scale", 0.5, "--steps", 1)
    assert (outcome.code, outcome.err) == (0, "")
    verdict, times, _, head, *rows = outcome.out.splitlines()
    assert verdict.startswith("done: sleep on 2 ranks, 1 steps; gradients are those of a single process")
    claimed = json.loads(plan_file.read_text())["claims"]["makespan_ns"] / 1e6
    assert f"the plan predicts {claimed / 2:.3f} ms" in times
    assert head.split()[:3] == ["device", "ops", "order"]
    assert [row.split()[:4] for row in rows[:2]] == [["g0", "12", "kept", "10.000"], ["g1", "12", "kept", "10.000"]]
    assert [row.split()[:5] for row in rows[4:6]] == [
        ["g0", "->", "g1", "activation", "4"],
        ["g1", "->", "g0", "gradient", "4"],
    ]


@pytest.mark.slow
def test_several_tensors_cross_a_boundary(plan_file: Path) -> None:
    """A model of the user's own may hand over a tuple of tensors."""
    outcome = run(plan_file, "--model", "toy_models:two_tensors", "--steps", 1, "--json")
    assert (outcome.code, outcome.document["max_abs_difference"]) == (0, 0.0)


@pytest.mark.slow
def test_collectives_of_one_replica(tmp_path: Path) -> None:
    """A plan with data parallelism runs with a single replica; gradients are checked in its shards too."""
    profile = write_json(tmp_path / "profile.json", profile_document(data_parallel={"mode": "zero1", "replicas": 2}))
    plan = tmp_path / "zero1.json"
    assert spawn("solve", profile, "-o", plan, "--method", "1f1b", "-q").code == 0
    outcome = run(plan, "--steps", 2, "--json")
    assert (outcome.code, outcome.document["max_abs_difference"]) == (0, 0.0)


@pytest.mark.slow
def test_wrong_gradients(plan_file: Path) -> None:
    """Gradients that are not those of a single process are a no: exit code 1, each stage with its difference."""
    outcome = run(plan_file, "--model", "toy_models:unsteady", "--steps", 1, "--json")
    assert outcome.code == 1
    assert outcome.document["status"] == "mismatch"
    assert outcome.document["max_abs_difference"] > 0
    assert [found["code"] for found in outcome.document["diagnostics"]] == ["gradient-mismatch"] * 2
    assert outcome.err.startswith("error: stage 0: the gradient of layer.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("crashing", ['rank 1:     raise ArithmeticError("stage 1 has had enough")', "error: rank 1: F of stage 1"]),
        ("killed", ["rank 1 was ended by SIGKILL [rank-failed]"]),
    ],
)
def test_a_failing_rank_ends_all(model: str, words: list[str], plan_file: Path) -> None:
    """One rank's failure ends the run at once, with its story and exit code 5, not with the limit's."""
    start = time.monotonic()
    outcome = run(plan_file, "--model", f"toy_models:{model}")
    assert time.monotonic() - start < LIMIT_S
    assert (outcome.code, outcome.out) == (5, "")
    for word in words:
        assert word in outcome.err
    assert "run-timeout" not in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(number: signal.Signals, plan_file: Path, tmp_path: Path) -> None:
    """A launcher that is told to end removes its directory first and exits as a shell would say."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    environ = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch)}
    # A suite that was itself started with the signal ignored (nohup) hands that down; here it must not.
    default = f"import runpy, signal; signal.signal({int(number)}, signal.SIG_DFL)"
    start = f"{default}; runpy.run_module('cpipe.cli', None, '__main__')"
    line = [sys.executable, "-c", start, "run", str(plan_file), "--model", "toy_models:hanging"]
    with subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + LIMIT_S
        while not list(scratch.glob("cpipe-run-*/log-1.txt")) and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 128 + number
    assert not list(scratch.glob("cpipe-run-*"))


@pytest.mark.slow
def test_an_exit_of_the_model_is_a_failure(plan_file: Path) -> None:
    """A model that exits with 0 has not run: exit code 5, with the rank that it ended."""
    outcome = run(plan_file, "--model", "toy_models:exiting")
    assert (outcome.code, outcome.out) == (5, "")
    assert "the model's code ended the process: SystemExit(0) [rank-failed]" in outcome.err


class Ended:
    """Stands for a worker that exited with 5."""

    def poll(self) -> int:
        """Return its exit code."""
        return 5


def test_a_wrong_call_is_the_cause(tmp_path: Path) -> None:
    """Of a transport's error and a mistake in the call, told later by another rank, the mistake is what happened."""
    for rank, (code, story) in enumerate([(5, "connection closed"), (2, "")]):
        fault = {"code": "model-input", "message": f"of rank {rank}"}
        failure = {"time_s": float(rank), "exit_code": code, "diagnostics": [fault], "story": story, "hint": None}
        write_json(tmp_path / f"failure-{rank}.json", failure)
    workers: Any = [Ended(), Ended()]
    assert [(found.rank, found.exit_code) for found in _failures(workers, tmp_path)] == [(1, 2), (0, 5)]


def test_limits_stretch_with_the_times() -> None:
    """The watchdog gives stretched ops as much room, and shrunk ones no less than usual."""
    assert _watchdog(0.5) == Watchdog()
    assert _watchdog(3.0) == Watchdog(factor=3 * Watchdog().factor, first_step_s=3 * Watchdog().first_step_s)


@pytest.mark.slow
def test_a_late_run_is_ended(plan_file: Path) -> None:
    """A run that is not done within --timeout is ended with exit code 5, and the ranks that still ran are named."""
    outcome = run(plan_file, "--model", "toy_models:hanging", "--json", timeout=5)
    assert outcome.code == 5
    assert outcome.document["status"] == "error"
    (fault,) = outcome.document["diagnostics"]
    assert fault["code"] == "run-timeout"
    assert fault["message"] == "not done after 5 s; of 2 ranks still running: 0, 1"


@pytest.mark.slow
def test_unknown_model(plan_file: Path) -> None:
    """A model that does not exist is a wrong call, exit code 2, told once and not by every rank."""
    message = "--model: module 'toy_models' has no function 'nothing'"
    assert run(plan_file, "--model", "toy_models:nothing") == (2, "", f"error: {message} [unknown-model]\n")


@pytest.mark.slow
def test_under_another_launcher(plan_file: Path, tmp_path: Path) -> None:
    """Where RANK and WORLD_SIZE are set the command is one rank; rank 0 alone reports, here without a check."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "CPIPE_RUN_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "cpipe.cli", "run", str(plan_file), "--steps", "1", "--no-check", "--json"]
    ranks = [
        subprocess.Popen(command, env={**environ, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    report = json.loads(outputs[0][0])
    assert (report["status"], report["gradients_checked"], report["max_abs_difference"]) == ("done", False, None)
    assert outputs[1][0] == b""


@pytest.mark.slow
def test_world_of_another_size(plan_file: Path, tmp_path: Path) -> None:
    """A plan for two ranks does not run on one."""
    environ = {"RANK": "0", "WORLD_SIZE": "1", "CPIPE_RUN_DIR": str(tmp_path)}
    outcome = spawn("run", plan_file, environ=environ)
    assert outcome == (2, "", "error: the plan is for 2 ranks, but 1 were started [wrong-world-size]\n")


def test_rank_that_is_no_number(
    plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that gives no usable rank is named as the cause."""
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = call(capsys, "run", plan_file)
    assert outcome.code == 2
    assert outcome.err.startswith("error: the environment variable RANK must be a number, got 'first' [no-rank]\n")


@pytest.mark.parametrize("arguments", [["run", "PLAN"], ["profile", "--model", "transformer", "--stages", "1"]])
def test_timeout_is_the_launchers(
    arguments: list[str], plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of another launcher cannot end the others, so it takes no limit."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    named = [str(plan_file) if word == "PLAN" else word for word in arguments]
    outcome = call(capsys, *named, "--timeout", 5)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines() == [
        "error: --timeout: the launcher that started this rank minds the time [timeout-under-launcher]",
        "hint: give the limit to that launcher",
    ]


def edited(plan_file: Path, **claims: Any) -> Path:
    """Return a copy of the plan whose claims are others."""
    document = json.loads(plan_file.read_text())
    document["claims"].update(claims)
    return write_json(plan_file.with_name("edited.json"), document)


def test_invalid_plan_is_not_run(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that `cpipe validate` refuses is not run: exit code 1, with its faults."""
    outcome = call(capsys, "run", edited(plan_file, makespan_ns=1), "--json")
    assert outcome.code == 1
    assert outcome.document["status"] == "invalid"
    assert "plan-digest" in {found["code"] for found in outcome.document["diagnostics"]}
    assert outcome.document["devices"] == []


def made_up() -> dict[str, Any]:
    """Return the result of a run that never was."""
    device = {"num_ops": 12, "order_kept": True, "predicted_busy_ms": 20.0, "measured_busy_ms": 20.5}
    times = {"predicted_idle_ms": 6.0, "measured_idle_ms": 6.25}
    channel = {"num_messages": 4, "predicted_wait_ms": 3.0, "measured_wait_ms": 3.125}
    return {
        "model": "mine:make",
        "step_ms": [40.0, 26.75],
        "step": 1,
        "predicted_ms": 26.0,
        "devices": [{"id": f"g{rank}", **device, **times} for rank in range(2)],
        "channels": [
            {"id": 0, "source": 0, "target": 1, "carries": "activation", **channel},
            {"id": 1, "source": 1, "target": 0, "carries": "gradient", **channel},
        ],
        "gradients": [
            {"stage": stage, "equal": True, "max_abs_difference": 0.0, "parameter": ""} for stage in range(2)
        ],
        "losses": [1.0] * 4,
    }


def returning(result: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return what takes the place of a run and gives `result`."""
    return lambda *arguments: result


def test_summary(
    plan_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[str], None],
) -> None:
    """People read a verdict, the fastest step, and tables of ranks and channels: predicted beside measured."""
    monkeypatch.setattr(command, "_all_ranks", returning(made_up()))
    outcome = call(capsys, "run", plan_file)
    assert (outcome.code, outcome.err) == (0, "")
    golden(outcome.out)


def test_no_gradient_at_all(
    plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that is missing differs infinitely: null in the report, a word in the summary."""
    wrong = {"stage": 1, "equal": False, "max_abs_difference": float("inf"), "parameter": "weight"}
    monkeypatch.setattr(command, "_all_ranks", returning({**made_up(), "gradients": [wrong]}))
    outcome = call(capsys, "run", plan_file, "--json")
    assert (outcome.code, outcome.document["status"], outcome.document["max_abs_difference"]) == (1, "mismatch", None)
    assert "largest difference infinite" in call(capsys, "run", plan_file).out


def test_random_numbers_are_named(
    plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a stage draws random numbers, a difference is said to mean nothing, there and beside it."""
    wrong = {"equal": False, "max_abs_difference": 0.5, "parameter": "weight"}
    gradients = [{"stage": 0, **wrong, "random": True}, {"stage": 1, **wrong, "random": False}]
    monkeypatch.setattr(command, "_all_ranks", returning({**made_up(), "gradients": gradients}))
    outcome = call(capsys, "run", plan_file)
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        "error: stage 0 draws random numbers (dropout?): its gradients cannot be compared [gradient-mismatch]",
        "error: stage 1: its gradients cannot be compared, as another stage draws random numbers (dropout?) "
        "[gradient-mismatch]",
    ]


def test_other_ops_than_planned(
    plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that ran other ops than the plan has is a no, whatever the gradients."""
    result = made_up()
    result["devices"][1]["order_kept"] = False
    monkeypatch.setattr(command, "_all_ranks", returning(result))
    outcome = call(capsys, "run", plan_file)
    assert outcome.code == 1
    assert outcome.err == "error: device g1 ran other ops than the plan has, or in another order [order-not-kept]\n"
    assert "NOT KEPT" in outcome.out


def test_delays_are_the_hops_of_the_profile(plan_file: Path, tmp_path: Path) -> None:
    """What is emulated are the profile's links, scaled; each hop by what it carries and the stage that reads it."""
    document = profile_document()
    document["links"][0]["beta_ns_per_byte"] = 2
    profile = write_json(tmp_path / "profile.json", document)
    hop = {"latency_s": 0.0005, "pipe": 0}
    assert command._delays(load_plan(plan_file), str(profile), 0.5) == [
        {"carries": "activation", "stage": 1, "occupancy_s": 0.001, **hop},
        {"carries": "gradient", "stage": 0, "occupancy_s": 0.0, **hop, "pipe": 1},
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps: expected a number >= 1, got 0"),
        (["--time-scale", "0"], "--time-scale: expected a factor > 0, got 0"),
        (["--timeout", "-1"], "--timeout: expected seconds > 0, got -1"),
        (["--seed", "-1"], "--seed: expected a number in [0, 2147483647], got -1"),
    ],
)
def test_wrong_numbers(arguments: list[str], message: str, plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers out of range are refused before anything starts."""
    assert call(capsys, "run", plan_file, *arguments) == (2, "", f"error: {message} [value-out-of-range]\n")


def test_without_torch(plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the command says how to get it, exit code 2."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = call(capsys, "run", plan_file)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines() == [
        "error: this command runs plans with torch, which is not installed [torch-missing]",
        "hint: install it with: pip install 'cpipe[torch]'",
    ]


def test_workers_load_no_terminal_and_no_solver() -> None:
    """`python -m cpipe.runtime` needs neither typer nor rich nor a solver."""
    script = "import sys, cpipe.runtime.__main__; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {"typer", "rich", "click", "pulp", "highspy", "ortools"}
