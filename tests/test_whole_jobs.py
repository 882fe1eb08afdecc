"""Every static schedule on jobs of every kind: placements, sites, links, data parallelism; whole plans are checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest
from helpers import assert_plan_ok
from hypothesis import given, settings
from hypothesis import strategies as st

from cpipe.compiler import SolveOptions, compile_profile
from cpipe.errors import InfeasibleError, NoSolutionError, UsageError
from cpipe.profile import parse_profile
from cpipe.profile.schema import Profile
from cpipe.schedules import SCHEDULES
from cpipe.schedules.placements import line_placement, loop_placement, wave_placement

LINES = ("gpipe", "1f1b", "1f1b-split", "zb-h1", "zb-h2")
LOOPS = ("interleaved-1f1b", "interleaved-zb", "looped-bfs")
VS = ("zb-v", "v-half", "v-min", "dualpipe-v")
WAVES = ("hanayo",)
FLOWS = ("chimera", "dualpipe")

MS = st.sampled_from([0, 0.5, 1, 1, 2, 3.25])
SIZES = st.integers(0, 4)
COSTS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {"latency_ms": 3}, {"bandwidth_gbit_s": 8e-6}, {"latency_ms": 0.5, "beta_ns_per_byte": 400_000.0}]
)


@st.composite
def jobs(draw: st.DrawFn, name: str) -> Profile:
    """Draw a job of at most 4 devices and 6 microbatches that has the shape the schedule `name` asks for."""
    p = draw(st.sampled_from([4, 3, 2, 2, 1]))
    n = draw(st.integers(1, 6))
    if name in FLOWS:
        p, n = 2 * max(1, p // 2), 2 * (n + 3)
    elif name == "dualpipe-v":
        n += 2 * p
    placement = draw(placements(name, p))
    sites = draw(site_layouts(p))
    links = draw(site_links(sites))
    memory = draw(st.sampled_from([None, None, 60, 200]))
    document: dict[str, Any] = {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": n,
        "devices": [
            {"id": f"g{index}", "site": site} | ({} if memory is None else {"memory_bytes": memory})
            for index, site in enumerate(sites)
        ],
        "stages": [draw(stages(index, device, SCHEDULES[name].splits)) for index, device in enumerate(placement)],
        "links": links,
        "step_ms": draw(st.sampled_from([0, 0, 1.5])),
    }
    mode = draw(st.sampled_from(["ddp", None] if name in FLOWS else ["zero1", "ddp", "zero1", "ddp", None]))
    if mode is not None:
        document["data_parallel"] = draw(data_parallel(mode, links))
    return parse_profile(json.dumps(document).encode(), "job.json")


@st.composite
def placements(draw: st.DrawFn, name: str, p: int) -> tuple[int, ...]:
    """Draw a placement that `name` has a schedule for; the devices of a line or wave may stand in any rank order."""
    ranks = draw(st.permutations(range(p)))
    if name in LOOPS:
        return loop_placement(p * draw(st.integers(2, 3)), p)
    if name in VS:
        return wave_placement(2 * p, p)
    if name in WAVES:
        return wave_placement(2 * p * draw(st.integers(1, 2)), p)
    if name in FLOWS:
        return tuple(ranks)
    return tuple(ranks[device] for device in line_placement([1] * draw(st.integers(p, p + 2)), p))


def site_layouts(p: int) -> st.SearchStrategy[tuple[str, ...]]:
    """Draw the site of each device: 1 to 4 of them, of any sizes, each in one run or spread."""
    return st.sampled_from([tuple(f"dc-{site}" for site in sites) for sites in product(range(p), repeat=p)])


@st.composite
def site_links(draw: st.DrawFn, sites: Sequence[str]) -> list[dict[str, Any]]:
    """Draw a link between any two sites, each of its own costs, and perhaps a default inside one."""
    names = sorted(set(sites))
    links = [
        {"between": list(ends), "duplex": draw(st.sampled_from(["full", "half"])), **draw(COSTS)}
        for ends in combinations(names, 2)
    ]
    if draw(st.booleans()):
        links.append({"between": [names[0], names[0]], **draw(COSTS)})
    return links


@st.composite
def stages(draw: st.DrawFn, index: int, device: int, splits: bool) -> dict[str, Any]:
    """Draw one stage; D and W apart where the schedule needs it."""
    stage: dict[str, Any] = {
        "id": f"s{index}",
        "device": f"g{device}",
        "forward_ms": draw(MS),
        "output_bytes": draw(SIZES),
    }
    if splits or draw(st.booleans()):
        stage |= {"input_grad_ms": draw(MS), "weight_grad_ms": draw(MS)}
    else:
        stage["full_backward_ms"] = draw(MS)
    sizes = ("activation_bytes", "held_for_weight_grad_bytes", "static_bytes", "parameter_bytes", "gradient_bytes")
    stage |= {size: draw(SIZES) for size in sizes}
    if draw(st.booleans()):
        stage |= {name: draw(MS) for name in ("all_gather_ms", "reduce_scatter_ms", "all_reduce_ms")}
    return stage


@st.composite
def data_parallel(draw: st.DrawFn, mode: str, links: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw replicas whose collectives are timed from bytes (where no times are measured) and may share a link."""
    job: dict[str, Any] = {"mode": mode, "replicas": draw(st.sampled_from([2, 3, 2, 1])), **draw(COSTS)}
    shared = [link["between"] for link in links if link["between"][0] != link["between"][1]]
    if shared and draw(st.sampled_from([True, True, False])):
        job["contends_with"] = draw(st.sampled_from(shared))
    return job


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=14)
@given(data=st.data())
def test_every_schedule_on_every_kind_of_job(name: str, data: st.DataObject) -> None:
    """The plan is valid, replays to the same times twice over, and meets no bound from below."""
    profile = data.draw(jobs(name))
    options = SolveOptions(
        method=name,
        placement="bidirectional" if name in FLOWS else "profile",
        receive_window=data.draw(st.sampled_from([None, None, 1, 2])),
        objective=data.draw(st.sampled_from(["makespan", "makespan", "span"])),
    )
    try:
        compiled = compile_profile(profile, options)
    except (InfeasibleError, NoSolutionError) as error:
        assert {fault.code for fault in error.diagnostics} <= {"memory-too-small", "schedule-does-not-fit"}
        return
    except UsageError as error:
        assert {fault.code for fault in error.diagnostics} == {"schedule-does-not-apply"}
        return
    assert_plan_ok(compiled.plan, compiled.problem)
    assert compiled.result.bound.value_ns <= compiled.result.objective_ns


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_a_search_on_every_kind_of_job(data: st.DataObject) -> None:
    """The order that the greedy family finds gives a valid plan, no longer than any static schedule's."""
    profile = data.draw(jobs(data.draw(st.sampled_from(LINES + LOOPS + VS))))
    try:
        compiled = compile_profile(profile, SolveOptions(method="greedy"))
    except InfeasibleError:
        return
    assert_plan_ok(compiled.plan, compiled.problem)
    for name, entry in SCHEDULES.items():
        if entry.flows == 1:
            try:
                static = compile_profile(profile, SolveOptions(method=name))
            except (NoSolutionError, UsageError):
                continue
            assert compiled.result.makespan_ns <= static.result.makespan_ns, name


def test_the_shapes_cover_every_schedule() -> None:
    """A schedule that is added must say which shape it is tried on."""
    assert sorted((*LINES, *LOOPS, *VS, *WAVES, *FLOWS)) == sorted(SCHEDULES)
