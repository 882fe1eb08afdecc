"""Which options of ``cpipe import`` go with which kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PLAN_KINDS", "PROFILE_KINDS", "check_given"]

PLAN_KINDS = ("torch-csv",)
PROFILE_KINDS = ("hf-config", "csv")

_COMMON = frozenset({"table", "source", "output", "as_json", "quiet"})
_OF_PLANS = frozenset({"profile", "transport"})
_OF_PROFILES = frozenset(
    {
        "devices",
        "link",
        "intra_link",
        "link_replicas",
        "chunks",
        "stages",
        "split",
        "placement",
        "microbatches",
        "data_parallel",
        "zero",
        "dp_link",
        "gpu_memory",
        "first_stage",
        "offer_recompute",
        "name",
    }
)
_OF_MODELS = frozenset(
    {
        "gpu_tflops",
        "tensor_parallel",
        "sequence_parallel",
        "microbatch_size",
        "sequence",
        "dtype",
        "attention",
        "attention_backward",
        "recompute",
        "activation_factor",
        "held_factor",
        "gradient_bytes",
        "optimizer_bytes",
    }
)
_OPTIONS = dict.fromkeys(PLAN_KINDS, _OF_PLANS) | {"csv": _OF_PROFILES, "hf-config": _OF_PROFILES | _OF_MODELS}
_REQUIRED = dict.fromkeys(PLAN_KINDS, "profile") | dict.fromkeys(PROFILE_KINDS, "devices")


def check_given(kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, of those that a kind of file has.

    Parameters
    ----------
    kind
        Value of ``--from``.
    parameters
        Every parameter of the command; None and an empty list are options that were not given.

    Raises
    ------
    UsageError
        With one fault for each option that is of no use here, and for the one that is missing.
    """
    from cpipe.errors import Diagnostic, UsageError

    given = {
        name: value
        for name, value in parameters.items()
        if name not in _COMMON and value is not None and value != [] and value != ()
    }
    faults = []
    for name in given:
        if name not in _OPTIONS[kind]:
            kinds = " and ".join(other for other, names in _OPTIONS.items() if name in names)
            message = f"{_spelled(name)} is for --from {kinds}, not for {kind}"
            faults.append(Diagnostic(code="option-of-another-kind", message=message))
    if (needed := _REQUIRED[kind]) not in given:
        faults.append(Diagnostic(code="usage", message=f"missing option '{_spelled(needed)}', which {kind} needs"))
    if faults:
        raise UsageError(faults, hint="see 'cpipe import --help'")
    return given


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")
