"""``--show-completion`` and ``--install-completion``: scripts that make a shell complete calls of cpipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cpipe.errors import UsageError

__all__ = ["CURRENT_SHELL", "SHELLS", "install_completion", "prepare_completion", "show_completion", "with_shell"]

SHELLS = ("bash", "zsh", "fish")
CURRENT_SHELL = "current"
_OPTIONS = ("--install-completion", "--show-completion")
_VARIABLE = "_CPIPE_COMPLETE"


def with_shell(arguments: Sequence[str]) -> list[str]:
    """Join the shell to an option of completion that begins a call: its value is optional, which typer does not know.

    ``--show-completion zsh`` becomes ``--show-completion=zsh``; where no shell is named it is that of the user.
    """
    first, *rest = arguments or [""]
    if first not in _OPTIONS:
        return list(arguments)
    if rest and not rest[0].startswith("-"):
        return [f"{first}={rest[0]}", *rest[1:]]
    return [f"{first}={CURRENT_SHELL}", *rest]


def prepare_completion() -> None:
    """Get ready to answer a shell that asks what comes next; nothing is loaded for any other call."""
    import os

    if _VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def show_completion(shell: str | None) -> None:
    """Print the script of a shell and end the program.

    Raises
    ------
    UsageError
        When there is none for this shell, or the user's cannot be told.
    """
    if shell is None:
        return
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    name = _named("--show-completion", shell)
    typer.echo(get_completion_script(prog_name="cpipe", complete_var=_VARIABLE, shell=name))
    raise typer.Exit


def install_completion(shell: str | None) -> None:
    """Write the script of a shell to where that shell looks for it, say where, and end the program.

    Raises
    ------
    UsageError
        When there is none for this shell, the user's cannot be told, or the file cannot be written.
    """
    if shell is None:
        return
    from typer.completion import install  # type: ignore[attr-defined]

    from cpipe.errors import UsageError

    name = _named("--install-completion", shell)
    try:
        _, path = install(shell=name, prog_name="cpipe", complete_var=_VARIABLE)
    except OSError as error:
        message = f"--install-completion: {error.filename} cannot be written: {error.strerror or error}"
        raise UsageError(message, code="output-not-writable") from error
    typer.echo(f"{name} completion is in {path}; it works in every new shell")
    raise typer.Exit


def _named(option: str, shell: str) -> str:
    from cpipe.cli.options import check_choice

    if shell != CURRENT_SHELL:
        check_choice(option, shell, SHELLS)
        return shell
    found = _current_shell()
    if found not in SHELLS:
        raise _unknown(option, found)
    return found


def _current_shell() -> str:
    """Return the name of the shell that started the program, else of the user's own; empty when neither is known."""
    import os
    from importlib import import_module

    try:
        return str(import_module("shellingham").detect_shell()[0])
    except (ImportError, RuntimeError, OSError):  # its own failure is an OSError; unknown systems a NotImplementedError
        return os.path.basename(os.environ.get("SHELL", ""))


def _unknown(option: str, found: str) -> UsageError:
    from cpipe.errors import UsageError

    said = f"there is no completion for {found!r}" if found else "your shell cannot be told from here"
    return UsageError(f"{option}: {said}", code="unknown-shell", hint=f"name one: {option} {', '.join(SHELLS)}")
