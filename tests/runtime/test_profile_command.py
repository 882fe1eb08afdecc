"""Tests of `cpipe profile`: a measured model becomes a profile that `cpipe solve` reads."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs the extra cpipe[torch]")

from command_line import ROOT, Outcome, call, spawn

from cpipe.cli import profile as command
from cpipe.errors import UsageError
from cpipe.profile import load_profile, normalize
from cpipe.runtime.profile_worker import _tensors

LIMIT_S = 60


def measure(*arguments: object) -> Outcome:
    """Run `cpipe profile` with a time limit, the toy models within its reach."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    return spawn("profile", *arguments, "--timeout", LIMIT_S, environ={"PYTHONPATH": path})


@pytest.mark.slow
def test_profile_of_the_built_in_model(tmp_path: Path) -> None:
    """Three stages on two ranks become a valid profile: all ops, all bytes, the link, and how sure they are."""
    path = tmp_path / "profile.json"
    outcome = measure("--model", "transformer", "--stages", 3, "--devices", 2, "--repeats", 3, "-o", path)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines()[-1] == f"profile of 3 stages on 2 devices: {path}"
    profile = load_profile(path)
    assert (profile.name, profile.microbatches) == ("transformer", 8)
    assert [stage.device for stage in profile.stages] == ["g0", "g1", "g0"]
    assert [stage.input_grad_ms == 0 for stage in profile.stages] == [True, False, False]
    for stage in profile.stages:
        assert min(stage.forward_ms, stage.weight_grad_ms or 0, stage.full_backward_ms or 0) > 0
        assert stage.static_bytes == 2 * stage.parameter_bytes > 0
        assert (stage.held_for_weight_grad_bytes or 0) > stage.activation_bytes > 0
    message = 4 * 2 * 16 * 32
    assert [stage.output_bytes for stage in profile.stages] == [message, message, 0]
    (link,) = profile.links
    assert link.between == ("g0", "g1")
    assert link.latency_ms + (link.beta_ns_per_byte or 0) > 0
    problem = normalize(profile)
    assert [hop is not None for hop in problem.forward_hops] == [True, True]
    measured = (profile.extensions or {})["measured"]
    assert [entry["id"] for entry in measured["stages"]] == ["s0", "s1", "s2"]
    assert set(measured["links"][0]) == {"between", "residual", "spread", "sizes_bytes", "one_way_ms"}


@pytest.mark.slow
def test_profile_of_an_own_model() -> None:
    """A user's model is measured on one rank; what checkpoints cost is said, and the profile goes to stdout."""
    outcome = measure("--model", "toy_models:checkpointed", "--stages", 2, "--devices", 1, "--repeats", 1)
    assert outcome.code == 0
    assert outcome.document["name"] == "checkpointed"
    assert "links" not in outcome.document
    assert "[recompute-with-split]" in outcome.err


@pytest.mark.slow
def test_unknown_model() -> None:
    """A model that does not exist is a wrong call."""
    outcome = measure("--model", "no_such_module:make", "--stages", 1)
    assert outcome == (2, "", "error: --model: there is no module 'no_such_module' [unknown-model]\n")


STAGE: dict[str, Any] = {
    "forward_s": 0.002,
    "input_grad_s": 0.002,
    "weight_grad_s": 0.001,
    "full_backward_s": 0.0025,
    "spread": {"F": 0.1, "D": 0.1, "W": 0.2, "B": 0.1},
    "activation_bytes": 1000,
    "held_bytes": 1500,
    "forward_transient_bytes": 10,
    "input_grad_transient_bytes": 20,
    "weight_grad_transient_bytes": 30,
    "parameter_bytes": 400,
    "buffer_bytes": 8,
    "gradient_bytes": 300,
    "output_bytes": 100,
    "reruns": 0,
    "split_error": "",
}
LINK: dict[str, Any] = {
    "first": 0,
    "second": 1,
    "latency_s": 0.001,
    "seconds_per_byte": 2e-9,
    "residual": 0.05,
    "spread": 0.1,
    "sizes": [8, 4096],
    "seconds": [0.001, 0.00101],
}


def profiled(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stage: dict[str, Any] | None = None,
    link: dict[str, Any] | None = None,
) -> Outcome:
    """Run the command on measurements made up here: two stages on two devices, changed as given."""
    measured = {
        "stages": [copy.deepcopy(STAGE), {**STAGE, **(stage or {})}],
        "links": [{**LINK, **(link or {})}],
        "memory_bytes": [None, 10**9],
    }
    monkeypatch.setattr(command, "_measured", lambda *arguments: measured)
    return call(capsys, "profile", "--model", "mine:make", "--stages", 2, "--microbatches", 4)


