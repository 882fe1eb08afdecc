"""What all tests share: golden files."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as a shell's background job; what tests start would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; read the difference")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that compares a text with the golden file of this test.

    The file is ``tests/golden/<test file>/<test>.txt`` (without ``test_``; parameters are part of the name). A
    missing file fails the test; ``--update-golden`` writes it.
    """
    name = re.sub(r"[^\w.-]+", "-", request.node.name.removeprefix("test_")).strip("-")
    path = GOLDEN / request.node.path.stem.removeprefix("test_") / f"{name}.txt"

    def compare(actual: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8")
        if not path.is_file():
            pytest.fail(f"no golden file {path.relative_to(GOLDEN)}; run pytest with --update-golden and read it")
        assert actual == path.read_text(encoding="utf-8")

    return compare


# A busy machine must not fail a test: no example has a time limit, and in CI every run draws the same examples.
settings.register_profile("cpipe", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("cpipe")
