"""The rows of a finished run by number: ids, embeddings in blocks, and the points of the graphs behind them.

A row's number is its place in the order of the parts, as in `wegl_dask.read_embeddings`.
"""

import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wegl_dask.canonical import WeightedPoints, canonical_points
from wegl_dask.embeddings import EmbeddingFormat
from wegl_dask.errors import SourceError, WeglError
from wegl_dask.folders import Folder
from wegl_dask.graphs import IntArray, offsets_from_counts
from wegl_dask.model_files import read_model
from wegl_dask.progress import Progress, unshown
from wegl_dask.reading import READERS, common_format, find_parts, part_names
from wegl_dask.records import part_index, part_path
from wegl_dask.saved_model import Model
from wegl_dask.shards import ORIGIN, origins, read_shard
from wegl_dask.sorted_texts import SortedTexts

READ_AHEAD = 2
"""Parts that are read while the one before is in use."""

MADE_AGAIN = "run the job again, it makes the shard again"
"""What to do about a graph shard that is not as it was written."""


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a run.

    Attributes
    ----------
    start : int
        Number of the first row.
    vectors : float32 or float16, (n_rows, N * d)
        As they are stored.
    rows : pyarrow.Table
        The columns that were asked for.
    """

    start: int
    vectors: npt.NDArray[np.floating]
    rows: pa.Table


@dataclass(frozen=True)
class RunRows:
    """Access to the rows of a run without holding them all.

    Attributes
    ----------
    run : Folder
        The run folder.
    data : Folder
        Its folder of embedding parts.
    names : list of str
        The parts, in order.
    form : EmbeddingFormat
        What they look like.
    group_starts : int64, (n_groups + 1,)
        First row of every row group of every part, and the number of rows.
    groups : list of (int, int)
        Part and row group, by number, of each of them.
    """

    run: Folder
    data: Folder
    names: list[str]
    form: EmbeddingFormat
    group_starts: IntArray
    groups: list[tuple[int, int]]

    @classmethod
    def open(cls, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> "RunRows":
        """Open a finished run.

        Raises
        ------
        WeglError
            If there is no run, it has not finished, or a part is missing or damaged.
        """
        data, run = find_parts(Folder(os.fspath(path), storage_options or {}))
        if run is None:
            raise WeglError(f"{data.location()} is no run folder: give the folder that holds job.toml and data/")
        names = part_names(data, run, allow_unfinished=False)
        with ThreadPoolExecutor(READERS) as pool:
            footers = list(pool.map(data.parquet_footer, names))
        groups = [(part, group) for part, footer in enumerate(footers) for group in range(footer.num_row_groups)]
        counts = [footers[part].row_group(group).num_rows for part, group in groups]
        form = common_format(data, names, footers)
        return cls(run, data, names, form, offsets_from_counts(np.array(counts, dtype=np.int64)), groups)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.group_starts[-1])

    @cached_property
    def part_starts(self) -> IntArray:
        """First row of every part, and the number of rows: int64, (n_parts + 1,)."""
        counts = np.zeros(len(self.names), dtype=np.int64)
        np.add.at(counts, [part for part, _ in self.groups], np.diff(self.group_starts))
        return offsets_from_counts(counts)

    @cached_property
    def model(self) -> Model:
        """The model of the run."""
        return Model.from_files(*read_model(self.run))

    def require_columns(self, columns: Sequence[str]) -> None:
        """Check that rows have these columns; WeglError where one has no such name."""
        there = [name for name in self.form.schema.names if name not in self.form.vector_columns]
        unknown = [name for name in columns if name not in there]
        if unknown:
            raise WeglError(f"{self.run.location()} has no column {', '.join(unknown)}; there are {', '.join(there)}")

    def find(self, graph_ids: Sequence[str]) -> IntArray:
        """Find the rows of graphs by their ids, in the order of the ids and as often; an id of several graphs has several.

        Raises
        ------
        WeglError
            If there is no graph of one of the ids; with the reason, where the run has rejected it.
        """
        graph_ids = list(graph_ids)
        for graph_id in graph_ids:
            if not isinstance(graph_id, str):
                raise WeglError(
                    f"{graph_id!r}, of type {type(graph_id).__name__}, is no id: ids are texts, those of the column graph_id, "
                    f"such as {str(graph_id)!r}"
                )
        rows: dict[str, list[int]] = {graph_id: [] for graph_id in graph_ids}
        try:
            wanted = SortedTexts.of([pa.array(list(rows), pa.string())])
        except UnicodeEncodeError as error:
            raise WeglError(f"the id {error.object!r} is not UTF-8 text, which all ids of a run are") from error
        for start, table in self.tables(("graph_id",)):
            place = wanted.positions(table.column("graph_id"))
            here = np.flatnonzero(place >= 0)
            for row, graph_id in zip(here.tolist(), wanted.texts.take(pa.array(place[here])).to_pylist(), strict=True):
                rows[graph_id].append(start + row)
        missing = [graph_id for graph_id, found in rows.items() if not found]
        if missing:
            self._refuse_rejected(missing)
            examples = self.values(np.arange(min(3, self.n_rows)), ("graph_id",)).column("graph_id").to_pylist()
            raise WeglError(
                f"no graph of {self.run.location()} has the id {missing[0]!r}; ids are those of the column graph_id, "
                f"such as {', '.join(map(repr, examples))}"
            )
        return np.array([row for graph_id in graph_ids for row in rows[graph_id]], dtype=np.int64)

    def _refuse_rejected(self, graph_ids: Sequence[str]) -> None:
        """Say why the run has rejected one of these graphs, if it has."""
        for name in sorted(self.run.listing("rejected")):
            if not name.endswith(".parquet"):
                continue
            table = pq.read_table(io.BytesIO(self.run.read(f"rejected/{name}")))
            for row in table.filter(pc.is_in(table["graph_id"], pa.array(graph_ids, pa.string()))).to_pylist():
                raise WeglError(
                    f"the run in {self.run.location()} has no embedding of {row['graph_id']!r}: it was rejected, "
                    f"{row['source_file']}, row {row['source_row']}: {row['reason']}"
                )

    def tables(self, columns: Sequence[str], groups: Sequence[int] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Read columns of row groups, given by number (of all, if not): the number of the first row, and a table."""
        by_part: dict[int, list[int]] = {}
        for group in range(len(self.groups)) if groups is None else groups:
            by_part.setdefault(self.groups[group][0], []).append(group)

        def read(part: int) -> list[tuple[int, pa.Table]]:
            with self.data.parquet(self.names[part]) as file:
                return [
                    (
                        int(self.group_starts[group]),
                        file.read_row_group(self.groups[group][1], columns=list(columns), use_threads=False)
                        .select(list(columns))
                        .replace_schema_metadata(None),
                    )
                    for group in by_part[part]
                ]

        with ThreadPoolExecutor(READ_AHEAD) as pool:
            waiting = list(reversed(by_part))
            ahead: deque[Future[list[tuple[int, pa.Table]]]] = deque()
            while waiting or ahead:
                while waiting and len(ahead) <= READ_AHEAD:
                    ahead.append(pool.submit(read, waiting.pop()))
                yield from ahead.popleft().result()

    def blocks(self, columns: Sequence[str] = ()) -> Iterator[Block]:
        """Read all rows, a row group at a time; the next parts are read while one is in use."""
        for start, table in self.tables((*columns, *self.form.vector_columns)):
            yield Block(start, self.form.vectors(table), table.select(list(columns)))

    def values(self, rows: IntArray, columns: Sequence[str]) -> pa.Table:
        """Read columns of rows by number, in the order given; only the row groups that hold them are read."""
        chosen, place = np.unique(rows, return_inverse=True)
        tables = [table.take(pa.array(here)) for table, here in self._groups_of(chosen, columns)]
        empty = self.form.schema.empty_table().select(list(columns)).replace_schema_metadata(None)
        return pa.concat_tables([empty, *tables]).take(pa.array(place))

    def take(self, rows: IntArray) -> npt.NDArray[np.floating]:
        """Read vectors by number, in the order given; only the row groups that hold them are read."""
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        # Into their places at once: there may be as many as the run has.
        vectors = np.empty((len(rows), self.form.width), dtype=self.form.dtype)
        for start, table in self.tables(self.form.vector_columns, self._groups_with(ascending)):
            first, stop = np.searchsorted(ascending, [start, start + table.num_rows])
            vectors[order[first:stop]] = self.form.vectors(table)[ascending[first:stop] - start]
        return vectors

    def points(self, rows: IntArray, *, progress: Callable[..., Progress] = unshown) -> WeightedPoints:
        """Compute the canonical points of graphs by the run's model, from its graph shards.

        Parameters
        ----------
        rows : int64, (n,)
            Numbers of rows, ascending, none twice.
        progress : callable
            Makes the progress display of the parts that they are in.

        Raises
        ------
        WeglError
            If the run has not kept its graphs, or a shard of them is missing or damaged.
        """
        shards = self.run.listing("graphs")
        if not shards:
            raise WeglError(
                f"{self.run.location()} has no folder graphs/, and the points of its graphs are needed: run the job again "
                "with output.keep_graphs = true, in another folder or with --overwrite"
            )
        part_of = np.searchsorted(self.part_starts, rows, side="right") - 1
        parts = np.unique(part_of).tolist()
        for part in parts:
            if PurePosixPath(self._shard_of(part)).name not in shards:
                raise WeglError(f"there is no graph shard {self.run.location(self._shard_of(part))}: {MADE_AGAIN}")
        pieces = []
        with progress("points", len(parts)) as shown:
            for part in parts:
                pieces.append(self._points_of_part(part, rows[part_of == part]))
                shown.update(1, len(pieces[-1].offsets) - 1)
        return WeightedPoints(
            np.concatenate([piece.points for piece in pieces]),
            np.concatenate([piece.weights for piece in pieces]),
            offsets_from_counts(np.concatenate([np.diff(piece.offsets) for piece in pieces])),
        )

    def _groups_of(self, chosen: IntArray, columns: Sequence[str]) -> Iterator[tuple[pa.Table, IntArray]]:
        """Read the row groups that hold the rows `chosen`, in ascending order: each with the places of these in it."""
        for start, table in self.tables(columns, self._groups_with(chosen)):
            yield table, chosen[(chosen >= start) & (chosen < start + table.num_rows)] - start

    def _groups_with(self, rows: IntArray) -> list[int]:
        """Find the row groups that hold some rows, in ascending order."""
        groups: list[int] = np.unique(np.searchsorted(self.group_starts, rows, side="right") - 1).tolist()
        return groups

    def _shard_of(self, part: int) -> str:
        return part_path("graphs", int(part_index(self.names[part]) or 0))

    def _points_of_part(self, part: int, rows: IntArray) -> WeightedPoints:
        """Compute the points of some rows of one part from the graph shard of the same index."""
        name = self._shard_of(part)
        try:
            shard = read_shard(self.run.location(name) if self.run.is_local else io.BytesIO(self.run.read(name)))
        except SourceError as error:
            raise WeglError(f"{error}: {MADE_AGAIN}") from error
        first, stop = self.part_starts[part : part + 2].tolist()
        graphs = rows - first
        if shard.rows.num_rows != stop - first:
            # Graphs that no solver could do are in the shard and have no row: the others are told by where they come from.
            place = {key: i for i, key in enumerate(origins(shard.rows))}
            wanted = [*origins(self.values(rows, ORIGIN))]
            if absent := [key for key in wanted if key not in place]:
                file, row = absent[0]
                raise WeglError(
                    f"{self.run.location(name)} does not hold the graph of row {row} of {file}, which was embedded: it was "
                    f"altered; {MADE_AGAIN}"
                )
            graphs = np.array([place[key] for key in wanted], dtype=np.int64)
        points, offsets = self.model.points.evaluate(shard.graphs.take(graphs))
        return canonical_points(points, offsets, self.model.rounding_step)
