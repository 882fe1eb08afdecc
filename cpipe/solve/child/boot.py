"""The script that a child process runs: clear the streams, find cpipe, serve.

It is run by its path in an isolated interpreter (``python -I``), so that neither the working directory nor the
environment decides what is imported. The first line of standard input says where the caller found its packages; those
places come after the interpreter's own, so that a user's file cannot take the place of a library's. Only the standard
library may be imported here before that.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    """Serve one job; never returns to the interpreter's own ending, which a solver could hold up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; the caller decides
    replies = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # whatever a solver prints, it is not part of the reply
    os.close(nowhere)
    header = json.loads(sys.stdin.buffer.readline())
    sys.path += [place for place in header["path"] if place not in sys.path]
    _load_package(header["package"])
    from cpipe.solve.child.worker import serve

    serve(sys.stdin.buffer, replies, header["entry"], header["memory"])


def _load_package(folder: str) -> None:
    """Import cpipe from exactly this folder: another version may be installed, too."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("cpipe", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    assert spec is not None and spec.loader is not None, "a source file has a loader"
    module = module_from_spec(spec)
    sys.modules["cpipe"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
