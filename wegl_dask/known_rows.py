"""Which rows of its input a run has already, so that an append embeds the others alone."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wegl_dask.errors import SourceError
from wegl_dask.records import PartRecord, part_path
from wegl_dask.sources.base import SourceShard
from wegl_dask.storage import RunFolder

RowRanges = dict[str, list[list[int]]]
"""For every source file the ranges ``[first, last + 1]`` of its rows, in ascending order."""

RowKey = Literal["row", "id"]

_KEYS = ["graph_id", "source_file", "source_row"]
BoolArray = npt.NDArray[np.bool_]


def row_ranges(tables: Iterable[pa.Table]) -> RowRanges:
    """Sum up which rows of the input tables with ``source_file`` and ``source_row`` are of.

    Examples
    --------
    >>> row_ranges([pa.table({"source_file": ["a", "a", "a"], "source_row": [4, 3, 9]})])
    {'a': [[3, 5], [9, 10]]}
    """
    rows = pa.concat_tables([table.select(_KEYS[1:]) for table in tables])
    if not rows.num_rows:
        return {}
    names = rows.column("source_file").combine_chunks().dictionary_encode()
    numbers, codes = rows.column("source_row").to_numpy(), names.indices.to_numpy()
    order = np.lexsort((numbers, codes))
    numbers, codes = numbers[order], codes[order]
    starts = np.flatnonzero((np.diff(codes, prepend=-1) != 0) | (np.diff(numbers, prepend=-1) != 1))
    stops = np.append(starts[1:], len(numbers))
    result: RowRanges = {}
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        name = names.dictionary[int(codes[start])].as_py()
        result.setdefault(name, []).append([int(numbers[start]), int(numbers[stop - 1]) + 1])
    return result


def known_rows(records: Iterable[PartRecord]) -> RowRanges:
    """Put the ranges of all shards together: for every file ``[first, last + 1, shard]``, in ascending order.

    Parameters
    ----------
    records : iterable of PartRecord
        Of the stage ingest, whose ``source_rows`` are what `row_ranges` gave.
    """
    result: RowRanges = {}
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
    may_regroup : bool
        A shard may have other rows than it had, though no file has changed, as with a file a graph.
    fingerprint : str
        Of that record.
    """

    append: int
    n_shards: int
    key: RowKey
    may_regroup: bool
    fingerprint: str

    def leave_out(self, folder: RunFolder, shard: SourceShard) -> tuple[SourceShard, int]:
        """Take the rows that are known out of a shard as read: the rest, and how many they were.

        Raises
        ------
        SourceError
            If the input has changed in another way than by new rows.
        """
        parts = [shard.rows.select(_KEYS), shard.rejected.select(_KEYS)]
        at_known_places = [_at_known_places(part, _known(folder, self.append, self.fingerprint)) for part in parts]
        if self.key == "row":
            known = at_known_places
            self._require_unchanged(folder, parts, known)
        else:
            ids = _known_ids(folder, self.n_shards, self.fingerprint)
            known = [pc.is_in(part.column("graph_id"), value_set=ids).to_numpy() for part in parts]
            self._require_new_places(parts, known, at_known_places)
        n_known = sum(int(mask.sum()) for mask in known)
        if not n_known:
            return shard, 0
        graphs_kept = np.flatnonzero(~known[0])
        rest = replace(
            shard,
            graphs=shard.graphs.take(graphs_kept),
            rows=shard.rows.take(pa.array(graphs_kept)),
            rejected=shard.rejected.filter(pa.array(~known[1])),
        )
        return rest, n_known

    def _require_unchanged(self, folder: RunFolder, parts: list[pa.Table], known: list[BoolArray]) -> None:
        """Compare the rows at known places with those that were there, as far as ids tell."""
        rows = pa.concat_tables([part.filter(pa.array(mask)) for part, mask in zip(parts, known, strict=True)])
        if not rows.num_rows:
            return
        ranges = _known(folder, self.append, self.fingerprint)
        found = list(zip(*(rows.column(name).to_pylist() for name in _KEYS), strict=True))
        before: dict[tuple[str, int], str] = {}
        for shard in sorted({_shard_of(ranges[name], row) for _, name, row in found}):
            before |= _ids_by_place(folder, shard, self.fingerprint)
        for graph_id, name, row in found:
            was = before.get((name, row))
            if was != graph_id:
                raise _changed(name, f"row {row} has the id {graph_id!r}, and had {was!r}")
        if not self.may_regroup and rows.num_rows == sum(part.num_rows for part in parts):
            _, name, first = found[0]
            raise _changed(name, f"rows {first} to {found[-1][2]} are others, or are at another place in it")

    def _require_new_places(
        self, parts: list[pa.Table], known: list[BoolArray], at_known_places: list[BoolArray]
    ) -> None:
        for part, by_id, by_place in zip(parts, known, at_known_places, strict=True):
            for row in part.filter(pa.array(by_place & ~by_id)).slice(0, 1).to_pylist():
                raise SourceError(
                    f"{row['source_file']}, row {row['source_row']} (id {row['graph_id']}) is new, and a row of that file and "
                    "number was embedded before: a file that is written anew needs a name of its own each time"
                )


