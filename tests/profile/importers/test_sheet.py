"""Tests of cpipe.profile.importers.sheet: what spreadsheets save, and what is wrong with it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpipe.errors import InputError
from cpipe.profile.importers import COLUMNS, Layer, parse_sheet

SPLIT = "layer,forward_ms,input_grad_ms,weight_grad_ms\n"


def parsed(text: str) -> tuple[Layer, ...]:
    """Return the layers of a sheet."""
    return parse_sheet(text.encode(), "costs.csv")


def faults(data: str | bytes) -> list[str]:
    """Return what is said about a wrong sheet, from the line on."""
    with pytest.raises(InputError, match=r"costs\.csv") as caught:
        parse_sheet(data.encode() if isinstance(data, str) else data, "costs.csv")
    return [str(fault).removeprefix("error: costs.csv").removeprefix(":") for fault in caught.value.diagnostics]


def test_plain_sheet() -> None:
    """A line is a layer; empty cells are absent, and so are lines of them."""
    first, second = parsed(
        "layer,forward_ms,input_grad_ms,weight_grad_ms,full_backward_ms,activation_bytes,output_bytes\n"
        "embedding,0.5,0,0.25,,1000,64\n,,,,,,\n\nblock,2,,,3.5,2e3,\n"
    )
    assert first == Layer(
        name="embedding",
        forward_ms=0.5,
        input_grad_ms=0.0,
        weight_grad_ms=0.25,
        activation_bytes=1000,
        output_bytes=64,
    )
    assert second == Layer(name="block", forward_ms=2.0, full_backward_ms=3.5, activation_bytes=2000)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_separators_line_ends_and_marks(separator: str, ends: str, mark: str) -> None:
    """Commas, semicolons and tabs, all line ends and a byte order mark give the same layers."""
    lines = ["layer,forward_ms,full_backward_ms", "a,1.5,3", '"b, or c",2,4', ""]
    text = mark + ends.join(line.replace(",", separator) if '"' not in line else "" for line in lines)
    assert parsed(text) == (Layer(name="a", forward_ms=1.5, full_backward_ms=3.0),)


def test_decimal_commas() -> None:
    """Where commas do not separate cells, they may stand for the decimal point."""
    (layer,) = parsed("layer;forward_ms;full_backward_ms;activation_bytes\na;0,125;1,5e1;3\n")
    assert (layer.forward_ms, layer.full_backward_ms) == (0.125, 15.0)


def test_quoted_cells() -> None:
    """Quotes keep separators in a name."""
    (layer,) = parsed('layer,forward_ms,full_backward_ms\n"block, ""first""",1,2\n')
    assert layer.name == 'block, "first"'


def test_columns_in_any_order() -> None:
    """Columns are known by name, in any order, whatever case and with blanks for underscores; names are optional."""
    (layer,) = parsed("Full Backward MS,FORWARD_MS\n3,1\n")
    assert layer == Layer(name="line2", forward_ms=1.0, full_backward_ms=3.0)


def test_count_repeats_a_layer() -> None:
    """A count stands for so many equal layers."""
    layers = parsed("layer,count,forward_ms,full_backward_ms\na,3,1,2\nb,,1,2\n")
    assert [layer.name for layer in layers] == ["a", "a", "a", "b"]


