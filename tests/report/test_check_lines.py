"""Tests of cpipe.report.check: the words of each verdict, the summary, and what is known of a plan in the report."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from cpipe.errors import Diagnostic
from cpipe.report.check import PlanCheck, Verdict, check_line, check_report, check_summary
from cpipe.report.document import encode_report, report_schema

MS = 1_000_000
BARE = PlanCheck(file="a/plan.json", profile="a/profile.json", verdict="ok", claimed_ns=100 * MS, bound_ns=80 * MS)


def fault(code: str, severity: str = "error") -> Diagnostic:
    """Return a diagnostic of a rule."""
    return Diagnostic(code=code, message="m", severity="warning" if severity == "warning" else "error")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "makespan 100.000 ms, gap 20.00 %"),
        ({"objective": "span"}, "span 100.000 ms, gap 20.00 %"),
        ({"bound_ns": 100 * MS}, "makespan 100.000 ms, gap 0.00 %"),
        ({"bound_ns": 200 * MS}, "makespan 100.000 ms, gap 0.00 %"),  # of a plan that lies elsewhere
        ({"claimed_ns": 0, "bound_ns": 0}, "makespan 0.000 ms, gap 0.00 %"),
        ({"fresh_ns": 100 * MS}, "makespan 100.000 ms, gap 20.00 %; solved anew 100.000 ms"),
        ({"fresh_ns": 99 * MS}, "makespan 100.000 ms, gap 20.00 %; solved anew 99.000 ms, this one takes 1.01 % more"),
        (
            {"fresh_ns": 125 * MS},
            "makespan 100.000 ms, gap 20.00 %; solved anew 125.000 ms, this one takes 20.00 % less",
        ),
        ({"fresh_ns": 0}, "makespan 100.000 ms, gap 20.00 %; solved anew 0.000 ms"),
        (
            {"verdict": "worse", "fresh_ns": 50 * MS},
            "makespan 100.000 ms, gap 20.00 %; solved anew 50.000 ms, this one takes 100.00 % more",
        ),
        (
            {"verdict": "updated", "was": "stale", "fresh_ns": 90 * MS},
            "was stale, made anew; makespan 100.000 ms, now 90.000 ms",
        ),
        (
            {"verdict": "stale", "replayed_ns": 110 * MS},
            "made for another profile, where it took 100.000 ms; on this one it takes 110.000 ms",
        ),
        ({"verdict": "stale"}, "made for another profile, where it took 100.000 ms; does not fit this one"),
        ({"verdict": "missing-profile"}, "there is no a/profile.json"),
        ({"verdict": "invalid", "diagnostics": (fault("x"),)}, "1 fault (x)"),
        ({"verdict": "unreadable", "diagnostics": (fault("x"), fault("x"))}, "2 faults (x)"),
        (
            {"verdict": "invalid", "diagnostics": (*map(fault, "vwxyz"), fault("y"), fault("q", "warning"))},
            "6 faults (v, w, x, 2 more)",
        ),
        (
            {"verdict": "invalid", "diagnostics": (fault("plan-digest"), fault("wrong-time"))},
            "changed after it was made; 2 faults (plan-digest, wrong-time)",
        ),
    ],
)
def test_words(fields: dict[str, Any], words: str) -> None:
    """Each verdict has its own words, behind itself and the file's name."""
    check = replace(BARE, **fields)
    assert check_line(check) == f"{check.verdict}: a/plan.json: {words}"


def test_names_are_escaped() -> None:
    """Names of files cannot add lines or colour."""
    check = replace(BARE, file="a\n\x1b[1m", profile="\tp", verdict="missing-profile")
    assert check_line(check) == r"missing-profile: a\n\x1b[1m: there is no \tp"


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (("ok",), "1 plan: 1 ok"),
        (("stale", "ok", "ok"), "3 plans: 2 ok, 1 stale"),
        (("missing-profile", "unreadable", "updated"), "3 plans: 1 updated, 1 unreadable, 1 missing-profile"),
    ],
)
def test_summary(verdicts: tuple[Verdict, ...], text: str) -> None:
    """The summary counts verdicts in one fixed order and leaves out those that do not occur."""
    assert check_summary([replace(BARE, verdict=verdict) for verdict in verdicts]) == text


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (("ok", "updated"), "ok"),
        (("ok", "stale"), "failed"),
        (("invalid",), "failed"),
        (("worse", "ok"), "failed"),
        (("unreadable",), "failed"),
        (("missing-profile", "ok"), "failed"),
    ],
)
def test_status(verdicts: tuple[Verdict, ...], status: str) -> None:
    """The report is ok when every plan is ok or was updated."""
    checks = [replace(BARE, verdict=verdict) for verdict in verdicts]
    assert check_report(checks, None).status == status
    assert [check.is_good for check in checks] == [verdict in ("ok", "updated") for verdict in verdicts]


def test_report_of_a_plan() -> None:
    """Times are [ms], the gap is of the claim; what is not known is null, and what was found stands with the plan."""
    known = replace(BARE, replayed_ns=110 * MS, fresh_ns=90 * MS, diagnostics=(fault("x"),))
    unknown = PlanCheck(file="b", profile="c", verdict="unreadable")
    first, second = check_report([known, unknown], 0.5).plans
    assert (first.claimed_ms, first.lower_bound_ms, first.gap) == (100, 80, 0.2)
    assert (first.replayed_ms, first.fresh_ms) == (110, 90)
    assert [found.code for found in first.diagnostics] == ["x"]
    assert {second.claimed_ms, second.lower_bound_ms, second.gap, second.replayed_ms, second.fresh_ms} == {None}
    assert check_report([known], 0.5).tolerance == 0.5


def test_report_meets_the_schema() -> None:
    """The report of every verdict, and of none, is one JSON document of the schema."""
    import json

    validator = Draft202012Validator(report_schema())
    for verdict in Verdict.__args__:  # type: ignore[attr-defined]
        checks = [replace(BARE, verdict=verdict, was="worse", diagnostics=(fault("x"),))]
        validator.validate(json.loads(encode_report(check_report(checks, 0.01))))
    validator.validate(json.loads(encode_report(check_report([], None))))
