"""The examples of CI in the README: what they run works in a copy of this repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from readme_blocks import ROOT, Block, copy_repository, parse_blocks, run_blocks

COMMAND = re.compile(r"^\s*- (?:run: )?((?:cpipe|pip) .*)$", flags=re.MULTILINE)


def examples() -> list[Block]:
    """Return the YAML blocks of the README."""
    blocks = parse_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    return [block for block in blocks if block.language == "yaml"]


def test_there_is_one_for_each_service() -> None:
    """The README has an example for GitHub Actions and one for GitLab; each installs cpipe and checks the plans."""
    texts = [block.text for block in examples()]
    assert [sum(mark in text for text in texts) for mark in ("runs-on:", "script:")] == [1, 1]
    for text in texts:
        assert COMMAND.findall(text) == ['pip install "$CPIPE"', "cpipe check plans/"]


@pytest.mark.slow
def test_their_commands_work(tmp_path: Path) -> None:
    """What the examples run of cpipe works in a copy of the repository, as shown."""
    copy_repository(tmp_path)
    shown = {command for block in examples() for command in COMMAND.findall(block.text) if command.startswith("cpipe ")}
    assert shown
    blocks = [Block("bash", 1, f"{command}\n") for command in sorted(shown)]
    assert [fault for _, fault in run_blocks(blocks, tmp_path, "")] == [""] * len(blocks)