def test_large_sizes_are_exact() -> None:
    """Sizes beyond what a float holds exactly are kept to the byte."""
    (layer,) = parsed("forward_ms,full_backward_ms,static_bytes\n1,1,4503599627370497\n")
    assert layer.static_bytes == 4503599627370497
    (large,) = parsed(f"forward_ms,full_backward_ms,static_bytes\n1,1,{2**60 + 1}\n")
    assert large.static_bytes == 2**60 + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", " expected a line of column names [empty-file]"),
        ("\n  \n", "2:1: unknown column"),
        ("layer,forward_ms,full_backward_ms\n", "1:1: expected a line for each layer below the column names"),
        ("layer,forward,full_backward_ms\n", '1:2: unknown column "forward" [unknown-column]'),
        ("layer,forward_ms,forward_ms\n", '1:3: the column "forward_ms" stands here more than once [duplicate-column]'),
        ("layer,full_backward_ms\n", '1:1: the required column "forward_ms" is missing [missing-column]'),
        ("layer,forward_ms,input_grad_ms\n", "1:1: expected the columns input_grad_ms and weight_grad_ms, or full_"),
        (SPLIT + "a,-1,2,3\n", '2:2: forward_ms: expected a number >= 0, got "-1" [negative-duration]'),
        (SPLIT + "a,x,2,3\n", '2:2: forward_ms: expected a number >= 0, got "x" [not-a-number]'),
        (SPLIT + "a,nan,2,3\n", '2:2: forward_ms: expected a number >= 0, got "nan" [not-a-number]'),
        (SPLIT + "a,1 ms,2,3\n", '2:2: forward_ms: expected a number >= 0, got "1 ms" [not-a-number]'),
        (SPLIT + 'a,"1,5",2,3\n', '2:2: forward_ms: expected a number >= 0, got "1,5" [decimal-comma]'),
        (SPLIT + "a,1e13,2,3\n", '2:2: forward_ms: expected at most 1000000000000, got "1e13" [too-large]'),
        (SPLIT + "a,,2,3\n", "2:1: forward_ms: expected a number >= 0, got an empty cell [missing-value]"),
        (SPLIT + "a,1,2,\n", "2:1: input_grad_ms is given without weight_grad_ms [incomplete-split]"),
        (SPLIT + "a,1,,2\n", "2:1: weight_grad_ms is given without input_grad_ms [incomplete-split]"),
        (SPLIT + "a,1,,\n", "2:1: expected input_grad_ms and weight_grad_ms, or full_backward_ms, got none of them"),
        (SPLIT + "a,1,2,3,4\n", "2:5: expected 4 cells, as many as there are columns, got 5 [wrong-length]"),
        (SPLIT + "a,1,2\n", "2:1: input_grad_ms is given without weight_grad_ms [incomplete-split]"),
        (SPLIT + 'a,"1,2,3\n', "2:1: expected cells separated by"),
        (SPLIT + "a,\x00,2,3\n", "2:2: forward_ms: expected a number >= 0, got"),
        (
            "forward_ms,full_backward_ms,static_bytes\n1,1,-5\n",
            '2:3: static_bytes: expected an integer >= 0, got "-5" [negative-size]',
        ),
        (
            "forward_ms,full_backward_ms,static_bytes\n1,1,1.5\n",
            '2:3: static_bytes: expected an integer >= 0, got "1.5"',
        ),
        ("forward_ms,full_backward_ms,count\n1,1,0\n", '2:3: count: expected an integer >= 1, got "0" [too-small]'),
        ("forward_ms,full_backward_ms,count\n1,1,2049\n", '2:3: count: expected at most 2048, got "2049" [too-large]'),
        ("forward_ms,full_backward_ms,count\n1,1,2048\n1,1,2\n", "3:1: expected at most 2048 layers, got more"),
    ],
)
def test_wrong_sheets(text: str, expected: str) -> None:
    """What is wrong is told with line, number of the cell, rule and value."""
    assert faults(text)[0].startswith(expected)


def test_not_utf8() -> None:
    """A sheet in another encoding is refused at its first odd byte."""
    assert faults(b"layer,forward_ms,full_backward_ms\nSchl\xfcssel,1,2\n") == [
        "2:1: expected UTF-8, got the byte 0xfc [not-utf8]"
    ]


def test_all_faults_in_file_order() -> None:
    """Every fault of every line is told, in the order of the file."""
    found = faults(SPLIT + 'a,-1,2,3\nb,"1,5",2,\nc,x,y,1\nd,1,1,1\ne,,1,1\n')
    places = [tuple(map(int, fault.split(":")[:2])) for fault in found]
    assert places == sorted(places) == [(2, 2), (3, 1), (3, 2), (4, 2), (4, 3), (6, 1)]


def test_rules_have_names() -> None:
    """The names of the rules are stable; these are for the whole sheet."""
    assert faults("forward_ms,full_backward_ms,count\n1,1,2048\n1,1,2\n")[0].endswith("[too-many-layers]")
    assert faults("layer,forward_ms,full_backward_ms\n")[0].endswith("[empty-list]")
    assert faults(SPLIT + 'a,"1,2,3\n')[0].endswith("[bad-csv]")


def test_hint_of_an_unknown_column() -> None:
    """A column that is nearly one gets a guess, any other the list of all columns."""
    for name, hint in (("forward_m", 'did you mean "forward_ms"?'), ("colour", "the columns are layer, count,")):
        with pytest.raises(InputError, match="unknown-column") as caught:
            parsed(f"{name},full_backward_ms\n")
        assert str(caught.value.hint).startswith(hint)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 2**62)), min_size=1, max_size=8),
    st.sampled_from(",;\t"),
)
def test_round_trip(rows: list[tuple[int, int, int]], separator: str) -> None:
    """Numbers that are written are read again as they are, under every separator."""
    sheet = io.StringIO()
    sheet.write(separator.join(("layer", "forward_ms", "full_backward_ms", "static_bytes")) + "\n")
    for index, (forward, backward, static) in enumerate(rows):
        sheet.write(separator.join((f"l{index}", str(forward / 64), str(backward / 64), str(static))) + "\n")
    found = [
        (layer.forward_ms * 64, (layer.full_backward_ms or 0) * 64, layer.static_bytes)
        for layer in parsed(sheet.getvalue())
    ]
    assert found == rows


def test_columns_are_the_fields_of_a_stage() -> None:
    """Apart from its name and count, a column is called as the field of the profile that it fills."""
    from cpipe.profile import StageSpec

    assert set(COLUMNS) - {"layer", "count"} <= set(StageSpec.__struct_fields__)
