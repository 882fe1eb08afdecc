"""Files that are no JSON text at all, or cannot be read: one line each, with line and column where there is one."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_profiles import BASE, edited, encoded

from cpipe.errors import InfeasibleError, ProfileError
from cpipe.profile import load_profile, normalize, parse_profile

MANY = 100_000


def line(data: bytes) -> str:
    """Return the one line that `data` gives, without ``error: FILE``."""
    with pytest.raises(ProfileError, match=r"^error: f\.json:[^\n]*$") as caught:
        parse_profile(data, "f.json")
    assert len(caught.value.diagnostics) == 1
    return str(caught.value).removeprefix("error: f.json:").strip()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # an empty file
        (b"", "expected a JSON object, got an empty file [empty-file]"),
        (b"\n \t\n", "expected a JSON object, got an empty file [empty-file]"),
        (b"\xef\xbb\xbf", "expected a JSON object, got an empty file [empty-file]"),
        # encodings other than UTF-8, with and without a byte order mark
        ("{}".encode("utf-16"), "expected UTF-8, got UTF-16 or UTF-32 [not-utf8]"),
        ("{}".encode("utf-16-be"), "expected UTF-8, got UTF-16 or UTF-32 [not-utf8]"),
        ("{}".encode("utf-16-le"), "expected UTF-8, got UTF-16 or UTF-32 [not-utf8]"),
        ("{}".encode("utf-32"), "expected UTF-8, got UTF-16 or UTF-32 [not-utf8]"),
        ('{\n "é": 1}'.encode("latin-1"), "2:3: expected UTF-8, got the byte 0xe9 [not-utf8]"),
        # a file that ends too early
        (b'{"a": [1, 2', "1:12: the file ends before the JSON document does [truncated]"),
        (b'{\n"a": "text', "2:11: the file ends before the JSON document does [truncated]"),
        (b'{"a": tru', "1:10: the file ends before the JSON document does [truncated]"),
        # several documents
        (b"{}\n{}", "2:1: expected the end of the file after the JSON document [trailing-data]"),
        (b'{"a": 1}]', "1:9: expected the end of the file after the JSON document [trailing-data]"),
        # trailing commas
        (b'{"a": 1,}', "1:8: expected no comma after the last value [trailing-comma]"),
        (b'{"a": [1,\n  2,\n]}', "2:4: expected no comma after the last value [trailing-comma]"),
        # comments
        (b'{"a": 1, // one\n"b": 2}', "1:10: JSON has no comments [comment]"),
        (b'/* profile */ {"a": 1}', "1:1: JSON has no comments [comment]"),
        (b'{"a": 1} # done', "1:10: JSON has no comments [comment]"),
        # other syntax
        (b"{'a': 1}", '1:2: expected a key in double quotes, got "\'" [bad-json]'),
        (b'{"a" 1}', '1:6: expected a colon, got "1" [bad-json]'),
        (b'{"a": 1 "b": 2}', '1:9: expected a comma or the end of the list or object, got "\\"" [bad-json]'),
        (b'{"a": True}', '1:7: expected a value, got "T" [bad-json]'),
        (b'{"a": -NaN}', '1:7: expected a value, got "-" [bad-json]'),
        (
            b'{"a": "x\ny"}',
            "1:9: expected text that JSON allows in a string, got a control character that it does not [bad-json]",
        ),
        (
            b'{"a": "\\x41"}',
            "1:8: expected text that JSON allows in a string, got an escape sequence that it does not [bad-json]",
        ),
        # nesting that exhausts the decoder
        (b"[" * MANY, "lists and objects are nested too deeply [too-deep]"),
        (b'{"a":' * MANY, "lists and objects are nested too deeply [too-deep]"),
    ],
)
def test_text_that_is_no_json(data: bytes, expected: str) -> None:
    """A syntax fault is one line that says what is wrong in a user's words, and where."""
    assert line(data) == expected


