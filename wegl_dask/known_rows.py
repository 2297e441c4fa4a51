"""Which rows of its input a run has already, so that an append embeds the others alone."""

import io
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphBatch, IntArray, UsedAttributes
from wegl_dask.records import PartRecord, part_path
from wegl_dask.row_ranges import RowRanges, rows_among
from wegl_dask.shards import IngestedShard, ingest_shard, origins, read_shard, reject_graphs
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources.base import REJECTED_SCHEMA, SourceShard
from wegl_dask.storage import RunFolder

Places = Mapping[str, list[list[int]]]
"""For every source file the ranges of its rows that are known, ``[first, last + 1, shard]``, in ascending order."""

RowKey = Literal["row", "id"]

_KEYS = ["graph_id", "source_file", "source_row"]
_COLUMN_NAMES = {"graph_id": "id"}
_GRAPH_ARRAYS = (
    *("edge_source", "edge_target", "node_categories", "node_attributes"),
    *("edge_categories", "edge_attributes"),
)
BoolArray = npt.NDArray[np.bool_]


def known_rows(records: Iterable[PartRecord]) -> Places:
    """Put the ranges of all shards together, each with its shard.

    Parameters
    ----------
    records : iterable of PartRecord
        Of the stage ingest, whose ``source_rows`` are what `row_ranges` gave.
    """
    result: dict[str, list[list[int]]] = {}
    for record in records:
        for name, ranges in record.extra["source_rows"].items():
            result.setdefault(name, []).extend([*each, record.index] for each in ranges)
    for ranges in result.values():
        ranges.sort()
    return result


@dataclass(frozen=True)
class KnownRows:
    """The rows that a run has before an append; small, as the rows themselves are on storage.

    Attributes
    ----------
    append : int
        Index of the append, and of the record "known", which holds what `known_rows` gave.
    n_shards : int
        Number of shards before it.
    key : {"row", "id"}
        What a row is known by: its file and number, or its ``graph_id``.
    fingerprint : str
        Of that record: of the key, the rows, and the content of the parts that hold them.
    """

    append: int
    n_shards: int
    key: RowKey
    fingerprint: str

    @classmethod
    def before(cls, append: int, key: RowKey, records: Sequence[PartRecord]) -> "tuple[KnownRows, Places]":
        """Find the rows that a run had before an append: also what `keep` is to write down.

        Parameters
        ----------
        append : int
            Index of the append.
        key : {"row", "id"}
        records : sequence of PartRecord
            Of all that was finished then: the model and the parts, perhaps others.
        """
        ingested = [record for record in records if record.stage == "ingest"]
        rows, n_shards = known_rows(ingested), 1 + max(record.index for record in ingested)
        # An earlier run in this folder may have had rows of the same names and numbers.
        files = [file.sha256 for record in records for file in record.files]
        return cls(append, n_shards, key, fingerprint(json.dumps([rows, files], sort_keys=True))), rows

    def keep(self, folder: RunFolder, rows: Places, **notes: Any) -> None:
        """Write the rows down for the workers."""
        with folder.recording("known", self.append, self.fingerprint) as part:
            part.note(rows=rows, **notes)

    def ids(self, folder: RunFolder) -> SortedTexts | None:
        """Read the ids by which rows are known, if they are; once in a worker."""
        return _known_by_id(folder, self.n_shards, self.fingerprint).ids if self.key == "id" else None

    def leave_out(
        self,
        folder: RunFolder,
        shard: SourceShard,
        *,
        max_nodes: int | None,
        directed: bool,
        used: UsedAttributes,
    ) -> tuple[SourceShard, int]:
        """Take the rows that are known out of a shard as read: the rest, and how many they were.

        Rows that are known by their place are compared with what they were: all columns, and the graphs, or the numbers
        of nodes where graphs were not kept; of rejected ones the ids. Where rows are known by their ids, those that have
        none are rejected, but those of a file that is read again, which had none before.

        Raises
        ------
        SourceError
            If the input has changed in another way than by new rows.
        """
        known_places = _known(folder, self.append, self.fingerprint)
        ids = self.ids(folder)
        if ids is not None:
            shard = _with_unnamed_rejected(shard, known_places)
        parts = [shard.rows.select(_KEYS), shard.rejected.select(_KEYS)]
        at_known_places = [rows_among(part, known_places) for part in parts]
        known = at_known_places
        if ids is not None:
            has_none = [rows_among(part, shard.unnamed) for part in parts]
            unnamed = _known_by_id(folder, self.n_shards, self.fingerprint).unnamed
            had_none = [rows_among(part, unnamed) for part in parts]
            by_id = [ids.positions(part.column("graph_id")) >= 0 for part in parts]
            # Nor is a row without an id told from others by its place, except in a file that is read again.
            known = [np.where(*masks) for masks in zip(has_none, had_none, by_id, strict=True)]
            _require_new_places(parts, known, at_known_places)
        n_known = sum(int(mask.sum()) for mask in known)
        if not n_known:
            return shard, shard.n_passed_over
        if self.key == "row":
            before = ingest_shard(_chosen(shard, known), max_nodes=max_nodes, directed=directed, used=used)
            self._require_unchanged(folder, before, known_places)
        return _chosen(shard, [~mask for mask in known]), n_known + shard.n_passed_over

    def _require_unchanged(self, folder: RunFolder, found: IngestedShard, places: Places) -> None:
        columns = tuple(found.rows.schema.names)
        for row in found.rejected.to_pylist():
            before = _earlier(folder, _shard_of(places, row), columns, self.fingerprint)
            if before.position(row) is not None:
                raise _changed(row, f"cannot be embedded any more: {row['reason']}")
            self._require_rejected(folder, places, row)
        for index, row in enumerate(found.rows.to_pylist()):
            before = _earlier(folder, _shard_of(places, row), columns, self.fingerprint)
            position = before.position(row)
            if position is None:
                # A row that was rejected is not tried again, but another one in its place would be lost.
                self._require_rejected(folder, places, row)
                continue
            for name, was in before.rows[position].items():
                # NaN, of which labels of several tasks have some, is written as it is.
                if json.dumps(was, default=str) != json.dumps(row[name], default=str):
                    raise _changed(row, f"had the {_COLUMN_NAMES.get(name, name)} {was!r}")
            if not before.is_equal(position, found.graphs[index]):
                raise _changed(row, "is another graph now")

    def _require_rejected(self, folder: RunFolder, places: Places, row: Mapping[str, Any]) -> None:
        rejected = _rejected_ids(folder, _shard_of(places, row), self.fingerprint)
        was = rejected[row["source_file"], row["source_row"]]
        if was != row["graph_id"]:
            raise _changed(row, f"had the id {was!r}, and was rejected")


