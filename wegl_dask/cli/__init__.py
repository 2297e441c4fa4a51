"""The command ``wegl-dask``: thin commands over the library, one module a group."""

import os
import sys
from typing import Any

import click

from wegl_dask.cli import jobs
from wegl_dask.errors import WeglError
from wegl_dask.version import __version__


class _Group(click.Group):
    """A group of commands that ends an error meant for the user with one line and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WeglError as error:
            click.echo(f"wegl-dask: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="wegl-dask")
def main() -> None:
    """Embed whole graphs as vectors by linear optimal transport, as a batch job on Dask.

    Exit codes: 0 done, 1 failed, 2 usage or job file, 3 too many rows rejected, 143 terminated.
    """
    # POT imports every array library that it finds, seconds a process, unless it is told not to before it is imported.
    for backend in ("PYTORCH", "JAX", "CUPY", "TENSORFLOW"):
        os.environ.setdefault(f"POT_BACKEND_DISABLE_{backend}", "1")


main.add_command(jobs.run)
main.add_command(jobs.ingest)
main.add_command(jobs.check)
main.add_command(jobs.init)

if __name__ == "__main__":
    sys.exit(main())
