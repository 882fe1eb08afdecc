"""Calls of the command line for tests: in this process, and as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cpipe.cli.app import main

__all__ = ["ROOT", "Outcome", "call", "profile_document", "spawn", "write_json"]

ROOT = Path(__file__).resolve().parents[1]


class Outcome(NamedTuple):
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout; fails when there is anything else."""
        document: dict[str, Any] = json.loads(self.out)
        return document


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run the command line in this process."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return Outcome(code, *capsys.readouterr())


def spawn(*arguments: object, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Outcome:
    """Run the command line as a process whose output is piped."""
    cleared = {"FORCE_COLOR", "NO_COLOR", "COLUMNS", "TERM", "PYTHONIOENCODING"}
    inherited = {name: value for name, value in os.environ.items() if name not in cleared}
    done = subprocess.run(
        [sys.executable, "-m", "cpipe.cli", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        env={**inherited, "PYTHONPATH": str(ROOT), **(environ or {})},
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def write_json(path: Path, document: object) -> Path:
    """Write a document and return its path."""
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def profile_document(num_devices: int = 2, microbatches: int = 4, **changes: object) -> dict[str, Any]:
    """Return a valid profile: F 2 ms, D 2 ms, W 1 ms, B 3 ms on every device, links of 1 ms, room for 1F1B."""
    document: dict[str, Any] = {
        "format": "cpipe.profile",
        "version": 1,
        "name": "sample",
        "microbatches": microbatches,
        "devices": [{"id": f"g{index}", "memory_bytes": 60_000_000_000} for index in range(num_devices)],
        "stages": [
            {
                "id": f"s{index}",
                "device": f"g{index}",
                "forward_ms": 2,
                "input_grad_ms": 2,
                "weight_grad_ms": 1,
                "full_backward_ms": 3,
                "activation_bytes": 1_000_000_000,
                "held_for_weight_grad_bytes": 500_000_000,
                "static_bytes": 20_000_000_000,
                "output_bytes": 1_000_000,
            }
            for index in range(num_devices)
        ],
        "links": [
            {"from": f"g{source}", "to": f"g{target}", "latency_ms": 1}
            for source in range(num_devices)
            for target in (source - 1, source + 1)
            if 0 <= target < num_devices
        ],
    }
    return document | changes
