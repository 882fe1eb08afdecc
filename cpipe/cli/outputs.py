"""What a command writes beside its answer: several files, of which one may be standard output."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cpipe.cli.files import OutputFile, is_standard_output
from cpipe.errors import UsageError

__all__ = ["output_files"]


def output_files(files: Mapping[str, str | None], inputs: Sequence[str], as_json: bool) -> dict[str, OutputFile | None]:
    """Return what is to be written, by option, all checked before the work starts; None is standard output.

    Parameters
    ----------
    files
        Option -> file, None where it was not given.
    inputs
        Files that must not be overwritten.
    as_json
        Whether a report goes to standard output.

    Raises
    ------
    UsageError
        When two want the same place, one cannot be written, or the library of pictures is missing.
    """
    wanted = {option: file for option, file in files.items() if file is not None}
    to_stdout = [option for option, file in wanted.items() if is_standard_output(file)] + ["--json"] * as_json
    if len(to_stdout) > 1:
        raise UsageError(f"{' and '.join(to_stdout[:2])} both want standard output", code="stdout-twice")
    named = [os.path.realpath(file) for file in wanted.values() if not is_standard_output(file)]
    if twice := next((file for file in wanted.values() if named.count(os.path.realpath(file)) > 1), None):
        raise UsageError(f"two files would be written to {twice}", code="output-twice")
    if "--png" in wanted:
        from cpipe.report.png import check_png_library

        check_png_library()
    return {
        option: None if is_standard_output(file) else OutputFile(file, inputs, option)
        for option, file in wanted.items()
    }
