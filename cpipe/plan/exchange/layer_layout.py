"""Which layers each stage holds, as Megatron's ``--pipeline-model-parallel-layout`` spells it.

Stages stand in flow order with ``|`` between them; a stage is a run of letters: ``E`` embedding, ``t`` decoder layer,
``m`` layer of multi-token prediction, ``L`` loss; an empty one holds nothing. ``x*n`` repeats a letter, ``(..)*n`` what
is in the parentheses, and commas mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from cpipe.errors import Diagnostic, UsageError

__all__ = ["layer_layout", "stage_layers"]

_ENTRY = re.compile(r"(?:([0-9]{1,4})|((?:[EtmL](?:\*[0-9]{1,4})?)*))(?:x([0-9]{1,4}))?")
_RUN = re.compile(r"([EtmL])(?:\*([0-9]+))?")
_ORDER = re.compile(r"Et*m*L")

Layers = tuple[tuple[str, int], ...]
"""The layers of a stage: (letter, how many) in order."""


def stage_layers(text: str, num_stages: int, num_ranks: int) -> tuple[Layers, ...]:
    """Read ``--layers``: one entry a stage, in flow order.

    Parameters
    ----------
    text
        Entries with commas between them. An entry is a number of decoder layers (``8``), or Megatron's own letters
        (``Et*3``, ``m``, ``L``; nothing is an empty stage); ``8x6`` is six stages of eight layers. The embedding is
        put before all layers and the loss behind them where no entry has them.
    num_stages, num_ranks
        Of the plan: the entries must be as many as its stages.

    Raises
    ------
    UsageError
        Naming the entry that is none, or the rule of Megatron's that the layers break.
    """
    counted: list[tuple[Layers, int]] = []
    for number, entry in enumerate(map(str.strip, text.split(",")), start=1):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            expected = "expected a number of layers or letters of E, t, m and L"
            raise _wrong(f"entry {number}: {expected}, got {entry[:40]!r}")
        decoders, letters, repeats = match.groups()
        runs = (("t", int(decoders)),) if decoders else tuple(_runs(letters))
        counted.append((tuple(run for run in runs if run[1]), int(repeats or 1)))
    total = sum(repeats for _, repeats in counted)
    if total != num_stages:
        raise _wrong(f"expected an entry for each of {num_stages} stages, got {total}")
    stages = [layers for layers, repeats in counted for _ in range(repeats)]
    letters = [letter for layers in stages for letter, _ in layers]
    if "E" not in letters:
        stages[0] = (("E", 1), *stages[0])
    if "L" not in letters:
        stages[-1] = (*stages[-1], ("L", 1))
    _check(stages, num_ranks)
    return tuple(stages)


def layer_layout(stages: Sequence[Layers]) -> str:
    """Return the layout of stages whose last is unlike the one before it, as the loss makes it.

    ``layer_layout(stage_layers("3,2x29,m,L", 32, 16)) == "Et*3|(tt|)*29,m|L"``.
    """
    texts = ["".join(letter * count if count < 3 else f"{letter}*{count}" for letter, count in one) for one in stages]
    *groups, last = [(text, len(list(group))) for text, group in groupby(texts)]
    parts = [f"({text}|)*{count}," if count > 1 else f"{text}|" for text, count in groups]
    return "".join(parts) + last[0]


def _runs(letters: str) -> list[tuple[str, int]]:
    return [
        (letter, sum(int(count or 1) for _, count in group))
        for letter, group in groupby(_RUN.findall(letters), key=lambda run: run[0])
    ]


def _check(stages: Sequence[Layers], num_ranks: int) -> None:
    """Check what Megatron asserts of a layout."""
    runs = [run for layers in stages for run in layers]
    once = all(count == 1 for letter, count in runs if letter in "EL")
    if not (once and _ORDER.fullmatch("".join(letter for letter, _ in runs))):
        raise _wrong("expected one E before all layers, one L behind them, and every t before every m")
    if all(letter != "t" for letter, _ in runs):
        raise _wrong("no stage has a decoder layer")
    predicting = [stage for stage, layers in enumerate(stages) if any(letter == "m" for letter, _ in layers)]
    if len(predicting) > 1:
        raise _wrong(f"Megatron wants all m in one stage, got stages {predicting[0]} and {predicting[1]}")
    if predicting and predicting[0] < len(stages) - num_ranks:
        raise _wrong(f"Megatron wants m in the last stage of its rank, got stage {predicting[0]}")


def _wrong(message: str) -> UsageError:
    return UsageError([Diagnostic(code="layers", message=f"--layers: {message}")])
