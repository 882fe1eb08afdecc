"""``cpipe export``: a plan as other programs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli import complete
from cpipe.cli.export_kinds import KINDS, LAYOUTS, Request, left_out
from cpipe.cli.options import check_choice
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cpipe.cli.files import OutputFile

__all__ = ["export"]


def export(
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", help="The plan; - reads standard input.", autocompletion=complete.plan_files),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            autocompletion=complete.choices("torch-csv", "megatron", "deepspeed", "timeline-csv"),
            help="torch-csv: the table of torch.distributed.pipelining; megatron: arguments of Megatron-LM; deepspeed: "
            "what a PipeSchedule of DeepSpeed yields; timeline-csv: all times, for a spreadsheet.",
        ),
    ],
    layout: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            autocompletion=complete.choices(*LAYOUTS),
            help="torch-csv: compute_only: torch places the messages; compute_comms: they stay where the plan has them "
            "[compute_only].",
        ),
    ] = None,
    fsdp: Annotated[
        bool,
        typer.Option("--fsdp", help="torch-csv: stages are under FSDP: write UNSHARD and RESHARD (compute_comms)."),
    ] = False,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="LAYERS",
            help="megatron: what each stage holds, in flow order: layers (7,8x6,7) or Megatron's letters (Et*3,m,L).",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            autocompletion=complete.profile_files,
            help="timeline-csv: what the plan takes on this profile, messages too [as the plan says].",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PATH", help="Write to this file, not to stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
) -> int:
    """Write a plan as another program reads it.

    Exits with 1, and writes nothing, when that program cannot run the plan as it is: the first op that it would not
    run is named.
    """
    check_choice("--to", to, tuple(KINDS))
    options = {"--format": layout, "--fsdp": fsdp or None, "--layers": layers, "--profile": profile}
    _check_options(to, options)
    target = _target(output, [plan, *([profile] if profile else [])], as_json)

    from cpipe.plan import load_plan

    printer = Printer()
    request = Request(load_plan(plan), plan, layout, fsdp, layers, profile)
    with printer.working(f"writing {to}"):
        text, found = KINDS[to](request)
    if text is not None and to != "timeline-csv":
        found = (*found, *left_out(request))
    printer.errors(found, next((fault.hint for fault in found if fault.hint), None))
    if target is not None and text is not None:
        target.write(text.encode())
    if as_json:
        from cpipe.report.exported import export_report

        printer.document(export_report(to, text, output, found))
    elif target is None and text is not None:
        printer.artefact(text.encode())
    return 1 if text is None else 0


_OPTIONS = {"--format": "torch-csv", "--fsdp": "torch-csv", "--layers": "megatron", "--profile": "timeline-csv"}


def _check_options(kind: str, options: Mapping[str, str | bool | None]) -> None:
    """Refuse options of another kind of file, and what is missing for this one."""
    from cpipe.errors import Diagnostic, UsageError

    faults = [
        Diagnostic(code="option-of-another-kind", message=f"{name} is for --to {_OPTIONS[name]}, not for {kind}")
        for name, value in options.items()
        if value is not None and _OPTIONS[name] != kind
    ]
    if kind == "megatron" and options["--layers"] is None:
        faults.append(Diagnostic(code="usage", message="missing option '--layers', which megatron needs"))
    if faults:
        raise UsageError(faults, hint="see 'cpipe export --help'")
    if kind == "torch-csv":
        check_choice("--format", str(options["--format"] or LAYOUTS[0]), LAYOUTS)
        if options["--fsdp"] and options["--format"] != "compute_comms":
            raise UsageError("--fsdp needs --format compute_comms: else torch gathers by itself", code="fsdp-format")


def _target(output: str | None, inputs: Sequence[str], as_json: bool) -> OutputFile | None:
    """Return the file to write, checked, or None for standard output."""
    from cpipe.cli.files import STANDARD_STREAM, OutputFile, is_standard_output, read_once
    from cpipe.errors import UsageError

    read_once(*inputs)
    if as_json and is_standard_output(output):
        raise UsageError(f"--json and --output {output} both want standard output", code="stdout-twice")
    return None if output in (None, STANDARD_STREAM) else OutputFile(str(output), inputs)
