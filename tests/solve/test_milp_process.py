"""The exact search and its solver's process: whatever that does, the answer is at least as good as the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, call, profile_document, write_json
from helpers import assert_plan_ok
from msgspec.structs import replace
from oracle.cases import case
from oracle.orders import serial_schedule

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.ir import Bound
from cpipe.profile import load_profile
from cpipe.sim import simulate
from cpipe.solve import auto
from cpipe.solve.child import parent
from cpipe.solve.limits import Stop
from cpipe.solve.milp import MilpOutcome, solve, solve_milp

HARD = case(6, (0, 1, 2, 3), forward=8, input_grad=8, weight_grad=[8, 7, 8, 9], capacity=4)
START = serial_schedule(HARD)
LENGTH = simulate(HARD, START).makespan_ns


def search(worker: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> MilpOutcome:
    """Search with a stub in the solver's place."""
    monkeypatch.setattr(solve, "WORKER", f"stub_workers:{worker}")
    return solve_milp(HARD, START, lower_bound=Bound(value_ns=7), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("worker", "status", "code"),
    [
        ("be_killed", "killed", "solver-died"),
        ("crash", "killed", "solver-died"),
        ("fail", "failed", "solver-failed"),
        ("babble", "rubbish", "solver-failed"),
        ("answer_else", "rubbish", "solver-failed"),
    ],
)
def test_a_lost_solver_costs_nothing_but_its_answer(
    worker: str, status: str, code: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The start and the bound known before come back, with one warning under a stable code and nothing printed."""
    outcome = search(worker, monkeypatch)
    assert outcome.schedule == START
    assert (outcome.solver_status, outcome.dual_bound_ns) == (status, 7)
    assert [warning.code for warning in outcome.warnings] == [code]
    assert outcome.warnings[0].message.startswith("HiGHS: ")
    assert capfd.readouterr() == ("", "")


def test_a_solver_deaf_to_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that sleeps through its time limit is ended; the start and a warning come back."""
    monkeypatch.setattr(parent, "_GRACE_S", 0.0)
    outcome = search("deaf", monkeypatch, time_limit=0.1)
    assert outcome.schedule == START
    assert outcome.solver_status == "not_answering"
    assert [warning.code for warning in outcome.warnings] == ["solver-not-answering"]


def test_a_solver_deaf_to_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that does not stop when it is asked to is ended; the start comes back without a warning."""
    monkeypatch.setattr(parent, "_STOP_GRACE_S", 0.2)
    stop = Stop()
    outcome = search("deaf", monkeypatch, stop=stop, progress=lambda line: stop.request())
    assert (outcome.schedule, outcome.solver_status, outcome.warnings) == (START, "stopped", ())


def test_an_incumbent_survives_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the solver had found before it died is kept, replayed like everything of it."""
    outcome = search("find_then_die", monkeypatch)
    assert outcome.schedule is not None
    assert simulate(HARD, outcome.schedule).makespan_ns < LENGTH
    assert outcome.dual_bound_ns == 7
    assert [warning.code for warning in outcome.warnings] == ["solver-died"]


def test_false_answers_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders that deadlock and a bound above a replayed makespan are refused, each with its warning."""
    outcome = search("boast", monkeypatch)
    assert outcome.schedule == START
    assert outcome.dual_bound_ns == 7
    assert [warning.code for warning in outcome.warnings] == ["order-refuted", "bound-refuted"]
    assert f"an order of {LENGTH} ns was replayed" in outcome.warnings[1].message


def test_ops_that_do_not_exist_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of ops that the problem has not is refused, not a crash."""
    outcome = search("invent", monkeypatch)
    assert outcome.schedule == START
    assert [warning.code for warning in outcome.warnings] == ["order-refuted"]


def test_a_refused_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the solver does not take the warm start, the start is still the answer, and the user hears of it."""
    outcome = search("refuse_start", monkeypatch)
    assert [warning.code for warning in outcome.warnings] == ["start-refused"]
    assert (outcome.schedule, outcome.solver_status, outcome.nodes) == (START, "node_limit", 10)


def test_fused_pairs_are_left_to_others() -> None:
    """Where fused pairs save time the model would prove too much: it is not run, and that is said."""
    stages = tuple(replace(stage, forward_backward_ns=9) for stage in HARD.stages)
    problem = replace(HARD, stages=stages)
    outcome = solve_milp(problem, START, lower_bound=Bound(value_ns=7))
    assert [warning.code for warning in outcome.warnings] == ["milp-does-not-apply"]
    assert (outcome.schedule, outcome.solver_status, outcome.dual_bound_ns) == (START, "not_run", 7)


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small profile, and leave all proofs, and all improvement, to the solver."""
    monkeypatch.setattr(auto, "lower_bound", lambda problem: Bound(value_ns=1))
    monkeypatch.setattr(auto._Solve, "_local_search", lambda self: None)
    document = profile_document(2, 3)
    for stage, (forward, backward) in zip(document["stages"], ((3, 4), (5, 3)), strict=True):
        stage |= {"forward_ms": forward, "input_grad_ms": backward, "weight_grad_ms": 3, "full_backward_ms": 20}
    for device in document["devices"]:
        device["memory_bytes"] = 21_600_000_000
    return write_json(tmp_path / "profile.json", document)


@pytest.mark.parametrize(
    ("worker", "code"), [("be_killed", "solver-died"), ("fail", "solver-failed"), ("boast", "order-refuted")]
)
def test_a_plan_without_the_solver(
    worker: str, code: str, profile: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a broken solver the heuristics' plan is delivered: exit code 0, one JSON document, one warning."""
    monkeypatch.setattr(solve, "WORKER", f"stub_workers:{worker}")
    assert call(capfd, "solve", profile, "--method", "milp", "--json").code == 0
    compiled = compile_profile(load_profile(str(profile)), SolveOptions(method="milp"))
    assert_plan_ok(compiled.plan, compiled.problem)
    assert compiled.result.status == "feasible"
    assert code in [warning.code for warning in compiled.result.warnings]
    assert compiled.result.bound.proved_by == "bound"


def test_the_solver_proves_more(profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With the real solver the same plan is proven: the case is one that depends on it, and stdout stays clean."""
    outcome = call(capfd, "solve", profile, "--method", "milp", "--json", "-o", tmp_path / "plan.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.document["status"] == "optimal"
    assert outcome.document["proved_by"] == "highs"


def test_missing_libraries(profile: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Without pulp or highspy auto goes on without them, and asking for the MILP is refused with the command."""
    for name in ("pulp", "highspy"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            patch.setitem(sys.modules, "ortools", None)
            patch.setattr("cpipe.solve.auto._SHAVING_WORK", 0)  # leaves a gap that a solver would be asked for
            refused = call(capfd, "solve", profile, "--method", "milp", "--json")
            assert refused.code == 5
            assert [fault["code"] for fault in refused.document["diagnostics"]] == ["solver-missing"]
            assert f"{name} is not installed: pip install" in refused.err
            done = call(capfd, "solve", profile, "--json")
            assert done.code == 0
            assert "solver-missing" in json.dumps(done.document["diagnostics"])


def test_no_time_for_the_solver(profile: Path) -> None:
    """A time limit that leaves nothing to the solver still gives a plan, never called optimal without a proof."""
    for seconds in (0.0, 0.4):
        compiled = compile_profile(load_profile(str(profile)), SolveOptions(method="milp", time_limit=seconds))
        assert_plan_ok(compiled.plan, compiled.problem)
        proven = compiled.result.bound.value_ns == compiled.result.makespan_ns
        assert (compiled.result.status == "optimal") == proven
        if not proven:
            assert "time-limit" in [warning.code for warning in compiled.result.warnings]


def test_the_same_bytes_everywhere(profile: Path, tmp_path: Path) -> None:
    """Whatever the hash seed, the directory and the environment, a plan that the solver found has the same bytes."""
    plans = set()
    for seed in ("1", "2"):
        environ = {
            "PATH": os.defpath,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "PYTHONHASHSEED": seed,
            "OMP_NUM_THREADS": seed,
        }
        folder = tmp_path / seed
        folder.mkdir()
        arguments = ["-m", "unproven", "real", "solve", str(profile), "--method", "milp", "-q"]
        done = subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=environ, cwd=folder)
        assert done.stderr == b""
        assert list(folder.iterdir()) == []
        plans.add(done.stdout)
    (plan,) = plans
    assert json.loads(plan)["claims"]["proved_by"] == "highs"
