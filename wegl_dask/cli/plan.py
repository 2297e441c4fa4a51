"""The command that says what a job will need."""

import click

from wegl_dask.cli.jobs import job_arguments
from wegl_dask.spec import read_job
from wegl_dask.stopping import RUN_AGAIN, stopped_by_signals


@click.command(short_help="Say what a job will need, before it runs.")
@job_arguments
@click.option("--workers", type=click.IntRange(min=1), help="Number of workers; that of the job file if not given.")
def plan(job: str, overrides: tuple[str, ...], *, workers: int | None) -> None:
    """Say what the job file JOB will need: graphs, tasks, seconds a stage, memory a worker, and bytes of output.

    The stages are tried in this process on a few shards of the source, or of graphs/ in the output folder where an earlier
    run has left them. Nothing is written there. A job that needs more memory than its workers have, or more disk than is
    free, is refused, as `wegl-dask run` does.
    """
    from wegl_dask.planning import Forecast, forecast  # noqa: PLC0415  Dask is slow to import
    from wegl_dask.progress import format_bytes, format_seconds  # noqa: PLC0415

    def describe(found: Forecast) -> None:
        say = click.echo
        say(
            f"\n{spec.name}: about {found.graphs:,} graphs with {found.nodes:,} nodes in {found.shards:,} shards, of which "
            f"{found.tried} were tried"
        )
        vectors = found.n_points * found.dimension
        say(f"N = {found.n_points} reference points, d = {found.dimension}: vectors of {vectors:,}")
        say(f"\n{'stage':<12}{'tasks':>9}{'work':>15}{'seconds':>15}{'memory a worker':>18}")
        for stage in found.stages:
            say(
                f"{stage.name:<12}{stage.tasks:>9,}{format_seconds(stage.work):>15}{format_seconds(stage.seconds):>15}"
                f"{format_bytes(stage.peak_bytes):>18}"
            )
        limit = "" if found.memory_limit is None else f", of {format_bytes(found.memory_limit)}"
        say(
            f"\nin all: {found.tasks:,} tasks on {found.workers:,} workers, {format_seconds(found.seconds)}, at most "
            f"{format_bytes(found.peak_bytes)} of memory a worker{limit}"
        )
        outputs = ", ".join(f"{name}/ {format_bytes(size)}" for name, size in found.outputs.items())
        say(f"output: {outputs} (scratch/ is removed in the end)")

    spec = read_job(job, overrides)
    with stopped_by_signals(RUN_AGAIN):
        found = forecast(spec, workers=workers)
    describe(found)
    found.require_fitting(spec.output.path)
