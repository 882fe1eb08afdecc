"""The README runner: what it finds, what it runs, and that it fails when a command does."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import Block, copy_repository, parse_blocks, run_blocks, uncovered

SCRIPT = "step make demo\nstep make test\n"


def faults(directory: Path, *blocks: Block) -> list[str]:
    """Return the faults of blocks that run in `directory`."""
    return [fault for _, fault in run_blocks(blocks, directory, SCRIPT)]


def test_blocks_know_line_language_and_mark() -> None:
    """A block keeps its fence's line, its language and the comment right above it, not one further up."""
    text = "# t\n<!-- ci: output -->\n```text\na\n\nb\n```\n<!-- far -->\n\n```bash\nls\n```\n```\nplain\n```\n"
    assert parse_blocks(text) == (
        Block("text", 3, "a\n\nb\n", "<!-- ci: output -->"),
        Block("bash", 10, "ls\n"),
        Block("", 13, "plain\n"),
    )


def test_open_fence_is_an_error() -> None:
    """A fence that is never closed would hide all that follows, so it is an error."""
    with pytest.raises(ValueError, match="line 2: the fence is never closed"):
        parse_blocks("a\n```bash\nls\n")


def test_working_block_has_no_fault(tmp_path: Path) -> None:
    """Blocks run one after the other in the same directory and see each other's files."""
    assert faults(tmp_path, Block("bash", 1, "echo hi > a\n"), Block("bash", 2, "test -s a\ncat a | wc -l\n")) == [
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("false\ntrue\n", "exit code 1"),  # the first failing line decides
        ("false | true\n", "exit code 1"),  # a pipe fails with any of its parts
        ("echo $UNSET_NAME\n", "exit code 1"),  # so does a name that is not set
        ("read -r x\n", "exit code 1"),  # there is no standard input
        ("echo why >&2; exit 3\n", "exit code 3\nwhy"),  # what it said is shown
    ],
)
def test_failing_block_has_a_fault(tmp_path: Path, text: str, expected: str) -> None:
    """A block in which any command fails is a fault, told with its exit code and its output."""
    (fault,) = faults(tmp_path, Block("bash", 1, text))
    assert fault.startswith(expected)


def test_other_languages_do_not_run(tmp_path: Path) -> None:
    """Only `bash` blocks run: `console` and `text` blocks are for reading."""
    assert faults(tmp_path, Block("console", 1, "false\n"), Block("text", 2, "false\n")) == []


def test_shown_output_is_compared(tmp_path: Path) -> None:
    """A `text` block marked as output must be what the block before it writes."""
    shown = Block("text", 2, "hi\n", "<!-- ci: output -->")
    assert faults(tmp_path, Block("bash", 1, "echo hi\n"), shown) == ["", ""]
    assert "-hi\n+ho" in faults(tmp_path, Block("bash", 1, "echo ho\n"), shown)[1]


def test_covered_block_must_be_a_ci_step(tmp_path: Path) -> None:
    """A block that says that CI runs it is not run here, and is a fault when CI does not."""
    mark = "<!-- ci: make test runs this -->"
    assert faults(tmp_path, Block("bash", 1, "make demo   # solve\nmake test\n", mark)) == [""]
    assert uncovered(Block("bash", 1, "# why\nmake bench\nmake test\n", mark), SCRIPT) == ("make bench",)
    assert faults(tmp_path, Block("bash", 1, "make bench\n", mark)) == ["not a step of .ci/run: make bench"]


def test_copy_leaves_out_what_is_built(tmp_path: Path) -> None:
    """A copy of a tree has its sources but neither environments nor caches, with or without git."""
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("a.py", "plans/b.json", ".venv/bin/c", "build/d", "x/__pycache__/e.pyc", ".mypy_cache/f"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x", encoding="utf-8")
    copy_repository(target, source)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()) == [
        "a.py",
        "plans/b.json",
    ]
