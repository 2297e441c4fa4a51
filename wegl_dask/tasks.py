"""What a worker does with one piece, unit or shard: a small descriptor in, files and a record on storage.

Every function opens its input on storage by itself, and returns no more than the number of graphs it made.
The tasks that lead to the model are in `wegl_dask.fit_tasks`.
"""

import io
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.checksums import fingerprint
from wegl_dask.embeddings import Dtype, EmbeddingFormat, EmbeddingRows, Layout
from wegl_dask.errors import SourceError
from wegl_dask.features import degrees
from wegl_dask.graphs import GraphBatch, IntArray, UsedAttributes
from wegl_dask.kernels import Device
from wegl_dask.known_rows import KnownRows
from wegl_dask.model_files import MODEL_JSON
from wegl_dask.progress import shortened
from wegl_dask.records import part_path, record_path
from wegl_dask.row_ranges import row_ranges, rows_among
from wegl_dask.saved_model import Model
from wegl_dask.shards import ROW_COLUMNS, Shard, ingest_shard, read_shard, shard_bytes
from wegl_dask.sources.base import REJECTED_SCHEMA, Cut, Source, SourcePlan, Unit
from wegl_dask.storage import RunFolder
from wegl_dask.transport import TransportEmbeddings

LONGEST_NAME = 200
"""Characters of a piece in messages; one of many files has them all in it."""


@dataclass(frozen=True)
class ScanTask:
    """One piece of the source to be scanned."""

    index: int
    piece: str

    @property
    def indices(self) -> tuple[int, ...]:
        """Index of its record."""
        return (self.index,)

    def __str__(self) -> str:
        return shortened(self.piece, LONGEST_NAME)


@dataclass(frozen=True)
class IngestTask:
    """The shards of one unit of the plan that are to be made.

    Attributes
    ----------
    unit : int
    piece : str
        What the unit is a part of, cut to `LONGEST_NAME`, for messages.
    indices : tuple of int
        Of the shards.
    """

    unit: int
    piece: str
    indices: tuple[int, ...]

    def __str__(self) -> str:
        several = len(self.indices) > 1
        return f"{self.piece}, shard{'s' * several} {self.indices[0]}{f' to {self.indices[-1]}' * several}"


@dataclass(frozen=True)
class CheckTask:
    """The files of one part to be compared with their record; those in the subfolder `without` do not matter."""

    stage: str
    index: int
    without: str = ""


@dataclass(frozen=True)
class ShardTask:
    """One part of one stage, made from one graph shard.

    Attributes
    ----------
    index : int
    input_fingerprint : str
        Hash of everything the part is made from.
    graphs : str
        SHA-256 of the shard's graphs.
    """

    index: int
    input_fingerprint: str
    graphs: str

    @property
    def indices(self) -> tuple[int, ...]:
        """Index of the part."""
        return (self.index,)

    def __str__(self) -> str:
        return f"shard {self.index}"


def scan_piece(folder: RunFolder, source: Source, nodes_per_shard: int, task: ScanTask) -> int:
    """Scan one piece of the source and keep the result as a record."""
    with folder.recording("scan", task.index, fingerprint(task.piece)) as part:
        part.note(scan=source.scan(task.piece, nodes_per_shard))
    return 0


