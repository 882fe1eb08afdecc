"""``cpipe crossover``: pipeline or data parallelism across a slow link, by its bandwidth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cpipe.cli.options import check_choice, check_ranges
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.cli.files import OutputFile
    from cpipe.errors import Diagnostic
    from cpipe.ir.crossing import Crossover
    from cpipe.study.sites import TwoSites

__all__ = ["crossover"]

_PLACEMENTS = ("ud", "wave", "auto")
_MOST_POINTS = 64
_MOST_PARAMETERS = 10**15
_MOST_NUMBER = 65_536


class _Model(NamedTuple):
    """The options that describe a model in place of a profile; None is not given."""

    parameters: float | None
    hidden: int | None
    sequence: int | None
    microbatch_size: int | None
    microbatches: int | None
    devices: int | None
    replicas: int | None
    forward_ms: float | None
    input_grad_ms: float | None
    weight_grad_ms: float | None
    bytes_per_element: int | None
    memory_factor: float | None
    placement: str | None


def crossover(
    profile: Annotated[
        str | None,
        typer.Argument(metavar="[PROFILE]", help="A profile with devices in two sites; else a model, by options."),
    ] = None,
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth-gbit-s",
            metavar="LIST",
            help="Bandwidths of the link each way [10^9 bit/s]: 64,128,256, or 32..8192 for 32 and its doublings.",
        ),
    ] = "32..8192",
    latency_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Latency of the link each way [the profile's, else 4].")
    ] = None,
    parameters: Annotated[
        float | None, typer.Option(metavar="N", help="Parameters of the whole model, as 405e9.")
    ] = None,
    hidden: Annotated[int | None, typer.Option(metavar="D", help="Hidden width.")] = None,
    sequence: Annotated[int | None, typer.Option(metavar="S", help="Sequence length [tokens].")] = None,
    microbatch_size: Annotated[int | None, typer.Option(metavar="B", help="Sequences of a microbatch [1].")] = None,
    microbatches: Annotated[
        int | None, typer.Option(metavar="N", help="Microbatches of each replica [twice the devices].")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(metavar="P", help="Devices of the pipeline, half of them in each site.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(metavar="R", help="Replicas of the pipeline in both sites, which share the link [2].")
    ] = None,
    forward_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Forward of one microbatch on one device.")
    ] = None,
    input_grad_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Its input gradient [as the forward].")
    ] = None,
    weight_grad_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="Its weight gradient [as the forward].")
    ] = None,
    bytes_per_element: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Of activations and gradients [2].")
    ] = None,
    memory_factor: Annotated[
        float | None, typer.Option(metavar="FACTOR", help="Memory for activations, in units of what 1F1B needs [1].")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a model: ud [default], wave (two stages a device), or auto, the best."),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="What searches: greedy, greedy-crosspipe or auto.")
    ] = "greedy",
    refinements: Annotated[
        int, typer.Option(metavar="K", help="Halvings of the interval in which the faster side changes.")
    ] = 4,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of every random choice.")] = 0,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the curves to this file as CSV.")
    ] = None,
    svg: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture as SVG.")] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture as PNG (needs cpipe[png]).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No warnings, no progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show progress.")] = False,
) -> None:
    """Find the bandwidth at which to stop laying the pipeline across a slow link.

    Compares one pipeline across two sites with a pipeline in each of them and an all-reduce of the gradients across:
    started for each stage as soon as its gradients are there, or at the end. What replicas exchange inside a site is
    left out on both sides.
    """
    from cpipe.cli.outputs import output_files
    from cpipe.study.crossover import CROSSOVER_METHODS
    from cpipe.study.crossover import crossover as compare_sides

    model = _Model(
        *(parameters, hidden, sequence, microbatch_size, microbatches, devices, replicas),
        *(forward_ms, input_grad_ms, weight_grad_ms, bytes_per_element, memory_factor, placement),
    )
    check_choice("--method", method, CROSSOVER_METHODS)
    if placement is not None:
        check_choice("--placement", placement, _PLACEMENTS)
    _check_model(model, profile, latency_ms, refinements, seed)
    bandwidths = _bandwidths(bandwidth)
    inputs = [] if profile is None else [profile]
    targets = output_files({"--output": output, "--svg": svg, "--png": png}, inputs, as_json)
    printer = Printer(quiet=quiet, verbose=verbose)
    jobs, warnings = _jobs(model, profile, latency_ms)
    printer.warnings(warnings)

    from cpipe.cli.blame import faults_of
    from cpipe.report.crossed import crossover_report
    from cpipe.report.crossover import crossover_lines

    with faults_of(profile or "the model"), printer.working() as progress:
        found = compare_sides(jobs, bandwidths, method=method, refinements=refinements, seed=seed, progress=progress)
    contents = _contents(found, targets)
    for option, target in targets.items():
        if target is None:
            printer.artefact(contents[option])
        else:
            target.write(contents[option])
    if as_json:
        printer.document(crossover_report(found, warnings))
    elif None not in targets.values():
        printer.answer(crossover_lines(found))


def _contents(found: Crossover, targets: dict[str, OutputFile | None]) -> dict[str, bytes]:
    """Return the bytes of every file that is asked for."""
    from cpipe.report.crossover import crossover_csv
    from cpipe.report.pictures import pictures

    contents: dict[str, bytes] = {}
    if "--output" in targets:
        contents["--output"] = crossover_csv(found)
    if "--svg" in targets or "--png" in targets:
        from cpipe.report.crossover_plot import draw_crossover

        contents |= pictures(draw_crossover(found), targets)
    return contents


def _check_model(model: _Model, profile: str | None, latency_ms: float | None, refinements: int, seed: int) -> None:
    """Check that the options describe a model, or none beside a profile, and that numbers are in range."""
    from cpipe.errors import Diagnostic, UsageError

    given = {_option(name): value for name, value in model._asdict().items() if value is not None}
    checks: list[tuple[str, float, bool, str]] = [
        ("--refinements", refinements, 0 <= refinements <= 20, "a number in [0, 20]"),
        ("--seed", seed, 0 <= seed < 2**31, f"a number in [0, {2**31 - 1}]"),
    ]
    if latency_ms is not None:
        checks.append(("--latency-ms", latency_ms, 0 <= latency_ms <= 1e9, "milliseconds in [0, 1e9]"))
    checks += [check for option, value in given.items() if (check := _range(option, value, model.devices)) is not None]
    check_ranges(checks)
    if profile is not None:
        needless = [option for option in given if option != "--parameters"]
        if needless:
            message = f"{', '.join(needless)}: a profile says this itself"
            raise UsageError(message, code="profile-and-model")
        return
    needed = ("--parameters", "--hidden", "--sequence", "--devices", "--forward-ms")
    missing = [option for option in needed if option not in given]
    if missing:
        fault = Diagnostic(code="model-incomplete", message=f"without a profile {', '.join(missing)} must be given")
        raise UsageError([fault])


def _range(option: str, value: object, devices: int | None) -> tuple[str, float, bool, str] | None:
    """Return the check of an option's number; None of what is no number."""
    if not isinstance(value, int | float):
        return None
    if option == "--parameters":
        return option, value, 1 <= value <= _MOST_PARAMETERS, f"a number in [1, {_MOST_PARAMETERS:g}]"
    if option.endswith("-ms"):
        return option, value, 0 <= value <= 1e9, "milliseconds in [0, 1e9]"
    if option == "--memory-factor":
        least_factor = 1 / max(1, devices or 1)  # one activation
        return option, value, least_factor <= value <= 1e6, f"a factor in [{least_factor:.6g}, 1e6]"
    if option == "--replicas":
        return (
            option,
            value,
            2 <= value <= 10**6 and value % 2 == 0,
            "an even number in [2, 1000000], half in each site",
        )
    least, most = (2, 4096) if option == "--devices" else (1, 10**9)
    if option == "--microbatches":
        most = _MOST_NUMBER
    return option, value, least <= value <= most, f"a number in [{least}, {most}]"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _bandwidths(text: str) -> list[float]:
    """Return the bandwidths that a list or a range names [Gbit/s]."""
    from cpipe.errors import UsageError

    first, dots, last = text.partition("..")
    try:
        found = [float(part) for part in ([first, last] if dots else text.split(","))]
    except ValueError:
        found = []
    if not found or not all(0 < value <= 1e12 for value in found) or (dots and found[0] > found[1]):
        message = f"--bandwidth-gbit-s: expected numbers > 0 such as 64,128 or a range such as 32..8192, got {text!r}"
        raise UsageError(message, code="bandwidth-list")
    if dots:
        doublings = math.floor(math.log2(found[1] / found[0]) + 1e-9)
        found = [*(found[0] * 2**power for power in range(doublings + 1)), found[1]]
    found = sorted(set(found))
    if len(found) > _MOST_POINTS:
        message = f"--bandwidth-gbit-s: expected at most {_MOST_POINTS} bandwidths, got {len(found)}"
        raise UsageError(message, code="bandwidth-list")
    return found