@dataclass(frozen=True)
class _Earlier:
    """A shard that was embedded before.

    Attributes
    ----------
    rows : list of dict
        All columns but the embedding's.
    positions : dict
        From file and number of a row to its position.
    node_counts : int, (n_graphs,)
    graphs : GraphBatch or None
        None where they were not kept.
    """

    rows: list[dict[str, Any]]
    positions: dict[tuple[str, int], int]
    node_counts: IntArray
    graphs: GraphBatch | None

    def position(self, row: Mapping[str, Any]) -> int | None:
        return self.positions.get((row["source_file"], row["source_row"]))

    def is_equal(self, position: int, graph: GraphBatch) -> bool:
        if self.graphs is None:
            return int(self.node_counts[position]) == graph.n_nodes
        was = self.graphs[position]
        # Attributes that the job does not use may be NaN.
        return all(np.array_equal(getattr(was, name), getattr(graph, name), equal_nan=True) for name in _GRAPH_ARRAYS)


@lru_cache(maxsize=4)
def _earlier(folder: RunFolder, shard: int, columns: tuple[str, ...], fingerprint: str) -> _Earlier:  # noqa: ARG001  keys the cache
    graphs = None
    content = folder.read_if_there(part_path("graphs", shard))
    if content is not None:
        stored = read_shard(io.BytesIO(content))
        graphs, table, counts = stored.graphs, stored.rows.select(columns), stored.graphs.node_counts
    else:
        with folder.parquet(part_path("data", shard)) as file:
            table = file.read(columns=[*columns, "num_nodes"], use_threads=False)
        counts = table.column("num_nodes").to_numpy()
    places = {origin: position for position, origin in enumerate(origins(table))}
    return _Earlier(table.select(columns).to_pylist(), places, counts, graphs)


@lru_cache(maxsize=4)
def _rejected_ids(folder: RunFolder, shard: int, fingerprint: str) -> dict[tuple[str, int], str]:  # noqa: ARG001  keys the cache
    """Read the ids of the rows of a shard that were rejected, by file and number."""
    keys = _read_keys(folder, _rejected_paths(shard, folder.listing("rejected")))
    return dict(zip(origins(keys), keys.column("graph_id").to_pylist(), strict=True))