def _at_known_places(rows: pa.Table, known: Mapping[str, list[list[int]]]) -> BoolArray:
    result = np.zeros(rows.num_rows, dtype=np.bool_)
    if not rows.num_rows:
        return result
    names = rows.column("source_file").combine_chunks().dictionary_encode()
    numbers, codes = rows.column("source_row").to_numpy(), names.indices.to_numpy()
    for code, name in enumerate(names.dictionary.to_pylist()):
        if name in known:
            ranges = np.array([each[:2] for each in known[name]], dtype=np.int64)
            here = np.flatnonzero(codes == code)
            before = np.searchsorted(ranges[:, 0], numbers[here], side="right") - 1
            result[here] = (before >= 0) & (numbers[here] < ranges[before, 1])
    return result


def _shard_of(ranges: list[list[int]], row: int) -> int:
    """Find the shard that holds a row, which is in one of the ranges."""
    return ranges[bisect_right(ranges, row, key=lambda each: each[0]) - 1][2]


def _changed(name: str, how: str) -> SourceError:
    return SourceError(
        f"{name} has changed since its rows were embedded: {how}. To append, a file may only get new rows at its end; for one "
        "that is written anew under another name use --by-id"
    )


@lru_cache(maxsize=2)
def _known(folder: RunFolder, append: int, fingerprint: str) -> Mapping[str, Any]:
    record = folder.record("known", append)
    if record is None or record.input_fingerprint != fingerprint:
        raise SourceError(f"{folder.location()} was cleared while a task of an append was running")
    rows: Mapping[str, Any] = record.extra["rows"]
    return rows


@lru_cache(maxsize=16)
def _ids_by_place(folder: RunFolder, shard: int, fingerprint: str) -> dict[tuple[str, int], str]:  # noqa: ARG001  keys the cache
    rows = _keys_of_shard(folder, shard, folder.listing("rejected"))
    ids, names, numbers = (rows.column(name).to_pylist() for name in _KEYS)
    return dict(zip(zip(names, numbers, strict=True), ids, strict=True))


@lru_cache(maxsize=1)
def _known_ids(folder: RunFolder, n_shards: int, fingerprint: str) -> pa.Array:  # noqa: ARG001  keys the cache
    rejected = folder.listing("rejected")
    parts = [_keys_of_shard(folder, shard, rejected).column("graph_id") for shard in range(n_shards)]
    return pc.unique(pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string()))


def _keys_of_shard(folder: RunFolder, shard: int, rejected: Mapping[str, int | None]) -> pa.Table:
    """Read ids and places of the rows of a shard, embedded and rejected."""
    paths = [part_path("data", shard)]
    for tag in ("", "embed"):
        path = part_path("rejected", shard, tag)
        if path.rpartition("/")[2] in rejected:
            paths.append(path)
    tables = []
    for path in paths:
        with folder.parquet(path) as file:
            tables.append(file.read(columns=_KEYS, use_threads=False).replace_schema_metadata(None))
    return pa.concat_tables(tables)
