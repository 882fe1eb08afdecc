"""The whole path: profile -> problem -> schedule -> timeline -> plan."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from command_line import ROOT
from helpers import assert_plan_ok
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import profiles

from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan, simulate_plan
from cpipe.errors import InfeasibleError, NoSolutionError, ProfileError, UsageError
from cpipe.plan import encode_plan
from cpipe.profile import Profile, parse_profile
from cpipe.solve import TimeLimit


def profile_of(document: dict[str, Any]) -> Profile:
    """Return the profile of a plain dict."""
    return parse_profile(json.dumps(document).encode(), "profile.json")


def two_sites(microbatches: int = 4, stages: int = 2, **changes: Any) -> dict[str, Any]:
    """Return `stages` stages over two devices at two sites, times in whole ms."""
    return {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": microbatches,
        "devices": [{"id": "g0", "site": "a"}, {"id": "g1", "site": "b"}],
        "stages": [
            {
                "id": f"s{index}",
                "device": f"g{index * 2 // stages}",
                "forward_ms": 1,
                "input_grad_ms": 1,
                "weight_grad_ms": 1,
                "activation_bytes": 100,
                "held_for_weight_grad_bytes": 50,
                "output_bytes": 10,
            }
            for index in range(stages)
        ],
        "links": [{"between": ["a", "b"], "latency_ms": 2}],
    } | changes


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(profiles(), st.sampled_from(["auto", "greedy", "greedy-crosspipe", "1f1b", "zb-h1"]))
def test_any_profile_gives_a_valid_plan_or_a_reason(document: dict[str, Any], method: str) -> None:
    """Whatever the schema accepts ends in a plan that passes every check, or in an error with its reason."""
    profile = profile_of(document)
    try:
        compiled = compile_profile(profile, SolveOptions(method=method, max_gap=0.5))
    except (InfeasibleError, NoSolutionError, UsageError) as error:
        assert error.diagnostics
        assert all(diagnostic.message for diagnostic in error.diagnostics)
        return
    assert_plan_ok(compiled.plan, compiled.problem)
    assert simulate_plan(compiled.plan, compiled.problem).makespan_ns == compiled.plan.claims.makespan_ns
    for device, peak in zip(compiled.problem.devices, compiled.plan.claims.peak_bytes, strict=True):
        assert device.capacity_bytes is None or peak <= device.capacity_bytes


def test_fewer_receives_are_posted_when_memory_is_short() -> None:
    """Buffers that do not fit shrink the window, and the plan that is made again fits."""
    roomy = two_sites(8)
    tight = two_sites(8)
    for device in tight["devices"]:
        device["memory_bytes"] = 425
    wide, narrow = compile_profile(profile_of(roomy)), compile_profile(profile_of(tight))
    assert max(channel.window for channel in wide.plan.channels) > 2
    assert max(narrow.plan.claims.peak_bytes) <= 425
    assert narrow.result.makespan_ns >= wide.result.makespan_ns
    assert_plan_ok(narrow.plan, narrow.problem)


def test_a_window_that_the_user_sets_is_kept() -> None:
    """--receive-window K caps every channel, and is recorded in the plan."""
    compiled = compile_profile(profile_of(two_sites(6)), SolveOptions(receive_window=1))
    assert {channel.window for channel in compiled.plan.channels} == {1}
    assert compiled.plan.made_by.limits == {"receive_window": 1}
    assert_plan_ok(compiled.plan, compiled.problem)


def test_a_larger_window_is_never_worse() -> None:
    """--receive-window K allows up to K: raising it never worsens the plan, nor makes a feasible job infeasible."""
    document = two_sites(6)
    for device in document["devices"]:
        device["memory_bytes"] = 330
    profile = profile_of(document)
    makespans = [
        compile_profile(profile, SolveOptions(receive_window=window)).result.makespan_ns for window in (1, 2, 4, 8, 50)
    ]
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[-1] == compile_profile(profile).result.makespan_ns


def test_the_time_limit_is_for_all_attempts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placements and windows share one limit, and the order found first is kept when time is up."""
    document = two_sites(8, stages=4)
    for device in document["devices"]:
        device["memory_bytes"] = 560
    profile = profile_of(document)
    unlimited = compile_profile(profile, SolveOptions(node_limit=0)).result.makespan_ns
    limited = compile_profile(profile, SolveOptions(node_limit=0, time_limit=2.0))
    assert limited.result.makespan_ns <= 1.3 * unlimited
    calls: list[float] = []

    def counted(seconds: float) -> TimeLimit:
        calls.append(seconds)
        return TimeLimit(seconds)

    monkeypatch.setattr("cpipe.compiler.compile.TimeLimit", counted)
    compile_profile(profile, SolveOptions(placement="auto", method="greedy", time_limit=1.0))
    assert calls == [1.0]


