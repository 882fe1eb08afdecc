"""``cpipe compare``: every schedule and method that a job can have, against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli.options import check_choice, check_ranges
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from cpipe.cli.files import OutputFile
    from cpipe.study.compare import Compared

__all__ = ["compare"]


def compare(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="The profile; - reads standard input.")],
    method: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="These methods alone, apart by commas; else all that solve knows."),
    ] = None,
    memory: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="equal: within the profile's limits; own: without limits, each beside what a search reaches with "
            "exactly its memory; both: within the limits, beside that search.",
        ),
    ] = "both",
    search: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What searches there, and with less memory: greedy-crosspipe, greedy or auto."
        ),
    ] = "greedy-crosspipe",
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of every random choice.")] = 0,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the rows to this file as CSV.")
    ] = None,
    save: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW=PLAN", help="Write the plan of this row to a file; may be given again."),
    ] = None,
    svg: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture as SVG.")] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture as PNG (needs cpipe[png]).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No warnings, no progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show progress.")] = False,
) -> int:
    """Compare schedules and methods on a job, in time and memory.

    Every schedule is tried on the placements that it can have, within the same memory; what does not fit or apply is
    listed with the reason. Rows with less memory than the fastest show its price.

    Exits with 4 when nothing fits.
    """
    from cpipe.cli.outputs import output_files
    from cpipe.solve.methods import METHODS
    from cpipe.study.compare import MEMORY_CHOICES, SEARCHES, compare_profile

    methods = tuple(METHODS) if method is None else tuple(dict.fromkeys(part.strip() for part in method.split(",")))
    for name in methods:
        check_choice("--method", name, tuple(METHODS))
    check_choice("--memory", memory, tuple(MEMORY_CHOICES))
    check_choice("--search", search, SEARCHES)
    check_ranges([("--seed", seed, 0 <= seed < 2**31, f"a number in [0, {2**31 - 1}]")])
    saved = _rows_to_save(save or [])
    files: dict[str, str | None] = {"--output": output, "--svg": svg, "--png": png}
    files |= {f"--save {row}": path for row, path in saved.items()}
    targets = output_files(files, [profile], as_json)

    from cpipe.cli.blame import faults_of
    from cpipe.profile import load_profile, profile_warnings
    from cpipe.report.compared import compare_report
    from cpipe.report.comparison import comparison_lines

    printer = Printer(quiet=quiet, verbose=verbose)
    loaded = load_profile(profile)
    warnings = profile_warnings(loaded, profile)
    printer.warnings(warnings)
    choice = next(name for name in MEMORY_CHOICES if name == memory)
    with faults_of(profile), printer.working() as progress:
        found = compare_profile(loaded, methods=methods, memory=choice, search=search, seed=seed, progress=progress)
    contents = _contents(found, saved, targets)
    for option, target in targets.items():
        if target is None:
            printer.artefact(contents[option])
        else:
            target.write(contents[option])
    if as_json:
        printer.document(compare_report(found.comparison, search, warnings))
    elif None not in targets.values():
        printer.answer(comparison_lines(found.comparison))
    return 0 if found.comparison.front else 4


def _rows_to_save(texts: list[str]) -> dict[int, str]:
    """Return the files that ``--save`` names, by row."""
    from cpipe.errors import Diagnostic, UsageError

    found: dict[int, str] = {}
    faults: list[Diagnostic] = []
    for text in texts:
        number, mark, path = text.partition("=")
        if not (mark and path and number.isascii() and number.isdigit() and 0 < len(number) < 7 and int(number) > 0):
            message = f"--save: expected a row and a file such as 2=plan.json, got {text!r}"
            faults.append(Diagnostic(code="row-to-save", message=message))
        elif int(number) in found:
            faults.append(Diagnostic(code="row-to-save", message=f"--save: row {int(number)} is given twice"))
        else:
            found[int(number)] = path
    if faults:
        raise UsageError(faults)
    return found


def _contents(found: Compared, saved: dict[int, str], targets: dict[str, OutputFile | None]) -> dict[str, bytes]:
    """Return the bytes of every file that is asked for, before the first one is written."""
    from cpipe.errors import UsageError
    from cpipe.plan import encode_plan
    from cpipe.report.comparison import comparison_csv
    from cpipe.report.pictures import pictures

    contents: dict[str, bytes] = {}
    for row in saved:
        plan = found.plans[row - 1] if row <= len(found.plans) else None
        if plan is None:
            have = sum(plan is not None for plan in found.plans)
            raise UsageError(f"--save: row {row} has no plan; rows 1 to {have} have one", code="row-to-save")
        contents[f"--save {row}"] = encode_plan(plan)
    if "--output" in targets:
        contents["--output"] = comparison_csv(found.comparison)
    if "--svg" in targets or "--png" in targets:
        from cpipe.report.comparison_plot import draw_comparison

        drawing = draw_comparison(found.comparison)
        contents |= pictures(drawing, targets)
    return contents
