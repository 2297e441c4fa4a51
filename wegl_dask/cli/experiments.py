"""The commands of `reproduce` besides that of the TU collection: molhiv, reference, sinkhorn, runtime."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wegl_dask.cli.jobs import shipped_jobs
from wegl_dask.cli.reproduce import address_option, chosen, cluster_of, held, output_option, workers_option
from wegl_dask.errors import JobFileError

if TYPE_CHECKING:
    from wegl_dask.folders import Folder
    from wegl_dask.reproduce.embedding import DataSet
    from wegl_dask.reproduce.ledger import Ledger
    from wegl_dask.spec import ClusterTable
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
@address_option
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
    address: str | None,
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
    from wegl_dask.reproduce.molhiv_results import RESULTS, add_row  # noqa: PLC0415

    plan = job.Plan(
        methods=chosen("--only", only, list(job.METHODS)),
        layers=[int(each) for each in chosen("--layers", layers, [str(each) for each in job.LAYERS])],
        poolings=chosen("--poolings", poolings, job.POOLINGS),
        widths=[int(each) for each in chosen("--widths", widths, [str(each) for each in job.WIDTHS])],
        seeds=seeds,
        embedding_seeds=embedding_seeds,
        time_budget=time_budget,
        threads=_threads(workers, address),
    )
    with _opened(data, output, cluster_of(workers, address), RESULTS) as (folder, data_set, ledger, spread):
        job.Molhiv(plan, data_set, ledger, spread).compute(lambda row: add_row(folder, row))
    click.echo(f"wrote {folder.location('molhiv')}.md, molhiv.json and molhiv.png")


@click.command(short_help="References of several kinds, seed by seed.")
@_data_option
@output_option
@click.option("--only", help="Of kmeans,normal,barycenter; all if not given.")
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="For kmeans and normal.")
@click.option("--barycenter-seeds", type=click.IntRange(min=1), default=10, show_default=True, help="For barycenter.")
@workers_option
@address_option
def reference(
    data: str,
    output: str,
    *,
    only: str | None,
    seeds: int,
    barycenter_seeds: int,
    workers: int | None,
    address: str | None,
) -> None:
    """Measure how much the reference matters: k-means, a normal distribution and a barycenter, on ogbg-molhiv.

    Rows that were measured earlier, of other kinds or with more seeds, stay in the table.

    \b
    Example:
      wegl-dask reproduce reference --data data/ogb -o runs/reference --seeds 20
    """  # noqa: D301  click wants the control character
    from wegl_dask.reproduce import reference as job  # noqa: PLC0415
    from wegl_dask.reproduce.reference_results import RESULTS, write_results  # noqa: PLC0415

    kinds = {kind: barycenter_seeds if kind == "barycenter" else seeds for kind in chosen("--only", only, job.KINDS)}
    with _opened(data, output, cluster_of(workers, address), RESULTS) as (folder, data_set, ledger, spread):
        threads = _threads(workers, address)
        for found in job.measure_references(kinds, data_set, ledger, spread, threads=threads):
            write_results(folder, found)
    click.echo(f"wrote {folder.location('reference')}.md, reference.json and reference.png")


@click.command(short_help="Exact against entropic plans, by regularisation and by size.")
@_data_option
@output_option
@workers_option
def sinkhorn(data: str, output: str, *, workers: int | None) -> None:
    """Compare the solvers: seconds and W_2 on molecules, with four regularisations, then seconds by the number of points.

    Measure on a machine that does nothing else; what was measured is kept, and a command that was stopped goes on.

    \b
    Example:
      wegl-dask reproduce sinkhorn --data data/ogb -o runs/sinkhorn
    """  # noqa: D301  click wants the control character
    import numpy as np  # noqa: PLC0415

    from wegl_dask.cluster import open_client  # noqa: PLC0415
    from wegl_dask.pipeline import run_job  # noqa: PLC0415
    from wegl_dask.reproduce import sinkhorn as job  # noqa: PLC0415
    from wegl_dask.reproduce.embedding import run_shipped  # noqa: PLC0415
    from wegl_dask.reproduce.sinkhorn_results import write_results  # noqa: PLC0415
    from wegl_dask.run_rows import RunRows  # noqa: PLC0415
    from wegl_dask.storage import RunFolder  # noqa: PLC0415
    from wegl_dask.training.results import data_fingerprint  # noqa: PLC0415

    molecules: list[job.Molecules] = []
    growth: list[job.Growth] = []
    with held(data, output) as ledger:
        folder = ledger.folder
        run = folder.location("run")
        with open_client(cluster_of(workers)) as client:
            run_shipped(run_job, _molhiv_toml(), data, run, client)
        read = data_fingerprint(RunFolder(run))
        rows = RunRows.open(run)
        places = np.unique(np.linspace(0, rows.n_rows - 1, job.N_GRAPHS).astype(np.int64))
        for found in job.compare_on_molecules(rows.points(places), rows.model.reference, ledger, data=read):
            molecules.append(found)
            write_results(folder, molecules, growth, ledger.how())
        places = np.unique(np.linspace(0, rows.n_rows - 1, job.POOL_GRAPHS).astype(np.int64))
        pool = np.unique(rows.points(places).points, axis=0)
        for series in job.measure_growth(pool, ledger, data=read):
            growth.append(series)
            write_results(folder, molecules, growth, ledger.how())
    click.echo(f"wrote {folder.location('sinkhorn')}.md, sinkhorn.json and sinkhorn.png")


@click.command(short_help="Figure 3: seconds of WEGL, WWL and GIN.")
@click.option("--data", required=True, help="Folder of the data sets, as source.root.")
@output_option
@click.option("--only", help="Data sets, such as MUTAG,PTC_MR; all that are in the folder if not given.")
@click.option("--methods", help="Of wegl,wwl,gin; all if not given.")
def runtime(data: str, output: str, *, only: str | None, methods: str | None) -> None:
    """Measure seconds of training and inference of WEGL, of the pairwise WWL kernel and of GIN, on one core.

    What would take more than half a minute is measured on a part and extrapolated, and marked. Measure on a machine that
    does nothing else; what was measured is kept.

    \b
    Example:
      wegl-dask reproduce runtime --data data/TUDataset -o runs/runtime --only MUTAG
    """  # noqa: D301  click wants the control character
    from wegl_dask.cluster import open_client  # noqa: PLC0415
    from wegl_dask.folders import Folder  # noqa: PLC0415
    from wegl_dask.reproduce import runtime as job  # noqa: PLC0415
    from wegl_dask.reproduce.embedding import DataSet, require_data  # noqa: PLC0415
    from wegl_dask.reproduce.runtime_results import RESULTS, add_measured  # noqa: PLC0415

    names = chosen("--only", only, job.DATA_SETS)
    chosen_methods = chosen("--methods", methods, list(job.METHODS))
    require_data(data)
    if only is None:
        there = Folder(data).listing()
        names = [name for name in names if name in there or f"{name}.zip" in there]
        if not names:
            raise JobFileError(
                f"{data}, which --data names, holds none of {', '.join(job.DATA_SETS)}: name the folder that they are in, "
                "or the data sets to be downloaded to it by --only"
            )
    with held(data, output, RESULTS) as ledger:
        folder = ledger.folder
        with open_client(cluster_of(1)) as client:
            jobs = shipped_jobs()
            sets = {
                name: DataSet(
                    name, jobs[f"paper/{name.lower()}"].read_text(encoding="utf-8"), data, folder.location(), client
                )
                for name in names
            }
        for name, data_set in sets.items():
            graphs, labels = data_set.read()
            steps = job.measure(
                name,
                data_set.job,
                graphs,
                labels,
                data=data_set.fingerprint,
                ledger=ledger.fresh(),
                methods=chosen_methods,
            )
            for found in steps:
                add_measured(folder, found)
    click.echo(f"wrote {folder.location('runtime')}.md, runtime.json and runtime.png")


def _molhiv_toml() -> str:
    text: str = shipped_jobs()["ogbg-molhiv"].read_text(encoding="utf-8")
    return text


def _threads(workers: int | None, address: str | None) -> int:
    """Say how many threads a forest may have that is fitted alone: workers of a cluster have one each."""
    from dask.system import CPU_COUNT  # noqa: PLC0415

    return 1 if address is not None else workers or CPU_COUNT


@contextmanager
def _opened(
    data: str, output: str, cluster: "ClusterTable", results: str
) -> "Iterator[tuple[Folder, DataSet, Ledger, Workers]]":
    """Hold the folder of a job, and open a cluster and the molecules, which are ingested unless they were."""
    from wegl_dask.cluster import open_client  # noqa: PLC0415
    from wegl_dask.reproduce.embedding import DataSet  # noqa: PLC0415
    from wegl_dask.training.spreading import open_workers  # noqa: PLC0415

    with held(data, output, results) as ledger, open_client(cluster) as client, open_workers(cluster) as spread:
        folder = ledger.folder
        yield folder, DataSet("molhiv", _molhiv_toml(), data, folder.location(), client), ledger, spread
