"""Tests of cpipe.report.diff_lines: verdicts, tables, values and costs as people read them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers import assert_plan_ok, plan_of
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from plan_edits import edit_channel, edit_op, edit_problem
from sample_plans import make_problem, one_f_one_b

from cpipe.ir import Plan
from cpipe.report.diff import DiffReport, compare_plans, diff_report
from cpipe.report.diff_lines import diff_lines
from cpipe.report.document import encode_report, report_schema
from cpipe.report.figures import plan_figures


def made(*, split: bool = False, **problem: Any) -> Plan:
    """Return 1F1B's plan of two devices and four microbatches."""
    job = make_problem(2, 4, **problem)
    plan = plan_of(job, one_f_one_b(job, split=split))
    assert_plan_ok(plan, job)
    return plan


def report_of(a: Plan, b: Plan, **fields: Any) -> DiffReport:
    """Return the report of two plans as they claim; `fields` are changed in it."""
    makespans = a.claims.makespan_ns, b.claims.makespan_ns
    figures = plan_figures(a), plan_figures(b)
    report = diff_report(
        compare_plans(a, b), (a, b), ("a.json", "b.json"), makespans, figures, identical=a == b, profile_checked=False
    )
    return replace(report, **fields)


def text_of(a: Plan, b: Plan, **fields: Any) -> str:
    """Return the text of two plans."""
    return diff_lines(report_of(a, b, **fields), (a, b))


def test_verdict_counts_what_differs() -> None:
    """The first line names the parts that differ, and of orders, messages and times those that do not."""
    plan = made()
    later = edit_op(plan, 0, 0, end_ns=9)
    cases = {
        "differ: claims (the same orders, messages and times)": replace(
            plan, claims=replace(plan.claims, peak_bytes=(9, 9))
        ),
        "differ: times (the same orders and messages)": later,
        "differ: times and problem (the same orders and messages)": edit_problem(later, name="x"),
        "differ: origin (the same orders, messages and times)": replace(plan, made_by=replace(plan.made_by, seed=3)),
        "differ: digest (the same orders, messages and times)": replace(plan, digest="x"),
    }
    assert [text_of(plan, other).splitlines()[0] for other in cases.values()] == list(cases)
    assert text_of(plan, made(split=True)).splitlines()[0].startswith("differ: orders")
    assert "the same" not in text_of(plan, made(split=True)).splitlines()[0]


def test_one_line_when_identical() -> None:
    """Identical files are said in one line; one plan written differently names both files."""
    plan = made()
    assert text_of(plan, plan) == "identical: the files are equal byte for byte"
    lines = text_of(plan, plan, status="same").splitlines()
    assert lines[0] == "same: one plan, written differently"
    assert [line.split(" ")[1] for line in lines[1:]] == ["a.json:", "b.json:"]


def test_values() -> None:
    """Digests are cut to their first digits, what is absent or empty is none, lists show the first other entry."""
    plan = made()
    other = edit_problem(plan, digest="sha256:" + "f" * 64)
    other = replace(
        other,
        claims=replace(plan.claims, peak_bytes=(plan.claims.peak_bytes[0], 7), transports=("gloo",)),
        made_by=replace(plan.made_by, found_by="milp", limits={"max_gap": 0.5}),
        extensions={"a": {"b": 1}},
    )
    rows = dict(
        line.split(None, 1)
        for line in text_of(plan, other).splitlines()
        if line.split(".")[0] in ("claims", "problem", "made_by", "extensions")
    )
    assert rows["claims.peak_bytes[1]"].split() == [str(plan.claims.peak_bytes[1]), "7"]
    assert rows["claims.transports"].split() == ["[]", '["gloo"]']
    assert rows["made_by.found_by"].split() == ["none", "milp"]
    assert rows["made_by.limits.max_gap"].split() == ["none", "0.5"]
    assert rows["problem.digest"].split()[1] == "sha256:ffffffffffff..."
    assert rows["extensions.a"].split() == ["none", '{"b":1}']


