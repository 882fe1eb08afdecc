"""``cpipe profile``: measure a model and its links, and write what `cpipe solve` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.errors import Diagnostic
    from cpipe.profile import Profile

__all__ = ["profile"]

_DEAR_SPLIT = 1.2
_WIDE_SPREAD = 0.5
_POOR_FIT = 0.5


def profile(
    model: Annotated[
        str, typer.Option(metavar="MODULE:FACTORY", help="The model; transformer is a small built-in one.")
    ],
    stages: Annotated[int, typer.Option(metavar="S", help="How many stages it is cut into.")],
    devices: Annotated[
        int | None, typer.Option(metavar="P", help="Ranks; stage k stands on rank k mod P [one a stage].")
    ] = None,
    microbatches: Annotated[int, typer.Option(metavar="N", help="Microbatches of an iteration.")] = 8,
    repeats: Annotated[int, typer.Option(metavar="N", help="How often each op and message is timed.")] = 10,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of the model.")] = 0,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the profile.")] = "",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="PROFILE", help="Write the profile to this file.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End the measurement when it takes longer.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary and no warnings.")] = False,
) -> None:
    """Measure a model's stages and links and write a profile.

    Every op is timed alone, so no waiting is in its time; the minimum of the repeats counts. How far they spread, and
    how well a line fits the times of a link, stands in extensions.measured. The profile goes to the file of --output,
    else to stdout.
    """
    from cpipe.cli.files import STANDARD_STREAM, OutputFile
    from cpipe.cli.launch import require_torch
    from cpipe.cli.options import check_ranges
    from cpipe.errors import ProfileError

    ranks = stages if devices is None else devices
    check_ranges(
        [
            ("--stages", stages, stages >= 1, "a number >= 1"),
            ("--devices", ranks, 1 <= ranks <= max(1, stages), "a number from 1 to that of the stages"),
            ("--microbatches", microbatches, microbatches >= 1, "a number >= 1"),
            ("--repeats", repeats, repeats >= 1, "a number >= 1"),
            ("--timeout", timeout or 1.0, timeout is None or 0 < timeout < float("inf"), "seconds > 0"),
        ]
    )
    target = None if output in (None, STANDARD_STREAM) else OutputFile(output, [])
    require_torch()
    arguments = ["--model", model, "--stages", str(stages), "--microbatches", str(microbatches)]
    arguments += ["--repeats", str(repeats), "--seed", str(seed)]
    printer = Printer(quiet=quiet)
    measured = _measured(arguments, ranks, timeout, printer)
    if measured is None:
        return

    from cpipe.profile import encode_profile, parse_profile

    data = encode_profile(_profile(measured, name or model.rpartition(":")[2], microbatches, ranks))
    try:
        checked = parse_profile(data, output or "-")
    except ProfileError as error:
        raise AssertionError(f"the profile made here is not valid: {error}") from error
    printer.warnings(_warnings(checked, measured, None if target is None else output))
    if target is None:
        printer.artefact(data)
    else:
        target.write(data)
        printer.note(f"profile of {stages} stages on {ranks} devices: {output}")


def _measured(arguments: list[str], ranks: int, timeout: float | None, printer: Printer) -> dict[str, Any] | None:
    """Return what was measured; None on a rank other than 0 of another launcher."""
    from tempfile import TemporaryDirectory

    from cpipe.cli.launch import launch, refuse_timeout, under_launcher

    with TemporaryDirectory(prefix="cpipe-profile-") as name:
        directory = Path(name)
        command = [*arguments, "--result", str(directory / "result.json")]
        if under_launcher():
            refuse_timeout(timeout)

            from cpipe.runtime.profile_worker import main

            main(command)
        else:
            launch(
                "cpipe.runtime.profile_worker",
                command,
                num_ranks=ranks,
                directory=directory,
                timeout_s=timeout,
                note=printer.note,
            )
        path = directory / "result.json"
        measured: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        return measured


def _profile(measured: dict[str, Any], name: str, microbatches: int, ranks: int) -> Profile:
    """Put the measured numbers into a profile; times are rounded to whole nanoseconds."""
    from cpipe.profile import DeviceSpec, LinkSpec, Profile

    stages, links = measured["stages"], measured["links"]
    return Profile(
        format="cpipe.profile",
        version=1,
        name=name,
        microbatches=microbatches,
        devices=tuple(
            DeviceSpec(id=f"g{rank}", memory_bytes=memory) for rank, memory in enumerate(measured["memory_bytes"])
        ),
        stages=tuple(_stage(costs, index, f"g{index % ranks}") for index, costs in enumerate(stages)),
        links=tuple(
            LinkSpec(
                between=(f"g{link['first']}", f"g{link['second']}"),
                latency_ms=_ms(link["latency_s"]),
                beta_ns_per_byte=round(link["seconds_per_byte"] * 1e9, 6),
            )
            for link in links
        ),
        extensions={"measured": _evidence(stages, links)},
    )


def _stage(costs: dict[str, Any], index: int, device: str) -> Any:
    from cpipe.profile import StageSpec

    split = costs["input_grad_s"] is not None
    return StageSpec(
        id=f"s{index}",
        device=device,
        forward_ms=_ms(costs["forward_s"]),
        input_grad_ms=_ms(costs["input_grad_s"]) if split else None,
        weight_grad_ms=_ms(costs["weight_grad_s"]) if split else None,
        full_backward_ms=_ms(costs["full_backward_s"]),
        activation_bytes=costs["activation_bytes"],
        held_for_weight_grad_bytes=costs["held_bytes"] if split else None,
        static_bytes=costs["parameter_bytes"] + costs["gradient_bytes"] + costs["buffer_bytes"],
        forward_transient_bytes=costs["forward_transient_bytes"],
        input_grad_transient_bytes=costs["input_grad_transient_bytes"],
        weight_grad_transient_bytes=costs["weight_grad_transient_bytes"],
        output_bytes=costs["output_bytes"],
        parameter_bytes=costs["parameter_bytes"],
        gradient_bytes=costs["gradient_bytes"],
    )


def _evidence(stages: list[dict[str, Any]], links: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how sure the numbers are, for people: shares are (median - minimum) / minimum, or of the time fitted."""
    return {
        "static_bytes": "parameters, their gradients and buffers; no optimizer state",
        "stages": [
            {
                "id": f"s{index}",
                "spread": {op: round(share, 4) for op, share in costs["spread"].items()},
                "reruns": costs["reruns"],
                **({"split_error": costs["split_error"]} if costs["split_error"] else {}),
            }
            for index, costs in enumerate(stages)
        ],
        "links": [
            {
                "between": [f"g{link['first']}", f"g{link['second']}"],
                "residual": round(link["residual"], 4),
                "spread": round(link["spread"], 4),
                "sizes_bytes": link["sizes"],
                "one_way_ms": [_ms(seconds) for seconds in link["seconds"]],
            }
            for link in links
        ],
    }


