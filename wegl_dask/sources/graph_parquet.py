"""Graph shards as input: the folder graphs/ of a run, or any Parquet files of that form."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphSchema, IntArray, offsets_from_counts
from wegl_dask.shards import ShardSummary, read_shard, summarize_shard
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources._cuts import cut_by_nodes, shard_loads
from wegl_dask.sources._hashes import cut_fingerprint, hash_row_groups
from wegl_dask.sources._text import changed_since_scan
from wegl_dask.sources.base import REJECTED_SCHEMA, Cut, LabelSchema, SourcePlan, SourceShard, StoredShard, Unit
from wegl_dask.sources.paths import expand, explained, is_remote, local_path
from wegl_dask.sources.streams import open_stream
from wegl_dask.spec import GraphParquetTable

_LARGEST_CUT = 1.5
"""A file of up to this many times the wanted nodes stays one shard, so that a run's shards come out as they are."""

_SAMPLED_FILES = 8

_KIND_OF_TASK = {"classification": "class", "regression": "target", "multitask": "tasks"}


@dataclass(frozen=True)
class GraphParquetSource:
    """Read graph shards, see `wegl_dask.shards`. Ids, labels, splits and extra columns are kept as stored.

    Attributes
    ----------
    table : GraphParquetTable
    task : str
        The job's ``task``. "none" leaves the labels out; any other must be what the labels are.
    """

    table: GraphParquetTable
    task: str

    def estimated_nodes(self) -> int:
        """Extrapolate from the first file, the last and some between."""
        files = self.pieces()
        sample = np.unique(np.linspace(0, len(files) - 1, _SAMPLED_FILES).astype(int)).tolist()
        nodes = sum(int(summarize_shard(_shard_file(files[i])).node_counts.sum()) for i in sample)
        return nodes * len(files) // len(sample)

    def pieces(self) -> Sequence[str]:
        """List the files."""
        return expand(self.table.path, (".parquet",))

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Read a file's schemas and numbers of nodes, and cut it.

        Raises
        ------
        SourceError
            If the file is no graph shard, or has a column that cannot be passed through.
        """
        summary = summarize_shard(_shard_file(piece))
        extra_columns = {name: _alias(piece, name, found) for name, found in summary.extra_columns.items()}
        units = _cut_row_groups(_loads(summary, nodes_per_shard), summary.row_group_rows, nodes_per_shard)
        return {
            "file": piece,
            "units": units,
            "hashes": [_hash_rows(piece, cuts[0][0], cuts[-1][1]) for cuts in units],
            "content": SourcePlan(summary.schema, summary.labels, extra_columns, ()).to_json(),
            "numbering": summary.numbering,
            "has_split": summary.has_split,
        }

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Put the cuts of all files in a row.

        Raises
        ------
        SourceError
            If two files have different schemas, or the labels are not what `task` says.
        """
        first = scans[0]
        for scan in scans:
            _check_alike(first, scan)
        content = SourcePlan.from_json(first["content"])
        labels = self._labels(content.labels, first["file"])
        shards = count()
        units = tuple(
            Unit(
                scan["file"],
                tuple(
                    Cut(
                        next(shards),
                        stop - start,
                        {"start": start, "stop": stop},
                        cut_fingerprint(hashed, start, stop),
                    )
                    for start, stop in cuts
                ),
            )
            for scan in scans
            for cuts, hashed in zip(scan["units"], scan["hashes"], strict=True)
        )
        return SourcePlan(
            content.schema,
            labels,
            content.extra_columns,
            units,
            has_split=any(scan["has_split"] for scan in scans),
            details={"schema_of_files": first["content"]["schema"], **first["numbering"]},
        )

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Read rows of one file.

        Raises
        ------
        SourceError
            If the file is damaged or is not what it was when it was scanned.
        """
        del known_ids
        start, stop = unit.cuts[0].where["start"], unit.cuts[-1].where["stop"]
        whole = _WholeFile.of(unit.piece, stop - start) if len(unit.cuts) == 1 else None
        stored = read_shard(_shard_file(unit.piece) if whole is None else whole, (start, stop))
        if not _is(stored.graphs.schema, plan.details["schema_of_files"]):
            raise changed_since_scan(unit.piece, "has other features")
        # After they were read: what was read is no newer.
        hashed = _hash_rows(unit.piece, start, stop) if whole is None else _hash_rows_of(whole, start, stop)
        if any(cut_fingerprint(hashed, **cut.where) != cut.fingerprint for cut in unit.cuts):
            raise changed_since_scan(unit.piece, "holds other rows")
        rows = stored.rows
        if plan.labels.kind == "none":
            column = rows.schema.get_field_index("label")
            rows = rows.set_column(column, "label", pa.nulls(rows.num_rows, plan.labels.arrow_type))
        for cut in unit.cuts:
            first, last = cut.where["start"] - start, cut.where["stop"] - start
            yield SourceShard(
                cut.shard,
                replace(stored.graphs.slice(first, last), schema=plan.schema),
                rows.slice(first, last - first),
                REJECTED_SCHEMA.empty_table(),
                stored.unnamed,
                stored=None if whole is None or stored.whole is None else StoredShard(whole.getvalue(), stored.whole),
            )

    def _labels(self, stored: LabelSchema, file: str) -> LabelSchema:
        if self.task == "none":
            return LabelSchema()
        if self.task != "auto" and _KIND_OF_TASK[self.task] != stored.kind:
            raise SourceError(
                f'{file} has labels of kind "{stored.kind}", and task = "{self.task}" needs kind '
                f'"{_KIND_OF_TASK[self.task]}"; set task = "auto" to take them as they are, or "none"'
            )
        return stored


def _shard_file(piece: str) -> str | Path:
    return piece if is_remote(piece) else local_path(piece)


class _WholeFile(io.BytesIO):
    """A file that has been read whole, with its name, for messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name

    @classmethod
    def of(cls, piece: str, n_rows: int) -> "_WholeFile | None":
        """Read a file if it has so many rows; one that is damaged is left to whoever reads its graphs, who says how."""
        with explained(piece), open_stream(piece) as stream:
            try:
                found = pq.read_metadata(stream).num_rows
            except (pa.ArrowException, OSError):
                return None
            if found != n_rows:
                return None
            # Without a size it would be read 8 kB at a time.
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            return cls(stream.read(size), piece)