def ingest_unit(
    folder: RunFolder,
    source: Source,
    task: IngestTask,
    *,
    plan_index: int,
    plan_fingerprint: str,
    how: str,
    max_nodes: int | None,
    directed: bool,
    used: UsedAttributes,
    fail: bool,
    known: KnownRows | None,
) -> int:
    """Read one unit of the source and write its graph shards and its rejects, without the rows that are known.

    Raises
    ------
    SourceError
        If the unit cannot be read, or `fail` is set and a row of it is rejected.
    """
    begun = time.perf_counter()
    plan = read_plan(folder, plan_index, plan_fingerprint)
    whole, wanted = plan.units[task.unit], set(task.indices)
    unit = Unit(whole.piece, tuple(cut for cut in whole.cuts if cut.shard in wanted))
    inputs = shard_fingerprints(plan, unit.cuts, how)
    n_graphs = 0
    known_ids = None if known is None else known.ids(folder)
    for source_shard in source.read(plan, unit, known_ids=known_ids):
        # Reading it is most of the work on a shard, and was done before it is here.
        with folder.recording("ingest", source_shard.shard, inputs[source_shard.shard], since=begun) as part:
            new, n_known = source_shard, 0
            if known is not None:
                new, n_known = known.leave_out(folder, source_shard, max_nodes=max_nodes, directed=directed, used=used)
            shard = ingest_shard(new, max_nodes=max_nodes, directed=directed, used=used)
            if fail:
                _refuse_rejects(shard.rejected)
            unnamed = [rows.filter(pa.array(rows_among(rows, new.unnamed))) for rows in (shard.rows, shard.rejected)]
            own = row_ranges(unnamed[:1])
            content = shard_bytes(
                shard.graphs, shard.rows, plan.labels, plan.numbering, unnamed=own, stored=source_shard.stored
            )
            part.write("graphs", content, rows=shard.graphs.n_graphs)
            if shard.rejected.num_rows:
                part.write("rejected", _parquet_bytes(shard.rejected), rows=shard.rejected.num_rows)
            part.note(
                **_census(shard.graphs, shard.rows),
                reasons=_reasons(shard.rejected),
                source_rows=row_ranges([shard.rows, shard.rejected]),
                unnamed=row_ranges(unnamed),
                known=n_known,
                self_loops_dropped=shard.repairs.self_loops_dropped,
                parallel_edges_merged=shard.repairs.parallel_edges_merged,
                reverse_edges_added=shard.repairs.reverse_edges_added,
            )
        n_graphs += shard.graphs.n_graphs
        begun = time.perf_counter()
    return n_graphs


def shard_fingerprints(plan: SourcePlan, cuts: Iterable[Cut], how: str) -> dict[int, str]:
    """Fingerprint what each graph shard is made from: its range of the source, the plan's head, and how it is read."""
    head = json.dumps(replace(plan, units=()).to_json(), sort_keys=True)
    return {cut.shard: fingerprint(cut.fingerprint, json.dumps(cut.where, sort_keys=True), head, how) for cut in cuts}


def embed_shard(
    folder: RunFolder,
    task: ShardTask,
    *,
    model_fingerprint: str,
    dtype: Dtype,
    layout: Layout,
    metadata: Mapping[str, Any],
    fail: bool,
    device: Device = "cpu",
) -> int:
    """Embed one shard: write the part, and the graphs that no solver could do to the rejects.

    Raises
    ------
    SourceError
        If `fail` is set and there is such a graph.
    """
    with folder.recording("embed", task.index, task.input_fingerprint) as part:
        shard = read_graphs(folder, task.index, task.graphs)
        model = _model(folder, model_fingerprint, device)
        output = EmbeddingFormat(
            n_points=model.n_points,
            dimension=model.dimension,
            labels=shard.labels,
            extra_columns={field.name: str(field.type) for field in shard.rows.schema if field.name not in ROW_COLUMNS},
            dtype=dtype,
            layout=layout,
            metadata={**metadata, "model": model_fingerprint},
        )
        failed: list[pa.Table] = []
        solved: Counter[str] = Counter()

        def blocks() -> Iterator[EmbeddingRows]:
            start = 0
            for embeddings in model.embed(shard.graphs):
                stop = start + len(embeddings.transport_cost)
                rows, counts = shard.rows.slice(start, stop - start), shard.graphs.node_counts[start:stop]
                if embeddings.failures:
                    failed.append(_failed_rows(rows, embeddings))
                kept = np.setdiff1d(np.arange(stop - start), list(embeddings.failures))
                solved["sinkhorn"] += int(embeddings.entropic[kept].sum())
                solved["exact"] += int((~embeddings.entropic[kept]).sum())
                yield EmbeddingRows.of(rows, counts, embeddings, kept)
                start = stop

        written = part.write("data", lambda file: output.write(file, blocks()))
        if failed:
            rejected = pa.concat_tables(failed)
            if fail:
                _refuse_rejects(rejected)
            part.write("rejected", _parquet_bytes(rejected), rows=rejected.num_rows, tag="embed")
            part.note(reasons=_reasons(rejected))
        part.note(solved={name: count for name, count in solved.items() if count}, dimension=model.dimension)
    return written.rows