def test_placement_auto_tries_each_placement_once() -> None:
    """Where profile, ud, loop and wave are one and the same, it is solved once."""
    lines: list[str] = []
    compile_profile(profile_of(two_sites(5)), SolveOptions(placement="auto", method="greedy"), lines.append)
    assert sum(line == "greedy family" for line in lines) <= 1


@pytest.mark.parametrize(
    ("placement", "devices"),
    [("profile", (0, 0, 1, 1)), ("loop", (0, 1, 0, 1)), ("wave", (0, 1, 1, 0))],
)
def test_placements(placement: str, devices: tuple[int, ...]) -> None:
    """Stages go where the pattern says; the plan carries its placement and validates under it."""
    profile = profile_of(two_sites(stages=4))
    compiled = compile_profile(profile, SolveOptions(placement=placement))
    assert compiled.plan.problem.placement == devices
    assert problem_for_plan(compiled.plan, profile) == compiled.problem
    assert_plan_ok(compiled.plan, compiled.problem)


def test_placement_auto_keeps_the_best() -> None:
    """The best of the profile's own, the loop and the wave; the slow link is crossed least by the profile's own."""
    profile = profile_of(two_sites(stages=4))
    makespans = {
        name: compile_profile(profile, SolveOptions(placement=name)).result.makespan_ns
        for name in ("profile", "loop", "wave", "auto")
    }
    assert makespans["auto"] == min(makespans.values())
    assert makespans["loop"] > makespans["auto"]


def test_placement_auto_says_what_it_left_out() -> None:
    """A pattern that does not fit in memory is left out with its reason."""
    document = two_sites(stages=4)
    for index, static in enumerate((1000, 0, 0, 1000)):
        document["stages"][index]["static_bytes"] = static
    for device in document["devices"]:
        device["memory_bytes"] = 1500
    compiled = compile_profile(profile_of(document), SolveOptions(placement="auto"))
    refused = [str(warning) for warning in compiled.result.warnings if warning.code == "placement-refused"]
    assert len(refused) == 1
    assert refused[0].startswith('warning: placement wave was left out: device "g0" needs')


@pytest.mark.parametrize(
    ("placement", "stages", "message"),
    [
        ("ud", 1, "placement ud needs a stage for each device, got 1 stages on 2 devices"),
        ("loop", 3, "placement loop needs a number of stages that the devices divide, got 3 stages on 2 devices"),
        ("spiral", 2, "unknown placement 'spiral'; known: profile, ud, loop, wave, bidirectional, auto"),
    ],
)
def test_a_placement_that_does_not_apply(placement: str, stages: int, message: str) -> None:
    """A pattern is refused with the numbers that disagree."""
    with pytest.raises(UsageError, match=message):
        compile_profile(profile_of(two_sites(stages=stages)), SolveOptions(placement=placement))


