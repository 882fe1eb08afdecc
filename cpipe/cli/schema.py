"""``cpipe schema``: the JSON Schema of a format."""

from __future__ import annotations

from typing import Annotated

import typer

from cpipe.cli.options import SCHEMAS, check_choice
from cpipe.cli.printer import Printer

__all__ = ["schema"]


def schema(
    name: Annotated[str, typer.Argument(metavar="FORMAT", help="profile, plan or report.")],
) -> None:
    """Print the JSON Schema of a format: profile, plan or report."""
    check_choice("FORMAT", name, SCHEMAS)

    from msgspec import json

    if name == "profile":
        from cpipe.profile import profile_schema as make_schema
    elif name == "plan":
        from cpipe.plan import plan_schema as make_schema
    else:
        from cpipe.report.document import report_schema as make_schema

    Printer().artefact(json.format(json.encode(make_schema()), indent=2) + b"\n")
