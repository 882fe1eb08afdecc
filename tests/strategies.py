"""Hypothesis strategies: small valid profiles as plain dicts, and the problems they normalize to.

Sizes are a few bytes and links cost up to a few milliseconds a byte, so that memory, latency and bandwidth
all matter beside compute times of a few milliseconds.
"""

from __future__ import annotations

import json
from itertools import pairwise, permutations
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from cpipe.errors import InfeasibleError
from cpipe.ir.problem import Problem
from cpipe.profile import normalize, parse_profile

__all__ = ["problems", "profiles"]

_MS = st.one_of(st.integers(0, 6), st.sampled_from([0.5, 1.25, 2.75]))
_LATENCY = st.sampled_from([0, 0, 0.5, 1, 3, 8])
_BYTES = st.integers(0, 4)
_BANDWIDTH: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"beta_ns_per_byte": 0},
        {"beta_ns_per_byte": 250_000.0},
        {"bandwidth_gbit_s": 8e-6},
        {"bandwidth_gbit_s": 2e-6},
    ]
)
_OPTIONAL_SIZES = (
    "activation_bytes",
    "held_for_weight_grad_bytes",
    "static_bytes",
    "forward_transient_bytes",
    "input_grad_transient_bytes",
    "weight_grad_transient_bytes",
    "output_bytes",
    "parameter_bytes",
    "gradient_bytes",
)
_OPTIONAL_TIMES = ("all_gather_ms", "reduce_scatter_ms", "all_reduce_ms")


@st.composite
def profiles(
    draw: st.DrawFn,
    *,
    max_devices: int = 4,
    max_stages: int = 5,
    max_microbatches: int = 5,
    memory: bool = True,
    data_parallel: bool = True,
    step: bool = False,
    offload: bool = False,
) -> dict[str, Any]:
    """Draw a valid profile as the dict its JSON text decodes to.

    Devices may stand on up to two sites, stages on any device (some may stay empty); links are full, half or
    one-way, between sites or devices. `memory` allows limits, tight ones too (the profile may be infeasible),
    `data_parallel` allows collectives, with or without contention. With `step` all devices may
    have something to do together at the end. With `offload` stages may move activations to host memory.
    """
    devices: list[dict[str, Any]] = [{"id": f"g{index}"} for index in range(draw(st.integers(1, max_devices)))]
    sites = draw(st.sampled_from([(None,), ("east",), ("east", "west")]))
    for device in devices:
        if (site := draw(st.sampled_from(sites))) is not None:
            device["site"] = site
        if memory and draw(st.booleans()):
            device["memory_bytes"] = draw(st.integers(0, 60))
    placement = draw(_placements(len(devices), draw(st.integers(1, max_stages))))
    profile: dict[str, Any] = {
        "format": "cpipe.profile",
        "version": 1,
        "name": draw(st.sampled_from(["", "toy"])),
        "microbatches": draw(st.integers(1, max_microbatches)),
        "devices": devices,
        "stages": [draw(_stages(index, device)) for index, device in enumerate(placement)],
        "links": draw(_site_links(sorted({device["site"] for device in devices if "site" in device})))
        + draw(_device_links([device["id"] for device in devices])),
    }
    if data_parallel and draw(st.booleans()):
        profile["data_parallel"] = draw(_jobs(profile["links"]))
    if offload:
        for stage in profile["stages"]:
            size = stage.get("activation_bytes", 0)
            if size and draw(st.integers(0, 3)):
                stage["offload"] = {"bytes": draw(st.integers(1, size)), **draw(_BANDWIDTH)}
                stage["offload"].pop("beta_ns_per_byte", None)
    if step:
        profile["step_ms"] = draw(_MS)
    if draw(st.integers(0, 9)) == 9:
        profile["extensions"] = {"owner": "team", "tags": [1, 2.5, None]}
    return profile


@st.composite
def problems(draw: st.DrawFn, /, *, receive_window: bool = False, **limits: Any) -> Problem:
    """Draw the problem of a feasible profile; `limits` are those of `profiles`.

    With `receive_window` the number of posted receives is sometimes capped.
    """
    profile = parse_profile(json.dumps(draw(profiles(**limits))).encode(), "drawn.json")
    window = draw(st.sampled_from([None, 1, 2])) if receive_window else None
    try:
        problem = normalize(profile, receive_window=window)
    except InfeasibleError:
        assume(False)
        raise
    problem.verify()
    return problem


