"""Profiles that load: what is kept, what is defaulted and what survives a round trip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from sample_profiles import BASE, Edits, edited, encoded
from strategies import profiles

from cpipe.errors import InfeasibleError
from cpipe.profile import DeviceSpec, LinkSpec, StageSpec, encode_profile, load_profile, normalize, parse_profile

FULL: dict[str, Any] = {
    "format": "cpipe.profile",
    "version": 1,
    "name": "m70-2dc",
    "microbatches": 16,
    "devices": [
        {"id": "g0", "site": "dc-a", "memory_bytes": 96000000000},
        {"id": "g1", "site": "dc-b", "memory_bytes": 96000000000},
    ],
    "stages": [
        {
            "id": f"s{index}",
            "device": f"g{index}",
            "forward_ms": 38.7,
            "input_grad_ms": 41.2,
            "weight_grad_ms": 19.3,
            "full_backward_ms": 53.5,
            "activation_bytes": 1100000000,
            "held_for_weight_grad_bytes": 550000000,
            "static_bytes": 20000000000,
            "forward_transient_bytes": 0,
            "input_grad_transient_bytes": 0,
            "weight_grad_transient_bytes": 0,
            "output_bytes": 67108864,
            "parameter_bytes": 17000000000,
            "gradient_bytes": 34000000000,
            "all_gather_ms": 12.0,
            "reduce_scatter_ms": 24.0,
            "all_reduce_ms": 36.0,
        }
        for index in range(2)
    ],
    "links": [
        {"between": ["dc-a", "dc-b"], "latency_ms": 30.0, "bandwidth_gbit_s": 100.0, "duplex": "full"},
        {"from": "g0", "to": "g1", "latency_ms": 0.01, "beta_ns_per_byte": 0.02},
    ],
    "data_parallel": {
        "mode": "zero1",
        "replicas": 2,
        "latency_ms": 0.01,
        "bandwidth_gbit_s": 200.0,
        "contends_with": ["dc-a", "dc-b"],
    },
    "extensions": {"team": "llm"},
}


def test_every_field_is_read() -> None:
    """A profile that gives every field keeps each of them, as it stands in the file."""
    profile = parse_profile(encoded(FULL), "full.json")
    assert profile.devices[1] == DeviceSpec(id="g1", site="dc-b", memory_bytes=96_000_000_000)
    assert profile.stages[0] == StageSpec(**FULL["stages"][0])
    assert profile.links[1] == LinkSpec(source="g0", target="g1", latency_ms=0.01, beta_ns_per_byte=0.02)
    assert profile.data_parallel is not None
    assert profile.data_parallel.contends_with == ("dc-a", "dc-b")
    assert profile.extensions == {"team": "llm"}


def test_defaults_are_neutral() -> None:
    """What a minimal profile leaves out costs nothing and limits nothing."""
    stage = {"id": "s", "device": "g", "forward_ms": 1, "full_backward_ms": 2}
    document = {
        "format": "cpipe.profile",
        "version": 1,
        "microbatches": 1,
        "devices": [{"id": "g"}],
        "stages": [stage],
    }
    profile = parse_profile(encoded(document), "f.json")
    assert (profile.name, profile.links, profile.data_parallel, profile.extensions) == ("", (), None, None)
    assert profile.devices == (DeviceSpec(id="g", site=None, memory_bytes=None),)
    sizes = [getattr(profile.stages[0], name) for name in StageSpec.__struct_fields__ if name.endswith("_bytes")]
    assert sorted(map(str, sizes)) == ["0"] * 8 + ["None"]  # None: how much is held for W was not said


@pytest.mark.parametrize(
    ("edits", "path"),
    [
        ({"$.microbatches": 4.0}, "microbatches"),  # a whole number with a decimal point
        ({"$.version": 1.0}, "version"),
    ],
)
def test_integral_floats_are_integers(edits: Edits, path: str) -> None:
    """Exporters write 80e9 or 4.0; where an integer is meant, that is one."""
    profile = parse_profile(encoded(edited(edits)), "f.json")
    assert type(getattr(profile, path)) is int
    memory = parse_profile(encoded(edited({"$.devices[0].memory_bytes": 80e9})), "f.json").devices[0].memory_bytes
    assert (memory, type(memory)) == (80_000_000_000, int)


def test_numbers_where_floats_are_meant_may_be_integers() -> None:
    """A duration written without a decimal point is the same duration, and minus zero is zero."""
    profile = parse_profile(encoded(edited({"$.stages[0].forward_ms": 3, "$.links[0].latency_ms": -0.0})), "f.json")
    assert [type(profile.stages[0].forward_ms), str(profile.links[0].latency_ms)] == [float, "0.0"]


def test_bounds_are_inclusive() -> None:
    """The largest values that the format allows are allowed."""
    document = edited(
        {
            "$.microbatches": 65_536,
            "$.stages": [BASE["stages"][0]],
            "$.devices[1].memory_bytes": 2**62,
            "$.data_parallel.replicas": 1_000_000,
        }
    )
    assert parse_profile(encoded(document), "f.json").microbatches == 65_536
    document = edited({"$.microbatches": 1, "$.stages[0].forward_ms": 1e12, "$.name": "n" * 200})
    assert parse_profile(encoded(document), "f.json").stages[0].forward_ms == 1e12


def test_load_reads_a_file(tmp_path: Path) -> None:
    """A path may be a text or a path object."""
    path = tmp_path / "profile.json"
    path.write_bytes(encoded(FULL))
    assert load_profile(path) == load_profile(str(path)) == parse_profile(encoded(FULL), "")


def test_extensions_are_kept_untouched() -> None:
    """The user's own object may hold anything that JSON can, and is written back as it was."""
    extensions = {"z": [1, 2.5, None, True, {"deep": "é"}], "a": 2**100, "": {}}
    profile = parse_profile(encoded(edited({"$.extensions": extensions})), "f.json")
    assert profile.extensions == extensions
    assert json.loads(encode_profile(profile))["extensions"] == extensions


@pytest.mark.parametrize("document", [BASE, FULL])
def test_encoding_leaves_defaults_out(document: dict[str, Any]) -> None:
    """A written profile says what was given, in the order of the format, and nothing that is a default."""
    written = json.loads(encode_profile(parse_profile(encoded(document), "f.json")))

    def agrees(given: Any, found: Any) -> bool:
        if isinstance(given, dict):
            defaults = {"duplex": "full"} | {key: 0 for key in given if key.endswith("_bytes")}
            left_out = given.keys() - found.keys()
            return found.keys() <= given.keys() and all(
                agrees(value, found[key]) if key in found else value == defaults[key]
                for key, value in given.items()
                if key in found or key in left_out
            )
        if isinstance(given, list):
            return len(given) == len(found) and all(map(agrees, given, found))
        return bool(given == found)

    assert agrees(document, written)


@settings(deadline=None)
@given(profiles())
def test_valid_profiles_round_trip_and_normalize(document: dict[str, Any]) -> None:
    """Every valid profile loads, is written and read back the same, and normalizes or is proven infeasible."""
    profile = parse_profile(encoded(document), "f.json")
    text = encode_profile(profile)
    assert parse_profile(text, "f.json") == profile
    assert encode_profile(parse_profile(text, "f.json")) == text
    try:
        problem = normalize(profile)
    except InfeasibleError as error:
        assert {fault.code for fault in error.diagnostics} == {"memory-too-small"}
        return
    problem.verify()
    assert problem == normalize(profile)
    assert problem.placement == tuple(int(stage.device[1:]) for stage in profile.stages)