def test_several_entries_of_a_list() -> None:
    """Of a list that differs in several entries the others are counted."""
    plan = made()
    text = text_of(plan, replace(plan, claims=replace(plan.claims, peak_bytes=(1, 2))))
    assert "claims.peak_bytes[0] and 1 more  " in text


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "makespan as claimed: 25.000 ms, the same"),
        ({"profile_checked": True}, "makespan on the profile: 25.000 ms, the same"),
        (
            {"b_makespan_ms": 37.5, "difference_ms": 12.5},
            "makespan as claimed: a 25.000 ms, b 37.500 ms, 12.500 ms more (+50.00 %)",
        ),
        (
            {"b_makespan_ms": 12.5, "difference_ms": -12.5},
            "makespan as claimed: a 25.000 ms, b 12.500 ms, 12.500 ms less (-50.00 %)",
        ),
        (
            {"a_makespan_ms": 0.0, "difference_ms": 25.0},
            "makespan as claimed: a 0.000 ms, b 25.000 ms, 25.000 ms more",
        ),
        (
            {"b_makespan_ms": None, "difference_ms": None},
            "makespan as claimed: not of both; a takes 25.000 ms",
        ),
        (
            {"a_makespan_ms": None, "b_makespan_ms": None, "difference_ms": None},
            "makespan as claimed: not of both",
        ),
    ],
)
def test_makespans(fields: dict[str, Any], line: str) -> None:
    """The cost is the difference of the makespans, in time and as a share of the first; or why there is none."""
    plan = made()
    other = replace(plan, digest="x")
    expected = report_of(plan, other)
    assert expected.a_makespan_ms == expected.b_makespan_ms == 25
    assert line in text_of(plan, other, **fields).splitlines()


def test_devices_that_differ() -> None:
    """Only devices whose bubble or peak differs have a row; the others are counted."""
    plan = made()
    one = replace(plan, claims=replace(plan.claims, peak_bytes=(plan.claims.peak_bytes[0], 7_777)))
    lines = text_of(plan, one).splitlines()
    assert lines[-1] == "1 more with the same bubble and peak"
    assert lines[-2].split()[:2] == ["1", "g1"]
    assert lines[-2].split()[-1] == "7.78"
    assert text_of(plan, replace(plan, digest="x")).endswith("\nbubble and peak memory of all devices: the same")


def test_small_differences_are_seen() -> None:
    """Peaks that would read the same in a large unit are shown in bytes."""
    plan = made()
    sizes = [
        replace(plan, claims=replace(plan.claims, peak_bytes=(size, 1))) for size in (5_000_000_000, 5_000_000_001)
    ]
    lines = text_of(*sizes).splitlines()
    assert lines[-3].endswith("peak a B    peak b B")
    assert lines[-2].split()[-2:] == ["5000000000", "5000000001"]


def test_device_of_one_plan_alone() -> None:
    """A rank that one plan lacks has none there, and a rank of two names has both."""
    plan = made()
    named = made(names=("x", "g1"))
    lines = text_of(plan, replace(plan, ranks=plan.ranks[:1])).splitlines()
    assert lines[-2].split()[:2] == ["1", "g1"]
    assert lines[-2].split().count("none") == 2
    other = replace(named, claims=replace(named.claims, peak_bytes=(1, 1)))
    assert any(line.split()[:4] == ["0", "g0", "/", "x"] for line in text_of(plan, other).splitlines())


def test_channels_are_compared_field_by_field() -> None:
    """A channel is named by its ends and what it carries, and only the field that differs is shown."""
    plan = made()
    text = text_of(plan, edit_channel(plan, 0, message_bytes=8))
    assert "channels.0 -> 1 activation.message_bytes  100  8" in text


@pytest.mark.parametrize("split", [False, True])
def test_report_meets_the_schema(split: bool) -> None:
    """The report of equal and of unequal plans is one JSON document of the schema."""
    plan, other = made(), made(split=split, latency_ms=2)
    for pair in ((plan, plan), (plan, other), (other, replace(plan, ranks=()))):
        Draft202012Validator(report_schema()).validate(json.loads(encode_report(report_of(*pair))))


def test_names_are_escaped() -> None:
    """Users' names cannot add lines or colour."""
    plan = made()
    other = edit_problem(plan, name="x\x1b[1m\ny")
    text = text_of(plan, other, plans=("a\n", "b"))
    assert "\x1b" not in text
    assert "a: a\\n: sample: " in text
    assert r"x\x1b[1m\ny" in text
