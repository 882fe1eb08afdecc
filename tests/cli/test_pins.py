"""Tests of cpipe.cli.pins: verdicts over random jobs, changes of the profile one by one, and what an update leaves."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import profile_document, write_json
from flow_problems import flow_document
from helpers import assert_plan_ok, signed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from plan_edits import edit_op
from strategies import profiles

from cpipe.cli import pins
from cpipe.cli.pins import Pin, PinCheck
from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan, simulate_plan
from cpipe.errors import InfeasibleError
from cpipe.ir import Plan
from cpipe.plan import encode_plan, load_plan, problem_digest
from cpipe.profile import load_profile, parse_profile

Document = dict[str, Any]


def silent(text: str) -> None:
    """Hear how the search goes."""


@cache
def solved(profile: bytes, options: SolveOptions) -> Plan:
    """Return the plan of a profile's text."""
    compiled = compile_profile(parse_profile(profile, "profile.json"), options)
    assert_plan_ok(compiled.plan, compiled.problem)
    return compiled.plan


def write_pin(folder: Path, document: Document, options: SolveOptions | None = None) -> Pin:
    """Write a profile and its plan into a folder."""
    data = write_json(folder / "profile.json", document).read_bytes()
    (folder / "plan.json").write_bytes(encode_plan(solved(data, options or SolveOptions(method="greedy"))))
    return Pin(str(folder / "plan.json"), str(folder / "profile.json"))


def updated(pin: Pin) -> PinCheck:
    """Check a pin and make it anew where that is due."""
    check = PinCheck(pin)
    check.update(silent)
    return check


def set_in(path: str, value: object) -> Callable[[Document], None]:
    """Return an edit of a profile: ``stages.1.forward_ms``."""

    def edit(document: Document) -> None:
        *keys, last = path.split(".")
        place: Any = document
        for key in keys:
            place = place[int(key) if key.isdigit() else key]
        place[last] = value

    return edit


STALE = {
    "a cost": set_in("stages.1.forward_ms", 2.5),
    "a latency": set_in("links.0.latency_ms", 5),
    "memory of an op": set_in("stages.0.activation_bytes", 2_000_000_000),
    "a message": set_in("stages.0.output_bytes", 2_000_000),
    "a limit": set_in("devices.0.memory_bytes", 50_000_000_000),
    "a name": set_in("devices.0.id", "other"),
    "the job's name": set_in("name", "other"),
    "extensions": set_in("extensions", {"note": "kept and digested"}),
    "microbatches": set_in("microbatches", 5),
    "data parallelism": set_in("data_parallel", {"mode": "ddp", "replicas": 2, "latency_ms": 1}),
}
SAME = {
    "a neutral value": set_in("stages.0.forward_transient_bytes", 0),
    "a number's form": set_in("stages.0.forward_ms", 2.0),
    "one replica": set_in("data_parallel", {"mode": "ddp", "replicas": 1}),
}


def changed(edit: Callable[[Document], None]) -> Document:
    """Return the sample profile after an edit; a device's name is changed everywhere."""
    document = profile_document(2)
    edit(document)
    names = {f"g{index}": device["id"] for index, device in enumerate(document["devices"])}
    for stage in document["stages"]:
        stage["device"] = names[stage["device"]]
    for link in document["links"]:
        link |= {"from": names[link["from"]], "to": names[link["to"]]}
    return document


@pytest.mark.parametrize("what", STALE)
def test_every_change_is_seen(what: str, tmp_path: Path) -> None:
    """Whatever changes in the job that a profile describes makes its plan stale; made anew it is ok."""
    pin = write_pin(tmp_path, profile_document(2))
    document = changed(STALE[what])
    data = write_json(tmp_path / "profile.json", document).read_bytes()
    check = updated(pin)
    assert (check.result.verdict, check.result.was) == ("updated", "stale")
    assert Path(pin.profile).read_bytes() == data
    assert load_plan(pin.plan) == solved(data, SolveOptions(method="greedy"))
    assert PinCheck(pin).result.verdict == "ok"


