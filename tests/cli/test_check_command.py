"""Tests of `cpipe check`: verdicts, what is found in folders, solving anew, rewriting, and what cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import call, profile_document, spawn, write_json
from helpers import assert_plan_ok, signed
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from plan_edits import edit_op, swap_ops

from cpipe.cli import pins as pins_module
from cpipe.cli.pins import find_pins, options_of
from cpipe.compiler import SolveOptions, compile_profile, problem_for_plan
from cpipe.errors import UsageError
from cpipe.ir import MadeBy, Plan
from cpipe.plan import encode_plan, load_plan
from cpipe.profile import load_profile, parse_profile
from cpipe.report.document import report_schema


def make_pin(folder: Path, *, slower_ms: float = 0.0, **options: Any) -> Path:
    """Write a profile and the plan that these options give into a folder; return the plan."""
    folder.mkdir(parents=True, exist_ok=True)
    document = profile_document(3)
    document["stages"][1]["forward_ms"] += slower_ms
    data = write_json(folder / "profile.json", document).read_bytes()
    return write_plan(folder / "plan.json", solved(data, SolveOptions(**options)))


@cache
def solved(profile: bytes, options: SolveOptions) -> Plan:
    """Return the plan of a profile's text."""
    compiled = compile_profile(parse_profile(profile, "profile.json"), options)
    assert_plan_ok(compiled.plan, compiled.problem)
    return compiled.plan


@cache
def schema() -> Draft202012Validator:
    """Return what every report meets."""
    return Draft202012Validator(report_schema())


def write_plan(path: Path, plan: Plan) -> Path:
    """Write a plan as it is."""
    path.write_bytes(encode_plan(plan))
    return path


def change_profile(plan: Path, latency_ms: float = 3.0) -> None:
    """Give the profile beside a plan other links."""
    path = plan.with_name("profile.json")
    document = json.loads(path.read_bytes())
    for link in document["links"]:
        link["latency_ms"] = latency_ms
    write_json(path, document)


