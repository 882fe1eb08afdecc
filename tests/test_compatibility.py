"""Files of the first release keep working: they load, and every command takes them as it did."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import call, write_json
from helpers import assert_plan_ok

import cpipe
from cpipe.compiler import problem_for_plan
from cpipe.plan import encode_plan, plan_schema
from cpipe.profile import profile_schema
from cpipe.report.document import report_schema

RELEASED = Path(__file__).parent / "data" / "compat" / "v1"
CASES = ("llama3-8b-a100-gh200", "m70-2dc-lat2-bw2-1x")
TIMED = RELEASED / CASES[0]
MAKESPANS_NS = {"llama3-8b-a100-gh200": 5_683_628_786, "m70-2dc-lat2-bw2-1x": 2_908_550_000}


def released(case: str) -> tuple[Path, Path]:
    """Return the plan and the profile of a case as the first release wrote them."""
    return RELEASED / case / "plan.json", RELEASED / case / "profile.json"


@pytest.mark.parametrize("case", CASES)
def test_released_plans_load_and_hold(case: str) -> None:
    """A plan of the first release is valid for its profile, replays as it claims, and is written as it was."""
    file, profile = released(case)
    plan = cpipe.load_plan(str(file))
    problem = problem_for_plan(plan, cpipe.load_profile(str(profile)))
    assert_plan_ok(plan, problem)
    assert encode_plan(plan) == file.read_bytes()
    assert plan.claims.makespan_ns == MAKESPANS_NS[case]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "PLAN"],
        ["validate", "PLAN", "--profile", "PROFILE"],
        ["simulate", "PLAN", "--profile", "PROFILE"],
        ["check", "FOLDER"],
        ["show", "PLAN"],
        ["show", "PLAN", "--profile", "PROFILE"],
        ["explain", "PLAN"],
        ["diff", "PLAN", "PLAN"],
        ["export", "PLAN", "--to", "torch-csv"],
        ["export", "PLAN", "--to", "timeline-csv"],
    ],
)
def test_commands_take_released_files(case: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every light command takes the files of the first release without an error or a warning."""
    plan, profile = released(case)
    names = {"PLAN": plan, "PROFILE": profile, "FOLDER": plan.parent}
    outcome = call(capsys, *(names.get(argument, argument) for argument in arguments), "--json")
    assert outcome.code == 0
    assert outcome.document["diagnostics"] == []


