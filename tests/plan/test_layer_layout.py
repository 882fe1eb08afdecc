"""Tests of cpipe.plan.exchange.layer_layout: layers of stages in Megatron's spelling, read back by a parser of its own.

The parser here expands the text by hand, character by character; it shares nothing with the writer.
"""

from __future__ import annotations

from random import Random

import pytest

from cpipe.errors import UsageError
from cpipe.plan.exchange import layer_layout, stage_layers


def times(text: str, at: int) -> tuple[int, int]:
    """Return the number behind a ``*`` at `at` and the place after it; 1 where there is none."""
    if at >= len(text) or text[at] != "*":
        return 1, at
    end = at + 1
    while end < len(text) and text[end].isdigit():
        end += 1
    return int(text[at + 1 : end]), end


def parse(layout: str) -> list[str]:
    """Return the letters of each stage of a layout."""
    flat, at, text = "", 0, layout.replace(",", "")
    while at < len(text):
        if text[at] == "(":
            close = text.index(")", at)
            inner = "|".join(parse(text[at + 1 : close]))
            count, at = times(text, close + 1)
            flat += inner * count
        else:
            letter = text[at]
            assert letter in "EtmL|", f"{letter!r} at {at} of {text!r}"
            count, at = times(text, at + 1)
            flat += letter * count
    return flat.split("|")


def test_the_parser_knows_the_grammar() -> None:
    """The parser of these tests expands letters, groups, groups of several stages, and empty stages."""
    assert parse("Ettt|(tt|)*2,m|L") == ["Ettt", "tt", "tt", "m", "L"]
    assert parse("E(t|tt|)*2L") == ["Et", "tt", "t", "tt", "L"]
    assert parse("E||t*3|L") == ["E", "", "ttt", "L"]
    assert parse("Et,(|ab)*0L".replace("ab", "tt")) == ["EtL"]


def test_deepseek_layout() -> None:
    """DeepSeek-V3 on 16 ranks: 32 stages, 61 decoder layers, one of multi-token prediction and the loss alone."""
    layout = layer_layout(stage_layers("3,2x29,m,L", 32, 16))
    assert layout == "Et*3|(tt|)*29,m|L"
    stages = parse(layout)
    letters = "".join(stages)
    assert (len(stages), letters.count("t"), letters.count("m")) == (32, 61, 1)
    assert (stages[0], stages[-2:]) == ("Ettt", ["m", "L"])


@pytest.mark.parametrize("seed", range(200))
def test_round_trip(seed: int) -> None:
    """Whatever the partition, the layout reads back as its stages: embedding first, loss last, nothing lost."""
    draw = Random(seed)
    num_stages = draw.randint(1, 24)
    layers = [draw.choice((0, 1, 2, 2, 2, 3, 7, 12)) for _ in range(num_stages)]
    if draw.random() < 0.3:
        layers = [draw.randint(1, 8)] * num_stages
    layers[draw.randrange(num_stages)] = draw.randint(1, 9)
    predicting = draw.random() < 0.3
    entries = [*map(str, layers[:-1]), "t" * layers[-1] + ("m" if predicting else "")]
    expected = ["t" * count for count in layers]
    expected[0] = "E" + expected[0]
    expected[-1] += "mL" if predicting else "L"
    assert parse(layer_layout(stage_layers(",".join(entries), num_stages, 1))) == expected


@pytest.mark.parametrize(
    ("text", "num_stages", "expected"),
    [
        ("8", 1, ["Etttttttt" + "L"]),
        ("1,1", 2, ["Et", "tL"]),
        (" 2 , 1x2 , L ", 4, ["Ett", "t", "t", "L"]),
        ("E,2x2,L", 4, ["E", "tt", "tt", "L"]),
        ("E,,t*2tt*1,L", 4, ["E", "", "tttt", "L"]),
        ("0,2,0", 3, ["E", "tt", "L"]),
        ("1,x3,1", 5, ["Et", "", "", "", "tL"]),
        ("t*0t,t", 2, ["Et", "tL"]),
    ],
)
def test_entries(text: str, num_stages: int, expected: list[str]) -> None:
    """An entry is a number of layers, letters or nothing, each as many times as it says."""
    assert parse(layer_layout(stage_layers(text, num_stages, num_stages))) == expected


@pytest.mark.parametrize(
    ("text", "num_stages", "message"),
    [
        ("8,8", 3, "expected an entry for each of 3 stages, got 2"),
        ("8x4", 3, "expected an entry for each of 3 stages, got 4"),
        ("", 2, "expected an entry for each of 2 stages, got 1"),
        ("8,-1", 2, "entry 2: expected a number of layers or letters of E, t, m and L, got '-1'"),
        ("8,1.5", 2, "entry 2: expected a number"),
        ("8,d", 2, "entry 2: expected a number"),
        ("8x,8", 2, "entry 1: expected a number"),
        ("(tt|)*2", 2, "entry 1: expected a number"),
        ("99999,1", 2, "entry 1: expected a number"),
        ("t*99999,1", 2, "entry 1: expected a number"),
        ("8,E8", 2, "entry 2: expected a number"),
        ("2,Et", 2, "expected one E before all layers"),
        ("EEt,t", 2, "expected one E before all layers"),
        ("t,Lt", 2, "expected one E before all layers"),
        ("tL,tL", 2, "expected one E before all layers"),
        ("m,t", 2, "and every t before every m"),
        ("0,0", 2, "no stage has a decoder layer"),
        ("t,m,m,L", 4, "Megatron wants all m in one stage, got stages 1 and 2"),
    ],
)
def test_wrong_layers(text: str, num_stages: int, message: str) -> None:
    """What is no entry, does not fit the plan or breaks a rule of Megatron's is refused, and the rule named."""
    with pytest.raises(UsageError, match=r"\[layers\]") as raised:
        stage_layers(text, num_stages, num_stages)
    assert message in str(raised.value)


def test_prediction_stands_in_the_last_stage_of_its_rank() -> None:
    """Of several stages a rank only the last may predict more tokens, as Megatron asserts."""
    assert parse(layer_layout(stage_layers("1,1,m,L", 4, 2))) == ["Et", "t", "m", "L"]
    with pytest.raises(UsageError, match=r"m in the last stage of its rank, got stage 1 \[layers\]"):
        stage_layers("1,m,0,L", 4, 2)
