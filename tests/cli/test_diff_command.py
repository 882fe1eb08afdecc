"""Tests of `cpipe diff`: verdicts and exit codes, text and JSON, replays, other jobs, and what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, call, profile_document, spawn, write_json
from helpers import assert_plan_ok, signed
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from plan_edits import edit_op, remove_op, set_ops

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.ir import Plan
from cpipe.plan import encode_plan, load_plan
from cpipe.profile import load_profile
from cpipe.report.document import report_schema


@pytest.fixture(autouse=True)
def stand_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in a folder of one profile, `p.json`, of three devices and six microbatches."""
    monkeypatch.chdir(tmp_path)
    write_json(Path("p.json"), profile_document(3, 6))


@cache
def schema() -> Draft202012Validator:
    """Return what every report meets."""
    return Draft202012Validator(report_schema())


def make_plan(name: str, profile: str = "p.json", **options: Any) -> Plan:
    """Solve a profile and write the plan."""
    compiled = compile_profile(load_profile(profile), SolveOptions(**options))
    assert_plan_ok(compiled.plan, compiled.problem)
    return write_plan(name, compiled.plan)


def write_plan(name: str, plan: Plan) -> Plan:
    """Write a plan as it is."""
    Path(name).write_bytes(encode_plan(plan))
    return plan


def reported(capsys: pytest.CaptureFixture[str], *arguments: object, code: int) -> dict[str, Any]:
    """Return the JSON report; it meets the schema and the exit code is as expected."""
    outcome = call(capsys, "diff", *arguments, "--json")
    assert outcome.code == code
    schema().validate(outcome.document)
    return outcome.document


def codes(document: dict[str, Any]) -> list[str]:
    """Return the rules that a report names."""
    return [found["code"] for found in document["diagnostics"]]


def test_identical_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Files that are equal byte for byte are identical: exit code 0, one line."""
    make_plan("a.json", method="1f1b")
    make_plan("b.json", method="1f1b")
    outcome = call(capsys, "diff", "a.json", "b.json")
    assert outcome == (0, "identical: the files are equal byte for byte\n", "")
    document = reported(capsys, "a.json", "b.json", code=0)
    assert (document["status"], document["sections"], document["difference_ms"]) == ("identical", [], 0)


def test_same_plan_written_differently(capsys: pytest.CaptureFixture[str]) -> None:
    """Blanks and the order of keys are no difference."""
    plan = make_plan("a.json", method="1f1b")
    document = json.loads(encode_plan(plan))
    write_json(Path("b.json"), dict(reversed(document.items())))
    assert reported(capsys, "a.json", "b.json", code=0)["status"] == "same"
    outcome = call(capsys, "diff", "a.json", "b.json")
    assert outcome.out.startswith("same: one plan, written differently\na: a.json: sample: ")


def test_two_methods(capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """Two orders of one job: where each rank first differs, what is claimed, and what it costs."""
    make_plan("a.json", method="gpipe")
    make_plan("b.json", method="1f1b-split")
    outcome = call(capsys, "diff", "a.json", "b.json")
    assert (outcome.code, outcome.err) == (1, "")
    golden(outcome.out)


def test_report(capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """The JSON report of two orders on a profile is complete."""
    make_plan("a.json", method="gpipe")
    make_plan("b.json", method="1f1b-split")
    document = reported(capsys, "a.json", "b.json", "--profile", "p.json", code=1)
    assert document["profile_checked"]
    golden(json.dumps(document, indent=1) + "\n")


def slower(plan: Plan) -> Plan:
    """Return the plan with its last op a millisecond longer, and all claims as if that were so."""
    ops = plan.ranks[0].ops
    last = max(index for index, step in enumerate(ops) if step.end_ns is not None)
    later = plan.claims.makespan_ns + 1_000_000
    plan = edit_op(plan, 0, last, end_ns=later)
    return signed(replace(plan, claims=replace(plan.claims, makespan_ns=later)))


def test_other_times(capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """Equal orders at other times are told apart from other orders; replayed on one profile both take the same."""
    write_plan("b.json", slower(make_plan("a.json", method="1f1b")))
    outcome = call(capsys, "diff", "a.json", "b.json")
    assert outcome.code == 1
    golden(outcome.out)
    document = reported(capsys, "a.json", "b.json", code=1)
    assert document["sections"] == ["times", "claims"]
    assert document["difference_ms"] == 1
    replayed = reported(capsys, "a.json", "b.json", "--profile", "p.json", code=1)
    assert replayed["difference_ms"] == 0
    assert all(pair["a"] == pair["b"] for pair in replayed["devices"])


def test_order_of_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """The difference is b - a: exchanging the plans changes its sign."""
    make_plan("a.json", method="gpipe")
    make_plan("b.json", method="greedy")
    there, back = (reported(capsys, *names, code=1) for names in (("a.json", "b.json"), ("b.json", "a.json")))
    assert there["difference_ms"] == -back["difference_ms"] < 0
    assert [pair["a"] for pair in there["devices"]] == [pair["b"] for pair in back["devices"]]


def test_replay_is_that_of_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    """With --profile makespans and devices are what `simulate` gives for each plan there."""
    make_plan("a.json", method="gpipe")
    make_plan("b.json", method="greedy")
    document = profile_document(3, 6)
    for link in document["links"]:
        link["latency_ms"] = 9
    write_json(Path("slow.json"), document)
    report = reported(capsys, "a.json", "b.json", "--profile", "slow.json", code=1)
    for side in "ab":
        replay = call(capsys, "simulate", f"{side}.json", "--profile", "slow.json", "--json").document
        assert report[f"{side}_makespan_ms"] == replay["makespan_ms"]
        assert [pair[side] for pair in report["devices"]] == replay["devices"]


def test_other_profile(capsys: pytest.CaptureFixture[str]) -> None:
    """Plans of one job made for two profiles are compared with a note, and what can be done about it."""
    document = profile_document(3, 6)
    document["stages"][0]["forward_ms"] = 3
    write_json(Path("q.json"), document)
    make_plan("a.json", method="1f1b")
    make_plan("b.json", "q.json", method="1f1b")
    report = reported(capsys, "a.json", "b.json", code=1)
    assert not report["same_problem"]
    assert codes(report) == ["problem-digest"]
    assert report["orders"] == []
    assert [rank["rank"] for rank in report["times"]] == [0, 1, 2]
    note = call(capsys, "diff", "a.json", "b.json").err
    assert "made for different profiles" in note
    assert note.endswith("--profile replays both on one [problem-digest]\n")
    assert call(capsys, "diff", "a.json", "b.json", "-q").err == ""


@pytest.mark.parametrize(
    ("choice", "value", "field"), [("recompute", "all", "recompute"), ("placement", "loop", "placement")]
)
def test_other_choices(choice: str, value: str, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans of one profile with another placement, or other stages that recompute, say that this is what differs."""
    document = profile_document(3, 6)
    document["stages"][0]["device"], document["stages"][2]["device"] = "g2", "g0"
    for stage in document["stages"]:
        stage["recompute"] = {"activation_bytes": 100_000_000, "extra_ms": 1}
    write_json(Path("p.json"), document)
    make_plan("a.json", method="1f1b", recompute="none")
    make_plan("b.json", method="1f1b", **{"recompute": "none", choice: value})
    report = reported(capsys, "a.json", "b.json", "--profile", "p.json", code=1)
    assert {"problem", "made_by"} <= set(report["sections"])
    assert ("problem", field) in {(found["section"], found["name"]) for found in report["fields"]}
    (note,) = [found["message"] for found in report["diagnostics"] if found["code"] == "problem-digest"]
    assert note.startswith(f"the plans were made with another {field}: ")


