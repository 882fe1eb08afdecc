"""``cpipe import``: somebody else's schedule as a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli.options import check_choice
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.plan.exchange import TorchTable

__all__ = ["import_"]

_KINDS = ("torch-csv",)


def import_(
    table: Annotated[str, typer.Argument(metavar="FILE", help="The schedule; - reads standard input.")],
    source: Annotated[
        str, typer.Option("--from", metavar="KIND", help="torch-csv: the table of torch.distributed.pipelining.")
    ],
    profile: Annotated[str, typer.Option(metavar="PROFILE", help="What its ops cost.")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PLAN", help="Write the plan to this file.")
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What will carry its messages [gloo; channels when the table has no messages]."
        ),
    ] = None,
) -> int:
    """Read a schedule of torch, check it and time it on a profile.

    The plan is written as the schedule is, faults and all; with a fault the exit code is 1.
    """
    from cpipe.cli.files import STANDARD_STREAM, OutputFile, read_once

    check_choice("--from", source, _KINDS)
    if transport is not None:
        from cpipe.plan import TRANSPORTS

        check_choice("--transport", transport, TRANSPORTS)
    read_once(table, profile)
    target = None if output in (None, STANDARD_STREAM) else OutputFile(output, [table, profile])

    from cpipe.cli.blame import faults_of
    from cpipe.compiler import import_table
    from cpipe.plan import encode_plan
    from cpipe.profile import load_profile, profile_warnings
    from cpipe.report.summary import plan_line

    loaded = load_profile(profile)
    printer = Printer()
    printer.warnings(profile_warnings(loaded, profile))
    with faults_of(profile):  # what is wrong with the table names the table
        plan, found = import_table(_read(table), loaded, file=table, transport=transport)
    printer.errors(found)
    if target is not None:
        target.write(encode_plan(plan))
    elif not printer.to_terminal or output == STANDARD_STREAM:
        printer.artefact(encode_plan(plan))
    faulty = any(fault.severity == "error" for fault in found)
    if not faulty:
        printer.note(plan_line(plan))
    return 1 if faulty else 0


import_.__name__ = "import"  # the command's name, which no function can have


def _read(file: str) -> TorchTable:
    import sys
    from pathlib import Path

    from cpipe.cli.files import STANDARD_STREAM
    from cpipe.errors import Diagnostic, PlanError
    from cpipe.plan.exchange import read_torch_csv

    try:
        data = sys.stdin.buffer.read() if file == STANDARD_STREAM else Path(file).read_bytes()
    except OSError as error:
        message = f"cannot read: {error.strerror or error}"
        raise PlanError([Diagnostic(code="unreadable", message=message, file=file)]) from error
    return read_torch_csv(data, file)
