"""The page on formats: every field of every format has a row, in the place where a reader looks for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cpipe.plan import plan_schema
from cpipe.profile import profile_schema
from cpipe.report.document import report_schema

SCHEMAS = Path(__file__).parents[1] / "schemas"
PAGE = (SCHEMAS / "README.md").read_text(encoding="utf-8")

PLAN_SECTIONS = {
    "Plan": "Plan",
    "MadeBy": "`made_by`",
    "ProblemSummary": "`problem`",
    "Claims": "`claims`",
    "Channel": "Entries of `channels`",
    "Group": "Entries of `groups`",
    "RankProgram": "Entries of `ranks`",
    "Instruction": "Entries of `ops`",
}
COMMON = ("format", "version", "command", "diagnostics")
UNITS = {
    "_ms": "ms",
    "_ns": "ns",
    "_bytes": "bytes",
    "_gbit_s": "Gbit/s",
    "_ppm": "ppm",
}


def part(title: str) -> str:
    """Return the text of the page's section of one format."""
    found = re.search(rf"^## {title}, version 1\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells behind the name of each row of a table."""
    lines = (line for line in text.splitlines() if line.startswith("| `"))
    cells = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return {name.strip("`"): rest for name, *rest in cells}


def sections(title: str) -> dict[str, dict[str, list[str]]]:
    """Return the rows below each heading of a format's part; those above the first are under an empty heading."""
    top, *others = re.split(r"^### ", part(title), flags=re.MULTILINE)
    split = [other.partition("\n") for other in others]
    return {"": rows(top), **{heading: rows(body) for heading, _, body in split}}


def defaults(field: dict[str, Any]) -> str:
    """Return how the page writes the default of a field that may be left out."""
    match field.get("default"):
        case None:
            return "none"
        case "":
            return "empty"
        case [] | ():
            return "none"
        case str(word):
            return f"`{word}`"
        case value:
            return str(value)


PLAN_TYPES = plan_schema()["$defs"]
REPORT_TYPES = report_schema()["$defs"]
REPORTS = [reference["$ref"].rpartition("/")[2] for reference in report_schema()["anyOf"]]


def test_every_type_of_a_plan_has_a_section() -> None:
    """The page's part on plans has one section for each object of the format, and no other."""
    assert set(PLAN_TYPES) == set(PLAN_SECTIONS)
    assert set(sections("Plan")) - {""} == set(PLAN_SECTIONS.values())


@pytest.mark.parametrize("name", PLAN_TYPES)
def test_plan_fields_have_rows(name: str) -> None:
    """Each section lists exactly the fields of its object, each with its unit, its default and its meaning."""
    found = sections("Plan")[PLAN_SECTIONS[name]]
    fields = PLAN_TYPES[name]["properties"]
    assert list(found) == [key for key in found if key in fields]
    assert set(found) == set(fields)
    for key, (unit, default, meaning) in found.items():
        expected = next((UNITS[end] for end in UNITS if key.endswith(end)), None)
        assert expected is None or unit == expected, f"{name}.{key}"
        is_required = key in PLAN_TYPES[name]["required"]
        assert default == ("required" if is_required else defaults(fields[key])), f"{name}.{key}"
        assert meaning, f"{name}.{key}"


def report_section(name: str) -> dict[str, list[str]]:
    """Return the rows of a report's object: its heading ends with the name of the type."""
    found = [rows for heading, rows in sections("Report").items() if heading.endswith(f"(`{name}`)")]
    assert len(found) == 1, name
    return found[0]


@pytest.mark.parametrize("name", REPORT_TYPES)
def test_report_fields_have_rows(name: str) -> None:
    """Each object of a report has a section with exactly its fields; those of every report stand above all."""
    found = report_section(name)
    top = sections("Report")[""]
    fields = REPORT_TYPES[name]["properties"]
    own = [key for key in fields if name not in REPORTS or key not in COMMON]
    assert set(found) == set(own)
    assert set(COMMON) <= set(top)
    for key, (unit, unknown, meaning) in found.items():
        expected = next((UNITS[end] for end in UNITS if key.endswith(end)), None)
        assert expected is None or unit == expected, f"{name}.{key}"
        assert meaning, f"{name}.{key}"
        assert (unknown == "absent") is (key not in REPORT_TYPES[name]["required"]), f"{name}.{key}"
        is_nullable = {"type": "null"} in fields[key].get("anyOf", [])
        assert not is_nullable or unknown == "null", f"{name}.{key}"
        assert unknown != "null" or is_nullable or not fields[key].keys() - {"default"}, f"{name}.{key}"


def test_every_section_on_reports_is_of_a_type() -> None:
    """No section outlives the object that it is about."""
    named = {heading.rpartition("(`")[2].rstrip("`)") for heading in sections("Report") if heading}
    assert named == set(REPORT_TYPES)


@pytest.mark.parametrize("name", REPORTS)
def test_every_status_has_its_word(name: str) -> None:
    """Each status that a report can have is explained in its section."""
    status = REPORT_TYPES[name]["properties"]["status"]
    meaning = report_section(name)["status"][-1]
    assert all(f"`{word}`" in meaning for word in status["enum"]), name


def test_history_names_every_optional_field() -> None:
    """A field that came after the first version, and so is optional in a plan, stands in the history."""
    history = PAGE[PAGE.index("## History") : PAGE.index("## Profile")]
    optional = [key for node in PLAN_TYPES.values() for key in node["properties"] if key not in node["required"]]
    first = {"extensions", "stage", "mb", "channel", "group", "start_ns", "end_ns"}
    missing = [key for key in optional if key not in first and not re.search(rf"`(\w+\.)?{key}`", history)]
    assert missing == []


@pytest.mark.parametrize("name", REPORTS)
def test_history_names_every_report(name: str) -> None:
    """The history of reports names each command that has one."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| report 1 |")]
    assert any(f"`{name.removesuffix('Report').lower()}`" in line for line in lines)


def test_versions_on_the_page_are_those_of_the_schemas() -> None:
    """Each format stands in the page's first table with the version and the file of its schema."""
    for name, schema in (("profile", profile_schema()), ("plan", plan_schema()), ("report", report_schema())):
        assert f"| `cpipe.{name}` | 1 | [{name}.v1.schema.json]({name}.v1.schema.json) |" in PAGE
        assert (SCHEMAS / f"{name}.v1.schema.json").is_file()
        assert schema["title"] == f"cpipe.{name} version 1"
