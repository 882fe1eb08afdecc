"""Profiles that break a rule: each with the exact lines a user sees."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sample_profiles import BASE, WRONG_FIELDS, WRONG_RULES, WRONG_SHAPES, Edits, edited, encoded

from cpipe.errors import Diagnostic, ProfileError
from cpipe.profile import load_profile, parse_profile


def faults(document: Any) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of a document that must not load."""
    with pytest.raises(ProfileError, match=r"^error: base\.json") as caught:
        parse_profile(document if isinstance(document, bytes) else encoded(document), "base.json")
    return caught.value.diagnostics


def lines(document: Any) -> list[str]:
    """Return the lines shown for a document, without the file's name."""
    return [str(fault).removeprefix("error: base.json: ") for fault in faults(document)]


@pytest.mark.parametrize(("edits", "expected"), [*WRONG_FIELDS, *WRONG_SHAPES, *WRONG_RULES])
def test_one_broken_rule_gives_one_line(edits: Edits, expected: list[str]) -> None:
    """A broken rule is reported at its path with what was expected and what was found, and nothing follows from it."""
    assert lines(edited(edits)) == expected


def test_all_faults_come_at_once_in_file_order() -> None:
    """Faults of fields, of objects and between objects are told together, in the order of the file."""
    document = edited(
        {
            "$.links[0].duplex": "both",
            "$.stages[1].device": "g7",
            "$.stages[0].forward_ms": -1,
            "$.stages[0].weight_grad_ms": ...,
            "$.devices[1].memory_bytes": "all",
            "$.data_parallel.contends_with": ["x", "y"],
            "$.extra": 1,
        }
    )
    assert [(fault.path, fault.code) for fault in faults(document)] == [
        ("$.devices[1].memory_bytes", "wrong-type"),
        ("$.stages[0].forward_ms", "negative-duration"),
        ("$.stages[0].input_grad_ms", "incomplete-split"),
        ("$.stages[1].device", "unknown-device"),
        ("$.links[0].duplex", "unknown-value"),
        ("$.data_parallel.contends_with", "unknown-link"),
        ("$.extra", "unknown-key"),
    ]


def test_only_the_first_faults_get_a_guess() -> None:
    """Guesses at what was meant stop after ten of a kind, so that thousands of faults are told without delay."""
    stages = [{**BASE["stages"][1], "id": f"s{index}", "device": "gg0", "forwrd_ms": 1} for index in range(20)]
    hints = [(fault.code, fault.hint) for fault in faults(edited({"$.stages": stages}))]
    assert hints.count(("unknown-key", 'did you mean "forward_ms"?')) == 10
    assert hints.count(("unknown-key", None)) == 10
    assert [hint for code, hint in hints if code == "unknown-device"].count(None) == 10


def test_every_missing_key_is_named() -> None:
    """An empty object lacks each required key, and says so for each."""
    assert lines({}) == [
        f'$: the required key "{key}" is missing [missing-key]'
        for key in ("format", "version", "microbatches", "devices", "stages")
    ]


def test_top_level_is_an_object() -> None:
    """A list, a text or a number is no profile."""
    assert lines([1, 2]) == ["$: expected an object, got a list of 2 values [wrong-type]"]
    assert lines("profile") == ['$: expected an object, got "profile" [wrong-type]']
    assert lines(7) == ["$: expected an object, got 7 [wrong-type]"]


def test_another_format_hides_what_follows_from_it() -> None:
    """A plan given as a profile is called that, and not a list of unknown keys."""
    fault, *others = faults({"format": "cpipe.plan", "version": 1, "ranks": []})
    assert (fault.code, fault.hint, others) == ("wrong-format", "this is a plan, not a profile", [])


def test_newer_version_hides_what_follows_from_it() -> None:
    """A newer version may mean anything, so nothing else of it is called wrong."""
    fault, *others = faults({"format": "cpipe.profile", "version": 3, "lanes": 2})
    assert (fault.code, fault.hint, others) == ("newer-version", "update cpipe", [])


@pytest.mark.parametrize(
    ("edits", "hint"),
    [
        ({"$.stages[0].forwad_ms": 1}, 'did you mean "forward_ms"?'),  # a misspelt key
        ({"$.forward_ms": 1}, '"forward_ms" belongs inside an entry of `stages`'),  # a key of another object
        ({"$.stages[0].microbatches": 1}, '"microbatches" belongs at the top of the profile'),
        ({"$.stages[0].qqq": 1}, None),  # nothing like it
        ({"$.stages[0].device": "g00"}, 'did you mean "g0"?'),  # a misspelt device
        ({"$.links[0].between[0]": "dc-aa"}, 'did you mean "dc-a"?'),  # a misspelt site
    ],
)
def test_hints_help_with_spelling(edits: Edits, hint: str | None) -> None:
    """An unknown name comes with the known one that it resembles, or the place where it belongs."""
    found = faults(edited(edits))
    assert found[0].hint == hint
    with pytest.raises(ProfileError, match=r"base\.json") as caught:
        parse_profile(encoded(edited(edits)), "base.json")
    assert caught.value.hint == next((fault.hint for fault in found if fault.hint), None)