def test_numbers_become_a_profile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds become milliseconds, beta becomes ns per byte, and static memory is parameters, gradients and buffers."""
    outcome = profiled(monkeypatch, capsys)
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.document
    assert document["microbatches"] == 4
    assert document["devices"] == [{"id": "g0"}, {"id": "g1", "memory_bytes": 10**9}]
    assert document["stages"][1] == {
        "id": "s1",
        "device": "g1",
        "forward_ms": 2.0,
        "input_grad_ms": 2.0,
        "weight_grad_ms": 1.0,
        "full_backward_ms": 2.5,
        "activation_bytes": 1000,
        "held_for_weight_grad_bytes": 1500,
        "static_bytes": 708,
        "forward_transient_bytes": 10,
        "input_grad_transient_bytes": 20,
        "weight_grad_transient_bytes": 30,
        "output_bytes": 100,
        "parameter_bytes": 400,
        "gradient_bytes": 300,
    }
    assert document["links"] == [{"between": ["g0", "g1"], "latency_ms": 1.0, "beta_ns_per_byte": 2.0}]


def test_a_stage_that_cannot_be_split(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without D and W the profile gives B alone, and a warning says why."""
    stage = {"input_grad_s": None, "weight_grad_s": None, "held_bytes": 0, "split_error": "no grad"}
    outcome = profiled(monkeypatch, capsys, {**stage, "spread": {"F": 0.0, "B": 0.0}})
    assert not {"input_grad_ms", "weight_grad_ms", "held_for_weight_grad_bytes"} & set(outcome.document["stages"][1])
    assert "warning: $.stages[1]: stage s1 cannot be split into D and W: no grad [cannot-split]" in outcome.err


@pytest.mark.parametrize(
    ("stage", "link", "warning"),
    [
        ({"weight_grad_s": 0.0011}, {}, "$.stages[1]: D and W take 3.1 ms, 1.24 times the 2.5 ms of B [dear-split]"),
        ({"reruns": 3}, {}, "$.stages[1]: stage s1 runs forward 3 more times in D and W than in B"),
        ({"spread": {"D": 0.6}}, {}, "[wide-spread]"),
        (
            {"spread": {"F": 0.1, "W": 0.8}},
            {},
            "$.stages[1]: half of the times of W are 80 % or more above the shortest",
        ),
        ({}, {"residual": 0.9}, "$.links[0]: a message's time differs by up to 90 % from the line through them"),
        ({}, {"spread": 2.0}, "and half of the repeats by up to 200 % from the shortest [poor-link-fit]"),
        ({}, {"latency_s": 0.01}, "[latency-looks-like-idle]"),
    ],
)
def test_numbers_that_smell(
    stage: dict[str, Any],
    link: dict[str, Any],
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A measurement that looks wrong is written, with one warning that gives the numbers."""
    outcome = profiled(monkeypatch, capsys, stage, link)
    assert outcome.code == 0
    (line,) = [text for text in outcome.err.splitlines() if text.startswith("warning: ")]
    assert warning in line
    assert json.loads(outcome.out)["format"] == "cpipe.profile"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stages", "0", "--devices", "1"], "--stages: expected a number >= 1, got 0"),
        (["--stages", "2", "--devices", "3"], "--devices: expected a number from 1 to that of the stages, got 3"),
        (["--stages", "2", "--microbatches", "0"], "--microbatches: expected a number >= 1, got 0"),
        (["--stages", "2", "--repeats", "0"], "--repeats: expected a number >= 1, got 0"),
        (["--stages", "2", "--timeout", "-1"], "--timeout: expected seconds > 0, got -1"),
    ],
)
def test_wrong_numbers(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers out of range are refused before anything starts."""
    outcome = call(capsys, "profile", "--model", "transformer", *arguments)
    assert outcome == (2, "", f"error: {message} [value-out-of-range]\n")


def test_inputs_are_tensors() -> None:
    """A model whose inputs are no tensors cannot be measured, and is told what it gave."""
    with pytest.raises(
        UsageError, match=r"the model's input must be a tensor or a flat tuple of tensors, got dict \[model-input\]"
    ):
        _tensors({"tokens": 1}, "the model's input")
