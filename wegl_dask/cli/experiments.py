"""The commands of `reproduce` on molecules: molhiv."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wegl_dask.cli.jobs import shipped_jobs
from wegl_dask.cli.reproduce import chosen, output_option, workers_option
from wegl_dask.cli.stopping import stopped_by_signals

if TYPE_CHECKING:
    from wegl_dask.folders import Folder
    from wegl_dask.reproduce.embedding import DataSet
    from wegl_dask.reproduce.ledger import Ledger
    from wegl_dask.training.spreading import Workers

Command = TypeVar("Command", bound=Callable[..., Any])

_data_option = click.option("--data", required=True, help="Folder that holds ogbg_molhiv, as source.root.")


@click.command(short_help="Table 1: four methods on ogbg-molhiv.")
@_data_option
@output_option
@click.option("--only", help="Of wegl,virtual-node,automl,average; all if not given.")
@click.option("--layers", help="Numbers of layers that are searched, such as 3,4; 3 to 8 if not given.")
@click.option("--poolings", help="Of final,concat,average, likewise.")
@click.option("--widths", help="Of 300,100,500, widths of the atom embedding, likewise.")
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Of the classifier.")
@click.option(
    "--embedding-seeds", type=click.IntRange(min=0), default=10, show_default=True, help="Of the embedding; 0 for none."
)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="automl: seconds of a search.",
)
@workers_option
def molhiv(
    data: str,
    output: str,
    *,
    only: str | None,
    layers: str | None,
    poolings: str | None,
    widths: str | None,
    seeds: int,
    embedding_seeds: int,
    time_budget: float,
    workers: int | None,
) -> None:
    """Compute table 1 anew: WEGL, with a virtual node, with AutoML, and average pooling, on ogbg-molhiv.

    Everything is chosen on the part "valid". The rows that were computed earlier, by other options, stay in the table.
    The embeddings that are kept take up to 8 GB.

    \b
    Example:
      wegl-dask reproduce molhiv --data data/ogb -o runs/molhiv --only wegl,virtual-node
    """  # noqa: D301  click wants the control character
    # Dask and scikit-learn are slow to import.
    from wegl_dask.reproduce import molhiv as job  # noqa: PLC0415
    from wegl_dask.reproduce.molhiv_results import add_row  # noqa: PLC0415

    plan = job.Plan(
        methods=chosen("--only", only, list(job.METHODS)),
        layers=[int(each) for each in chosen("--layers", layers, [str(each) for each in job.LAYERS])],
        poolings=chosen("--poolings", poolings, job.POOLINGS),
        widths=[int(each) for each in chosen("--widths", widths, [str(each) for each in job.WIDTHS])],
        seeds=seeds,
        embedding_seeds=embedding_seeds,
        time_budget=time_budget,
    )
    with _opened(data, output, workers) as (folder, data_set, ledger, spread):
        job.Molhiv(plan, data_set, ledger, spread).compute(lambda row: add_row(folder, row, plan))
    click.echo(f"wrote {folder.location('molhiv')}.md, molhiv.json and molhiv.png")


@contextmanager
def _opened(data: str, output: str, workers: int | None) -> "Iterator[tuple[Folder, DataSet, Ledger, Workers]]":
    """Open the folder of a job, a cluster, and the molecules, which are ingested unless they were."""
    from wegl_dask.cluster import open_client  # noqa: PLC0415
    from wegl_dask.folders import Folder  # noqa: PLC0415
    from wegl_dask.reproduce.embedding import DataSet  # noqa: PLC0415
    from wegl_dask.reproduce.ledger import Ledger  # noqa: PLC0415
    from wegl_dask.spec import ClusterTable  # noqa: PLC0415
    from wegl_dask.training.spreading import open_workers  # noqa: PLC0415

    folder = Folder(output)
    cluster = ClusterTable(workers=workers, dashboard_address=None)
    toml = shipped_jobs()["ogbg-molhiv"].read_text(encoding="utf-8")
    with stopped_by_signals(), open_client(cluster) as client, open_workers(cluster) as spread:
        yield folder, DataSet("molhiv", toml, data, folder.location(), client), Ledger(folder), spread
