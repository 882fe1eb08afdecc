"""Tests of profiles in both directions: two flows, two copies of every stage."""

from __future__ import annotations

from typing import Any

import pytest
from flow_problems import flow_document, flow_problem, flow_profile
from msgspec.structs import replace

from cpipe.errors import InfeasibleError, ProfileError, UsageError
from cpipe.ir import InvariantError, Problem
from cpipe.plan import problem_digest
from cpipe.profile import normalize


def test_shape_of_two_flows() -> None:
    """Each flow has all stages and half of the microbatches; the second stands on the devices in reverse."""
    problem = flow_problem(flow_document(4, 6))
    assert (problem.num_stages, problem.microbatches, problem.flows) == (8, 3, (0, 4))
    assert problem.placement == (0, 1, 2, 3, 3, 2, 1, 0)
    assert [stage.name for stage in problem.stages] == ["s0", "s1", "s2", "s3"] * 2
    assert problem.forward_hops[3] is problem.backward_hops[3] is None
    hop = problem.forward_hops[4]
    assert hop is not None and (hop.source, hop.target) == (3, 2)
    assert [problem.copies_of(stage) for stage in (1, 5)] == [(1, 5), (1, 5)]


def test_neighbours_end_with_the_flow() -> None:
    """No stage has a neighbour in the other flow."""
    problem = flow_problem(flow_document(2, 2))
    assert [problem.previous_stage(stage) for stage in range(4)] == [None, 0, None, 2]
    assert [problem.next_stage(stage) for stage in range(4)] == [1, None, 3, None]
    assert [problem.stages_of_flow(0, first) for first in problem.flows] == [(0,), (3,)]


def test_one_flow_is_the_default() -> None:
    """An ordinary problem has one flow, says nothing of it in its digest, and its stages are their only copies."""
    problem = normalize(flow_profile(flow_document(3, 2)))
    assert (problem.flows, problem.flow_length, problem.copies_of(2)) == ((0,), 3, (2,))
    assert problem.is_plain and not flow_problem(flow_document(2, 2)).is_plain
    assert problem_digest(problem) == problem_digest(replace(problem, flows=(0,)))
    assert problem_digest(flow_problem(flow_document(2, 2))) != problem_digest(
        normalize(flow_profile(flow_document(2, 2)))
    )


@pytest.mark.parametrize(("size", "expected_ms"), [(0, 0.0), (1_000_000, 2 * 3 + 0.5)])
def test_cost_of_adding_up_copies(size: int, expected_ms: float) -> None:
    """A ring of two over the link between the copies costs 2 alpha + beta x bytes; without bytes, nothing."""
    problem = flow_problem(flow_document(2, 2, latency_ms=3, gradient_bytes=size))
    assert [stage.reduce_ns for stage in problem.stages] == [round(expected_ms * 1e6)] * 4
    assert problem.collectives is not None
    assert (problem.collectives.mode, problem.collectives.replicas) == ("ddp", 1)


def test_slower_direction_counts() -> None:
    """Links may differ by direction: an all-reduce takes as long as over the slower one."""
    document = flow_document(2, 2, gradient_bytes=8)
    document["links"] = [
        {"from": "g0", "to": "g1", "latency_ms": 1, "beta_ns_per_byte": 0},
        {"from": "g1", "to": "g0", "latency_ms": 4, "beta_ns_per_byte": 1},
    ]
    assert flow_problem(document).stages[0].reduce_ns == 2 * 4_000_000 + 8


def test_replicas_and_copies_are_one_reduction() -> None:
    """With data parallelism the all-reduces over replicas and between copies follow each other as one op."""
    document = flow_document(2, 2, latency_ms=3, gradient_bytes=1_000_000, all_reduce_ms=10)
    document["data_parallel"] = {"mode": "ddp", "replicas": 4}
    problem = flow_problem(document)
    assert {stage.reduce_ns for stage in problem.stages} == {10_000_000 + 6_500_000}
    assert problem.collectives is not None and problem.collectives.replicas == 4


def test_static_memory_doubles() -> None:
    """A device holds both of its copies' static bytes."""
    document = flow_document(2, 2, static_bytes=100, activation_bytes=0)
    document["devices"][0]["memory_bytes"] = 150
    normalize(flow_profile(document))
    with pytest.raises(InfeasibleError, match=r"device 'g0' needs 200 bytes for one microbatch|g0.*200 bytes"):
        normalize(flow_profile(document), flows=2)


def test_least_memory_is_of_one_flow_at_a_time() -> None:
    """A device need not hold a microbatch of both flows at once: that is no proof that nothing fits."""
    document = flow_document(2, 2, activation_bytes=10)
    for device in document["devices"]:
        device["memory_bytes"] = 10
    assert normalize(flow_profile(document), flows=2).devices[0].capacity_bytes == 10
    document["devices"][1]["memory_bytes"] = 9
    with pytest.raises(InfeasibleError, match="g1"):
        normalize(flow_profile(document), flows=2)