def test_other_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """Plans of different jobs are compared as far as both have ranks, with a clear note; one fits the profile."""
    write_json(Path("q.json"), profile_document(2, 4))
    make_plan("a.json", method="1f1b")
    make_plan("b.json", "q.json", method="1f1b")
    report = reported(capsys, "a.json", "b.json", code=1)
    assert codes(report) == ["different-job"]
    (note,) = report["diagnostics"]
    assert "devices 3 and 2, stages 3 and 2, microbatches 6 and 4" in note["message"]
    assert [pair["b"] is None for pair in report["devices"]] == [False, False, True]
    outcome = call(capsys, "diff", "a.json", "b.json", "--profile", "p.json")
    assert outcome.code == 1
    assert "makespan on the profile: not of both; a takes " in outcome.out
    assert (
        "warning: b.json: $.devices: not replayed: the plan has 2 devices, the profile 3 [different-size]"
        in outcome.err
    )


def test_profile_of_neither(capsys: pytest.CaptureFixture[str]) -> None:
    """A profile of another job than both plans is a wrong input: exit code 3."""
    make_plan("a.json", method="1f1b")
    make_plan("b.json", method="gpipe")
    write_json(Path("q.json"), profile_document(2, 4))
    document = reported(capsys, "a.json", "b.json", "--profile", "q.json", code=3)
    assert document["status"] == "error"
    assert set(codes(document)) == {"different-size"}


