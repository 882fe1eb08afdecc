"""``cpipe export``: a plan as other programs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli.options import check_choice
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.errors import Diagnostic
    from cpipe.ir import Plan

__all__ = ["export"]

_KINDS = ("torch-csv",)
_LAYOUTS = ("compute_only", "compute_comms")


def export(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The plan; - reads standard input.")],
    to: Annotated[str, typer.Option(metavar="KIND", help="torch-csv: the table of torch.distributed.pipelining.")],
    layout: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="compute_only: torch places the messages; compute_comms: they stay where the plan has them.",
        ),
    ] = "compute_only",
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Stages are under FSDP: write UNSHARD and RESHARD (compute_comms).")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout.")
    ] = None,
) -> int:
    """Write a plan as torch's own pipeline runtime loads it.

    Exits with 1 when torch cannot run the plan as it is meant.
    """
    from cpipe.cli.files import STANDARD_STREAM, OutputFile
    from cpipe.errors import UsageError

    check_choice("--to", to, _KINDS)
    check_choice("--format", layout, _LAYOUTS)
    if fsdp and layout != "compute_comms":
        raise UsageError("--fsdp needs --format compute_comms: else torch gathers by itself", code="fsdp-format")
    target = None if output in (None, STANDARD_STREAM) else OutputFile(output, [plan])

    from cpipe.plan import load_plan
    from cpipe.plan.exchange import torch_csv, torch_faults

    loaded = load_plan(plan)
    printer = Printer()
    faults = torch_faults(loaded, layout=layout, fsdp=fsdp, file=plan)
    if faults:
        printer.errors(faults, next((fault.hint for fault in faults if fault.hint), None))
        return 1
    if layout == "compute_comms":
        printer.warnings(_unsafe(loaded, plan))
    data = torch_csv(loaded, layout=layout, fsdp=fsdp).encode()
    if target is None:
        printer.artefact(data)
    else:
        target.write(data)
    return 0


def _unsafe(plan: Plan, file: str) -> list[Diagnostic]:
    """Return a warning for each kind of NCCL group on which the messages would hang or be swapped."""
    from cpipe.errors import Diagnostic
    from cpipe.plan import TRANSPORTS, safe_transports

    safe = safe_transports(plan)
    message = "on such a group the messages can hang; see 'cpipe validate --transport {}'"
    return [
        Diagnostic(code="torch-transport", message=f"{name}: {message.format(name)}", file=file, severity="warning")
        for name in TRANSPORTS
        if name.startswith("nccl") and name not in safe
    ]
