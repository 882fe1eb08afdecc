"""What the shell offers when somebody presses the tabulator.

Where nothing is offered here, shells complete paths by themselves. Names come from modules that import nothing heavy,
and only once they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["choices", "listed", "methods", "placements", "plan_files", "profile_files", "transports"]

Completion = Callable[[str], list[str]]


def choices(*values: str) -> Completion:
    """Return a completion of these words."""

    def complete(incomplete: str) -> list[str]:
        return _starting(values, incomplete)

    return complete


def listed(of: Completion) -> Completion:
    """Return a completion of the last entry of a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + word for word in of(last)]

    return complete


def methods(incomplete: str) -> list[str]:
    """Complete the name of a method of `solve`."""
    from cpipe.solve.methods import METHODS

    return _starting(METHODS, incomplete)


def placements(incomplete: str) -> list[str]:
    """Complete the name of a placement."""
    from cpipe.compiler import PLACEMENTS

    return _starting(PLACEMENTS, incomplete)


def transports(incomplete: str) -> list[str]:
    """Complete the name of a transport."""
    from cpipe.plan import TRANSPORTS

    return _starting(TRANSPORTS, incomplete)


def profile_files(incomplete: str) -> list[str]:
    """Complete the path of a profile: JSON files that say that they are one."""
    return _files(incomplete, "cpipe.profile")


def plan_files(incomplete: str) -> list[str]:
    """Complete the path of a plan: JSON files that say that they are one."""
    return _files(incomplete, "cpipe.plan")


_HEAD = 4096  # bytes of a file that are looked at


def _files(incomplete: str, form: str) -> list[str]:
    """Return the files of a format; none where a folder would do too, as only the shell can step into that."""
    import os

    folder, slash, start = incomplete.rpartition("/")
    try:
        entries = [entry for entry in os.scandir(folder or slash or ".") if entry.name.startswith(start)]
    except OSError:
        return []
    if any(entry.is_dir() and (start or not entry.name.startswith(".")) for entry in entries):
        return []
    names = sorted(entry.name for entry in entries if entry.name.endswith(".json") and _says(entry.path, form))
    return [f"{folder}{slash}{name}" for name in names]


def _says(path: str, form: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return f'"{form}"'.encode() in stream.read(_HEAD)
    except OSError:
        return False


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
