"""Commands that compare the graphs of a run: neighbours, similar."""

import csv
import io
from functools import partial
from pathlib import Path
from typing import Any

import click

from wegl_dask.errors import JobFileError
from wegl_dask.progress import Progress, counted, note

OTHER_ENDINGS = {".csv", ".tsv", ".txt", ".json", ".xlsx"}
"""Of files that a Parquet file would be taken for."""

DISTANCES = frozenset({"distance", "bound", "wasserstein"})
"""Columns that are computed, and shown with six digits."""


@click.command(short_help="List the nearest graphs of a graph.")
@click.argument("out")
@click.option("--graph-id", "graph_ids", multiple=True, metavar="ID", help="Id of the graph. May be repeated.")
@click.option("--all", "every", is_flag=True, help="The neighbours of every graph.")
@click.option("-k", type=click.IntRange(min=1), default=10, show_default=True, help="Number of neighbours.")
@click.option("--exact", is_flag=True, help="Rank the nearest in the embedding by the exact Wasserstein distance.")
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Graphs nearest in the embedding that --exact ranks.",
)
@click.option(
    "--column", "columns", multiple=True, help="Column of the run to show of each neighbour. May be repeated."
)
@click.option(
    "--search",
    type=click.Choice(["auto", "exhaustive", "index"]),
    default="auto",
    show_default=True,
    help="Look at all graphs, or at those that an approximate index holds for near; auto is index above 4e9 pairs.",
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write a Parquet file instead.")
def neighbours(out: str, graph_ids: tuple[str, ...], *, every: bool, output: str | None, **options: Any) -> None:
    """List the graphs of the run in OUT that are nearest to one of them, nearest first, as tab-separated text.

    distance is that of the embeddings, |phi_i - phi_j|. The 2-Wasserstein distance of the graphs is no more than bound;
    with --exact it is a column of its own.

    \b
    Examples:
      wegl-dask neighbours runs/quickstart --graph-id 17 -k 5 --exact
      wegl-dask neighbours runs/quickstart --all -o neighbours.parquet
    """  # noqa: D301  click wants the control character
    # NumPy and pyarrow are slow to import.
    from wegl_dask.nearest import neighbours as find_neighbours  # noqa: PLC0415

    if every == bool(graph_ids):
        raise JobFileError("give --graph-id, once or several times, or --all")
    # A link stays; the file that it leads to is written.
    target = None if output is None else Path(output).resolve()
    if target is not None and not target.parent.is_dir():
        raise JobFileError(f"{output} cannot be written: there is no folder {target.parent}")
    if target is not None and target.exists() and not target.is_file():
        raise JobFileError(f"{output} cannot be written: it is no file, and a new file would take its place")
    if target is not None and target.suffix.lower() in OTHER_ENDINGS:
        raise JobFileError(
            f"{output} would be a Parquet file: give it a name that ends in .parquet, or print a table > {output}"
        )
    found = find_neighbours(out, None if every else graph_ids, progress=partial(Progress, brief=True), **options)
    if not every:
        _note_repeated_ids(found)
    if target is None:
        _print_table(found, header=True)
    else:
        import pyarrow.parquet as pq  # noqa: PLC0415

        from wegl_dask.folders import Folder  # noqa: PLC0415

        Folder(str(target.parent)).write(target.name, lambda file: pq.write_table(found, file, compression="zstd"))
        click.echo(f"wrote {counted(found.num_rows, 'neighbour')} to {output}")


@click.command(short_help="List near duplicates.")
@click.argument("out")
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    required=True,
    help="Largest distance of embeddings; 0 for equal ones alone.",
)
@click.option("--exact", is_flag=True, help="Compute the exact Wasserstein distance of every pair that is listed.")
def similar(out: str, threshold: float, *, exact: bool) -> None:
    """List the pairs of graphs in OUT whose embeddings are no farther apart than a threshold, as tab-separated text.

    distance is that of the embeddings. The 2-Wasserstein distance of the graphs is no more than bound; with --exact it
    is a column of its own.
    """
    from wegl_dask.nearest import no_pairs  # noqa: PLC0415
    from wegl_dask.nearest import similar as find_similar  # noqa: PLC0415

    count = 0
    for found in find_similar(out, threshold, exact=exact):
        _print_table(found, header=not count)
        count += found.num_rows
    if not count:
        # A table without rows is one too, to the program that reads it.
        _print_table(no_pairs(exact=exact), header=True)
    note(counted(count, "pair"))


def _note_repeated_ids(found: Any) -> None:
    """Say on standard error where an id stands for several graphs."""
    rows: dict[str, dict[int, None]] = {}
    for row, graph_id in zip(found["query"].to_pylist(), found["query_id"].to_pylist(), strict=True):
        rows.setdefault(graph_id, {})[row] = None
    for graph_id, several in rows.items():
        if len(several) > 1:
            which = ", ".join(map(str, several))
            note(f"{graph_id} is the id of {len(several)} graphs, the rows {which}; those of each follow")


def _print_table(table: Any, *, header: bool) -> None:
    text = io.StringIO()
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    if header:
        writer.writerow(table.column_names)
    # What the run has of its source, such as a number that is a name, is shown whole.
    columns = (
        [f"{value:.6g}" for value in column.to_pylist()] if name in DISTANCES else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    )
    writer.writerows(zip(*columns, strict=True))
    click.echo(text.getvalue(), nl=False)