def test_explaining_a_released_plan_on_its_profile(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan without a certificate is explained on its profile too, by the proof that it has."""
    plan, profile = released(CASES[0])
    outcome = call(capsys, "explain", plan, "--profile", profile, "--json", "-q")
    assert (outcome.code, outcome.document["plan_status"], outcome.document["found_by"]) == (0, "optimal", None)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("solve", ["PROFILE", "--method", "1f1b", "-o", "/dev/null"]),
        ("validate", ["PLAN", "--profile", "PROFILE"]),
        ("simulate", ["PLAN", "--profile", "PROFILE"]),
    ],
)
def test_reports_keep_what_they_told(command: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that a report of the first release told is told today, under the same name and with the same value."""
    plan, profile = released(CASES[0])
    names = {"PLAN": plan, "PROFILE": profile}
    today = call(capsys, command, *(names.get(option, option) for option in options), "--json").document
    before = json.loads((TIMED / f"{command}.report.json").read_bytes())
    assert kept(before, today) == before


def kept(before: Any, today: Any) -> Any:
    """Return the part of today's value that is there in the older one."""
    if isinstance(before, dict):
        return {key: kept(before[key], today[key]) for key in before if key in today}
    if isinstance(before, list) and len(before) == len(today):
        return [kept(*pair) for pair in zip(before, today, strict=True)]
    return today


SCHEMAS = {"profile": profile_schema, "plan": plan_schema, "report": report_schema}


def objects_of(name: str) -> dict[str, Any]:
    """Return the objects of a format as it is today, as plain JSON."""
    objects: dict[str, Any] = json.loads(json.dumps(SCHEMAS[name]()))["$defs"]
    return objects


def frozen(name: str) -> dict[str, Any]:
    """Return the objects of a format as the first release published them."""
    objects: dict[str, Any] = json.loads((RELEASED / f"{name}.schema.json").read_bytes())["$defs"]
    return objects


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_field_is_lost(name: str) -> None:
    """Every object and field of the first release is still there, and a number has its unit still."""
    objects = objects_of(name)
    for owner, node in frozen(name).items():
        for key, field in node["properties"].items():
            assert key in objects[owner]["properties"], f"{owner}.{key}"
            unit = re.search(r"\[[^\]]+\]\.$", field.get("description", ""))
            assert not unit or objects[owner]["properties"][key]["description"].endswith(unit[0]), f"{owner}.{key}"


@pytest.mark.parametrize("name", ["profile", "plan"])
def test_nothing_more_is_required_of_files(name: str) -> None:
    """No field that a file of the first release could leave out is required now, and no value is refused now."""
    objects = objects_of(name)
    for owner, node in frozen(name).items():
        assert set(objects[owner].get("required", [])) <= set(node.get("required", [])), owner
        for key, field in node["properties"].items():
            today = objects[owner]["properties"][key]
            assert set(field.get("enum", [])) <= set(today.get("enum", [])), f"{owner}.{key}"
            assert field.get("type") == today.get("type"), f"{owner}.{key}"
            assert field.get("default") == today.get("default"), f"{owner}.{key}"
            assert today.get("minimum", 0) <= field.get("minimum", 0), f"{owner}.{key}"
            assert today.get("maximum", 0) >= field.get("maximum", 0), f"{owner}.{key}"


def edited(file: Path, target: Path, **changes: object) -> Path:
    """Write a copy of a document with some of its values changed."""
    return write_json(target, json.loads(file.read_bytes()) | changes)


NEWER = "$.version: made by a newer cpipe: expected version 1, got 2 [newer-version]"


@pytest.mark.parametrize(
    ("arguments", "blamed", "hint"),
    [
        (["solve", "PROFILE"], "PROFILE", "update cpipe"),
        (["compare", "PROFILE"], "PROFILE", "update cpipe"),
        (["sweep", "PROFILE"], "PROFILE", "update cpipe"),
        (["crossover", "PROFILE"], "PROFILE", "update cpipe"),
        (["validate", "PLAN"], "PLAN", "update cpipe, or make the plan again with this one"),
        (["validate", "OLD", "--profile", "PROFILE"], "PROFILE", "update cpipe"),
        (["simulate", "PLAN", "--profile", "PROFILE"], "PLAN", "update cpipe, or make the plan again with this one"),
        (["show", "PLAN"], "PLAN", "update cpipe, or make the plan again with this one"),
        (["explain", "PLAN"], "PLAN", "update cpipe, or make the plan again with this one"),
        (["diff", "OLD", "PLAN"], "PLAN", "update cpipe, or make the plan again with this one"),
        (["check", "PLAN"], "PLAN", "update cpipe, or make the plan again with this one"),
        (["check", "OLD", "--profile", "PROFILE"], "PROFILE", "update cpipe"),
        (["export", "PLAN", "--to", "torch-csv"], "PLAN", "update cpipe, or make the plan again with this one"),
        (["import", "x.csv", "--from", "torch-csv", "--profile", "PROFILE"], "PROFILE", "update cpipe"),
        (["run", "PLAN"], "PLAN", "update cpipe, or make the plan again with this one"),
    ],
)
def test_newer_versions_are_refused(
    arguments: list[str], blamed: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of a newer version is refused by every command: which version is known, which was found, what to do."""
    plan, profile = released(CASES[0])
    files = {
        "OLD": plan,
        "PLAN": edited(plan, tmp_path / "plan.json", version=2),
        "PROFILE": edited(profile, tmp_path / "profile.json", version=2),
    }
    outcome = call(capsys, *(files.get(argument, argument) for argument in arguments))
    assert outcome.code == 3
    lines = outcome.err.splitlines()
    assert f"error: {files[blamed]}: {NEWER}" in lines
    assert f"hint: {hint}" in lines


@pytest.mark.parametrize(
    ("arguments", "path"),
    [(["validate", "PLAN"], "$.colour"), (["solve", "PROFILE"], "$.colour"), (["diff", "OLD", "PLAN"], "$.colour")],
)
def test_unknown_fields_are_refused(
    arguments: list[str], path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field that the version does not have is refused by its path, never passed over."""
    plan, profile = released(CASES[0])
    files = {
        "OLD": plan,
        "PLAN": edited(plan, tmp_path / "plan.json", colour="red"),
        "PROFILE": edited(profile, tmp_path / "profile.json", colour="red"),
    }
    outcome = call(capsys, *(files.get(argument, argument) for argument in arguments))
    assert outcome.code == 3
    assert f'{path}: unknown key "colour" [unknown-key]' in outcome.err
