"""The command ``wegl-dask``: thin commands over the library, one module a group."""

import os
import signal
import sys
from typing import Any

import click

from wegl_dask.cli import jobs
from wegl_dask.cli.stopping import Stopped
from wegl_dask.errors import WeglError
from wegl_dask.version import __version__


class _Group(click.Group):
    """A group of commands that ends an error meant for the user, or a signal, with one line and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WeglError as error:
            if ctx.params["debug"]:
                raise
            click.echo(f"wegl-dask: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt as error:
            stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
            click.echo(f"\nwegl-dask: {stopped}", err=True)
            ctx.exit(stopped.exit_code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="wegl-dask")
@click.option("--debug", is_flag=True, help="Show tracebacks, and all that Dask and its workers log.")
def main(*, debug: bool) -> None:
    """Embed whole graphs as vectors by linear optimal transport, as a batch job on Dask.

    Exit codes: 0 done, 1 failed, 2 usage or job file, 3 too many rows rejected, 130 stopped by Ctrl-C, 143 terminated.
    """
    if not debug:
        # Workers write what they log to the terminal, with a traceback for each failed attempt; this is for them.
        os.environ.setdefault("DASK_LOGGING__DISTRIBUTED__WORKER", "critical")
    # POT imports every array library that it finds, seconds a process, unless it is told not to before it is imported.
    for backend in ("PYTORCH", "JAX", "CUPY", "TENSORFLOW"):
        os.environ.setdefault(f"POT_BACKEND_DISABLE_{backend}", "1")


main.add_command(jobs.run)
main.add_command(jobs.ingest)
main.add_command(jobs.check)
main.add_command(jobs.init)

if __name__ == "__main__":
    sys.exit(main())