def _chosen(shard: SourceShard, masks: Sequence[BoolArray]) -> SourceShard:
    """Choose rows of a shard as read: of those that are graphs, and of those that never became one."""
    graphs = np.flatnonzero(masks[0])
    return replace(
        shard,
        graphs=shard.graphs.take(graphs),
        rows=shard.rows.take(pa.array(graphs)),
        rejected=shard.rejected.filter(pa.array(masks[1])),
    )


def _with_unnamed_rejected(shard: SourceShard, known: Places) -> SourceShard:
    """Reject the graphs of a shard that have no id, but those of a file that is read again."""
    unnamed = np.flatnonzero(rows_among(shard.rows, shard.unnamed) & ~rows_among(shard.rows, known))
    reason = "the row has no id, and rows are told apart by their ids (--by-id)"
    return reject_graphs(shard, dict.fromkeys(unnamed.tolist(), reason))


def _require_new_places(
    parts: Sequence[pa.Table], known: Sequence[BoolArray], at_known_places: Sequence[BoolArray]
) -> None:
    for part, by_id, by_place in zip(parts, known, at_known_places, strict=True):
        for row in part.filter(pa.array(by_place & ~by_id)).slice(0, 1).to_pylist():
            raise SourceError(
                f"{row['source_file']}, row {row['source_row']} (id {row['graph_id']}) is new, and a row of that file and "
                "number was embedded before: a file that is written anew needs a name of its own each time"
            )


def _shard_of(places: Places, row: Mapping[str, Any]) -> int:
    """Find the shard that has a row, which is in one of the ranges."""
    ranges = places[row["source_file"]]
    return ranges[bisect_right(ranges, row["source_row"], key=lambda each: each[0]) - 1][2]


def _changed(row: Mapping[str, Any], how: str) -> SourceError:
    return SourceError(
        f"row {row['source_row']} of {row['source_file']} (id {row['graph_id']}) has changed since it was embedded: it {how}. "
        "To append, a file may only get new rows at its end; for one that is written anew under another name use --by-id"
    )


@lru_cache(maxsize=2)
def _known(folder: RunFolder, append: int, fingerprint: str) -> Places:
    record = folder.record("known", append)
    if record is None or record.input_fingerprint != fingerprint:
        raise SourceError(f"{folder.location()} was cleared while a task of an append was running")
    places: Places = record.extra["rows"]
    return places


@dataclass(frozen=True)
class _KnownById:
    """The ids by which rows are known, and the places of those that had none."""

    ids: SortedTexts
    unnamed: RowRanges


@lru_cache(maxsize=1)
def _known_by_id(folder: RunFolder, n_shards: int, fingerprint: str) -> _KnownById:  # noqa: ARG001  keys the cache
    rejected = folder.listing("rejected")
    chunks: list[pa.Array] = []
    places: RowRanges = {}
    for shard in range(n_shards):
        keys = _read_keys(folder, [part_path("data", shard), *_rejected_paths(shard, rejected)])
        record = folder.record("ingest", shard)
        unnamed = {} if record is None else record.extra.get("unnamed", {})
        chunks += keys.filter(pa.array(~rows_among(keys, unnamed))).column("graph_id").chunks
        # Of rows that an earlier version has read it is not known.
        had_none = {} if record is None else record.extra.get("unnamed", record.extra["source_rows"])
        for name, ranges in had_none.items():
            places.setdefault(name, []).extend(ranges)
    return _KnownById(SortedTexts.of(chunks), {name: sorted(ranges) for name, ranges in places.items()})


def _rejected_paths(shard: int, listing: Mapping[str, int | None]) -> list[str]:
    """List the files with the rejected rows of a shard, of those in the folder rejected/."""
    paths = (part_path("rejected", shard, tag) for tag in ("", "embed"))
    return [path for path in paths if path.rpartition("/")[2] in listing]


def _read_keys(folder: RunFolder, paths: Sequence[str]) -> pa.Table:
    """Read ids and places of the rows in some files of a run."""
    tables = [REJECTED_SCHEMA.empty_table().select(_KEYS)]
    for path in paths:
        with folder.parquet(path) as file:
            tables.append(file.read(columns=_KEYS, use_threads=False).replace_schema_metadata(None))
    return pa.concat_tables(tables)