def _placements(num_devices: int, num_stages: int) -> st.SearchStrategy[list[int]]:
    """Any device for each stage; or the loop or wave, which cross devices at (almost) every boundary."""
    loop = [stage % num_devices for stage in range(num_stages)]
    wave = [min(k, 2 * num_devices - 1 - k) for k in (stage % (2 * num_devices) for stage in range(num_stages))]
    anywhere = st.lists(st.integers(0, num_devices - 1), min_size=num_stages, max_size=num_stages)
    return st.one_of(anywhere, st.just(loop), st.just(wave))


@st.composite
def _stages(draw: st.DrawFn, index: int, device: int) -> dict[str, Any]:
    stage: dict[str, Any] = {
        "id": f"s{index}",
        "device": f"g{device}",
        "forward_ms": draw(_MS),
    }
    form = draw(st.sampled_from(["split", "split", "split with B", "whole"]))
    if form != "whole":
        stage |= {"input_grad_ms": draw(_MS), "weight_grad_ms": draw(_MS)}
    if form != "split":
        stage["full_backward_ms"] = draw(_MS)
    for name in draw(st.lists(st.sampled_from(_OPTIONAL_SIZES), unique=True)):
        stage[name] = draw(_BYTES)
    if "activation_bytes" in stage and draw(st.integers(0, 3)) == 3:
        kept = draw(st.integers(0, stage["activation_bytes"]))
        stage["recompute"] = {"activation_bytes": kept, "extra_ms": draw(_MS)}
    for name in draw(st.lists(st.sampled_from(_OPTIONAL_TIMES), unique=True, max_size=2)):
        stage[name] = draw(_MS)
    return stage


@st.composite
def _site_links(draw: st.DrawFn, sites: list[str]) -> list[dict[str, Any]]:
    """Draw links that join every pair of different sites in both directions, and perhaps defaults inside."""
    links = []
    for first, second in pairwise(sites):
        if draw(st.booleans()):
            links.append({"between": [first, second], **draw(_costs(duplex=True))})
        else:
            links.append({"from": second, "to": first, **draw(_costs())})
            links.append({"from": first, "to": second, **draw(_costs())})
    for site in sites:
        if draw(st.integers(0, 3)) == 3:
            links.append({"between": [site, site], **draw(_costs(duplex=True))})
    return links


@st.composite
def _device_links(draw: st.DrawFn, devices: list[str]) -> list[dict[str, Any]]:
    links: list[dict[str, Any]] = []
    joined: set[tuple[str, str]] = set()
    pairs = list(permutations(devices, 2))
    for first, second in draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2)) if pairs else []:
        both = draw(st.booleans())
        served = {(first, second), (second, first)} if both else {(first, second)}
        if not served & joined:
            joined |= served
            ends = {"between": [first, second]} if both else {"from": first, "to": second}
            links.append({**ends, **draw(_costs(duplex=both))})
    return links


@st.composite
def _costs(draw: st.DrawFn, *, duplex: bool = False) -> dict[str, Any]:
    costs: dict[str, Any] = {"latency_ms": draw(_LATENCY), **draw(_BANDWIDTH)}
    if duplex and draw(st.booleans()):
        costs["duplex"] = draw(st.sampled_from(["full", "half"]))
    return costs


@st.composite
def _jobs(draw: st.DrawFn, links: list[dict[str, Any]]) -> dict[str, Any]:
    job: dict[str, Any] = {
        "mode": draw(st.sampled_from(["ddp", "zero1"])),
        "replicas": draw(st.integers(1, 4)),
        "latency_ms": draw(_LATENCY),
        **draw(_BANDWIDTH),
    }
    ends = [link["between"] if "between" in link else [link["from"], link["to"]] for link in links]
    shared = draw(st.sampled_from([None, *(pair for pair in ends if pair[0] != pair[1])]))
    if shared is not None:
        job["contends_with"] = shared
    return job
