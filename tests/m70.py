"""The profiles of the shipped cases that come from a model: M70 over datacenters, and Llama 3 405B over two.

Numbers are those of CrossPipe (ATC'25): sizes and delays from its text, block times fitted to its Tables 5 and 6. What
is assumed beside them is said where it is used, and in ``plans/README.md``.
"""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import Any, NamedTuple

from cpipe.ir import Problem
from cpipe.profile import normalize, parse_profile

__all__ = [
    "PAPER_DELAYS",
    "SHIPPED_DELAYS",
    "Delays",
    "llama3_405b_profile",
    "m70_name",
    "m70_profile",
    "problem_of",
    "profile_text",
    "shipped_profiles",
]

BYTES_PER_ELEMENT = 2
"""bfloat16."""
BYTES_PER_ACTIVATION = 34
"""Bytes that one transformer layer keeps per token and hidden unit with fused attention (Korthikanti et al., 2022)."""
MEMORY_SLACK = Fraction(102, 100)
"""The paper's memory limit is 2 % above what 1F1B's activations need; posted receives live in that."""

STAGES = 8
LAYERS = 8
"""Layers of a full stage, embedding and head counted as one each."""
SEQUENCE, HIDDEN = 4096, 8192

FULL_STAGE_MS = {"F": Fraction("44.2"), "D": Fraction("47.1"), "W": Fraction("22.1"), "B": Fraction("61.2")}
"""Block times of eight layers [ms], fitted to Tables 5 and 6; B is the fused backward."""
HEAD_LAYERS = {"F": Fraction("0.63"), "D": Fraction("0.81"), "W": Fraction(1)}
HEAD_LAYERS["B"] = (HEAD_LAYERS["D"] * FULL_STAGE_MS["D"] + HEAD_LAYERS["W"] * FULL_STAGE_MS["W"]) / (
    FULL_STAGE_MS["D"] + FULL_STAGE_MS["W"]
)
"""What the head costs, in layers, fitted; for B the mean of D and W, weighted by their times."""


class Delays(NamedTuple):
    """Latency and occupancy of a message between datacenters, in forward times of the slowest stage."""

    latency: str
    bandwidth: str


PAPER_DELAYS = (
    Delays("0", "0"),
    Delays("0.25", "0.25"),
    Delays("0.25", "2"),
    Delays("2", "0.25"),
    Delays("2", "2"),
)
"""Rows of Tables 5 and 6."""
SHIPPED_DELAYS = tuple(delays for delays in PAPER_DELAYS if delays != ("0.25", "0.25"))


def m70_name(delays: Delays, memory: int) -> str:
    """Return the name of a shipped case, ``m70-2dc-lat2-bw2-1x``."""
    return f"m70-2dc-lat{delays.latency}-bw{delays.bandwidth}-{memory}x"


def m70_profile(delays: Delays, memory: int = 1, num_sites: int = 2) -> dict[str, Any]:
    """Return M70 on eight ranks of four GPUs, as many ranks in each datacenter.

    Parameters
    ----------
    delays
        Of every hop between datacenters, each way.
    memory
        Limit in units of 1F1B's eight activations: 1 with 16 microbatches (case 1 of the tables), 2 with 32 (case 3).
    num_sites
        Datacenters in line: 2 (Table 5) or 4 (Table 6).
    """
    sites = [f"dc-{letter}" for letter in "abcd"[:num_sites]]
    activation = SEQUENCE * HIDDEN * BYTES_PER_ACTIVATION * LAYERS
    message = SEQUENCE * HIDDEN * BYTES_PER_ELEMENT
    slowest = FULL_STAGE_MS["F"]
    return {
        "format": "cpipe.profile",
        "version": 1,
        "name": m70_name(delays, memory).replace("2dc", f"{num_sites}dc"),
        "microbatches": 16 * memory,
        "devices": _devices(sites, STAGES, int(memory * STAGES * MEMORY_SLACK * activation)),
        "stages": [
            {
                **_stage(index, {kind: time * _m70_share(index, kind) for kind, time in FULL_STAGE_MS.items()}),
                **_sizes(activation, message if index < STAGES - 1 else 0),
            }
            for index in range(STAGES)
        ],
        "links": [
            {
                "between": [first, second],
                "latency_ms": _ms(Fraction(delays.latency) * slowest),
                "beta_ns_per_byte": float(Fraction(delays.bandwidth) * slowest * 10**6 / message),
            }
            for first, second in itertools.pairwise(sites)
        ],
        "extensions": {
            "source": "CrossPipe (arXiv 2507.00217): model and delays of its section 7, block times fitted to its "
            "Tables 5 and 6"
        },
    }


