"""Which format a file claims to have: looked at before anything else in it is called wrong."""

from __future__ import annotations

from typing import Any

from cpipe.errors import Diagnostic
from cpipe.jsontext.reading import Format, JsonObject, shown

__all__ = ["Format", "check_envelope"]

_KINDS = {"cpipe.profile": "profile", "cpipe.plan": "plan", "cpipe.report": "report"}


def check_envelope(tree: Any, file: str, form: Format) -> None:
    """Refuse what is no file of this format, or one of a newer version.

    A file that does not say what it is, or says it wrongly, is left to the check of its fields.

    Raises
    ------
    InputError
        Of the class that `form` names, with one fault.
    """
    code = message = path = ""
    hint: str | None = None
    if not isinstance(tree, JsonObject):
        code, message, path = "wrong-type", f"expected an object, got {shown(tree)}", "$"
    elif isinstance(name := tree.get("format"), str) and name != form.name:
        code, message, path = "wrong-format", f"expected {shown(form.name)}, got {shown(name)}", "$.format"
        hint = f"this is a {_KINDS[name]}, not a {form.noun}" if name in _KINDS else None
    else:
        version = tree.get("version")
        if isinstance(version, int | float) and version > form.version:
            message = f"made by a newer cpipe: expected version {form.version}, got {shown(version)}"
            code, path, hint = "newer-version", "$.version", form.newer_hint
    if code:
        raise form.error([Diagnostic(code=code, message=message, file=file, path=path, hint=hint)], hint=hint)