def test_duplicate_keys_are_found_where_they_stand() -> None:
    """A key that stands twice in an object is a fault, in the user's extensions too."""
    text = encoded(edited({"$.extensions": {"deep": [{"k": 1}]}})).decode()
    text = text.replace('"forward_ms": 2.5', '"forward_ms": 2.5, "forward_ms": 2.5').replace(
        '{"k": 1}', '{"k": 1, "k": 2, "k": 3}'
    )
    assert lines(text.encode()) == [
        '$.stages[0].forward_ms: the key "forward_ms" stands here more than once [duplicate-key]',
        '$.extensions.deep[0].k: the key "k" stands here more than once [duplicate-key]',
    ]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("1e400", "1e400"),  # finite text, infinite double
        ("-1e400", "-1e400"),
        ("9" * 5000, "9" * 37 + "..."),  # more digits than Python converts
    ],
)
def test_numbers_beyond_a_double_have_line_and_column(number: str, shown: str) -> None:
    """A number that is not finite is found in a large file by line, column and path, and reported once."""
    text = '{"s": "NaN \\" 1e400",\n "n": 7, "x":\n  [1.5, ' + number + "]}"
    found = [fault for fault in faults(text.encode()) if fault.code == "not-finite"]
    assert list(map(str, found)) == [
        f"error: base.json:3:9: $.x[1]: expected a finite number, got {shown} [not-finite]"
    ]
    assert (found[0].hint is not None) == (number.strip("-")[0] in "NI")


def test_not_finite_field_is_one_fault() -> None:
    """A bandwidth measured as bytes / 0 is one fault, at the field, with a hint about its likely cause."""
    text = encoded(BASE).replace(b'"bandwidth_gbit_s": 100', b'"bandwidth_gbit_s": Infinity')
    (fault,) = faults(text)
    assert (fault.path, fault.line, fault.hint) == (
        "$.links[0].bandwidth_gbit_s",
        1,
        "a bandwidth measured as bytes / 0 gives this",
    )


def test_lone_surrogates_are_refused() -> None:
    """Text that UTF-8 cannot hold could not be written to a plan, so it is refused wherever it stands."""
    text = encoded(edited({"$.extensions": {"\ud800": "\udfff"}, "$.name": "\ud800"}))
    assert lines(text) == [
        r'$.name: expected text that UTF-8 can hold, got a lone surrogate in "\ud800" [bad-text]',
        r'$.extensions["\ud800"]: expected text that UTF-8 can hold, got a lone surrogate in "\ud800" [bad-text]',
        r'$.extensions["\ud800"]: expected text that UTF-8 can hold, got a lone surrogate in "\udfff" [bad-text]',
    ]


def test_markup_and_line_breaks_in_names_stay_in_one_line() -> None:
    """Names are shown as JSON text: no line break, escape sequence or markup of theirs takes effect."""
    (line,) = lines(edited({"$.stages[0].device": "[red]g0[/red]"}))
    assert line == '$.stages[0].device: no device has the id "[red]g0[/red]" [unknown-device]'
    (line,) = lines(edited({"$.a\nb\x9b": 1}))
    assert line == r'$["a\nb\u009b"]: unknown key "a\nb\u009b" [unknown-key]'


def test_deep_nesting_is_refused() -> None:
    """Nesting that would exhaust the stack is refused, whether the decoder or the walk meets it."""
    for depth in (65, 100_000):
        text = b'{"extensions": ' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(ProfileError, match=r"^error: base\.json: .*nested.*\[too-deep\]$"):
            parse_profile(text, "base.json")


def test_a_wrong_entry_does_not_hide_the_others() -> None:
    """An entry that cannot be read takes no part in rules about the rest, and the rest is still checked."""
    document = edited(
        {
            "$.devices[0]": 5,
            "$.stages[1].forward_ms": -1,
            "$.links[0]": {"between": [1, "dc-b"]},
            "$.data_parallel.contends_with": ["dc-a", "dc-b"],
        }
    )
    assert [(fault.path, fault.code) for fault in faults(document)] == [
        ("$.devices[0]", "wrong-type"),
        ("$.stages[1].forward_ms", "negative-duration"),
        ("$.links[0].between[0]", "wrong-type"),
    ]


def test_unlinked_sites_are_named_once() -> None:
    """A pair of sites without a link is one fault, however many boundaries cross it."""
    document = edited({"$.links": [], "$.stages[2]": {**BASE["stages"][0], "id": "s2"}})
    assert [fault.code for fault in faults(document)] == ["unlinked-sites"]


def test_load_names_the_file_as_given(tmp_path: Any) -> None:
    """Diagnostics name the file as the user did."""
    path = tmp_path / "bad [1].json"
    path.write_bytes(encoded(edited({"$.microbatches": 0})))
    with pytest.raises(ProfileError, match="^" + re.escape(f"error: {path}: $.microbatches: ")):
        load_profile(path)