def _jobs(
    model: _Model, profile: str | None, latency_ms: float | None
) -> tuple[list[TwoSites], tuple[Diagnostic, ...]]:
    """Return the job in each placement to try, and what there is to warn of."""
    from cpipe.errors import Diagnostic
    from cpipe.study.sites import ModelJob, job_of_model, job_of_profile

    if profile is not None:
        from cpipe.profile import load_profile, profile_warnings

        loaded = load_profile(profile)
        warnings = profile_warnings(loaded, profile)
        if loaded.data_parallel is not None:
            message = "data_parallel is left out on both sides"
            left_out = Diagnostic(
                code="data-parallel-left-out", message=message, severity="warning", file=profile, path="$.data_parallel"
            )
            warnings = (*warnings, left_out)
        parameters = None if model.parameters is None else round(model.parameters)
        return [job_of_profile(loaded, parameters=parameters, latency_ms=latency_ms)], warnings
    forward_ms, devices = model.forward_ms or 0.0, model.devices or 2
    job = ModelJob(
        parameters=round(model.parameters or 0),
        hidden=model.hidden or 1,
        sequence=model.sequence or 1,
        microbatch_size=model.microbatch_size or 1,
        microbatches=model.microbatches or 2 * devices,
        num_devices=devices,
        replicas=model.replicas or 2,
        forward_ms=forward_ms,
        input_grad_ms=forward_ms if model.input_grad_ms is None else model.input_grad_ms,
        weight_grad_ms=forward_ms if model.weight_grad_ms is None else model.weight_grad_ms,
        latency_ms=4.0 if latency_ms is None else latency_ms,
        bytes_per_element=model.bytes_per_element or 2,
        memory_factor=1.0 if model.memory_factor is None else model.memory_factor,
    )
    waves = {"ud": [False], "wave": [True], "auto": [False, True]}[model.placement or "ud"]
    return [job_of_model(job, wave=wave) for wave in waves], ()