def test_edit_by_hand_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that was changed by hand is compared as it is, with a warning that its claims may be wrong."""
    plan = make_plan("a.json", method="1f1b")
    write_plan("b.json", edit_op(plan, 0, 0, end_ns=1))
    document = reported(capsys, "a.json", "b.json", code=1)
    assert (document["sections"], codes(document)) == (["times"], ["plan-digest"])
    write_plan("b.json", replace(plan, digest="sha256:0"))
    outcome = call(capsys, "diff", "a.json", "b.json")
    assert outcome.code == 1
    assert outcome.out.startswith("differ: digest (the same orders, messages and times)\n")


def test_plan_that_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that cannot finish has no makespan on a profile: its faults are told, the rest is compared."""
    plan = make_plan("a.json", method="1f1b")
    send = next(index for index, step in enumerate(plan.ranks[0].ops) if step.op == "SEND")
    write_plan("b.json", remove_op(plan, 0, send))
    document = reported(capsys, "a.json", "b.json", "--profile", "p.json", code=1)
    assert document["b_makespan_ms"] is None
    assert document["a_makespan_ms"] == plan.claims.makespan_ns / 1e6
    assert "missing-send" in codes(document)
    assert document["sections"] == ["messages"]
    outcome = call(capsys, "diff", "b.json", "b.json", "--profile", "p.json")
    assert outcome.code == 1  # equal, but the question what they take has no answer
    assert outcome.out == "identical: the files are equal byte for byte\n"
    assert outcome.err.endswith("see 'cpipe validate'\n")


def test_empty_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan without ranks or ops can be compared like any other."""
    plan = make_plan("a.json", method="1f1b")
    write_plan("b.json", set_ops(plan, 1, ()))
    write_plan("c.json", replace(plan, ranks=()))
    report = reported(capsys, "a.json", "b.json", code=1)
    assert (report["orders"][0]["rank"], report["orders"][0]["b"]) == (1, None)
    for names in (("a.json", "c.json"), ("c.json", "a.json"), ("b.json", "c.json")):
        assert "devices" in reported(capsys, *names, code=1)["sections"]
        assert call(capsys, "diff", *names).code == 1


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "file-not-found"),
        (b"", "empty-file"),
        (b"[1", "truncated"),
        (b'{"format": "cpipe.plan", "version": 2}', "newer-version"),
        (b'{"format": "cpipe.profile", "version": 1}', "wrong-format"),
        (b"\xff\xfe{", "not-utf8"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_unreadable_plans(content: bytes | None, code: str, place: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that cannot be read is exit code 3, whichever of the two it is."""
    make_plan("a.json", method="1f1b")
    if content is not None:
        Path("b.json").write_bytes(content)
    names = ["b.json", "a.json"] if place == 0 else ["a.json", "b.json"]
    document = reported(capsys, *names, code=3)
    assert (document["status"], document["plans"]) == ("error", [])
    assert all(found["file"] == "b.json" for found in document["diagnostics"])
    assert codes(document) == [code]


@pytest.mark.parametrize(
    ("arguments", "code", "rule"),
    [
        (["a.json"], 2, "usage"),
        (["-", "-"], 2, "stdin-twice"),
        (["a.json", "a.json", "--profile", "none.json"], 3, "file-not-found"),
        (["a.json", "a.json", "--profile", "a.json"], 3, "wrong-format"),
    ],
)
def test_wrong_calls(arguments: list[str], code: int, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls that make no sense end with 2, inputs that cannot be read with 3; both as a document too."""
    make_plan("a.json", method="1f1b")
    document = reported(capsys, *arguments, code=code)
    assert (document["command"], document["status"]) == ("diff", "error")
    assert codes(document) == [rule]


def test_standard_input() -> None:
    """One of the plans may come from standard input, and is compared byte for byte too."""
    make_plan("a.json", method="1f1b")
    data = Path("a.json").read_bytes()
    assert spawn("diff", "a.json", "-", stdin=data).out == "identical: the files are equal byte for byte\n"
    assert spawn("diff", "-", "a.json", stdin=data + b"\n").out.startswith(
        "same: one plan, written differently\na: -: "
    )


@pytest.mark.slow
def test_output_does_not_depend_on_the_terminal() -> None:
    """Colour and width of the environment change no byte."""
    make_plan("a.json", method="1f1b")
    make_plan("b.json", method="gpipe")
    environments: list[dict[str, str]] = [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}, {"COLUMNS": "20", "TERM": "dumb"}]
    outcomes: set[Outcome] = {spawn("diff", "a.json", "b.json", environ=environ) for environ in environments}
    assert len(outcomes) == 1
    assert next(iter(outcomes)).code == 1


def test_reading_plans_alone_is_light() -> None:
    """Without a profile nothing that searches or simulates is loaded."""
    make_plan("a.json", method="1f1b")
    code = "import sys; from cpipe.cli.app import main; main(['diff', 'a.json', 'a.json']); print(sorted(sys.modules))"
    import subprocess
    import sys

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("cpipe.solve", "cpipe.compiler", "torch", "pulp", "highspy", "ortools"):
        assert f"'{name}'" not in loaded
    assert load_plan("a.json").problem.devices == 3
