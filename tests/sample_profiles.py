"""A profile that uses most of the format, ways to edit it, and tables of edits that break one rule each."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["BASE", "WRONG_FIELDS", "WRONG_RULES", "WRONG_SHAPES", "edited", "encoded"]

BASE: dict[str, Any] = {
    "format": "cpipe.profile",
    "version": 1,
    "name": "base",
    "microbatches": 4,
    "devices": [
        {"id": "g0", "site": "dc-a", "memory_bytes": 1000},
        {"id": "g1", "site": "dc-b", "memory_bytes": 1000},
    ],
    "stages": [
        {
            "id": "s0",
            "device": "g0",
            "forward_ms": 2.5,
            "input_grad_ms": 2,
            "weight_grad_ms": 1,
            "activation_bytes": 20,
            "held_for_weight_grad_bytes": 10,
            "output_bytes": 8,
        },
        {"id": "s1", "device": "g1", "forward_ms": 3, "full_backward_ms": 6},
    ],
    "links": [{"between": ["dc-a", "dc-b"], "latency_ms": 1, "bandwidth_gbit_s": 100}],
    "data_parallel": {"mode": "zero1", "replicas": 2, "latency_ms": 1},
}

Edits = Mapping[str, Any]
"""JSON path -> new value; `...` deletes."""


def edited(edits: Edits, base: Mapping[str, Any] = BASE) -> dict[str, Any]:
    """Return a copy of `base` in which the value at each JSON path is replaced, added or (by `...`) deleted."""
    document = {"$": copy.deepcopy(dict(base))}
    for path, value in edits.items():
        keys: list[Any] = [int(key) if key.isdigit() else key for key in re.findall(r"[^.\[\]]+", path)]
        parent: Any = document
        for key in keys[:-1]:
            parent = parent[key]
        if value is ...:
            del parent[keys[-1]]
        elif isinstance(parent, list) and keys[-1] == len(parent):
            parent.append(value)
        else:
            parent[keys[-1]] = value
    return document["$"]


def encoded(document: Any) -> bytes:
    """Return `document` as JSON text."""
    return json.dumps(document).encode()


STAGE, LINK, JOB = "$.stages[0]", "$.links[0]", "$.data_parallel"

# One field is wrong: (edits, lines without "error: FILE: "). The JSON schema refuses all of these too.
WRONG_FIELDS: list[tuple[Edits, list[str]]] = [
    # format is the name of this format
    ({"$.format": 7}, ['$.format: expected "cpipe.profile", got 7 [unknown-value]']),
    ({"$.format": "cpipe.plan"}, ['$.format: expected "cpipe.profile", got "cpipe.plan" [wrong-format]']),
    ({"$.format": ...}, ['$: the required key "format" is missing [missing-key]']),
    # version is a known one
    ({"$.version": 2}, ["$.version: made by a newer cpipe: expected version 1, got 2 [newer-version]"]),
    ({"$.version": 0}, ["$.version: expected 1, got 0 [unknown-value]"]),
    ({"$.version": "1"}, ['$.version: expected 1, got "1" [unknown-value]']),
    ({"$.version": True}, ["$.version: expected 1, got true [unknown-value]"]),
    # name is one line of text
    ({"$.name": None}, ["$.name: expected a string, got null [wrong-type]"]),
    (
        {"$.name": "a\x1b[1m"},
        [r'$.name: expected a string without control characters, got "a\u001b[1m" [control-character]'],
    ),
    ({"$.name": "n" * 201}, ["$.name: expected at most 200 characters, got 201 [long-text]"]),
    # microbatches is an integer from 1 to 65536
    ({"$.microbatches": 0}, ["$.microbatches: expected an integer >= 1, got 0 [too-small]"]),
    ({"$.microbatches": 4.5}, ["$.microbatches: expected an integer >= 1, got 4.5 [not-an-integer]"]),
    ({"$.microbatches": 1e9}, ["$.microbatches: expected an integer <= 65536, got 1000000000.0 [too-large]"]),
    ({"$.microbatches": "4"}, ['$.microbatches: expected an integer >= 1, got "4" [wrong-type]']),
    ({"$.microbatches": True}, ["$.microbatches: expected an integer >= 1, got true [wrong-type]"]),
    # there are devices, as a list of objects
    ({"$.devices": []}, ["$.devices: expected at least 1 entry, got an empty list [empty-list]"]),
    ({"$.devices": {"g0": {}}}, ["$.devices: expected a list, got an object of 1 key [wrong-type]"]),
    ({"$.devices[0]": "g0"}, ['$.devices[0]: expected an object, got "g0" [wrong-type]']),
    ({"$.devices": ...}, ['$: the required key "devices" is missing [missing-key]']),
    # a device has a name
    ({"$.devices[0].id": ""}, ["$.devices[0].id: expected a non-empty string, got an empty one [empty-text]"]),
    ({"$.devices[0].id": 0}, ["$.devices[0].id: expected a string, got 0 [wrong-type]"]),
    # memory is a whole number of bytes below 2^62
    (
        {"$.devices[0].memory_bytes": -1},
        ["$.devices[0].memory_bytes: expected an integer >= 0, got -1 [negative-size]"],
    ),
    (
        {"$.devices[0].memory_bytes": 2**62 + 1},
        ["$.devices[0].memory_bytes: expected an integer <= 4611686018427387904, got 4611686018427387905 [too-large]"],
    ),
    (
        {"$.devices[0].memory_bytes": "80 GB of the very fastest memory that there is"},
        [
            "$.devices[0].memory_bytes: expected an integer >= 0, "
            'got "80 GB of the very fastest memory tha... [wrong-type]'
        ],
    ),
    # there are stages
    ({"$.stages": []}, ["$.stages: expected at least 1 entry, got an empty list [empty-list]"]),
    ({"$.stages": ...}, ['$: the required key "stages" is missing [missing-key]']),
    ({"$.stages[1]": None}, ["$.stages[1]: expected an object, got null [wrong-type]"]),
    # required keys of a stage
    ({f"{STAGE}.forward_ms": ...}, ['$.stages[0]: the required key "forward_ms" is missing [missing-key]']),
    ({f"{STAGE}.device": ...}, ['$.stages[0]: the required key "device" is missing [missing-key]']),
    # keys are known; a misspelt one does not pass for absent
    ({f"{STAGE}.static_byte": 1}, ['$.stages[0].static_byte: unknown key "static_byte" [unknown-key]']),
    ({"$.forward_ms": [1, 2]}, ['$.forward_ms: unknown key "forward_ms" [unknown-key]']),
    ({"$.my key": 1}, ['$["my key"]: unknown key "my key" [unknown-key]']),
    # durations are finite, non-negative numbers, at most 10^12 ms
    ({f"{STAGE}.forward_ms": -1}, ["$.stages[0].forward_ms: expected a number >= 0, got -1 [negative-duration]"]),
    (
        {f"{STAGE}.forward_ms": 1e300},
        ["$.stages[0].forward_ms: expected a number <= 1000000000000, got 1e+300 [too-large]"],
    ),
    ({f"{STAGE}.forward_ms": None}, ["$.stages[0].forward_ms: expected a number >= 0, got null [wrong-type]"]),
    ({f"{STAGE}.forward_ms": False}, ["$.stages[0].forward_ms: expected a number >= 0, got false [wrong-type]"]),
    (
        {f"{STAGE}.weight_grad_ms": -0.5},
        ["$.stages[0].weight_grad_ms: expected a number >= 0, got -0.5 [negative-duration]"],
    ),
    (
        {f"{STAGE}.full_backward_ms": "6"},
        ['$.stages[0].full_backward_ms: expected a number >= 0, got "6" [wrong-type]'],
    ),
    # one number stands for one stage: a list is not spread over stages
    (
        {f"{STAGE}.forward_ms": [1, 2, 3]},
        ["$.stages[0].forward_ms: expected 1 number for this field, got a list of 3 [list-for-number]"],
    ),
    # sizes are whole numbers of bytes
    (
        {f"{STAGE}.activation_bytes": 0.5},
        ["$.stages[0].activation_bytes: expected an integer >= 0, got 0.5 [not-an-integer]"],
    ),
    # links are a list of objects with two ends each
    ({"$.links": None}, ["$.links: expected a list, got null [wrong-type]"]),
    ({f"{LINK}.between": ["dc-a"]}, ["$.links[0].between: expected a list of 2 values, got 1 [wrong-length]"]),
    ({f"{LINK}.between": "dc-a"}, ['$.links[0].between: expected a list, got "dc-a" [wrong-type]']),
    # a bandwidth is positive
    ({f"{LINK}.bandwidth_gbit_s": 0}, ["$.links[0].bandwidth_gbit_s: expected a number > 0, got 0 [too-small]"]),
    ({f"{LINK}.latency_ms": -3}, ["$.links[0].latency_ms: expected a number >= 0, got -3 [negative-duration]"]),
    (
        {f"{LINK}.duplex": "simplex"},
        ['$.links[0].duplex: expected one of "full", "half", got "simplex" [unknown-value]'],
    ),
    # data parallelism is of a kind that is modelled
    (
        {f"{JOB}.mode": "zero3"},
        [
            '$.data_parallel.mode: expected one of "ddp", "zero1", got "zero3": '
            "it gathers parameters and reduces gradients in every microbatch, which is not modelled [unsupported-mode]"
        ],
    ),
    ({f"{JOB}.mode": "dp"}, ['$.data_parallel.mode: expected one of "ddp", "zero1", got "dp" [unknown-value]']),
    ({f"{JOB}.replicas": 0}, ["$.data_parallel.replicas: expected an integer >= 1, got 0 [too-small]"]),
    ({JOB: []}, ["$.data_parallel: expected an object, got a list of 0 values [wrong-type]"]),
    # extensions are an object
    ({"$.extensions": [1]}, ["$.extensions: expected an object, got a list of 1 value [wrong-type]"]),
]

# Several fields of one object contradict each other; the JSON schema refuses these too.
WRONG_SHAPES: list[tuple[Edits, list[str]]] = [
    # D and W come together
    (
        {f"{STAGE}.weight_grad_ms": ...},
        ["$.stages[0].input_grad_ms: input_grad_ms is given without weight_grad_ms [incomplete-split]"],
    ),
    (
        {"$.stages[1].weight_grad_ms": 1},
        ["$.stages[1].weight_grad_ms: weight_grad_ms is given without input_grad_ms [incomplete-split]"],
    ),
    # a stage has a backward
    (
        {"$.stages[1].full_backward_ms": ...},
        [
            "$.stages[1]: expected input_grad_ms and weight_grad_ms, or full_backward_ms alone, "
            "got none of them [missing-backward]"
        ],
    ),
    # a link has ends of one form
    (
        {f"{LINK}.between": ...},
        ["$.links[0]: expected either `between`, or `from` and `to`, got neither [link-ends]"],
    ),
    (
        {f"{LINK}.from": "dc-a"},
        ["$.links[0]: expected either `between`, or `from` and `to`, got both [link-ends]"],
    ),
    (
        {"$.links[1]": {"to": "dc-a"}},
        ["$.links[1]: expected either `between`, or `from` and `to`, got one of the last two [link-ends]"],
    ),
    # the cost of a byte is given once
    (
        {f"{LINK}.beta_ns_per_byte": 1},
        [
            "$.links[0].beta_ns_per_byte: expected either bandwidth_gbit_s or beta_ns_per_byte, "
            "got both [two-bandwidths]"
        ],
    ),
    (
        {f"{JOB}.beta_ns_per_byte": 1, f"{JOB}.bandwidth_gbit_s": 1},
        [
            "$.data_parallel.beta_ns_per_byte: expected either bandwidth_gbit_s or beta_ns_per_byte, "
            "got both [two-bandwidths]"
        ],
    ),
    # half duplex shares a pipe between two directions
    (
        {"$.links[1]": {"from": "g0", "to": "g1", "duplex": "half"}},
        ["$.links[1].duplex: half duplex needs two directions, and `from` and `to` give one [one-way-half-duplex]"],
    ),
]

# Objects do not fit together; only the loader knows.
WRONG_RULES: list[tuple[Edits, list[str]]] = [
    # ids are unique
    (
        {"$.devices[1].id": "g0"},
        [
            '$.devices[1].id: the id "g0" is already taken by $.devices[0] [duplicate-id]',
            '$.stages[1].device: no device has the id "g1" [unknown-device]',
        ],
    ),
    ({"$.stages[1].id": "s0"}, ['$.stages[1].id: the id "s0" is already taken by $.stages[0] [duplicate-id]']),
    # a stage stands on a device
    ({f"{STAGE}.device": "G0"}, ['$.stages[0].device: no device has the id "G0" [unknown-device]']),
    # ends of a link exist
    (
        {"$.links[1]": {"from": "g0", "to": "g9"}},
        ['$.links[1].to: "g9" is neither a device nor a site [unknown-link-end]'],
    ),
    # ends of a link are one thing
    (
        {"$.devices[2]": {"id": "dc-a"}},
        ['$.links[0].between[0]: "dc-a" is both a device and a site [ambiguous-link-end]'],
    ),
    # a link joins devices or sites
    (
        {"$.links[1]": {"between": ["g0", "dc-b"]}},
        ['$.links[1]: expected two devices or two sites, got "g0" and "dc-b", one of each [mixed-link-ends]'],
    ),
    # a link leads elsewhere
    ({"$.links[1]": {"between": ["g0", "g0"]}}, ['$.links[1]: joins the device "g0" with itself [self-link]']),
    ({"$.links[1]": {"from": "dc-a", "to": "dc-a"}}, ['$.links[1]: leads from the site "dc-a" to itself [self-link]']),
    # one link a direction
    (
        {"$.links[1]": {"from": "dc-b", "to": "dc-a"}},
        ['$.links[1]: the link from "dc-b" to "dc-a" is already given by $.links[0] [duplicate-link]'],
    ),
    (
        {"$.links[1]": {"between": ["dc-b", "dc-a"]}},
        ['$.links[1]: the link from "dc-b" to "dc-a" is already given by $.links[0] [duplicate-link]'],
    ),
    # a boundary between sites has a link, in both directions
    (
        {"$.links": []},
        [
            '$.stages[1].device: no link joins site "dc-a" and site "dc-b", '
            'between stages "s0" and "s1" [unlinked-sites]'
        ],
    ),
    (
        {"$.links": [{"from": "dc-a", "to": "dc-b"}]},
        [
            '$.stages[1].device: no link leads from site "dc-b" to site "dc-a", '
            'between stages "s0" and "s1" [unlinked-sites]'
        ],
    ),
    (
        {"$.links": [], "$.devices[1].site": ...},
        [
            '$.stages[1].device: no link joins site "dc-a" and device "g1" (no site), '
            'between stages "s0" and "s1" [unlinked-sites]'
        ],
    ),
    # collectives contend with a link
    (
        {f"{JOB}.contends_with": ["g0", "g1"]},
        ['$.data_parallel.contends_with: no entry of `links` joins "g0" and "g1" [unknown-link]'],
    ),
    (
        {f"{JOB}.contends_with": ["dc-a", "dc-a"]},
        ["$.data_parallel.contends_with: expected two different ends of a link, got one twice [unknown-link]"],
    ),
    # a search can hold all ops
    (
        {"$.microbatches": 65536, "$.stages": [{**BASE["stages"][1], "id": f"s{index}"} for index in range(17)]},
        [
            "$.microbatches: expected at most 1048576 pairs of a stage and a microbatch, "
            "got 17 x 65536 = 1114112 [too-many-ops]"
        ],
    ),
    # times and sizes add up within 64 bits
    (
        {"$.stages[1].forward_ms": 1e12, "$.microbatches": 5},
        ["$: one iteration could take 5e+12 ms, more than the 4.61169e+12 ms allowed [total-time-too-large]"],
    ),
    (
        {"$.links[0].bandwidth_gbit_s": 1e-300},
        ["$: one iteration could take 5.12e+296 ms, more than the 4.61169e+12 ms allowed [total-time-too-large]"],
    ),
    (
        {"$.stages[1].static_bytes": 2**62},
        [
            "$: one iteration could hold 4611686018427388088 bytes, "
            "more than the 4611686018427387904 allowed [total-memory-too-large]"
        ],
    ),
]
