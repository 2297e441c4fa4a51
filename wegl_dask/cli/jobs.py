"""Commands that take a job file: run, ingest, check; and init, which writes one."""

import logging
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import click

from wegl_dask.cli.stopping import stopped_by_signals, swept
from wegl_dask.cli.summary import print_summary
from wegl_dask.errors import JobFileError
from wegl_dask.spec import JobSpec, documented_keys, read_job

Command = TypeVar("Command", bound=Callable[..., Any])


def _job_arguments(command: Command) -> Command:
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key of the job file, such as transport.solver=sinkhorn. May be repeated.",
    )(command)
    return click.argument("job", type=click.Path(dir_okay=False))(command)


def _overwrite_option(command: Command) -> Command:
    return click.option(
        "--overwrite", is_flag=True, help="Clear what an earlier run wrote in the output folder, and start anew."
    )(command)


class _KeysCommand(click.Command):
    """A command whose help ends with the keys of the job file."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Keys of the job file"):
            formatter.write_dl(
                [(key, f"{meaning} [{kind}; {default}]") for key, kind, default, meaning in documented_keys()]
            )


@click.command(cls=_KeysCommand, short_help="Run a job: graphs in, embeddings in Parquet.")
@_job_arguments
@_overwrite_option
def run(job: str, overrides: tuple[str, ...], *, overwrite: bool) -> None:
    r"""Run the job file JOB, or what is missing of it: graphs in, embeddings in Parquet.

    The output folder, output.path, holds the whole state. A job that was stopped, killed or out of space goes on when
    it is run again with the same job file; parts that are whole are not made again. Another job file on the same folder
    is refused.

    \b
    Examples:
      wegl-dask run jobs/quickstart.toml
      wegl-dask run job.toml --set output.path=s3://bucket/run-1 --set cluster.workers=8
    """
    from wegl_dask.pipeline import run_job  # noqa: PLC0415  Dask is slow to import, and most commands do without

    spec = read_job(job, overrides)
    print_summary(spec, _on_cluster(spec, run_job, overwrite=overwrite))


@click.command(short_help="Make the graph shards of a job and stop.")
@_job_arguments
@_overwrite_option
def ingest(job: str, overrides: tuple[str, ...], *, overwrite: bool) -> None:
    """Read the source of the job file JOB into canonical graph shards, in graphs/ of its output folder, and stop.

    Other jobs can start from the shards, with source.kind = "graph_parquet".
    """
    from wegl_dask.pipeline import ingest_job  # noqa: PLC0415

    spec = read_job(job, overrides)
    print_summary(spec, _on_cluster(spec, ingest_job, overwrite=overwrite))


@click.command(short_help="Check a job file and its source without computing.")
@_job_arguments
def check(job: str, overrides: tuple[str, ...]) -> None:
    """Check that the job file JOB is allowed and that its source can be found, and show the job with all defaults."""
    from wegl_dask.sources import open_source  # noqa: PLC0415

    spec = read_job(job, overrides)
    source = open_source(spec.source, spec.task)
    pieces, nodes = source.pieces(), source.estimated_nodes()
    click.echo(spec.to_toml().rstrip())
    click.echo(f"\nsource: {len(pieces)} pieces, about {nodes:,} nodes; first piece: {pieces[0]}")


@click.command(short_help="Write a job file to edit.")
@click.argument("name")
@click.option("--output", "-o", type=click.Path(), help="File to write; NAME.toml if not given.")
def init(name: str, output: str | None) -> None:
    """Write the job file NAME, one of those that come with the package, to a file of your own to edit."""
    known = shipped_jobs()
    if name not in known:
        raise JobFileError(f"there is no job file {name!r}; there are {', '.join(known)}")
    target = Path(output or f"{Path(name).name}.toml")
    if target.exists():
        raise JobFileError(f"{target} is there already; remove it or give another name with --output")
    target.write_text(known[name].read_text(encoding="utf-8"), encoding="utf-8")
    click.echo(f"wrote {target}; run it with  wegl-dask run {target}")


def shipped_jobs() -> dict[str, Any]:
    """Find the job files that come with the package, by name: ``quickstart``, ``paper/mutag``, ..."""
    inside = resources.files("wegl_dask") / "jobs"
    # In a source tree the job files are beside the package, and in the wheel they are inside it.
    root = inside if inside.is_dir() else Path(__file__).parents[2] / "jobs"
    found = {}
    for folder in ("", "paper"):
        for path in sorted((root / folder).iterdir() if folder else root.iterdir(), key=lambda entry: entry.name):
            if path.name.endswith(".toml"):
                found[f"{folder}/{path.name}".lstrip("/").removesuffix(".toml")] = path
    return found


def _on_cluster(spec: JobSpec, function: Callable[..., Any], **arguments: Any) -> Any:
    from wegl_dask.cluster import dashboard_link, open_client  # noqa: PLC0415
    from wegl_dask.storage import RunFolder  # noqa: PLC0415

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not click.get_current_context().find_root().params["debug"]:
        for noisy in ("distributed", "dask", "bokeh", "asyncio", "tornado"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        # That a worker is restarted for want of memory is worth knowing.
        logging.getLogger("distributed.nanny.memory").setLevel(logging.WARNING)
    with stopped_by_signals(), swept(RunFolder(spec.output.path)), open_client(spec.cluster) as client:
        if link := dashboard_link(spec.cluster, client):
            click.echo(f"dashboard: {link}", err=True)
        return function(spec, client, **arguments)
