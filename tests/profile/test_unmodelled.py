"""What people ask of data parallelism that is not modelled is refused by name, with the reason and what there is."""

from __future__ import annotations

from typing import Any

import pytest
from sample_profiles import edited, encoded

from cpipe.errors import ProfileError
from cpipe.profile import parse_profile

MODE = "$.data_parallel.mode"
ALLOWED = 'expected one of "ddp", "zero1"'


def refused(edits: dict[str, Any]) -> ProfileError:
    """Return the error of a profile that must not load."""
    with pytest.raises(ProfileError, match=r"^error: base\.json") as caught:
        parse_profile(encoded(edited(edits)), "base.json")
    return caught.value


def refusal(edits: dict[str, Any]) -> str:
    """Return the lines shown for it."""
    return str(refused(edits))


@pytest.mark.parametrize("mode", ["zero2", "zero-2"])
def test_gradients_reduced_in_every_microbatch(mode: str) -> None:
    """ZeRO-2 is refused with the reason and the modes that there are."""
    reason = "it reduces gradients in every microbatch, which is not modelled [unsupported-mode]"
    assert refusal({MODE: mode}) == f'error: base.json: {MODE}: {ALLOWED}, got "{mode}": {reason}'


@pytest.mark.parametrize("mode", ["zero3", "zero-3", "fsdp", "fsdp2", "hsdp"])
def test_parameters_gathered_in_every_microbatch(mode: str) -> None:
    """ZeRO-3 and its kin are refused with the reason and the modes that there are."""
    reason = "it gathers parameters and reduces gradients in every microbatch, which is not modelled [unsupported-mode]"
    assert refusal({MODE: mode}) == f'error: base.json: {MODE}: {ALLOWED}, got "{mode}": {reason}'


@pytest.mark.parametrize("mode", ["zero", "dp", "ZeRO1", "", "none"])
def test_other_words_are_unknown(mode: str) -> None:
    """Any other word is told what there is."""
    assert f'{ALLOWED}, got "{mode}" [unknown-value]' in refusal({MODE: mode})


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_zero_stage_is_a_mode(stage: int) -> None:
    """The number of a ZeRO stage is no field: the mode is named, and which stages are not there."""
    told = refusal({"$.data_parallel.zero_stage": stage})
    assert '"mode": "ddp"` or `"mode": "zero1"`; stages 2 and 3 are not modelled [unknown-key]' in told


@pytest.mark.parametrize("mode", ["zero1", "ddp"])
@pytest.mark.parametrize("key", ["tied_weights", "tied_embeddings", "tied_stages"])
def test_tied_weights_are_never_ignored(key: str, mode: str) -> None:
    """Weights of two stages need their gradients summed first; a plan without that would train wrongly."""
    for home in ("$", "$.data_parallel"):
        told = refusal({MODE: mode, f"{home}.{key}": ["s0", "s1"]})
        assert f'{home}.{key}: unknown key "{key}": weights that two stages share are not modelled' in told
        assert "summed over both stages before any data-parallel reduction" in told


def test_a_slow_down_by_collectives_is_never_ignored() -> None:
    """A factor on compute beside collectives is refused with what to measure instead."""
    told = refusal({"$.compute_slowdown": 1.2})
    assert told.endswith(
        '$.compute_slowdown: unknown key "compute_slowdown": compute that collectives slow down is not modelled: '
        "measure the stages while they run [unknown-key]"
    )


def test_a_reason_takes_the_place_of_a_guess() -> None:
    """A key that is refused for a reason gets no guess at a spelling; a misspelt one does."""
    assert refused({"$.tied_weights": []}).hint is None
    assert refused({"$.step_m": 1}).hint == 'did you mean "step_ms"?'
