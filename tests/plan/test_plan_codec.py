"""Tests of cpipe.plan.codec and cpipe.plan.text: plans as bytes."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hand_plans import hand_plan, link
from helpers import assert_plan_ok, plan_of
from sample_plans import make_problem, one_f_one_b

from cpipe.errors import PlanError
from cpipe.ir import Plan
from cpipe.plan import codec, decode_plan, encode_plan, load_plan

PLAN = hand_plan([0, 1], 1, ["F0.0 S0.0@0", "R1.0@0 ?1.0@0 F1.0"], [link(0, 1, "activation")])
TEXT = encode_plan(PLAN).decode()
OPS = (
    'expected one of "ALL_GATHER", "ALL_REDUCE", "B", "D", "F", "FB", "OFFLOAD", "RECV", "REDUCE_SCATTER", "RELOAD", '
    '"SEND", "STEP", "W", "WAIT"'
)


def edited(old: str, new: str) -> bytes:
    """Return the text of `PLAN` with its first `old` replaced."""
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode()


WRONG: dict[str, tuple[bytes, list[str]]] = {
    "truncated": (TEXT[:40].encode(), ["p.json:1:39: the file ends before the JSON document does [truncated]"]),
    "trailing comma": (TEXT.replace("]}]}", "]}],}").encode(), [
        "p.json:18:18: expected no comma after the last value [trailing-comma]"]),
    "second comma": (edited('"seed": 0,', '"seed": 0,,'), [
        'p.json:3:60: expected a key in double quotes, got "," [bad-json]']),
    "comment": (edited('"seed": 0,', '"seed": 0, // none\n'), ["p.json:3:61: JSON has no comments [comment]"]),
    "two documents": (TEXT.encode() + b"{}", [
        "p.json:19:1: expected the end of the file after the JSON document [trailing-data]"]),
    "too deep to read": (b"[" * 100_000, ["p.json: lists and objects are nested too deeply [too-deep]"]),
    "too deep": (edited("]}]}", ']}], "extensions": {"a": ' + "[" * 64 + "]" * 64 + "}}"), [
        "p.json: nested deeper than 64 levels [too-deep]"]),
    "long integer": (edited('"seed": 0', '"seed": ' + "7" * 5000), [
        f"p.json:3:58: $.made_by.seed: expected a finite number, got {'7' * 37}... [not-finite]"]),
    "long integer in limits": (edited('"limits": {}', '"limits": {"a": ' + "7" * 5000 + "}"), [
        f"p.json:3:77: $.made_by.limits.a: expected a finite number, got {'7' * 37}... [not-finite]"]),
    "large integer": (edited('"makespan_ns": 0', f'"makespan_ns": {2**62 + 1}'), [
        "p.json: $.claims.makespan_ns: expected an integer <= 4611686018427387904, got 4611686018427387905 "
        "[too-large]"]),
    "small integer": (edited('"start_ns": 0', f'"start_ns": {-2**70}'), [
        "p.json: $.ranks[0].ops[0].start_ns: rank 0: expected an integer >= -4611686018427387904, "
        "got -1180591620717411303424 [too-small]"]),
    "empty": (b" \n", ["p.json: expected a JSON object, got an empty file [empty-file]"]),
    "utf-16": (TEXT.encode("utf-16"), ["p.json: expected UTF-8, got UTF-16 or UTF-32 [not-utf8]"]),
    "latin-1": (edited('"hand"', '"h\u00e4nd"').decode().encode("latin-1"), [
        "p.json:3:44: expected UTF-8, got the byte 0xe4 [not-utf8]"]),
    "not a number": (edited('"start_ns": 0', '"start_ns": NaN'), [
        "p.json:11:46: $.ranks[0].ops[0].start_ns: rank 0: expected a finite number, got NaN [not-finite]"]),
    "infinite": (edited('"makespan_ns": 0', '"makespan_ns": -Infinity'), [
        "p.json:5:28: $.claims.makespan_ns: expected a finite number, got -Infinity [not-finite]"]),
    "overflow": (edited('"limits": {}', '"limits": {"gap": [1e999]}'), [
        "p.json:3:80: $.made_by.limits.gap[0]: expected a finite number, got 1e999 [not-finite]"]),
    "surrogate": (edited('"hand"', '"\\ud800"'), [
        'p.json: $.made_by.method: expected text that UTF-8 can hold, got a lone surrogate in "\\ud800" [bad-text]']),
    "surrogate in a key": (edited('"limits": {}', '"limits": {"\\ud800": 1}'), [
        'p.json: $.made_by.limits["\\ud800"]: expected text that UTF-8 can hold, got a lone surrogate in "\\ud800" '
        "[bad-text]"]),
    "array": (b"[1]", ["p.json: $: expected an object, got a list of 1 value [wrong-type]"]),
    "profile": (b'{"format": "cpipe.profile"}', [
        'p.json: $.format: expected "cpipe.plan", got "cpipe.profile" [wrong-format]']),
    "nothing": (b"{}", [f'p.json: $: the required key "{key}" is missing [missing-key]' for key in (
        "format", "version", "digest", "made_by", "problem", "claims", "channels", "groups", "ranks")]),
    "newer": (edited('"version": 1', '"version": 2, "more": true'), [
        "p.json: $.version: made by a newer cpipe: expected version 1, got 2 [newer-version]"]),
    "version zero": (edited('"version": 1', '"version": 0'), [
        "p.json: $.version: expected 1, got 0 [unknown-value]"]),
    "version true": (edited('"version": 1', '"version": true'), [
        "p.json: $.version: expected 1, got true [unknown-value]"]),
    "unknown op": (edited('"op": "STEP"', '"op": "Q"'), [
        f'p.json: $.ranks[0].ops[2].op: rank 0: {OPS}, got "Q" [unknown-value]']),
    "duplicate key": (edited('"stage": 0', '"stage": 0, "stage": 1'), [
        'p.json: $.ranks[0].ops[0].stage: rank 0: the key "stage" stands here more than once [duplicate-key]']),
    "key that looks like a path": (edited('"digest"', '"ranks[0].ops": 1, "digest"'), [
        'p.json: $["ranks[0].ops"]: unknown key "ranks[0].ops" [unknown-key]']),
    "several": (
        edited('"seed": 0', '"seed": true, "sed": 1').replace(b'"mb": 0', b'"mb": "0"').replace(b"[0, 1]", b"null"),
        [
            "p.json: $.made_by.seed: expected an integer, got true [wrong-type]",
            'p.json: $.made_by.sed: unknown key "sed" [unknown-key]',
            *(f"p.json: $.{name}: expected a list, got null [wrong-type]"
              for name in ("problem.placement", "claims.peak_bytes")),
            *(f'p.json: $.ranks[{rank}].ops[{index}].mb: rank {rank}: expected an integer, got "0" [wrong-type]'
              for rank, index in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2))),
        ],
    ),
    "missing": (edited('"op": "STEP"', '"mb": 1.5'), [
        'p.json: $.ranks[0].ops[2]: rank 0: the required key "op" is missing [missing-key]',
        "p.json: $.ranks[0].ops[2].mb: rank 0: expected an integer, got 1.5 [not-an-integer]"]),
    "objects": (edited('"limits": {}', '"limits": []').replace(b'{"op": "STEP"}', b"7"), [
        "p.json: $.made_by.limits: expected an object, got a list of 0 values [wrong-type]",
        "p.json: $.ranks[0].ops[2]: rank 0: expected an object, got 7 [wrong-type]",
        "p.json: $.ranks[1].ops[3]: rank 1: expected an object, got 7 [wrong-type]"]),
    "long value": (edited('"device": "g0"', f'"device": {list(range(50))}'), [
        "p.json: $.ranks[0].device: expected a string, got a list of 50 values [wrong-type]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused(name: str) -> None:
    """A file that is no plan gives one line for each fault in file order, its rule named as in a profile."""
    data, lines = WRONG[name]
    with pytest.raises(PlanError, match=re.escape(lines[0])) as caught:
        decode_plan(data, "p.json")
    assert str(caught.value).splitlines() == [f"error: {line}" for line in lines]
    assert caught.value.exit_code == 3


def test_newer_version_says_what_to_do() -> None:
    """A plan of a newer version is refused with the advice to update."""
    with pytest.raises(PlanError, match="made by a newer cpipe") as caught:
        decode_plan(edited('"version": 1', '"version": 7'), "p.json")
    assert caught.value.hint == "update cpipe, or make the plan again with this one"


def test_golden_text(golden: Callable[[str], None]) -> None:
    """The canonical text of a small plan: one op a line, fixed key order, a newline at the end."""
    problem = make_problem(2, 2, latency_ms=1)
    plan = plan_of(problem, one_f_one_b(problem))
    assert_plan_ok(plan, problem)
    golden(encode_plan(plan).decode())


def test_text_is_json_with_one_op_a_line() -> None:
    """Every op stands on a line of its own, without the fields that it does not have."""
    lines = [line.rstrip(",]}") + "}" for line in TEXT.splitlines() if line.startswith('{"op"')]
    assert [json.loads(line)["op"] for line in lines] == ["F", "SEND", "STEP", "RECV", "WAIT", "F", "STEP"]
    assert json.loads(lines[-1]) == {"op": "STEP"}
    assert json.loads(TEXT)["problem"]["placement"] == [0, 1]
    assert TEXT.endswith("]}]}\n")
    assert "null" not in TEXT


def test_layout_of_the_file_does_not_matter() -> None:
    """White space, key order and integral floats are free: the plan and its canonical text are the same."""
    tree = json.loads(TEXT)
    tree["ranks"][0]["ops"][0] |= {"mb": 0.0, "start_ns": 0.0}
    tree["version"] = 1.0
    loose = json.dumps(dict(reversed(tree.items())), indent=4)
    assert decode_plan(loose.encode(), "p.json") == PLAN
    assert encode_plan(decode_plan(json.dumps(json.loads(TEXT)).encode(), "p.json")) == TEXT.encode()


def test_extensions_are_kept() -> None:
    """What users put under `extensions` comes back as it was, whatever its shape, and only if it was there."""
    extensions = {"b": [1, 2.5, None, {"\u00e4": "\u65e5\u672c"}], "a": True}
    plan = msgspec.structs.replace(PLAN, extensions=extensions)
    data = encode_plan(plan)
    assert decode_plan(data, "p.json") == plan
    assert "\u65e5\u672c" in data.decode()
    assert "extensions" not in TEXT
    assert encode_plan(msgspec.structs.replace(plan, extensions={})).endswith(b'"extensions": {}}\n')


def test_empty_tables_are_short() -> None:
    """A plan without channels, groups, ranks or ops can be written and read."""
    bare = msgspec.structs.replace(PLAN, channels=(), ranks=())
    no_ops = msgspec.structs.replace(PLAN, ranks=(msgspec.structs.replace(PLAN.ranks[0], ops=()),))
    for plan in (bare, no_ops):
        assert decode_plan(encode_plan(plan), "p.json") == plan


def test_numbers_that_are_not_finite_are_never_written() -> None:
    """An infinite number in the limits is an error when writing, not a null in the file."""
    plan = msgspec.structs.replace(PLAN, made_by=msgspec.structs.replace(PLAN.made_by, limits={"gap": float("inf")}))
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_plan(plan)


def test_load_reads_files_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is read from a path, or from standard input for `-`."""
    path = tmp_path / "plan.json"
    path.write_bytes(TEXT.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert load_plan(path) == load_plan("-") == PLAN


def test_load_names_the_file(tmp_path: Path) -> None:
    """A file that cannot be read is an input error with the reason of the system."""
    with pytest.raises(PlanError, match=r"no\.json: no such file \[file-not-found\]"):
        load_plan(tmp_path / "no.json")
    with pytest.raises(PlanError, match=r"expected a file, got a directory \[is-a-directory\]"):
        load_plan(tmp_path)


def test_byte_order_mark_is_accepted() -> None:
    """A UTF-8 byte order mark changes nothing about a plan, as it changes nothing about a profile."""
    assert decode_plan(b"\xef\xbb\xbf" + TEXT.encode(), "p.json") == PLAN


@pytest.mark.parametrize("depth", [63, 64])
def test_depth_does_not_depend_on_the_layout(depth: int) -> None:
    """A value nested too deeply is refused in canonical text, too, and one level less is accepted in any."""
    nested = json.loads("[" * depth + "]" * depth)
    plan = msgspec.structs.replace(PLAN, extensions={"a": nested})
    for data in (encode_plan(plan), json.dumps(json.loads(encode_plan(plan))).encode()):
        if depth == 63:
            assert decode_plan(data, "p.json") == plan
        else:
            with pytest.raises(PlanError, match="nested deeper than 64 levels"):
                decode_plan(data, "p.json")


def test_null_is_an_absent_field() -> None:
    """Other programs write null for a field that an op does not have; it means the same here."""
    tree = json.loads(TEXT)
    tree["ranks"][0]["ops"][0]["channel"] = None
    assert decode_plan(json.dumps(tree).encode(), "p.json") == PLAN
    tree["more"] = 1  # now the slow reading has to say so, too
    with pytest.raises(PlanError, match=r"^error: p.json: \$\.more: unknown key \"more\" \[unknown-key\]$"):
        decode_plan(json.dumps(tree).encode(), "p.json")


def test_what_has_no_end_is_not_read_to_it() -> None:
    """A device that yields zeros for ever is refused by its first bytes."""
    with pytest.raises(PlanError, match=r"/dev/zero: expected UTF-8, got UTF-16 or UTF-32 \[not-utf8\]"):
        load_plan("/dev/zero")


def test_files_larger_than_any_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond the size of plans is refused after little more than that many bytes."""
    path = tmp_path / "plan.json"
    path.write_bytes(TEXT.encode() + b" " * 2**21)
    monkeypatch.setattr(codec, "_FORMAT", codec._FORMAT._replace(max_bytes=2**20))
    with pytest.raises(PlanError, match=r"expected at most 1048576 bytes, got more \[file-too-large\]"):
        load_plan(path)


def test_types_cover_the_fields() -> None:
    """The writer knows every field of an instruction."""
    names = [field.name for field in msgspec.structs.fields(Plan)]
    assert [name for name in names if f'"{name}"' not in TEXT] == ["extensions"]
