"""``cpipe sweep``: a profile solved at every point of a grid of links, memory, microbatches, methods and placements."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cpipe.cli import complete
from cpipe.cli.options import check_choice, check_ranges, check_solve_options
from cpipe.cli.printer import Printer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cpipe.cli.files import OutputFile
    from cpipe.errors import Diagnostic
    from cpipe.report.heatmap import CellValue
    from cpipe.report.sweep import SweepPoint, SweepReport
    from cpipe.study.sweep import Sweep
    from cpipe.study.sweep.grid import BandwidthUnit, LatencyUnit
    from cpipe.study.sweep.run import Runner
    from cpipe.study.sweep.store import Format

__all__ = ["sweep"]

_MAX_JOBS = 1024


def sweep(
    profile: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE", autocompletion=complete.profile_files, help="The profile; - reads standard input."
        ),
    ],
    latency_ms: Annotated[str | None, typer.Option(metavar="LIST", help="Latencies of the links, in ms.")] = None,
    latency_factor: Annotated[str | None, typer.Option(metavar="LIST", help="Latencies, times the profile's.")] = None,
    latency_tf: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Latencies, in T_F: the longest forward of a whole device."),
    ] = None,
    bandwidth_gbit_s: Annotated[str | None, typer.Option(metavar="LIST", help="Bandwidths, in Gbit/s.")] = None,
    bandwidth_factor: Annotated[
        str | None, typer.Option(metavar="LIST", help="Bandwidths, times the profile's.")
    ] = None,
    bandwidth_tf: Annotated[
        str | None, typer.Option(metavar="LIST", help="Times that the largest message holds a link, in T_F.")
    ] = None,
    links: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            autocompletion=complete.choices("between-sites", "all"),
            help="Links that vary: between-sites, all, or their ends as in 'a<->b,a->c'.",
        ),
    ] = "between-sites",
    memory_factor: Annotated[
        str | None, typer.Option(metavar="LIST", help="Factors of every device's memory_bytes.")
    ] = None,
    microbatches: Annotated[str | None, typer.Option(metavar="LIST", help="Numbers of microbatches.")] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            autocompletion=complete.listed(complete.methods),
            help="Methods as of solve; METHOD:PLACEMENT tries it on that placement alone.",
        ),
    ] = "auto",
    placement: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            autocompletion=complete.listed(complete.placements),
            help="Placements as of solve, for methods that name none.",
        ),
    ] = "profile",
    chunks: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Stages a device has in a loop or wave; the profile's are cut evenly."),
    ] = None,
    max_gap: Annotated[
        float, typer.Option(metavar="SHARE", help="Accept plans this close to the proven bound, in [0, 1).")
    ] = 0.0,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop searching at each point after this time.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Seed of every random choice.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Processes at once [as many as there are processors].")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Solve on this Dask cluster instead (needs cpipe[dask]).")
    ] = None,
    dask_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for its scheduler, or for any worker.")
    ] = 30.0,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Results, .csv or .json; goes on from what is there."),
    ] = None,
    svg: Annotated[str | None, typer.Option(metavar="FILE", help="Write heat maps as SVG.")] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write heat maps as PNG (needs cpipe[png]).")] = None,
    cells: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete.choices("per-microbatch", "slowdown"),
            help="What heat maps show: per-microbatch, a makespan over its microbatches in ms, or slowdown, that over "
            "the smallest.",
        ),
    ] = "per-microbatch",
    as_json: Annotated[bool, typer.Option("--json", help="Report on stdout as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary, no warnings, no progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show progress.")] = False,
) -> int:
    """Solve a profile at every point of a grid, and write a table of what each gives.

    LIST is values separated by commas; each option is one axis. The table goes to the file of --output, else to stdout
    as CSV. With a file, a call that was interrupted goes on where it ended, and finished points are never solved again.
    Exits with 1 when points failed: their process died, or met a bug. The same call tries them again.
    """
    from msgspec.structs import replace

    from cpipe.cli.files import STANDARD_STREAM, is_standard_output
    from cpipe.cli.outputs import output_files
    from cpipe.report.document import diagnostic_reports
    from cpipe.report.heatmap import CELL_VALUES
    from cpipe.report.sweep import sweep_lines
    from cpipe.study.sweep.store import encode_results

    _check_numbers(max_gap, time_limit, seed, jobs, dask, dask_timeout)
    check_choice("--cells", cells, CELL_VALUES)
    form = _format(output)
    answered = as_json or is_standard_output(svg) or is_standard_output(png)
    table = STANDARD_STREAM if output is None and not answered else output
    outputs = output_files({"--output": table, "--svg": svg, "--png": png}, [profile], as_json)
    made, warnings = _sweep(
        profile,
        {"ms": latency_ms, "factor": latency_factor, "tf": latency_tf},
        {"gbit_s": bandwidth_gbit_s, "factor": bandwidth_factor, "tf": bandwidth_tf},
        {
            "--memory-factor": memory_factor,
            "--microbatches": microbatches,
            "--method": method,
            "--placement": placement,
            "--chunks": chunks,
        },
        (seed, max_gap, time_limit),
        links,
    )
    printer = Printer(quiet=quiet, verbose=verbose)
    printer.warnings(warnings)
    keeper = _Keeper(made, outputs.get("--output"), form)
    if output is not None:
        keeper.read(output)
    num_kept = len(keeper.points)
    _solve_all(made, keeper, _runner(jobs, dask, dask_timeout), printer)
    report = made.report(keeper.points)
    _draw(report, printer, outputs, "slowdown" if cells == "slowdown" else "per-microbatch")
    if as_json:
        printer.document(replace(report, diagnostics=diagnostic_reports(warnings)))
    elif "--output" in outputs and outputs["--output"] is None:
        printer.artefact(encode_results(report, form))
    printer.note(sweep_lines(report.points, report.num_points, num_kept))
    return 0 if report.status == "done" else 1


def _check_numbers(
    max_gap: float, time_limit: float | None, seed: int, jobs: int | None, dask: str | None, dask_timeout: float
) -> None:
    from cpipe.errors import UsageError

    check_solve_options(
        method="auto",  # lists of names are checked with the other axes
        methods=("auto",),
        placement="auto",
        placements=("auto",),
        max_gap=max_gap,
        time_limit=time_limit,
        seed=seed,
        receive_window=None,
    )
    checks: list[tuple[str, float, bool, str]] = [
        ("--dask-timeout", dask_timeout, 0 < dask_timeout < float("inf"), "seconds > 0")
    ]
    if jobs is not None:
        checks.append(("--jobs", jobs, 1 <= jobs <= _MAX_JOBS, f"a number in [1, {_MAX_JOBS}]"))
    check_ranges(checks)
    if dask is not None and jobs is not None:
        raise UsageError("--jobs is for processes of this machine, --dask for those of a cluster", code="jobs-and-dask")


def _format(output: str | None) -> Format:
    from cpipe.cli.files import is_standard_output
    from cpipe.study.sweep.store import format_of

    return "csv" if output is None or is_standard_output(output) else format_of(output)


def _sweep(
    file: str,
    latencies: Mapping[LatencyUnit, str | None],
    bandwidths: Mapping[BandwidthUnit, str | None],
    others: Mapping[str, str | None],
    search: tuple[int, float, float | None],
    links: str,
) -> tuple[Sweep, tuple[Diagnostic, ...]]:
    """Read the profile; return the sweep that the options ask for, and what there is to warn of."""
    from cpipe.cli.sweep_axes import BANDWIDTHS, LATENCIES, read_axes, read_unit
    from cpipe.compiler import PLACEMENTS
    from cpipe.profile import load_profile, profile_warnings
    from cpipe.solve.methods import METHODS
    from cpipe.study.sweep import Settings, make_sweep

    seed, max_gap, time_limit = search
    settings = Settings(
        latency_unit=read_unit(LATENCIES, latencies),
        bandwidth_unit=read_unit(BANDWIDTHS, bandwidths),
        seed=seed,
        max_gap=max_gap,
        time_limit=time_limit,
    )
    loaded = load_profile(file)
    texts = {
        **{LATENCIES[unit]: text for unit, text in latencies.items()},
        **{BANDWIDTHS[unit]: text for unit, text in bandwidths.items()},
        **others,
    }
    axes = read_axes(texts, loaded.microbatches, METHODS, PLACEMENTS)
    return make_sweep(loaded, axes, settings, links), profile_warnings(loaded, file)


class _Keeper:
    """Keeps finished points, in memory and in the results file.

    The file is written whole each time. So that this costs little whatever its size, it waits between two writes for
    as long as ten of them take; what a crash loses is no more than that.
    """

    def __init__(self, made: Sweep, target: OutputFile | None, form: Format) -> None:
        self.points: list[SweepPoint] = []
        self._sweep = made
        self._target = target
        self._form = form
        self._next_s = 0.0
        self._changed = False

    def read(self, path: str) -> None:
        """Take over what an earlier call has finished."""
        from cpipe.study.sweep.store import decode_points

        if self._target is None or not os.path.isfile(path):
            return
        with open(path, "rb") as file:
            data = file.read()
        self.points = decode_points(data, self._form, self._sweep.blank, self._sweep.keys, path)

    def add(self, point: SweepPoint) -> None:
        """Keep one more."""
        self.points.append(point)
        self._changed = True
        if time.monotonic() >= self._next_s:
            self.save()

    def save(self) -> None:
        """Write what there is, if that is not there yet."""
        from cpipe.study.sweep.store import encode_results

        if self._target is not None and self._changed:
            began = time.monotonic()
            self._target.write(encode_results(self._sweep.report(self.points), self._form))
            self._changed = False
            self._next_s = time.monotonic() + 10 * (time.monotonic() - began)


def _runner(jobs: int | None, dask: str | None, dask_timeout: float) -> Runner:
    if dask is not None:
        from cpipe.study.sweep.dask_cluster import check_dask_library, solve_on_cluster

        check_dask_library()
        return lambda tasks, data, settings: solve_on_cluster(tasks, data, settings, dask, dask_timeout)
    from cpipe.study.sweep.workers import solve_in_processes

    number = jobs or _num_processors()
    return lambda tasks, data, settings: solve_in_processes(tasks, data, settings, number)


def _num_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _solve_all(made: Sweep, keeper: _Keeper, runner: Runner, printer: Printer) -> None:
    """Solve what is not known; whatever ends that, what is finished is in the file."""
    from cpipe.study.sweep import run_sweep

    total = len(made.points)
    with printer.working() as progress, contextlib.closing(run_sweep(made, runner, keeper.points)) as found:
        try:
            progress(_bar(len(keeper.points), total))
            for point in found:
                keeper.add(point)
                progress(_bar(len(keeper.points), total))
        finally:
            keeper.save()


_BAR = 30


def _bar(done: int, total: int) -> str:
    filled = _BAR * done // total
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {done} of {total} points"


def _draw(report: SweepReport, printer: Printer, outputs: Mapping[str, OutputFile | None], cells: CellValue) -> None:
    """Write the pictures that were asked for."""
    wanted = {option: target for option, target in outputs.items() if option != "--output"}
    if not wanted:
        return
    from cpipe.report.heatmap import draw_sweep
    from cpipe.report.png import render_png
    from cpipe.report.svg import render_svg

    drawing = draw_sweep(report, cells)
    for option, target in wanted.items():
        data = render_png(drawing) if option == "--png" else render_svg(drawing)
        if target is None:
            printer.artefact(data)
        else:
            target.write(data)
