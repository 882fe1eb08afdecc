"""Of ``cpipe import``: from a model's configuration or a sheet of times to a profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cpipe.cli.options import check_choice, check_ranges
from cpipe.errors import Diagnostic, InfeasibleError, ProfileError, UsageError

if TYPE_CHECKING:
    from cpipe.cli.printer import Printer
    from cpipe.profile import DataParallelSpec, DeviceSpec, Profile
    from cpipe.profile.importers import Assumption, Costing, Layer

__all__ = ["import_profile"]

_GB = 10**9
_MOST_REPLICAS = 10**6
_GPU_MEMORY_GB = 80.0
_LEAST_ONE = (
    "chunks",
    "stages",
    "microbatches",
    "data_parallel",
    "link_replicas",
    "tensor_parallel",
    "microbatch_size",
    "sequence",
)
_POSITIVE = ("gpu_memory", "gpu_tflops")
_NOT_NEGATIVE = ("attention_backward", "activation_factor", "held_factor", "gradient_bytes", "optimizer_bytes")
_MOST = 10**9
_COSTING = {
    "gpu_tflops": "gpu_tflops",
    "tensor_parallel": "tensor_parallel",
    "sequence_parallel": "sequence_parallel",
    "microbatch_size": "microbatch_size",
    "sequence": "sequence",
    "dtype": "dtype",
    "attention": "attention",
    "attention_backward": "attention_backward",
    "recompute": "recompute",
    "activation_factor": "activation_factor",
    "held_factor": "held_factor",
    "gradient_bytes": "main_gradient_bytes",
    "optimizer_bytes": "optimizer_bytes",
    "zero": "zero",
    "data_parallel": "replicas",
}


class _Read(NamedTuple):
    """What a file gave: layers, of which the first `lead` and the last `tail` are no transformer layers."""

    layers: tuple[Layer, ...]
    lead: int
    tail: int
    parameters: int | None
    assumptions: tuple[Assumption, ...]


def import_profile(
    kind: str, file: str, given: Mapping[str, Any], output: str | None, printer: Printer, *, as_json: bool
) -> None:
    """Read `file`, make a profile of it and write that; tell what was assumed.

    Parameters
    ----------
    kind
        ``hf-config`` or ``csv``.
    file
        Where to read; ``-`` is standard input.
    given
        The options that were given, by the names of the command's parameters.
    output
        Where to write; None and ``-`` are standard output, which ``--json`` takes for the report.

    Raises
    ------
    UsageError
        When options are wrong or do not fit together, or the file.
    InputError
        With every fault of the file.
    """
    from cpipe.cli.files import STANDARD_STREAM, OutputFile
    from cpipe.profile import encode_profile

    _check_options(given)
    target = None if output in (None, STANDARD_STREAM) else OutputFile(output, [file])
    devices = _devices(kind, given)
    read = _read(kind, file, given)
    counts = _counts(read, len(devices), given)
    profile, assumed = _profile(kind, read, counts, devices, given)
    warnings = _checked(profile)
    _tell(printer, profile, read, counts, assumed, warnings)
    data = encode_profile(profile)
    if target is not None:
        target.write(data)
    if as_json:
        from cpipe.report.imported import profile_import_report

        layers = _inner(counts, read)
        printer.document(
            profile_import_report(
                kind, profile, parameters=read.parameters, layers=layers, assumptions=assumed, diagnostics=warnings
            )
        )
    elif target is None:
        printer.artefact(data)


def _check_options(given: Mapping[str, Any]) -> None:
    checks = [
        *((name, 1 <= given[name] <= _MOST, f"a number in [1, {_MOST}]") for name in _LEAST_ONE if name in given),
        *((name, 0 < given[name] <= _MOST, f"a number > 0, at most {_MOST}") for name in _POSITIVE if name in given),
        *((name, 0 <= given[name] <= _MOST, f"a number in [0, {_MOST}]") for name in _NOT_NEGATIVE if name in given),
    ]
    if "data_parallel" in given:
        replicas = given["data_parallel"]
        checks.append(("data_parallel", replicas <= _MOST_REPLICAS, f"at most {_MOST_REPLICAS} replicas"))
    check_ranges((_spelled(name), given[name], fits, expected) for name, fits, expected in checks)
    if given.get("zero") in (2, 3):
        message = f"--zero: level {given['zero']} reduces gradients in every microbatch, which is not modelled"
        raise UsageError([Diagnostic(code="unsupported-mode", message=f"{message}: expected 0 or 1")])
    if "zero" in given:
        check_ranges([("--zero", given["zero"], given["zero"] in (0, 1), "0 or 1")])
    if "offer_recompute" in given and given.get("recompute", "none") != "none":
        message = f"--offer-recompute is for layers that keep all they need, not for --recompute {given['recompute']}"
        raise UsageError([Diagnostic(code="recompute-twice", message=message)])
    if "chunks" in given and "stages" in given:
        message = "--chunks and --stages both say how many stages there are; give one of them"
        raise UsageError([Diagnostic(code="two-stage-counts", message=message)])
    from cpipe.profile.importers import ATTENTIONS, DTYPES, RECOMPUTES

    for name, allowed in (
        ("placement", ("ud", "loop", "wave")),
        ("first_stage", ("whole", "split")),
        ("dtype", DTYPES),
        ("attention", ATTENTIONS),
        ("recompute", RECOMPUTES),
    ):
        if name in given:
            check_choice(_spelled(name), given[name], allowed)


def _devices(kind: str, given: Mapping[str, Any]) -> tuple[DeviceSpec, ...]:
    from msgspec.structs import replace

    from cpipe.profile.importers import parse_devices

    memory = given.get("gpu_memory", _GPU_MEMORY_GB if kind == "hf-config" else None)
    size = None if memory is None else round(memory * given.get("tensor_parallel", 1) * _GB)
    devices = parse_devices(given["devices"], size)
    if "intra_link" in given:  # a link inside a site needs the site's name
        devices = tuple(replace(device, site=device.site or "site") for device in devices)
    return devices


def _read(kind: str, file: str, given: Mapping[str, Any]) -> _Read:
    from cpipe.jsontext import read_bytes
    from cpipe.profile.importers import (
        HF_FORMAT,
        SHEET_FORMAT,
        Costing,
        costing_assumptions,
        model_layers,
        parse_hf_config,
        parse_sheet,
    )

    if kind == "csv":
        return _Read(parse_sheet(read_bytes(file, SHEET_FORMAT), file), 0, 0, None, ())
    model = parse_hf_config(read_bytes(file, HF_FORMAT), file)
    costing = Costing(**{field: given[name] for name, field in _COSTING.items() if name in given})
    _check_tensor_parallel(costing, model.layers[0].heads)
    assumptions = costing_assumptions(model, costing)
    return _Read(model_layers(model, costing), 1, 1, model.parameters, assumptions)


def _check_tensor_parallel(costing: Costing, heads: int) -> None:
    if heads % costing.tensor_parallel:
        message = f"--tensor-parallel: expected a divisor of the model's {heads} heads, got {costing.tensor_parallel}"
        raise UsageError([Diagnostic(code="not-a-divisor", message=message)])


def _counts(read: _Read, num_devices: int, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return how many layers each stage holds, those at the ends included."""
    from cpipe.cli.layer_split import balanced_counts, check_stages, listed_counts
    from cpipe.profile.importers import unit_counts

    num_layers = len(read.layers) - read.lead - read.tail
    num_stages = given.get("stages", num_devices * given.get("chunks", 1))
    check_stages(num_stages, num_layers, num_devices)
    split = given.get("split", "balanced")
    if split == "balanced":
        return balanced_counts(read.layers, num_stages, read.lead, read.tail)
    return unit_counts(listed_counts(split, num_stages, num_layers), read.lead, read.tail)


