"""Run the commands of a Markdown file, so that what a reader copies works.

Usage: ``python tests/readme_blocks.py README.md``. Every ``bash`` block runs, in order, in one temporary copy of the
repository, with the scripts of the running Python first on PATH. Two marks, each a comment on the line above a fence:

* ``<!-- ci: TARGET runs this -->``: the block is not run here; each of its lines must be a step of ``.ci/run``.
* ``<!-- ci: output -->`` above a ``text`` block: it is what the ``bash`` block before it writes to stdout.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Block", "copy_repository", "main", "parse_blocks", "repository_files", "run_blocks", "uncovered"]

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT_S = 600
_COVERED = re.compile(r"<!-- ci: .+ runs this -->")
_OUTPUT = "<!-- ci: output -->"
_SKIPPED = re.compile(r"\.venv|\.git|\.hypothesis|build|dist|.*_cache|__pycache__|.*\.egg-info")


class Block(NamedTuple):
    """A fenced block: its language, the line of its fence [1-based], its text and the mark above it."""

    language: str
    line: int
    text: str
    mark: str = ""

    @property
    def commands(self) -> tuple[str, ...]:
        """The lines that are neither empty nor comments, without trailing comments."""
        lines = (re.sub(r"\s+#.*", "", line).strip() for line in self.text.splitlines())
        return tuple(line for line in lines if line and not line.startswith("#"))

    @property
    def is_covered(self) -> bool:
        """Whether the block says that `.ci/run` runs it."""
        return _COVERED.fullmatch(self.mark) is not None


def parse_blocks(text: str) -> tuple[Block, ...]:
    """Return the fenced blocks of a Markdown text in order; a fence starts at the line's first column.

    Raises
    ------
    ValueError
        When a fence is never closed.
    """
    blocks: list[Block] = []
    body: list[str] | None = None
    opened, language, mark, last = 0, "", "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("```"):
            if body is not None:
                body.append(line)
            else:
                last = line.strip()
        elif body is None:
            body, opened, language, mark = [], number, line[3:].strip(), last
        else:
            blocks.append(Block(language, opened, "".join(f"{row}\n" for row in body), mark))
            body, last = None, ""
    if body is not None:
        raise ValueError(f"line {opened}: the fence is never closed")
    return tuple(blocks)


def repository_files(root: Path) -> tuple[Path, ...]:
    """Return the repository's files, relative to `root`, sorted: what git would commit, or all without git."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
        paths: Iterable[Path] = (Path(name) for name in names if name)
    except (OSError, subprocess.CalledProcessError):
        paths = (path.relative_to(root) for path in root.rglob("*"))
    kept = (path for path in set(paths) if not any(_SKIPPED.fullmatch(part) for part in path.parts))
    return tuple(sorted(path for path in kept if (root / path).is_file()))


def copy_repository(target: Path, root: Path = ROOT) -> None:
    """Copy the repository's files from `root` into the directory `target`."""
    for path in repository_files(root):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, target / path)


def uncovered(block: Block, script: str) -> tuple[str, ...]:
    """Return the commands of `block` that the CI script does not run as a step of their own."""
    steps = {line.removeprefix("step ").strip() for line in script.splitlines() if line.startswith("step ")}
    return tuple(command for command in block.commands if command not in steps)


def run_blocks(blocks: Iterable[Block], directory: Path, script: str) -> Iterator[tuple[Block, str]]:
    """Run the blocks in `directory`; yield each `bash` or expected-output block with its fault (empty when none).

    Parameters
    ----------
    blocks
        In the order of the document.
    directory
        Where the commands run.
    script
        Text of the CI script that runs the covered blocks.
    """
    written = ""
    for block in blocks:
        if block.language == "bash" and block.is_covered:
            missing = uncovered(block, script)
            yield block, f"not a step of .ci/run: {', '.join(missing)}" if missing else ""
        elif block.language == "bash":
            written, fault = _run(block, directory)
            yield block, fault
        elif block.mark == _OUTPUT:
            yield block, _difference(block.text, written)


def _run(block: Block, directory: Path) -> tuple[str, str]:
    """Return what the block writes to stdout, and its fault."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=directory,
            env={**os.environ, "PATH": path, "COLUMNS": "120", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return "", f"no end within {TIME_LIMIT_S} s"
    if done.returncode:
        return done.stdout, f"exit code {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
    return done.stdout, ""


def _difference(expected: str, written: str) -> str:
    """Return how the text in the document differs from what was written, ignoring blanks at line ends."""
    left, right = ([line.rstrip() for line in text.strip("\n").splitlines()] for text in (expected, written))
    return "\n".join(difflib.unified_diff(left, right, "in the document", "written", lineterm=""))


def main(arguments: list[str]) -> int:
    """Run the blocks of each file named; return 0 when all work, 1 when one does not."""
    faults = 0
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for name in arguments:
        blocks = parse_blocks((ROOT / name).read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as temporary:
            copy_repository(Path(temporary))
            for block, fault in run_blocks(blocks, Path(temporary), script):
                faults += bool(fault)
                verdict = fault or ("is run by .ci/run" if block.is_covered else "works")
                print(f"{name}:{block.line}: {verdict}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
