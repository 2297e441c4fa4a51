"""The command that writes a run's report: report."""

from functools import partial

import click

from wegl_dask.progress import Progress


@click.command(short_help="Write a page about a run.")
@click.argument("out")
def report(out: str) -> None:
    """Write report.html into the folder of the finished run in OUT: one page that is read without a network.

    It shows what was run, rows and rejects, sizes of the graphs, the reference among their points, a map of the
    embeddings, transport costs, seconds a stage, and the models that were trained on the run.
    """
    from wegl_dask.report.job import write_report  # noqa: PLC0415  pyarrow and bokeh are slow to import
    from wegl_dask.storage import RunFolder  # noqa: PLC0415

    click.echo(f"wrote {write_report(RunFolder(out), progress=partial(Progress, announced=True))}")