def _profile(
    kind: str, read: _Read, counts: Sequence[int], devices: Sequence[DeviceSpec], given: Mapping[str, Any]
) -> tuple[Profile, tuple[Assumption, ...]]:
    from msgspec import to_builtins

    from cpipe.cli.layer_split import stage_devices
    from cpipe.profile import Profile
    from cpipe.profile.importers import Assumption, parse_links, stages_of

    pattern, placement = stage_devices(given.get("placement"), counts, read.layers, len(devices))
    microbatches = given.get("microbatches", 2 * len(devices))
    rows = _rows(kind, counts, read, pattern, microbatches, given)
    assumed = (
        *(Assumption(name=row[0], value=row[1], unit=row[2], source=row[3], option=row[4]) for row in rows),
        *read.assumptions,
    )
    profile = Profile(
        format="cpipe.profile",
        version=1,
        name=given.get("name", ""),
        microbatches=microbatches,
        devices=tuple(devices),
        stages=stages_of(
            read.layers,
            counts,
            [devices[index].id for index in placement],
            whole_first=given.get("first_stage", "whole") == "whole",
            offer_recompute="offer_recompute" in given,
            input_bytes=read.layers[0].activation_bytes if read.lead else 0,
        ),
        links=parse_links(given.get("link", ()), given.get("intra_link"), devices, given.get("link_replicas", 1)),
        data_parallel=_data_parallel(given),
        extensions={"assumptions": [to_builtins(assumption) for assumption in assumed]},
    )
    return profile, assumed


def _data_parallel(given: Mapping[str, Any]) -> DataParallelSpec | None:
    from cpipe.profile import DataParallelSpec
    from cpipe.profile.importers import parse_cost

    if "dp_link" not in given and given.get("data_parallel", 1) == 1:
        return None
    latency, bandwidth = parse_cost(given["dp_link"], "--dp-link") if "dp_link" in given else (0.0, None)
    return DataParallelSpec(
        mode="zero1" if given.get("zero", 1) else "ddp",
        replicas=given.get("data_parallel", 1),
        latency_ms=latency,
        bandwidth_gbit_s=bandwidth,
    )


_Row = tuple[str, "float | int | str", str, str, str]


