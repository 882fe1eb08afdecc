"""From users' units to the problem: durations, defaults, placement and digests."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

import pytest
from sample_profiles import BASE, Edits, edited, encoded

from cpipe.errors import InfeasibleError, ProfileError, UsageError
from cpipe.ir.problem import Collectives, Device, Problem, Stage
from cpipe.profile import normalize, parse_profile
from cpipe.profile.collectives import ring_ns
from cpipe.units import Bytes, Ns


def problem_of(edits: Edits | None = None, **options: Any) -> Problem:
    """Return the problem of the edited base profile, verified."""
    problem = normalize(parse_profile(encoded(edited(edits or {})), "f.json"), **options)
    problem.verify()
    return problem


def test_every_number_of_a_stage_is_translated() -> None:
    """Durations become nanoseconds, sizes stay bytes, ids become indices."""
    edits = {
        "$.data_parallel": ...,
        "$.stages[0].full_backward_ms": 2.75,
        "$.stages[0].static_bytes": 1,
        "$.stages[0].forward_transient_bytes": 2,
        "$.stages[0].input_grad_transient_bytes": 3,
        "$.stages[0].weight_grad_transient_bytes": 4,
    }
    problem = problem_of(edits)
    assert problem.stages[0] == Stage(
        name="s0",
        device=0,
        forward_ns=Ns(2_500_000),
        input_grad_ns=Ns(2_000_000),
        weight_grad_ns=Ns(1_000_000),
        full_backward_ns=Ns(2_750_000),
        can_split=True,
        activation_bytes=Bytes(20),
        held_bytes=Bytes(10),
        static_bytes=Bytes(1),
        forward_transient_bytes=Bytes(2),
        input_grad_transient_bytes=Bytes(3),
        weight_grad_transient_bytes=Bytes(4),
    )
    assert problem.devices[0] == Device(name="g0", site="dc-a", capacity_bytes=Bytes(1000))
    assert (problem.name, problem.microbatches, problem.collectives) == ("base", 4, None)


def test_full_backward_defaults_to_both_halves() -> None:
    """Where only D and W were measured, B takes as long as the two."""
    stage = problem_of().stages[0]
    assert (stage.full_backward_ns, stage.can_split) == (3_000_000, True)


def test_full_backward_alone_cannot_be_split() -> None:
    """Where only B was measured there are no D and W."""
    stage = problem_of().stages[1]
    assert (stage.can_split, stage.input_grad_ns, stage.weight_grad_ns, stage.full_backward_ns) == (
        False,
        0,
        0,
        6_000_000,
    )


def test_stage_without_input_gradient_can_be_split() -> None:
    """The first stage has D = 0 and a W of the whole backward; that is a split, not a missing one."""
    stage = problem_of({"$.stages[0].input_grad_ms": 0, "$.stages[0].weight_grad_ms": 3}).stages[0]
    assert (stage.can_split, stage.input_grad_ns, stage.full_backward_ns) == (True, 0, 3_000_000)


def test_decimal_digits_are_taken_exactly() -> None:
    """38.7 ms are 38 700 000 ns though the binary float is not; a half rounds to even."""
    edits = {"$.stages[0].forward_ms": 38.7, "$.stages[1].forward_ms": 0.0000005, "$.links[0].latency_ms": 0.1}
    problem = problem_of(edits)
    assert [stage.forward_ns for stage in problem.stages] == [38_700_000, 0]
    assert problem.forward_hops[0] is not None
    assert problem.forward_hops[0].latency_ns == 100_000


def test_absent_held_bytes_are_none_held() -> None:
    """Nothing is held between D and W unless the profile says so."""
    assert problem_of({"$.stages[0].held_for_weight_grad_bytes": ...}).stages[0].held_bytes == 0


def test_no_limit_without_memory() -> None:
    """A device without `memory_bytes` has no limit."""
    assert problem_of({"$.devices[0].memory_bytes": ...}).devices[0].capacity_bytes is None


def test_placement_moves_stages() -> None:
    """A placement replaces the devices of the profile; neighbours on one device exchange no message."""
    problem = problem_of(placement=[1, 1])
    assert problem.placement == (1, 1)
    assert (problem.forward_hops, problem.backward_hops, problem.pipes) == ((None,), (None,), ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": [0]}, r"expected a device for each of 2 stages, got 1 \[placement-length\]"),
        ({"placement": [0, 2]}, r"expected a device index below 2 for stage 1, got 2 \[placement-device\]"),
        ({"placement": [-1, 0]}, r"expected a device index below 2 for stage 0, got -1 \[placement-device\]"),
        ({"receive_window": 0}, r"expected a receive window >= 1, got 0 \[receive-window\]"),
    ],
)
def test_options_fit_the_profile(options: dict[str, Any], message: str) -> None:
    """A placement names a device for each stage, and a window holds at least one receive."""
    with pytest.raises(UsageError, match=message):
        problem_of(**options)


def test_placement_needs_links_too() -> None:
    """A placement that crosses sites which no link joins is refused."""
    edits = {"$.links": [], "$.stages[1].device": "g0"}
    assert problem_of(edits).pipes == ()
    with pytest.raises(ProfileError, match=r'no link joins site "dc-a" and site "dc-b".*\[unlinked-sites\]'):
        problem_of(edits, placement=[0, 1])


def test_placement_cannot_overflow() -> None:
    """A placement that meets an absurdly slow link is refused before its times leave 64 bits."""
    edits = {"$.links[0].bandwidth_gbit_s": 1e-300, "$.stages[1].device": "g0"}
    assert problem_of(edits).pipes == ()
    with pytest.raises(ProfileError, match=r"\[total-time-too-large\]"):
        problem_of(edits, placement=[0, 1])


def test_receive_window_is_passed_on() -> None:
    """The window is part of the problem when asked for."""
    assert problem_of().receive_window is None
    assert problem_of(receive_window=2).receive_window == 2


def test_extensions_leave_a_digest_only() -> None:
    """The problem holds a digest of the extensions, the same whatever the order of their keys."""
    expected = "sha256:" + hashlib.sha256('{"a":"é","b":[1,2.5]}'.encode()).hexdigest()
    assert problem_of({"$.extensions": {"b": [1, 2.5], "a": "é"}}).extensions_digest == expected
    assert problem_of({"$.extensions": {"a": "é", "b": [1, 2.5]}}).extensions_digest == expected
    assert problem_of({"$.extensions": {}}).extensions_digest == ""
    assert problem_of().extensions_digest == ""


def test_normalize_is_pure() -> None:
    """The same profile gives an equal problem each time, and is not changed by it."""
    profile = parse_profile(encoded(BASE), "f.json")
    assert normalize(profile, placement=[1, 0]) != normalize(profile)
    assert normalize(profile) == normalize(profile)
    assert profile == parse_profile(encoded(BASE), "f.json")


# --- data parallelism ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "replicas", "rounds", "expected"),
    [
        (1000, 1, 1, 0),  # one replica exchanges nothing
        (1000, 1, 2, 0),
        (1000, 2, 1, 7 + 1000),  # one step moves half of the bytes at 2 ns each
        (1000, 2, 2, 14 + 2000),  # CrossPipe, appendix E: 2 alpha + bytes x beta
        (1000, 4, 1, 21 + 1500),
        (1000, 4, 2, 42 + 3000),
        (0, 8, 1, 49),  # latency alone
        (1, 3, 1, 14 + 1),  # 4/3 of a nanosecond, rounded once
    ],
)
def test_ring_formula(num_bytes: int, replicas: int, rounds: int, expected: int) -> None:
    """A ring of r replicas takes (r - 1) alpha + (r - 1) / r N beta for each round."""
    assert ring_ns(num_bytes, replicas, latency_ns=7, beta=Fraction(2), rounds=rounds) == expected


DERIVED = {"$.stages[0].parameter_bytes": 1000, "$.stages[0].gradient_bytes": 2000}


@pytest.mark.parametrize(
    ("job", "edits", "gather_ns", "reduce_ns"),
    [
        # derived from bytes: alpha 1 ms, beta 8 / 0.008 = 1000 ns a byte, two replicas
        ({"mode": "zero1", "replicas": 2}, {}, 1_000_000 + 500_000, 1_000_000 + 1_000_000),
        ({"mode": "ddp", "replicas": 2}, {}, 0, 2_000_000 + 2_000_000),
        # measured times win, each for itself
        (
            {"mode": "zero1", "replicas": 2},
            {"$.stages[0].all_gather_ms": 0, "$.stages[0].reduce_scatter_ms": 9.5},
            0,
            9_500_000,
        ),
        ({"mode": "zero1", "replicas": 2}, {"$.stages[0].reduce_scatter_ms": 9}, 1_500_000, 9_000_000),
        ({"mode": "ddp", "replicas": 2}, {"$.stages[0].all_reduce_ms": 7}, 0, 7_000_000),
        # a time of the other mode does not count
        ({"mode": "ddp", "replicas": 2}, {"$.stages[0].all_gather_ms": 5}, 0, 4_000_000),
    ],
)
def test_collective_times(job: dict[str, Any], edits: Edits, gather_ns: int, reduce_ns: int) -> None:
    """ZeRO-1 gathers parameters and scatters gradients, DDP reduces; measured times win over bytes."""
    problem = problem_of({"$.data_parallel": {"latency_ms": 1, "bandwidth_gbit_s": 0.008, **job}, **DERIVED, **edits})
    assert (problem.stages[0].all_gather_ns, problem.stages[0].reduce_ns) == (gather_ns, reduce_ns)
    assert problem.collectives == Collectives(mode=job["mode"], replicas=job["replicas"])


def test_one_replica_exchanges_nothing() -> None:
    """A replica alone runs no collectives, measured or not, and the link that they would share is not theirs."""
    job = {"mode": "zero1", "replicas": 1, "contends_with": ["dc-a", "dc-b"]}
    problem = problem_of({"$.data_parallel": job, "$.stages[0].all_gather_ms": 5, "$.stages[1].device": "g0"})
    assert (problem.collectives, problem.pipes) == (None, ())
    assert (problem.stages[0].all_gather_ns, problem.stages[0].reduce_ns) == (0, 0)


def test_collectives_count_in_the_total_time() -> None:
    """Collectives that alone would leave 62 bits of nanoseconds are refused, like any other duration."""
    edits = {"$.data_parallel.latency_ms": 1e12, "$.data_parallel.replicas": 1_000_000}
    with pytest.raises(ProfileError, match=r"one iteration could take 4e\+18 ms, more .* \[total-time-too-large\]"):
        problem_of(edits)


def test_times_beyond_any_float_are_told() -> None:
    """A bandwidth so small that no float holds the time of a message is refused with that time."""
    expected = r"one iteration could take 5\.12000e\+316 ms, more than the 4\.61169e\+12 ms allowed"
    with pytest.raises(ProfileError, match=expected):
        problem_of({"$.links[0].bandwidth_gbit_s": 1e-320})


def test_memory_need_not_suffice_for_a_given_schedule() -> None:
    """Without the proof about memory a profile is translated all the same, so that a plan can be held against it."""
    edits = {"$.devices[0].memory_bytes": 1}
    with pytest.raises(InfeasibleError, match=r"\[memory-too-small\]"):
        problem_of(edits)
    assert problem_of(edits, prove_memory=False).devices[0].capacity_bytes == 1


def test_without_data_parallelism_times_are_unused() -> None:
    """Measured collectives of a job without data parallelism take no time."""
    problem = problem_of({"$.data_parallel": ..., "$.stages[0].all_reduce_ms": 5})
    assert (problem.collectives, problem.stages[0].reduce_ns) == (None, 0)


@pytest.mark.parametrize(
    ("edits", "pipes", "shared"),
    [
        # both directions of a full-duplex link, whichever end is named first
        ({"$.data_parallel.contends_with": ["dc-a", "dc-b"]}, ("dc-a->dc-b", "dc-b->dc-a"), (0, 1)),
        ({"$.data_parallel.contends_with": ["dc-b", "dc-a"]}, ("dc-a->dc-b", "dc-b->dc-a"), (1, 0)),
        # one pipe of a half-duplex link
        ({"$.data_parallel.contends_with": ["dc-b", "dc-a"], "$.links[0].duplex": "half"}, ("dc-a<->dc-b",), (0,)),
        # a link that no stage boundary uses, in one direction only
        (
            {"$.data_parallel.contends_with": ["g1", "g0"], "$.links[1]": {"from": "g1", "to": "g0"}},
            ("dc-a->dc-b", "g1->g0"),
            (1,),
        ),
        (
            {"$.data_parallel.contends_with": ["dc-a", "dc-b"], "$.stages[1].device": "g0"},
            ("dc-a->dc-b", "dc-b->dc-a"),
            (0, 1),
        ),
    ],
)
def test_contention_names_pipes(edits: Edits, pipes: tuple[str, ...], shared: tuple[int, ...]) -> None:
    """Collectives that share a link occupy its pipe in each direction that it has."""
    problem = problem_of(edits)
    assert problem.collectives is not None
    assert (problem.pipes, problem.collectives.pipes) == (pipes, shared)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_static_memory_that_does_not_fit_names_the_device() -> None:
    """Field case: a V placement puts both heavy stages on device 0; static memory alone exceeds it."""
    stages = [
        {
            "id": f"s{index}",
            "device": f"g{device}",
            "forward_ms": 1,
            "input_grad_ms": 1,
            "weight_grad_ms": 1,
            "activation_bytes": 1,
            "static_bytes": static,
        }
        for index, (device, static) in enumerate(zip([0, 1, 1, 0], [10, 2, 2, 10], strict=True))
    ]
    devices = [{"id": "g0", "memory_bytes": 18}, {"id": "g1", "memory_bytes": 18}]
    edits = {"$.devices": devices, "$.stages": stages, "$.links": []}
    with pytest.raises(InfeasibleError, match="memory-too-small") as caught:
        problem_of(edits)
    assert list(map(str, caught.value.diagnostics)) == [
        'error: $.devices[0].memory_bytes: device "g0" needs 22 bytes for one microbatch (static 20, activations 2, '
        "receive buffers 0) and has 18, short by 4 [memory-too-small]"
    ]
    assert problem_of(edits, placement=[0, 1, 0, 1]).placement == (0, 1, 0, 1)


def test_every_device_that_is_short_is_named() -> None:
    """All devices that cannot hold a microbatch are told at once, receive buffers counted."""
    edits = {
        "$.devices[0].memory_bytes": 27,  # 20 of activation and one gradient of 8
        "$.devices[1].memory_bytes": 7,  # one received activation of 8
    }
    with pytest.raises(InfeasibleError, match="memory-too-small") as caught:
        problem_of(edits)
    assert [fault.message for fault in caught.value.diagnostics] == [
        'device "g0" needs 28 bytes for one microbatch (static 0, activations 20, receive buffers 8) and has 27, '
        "short by 1",
        'device "g1" needs 8 bytes for one microbatch (static 0, activations 0, receive buffers 8) and has 7, '
        "short by 1",
    ]
    problem_of({"$.devices[0].memory_bytes": 28, "$.devices[1].memory_bytes": 8})


@pytest.mark.parametrize(("capacity", "fits"), [(4, False), (5, True)])
def test_transient_of_the_backward_counts(capacity: int, fits: bool) -> None:
    """Field case: with recomputation memory rises inside D; F takes 1 and D 4 more, so 4 do not suffice and 5 do."""
    stage = {
        "id": "s0",
        "device": "g0",
        "forward_ms": 1,
        "input_grad_ms": 1,
        "weight_grad_ms": 1,
        "activation_bytes": 1,
        "input_grad_transient_bytes": 4,
    }
    edits = {"$.devices": [{"id": "g0", "memory_bytes": capacity}], "$.stages": [stage], "$.links": []}
    if fits:
        problem_of(edits)
    else:
        with pytest.raises(InfeasibleError, match=r"needs 5 bytes .* and has 4, short by 1"):
            problem_of(edits)
