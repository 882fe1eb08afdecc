"""The rules of the house that no linter knows: sizes, docstrings, pinned messages, and a README that works."""

from __future__ import annotations

import ast
import re
import statistics
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from readme_blocks import ROOT, parse_blocks, repository_files, uncovered

import cpipe
from cpipe.errors import CpipeError
from cpipe.profile import load_profile, profile_warnings

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

MAX_MODULE_LINES = 500
MAX_MEDIAN_MODULE_LINES = 120
MAX_P90_FUNCTION_LINES = 45
HEAVY = {"torch", "pulp", "highspy", "ortools", "numpy"}


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def python_files(folder: str) -> tuple[Path, ...]:
    """Return the Python files of a folder of the repository, sorted."""
    return tuple(ROOT / path for path in repository_files(ROOT) if path.parts[0] == folder and path.suffix == ".py")


def functions(tree: ast.Module) -> Iterator[FunctionNode]:
    """Yield every function of a module, nested ones and methods too."""
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            yield node


def place(path: Path, node: ast.AST) -> str:
    """Return `file:line` of a node."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def function_lines(node: FunctionNode) -> int:
    """Return the number of lines of a function, from `def` to its end, less its docstring."""
    first = node.body[0]
    documented = ast.get_docstring(node) is not None
    return (
        (node.end_lineno or 0) - node.lineno + 1 - (((first.end_lineno or 0) - first.lineno + 1) if documented else 0)
    )


def public_definitions(node: ast.Module | ast.ClassDef) -> Iterator[FunctionNode | ast.ClassDef]:
    """Yield public functions, classes and methods; what stands inside a function or a private class is private."""
    for child in node.body:
        if isinstance(child, FunctionNode | ast.ClassDef) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child)


def code_positions(tree: ast.Module) -> dict[str, int]:
    """Return, for each function of a module with a parameter `code`, the position of its argument in a call."""
    positions: dict[str, int] = {}
    owners = {item: node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body}
    for node in functions(tree):
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        if "code" in names:
            static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in node.decorator_list)
            name = owners[node] if node.name == "__init__" else node.name
            positions[name] = names.index("code") - (node in owners and not static)
    return positions


def diagnostic_codes() -> dict[str, str]:
    """Return each rule that the package can report, and where: literals given for a parameter `code`."""
    trees = {path: parsed(path) for path in python_files("cpipe")}
    shared = {name: at for tree in trees.values() for name, at in code_positions(tree).items() if name[0] != "_"}
    codes: dict[str, str] = {}
    for path, tree in trees.items():
        positions = shared | code_positions(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in positions and positions[name] < len(node.args):
                given.append(node.args[positions[name]])
            for part in (
                part for value in given for part in (getattr(value, "body", value), getattr(value, "orelse", 0))
            ):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    codes.setdefault(part.value, place(path, node))
    return codes


def project() -> dict[str, Any]:
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def readme() -> str:
    """Return the text of the README."""
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_modules_are_small() -> None:
    """No module is longer than 500 lines, and half of them have at most 120."""
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files("cpipe")}
    assert {str(path): count for path, count in lines.items() if count > MAX_MODULE_LINES} == {}
    assert statistics.median(lines.values()) <= MAX_MEDIAN_MODULE_LINES


def test_functions_are_short() -> None:
    """Nine functions of ten have at most 45 lines without their docstring."""
    lengths = sorted(function_lines(node) for path in python_files("cpipe") for node in functions(parsed(path)))
    assert lengths[len(lengths) * 9 // 10] <= MAX_P90_FUNCTION_LINES


def test_public_names_are_documented() -> None:
    """Every module and every public function, class and method of the package has a docstring."""
    bare = [str(path.relative_to(ROOT)) for path in python_files("cpipe") if not ast.get_docstring(parsed(path))]
    for path in python_files("cpipe"):
        bare += [place(path, node) for node in public_definitions(parsed(path)) if not ast.get_docstring(node)]
    assert bare == []


def test_public_functions_are_annotated() -> None:
    """Every public function and method says what it takes and what it returns."""
    bare: list[str] = []
    for path in python_files("cpipe"):
        for node in public_definitions(parsed(path)):
            if isinstance(node, ast.ClassDef):
                continue
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            open_ended = [item.arg for item in arguments if item.annotation is None and item.arg not in {"self", "cls"}]
            if open_ended or node.returns is None:
                bare.append(place(path, node))
    assert bare == []


def test_heavy_libraries_are_imported_late() -> None:
    """Solvers are imported inside the functions that use them, so that light commands stay light; torch in runtime."""
    early: list[str] = []
    for path in python_files("cpipe"):
        allowed = {"torch"} if "runtime" in path.parts else set()
        nested = {item for node in functions(parsed(path)) for item in ast.walk(node)}
        for node in ast.walk(parsed(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if node not in nested and {name.split(".")[0] for name in names} & (HEAVY - allowed):
                early.append(place(path, node))
    assert early == []


def test_every_rule_is_tested() -> None:
    """Every rule that a diagnostic can name stands in at least one test."""
    texts = [path.read_text(encoding="utf-8") for path in python_files("tests") if path != Path(__file__)]
    text = "\n".join(texts)
    codes = diagnostic_codes()
    quoted = {code: rf"""["'`[]{code}["'`\]\\]""" for code in codes}
    untested = {code: where for code, where in codes.items() if not re.search(quoted[code], text)}
    assert untested == {}


def test_rules_are_kebab_case() -> None:
    """The name of a rule is lower case, its words joined by hyphens."""
    codes = diagnostic_codes()
    assert codes, "no diagnostic was found in the package"
    odd = {code: where for code, where in codes.items() if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", code)}
    assert odd == {}


def test_raises_pins_the_message() -> None:
    """Every `pytest.raises` and `pytest.warns` says which message it expects."""
    loose: list[str] = []
    for path in python_files("tests"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pytest.raises", "raises", "pytest.warns"}:
                matches = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "match"]
                if not matches or matches[0] in {"''", "'.*'", "None"}:
                    loose.append(place(path, node))
    assert loose == []


def test_tests_state_their_rule() -> None:
    """Every test opens with a docstring that says which rule it checks."""
    silent = [
        place(path, node)
        for path in python_files("tests")
        for node in functions(parsed(path))
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []


def test_test_files_have_unique_names() -> None:
    """Test files differ in their base names and stand in no package, so that any of them can be named alone."""
    names = [path.name for path in python_files("tests") if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)
    assert "__init__.py" not in names


def test_readme_shows_commands_first() -> None:
    """The first runnable block of the README stands before line 15."""
    first = next(block for block in parse_blocks(readme()) if block.language == "bash")
    assert first.line < 15
    assert "make test" in first.commands


def test_ci_runs_what_readme_says() -> None:
    """The CI script runs each command of the blocks that the README does not run itself."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    covered = [block for block in parse_blocks(readme()) if block.is_covered]
    assert covered
    assert [uncovered(block, script) for block in covered] == [()] * len(covered)


def test_readme_lists_exit_codes() -> None:
    """The README's table of exit codes has a row for each class of the exception tree."""
    kinds: list[type[CpipeError]] = [CpipeError, *CpipeError.__subclasses__()]
    rows = set(re.findall(r"^\| (\d+) \|", readme(), flags=re.MULTILINE))
    assert {str(kind.exit_code) for kind in kinds} <= rows


def test_readme_lists_commands() -> None:
    """The README's table of commands has exactly those that the program has."""
    from cpipe.cli.app import COMMANDS

    assert re.findall(r"^\| `cpipe (\w+)", readme(), flags=re.MULTILINE) == [command.__name__ for command in COMMANDS]


def test_readme_layers_are_the_checked_ones() -> None:
    """The README's table of layers is the import contract, top first."""
    contract = project()["tool"]["importlinter"]["contracts"][0]
    checked = [sorted(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    rows = re.findall(r"^\| \d \| (`cpipe\..*?) \|", readme(), flags=re.MULTILINE)
    assert [sorted(re.findall(r"`cpipe\.(\w+)`", row)) for row in rows] == checked


def test_readme_links_exist() -> None:
    """Every relative link of the README leads to a file or folder of the repository."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", readme())
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_readme_profile_is_valid(tmp_path: Path) -> None:
    """The profile that the README shows loads as it stands, without a warning."""
    (shown,) = [block for block in parse_blocks(readme()) if block.language == "json"]
    path = tmp_path / "profile.json"
    path.write_text(shown.text, encoding="utf-8")
    assert profile_warnings(load_profile(str(path)), str(path)) == ()


def test_version_is_one() -> None:
    """The package and pyproject.toml say the same version."""
    assert project()["project"]["version"] == cpipe.__version__


def test_make_explains_its_targets() -> None:
    """Every target of the Makefile that is no file has a line in `make help`."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = {name for line in re.findall(r"^\.PHONY:(.*)$", text, flags=re.MULTILINE) for name in line.split()}
    explained = set(re.findall(r"^([a-z-]+):.*## \S", text, flags=re.MULTILINE))
    assert phony == explained


def test_make_runs_one_pip_at_a_time() -> None:
    """The development tools are installed after the core, so that `make -j2 venv dev` never runs two pips at once."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (prerequisites,) = re.findall(r"^\$\(DEV\):(.*)$", text, flags=re.MULTILINE)
    assert "$(CORE)" in prerequisites.split()


def test_dependencies_have_reasons() -> None:
    """Every dependency in pyproject.toml has its reason beside it, and its version has an upper bound."""
    data = project()["project"]
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    wanted = [*data["dependencies"], *(name for names in data["optional-dependencies"].values() for name in names)]
    reasons = {name: line.partition("#")[2].strip() for name in wanted for line in lines if f'"{name}"' in line}
    assert [name for name in wanted if len(reasons.get(name, "")) < 10] == []
    assert [name for name in wanted if "<" not in name and "~=" not in name] == []


def test_core_dependencies_are_five() -> None:
    """Cpipe runs with five libraries; anything more is an extra."""
    names = [re.split(r"[^\w-]", name)[0] for name in project()["project"]["dependencies"]]
    assert sorted(names) == ["highspy", "msgspec", "pulp", "rich", "typer"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"pypi\.(org|python)|pythonhosted|files\.python|conda\.anaconda",  # a registry's host
        r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/",  # a path of one machine
        r"--(extra-)?index-url|PIP_INDEX_URL",  # an index that only some machines reach
    ],
)
def test_no_machine_is_named(pattern: str) -> None:
    """No file of the repository names a package index or a path that only one machine has."""
    found: list[str] = []
    for path in repository_files(ROOT):
        if (ROOT / path) == Path(__file__):
            continue
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        found += [f"{path}: {match.group()}" for match in re.finditer(pattern, text)]
    assert found == []