def test_a_plan_is_only_for_its_own_sizes() -> None:
    """A plan and a profile of different sizes cannot be compared; all differences are named."""
    plan = compile_profile(profile_of(two_sites(4))).plan
    with pytest.raises(ProfileError, match="the plan has 4 microbatches, the profile 5") as caught:
        problem_for_plan(plan, profile_of(two_sites(5)))
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["different-size"]


def test_a_plan_costed_on_another_network() -> None:
    """The same program on a slower link takes longer, receives posted where the plan posts them."""
    plan = compile_profile(profile_of(two_sites(6))).plan
    slower = profile_of(two_sites(6, links=[{"between": ["a", "b"], "latency_ms": 5}]))
    assert simulate_plan(plan, problem_for_plan(plan, slower)).makespan_ns > plan.claims.makespan_ns


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1e3, 1e9])
def test_the_unit_does_not_change_the_order(factor: float) -> None:
    """All times scaled from nanoseconds to weeks: the same order, the makespan scaled."""
    base = two_sites(5)
    scaled = json.loads(json.dumps(base))
    for stage in scaled["stages"]:
        for name in ("forward_ms", "input_grad_ms", "weight_grad_ms"):
            stage[name] *= factor
    scaled["links"][0]["latency_ms"] *= factor
    first, second = compile_profile(profile_of(base)), compile_profile(profile_of(scaled))
    assert first.result.schedule == second.result.schedule
    assert second.result.makespan_ns == round(first.result.makespan_ns * factor)


def test_byte_scaling_does_not_change_the_plan() -> None:
    """Memory and capacity scaled together give the same order."""
    base, scaled = two_sites(5), two_sites(5)
    for document, factor in ((base, 1), (scaled, 1000)):
        for stage in document["stages"]:
            for name in ("activation_bytes", "held_for_weight_grad_bytes", "output_bytes"):
                stage[name] *= factor
        for device in document["devices"]:
            device["memory_bytes"] = 320 * factor
    assert compile_profile(profile_of(base)).result.schedule == compile_profile(profile_of(scaled)).result.schedule


def test_bytes_do_not_depend_on_the_interpreter() -> None:
    """Two interpreters with different hash seeds write the same plan, byte for byte."""
    script = (
        "import json, sys\n"
        "from cpipe.compiler import compile_profile\n"
        "from cpipe.plan import encode_plan\n"
        "from cpipe.profile import parse_profile\n"
        "sys.stdout.buffer.write(encode_plan(compile_profile(parse_profile(sys.stdin.buffer.read(), '-')).plan))\n"
    )
    document = two_sites(5, stages=4)
    for device in document["devices"]:
        device["memory_bytes"] = 460
    data = json.dumps(document).encode()
    digests = set()
    for seed in ("0", "1", "12345"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], input=data, capture_output=True, check=True, cwd=ROOT, env=environment
        )
        digests.add(hashlib.sha256(done.stdout).hexdigest())
    assert len(digests) == 1
    assert digests == {hashlib.sha256(encode_plan(compile_profile(profile_of(document)).plan)).hexdigest()}


def test_more_memory_and_less_latency_never_hurt_a_proven_optimum() -> None:
    """The optimum falls, or stays, as memory grows; it grows, or stays, with the latency."""
    by_memory = []
    for memory in (130, 230, 330, 430):
        document = two_sites(4)
        for device in document["devices"]:
            device["memory_bytes"] = memory
        compiled = compile_profile(profile_of(document))
        assert compiled.result.status == "optimal"
        by_memory.append(compiled.result.makespan_ns)
    assert by_memory == sorted(by_memory, reverse=True)
    by_latency = [
        compile_profile(profile_of(two_sites(4, links=[{"between": ["a", "b"], "latency_ms": latency}]))).result
        for latency in (0, 1, 2, 4)
    ]
    assert all(result.status == "optimal" for result in by_latency)
    assert [result.makespan_ns for result in by_latency] == sorted(result.makespan_ns for result in by_latency)
