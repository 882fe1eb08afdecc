"""Tests of `cpipe simulate --output`: plans edited by hand, or for another profile, timed anew and signed again."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import call, profile_document, write_json
from helpers import assert_plan_ok, plan_of, signed
from msgspec.structs import replace
from plan_edits import edit_channel, set_ops, swap_ops
from random_plans import draw_problem, draw_schedule

from cpipe.compiler import problem_for_plan, simulate_plan
from cpipe.compiler.retime import METHOD, recounted, retimed
from cpipe.ir import Hop, Plan, Problem
from cpipe.plan import encode_plan, lift, load_plan, plan_digest, validate
from cpipe.profile import load_profile
from cpipe.units import Ns


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a profile of three devices and six microbatches."""
    return write_json(tmp_path / "profile.json", profile_document(3, 6))


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make 1F1B's plan of it, D and W apart."""
    target = tmp_path / "plan.json"
    assert call(capsys, "solve", profile, "-q", "-o", target, "--method", "1f1b-split").code == 0
    assert_right(target, profile)
    return target


def assert_right(plan: Path, profile: Path) -> Plan:
    """Hold a written plan against the profile; return it."""
    loaded = load_plan(plan)
    assert_plan_ok(loaded, problem_for_plan(loaded, load_profile(profile)))
    return loaded


def write_plan(path: Path, plan: Plan) -> Path:
    """Write a plan as it is, under another name."""
    path.write_bytes(encode_plan(plan))
    return path


def delayed(plan: Plan, place: int) -> Plan:
    """Return the plan with the first W of a program behind the compute op that follows it, as an editor would."""
    ops = list(plan.ranks[place].ops)
    weight = next(index for index, step in enumerate(ops) if step.op == "W")
    after = next(index for index in range(weight + 1, len(ops)) if ops[index].op in ("F", "D", "B"))
    ops.insert(after, ops.pop(weight))
    return set_ops(plan, place, ops)


def other_profile(tmp_path: Path, latency_ms: float = 4.0, **changes: Any) -> Path:
    """Write the same job with other links."""
    document = profile_document(3, 6) | changes
    for link in document["links"]:
        link["latency_ms"] = latency_ms
    return write_json(tmp_path / "other.json", document)