@pytest.mark.parametrize("what", SAME)
def test_what_is_no_change(what: str, tmp_path: Path) -> None:
    """The same job, written in another way, leaves its plan ok and untouched."""
    pin = write_pin(tmp_path, profile_document(2))
    before = Path(pin.plan).read_bytes()
    write_json(tmp_path / "profile.json", changed(SAME[what]))
    assert updated(pin).result.verdict == "ok"
    assert Path(pin.plan).read_bytes() == before


def test_two_flows(tmp_path: Path) -> None:
    """A plan of two flows in opposite directions is held against the profile's flows, and made anew with them."""
    pin = write_pin(tmp_path, flow_document(2, 4), SolveOptions(method="chimera"))
    check = PinCheck(pin)
    assert check.result.verdict == "ok"
    check.resolve(0.0, silent)
    assert check.result.fresh_ns == check.result.claimed_ns
    write_json(tmp_path / "profile.json", flow_document(2, 4, latency_ms=3))
    assert updated(pin).result.verdict == "updated"
    assert load_plan(pin.plan).problem.flows == 2


def test_span_is_compared_with_span(tmp_path: Path) -> None:
    """A plan that minimises the span is held against a new plan's span, not its makespan."""
    document = profile_document(2)
    document["stages"][1] |= {"weight_grad_ms": 9, "full_backward_ms": 11}  # so that device 1 is the last to finish
    pin = write_pin(tmp_path, document, SolveOptions(method="1f1b-split", objective="span"))
    check = PinCheck(pin)
    check.resolve(0.0, silent)
    plan = load_plan(pin.plan)
    assert check.result.objective == "span"
    assert check.result.claimed_ns == check.result.fresh_ns == plan.claims.span_ns
    assert (plan.claims.span_ns or 0) < plan.claims.makespan_ns == check.result.replayed_ns


def test_search_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is worse and updated is solved anew once, for both questions."""
    pin = write_pin(tmp_path, profile_document(2), SolveOptions(method="gpipe"))
    plan = load_plan(pin.plan)
    relabelled = replace(plan, made_by=replace(plan.made_by, method="greedy"))
    Path(pin.plan).write_bytes(encode_plan(signed(relabelled)))
    runs: list[SolveOptions] = []

    def compile_counted(profile: Any, options: SolveOptions, progress: Any) -> Any:
        runs.append(options)
        return compile_profile(profile, options, progress)

    monkeypatch.setattr(pins, "compile_profile", compile_counted)
    check = PinCheck(pin)
    check.resolve(0.0, silent)
    check.update(silent)
    assert (check.result.verdict, check.result.was) == ("updated", "worse")
    assert runs == [SolveOptions(method="greedy")]


def test_only_ok_plans_are_compared(tmp_path: Path) -> None:
    """What is stale or invalid already is not solved for a comparison as well."""
    pin = write_pin(tmp_path, profile_document(2))
    plan = load_plan(pin.plan)
    Path(pin.plan).write_bytes(encode_plan(edit_op(plan, 0, 0, end_ns=1)))
    check = PinCheck(pin)
    check.resolve(0.0, silent)
    assert (check.result.verdict, check.result.fresh_ns) == ("invalid", None)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(before=profiles(max_devices=3, max_stages=3, max_microbatches=3), factor=st.sampled_from([1, 2]))
def test_random_jobs(before: Document, factor: int) -> None:
    """A fresh plan is ok; with other times it is stale exactly when the problem is another; an update makes it ok."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            pin = write_pin(folder, before)
        except InfeasibleError:
            return
        assert PinCheck(pin).result.verdict == "ok"
        after = json.loads(json.dumps(before))
        for stage in after["stages"]:
            for field in [field for field in stage if field.endswith("_ms")]:
                stage[field] *= factor
        write_json(folder / "profile.json", after)
        plan, profile = load_plan(pin.plan), load_profile(pin.profile)
        problem = problem_for_plan(plan, profile)
        check = PinCheck(pin)
        same = plan.problem.digest == problem_digest(problem)
        assert check.result.verdict == ("ok" if same else "stale")
        assert check.result.replayed_ns == simulate_plan(plan, problem).makespan_ns
        check.update(silent)
        assert check.result.verdict == ("ok" if same else "updated")
        assert PinCheck(pin).result.verdict == "ok"
        assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "profile.json"]
