"""The commands that compute the paper's tables and figures anew: reproduce NAME."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wegl_dask.cli.jobs import shipped_jobs
from wegl_dask.errors import JobFileError
from wegl_dask.progress import note
from wegl_dask.spec import LARGEST_SEED
from wegl_dask.stopping import stopped_by_signals

if TYPE_CHECKING:
    from wegl_dask.reproduce.ledger import Ledger
    from wegl_dask.spec import ClusterTable

Name = TypeVar("Name", bound=str)
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(short_help="Compute a table or figure of the paper anew.")
def reproduce() -> None:
    """Compute a table or figure of the paper anew, and write it beside the paper's: NAME.md and NAME.png.

    What was computed is kept, step by step: a command that was stopped goes on when it is run again.
    """


def _data_option(help_text: str) -> Callable[[Command], Command]:
    return click.option("--data", required=True, help=help_text)


output_option = click.option("--output", "-o", required=True, help="Folder for embeddings, steps and the table.")
workers_option = click.option(
    "--workers", type=click.IntRange(min=1), help="Processes on this machine; one a core if not given."
)
address_option = click.option(
    "--address", help="Scheduler of a Dask cluster to compute on, such as tls://host:8786, in place of this machine."
)


@reproduce.command(short_help="Tables 2 and 3: the data sets of the TU collection.")
@_data_option("Folder of the data sets, as source.root; those that are not in it are downloaded to it.")
@output_option
@click.option(
    "--only",
    help="Data sets, such as MUTAG,PTC_MR; if not given all but REDDIT-BINARY and COLLAB, whose grid is smaller.",
)
@click.option("--poolings", help="Of concat,average,final; all if not given.")
@click.option("--layers", help="Numbers of layers, such as 3,4; 3 to 8 if not given.")
@click.option("--models", help="Of svm-linear,svm-rbf,gradient-boosting,mlp,random-forest; all if not given.")
@click.option(
    "--shortlist",
    type=click.IntRange(0, 6),
    default=2,
    show_default=True,
    help="Numbers of layers, the best, with which the whole grid is searched; 0 for the first candidates alone.",
)
@click.option("--nested", is_flag=True, help="Choose within each training part too, four times the work.")
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    default=0,
    show_default=True,
    help="Of the folds and of the models.",
)
@workers_option
@address_option
def tud(
    data: str,
    output: str,
    *,
    only: str | None,
    poolings: str | None,
    layers: str | None,
    models: str | None,
    shortlist: int,
    nested: bool,
    seed: int,
    workers: int | None,
    address: str | None,
) -> None:
    """Compute tables 2 and 3 anew: five classifiers on three kinds of node embeddings, by ten-fold cross-validation.

    A cell that is computed again, with other options, takes the place of the one in the table.

    \b
    Example:
      wegl-dask reproduce tud --data data/TUDataset -o runs/tud --only MUTAG,PTC_MR
    """  # noqa: D301  click wants the control character
    # Dask and scikit-learn are slow to import.
    from wegl_dask.cluster import open_client  # noqa: PLC0415
    from wegl_dask.reproduce import tud as job  # noqa: PLC0415
    from wegl_dask.reproduce.embedding import DataSet  # noqa: PLC0415
    from wegl_dask.reproduce.tud_results import RESULTS, add_results  # noqa: PLC0415
    from wegl_dask.training.spreading import open_workers  # noqa: PLC0415

    plan = job.Plan(
        data_sets=job.DATA_SETS if only is None else chosen("--only", only, job.DATA_SETS + job.LARGE_DATA_SETS),
        poolings=chosen("--poolings", poolings, job.POOLINGS),
        layers=[int(layer) for layer in chosen("--layers", layers, [str(layer) for layer in job.LAYERS])],
        models=chosen("--models", models, list(job.METHODS)),
        nested=nested,
        shortlisted=shortlist,
        seed=seed,
    )
    parts = {each: plan.of(each) for each in plan.data_sets}
    cluster = cluster_of(workers, address)
    jobs = shipped_jobs()
    with (
        held(data, output, RESULTS) as ledger,
        open_client(cluster) as client,
        open_workers(cluster) as spread,
    ):
        folder = ledger.folder
        n_cells = sum(len(part.poolings) * len(part.models) for part in parts.values())
        numbers = itertools.count(1)
        for each, part in parts.items():
            job_toml = jobs[f"paper/{each.lower()}"].read_text(encoding="utf-8")
            data_set = DataSet(each, job_toml, data, folder.location(), client)
            for pooling, model in itertools.product(part.poolings, part.models):
                note(f"cell {next(numbers)} of {n_cells}: {each}, {pooling}, {model}")
                cell = job.compute_cell(part, data_set, ledger, spread, name=each, pooling=pooling, model=model)
                add_results(folder, [cell])
    click.echo(f"wrote {folder.location('tud')}.md, tud.json and tud.png")


def cluster_of(workers: int | None, address: str | None = None) -> "ClusterTable":
    """Describe where a command computes, by its options."""
    from wegl_dask.spec import ClusterTable  # noqa: PLC0415

    if address is None:
        return ClusterTable(workers=workers)
    if workers is not None:
        raise JobFileError("--workers are processes of this machine, and the cluster that --address names has its own")
    return ClusterTable(kind="scheduler", address=address)


@contextmanager
def held(data: str, output: str, results: str | None = None) -> "Iterator[Ledger]":
    """Hold the output folder of a command, with its steps, until it ends, after a look at what would stop it.

    Parameters
    ----------
    data, output : str
        The options.
    results : str or None
        Name of the file that the command adds to, if it adds to one.

    Raises
    ------
    WeglError
        If there are no data, no figure can be drawn, the folder is that of a run, another command is writing in it, or the
        file is damaged.
    """
    from wegl_dask.claims import JOB_NAME  # noqa: PLC0415
    from wegl_dask.folders import Folder  # noqa: PLC0415
    from wegl_dask.locks import locked  # noqa: PLC0415
    from wegl_dask.reproduce.embedding import require_data  # noqa: PLC0415
    from wegl_dask.reproduce.figures import require_plots  # noqa: PLC0415
    from wegl_dask.reproduce.kept import read_kept  # noqa: PLC0415
    from wegl_dask.reproduce.ledger import Ledger  # noqa: PLC0415

    require_data(data)
    require_plots()
    folder = Folder(output)
    if JOB_NAME in folder.listing():
        raise JobFileError(f"{folder.location()} holds a run: name a folder of its own by --output")
    with stopped_by_signals(), locked(folder) as lock:
        if results is not None:
            read_kept(folder, results)
        yield Ledger(folder, lock)


def chosen(option: str, text: str | None, known: Sequence[Name]) -> list[Name]:
    """Read a list of names that an option was given."""
    if text is None:
        return list(known)
    names = {each.strip(): None for each in text.split(",")}
    for each in names:
        if each not in known:
            raise JobFileError(f"{option} names {each!r}; there are {', '.join(known)}")
    return [each for each in known if each in names]