def _hash_rows(piece: str, start: int, stop: int) -> str:
    """Hash the row groups that hold some rows of a file."""
    with explained(piece), open_stream(piece) as stream:
        return _hash_rows_of(stream, start, stop)


def _hash_rows_of(stream: BinaryIO, start: int, stop: int) -> str:
    metadata = pq.read_metadata(stream)
    ends = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
    first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
    # A file without rows may have no row group either.
    return hash_row_groups(metadata, stream, range(first, min(last + 1, len(ends))))


def _alias(file: str, name: str, found: pa.DataType) -> str:
    """Name the type of an extra column so that it can be found again."""
    try:
        if pa.type_for_alias(str(found)) == found:
            return str(found)
    except ValueError:
        pass
    raise SourceError(
        f"{file}: the column {name} is of type {found}, which cannot be passed through; "
        "take it out, or cast it to text, numbers, booleans or dates"
    )


def _is(schema: GraphSchema, values: dict[str, Any]) -> bool:
    """Whether a schema is the one that was noted, as JSON values."""
    return json.dumps(asdict(schema)) == json.dumps(values)


def _check_alike(first: dict[str, Any], other: dict[str, Any]) -> None:
    for part, words in (
        ("schema", "features"),
        ("labels", "labels"),
        ("extra_columns", "extra columns"),
        ("numbering", "vocabularies"),
    ):
        one, two = (
            json.dumps({**scan["content"], "numbering": scan["numbering"]}[part], ensure_ascii=False)
            for scan in (first, other)
        )
        if one != two:
            raise SourceError(
                f"{first['file']} and {other['file']} differ in their {words}: {one} and {two}; "
                "the shards of one collection have the same, so read them in separate jobs"
            )


def _loads(summary: ShardSummary, nodes_per_shard: int) -> IntArray:
    """Weigh the graphs of a file; the edges of a row group are taken to be spread as its nodes are."""
    rows = np.array(summary.row_group_rows, dtype=np.int64)
    group = np.repeat(np.arange(len(rows)), rows)
    nodes = np.bincount(group, summary.node_counts, minlength=len(rows))
    edges_per_node = np.array(summary.row_group_edges) / np.maximum(nodes, 1)
    edge_counts = (summary.node_counts * edges_per_node[group]).astype(np.int64)
    return shard_loads(summary.node_counts, edge_counts, nodes_per_shard)


def _cut_row_groups(
    loads: IntArray, row_group_rows: Sequence[int], nodes_per_shard: int
) -> list[list[tuple[int, int]]]:
    """Cut a file into units of row ranges, so that no row group is read for two units.

    Row groups are put together up to `_LARGEST_CUT` times `nodes_per_shard`; a larger one is a unit of several cuts.
    """
    nodes = offsets_from_counts(loads)
    limit = _LARGEST_CUT * nodes_per_shard
    units: list[list[tuple[int, int]]] = []
    start = stop = 0
    for rows in row_group_rows:
        if start < stop and nodes[stop + rows] - nodes[start] > limit:
            units.append([(start, stop)])
            start = stop
        stop += rows
        if nodes[stop] - nodes[start] > limit:
            boundaries = start + cut_by_nodes(loads[start:stop], nodes_per_shard)
            units.append(list(pairwise(boundaries.tolist())))
            start = stop
    if start < stop or not units:
        units.append([(start, stop)])
    return units
