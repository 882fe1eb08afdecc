"""The command line where nothing is proven or improved before the solver runs: ``python -m unproven WORKER ARGS``."""

from __future__ import annotations

import sys

from cpipe.cli.app import main
from cpipe.ir import Bound
from cpipe.solve import auto
from cpipe.solve.milp import solve

__all__ = ["prepare"]


def prepare(worker: str | None = None) -> None:
    """Leave everything to the solver, and put a worker of `stub_workers` in its place if one is named."""
    setattr(auto, "lower_bound", lambda problem: Bound(value_ns=1))  # noqa: B010
    setattr(auto._Solve, "_local_search", lambda self: None)  # noqa: B010
    setattr(auto._Solve, "_tighten", lambda self: None)  # noqa: B010
    if worker is not None:
        setattr(solve, "WORKER", f"stub_workers:{worker}")  # noqa: B010


if __name__ == "__main__":
    prepare(None if sys.argv[1] == "real" else sys.argv[1])
    sys.exit(main(sys.argv[2:]))