def llama3_405b_profile() -> dict[str, Any]:
    """Return Llama 3 405B on sixteen stages in two datacenters with 64 GB/s between them (CrossPipe, section 5.2).

    A rank stands for the 64 replicas of its stage, which share the link: their messages go as one, and their memory
    is one.
    """
    sequence, hidden, intermediate, key_value_width = 8192, 16384, 53248, 1024
    num_stages, layers, replicas = 16, 8, 64
    parameters = 2 * hidden * (hidden + key_value_width) + 3 * hidden * intermediate
    flops = 2 * parameters * sequence + 2 * sequence**2 * hidden  # causal attention
    block = layers * Fraction(flops, 500 * 10**12 * 8) * 1000  # 500 TFLOP/s on each of 8 tensor-parallel GPUs
    activation = replicas * sequence * hidden * BYTES_PER_ACTIVATION * layers
    message = replicas * sequence * hidden * BYTES_PER_ELEMENT
    return {
        "format": "cpipe.profile",
        "version": 1,
        "name": "llama3-405b-2dc-64GBps",
        "microbatches": 2 * num_stages,
        "devices": _devices(["dc-a", "dc-b"], num_stages, int(num_stages * MEMORY_SLACK * activation)),
        "stages": [
            {
                **_stage(index, {"F": block, "D": block, "W": block}),
                **_sizes(activation, message if index < num_stages - 1 else 0),
            }
            for index in range(num_stages)
        ],
        "links": [{"between": ["dc-a", "dc-b"], "latency_ms": 4, "bandwidth_gbit_s": 512}],
        "extensions": {"source": "CrossPipe (arXiv 2507.00217), section 5.2 and its performance model"},
    }


def shipped_profiles() -> dict[str, dict[str, Any]]:
    """Return the documents of the shipped cases that are made here, by the name of their folder."""
    documents = [m70_profile(delays, memory) for memory in (1, 2) for delays in SHIPPED_DELAYS]
    return {document["name"]: document for document in (*documents, llama3_405b_profile())}


def profile_text(document: dict[str, Any]) -> str:
    """Return a profile as it is shipped: one device, stage or link a line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            parts.append(f'  "{key}": [\n{rows}\n  ]')
        else:
            parts.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def problem_of(document: dict[str, Any]) -> Problem:
    """Return the problem of a profile document; it must be a valid one."""
    return normalize(parse_profile(profile_text(document).encode(), document["name"]))


def _m70_share(index: int, kind: str) -> Fraction:
    """Return what stage `index` costs of a full one: the embedding is free, the head is not."""
    if index == 0:
        return Fraction(LAYERS - 1, LAYERS)
    return (LAYERS - 1 + HEAD_LAYERS[kind]) / LAYERS if index == STAGES - 1 else Fraction(1)


def _devices(sites: list[str], num_devices: int, memory_bytes: int) -> list[dict[str, Any]]:
    return [
        {"id": f"g{index}", "site": sites[index * len(sites) // num_devices], "memory_bytes": memory_bytes}
        for index in range(num_devices)
    ]


def _stage(index: int, times: dict[str, Fraction]) -> dict[str, Any]:
    names = {"F": "forward_ms", "D": "input_grad_ms", "W": "weight_grad_ms", "B": "full_backward_ms"}
    return {"id": f"s{index}", "device": f"g{index}"} | {names[kind]: _ms(time) for kind, time in times.items()}


def _sizes(activation: int, message: int) -> dict[str, int]:
    """Return the sizes of a stage: D frees half of the activation, W the other half."""
    sizes = {"activation_bytes": activation, "held_for_weight_grad_bytes": activation // 2}
    return sizes | ({"output_bytes": message} if message else {})


def _ms(time: Fraction) -> float | int:
    """Return a time [ms] to the nanosecond, as short as it can be written."""
    rounded = round(time, 6)
    return int(rounded) if rounded.denominator == 1 else float(rounded)
