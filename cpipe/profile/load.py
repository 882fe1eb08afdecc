"""Read a profile and say everything that is wrong with it at once, in file order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

import msgspec

from cpipe.errors import Diagnostic, ProfileError
from cpipe.jsontext import Format, check_envelope, parse_json, read_bytes, scan
from cpipe.profile.links import unlinked_sites
from cpipe.profile.normalize import check_totals, translate
from cpipe.profile.recompute import offers
from cpipe.profile.rules import rule_faults
from cpipe.profile.schema import PROFILE_FORMAT, PROFILE_VERSION, Profile
from cpipe.profile.structure import build_profile

__all__ = ["encode_profile", "load_profile", "parse_profile"]

_FORMAT = Format(PROFILE_FORMAT, PROFILE_VERSION, "profile", ProfileError, max_bytes=2**25)


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read the profile at `path`, or from standard input for ``-``.

    Raises
    ------
    ProfileError
        With every fault of the file; see `parse_profile`.
    """
    return parse_profile(read_bytes(path, _FORMAT), os.fspath(path))


def parse_profile(data: bytes, file: str) -> Profile:
    """Decode and check the profile in `data`.

    Parameters
    ----------
    data
        UTF-8 JSON text; a byte order mark is accepted.
    file
        Name to show in diagnostics.

    Returns
    -------
    Profile
        Valid: `normalize` accepts it, or proves that memory does not suffice.

    Raises
    ------
    ProfileError
        With every fault, in file order. A syntax fault, another format and a newer version come alone:
        what would follow them is noise.
    """
    tree = parse_json(data, file, _FORMAT)
    check_envelope(tree, file, _FORMAT)
    order, faults = scan(tree, file, _FORMAT)
    profile, wrong_fields = build_profile(tree, file)
    faults += wrong_fields
    # An entry that is no object at all has no fields that a rule could compare.
    skipped = {fault.path for fault in wrong_fields if fault.code == "wrong-type"}
    faults += [fault for fault in rule_faults(profile, file) if fault.path not in skipped]
    if not any((fault.path or "").startswith(("$.devices", "$.links")) for fault in faults):
        faults += _in_file(unlinked_sites(profile), file)
    if not faults:
        faults += _in_file(check_totals(translate(profile, recompute=offers(profile))), file)
    if faults:
        faults.sort(key=lambda fault: order.get(fault.path or "$", 0))
        raise ProfileError(faults, hint=next((fault.hint for fault in faults if fault.hint), None))
    return profile


def encode_profile(profile: Profile) -> bytes:
    """Return `profile` as JSON text that `parse_profile` reads back; fields at their defaults are left out."""
    return (json.dumps(msgspec.to_builtins(profile), indent=2, ensure_ascii=False) + "\n").encode()


def _in_file(faults: Iterable[Diagnostic], file: str) -> list[Diagnostic]:
    return [msgspec.structs.replace(fault, file=file) for fault in faults]