def bytes_below(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def checked(capsys: pytest.CaptureFixture[str], *arguments: object, code: int) -> list[dict[str, Any]]:
    """Return what the JSON report says of each plan; it meets the schema and the exit code is as expected."""
    outcome = call(capsys, "check", *arguments, "--json")
    assert outcome.code == code
    schema().validate(outcome.document)
    assert outcome.document["status"] == ("failed" if code else "ok")
    plans: list[dict[str, Any]] = outcome.document["plans"]
    return plans


def codes(entry: dict[str, Any]) -> list[str]:
    """Return the rules that the report of one plan names."""
    return [found["code"] for found in entry["diagnostics"]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make two pins, one of them deeper, and stand in their folder."""
    make_pin(tmp_path / "plans" / "a", method="1f1b")
    make_pin(tmp_path / "plans" / "b" / "deep", method="greedy", slower_ms=1)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "plans"


def test_all_is_well(folder: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """Plans that hold are one line each on stdout, their number on stderr, and exit code 0; nothing is written."""
    before = bytes_below(folder)
    outcome = call(capsys, "check", "plans")
    assert outcome.code == 0
    assert outcome.err == "2 plans: 2 ok\n"
    golden(outcome.out)
    assert bytes_below(folder) == before
    assert call(capsys, "check", "plans") == outcome


def test_every_verdict(folder: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """Each verdict has its own words, none stops the others, and details are on stderr."""
    change_profile(make_pin(folder / "c", method="1f1b"))
    make_pin(folder / "d", method="1f1b").with_name("profile.json").unlink()
    plan = make_pin(folder / "e", method="1f1b")
    write_plan(plan, edit_op(load_plan(plan), 0, 0, end_ns=1))
    make_pin(folder / "f").write_text("{", encoding="utf-8")
    plan = make_pin(folder / "g", method="gpipe")
    loaded = load_plan(plan)
    write_plan(plan, signed(replace(loaded, made_by=replace(loaded.made_by, method="greedy"))))
    outcome = call(capsys, "check", "plans", "--resolve")
    assert outcome.code == 1
    golden(f"{outcome.out}---\n{outcome.err}")


def test_report(folder: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], None]) -> None:
    """The JSON report holds every plan with its numbers and all that was found."""
    change_profile(folder / "a" / "plan.json")
    outcome = call(capsys, "check", "plans", "--resolve", "--json")
    schema().validate(outcome.document)
    golden(json.dumps(outcome.document, indent=1) + "\n")


def test_folders_are_searched_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder gives every plan.json below it once, sorted; hidden folders and links to folders are left out."""
    make_pin(folder / ".git" / "x")
    (folder / "zlink").symlink_to(folder / "b")
    monkeypatch.chdir(folder)
    names = [pin.plan for pin in find_pins([".", "b/deep/plan.json", str(folder / "a")])]
    assert names == [os.path.join(".", "a", "plan.json"), os.path.join(".", "b", "deep", "plan.json")]
    assert [pin.profile for pin in find_pins(["a/plan.json"])] == [os.path.join("a", "profile.json")]
    assert [pin.plan for pin in find_pins(["zlink"])] == [os.path.join("zlink", "deep", "plan.json")]


def test_order_of_paths_is_kept() -> None:
    """Files are plans, in the order in which they are named, whether or not they are there."""
    assert [pin.plan for pin in find_pins(["z.json", "a b:c.json"], "p.json")] == ["z.json", "a b:c.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["empty"], "no-plans", "empty: no plan.json was found here or below"),
        (["plans", "empty"], "no-plans", "empty: no plan.json was found here or below"),
        (["plans", "--profile", "p.json"], "profile-of-folder", "plans is a folder"),
        (["-"], "not-a-file", "not on standard input"),
        (["plans/a/plan.json", "--profile", "-"], "not-a-file", "not on standard input"),
        (["plans", "--tolerance", "-0.1"], "value-out-of-range", "expected a share >= 0, got -0.1"),
        (["plans", "--tolerance", "nan"], "value-out-of-range", "expected a share >= 0, got nan"),
        ([], "usage", "missing argument 'PATH'"),
    ],
)
def test_wrong_calls(
    arguments: list[str], code: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A call that makes no sense is exit code 2 before anything is checked, as a document too."""
    (folder.parent / "empty").mkdir()
    outcome = call(capsys, "check", *arguments, "--json")
    assert outcome.code == 2
    assert message in outcome.err
    assert f"[{code}]" in outcome.err
    schema().validate(outcome.document)
    assert (outcome.document["command"], outcome.document["status"]) == ("check", "error")


def test_no_plans_is_a_usage_error(tmp_path: Path) -> None:
    """A folder without a plan is refused: a check that checks nothing would pass for ever."""
    with pytest.raises(UsageError, match=r"no plan\.json was found"):
        find_pins([str(tmp_path)])


def test_changed_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan whose profile changed is stale, with what it takes there now; consequences are shown with -v alone."""
    plan = folder / "a" / "plan.json"
    change_profile(plan)
    stale, fine = checked(capsys, "plans", code=1)
    assert (stale["verdict"], fine["verdict"]) == ("stale", "ok")
    replay = call(capsys, "simulate", plan, "--profile", folder / "a" / "profile.json", "--json").document
    assert stale["replayed_ms"] == replay["makespan_ms"] > stale["claimed_ms"]
    assert "problem-digest" in codes(stale)
    assert "wrong-time" in codes(stale)
    plain, verbose = (call(capsys, "check", "plans", *more).err for more in ([], ["-v"]))
    assert "[problem-digest]" in plain
    assert "[wrong-time]" not in plain
    assert "[wrong-time]" in verbose
    assert call(capsys, "check", "plans", "-q").err == ""


def test_profile_of_another_shape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile with other stages makes a plan stale; it takes no time there."""
    write_json(folder / "a" / "profile.json", profile_document(4))
    entry = checked(capsys, folder / "a", code=1)[0]
    assert (entry["verdict"], entry["replayed_ms"]) == ("stale", None)
    assert "does not fit this one" in call(capsys, "check", folder / "a").out


def test_other_name_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile that was only written differently, keys in another order, is the same problem."""
    path = folder / "a" / "profile.json"
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(dict(reversed(document.items())), indent=3), encoding="utf-8")
    assert checked(capsys, folder / "a", code=0)[0]["verdict"] == "ok"


def first_forward(plan: Plan, place: int) -> int:
    """Return where the first forward stands in a program."""
    return next(index for index, step in enumerate(plan.ranks[place].ops) if step.op == "F")


def test_stage_that_moved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for the profile's own placement is stale when a stage moves there; one for a pattern is not."""
    plan = folder / "a" / "plan.json"
    profile = plan.with_name("profile.json")
    document = json.loads(profile.read_bytes())
    document["stages"][2]["device"] = "g1"
    document["devices"][1]["memory_bytes"] = 90_000_000_000
    write_json(profile, document)
    make_pin(folder / "c", method="1f1b", placement="ud")
    before = json.loads((folder / "c" / "profile.json").read_bytes())
    before["stages"][0]["device"], before["stages"][2]["device"] = "g2", "g0"
    write_json(folder / "c" / "profile.json", before)
    moved, pattern = checked(capsys, folder / "a", folder / "c", code=1)
    assert (moved["verdict"], pattern["verdict"]) == ("stale", "ok")
    assert "other-placement" in codes(moved)
    assert (
        "the profile places stage 2 on device 'g1' now, the plan on 'g2' [other-placement]"
        in call(capsys, "check", folder / "a").err
    )
    assert checked(capsys, folder / "a", "--update", "-q", code=0)[0]["verdict"] == "updated"
    assert load_plan(plan).problem.placement == (0, 1, 1)


EDITS: dict[str, Callable[[Plan], Plan]] = {
    "plan-digest": lambda plan: replace(plan, made_by=replace(plan.made_by, seed=7)),
    "wrong-makespan": lambda plan: signed(
        replace(plan, claims=replace(plan.claims, makespan_ns=plan.claims.makespan_ns + 1))
    ),
    "wrong-time": lambda plan: signed(edit_op(plan, 2, first_forward(plan, 2), start_ns=0)),
    "wrong-peak": lambda plan: signed(replace(plan, claims=replace(plan.claims, peak_bytes=(0, 0, 0)))),
    "bound-not-proved": lambda plan: signed(
        replace(plan, claims=replace(plan.claims, lower_bound_ns=plan.claims.makespan_ns))
    ),
}


@pytest.mark.parametrize("code", EDITS)
def test_changed_plan(code: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that somebody changed is invalid by the digest, and if it was signed again, by what it claims."""
    plan = folder / "a" / "plan.json"
    write_plan(plan, EDITS[code](load_plan(plan)))
    entry = checked(capsys, folder / "a", code=1)[0]
    assert entry["verdict"] == "invalid"
    assert code in codes(entry)
    outcome = call(capsys, "check", folder / "a")
    assert outcome.out.startswith(f"invalid: {plan}: ")
    assert ("changed after it was made" in outcome.out) == (code == "plan-digest")
    assert f"[{code}]" in outcome.err


def test_changed_plan_and_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Faults that a plan has by itself weigh more than a profile that changed as well."""
    plan = folder / "a" / "plan.json"
    change_profile(plan)
    write_plan(plan, replace(load_plan(plan), digest="sha256:0"))
    assert checked(capsys, folder / "a", code=1)[0]["verdict"] == "invalid"


def newer(data: bytes) -> bytes:
    """Return the plan as a later version of the format."""
    return data.replace(b'"version": 1', b'"version": 2', 1)


UNREADABLE: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("empty-file", lambda data: b""),
    ("bad-json", lambda data: b"plan"),
    ("truncated", lambda data: data[: len(data) // 2]),
    ("not-utf8", lambda data: data.decode().encode("utf-16")),
    ("newer-version", newer),
    ("wrong-format", lambda data: data.replace(b"cpipe.plan", b"cpipe.profile", 1)),
    ("unknown-key", lambda data: data.replace(b'"version"', b'"x": 1, "version"', 1)),
    ("trailing-data", lambda data: data + data),
]


@pytest.mark.parametrize(("code", "spoil"), UNREADABLE)
def test_unreadable_plan(
    code: str, spoil: Callable[[bytes], bytes], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that cannot be read does not stop the others (exit code 1); when all are so, it is exit code 3."""
    plan = folder / "a" / "plan.json"
    plan.write_bytes(spoil(plan.read_bytes()))
    bad, good = checked(capsys, "plans", code=1)
    assert (bad["verdict"], good["verdict"]) == ("unreadable", "ok")
    assert code in codes(bad)
    assert (bad["claimed_ms"], bad["gap"]) == (None, None)
    assert checked(capsys, folder / "a", code=3)[0]["verdict"] == "unreadable"


def test_unreadable_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A profile that is not valid makes its plan unreadable, with every fault of the profile."""
    document = profile_document(3)
    document["stages"][0]["forward_ms"] = document["stages"][2]["forward_ms"] = -1
    write_json(folder / "a" / "profile.json", document)
    entry = checked(capsys, folder / "a", code=3)[0]
    assert entry["verdict"] == "unreadable"
    assert codes(entry) == ["negative-duration"] * 2
    assert entry["claimed_ms"] > 0


def test_missing_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that is not there is unreadable, a link that leads nowhere too; one without a profile says which."""
    (folder / "a" / "profile.json").unlink()
    (folder / "c").mkdir()
    (folder / "c" / "plan.json").symlink_to("nowhere.json")
    lone, _, link = checked(capsys, "plans", code=1)
    assert (lone["verdict"], codes(lone)) == ("missing-profile", ["missing-profile"])
    assert (link["verdict"], len(codes(link))) == ("unreadable", 1)
    assert checked(capsys, "plans/x.json", code=3)[0]["verdict"] == "unreadable"
    assert checked(capsys, folder / "a", code=3)[0]["verdict"] == "missing-profile"
    outcome = call(capsys, "check", folder / "a")
    assert outcome.out == f"missing-profile: {folder}/a/plan.json: there is no {folder}/a/profile.json\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_forbidden_folder_and_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What may not be read is said for each file and folder."""
    (folder / "a").chmod(0)
    (folder / "b" / "deep" / "plan.json").chmod(0)
    try:
        entries = checked(capsys, "plans", code=3)
    finally:
        (folder / "a").chmod(0o755)
    assert [entry["verdict"] for entry in entries] == ["unreadable"] * 2


def test_folder_that_cannot_be_searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that the system refuses to list is a fault of its own: its plans must not pass for absent."""
    real = os.scandir

    def scandir(path: Any) -> Any:
        if os.path.basename(path) == "b":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    pins = find_pins(["plans"])
    assert [pin.plan for pin in pins] == ["plans/a/plan.json", "plans/b"]
    assert pins[1].fault is not None
    assert str(pins[1].fault) == "error: plans/b: this folder cannot be searched: Permission denied [unreadable]"
    result = pins_module.PinCheck(pins[1]).result
    assert (result.verdict, result.diagnostics) == ("unreadable", (pins[1].fault,))


def test_named_plan_and_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans and profiles of any name are checked where they stand: blanks and colons are part of a name."""
    plan, profile = folder / "my plan:2.json", folder / "the profile:2.json"
    (folder / "a" / "plan.json").rename(plan)
    (folder / "a" / "profile.json").rename(profile)
    entry = checked(capsys, plan, "--profile", profile, code=0)[0]
    assert (entry["plan"], entry["profile"]) == (str(plan), str(profile))
    assert checked(capsys, plan, code=3)[0]["verdict"] == "missing-profile"
    outcome = call(capsys, "check", plan, "--profile", profile)
    assert outcome.out.startswith(f"ok: {plan}: makespan ")


OPTIONS: list[dict[str, Any]] = [
    {},
    {"method": "1f1b", "seed": 3},
    {"method": "1f1b", "objective": "span"},
    {"method": "greedy", "receive_window": 1, "max_gap": 0.25},
    {"method": "auto", "placement": "ud", "node_limit": 0},
    {"method": "greedy", "time_limit": 60.0},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_options_are_read_back(options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan says with which options it was made; solved anew with them it is itself again, in every byte."""
    plan = make_pin(tmp_path, **options)
    assert options_of(load_plan(plan).made_by) == SolveOptions(**options)
    entry = checked(capsys, tmp_path, "--resolve", "--tolerance", "0", code=0)[0]
    assert entry["fresh_ms"] == entry["claimed_ms"]
    again = compile_profile(load_profile(tmp_path / "profile.json"), options_of(load_plan(plan).made_by))
    assert_plan_ok(again.plan, again.problem)
    assert encode_plan(again.plan) == plan.read_bytes()


@pytest.mark.parametrize("choice", ["auto", "all", "none", "0,2"])
def test_recompute_is_chosen_again(choice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which stages were asked to recompute is part of how a plan was made, and of the problem it is held against."""
    document = profile_document(3)
    for stage in document["stages"]:
        stage["recompute"] = {"activation_bytes": 200_000_000, "extra_ms": 0.5}
    document["devices"][0]["memory_bytes"] = 22_100_000_000
    data = write_json(tmp_path / "profile.json", document).read_bytes()
    options = SolveOptions(method="greedy", recompute=choice)
    plan = write_plan(tmp_path / "plan.json", solved(data, options))
    before = plan.read_bytes()
    assert options_of(load_plan(plan).made_by) == options
    entry = checked(capsys, tmp_path, "--resolve", "--tolerance", 0, code=0)[0]
    assert entry["fresh_ms"] == entry["claimed_ms"] == entry["replayed_ms"]
    for stage in document["stages"]:
        stage["recompute"]["extra_ms"] = 0.75
    write_json(tmp_path / "profile.json", document)
    recomputes = bool(load_plan(plan).problem.recompute)
    assert checked(capsys, tmp_path, code=int(recomputes))[0]["verdict"] == ("stale" if recomputes else "ok")
    assert checked(capsys, tmp_path, "--update", code=0)[0]["verdict"] == ("updated" if recomputes else "ok")
    assert (plan.read_bytes() != before) == recomputes


@pytest.mark.parametrize(
    ("made_by", "message"),
    [
        ({"method": "torch-csv"}, "'torch-csv' is no search"),
        ({"limits": {"new_option": 1}}, "its limits are not known here: .*new_option"),
        ({"limits": {"max_gap": "much"}}, "its limits are not known here: .*max_gap"),
    ],
)
def test_unknown_origin(
    made_by: dict[str, Any], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that no search of this version made cannot be solved anew: it is checked, with a warning, and kept."""
    plan = folder / "a" / "plan.json"
    loaded = load_plan(plan)
    changed = replace(loaded.made_by, **made_by)
    with pytest.raises(UsageError, match=message):
        options_of(changed)
    data = write_plan(plan, signed(replace(loaded, made_by=changed))).read_bytes()
    entry = checked(capsys, folder / "a", "--resolve", code=0)[0]
    assert (entry["verdict"], entry["fresh_ms"], codes(entry)) == ("ok", None, ["not-made-anew"])
    change_profile(plan)
    entry = checked(capsys, folder / "a", "--update", code=1)[0]
    assert entry["verdict"] == "stale"
    assert codes(entry)[-1] == "not-made-anew"
    assert plan.read_bytes() == data


def test_codes_of_unknown_origin() -> None:
    """The rules behind a plan that cannot be made anew have names."""
    made_by = MadeBy(cpipe="0.1.0", method="hand", seed=0, limits={})
    for origin, code in ((made_by, "no-search"), (replace(made_by, method="auto", limits={"x": 1}), "unknown-limits")):
        with pytest.raises(UsageError, match=r"is no search|not known here") as caught:
            options_of(origin)
        assert [found.code for found in caught.value.diagnostics] == [code]


def test_interrupted_plan_is_made_to_the_end() -> None:
    """The mark of a search that was ended early is no option: the next one is let finish."""
    made_by = MadeBy(cpipe="0.1.0", method="auto", seed=1, limits={"interrupted": "yes", "max_gap": 0.5})
    assert options_of(made_by) == SolveOptions(seed=1, max_gap=0.5)


@pytest.fixture
def worse(tmp_path: Path) -> Path:
    """Write GPipe's plan as if the greedy had found it."""
    plan = make_pin(tmp_path / "w", method="gpipe")
    loaded = load_plan(plan)
    return write_plan(plan, signed(replace(loaded, made_by=replace(loaded.made_by, method="greedy"))))


def test_worse_than_today(worse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A valid plan that a search beats by more than the tolerance is worse; only --resolve looks."""
    assert checked(capsys, worse, code=0)[0]["fresh_ms"] is None
    entry = checked(capsys, worse, "--resolve", code=1)[0]
    assert (entry["verdict"], codes(entry)) == ("worse", ["worse"])
    share = entry["claimed_ms"] / entry["fresh_ms"] - 1
    assert share > 0.02
    assert checked(capsys, worse, "--resolve", "--tolerance", share + 0.001, code=0)[0]["verdict"] == "ok"
    assert checked(capsys, worse, "--resolve", "--tolerance", share - 0.001, code=1)[0]["verdict"] == "worse"
    line = call(capsys, "check", worse, "--resolve").out
    assert line.startswith(f"worse: {worse}: makespan {entry['claimed_ms']:.3f} ms, gap ")
    assert line.endswith(f"solved anew {entry['fresh_ms']:.3f} ms, this one takes {100 * share:.2f} % more\n")


def test_search_that_finds_nothing(worse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the search reaches nothing acceptable within the stated limits, the valid plan stays, with a warning."""
    document = json.loads(worse.with_name("profile.json").read_bytes())
    for device in document["devices"]:
        device["memory_bytes"] = 21_000_000_000
    write_json(worse.with_name("profile.json"), document)
    data = worse.read_bytes()
    entry = checked(capsys, worse, "--update", "--resolve", code=1)[0]
    assert entry["verdict"] == "stale"
    assert entry["diagnostics"][-1]["message"].startswith("it cannot be made anew: ")
    assert worse.read_bytes() == data


def test_update(folder: Path, worse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--update makes stale, invalid and worse plans anew and says so; all else keeps every byte; then all is ok."""
    stale, fine = folder / "a" / "plan.json", folder / "b" / "deep" / "plan.json"
    broken = make_pin(folder / "c", method="greedy")
    change_profile(stale)
    write_plan(broken, swap_ops(load_plan(broken), 0, 0, 1))
    unreadable = make_pin(folder / "d")
    unreadable.write_bytes(b"{}")
    before = bytes_below(folder.parent)
    outcome = call(capsys, "check", "plans", worse, "--update", "--resolve")
    assert outcome.code == 1  # nobody knows how the unreadable one was made
    assert [line.split(":")[0] for line in outcome.out.splitlines()] == [
        "updated",
        "ok",
        "updated",
        "unreadable",
        "updated",
    ]
    assert ": was stale, made anew; makespan " in outcome.out
    assert ": was invalid, made anew; makespan " in outcome.out
    assert ": was worse, made anew; makespan " in outcome.out
    after = bytes_below(folder.parent)
    changed = {name for name in before if before[name] != after[name]}
    assert after.keys() == before.keys()
    assert changed == {str(path.relative_to(folder.parent)) for path in (stale, broken, worse)}
    for path in (stale, broken, worse, fine):
        profile, plan = load_profile(path.with_name("profile.json")), load_plan(path)
        assert_plan_ok(plan, problem_for_plan(plan, profile))
        assert options_of(plan.made_by) == SolveOptions(method="1f1b" if path == stale else "greedy")
        assert encode_plan(compile_profile(profile, options_of(plan.made_by)).plan) == path.read_bytes()
    assert call(capsys, "check", stale, fine, broken, worse, "--resolve", "--update").err == "4 plans: 4 ok\n"


def make_of_kind(folder: Path, kind: str) -> Path:
    """Make a pin that gets the verdict `kind`; return its plan."""
    plan = make_pin(folder, method="gpipe" if kind == "worse" else "1f1b")
    loaded = load_plan(plan)
    if kind == "stale":
        change_profile(plan)
    elif kind == "invalid":
        write_plan(plan, replace(loaded, digest="sha256:0"))
    elif kind == "worse":
        write_plan(plan, signed(replace(loaded, made_by=replace(loaded.made_by, method="greedy"))))
    elif kind == "unreadable":
        plan.write_bytes(b"")
    elif kind == "missing-profile":
        plan.with_name("profile.json").unlink()
    return plan


@pytest.mark.parametrize(
    ("kinds", "code", "code_of_update"),
    [
        (["ok"], 0, 0),
        (["ok", "ok"], 0, 0),
        (["stale"], 1, 0),
        (["invalid"], 1, 0),
        (["worse"], 1, 0),
        (["ok", "stale", "invalid", "worse"], 1, 0),
        (["unreadable"], 3, 3),
        (["missing-profile"], 3, 3),
        (["unreadable", "missing-profile"], 3, 3),
        (["unreadable", "ok"], 1, 1),
        (["missing-profile", "stale"], 1, 1),
    ],
)
def test_exit_codes(
    kinds: list[str], code: int, code_of_update: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0: all is well; 3: nothing could be read; 1: anything else. What an update mends is well."""
    plans = [make_of_kind(tmp_path / f"{index}", kind) for index, kind in enumerate(kinds)]
    entries = checked(capsys, tmp_path, "--resolve", code=code)
    assert [entry["verdict"] for entry in entries] == kinds
    before = [plan.read_bytes() for plan in plans]
    entries = checked(capsys, tmp_path, "--resolve", "--update", code=code_of_update)
    mended = [kind in ("stale", "invalid", "worse") for kind in kinds]
    assert [entry["verdict"] for entry in entries] == [
        "updated" if mend else kind for kind, mend in zip(kinds, mended, strict=True)
    ]
    assert [entry["was"] for entry in entries] == [
        kind if mend else None for kind, mend in zip(kinds, mended, strict=True)
    ]
    assert [plan.read_bytes() != data for plan, data in zip(plans, before, strict=True)] == mended
    after = [plan.read_bytes() for plan in plans]
    entries = checked(capsys, tmp_path, "--resolve", "--update", code=code_of_update)
    assert [entry["verdict"] for entry in entries] == [
        "ok" if mend else kind for kind, mend in zip(kinds, mended, strict=True)
    ]
    assert [plan.read_bytes() for plan in plans] == after


def test_progress_and_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With -v stderr says which plan is at work; a hint says how to mend, unless that was asked for already."""
    outcome = call(capsys, "check", "plans", "--resolve", "-v")
    assert "1 of 2: plans/a/plan.json\n1 of 2: plans/a/plan.json: 1f1b: " in outcome.err
    assert "hint: " not in outcome.err
    change_profile(folder / "a" / "plan.json")
    assert call(capsys, "check", "plans").err.endswith(
        "2 plans: 1 ok, 1 stale\nhint: --update makes plans anew that are stale, invalid or worse\n"
    )
    assert "hint: " not in call(capsys, "check", "plans", "--update").err


def test_folder_named_like_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder called plan.json is searched like any other, and is no plan."""
    make_pin(folder / "c" / "plan.json")
    names = [entry["plan"] for entry in checked(capsys, "plans", code=0)]
    assert names[-1] == os.path.join("plans", "c", "plan.json", "plan.json")
    assert len(names) == 3


def test_update_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report says what was updated, what it was before, and both makespans."""
    change_profile(folder / "a" / "plan.json")
    entry, fine = checked(capsys, "plans", "--update", code=0)
    assert (entry["verdict"], entry["was"]) == ("updated", "stale")
    assert entry["fresh_ms"] == load_plan(folder / "a" / "plan.json").claims.makespan_ns / 1e6 > entry["claimed_ms"]
    assert (fine["verdict"], fine["was"], fine["fresh_ms"]) == ("ok", None, None)


def test_update_follows_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that is a link stays one: the file behind it is replaced."""
    plan, real = folder / "a" / "plan.json", folder.parent / "real.json"
    plan.rename(real)
    plan.symlink_to(real)
    change_profile(plan)
    before = real.read_bytes()
    assert checked(capsys, folder / "a", "--update", code=0)[0]["verdict"] == "updated"
    assert plan.is_symlink()
    assert real.read_bytes() != before


def test_update_of_what_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be written keeps its plan and its verdict, with the reason; the others are updated."""
    stale = [folder / "a" / "plan.json", folder / "b" / "deep" / "plan.json"]
    for plan in stale:
        change_profile(plan)
    before = stale[0].read_bytes()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != str(folder / "a") and real(path, mode))
    kept, updated = checked(capsys, "plans", "--update", code=1)
    assert (kept["verdict"], updated["verdict"]) == ("stale", "updated")
    assert codes(kept)[-1] == "output-not-writable"
    assert stale[0].read_bytes() == before


def test_update_that_is_interrupted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves whole files: what was updated stays so, the one at work is as it was, nothing else lies about."""
    stale = [folder / "a" / "plan.json", folder / "b" / "deep" / "plan.json"]
    for plan in stale:
        change_profile(plan)
    before = bytes_below(folder)

    def compile_one(profile: Any, options: Any, progress: Any) -> Any:
        if options.method == "greedy":
            raise KeyboardInterrupt
        return compile_profile(profile, options, progress)

    monkeypatch.setattr(pins_module, "compile_profile", compile_one)
    outcome = call(capsys, "check", "plans", "--update")
    assert outcome.code == 130
    assert outcome.out.startswith("updated: ")
    after = bytes_below(folder)
    assert after.keys() == before.keys()
    assert [name for name in before if before[name] != after[name]] == ["a/plan.json"]


def test_checking_is_light(folder: Path) -> None:
    """Without --resolve and --update no solver is loaded, nor torch."""
    code = "import sys; from cpipe.cli.app import main; main(['check', 'plans']); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "ok: plans/a/plan.json: " in loaded
    assert not [name for name in ("torch", "pulp", "highspy", "ortools", "rich") if f"'{name}'" in loaded]


@pytest.mark.slow
def test_output_does_not_depend_on_the_terminal(folder: Path) -> None:
    """Colour, width and hash seeds of the environment change no byte of what CI reads, nor what is found anew."""
    change_profile(folder / "a" / "plan.json")
    environments = [
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "2", "FORCE_COLOR": "1", "TERM": "xterm"},
        {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "20"},
    ]
    outcomes = {spawn("check", "plans", "--resolve", environ=environ) for environ in environments}
    assert len(outcomes) == 1
    assert next(iter(outcomes)).code == 1
    assert "\x1b" not in next(iter(outcomes)).out


def test_names_are_printed_safely(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder's name can neither colour a line nor make one more."""
    (folder / "a").rename(folder / "a\x1b[31m\nok: x")
    outcome = call(capsys, "check", "plans")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 2
    assert "\x1b" not in outcome.out