def _warnings(profile: Profile, measured: dict[str, Any], file: str | None) -> tuple[Diagnostic, ...]:
    """Return what a user should look at again: the general suspicions, then those of a measurement."""
    from msgspec.structs import replace

    from cpipe.profile import profile_warnings

    found = (*profile_warnings(profile), *_smells(profile, measured))
    return tuple(replace(warning, severity="warning", file=file) for warning in found)


def _smells(profile: Profile, measured: dict[str, Any]) -> Iterator[Diagnostic]:
    from cpipe.errors import Diagnostic

    for index, (stage, costs) in enumerate(zip(profile.stages, measured["stages"], strict=True)):
        path = f"$.stages[{index}]"
        split_ms, whole_ms = (stage.input_grad_ms or 0.0) + (stage.weight_grad_ms or 0.0), stage.full_backward_ms or 0.0
        if costs["split_error"]:
            message = f"stage {stage.id} cannot be split into D and W: {costs['split_error']}"
            yield Diagnostic(code="cannot-split", message=message, path=path)
        if costs["reruns"]:
            message = (
                f"stage {stage.id} runs forward {costs['reruns']} more times in D and W than in B: activation "
                "checkpoints and a split do not go together"
            )
            hint = "leave out checkpoints, or delete input_grad_ms and weight_grad_ms so that B alone is used"
            yield Diagnostic(code="recompute-with-split", message=message, path=path, hint=hint)
        if split_ms > _DEAR_SPLIT * whole_ms > 0:
            message = f"D and W take {split_ms:g} ms, {split_ms / whole_ms:.2f} times the {whole_ms:g} ms of B"
            yield Diagnostic(code="dear-split", message=message, path=path)
        op, share = max(costs["spread"].items(), key=lambda item: item[1])
        if share > _WIDE_SPREAD:
            message = (
                f"half of the times of {op} are {100 * share:.0f} % or more above the shortest: was the machine busy?"
            )
            yield Diagnostic(code="wide-spread", message=message, path=path)
    for index, link in enumerate(measured["links"]):
        if max(link["residual"], link["spread"]) > _POOR_FIT:
            message = (
                f"a message's time differs by up to {100 * link['residual']:.0f} % from the line through them, "
                f"and half of the repeats by up to {100 * link['spread']:.0f} % from the shortest"
            )
            yield Diagnostic(code="poor-link-fit", message=message, path=f"$.links[{index}]")


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)
