"""The command ``wegl-dask``: thin commands over the library, one module a group."""

import atexit
import gc
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from wegl_dask.cli import experiments, geometry, jobs, models, neighbours, plan, report, reproduce, runs, training
from wegl_dask.errors import WeglError
from wegl_dask.logs import LOG_JSON, json_lines, log_event
from wegl_dask.stopping import RUN_AGAIN, Stopped
from wegl_dask.version import __version__
from wegl_dask.worker_environment import prepare_command

SHORTAGES = {
    "can't start new thread": "threads or processes",
    "Too many open files": "open files",
    "annot allocate memory": "memory",
    "failed to map segment": "memory",
}
"""What Python, the system and its loader of libraries say where a user or process has reached a limit, and of what."""

DASK_CONFIG = str(Path("dask", "config.py"))
"""Where Dask reads its configuration files."""


class _Group(click.Group):
    """A group of commands that ends an error meant for the user, or a signal, with one line and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  the signature is click's
        """In the order in which they were added."""
        return list(self.commands)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command, even if what it says cannot be written."""
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if traceback.extract_tb(error.__traceback__)[-1].filename != click.utils.__file__:
                raise
            # At its end Python would try to write the rest once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            with suppress(OSError):
                click.echo(f"wegl-dask: cannot write to standard output: {error.strerror}", err=True)
            sys.exit(1)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the arguments of the group itself."""
        try:
            with _usage_errors_on_one_line():
                return super().make_context(*args, **extra)
        except Stopped as stopped:
            # Click would say that it was aborted.
            with suppress(OSError):
                click.echo(f"\nwegl-dask: {stopped}", err=True)
            sys.exit(stopped.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with _usage_errors_on_one_line():
                return super().invoke(ctx)
        except WeglError as error:
            _report(ctx, _with_notes(error), error.exit_code, table=error.table)
        except (MemoryError, RuntimeError, ImportError, OSError) as error:
            # Python's own `Condition.wait`, stopped as it lets go of its lock, says that it is not locked.
            if isinstance(error.__context__, Stopped):
                _report(ctx, _with_notes(error.__context__), error.__context__.exit_code, before="\n")
            what = _shortage(error)
            if what is None:
                raise
            _report(ctx, f"the system gives this command no more {what}: see what `ulimit -a` says. {RUN_AGAIN}", 1)
        except ValueError as error:
            # Dask reads its configuration when it is imported.
            if not traceback.extract_tb(error.__traceback__)[-1].filename.endswith(DASK_CONFIG):
                raise
            _report(ctx, f"Dask's own configuration cannot be read: {error}", 1)
        except KeyboardInterrupt as error:
            stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT, RUN_AGAIN)
            _report(ctx, _with_notes(stopped), stopped.exit_code, before="\n")


def _shortage(error: Exception) -> str | None:
    """Name what the system does not give any more; None if the error says nothing of the kind."""
    if isinstance(error, MemoryError):
        return "memory"
    return next((what for said, what in SHORTAGES.items() if said in str(error)), None)


def _with_notes(error: BaseException) -> str:
    """Put what an error says and what was added to it on the way together."""
    notes = getattr(error, "__notes__", [])
    return ". ".join([str(error).rstrip("."), *notes]) if notes else str(error)


def _report(ctx: click.Context, message: str, exit_code: int, *, table: str = "", before: str = "") -> NoReturn:
    """End the command with a line on standard error, and a table where there is one; with --debug, after a traceback."""
    # Where nobody can be told, the exit code tells.
    where = {"traceback": traceback.format_exc()} if ctx.params["debug"] else {}
    with suppress(OSError):
        if ctx.meta.get(LOG_JSON, False):
            with json_lines(sys.stderr):
                log_event("failed", f"{message}\n{table}".rstrip(), level=logging.ERROR, exit_code=exit_code, **where)
        else:
            click.echo("".join(where.values()), err=True, nl=False)
            # What is quoted of the input or of a library may have line ends in it.
            click.echo(f"{before}wegl-dask: {' '.join(message.splitlines())}", err=True)
            if table:
                click.echo(table, err=True)
    ctx.exit(exit_code)


class _UsageError(click.ClickException):
    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"wegl-dask: {self.message}", file=file, err=True)


@contextmanager
def _usage_errors_on_one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        command = "wegl-dask" if error.ctx is None else error.ctx.command_path
        message = " ".join(error.format_message().split())
        raise _UsageError(f"{message} See  {command} --help") from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="wegl-dask")
@click.option("--debug", is_flag=True, help="Show tracebacks, and all that Dask and its workers log.")
def main(*, debug: bool) -> None:
    """Embed whole graphs as vectors by linear optimal transport, as a batch job on Dask.

    Exit codes: 0 done, 1 failed, 2 usage or job file, 3 too many rows rejected, 130 stopped by Ctrl-C, 143 terminated,
    129 left without its terminal.
    """
    # What the encoding of the terminal has no character for becomes a question mark.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    prepare_command(debug=debug)
    # Nearly all objects of a command are those of modules, which stay: it takes a tenth of the time of their import to look
    # for cycles among them again and again, and as much to do so once more when the command has ended.
    gc.set_threshold(100_000, 50, 100)
    atexit.register(gc.freeze)


for command in (
    *(jobs.run, jobs.check, plan.plan, jobs.ingest, jobs.init, runs.status, runs.verify),
    *(models.transform, models.append),
    *(geometry.approximation, neighbours.neighbours, neighbours.similar),
    *(training.train, report.report, reproduce.reproduce),
):
    main.add_command(command)
for experiment in (experiments.molhiv, experiments.reference, experiments.sinkhorn, experiments.runtime):
    reproduce.reproduce.add_command(experiment)
