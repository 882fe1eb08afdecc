"""Tests of `cpipe schema`: the formats as JSON Schema."""

from __future__ import annotations

import jsonschema
import pytest
from command_line import ROOT, call


@pytest.mark.parametrize("name", ["profile", "plan", "report"])
def test_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the published file, and that is valid JSON Schema."""
    outcome = call(capsys, "schema", name)
    assert (outcome.code, outcome.err) == (0, "")
    jsonschema.Draft202012Validator.check_schema(outcome.document)
    assert outcome.out == (ROOT / "schemas" / f"{name}.v1.schema.json").read_text(encoding="utf-8")


def test_unknown_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """A format that does not exist is a wrong call."""
    assert call(capsys, "schema", "reprot") == (
        2,
        "",
        "error: FORMAT: expected one of profile, plan, report, got 'reprot' [unknown-value]\n"
        "hint: did you mean 'report'?\n",
    )
