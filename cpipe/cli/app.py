"""The program: commands, global options, and one place where every ending becomes an exit code.

Nothing heavier than typer is imported before a command runs.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cpipe import __version__
from cpipe.cli.check import check
from cpipe.cli.compare import compare
from cpipe.cli.completion import install_completion, prepare_completion, show_completion, with_shell
from cpipe.cli.crossover import crossover
from cpipe.cli.diff import diff
from cpipe.cli.doctor import doctor
from cpipe.cli.exit_codes import INTERNAL_ERROR, INTERRUPTED
from cpipe.cli.explain import explain
from cpipe.cli.export import export
from cpipe.cli.import_ import import_
from cpipe.cli.init import init
from cpipe.cli.interrupts import EndedEarly
from cpipe.cli.profile import profile
from cpipe.cli.run import run
from cpipe.cli.schema import schema
from cpipe.cli.show import show
from cpipe.cli.simulate import simulate
from cpipe.cli.solve import solve
from cpipe.cli.streams import open_standard_streams, refusal
from cpipe.cli.sweep import sweep
from cpipe.cli.validate import validate

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = (
    solve,
    validate,
    simulate,
    show,
    explain,
    diff,
    compare,
    crossover,
    sweep,
    check,
    export,
    import_,
    init,
    profile,
    run,
    schema,
    doctor,
)

app = typer.Typer(
    name="cpipe",
    add_completion=False,  # its own options name no shell where they can guess one, however wrong
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cpipe {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error was raised.")] = False,
    install: Annotated[
        str | None,
        typer.Option(
            "--install-completion",
            metavar="[SHELL]",
            callback=install_completion,
            is_eager=True,
            help="Make bash, zsh or fish complete calls of cpipe [your shell].",
        ),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="[SHELL]",
            callback=show_completion,
            is_eager=True,
            help="Print the script that does so.",
        ),
    ] = None,
) -> None:
    """Compile a measured pipeline profile into a proven schedule and a plan that a runtime executes."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in COMMANDS:
    app.command()(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (see `cpipe.cli.exit_codes`).

    Parameters
    ----------
    arguments
        Without the program's name; None for those of the process.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        open_standard_streams()
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a closed pipe ends us quietly, with 141
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = arguments[:end]
    # --traceback is accepted anywhere, as people append it to the call that failed.
    rest = with_shell([*(option for option in options if option != "--traceback"), *arguments[end:]])
    prepare_completion()
    try:
        status = typer.main.get_command(app).main(args=rest, prog_name="cpipe", standalone_mode=False)
        sys.stdout.flush()
        if status == INTERRUPTED:  # typer's own ending of Ctrl-C
            raise KeyboardInterrupt
    except SystemExit:
        raise
    except EndedEarly:
        return INTERRUPTED
    except BaseException as error:
        return _fail(error, options)
    return status if isinstance(status, int) else 0


def _fail(error: BaseException, options: Sequence[str]) -> int:
    """Report `error`; return the exit code. Whatever goes wrong on the way is a bug of ours, and says so."""
    try:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError) and _is_of_echo(error):
            error = refusal(error)
        return _report(error, options)
    except Exception as bug:
        from cpipe.cli.printer import Printer

        Printer().note(f"error: internal error: {type(bug).__name__} while reporting an error [internal-error]")
        return INTERNAL_ERROR


def _is_of_echo(error: BaseException) -> bool:
    """Return whether `error` came out of typer's own writing, of help or version; ours says itself what went wrong."""
    from traceback import walk_tb

    return any(frame.f_code is typer.echo.__code__ for frame, _ in walk_tb(error.__traceback__))


def _report(error: BaseException, options: Sequence[str]) -> int:
    """Report `error` on stderr, and on stdout too when JSON was asked for; return the exit code."""
    from cpipe.cli.failures import failure_of
    from cpipe.cli.printer import Printer
    from cpipe.errors import UsageError

    names = [command.__name__ for command in COMMANDS]
    command = next((option for option in options if option in names), None)
    failure = failure_of(error, command)
    printer = Printer()
    if "--traceback" in options:
        from traceback import format_exception

        printer.note("".join(format_exception(error)).rstrip("\n"))
    printer.errors(failure.diagnostics, failure.hint)
    if "--json" in options and failure.diagnostics:
        from cpipe.report.document import failure_report

        try:
            printer.document(failure_report(command, failure.status, failure.diagnostics, failure.hint))
        except UsageError as refused:  # nobody can read the document, but the exit code remains
            printer.errors(refused.diagnostics)
    return failure.exit_code
