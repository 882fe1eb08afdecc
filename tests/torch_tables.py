"""Torch's schedule tables and the profiles to import them on, for the tests of export and import."""

from __future__ import annotations

import json
from typing import Any

from cpipe.compiler import import_table
from cpipe.errors import Diagnostic
from cpipe.ir import Plan
from cpipe.plan.exchange import read_torch_csv
from cpipe.profile import Profile, parse_profile

__all__ = ["as_profile", "import_text", "job_document"]


def job_document(num_ranks: int, num_stages: int, microbatches: int, **fields: Any) -> dict[str, Any]:
    """Return a profile of F 2 ms, D 2 ms, W 1 ms, B 3 ms on every stage, in a loop, links free."""
    return {
        "format": "cpipe.profile",
        "version": 1,
        "name": "table",
        "microbatches": microbatches,
        "devices": [{"id": f"g{rank}"} for rank in range(num_ranks)],
        "stages": [
            {
                "id": f"s{stage}",
                "device": f"g{stage % num_ranks}",
                "forward_ms": 2,
                "input_grad_ms": 2,
                "weight_grad_ms": 1,
                "full_backward_ms": 3,
                "activation_bytes": 1000,
                "output_bytes": 10,
                **({"gradient_bytes": 100, "parameter_bytes": 50} if "data_parallel" in fields else {}),
            }
            for stage in range(num_stages)
        ],
        **fields,
    }


def as_profile(document: dict[str, Any]) -> Profile:
    """Return the profile of a document."""
    return parse_profile(json.dumps(document).encode(), "profile.json")


def import_text(
    text: str, document: dict[str, Any], transport: str | None = None
) -> tuple[Plan, tuple[Diagnostic, ...]]:
    """Import a table on the profile of a document."""
    table = read_torch_csv(text.encode(), "table.csv")
    return import_table(table, as_profile(document), file="table.csv", transport=transport)
