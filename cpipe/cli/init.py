"""``cpipe init``: a profile to begin with."""

from __future__ import annotations

from typing import Annotated

import typer

from cpipe.cli.printer import Printer

__all__ = ["init"]

_MOST_STAGES = 1024


def init(
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PROFILE", help="Write the profile to this new file.")
    ] = None,
    stages: Annotated[int | None, typer.Option(metavar="N", help="Stages [one for each device].")] = None,
    devices: Annotated[
        str, typer.Option(metavar="DEVICES", help="A number of devices, or SITE:NUMBER,SITE:NUMBER...")
    ] = "east:2,west:2",
    microbatches: Annotated[int, typer.Option(metavar="N", help="Microbatches of an iteration.")] = 8,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not explain the fields.")] = False,
) -> None:
    """Write a profile to start from, and explain its fields.

    It solves as it is; replace its numbers by yours. The profile goes to the file of --output, which must not exist,
    else to stdout. What every field means goes to stderr.
    """
    from cpipe.cli.files import STANDARD_STREAM, OutputFile
    from cpipe.cli.options import check_ranges
    from cpipe.profile import encode_profile, parse_profile
    from cpipe.profile.fields import profile_fields
    from cpipe.profile.importers import parse_devices
    from cpipe.profile.starter import starter_profile
    from cpipe.schedules.placements import line_placement, loop_placement

    hosts = parse_devices(devices)
    count = len(hosts) if stages is None else stages
    check_ranges(
        [
            ("--stages", count, len(hosts) <= count <= _MOST_STAGES, f"one for each device, up to {_MOST_STAGES}"),
            ("--microbatches", microbatches, 1 <= microbatches <= _MOST_STAGES, f"a number in [1, {_MOST_STAGES}]"),
        ]
    )
    target = None
    if output is not None and output != STANDARD_STREAM:
        target = OutputFile(output, [])
        _check_new(output)
    divides = count % len(hosts) == 0
    placement = loop_placement(count, len(hosts)) if divides else line_placement([1] * count, len(hosts))
    data = encode_profile(starter_profile(hosts, placement, microbatches))
    parse_profile(data, output or STANDARD_STREAM)
    printer = Printer(quiet=quiet)
    printer.note("fields of a profile (* required):")
    fields = profile_fields()
    width = max(len(field.path) for field in fields)
    for field in fields:
        printer.note(f"  {'*' if field.required else ' '} {field.path:{width}}  {field.text}")
    if target is None:
        printer.artefact(data)
    else:
        target.write(data)
        printer.note(f"profile of {count} stages on {len(hosts)} devices: {output}; next: cpipe solve {output}")


def _check_new(output: str) -> None:
    import os
    import stat

    from cpipe.errors import Diagnostic, UsageError

    try:
        found = os.stat(output)
    except OSError:
        return
    if stat.S_ISREG(found.st_mode):
        message = "exists already, and is not written over"
        raise UsageError([Diagnostic(code="output-exists", message=message, file=output)], hint="name a new file")
