"""``cpipe import``: somebody else's schedule as a plan, a model's configuration or a sheet of times as a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpipe.cli import complete
from cpipe.cli.import_options import PLAN_KINDS, PROFILE_KINDS, check_given
from cpipe.cli.options import check_choice
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.plan.exchange import TorchTable

__all__ = ["import_"]

_Text = str | None
_Number = int | None
_Real = float | None


def import_(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="FILE", help="What to read; - reads standard input.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="KIND",
            autocompletion=complete.choices(*PLAN_KINDS, *PROFILE_KINDS),
            help="A schedule: torch-csv, the table of torch.distributed.pipelining. Costs: hf-config, the config.json "
            "of a model; csv, a sheet with a line of times for each layer.",
        ),
    ],
    profile: Annotated[_Text, typer.Option(metavar="PROFILE", help="What the ops of a schedule cost.")] = None,
    output: Annotated[
        _Text, typer.Option("--output", "-o", metavar="PATH", help="Write the plan or profile to this file.")
    ] = None,
    transport: Annotated[
        _Text,
        typer.Option(
            metavar="NAME",
            help="What will carry a schedule's messages [gloo; channels when the table has no messages].",
        ),
    ] = None,
    devices: Annotated[
        _Text, typer.Option(metavar="DEVICES", help="Costs: a number of devices, or SITE:NUMBER,SITE:NUMBER...")
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(metavar="LINK", help="FIRST,SECOND:LATENCY_MS:GBIT_S between sites or devices; repeatable."),
    ] = None,
    intra_link: Annotated[
        _Text, typer.Option(metavar="COST", help="LATENCY_MS:GBIT_S between devices of one site [free].")
    ] = None,
    link_replicas: Annotated[
        _Number, typer.Option(metavar="N", help="Pipelines that share the bandwidth of each --link [1].")
    ] = None,
    chunks: Annotated[_Number, typer.Option(metavar="C", help="Stages on each device [1].")] = None,
    stages: Annotated[_Number, typer.Option(metavar="S", help="Stages, in place of --chunks.")] = None,
    split: Annotated[
        _Text,
        typer.Option(
            metavar="LAYERS", help="Layers of each stage, such as 7,8,8,7 [balanced: the longest is the shortest]."
        ),
    ] = None,
    placement: Annotated[
        _Text,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.choices("ud", "loop", "wave"),
            help="ud, loop or wave [ud; loop when the stages divide over the devices].",
        ),
    ] = None,
    microbatches: Annotated[_Number, typer.Option(metavar="N", help="Of an iteration [2 for each device].")] = None,
    data_parallel: Annotated[_Number, typer.Option(metavar="N", help="Replicas of the pipeline [1].")] = None,
    zero: Annotated[
        _Number, typer.Option(metavar="LEVEL", help="1 divides the optimizer's state over the replicas, 0 not [1].")
    ] = None,
    dp_link: Annotated[
        _Text, typer.Option(metavar="COST", help="LATENCY_MS:GBIT_S between replicas of a device [free].")
    ] = None,
    gpu_memory: Annotated[
        _Real, typer.Option(metavar="GB", help="Memory of one GPU [hf-config: 80; csv: no limit].")
    ] = None,
    first_stage: Annotated[
        _Text,
        typer.Option(
            metavar="HOW",
            autocompletion=complete.choices("whole", "split"),
            help="whole: it sends no gradient, so its W is the whole backward; split: as the others [whole].",
        ),
    ] = None,
    offer_recompute: Annotated[
        bool | None,
        typer.Option(
            "--offer-recompute",
            help="Let the search keep a stage's input alone, and run its forward again in the backward.",
        ),
    ] = None,
    name: Annotated[_Text, typer.Option(metavar="NAME", help="Name of the profile.")] = None,
    gpu_tflops: Annotated[_Real, typer.Option(metavar="T", help="hf-config: what one GPU achieves [400].")] = None,
    tensor_parallel: Annotated[
        _Number, typer.Option(metavar="N", help="hf-config: GPUs that act as one device [1].")
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel", help="hf-config: norms are divided over these GPUs too [yes]."
        ),
    ] = None,
    microbatch_size: Annotated[_Number, typer.Option(metavar="N", help="hf-config: its sequences [1].")] = None,
    sequence: Annotated[_Number, typer.Option(metavar="N", help="hf-config: tokens of a sequence [4096].")] = None,
    dtype: Annotated[
        _Text,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.choices("bf16", "fp16", "fp32"),
            help="hf-config: bf16, fp16 or fp32 [bf16].",
        ),
    ] = None,
    attention: Annotated[
        _Text,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.choices("flash", "standard"),
            help="hf-config: flash or standard [flash].",
        ),
    ] = None,
    attention_backward: Annotated[
        _Real, typer.Option(metavar="RATIO", help="hf-config: backward to forward of its core [2.5; standard: 2].")
    ] = None,
    recompute: Annotated[
        _Text,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.choices("none", "selective", "full"),
            help="hf-config: none, selective or full [none].",
        ),
    ] = None,
    activation_factor: Annotated[
        _Real,
        typer.Option(metavar="BYTES", help="hf-config: a layer keeps, for each token and feature [from the shapes]."),
    ] = None,
    held_factor: Annotated[
        _Real, typer.Option(metavar="BYTES", help="hf-config: of that, W needs [from the shapes].")
    ] = None,
    gradient_bytes: Annotated[
        _Real, typer.Option(metavar="BYTES", help="hf-config: of a parameter's gradient [4].")
    ] = None,
    optimizer_bytes: Annotated[
        _Real, typer.Option(metavar="BYTES", help="hf-config: of a parameter's master copy and moments [12].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No assumptions, notes and warnings.")] = False,
) -> int:
    """Read a schedule as a plan, or a model's costs as a profile.

    A plan is written as the schedule is, faults and all; with a fault the exit code is 1. Of a profile everything that
    had to be assumed is told on stderr, with the option that changes it, and kept in its extensions.

    The first line of a sheet names its columns: forward_ms, and input_grad_ms with weight_grad_ms or full_backward_ms;
    then, if you have them, layer (a name), count (of equal layers) and the sizes of a profile's stages, such as
    activation_bytes. Cells are separated by commas, semicolons or tabs.
    """
    check_choice("--from", source, (*PLAN_KINDS, *PROFILE_KINDS))
    given = check_given(source, context.params)
    printer = Printer(quiet=quiet)
    if source in PROFILE_KINDS:
        from cpipe.cli.import_profile import import_profile

        import_profile(source, table, given, output, printer, as_json=as_json)
        return 0
    return _import_plan(table, given, output, printer, as_json=as_json)


import_.__name__ = "import"  # the command's name, which no function can have


def _import_plan(table: str, given: dict[str, Any], output: str | None, printer: Printer, *, as_json: bool) -> int:
    from cpipe.cli.files import STANDARD_STREAM, OutputFile, read_once

    profile, transport = given["profile"], given.get("transport")
    if transport is not None:
        from cpipe.plan import TRANSPORTS

        check_choice("--transport", transport, TRANSPORTS)
    read_once(table, profile)
    target = None if output in (None, STANDARD_STREAM) else OutputFile(output, [table, profile])

    import msgspec

    from cpipe.cli.blame import faults_of
    from cpipe.compiler import import_table
    from cpipe.plan import encode_plan
    from cpipe.profile import load_profile, profile_warnings
    from cpipe.report.summary import plan_line

    loaded = load_profile(profile)
    warnings = profile_warnings(loaded, profile)
    printer.warnings(warnings)
    # what is wrong with the table names the table
    with faults_of(profile), printer.working(f"reading {table}"):
        plan, found = import_table(_read(table), loaded, file=table, transport=transport)
    if target is not None:  # a fault of the plan names the file that holds it
        found = tuple(msgspec.structs.replace(fault, file=fault.file or output) for fault in found)
    printer.errors(found)
    faulty = any(fault.severity == "error" for fault in found)
    if target is not None:
        target.write(encode_plan(plan))
    if as_json:
        from cpipe.report.imported import plan_import_report

        printer.document(plan_import_report("torch-csv", (*warnings, *found)))
    elif target is None and (not printer.to_terminal or output == STANDARD_STREAM):
        printer.artefact(encode_plan(plan))
    if not faulty:
        printer.note(plan_line(plan))
    return 1 if faulty else 0


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
