"""Tests of `cpipe init`: a profile that solves as it is, and never over a file that is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import call
from helpers import assert_plan_ok

from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan
from cpipe.profile import load_profile, parse_profile, profile_schema


@pytest.mark.parametrize(
    ("options", "stages", "devices"),
    [
        ([], 4, 4),
        (["--devices", "3"], 3, 3),
        (["--devices", "a:1,b:2", "--stages", "6"], 6, 3),
        (["--devices", "2", "--stages", "5", "--microbatches", "1"], 5, 2),
    ],
)
def test_starters_solve(
    options: list[str], stages: int, devices: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written becomes a valid plan without any change."""
    target = tmp_path / "profile.json"
    outcome = call(capsys, "init", "-o", target, *options)
    assert (outcome.code, outcome.out) == (0, "")
    profile = load_profile(target)
    assert (len(profile.stages), len(profile.devices)) == (stages, devices)
    plan = compile_profile(profile, SolveOptions(method="greedy")).plan
    assert_plan_ok(plan, problem_for_plan(plan, profile))


def test_fields_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The profile goes to stdout alone; on stderr each field stands with the words of the schema."""
    outcome = call(capsys, "init")
    assert outcome.code == 0
    parse_profile(outcome.out.encode(), "-")
    for node in profile_schema()["$defs"].values():
        for name, field in node["properties"].items():
            assert f".{name} " in outcome.err
            assert field.get("description", "") in outcome.err
    assert "* $.stages[].forward_ms" in outcome.err
    assert call(capsys, "init", "-q") == (0, outcome.out, "")


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that exists stays as it is, by whatever name it is called."""
    target, link = tmp_path / "mine.json", tmp_path / "link.json"
    target.write_text("mine", encoding="utf-8")
    link.symlink_to(target)
    for name in (target, link):
        outcome = call(capsys, "init", "-o", name)
        assert (outcome.code, outcome.out) == (2, "")
        assert f"error: {name}: exists already, and is not written over [output-exists]" in outcome.err
    assert target.read_text(encoding="utf-8") == "mine"
    assert call(capsys, "init", "-q", "-o", os.devnull).code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stages", "3"], "--stages: expected one for each device, up to 1024, got 3 [value-out-of-range]"),
        (["--stages", "5000"], "--stages: expected one for each device, up to 1024"),
        (["--microbatches", "0"], "--microbatches: expected a number in [1, 1024], got 0"),
        (
            ["--devices", "none"],
            '--devices: expected a number >= 1 of devices, or SITE:NUMBER,SITE:NUMBER..., got "none"',
        ),
    ],
)
def test_wrong_calls(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that do not fit are exit code 2, and nothing is written."""
    outcome = call(capsys, "init", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