def _rows(
    kind: str, counts: Sequence[int], read: _Read, pattern: str, microbatches: int, given: Mapping[str, Any]
) -> Iterator[_Row]:
    """Yield what was taken for granted about devices, links and stages."""

    def chosen(name: str, source: str) -> str:
        return "given" if name in given else source

    layers = ",".join(map(str, _inner(counts, read)))
    balance = "the longest stage as short as it can be, then the least sum of squares, none empty"
    yield "split", layers, "layers of each stage", chosen("split", balance), "--split, --stages, --chunks"
    if read.lead:
        ends = "on the first and the last stage, beside their layers"
        yield "embedding_and_head", ends, "", "their costs count there", "--split"
    if kind == "csv" and (absent := _absent(read.layers)):
        yield "absent_columns", ", ".join(absent), "", "count as 0 bytes", "the sheet's columns"
    yield "placement", pattern, "", chosen("placement", "which stage stands on which device"), "--placement"
    yield "microbatches", microbatches, "", chosen("microbatches", "2 for each device"), "--microbatches"
    memory = given.get("gpu_memory", _GPU_MEMORY_GB if kind == "hf-config" else None)
    group = " times --tensor-parallel, all of it usable" if kind == "hf-config" else ", all of it usable"
    value, unit = ("no limit", "") if memory is None else (memory, "10^9 bytes/GPU")
    yield "gpu_memory", value, unit, chosen("gpu_memory", "of one GPU") + group, "--gpu-memory"
    first = given.get("first_stage", "whole")
    yield (
        "first_stage",
        first,
        "",
        "whole: no input gradient, W is the whole backward, all kept for it",
        "--first-stage",
    )
    offer = "the stage's input is kept, its forward runs again" if "offer_recompute" in given else "no stage may"
    yield "offer_recompute", "yes" if "offer_recompute" in given else "no", "", offer, "--offer-recompute"
    inside = given.get("intra_link", "free")
    yield "intra_link", inside, "", chosen("intra_link", "messages inside a site cost nothing"), "--intra-link"
    if "link" in given:
        share = given.get("link_replicas", 1)
        yield "link_replicas", share, "pipelines", "share the bandwidth of each --link evenly", "--link-replicas"
    replicas = given.get("data_parallel", 1)
    yield "data_parallel", replicas, "replicas", chosen("data_parallel", "of the pipeline"), "--data-parallel"
    if replicas > 1:
        mode = "zero1" if given.get("zero", 1) else "ddp"
        yield "data_parallel_mode", mode, "", chosen("zero", "the optimizer's state is divided"), "--zero"
        yield "dp_link", given.get("dp_link", "free"), "", chosen("dp_link", "collectives cost nothing"), "--dp-link"


def _absent(layers: Sequence[Layer]) -> list[str]:
    """Return the sizes that no layer of a sheet has."""
    sizes = [name for name in layers[0].__struct_fields__ if name.endswith("_bytes")]
    return [name for name in sizes if not any(getattr(layer, name) for layer in layers)]


def _inner(counts: Sequence[int], read: _Read) -> list[int]:
    """Return how many transformer layers each stage holds."""
    inner = list(counts)
    inner[0] -= read.lead
    inner[-1] -= read.tail
    return inner


def _checked(profile: Profile) -> tuple[Diagnostic, ...]:
    """Return the warnings about a profile.

    Raises
    ------
    UsageError
        When options were left out or wrong, so that it is no valid one: a link that is missing, say.
    """
    from msgspec.structs import replace

    from cpipe.profile import encode_profile, normalize, parse_profile, profile_warnings

    try:
        checked = parse_profile(encode_profile(profile), "")
    except ProfileError as error:
        linked = all(fault.code != "unlinked-sites" for fault in error.diagnostics)
        faults = [
            replace(fault, file=None, path=fault.path if linked else None, hint=None) for fault in error.diagnostics
        ]
        raise UsageError(faults, hint=None if linked else "add --link FIRST,SECOND:LATENCY_MS:GBIT_S") from error
    found = profile_warnings(checked)
    try:
        normalize(checked)
    except InfeasibleError as error:
        found += tuple(replace(fault, severity="warning") for fault in error.diagnostics)
    return found


def _tell(
    printer: Printer,
    profile: Profile,
    read: _Read,
    counts: Sequence[int],
    assumed: Sequence[Assumption],
    warnings: Sequence[Diagnostic],
) -> None:
    printer.note("assumed (name = value: source, and how to change it):")
    for assumption in assumed:
        printer.note(f"  {assumption}")
    printer.warnings(warnings)
    longest = max(profile.stages, key=lambda stage: stage.forward_ms)
    size = "" if read.parameters is None else f"{read.parameters / 1e9:.2f} B parameters, "
    layers = sum(_inner(counts, read))
    printer.note(
        f"profile of {len(profile.stages)} stages on {len(profile.devices)} devices: {size}{layers} layers, "
        f"the longest forward {longest.forward_ms:.3f} ms ({longest.id})"
    )


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")