def _odd(document: dict[str, Any]) -> None:
    document["microbatches"] = 3


def _sharded(document: dict[str, Any]) -> None:
    document["data_parallel"] = {"mode": "zero1", "replicas": 2}


def _meeting(document: dict[str, Any]) -> None:
    document["devices"].append({"id": "g2"})
    document["stages"].insert(1, document["stages"][0] | {"id": "m", "device": "g2"})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_odd, r"\$\.microbatches: two flows need an even number of microbatches, got 3 \[flows-microbatches\]"),
        (_sharded, r"two flows need data parallelism of mode ddp, got zero1 \[flows-data-parallel\]"),
        (_meeting, r"both copies of ['\"]m['\"] would stand on the device ['\"]g2['\"].*\[flows-placement\]"),
    ],
)
def test_refused_profiles(change: Any, line: str) -> None:
    """What two flows cannot do is said, with the field and the value."""
    document = flow_document(2, 2)
    change(document)
    with pytest.raises(UsageError, match=line):
        normalize(flow_profile(document), flows=2)


def test_refused_calls() -> None:
    """There are one or two flows; a placement lists the stages of both."""
    profile = flow_profile(flow_document(2, 2))
    with pytest.raises(UsageError, match=r"expected 1 or 2 flows, got 3 \[flows\]"):
        normalize(profile, flows=3)
    with pytest.raises(UsageError, match=r"expected a device for each of 4 stages of two flows, got 2 \[placement-len"):
        normalize(profile, flows=2, placement=(0, 1))
    with pytest.raises(UsageError, match=r"device index below 2 for stage 3, got 5 \[placement-device\]"):
        normalize(profile, flows=2, placement=(0, 1, 1, 5))
    assert normalize(profile, flows=2, placement=(1, 0, 0, 1)).placement == (1, 0, 0, 1)


def test_copies_must_be_linked() -> None:
    """Copies on two sites need a link between them, though no stage boundary crosses it."""
    document = flow_document(2, 2)
    document["links"] = []
    document["devices"][0]["site"] = "a"
    document["devices"][1]["site"] = "b"
    with pytest.raises(ProfileError, match=r"no link joins site 'a' and site 'b'|no link joins"):
        normalize(flow_profile(document), flows=2)
    alone = flow_document(4, 2)
    alone["links"] = []
    for device, site in zip(alone["devices"], "abba", strict=True):
        device["site"] = site
    alone["links"] = [{"between": ["a", "b"]}]
    assert flow_problem(alone).flows == (0, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flows": (0, 1)}, r"flows is \(0, 1\), expected \(0, 2\)"),
        ({"flows": ()}, r"flows is \(\)"),
        ({"flows": (0, 1, 2)}, r"flows is \(0, 1, 2\)"),
        ({"collectives": None}, "copies of stages need an all-reduce"),
    ],
)
def test_wrong_flows_are_refused(fields: dict[str, Any], message: str) -> None:
    """Flows are equally long, and their copies' gradients are added up."""
    with pytest.raises(InvariantError, match=message):
        replace(flow_problem(flow_document(2, 2)), **fields).verify()


def test_wrong_copies_are_refused() -> None:
    """Copies stand on different devices, cost the same to reduce, and no hop joins two flows."""
    problem = flow_problem(flow_document(2, 2))

    def with_stage(index: int, **fields: Any) -> Problem:
        stages = list(problem.stages)
        stages[index] = replace(stages[index], **fields)
        return replace(problem, stages=tuple(stages))

    with pytest.raises(InvariantError, match=r"copies \(0, 2\) do not stand on different devices"):
        with_stage(2, device=0).verify()
    with pytest.raises(InvariantError, match="copies 1 and 3 reduce at different costs"):
        with_stage(3, reduce_ns=1).verify()
    hops = (problem.forward_hops[0], problem.forward_hops[0], problem.forward_hops[2])
    with pytest.raises(InvariantError, match=r"forward_hops\[1\] joins two flows"):
        replace(problem, forward_hops=hops).verify()


def test_pair_times_of_a_profile() -> None:
    """`forward_backward_ms` is read in ms, absent by default, and at least the forward alone."""
    document = flow_document(2, 2, forward_backward_ms=1.5)
    assert {stage.forward_backward_ns for stage in normalize(flow_profile(document)).stages} == {1_500_000}
    assert normalize(flow_profile(flow_document(2, 2))).stages[0].forward_backward_ns is None
    document["stages"][1]["forward_backward_ms"] = 0.5
    message = r"\$\.stages\[1\]\.forward_backward_ms: a forward with a backward cannot take less than the forward alone"
    with pytest.raises(ProfileError, match=message + r", 1 ms \[pair-too-short\]"):
        flow_profile(document)