def check_part(folder: RunFolder, task: CheckTask) -> int:
    """Say whether the files of a part hold the bytes that were written: 1 or 0."""
    record = folder.record(task.stage, task.index)
    if record is None:
        return 0
    files = tuple(file for file in record.files if file.folder != task.without)
    return int(folder.part_is_intact(replace(record, files=files)))


def read_graphs(folder: RunFolder, shard: int, sha256: str) -> Shard:
    """Read a graph shard of the run; see `RunFolder.read_written`."""
    return read_shard(io.BytesIO(folder.read_written(part_path("graphs", shard), sha256)))


def is_train(rows: pa.Table) -> np.ndarray:
    """Mark the graphs of the training split: bool, (n_graphs,)."""
    return np.array([name == "train" for name in rows.column("split").to_pylist()], dtype=bool)


def graphs_of_fit(shard: Shard, *, train: bool) -> GraphBatch:
    """Take the graphs of a shard that a model is fitted to: all, or those of the training split."""
    return shard.graphs.take(np.flatnonzero(is_train(shard.rows))) if train else shard.graphs


@lru_cache(maxsize=2)
def read_plan(folder: RunFolder, index: int, plan_fingerprint: str) -> SourcePlan:
    """Read the plan of a fingerprint, the job's or an append's; WeglError where there is another."""
    record = folder.record("plan", index)
    if record is None or record.input_fingerprint != plan_fingerprint:
        raise folder.taken_over(record_path("plan", index))
    return SourcePlan.from_json(record.extra["plan"])


@lru_cache(maxsize=2)
def _model(folder: RunFolder, model_fingerprint: str, device: Device) -> Model:
    if folder.sha256(MODEL_JSON) != model_fingerprint:
        raise folder.taken_over(MODEL_JSON)
    return Model.from_files(*folder.read_model()).on(device)


def _census(graphs: GraphBatch, rows: pa.Table) -> dict[str, Any]:
    """Count what later stages need to know of a shard without opening it."""
    train = is_train(rows)
    node_degrees = degrees(graphs)
    return {
        "graphs": graphs.n_graphs,
        "nodes": graphs.n_nodes,
        "edges": graphs.n_edges,
        "train_graphs": int(train.sum()),
        "train_nodes": int(graphs.node_counts[train].sum()),
        "largest_graph": int(graphs.node_counts.max(initial=0)),
        "categories": [_distinct(column) for column in graphs.node_categories.T],
        "degrees": _distinct(node_degrees),
    }


def _distinct(values: IntArray) -> list[int]:
    """List the distinct ones of some numbers, all 0 or more, in ascending order."""
    # Counting them takes a third of the time of sorting, and an entry for every number up to the largest.
    few = values.max(initial=0) <= len(values)
    return (np.flatnonzero(np.bincount(values)) if few else np.unique(values)).tolist()


def _refuse_rejects(rejected: pa.Table) -> None:
    for row in rejected.slice(0, 1).to_pylist():
        raise SourceError(
            f"{row['source_file']}, row {row['source_row']} (id {row['graph_id']}): {row['reason']}; "
            'source.on_error = "reject" would go on without it'
        )


def _reasons(rejected: pa.Table) -> dict[str, int]:
    """Count the kinds of reasons: what a reason says before its colon, the values in it left out."""
    kinds = (
        re.sub(r"'[^']*'|\"[^\"]*\"|(?<!\w)-?\d[\w.+-]*", "…", reason).partition(":")[0]
        for reason in rejected.column("reason").to_pylist()
    )
    return dict(Counter(kinds).most_common())


def _failed_rows(rows: pa.Table, embeddings: TransportEmbeddings) -> pa.Table:
    indices = sorted(embeddings.failures)
    found = rows.select(REJECTED_SCHEMA.names[:-1]).take(pa.array(indices))
    reasons = pa.array([embeddings.failures[i] for i in indices], pa.string())
    return found.append_column("reason", reasons).cast(REJECTED_SCHEMA)


def _parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