def test_any_cut_is_called_a_cut() -> None:
    """A profile that was copied in part is called truncated, wherever the copy stopped."""
    text = encoded(edited({"$.name": "caf\u00e9 \\n", "$.extensions": [-1.5e-3, True, False, None]}))
    assert {cut for cut in range(1, len(text)) if "[truncated]" not in line(text[:cut])} == set()


def test_byte_order_mark_is_accepted() -> None:
    """A UTF-8 byte order mark changes neither the profile nor the columns of faults."""
    assert parse_profile(b"\xef\xbb\xbf" + encoded(BASE), "f.json") == parse_profile(encoded(BASE), "f.json")
    assert line(b"\xef\xbb\xbf{]") == '1:2: expected a key in double quotes, got "]" [bad-json]'


def test_missing_file(tmp_path: Path) -> None:
    """A file that does not exist is named."""
    with pytest.raises(ProfileError, match=r"^error: .*none\.json: no such file \[file-not-found\]$"):
        load_profile(tmp_path / "none.json")


def test_directory(tmp_path: Path) -> None:
    """A directory is no file."""
    with pytest.raises(ProfileError, match=r"^error: .*: expected a file, got a directory \[is-a-directory\]$"):
        load_profile(str(tmp_path))


def test_name_that_is_no_name() -> None:
    """A name that the system cannot take is a fault of the input, not a crash."""
    with pytest.raises(ProfileError, match=r"this is not the name of a file \[unreadable\]$"):
        load_profile("a\0b")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(13, "Permission denied"), r"no permission to read this file \[permission-denied\]$"),
        (OSError(5, "Input/output error"), r"Input/output error \[unreadable\]$"),
    ],
)
def test_unreadable_file(monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str) -> None:
    """What the system says about a file that cannot be read becomes one line."""

    def refuse(self: Path, mode: str) -> None:
        raise error

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ProfileError, match=expected):
        load_profile("f.json")


def test_file_too_large(tmp_path: Path) -> None:
    """A file that is no profile by its size alone is not read into memory."""
    path = tmp_path / "large.json"
    with path.open("wb") as stream:
        stream.write(b'{"a"')
        stream.truncate(2**25 + 1)
    with pytest.raises(ProfileError, match=r"expected at most 33554432 bytes, got more \[file-too-large\]$"):
        load_profile(path)


def test_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name `-` stands for standard input, in diagnostics too."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(encoded(BASE))))
    assert load_profile("-").name == "base"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{]")))
    with pytest.raises(ProfileError, match=r"^error: -:1:2: expected a key"):
        load_profile("-")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "stages", "devices", "from", "forward_ms", "x"]), children, max_size=4)
    ),
    max_leaves=12,
)


def value_paths(value: object, path: str = "$") -> list[str]:
    """Return the JSON path of every value in a tree, the root's first."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    steps = [(f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}", child) for key, child in children]
    return [path, *(found for step, child in steps for found in value_paths(child, step))]


DAMAGED = st.builds(lambda path, value: encoded(edited({path: value})), st.sampled_from(value_paths(BASE)), JSON_VALUES)


@settings(deadline=None)
@given(st.binary() | st.text().map(str.encode) | JSON_VALUES.map(encoded) | DAMAGED)
@example(b'{"version":' + b"1" * 5000 + b"}")
@example(b'{"format":"cpipe.profile","version":1,"microbatches":1e308,"devices":[{}],"stages":[{}],"links":[{}]}')
def test_no_bytes_escape_the_loader(data: bytes) -> None:
    """Whatever a file holds, it loads to a profile that normalizes, or gives diagnostics of one line each."""
    try:
        profile = parse_profile(data, "f.json")
    except ProfileError as error:
        assert error.diagnostics
        assert all(str(fault).startswith("error: f.json") and "\n" not in str(fault) for fault in error.diagnostics)
        str(error).encode()
        return
    with contextlib.suppress(InfeasibleError):  # a proof about memory is an answer, too
        normalize(profile).verify()