def test_edited_plan_is_signed_again(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan whose order was edited is written in that order, with times and claims that hold, and a right digest."""
    edited = delayed(load_plan(plan), 0)
    path, new = write_plan(plan.with_name("edited.json"), edited), plan.with_name("new.json")
    assert call(capsys, "validate", path, "--profile", profile).code == 1
    outcome = call(capsys, "simulate", path, "--profile", profile, "-o", new, "--json")
    assert outcome.code == 0
    written = assert_right(new, profile)
    assert lift(written)[0] == lift(edited)[0] != lift(load_plan(plan))[0]
    assert outcome.document["makespan_ms"] == written.claims.makespan_ns / 1e6
    assert (written.made_by.method, written.made_by.found_by, written.made_by.limits) == (METHOD, "", {})
    assert call(capsys, "validate", new, "--profile", profile).code == 0


def test_untouched_plan_stays_as_it_is(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On its own profile a plan that nobody touched is copied byte for byte, with its origin."""
    new = plan.with_name("new.json")
    assert call(capsys, "simulate", plan, "--profile", profile, "-o", new).code == 0
    assert new.read_bytes() == plan.read_bytes()


def test_twice_is_once(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan timed anew on a profile is timed right there: doing so again changes nothing."""
    other, first, second = other_profile(tmp_path), plan.with_name("1.json"), plan.with_name("2.json")
    assert call(capsys, "simulate", plan, "--profile", other, "-o", first).code == 0
    assert call(capsys, "simulate", first, "--profile", other, "-o", second).code == 0
    assert first.read_bytes() == second.read_bytes()


def test_other_profile(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For another profile the plan keeps its orders and who found them, and takes its problem, names and sizes."""
    document = json.loads(other_profile(tmp_path, name="elsewhere").read_bytes())
    for stage in document["stages"]:
        stage["output_bytes"] = 7_000_000
    other, new = write_json(tmp_path / "other.json", document), plan.with_name("new.json")
    assert call(capsys, "simulate", plan, "--profile", other, "-o", new).code == 0
    before, after = load_plan(plan), assert_right(new, other)
    assert lift(after) == lift(before)
    assert after.problem.name == "elsewhere"
    assert {channel.message_bytes for channel in after.channels} == {7_000_000}
    assert after.claims.makespan_ns > before.claims.makespan_ns
    assert after.made_by.found_by == before.made_by.found_by != ""


def test_plan_to_standard_output(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -o - the plan is all that stands on stdout, and the summary goes to stderr."""
    outcome = call(capsys, "simulate", plan, "--profile", profile, "-o", "-")
    assert (outcome.code, outcome.out.encode()) == (0, plan.read_bytes())
    assert outcome.err.startswith("makespan ")


def test_windows_are_counted_anew(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An edit may change how many receives are open at once: that is a warning, and right in the new plan."""
    loaded = load_plan(plan)
    wrong = edit_channel(loaded, 0, window=loaded.channels[0].window + 1)
    assert recounted(wrong) == loaded
    path, new = write_plan(plan.with_name("edited.json"), wrong), plan.with_name("new.json")
    outcome = call(capsys, "simulate", path, "--profile", profile, "-o", new)
    assert outcome.code == 0
    assert "[window]" in outcome.err
    assert assert_right(new, profile).channels == loaded.channels


def test_wrong_claims_that_were_signed(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A digest that fits wrong claims does not keep them: they are what the replay gives."""
    loaded = load_plan(plan)
    lying = signed(replace(loaded, claims=replace(loaded.claims, makespan_ns=loaded.claims.makespan_ns + 5)))
    path, new = write_plan(plan.with_name("lie.json"), lying), plan.with_name("new.json")
    assert call(capsys, "simulate", path, "--profile", profile, "-o", new).code == 0
    assert assert_right(new, profile).claims.makespan_ns == loaded.claims.makespan_ns


def test_plan_that_cannot_run_is_not_written(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Edits that break the plan are faults with exit code 1, and no file appears."""
    loaded = load_plan(plan)
    ops = loaded.ranks[1].ops
    first, last = (next(i for i, step in enumerate(ops) if step.op == name) for name in ("F", "D"))
    path, new = write_plan(plan.with_name("edited.json"), swap_ops(loaded, 1, first, last)), plan.with_name("new.json")
    outcome = call(capsys, "simulate", path, "--profile", profile, "-o", new, "--json")
    assert (outcome.code, outcome.document["status"], new.exists()) == (1, "invalid", False)


def test_plan_that_does_not_fit_is_not_written(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that needs more memory than there is can be replayed, but is no plan for that profile."""
    document = profile_document(3, 6)
    document["devices"][0]["memory_bytes"] = 22_000_000_000
    other, new = write_json(tmp_path / "other.json", document), plan.with_name("new.json")
    assert call(capsys, "simulate", plan, "--profile", other).code == 0
    outcome = call(capsys, "simulate", plan, "--profile", other, "-o", new)
    assert (outcome.code, outcome.out, new.exists()) == (1, "", False)
    assert "[memory]" in outcome.err
    assert outcome.err.endswith("hint: the plan was not written: it is not valid on this profile\n")


@pytest.mark.parametrize(
    ("output", "code"), [("plan.json", "output-is-input"), ("profile.json", "output-is-input"), ("no/x", "output-not-")]
)
def test_refused_outputs(output: str, code: str, plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs are never overwritten, and a file that cannot be written is said before anything is replayed."""
    before = plan.read_bytes(), profile.read_bytes()
    outcome = call(capsys, "simulate", plan, "--profile", profile, "-o", plan.parent / output)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"[{code}" in outcome.err
    assert (plan.read_bytes(), profile.read_bytes()) == before


def test_two_documents_on_standard_output(plan: Path, profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--json and -o - both want standard output."""
    outcome = call(capsys, "simulate", plan, "--profile", profile, "-o", "-", "--json")
    assert outcome.code == 2
    assert "[stdout-twice]" in outcome.err


@pytest.mark.parametrize("mode", ["ddp", "zero1"])
def test_collectives_and_span(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Collectives get their times too, and a plan for the span its span, on links three times as slow."""
    job = {"mode": mode, "replicas": 2, "latency_ms": 1}
    own = other_profile(tmp_path, 1.0, data_parallel=job).rename(tmp_path / "own.json")
    plan, new, other = tmp_path / "p.json", tmp_path / "n.json", other_profile(tmp_path, 3.0, data_parallel=job)
    options = ["--method", "greedy", "--objective", "span"]
    assert call(capsys, "solve", own, "-q", "-o", plan, *options).code == 0
    assert_right(plan, own)
    assert call(capsys, "simulate", plan, "--profile", other, "-o", new).code == 0
    claims = assert_right(new, other).claims
    assert claims.objective == "span"
    assert claims.span_ns is not None
    assert claims.lower_bound_ns <= claims.span_ns <= claims.makespan_ns


def test_solver_bound_is_kept_only_where_it_holds(plan: Path, profile: Path) -> None:
    """A solver's bound on an untouched plan's own problem stays; any change falls back to the closed form."""
    loaded = load_plan(plan)
    problem = problem_for_plan(loaded, load_profile(profile))
    proof = {"lower_bound_ns": loaded.claims.makespan_ns - 1, "proved_by": "highs", "gap_ppm": None, "status": None}
    proved = signed(replace(loaded, claims=replace(loaded.claims, **proof)))
    timeline = simulate_plan(proved, problem)
    assert retimed(proved, problem, timeline) == proved
    late = signed(replace(proved, claims=replace(proved.claims, makespan_ns=proved.claims.makespan_ns + 1)))
    assert retimed(late, problem, timeline).claims.proved_by == "highs"  # the digest fits, the problem is the same
    touched = replace(proved, digest="sha256:0")
    again = retimed(touched, problem, timeline)
    assert (again.claims.proved_by, again.claims.lower_bound_ns) == ("bound", loaded.claims.lower_bound_ns)
    assert_plan_ok(again, problem)


def stretched(problem: Problem, factor: int) -> Problem:
    """Return the problem with slower stages and links, one by one by up to `factor` ns."""

    def hop(found: Hop | None, place: int) -> Hop | None:
        return None if found is None else replace(found, latency_ns=Ns(found.latency_ns + place % factor))

    stages = tuple(
        replace(stage, forward_ns=Ns(stage.forward_ns + place % factor), weight_grad_ns=Ns(stage.weight_grad_ns + 1))
        for place, stage in enumerate(problem.stages)
    )
    return replace(
        problem,
        name="stretched",
        stages=stages,
        forward_hops=tuple(hop(found, place) for place, found in enumerate(problem.forward_hops)),
        backward_hops=tuple(hop(found, place + 1) for place, found in enumerate(problem.backward_hops)),
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_plans_on_other_problems(seed: int) -> None:
    """Any plan timed anew on a problem of its shape is valid there and has the makespan of its replay."""
    draw = Random(seed)
    problem = draw_problem(draw, windows=False)
    plan = plan_of(problem, draw_schedule(draw, problem))
    assert_plan_ok(plan, problem)
    other = stretched(problem, 3)
    timeline = simulate_plan(plan, other)
    new = retimed(plan, other, timeline)
    assert_plan_ok(new, other)
    assert new.claims.makespan_ns == timeline.makespan_ns
    assert new.digest == plan_digest(new)
    assert validate(new, problem) != () or other == problem
    assert retimed(new, other, timeline) == new
