"""Which link a message takes: devices before sites, shared pipes between sites, free connections inside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sample_profiles import encoded

from cpipe.ir.problem import Hop, Problem
from cpipe.profile import normalize, parse_profile
from cpipe.units import Bytes, Ns

SITES = {"g0": "a", "g1": "a", "g2": "b", "g3": "b"}


def problem_of(links: list[dict[str, Any]], placement: list[str], sites: dict[str, str] = SITES) -> Problem:
    """Return the problem of stages that each send 1000 bytes, on the devices named in `placement`."""
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": 2,
        "devices": [{"id": name, "site": site} if site else {"id": name} for name, site in sites.items()],
        "stages": [
            {"id": f"s{index}", "device": device, "forward_ms": 1, "full_backward_ms": 1, "output_bytes": 1000}
            for index, device in enumerate(placement)
        ],
        "links": links,
    }
    problem = normalize(parse_profile(encoded(document), "f.json"))
    problem.verify()
    return problem


def hops(problem: Problem) -> list[tuple[str, int, int]]:
    """Return (pipe, latency, occupancy) of each hop, boundary by boundary, the activation before the gradient."""
    both = [hop for pair in zip(problem.forward_hops, problem.backward_hops, strict=True) for hop in pair]
    return [(problem.pipes[hop.pipe], hop.latency_ns, hop.occupancy_ns) for hop in both if hop is not None]


SLOW: dict[str, Any] = {"between": ["a", "b"], "latency_ms": 1, "beta_ns_per_byte": 2}


def test_inside_a_site_is_free() -> None:
    """Devices of one site reach each other at no cost, each pair on a pipe of its own."""
    assert hops(problem_of([], ["g0", "g1"])) == [("g0->g1", 0, 0), ("g1->g0", 0, 0)]


def test_devices_without_a_site_share_one() -> None:
    """Where no sites are named, everything is one site."""
    problem = problem_of([], ["x", "y"], {"x": "", "y": ""})
    assert hops(problem) == [("x->y", 0, 0), ("y->x", 0, 0)]


def test_one_device_needs_no_pipe() -> None:
    """A hand-over inside a device is no message."""
    problem = problem_of([], ["g0", "g0", "g0"])
    assert (problem.forward_hops, problem.backward_hops, problem.pipes) == ((None, None), (None, None), ())


def test_sites_share_one_pipe_per_direction() -> None:
    """Whatever the devices, messages between two sites meet on the site's link, directions apart."""
    problem = problem_of([SLOW], ["g0", "g2", "g1", "g3"])
    assert problem.pipes == ("a->b", "b->a")
    assert hops(problem) == [
        ("a->b", 1_000_000, 2000),
        ("b->a", 1_000_000, 2000),  # s0 <-> s1
        ("b->a", 1_000_000, 2000),
        ("a->b", 1_000_000, 2000),  # s1 <-> s2, flow turns round
        ("a->b", 1_000_000, 2000),
        ("b->a", 1_000_000, 2000),  # s2 <-> s3
    ]


@pytest.mark.parametrize("ends", [["a", "b"], ["b", "a"]])
def test_half_duplex_is_one_pipe(ends: list[str]) -> None:
    """Both directions of a half-duplex link take turns, whichever end the file names first."""
    problem = problem_of([{**SLOW, "between": ends, "duplex": "half"}], ["g0", "g2", "g1"])
    assert problem.pipes == ("a<->b",)
    assert {hop[0] for hop in hops(problem)} == {"a<->b"}


def test_device_pair_beats_site_pair() -> None:
    """A link between two devices is theirs alone; other devices of the sites keep to the sites' link."""
    own = {"between": ["g2", "g0"], "latency_ms": 5, "bandwidth_gbit_s": 8}
    problem = problem_of([SLOW, own], ["g0", "g2", "g1"])
    assert hops(problem) == [
        ("g0->g2", 5_000_000, 1000),
        ("g2->g0", 5_000_000, 1000),
        ("b->a", 1_000_000, 2000),
        ("a->b", 1_000_000, 2000),
    ]


def test_one_way_link_leaves_the_other_way_alone() -> None:
    """A link from one device to another says nothing of the way back."""
    problem = problem_of([SLOW, {"from": "g0", "to": "g2", "latency_ms": 5}], ["g0", "g2"])
    assert hops(problem) == [("g0->g2", 5_000_000, 0), ("b->a", 1_000_000, 2000)]
    inside = problem_of([{"from": "g1", "to": "g0", "latency_ms": 5}], ["g0", "g1"])
    assert hops(inside) == [("g0->g1", 0, 0), ("g1->g0", 5_000_000, 0)]


def test_two_one_way_links_make_a_pair() -> None:
    """Directions between sites may differ in cost."""
    there, back = {"from": "a", "to": "b", "latency_ms": 1}, {"from": "b", "to": "a", "latency_ms": 2}
    assert hops(problem_of([back, there], ["g0", "g2"])) == [("a->b", 1_000_000, 0), ("b->a", 2_000_000, 0)]


def test_devices_join_unlinked_sites() -> None:
    """A link between two devices suffices for a boundary between them, though their sites have none."""
    assert hops(problem_of([{"between": ["g1", "g2"], "latency_ms": 1}], ["g0", "g1", "g2"])) == [
        ("g0->g1", 0, 0),
        ("g1->g0", 0, 0),
        ("g1->g2", 1_000_000, 0),
        ("g2->g1", 1_000_000, 0),
    ]


def test_site_with_itself_is_the_default_inside() -> None:
    """A link of a site with itself prices each pair of its devices, on a pipe of their own."""
    inside = {"between": ["a", "a"], "latency_ms": 3, "beta_ns_per_byte": 1}
    sites = {"g0": "a", "g1": "a", "g2": "a"}
    problem = problem_of([inside], ["g0", "g1", "g2"], sites)
    assert problem.pipes == ("g0->g1", "g1->g0", "g1->g2", "g2->g1")
    assert set(hops(problem)) == {(pipe, 3_000_000, 1000) for pipe in problem.pipes}
    problem = problem_of([{**inside, "duplex": "half"}], ["g0", "g1", "g2", "g1"], sites)
    assert problem.pipes == ("g0<->g1", "g1<->g2")


def test_pipes_stand_in_order_of_first_use() -> None:
    """Pipes are numbered by the stage boundary that first uses them; unused links have none."""
    links = [{"between": ["g3", "g2"], "latency_ms": 1}, SLOW, {"between": ["b", "b"]}]
    assert problem_of(links, ["g2", "g0", "g1"]).pipes == ("b->a", "a->b", "g0->g1", "g1->g0")


def test_bandwidth_and_beta_agree() -> None:
    """8 / bandwidth [Gbit/s] is beta [ns/byte]: 100 Gbit/s are 0.08 ns a byte, exactly."""
    (forward, _) = hops(problem_of([{"between": ["a", "b"], "bandwidth_gbit_s": 100}], ["g0", "g2"]))
    assert forward == hops(problem_of([{"between": ["a", "b"], "beta_ns_per_byte": 0.08}], ["g0", "g2"]))[0]
    assert forward == ("a->b", 0, 80)


def test_gradient_is_as_large_as_the_activation() -> None:
    """The gradient that comes back over a boundary has the size of the activation that went over it."""
    problem = problem_of([SLOW], ["g0", "g2"])
    there = Hop(source=0, target=2, pipe=0, message_bytes=Bytes(1000), latency_ns=Ns(1_000_000), occupancy_ns=Ns(2000))
    assert problem.forward_hops == (there,)
    assert problem.backward_hops == (msgspec.structs.replace(there, source=2, target=0, pipe=1),)
