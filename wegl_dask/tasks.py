"""What a worker does with one piece, unit or shard, stage by stage: small arguments in, files on storage, a record out.

Every function opens its input on storage by itself and returns the records of what it wrote, a few hundred bytes each.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.embeddings import EmbeddingFormat, EmbeddingRows
from wegl_dask.errors import SourceError
from wegl_dask.features import degrees
from wegl_dask.graphs import GraphBatch
from wegl_dask.points import NodeSettings, PointEmbedding
from wegl_dask.projection import Moments, Projection
from wegl_dask.records import PartRecord, PartRecorder, part_path
from wegl_dask.saved_model import Model
from wegl_dask.shards import Shard, ingest_shard, read_shard, write_shard
from wegl_dask.sources.base import REJECTED_SCHEMA, Source, SourcePlan, Unit
from wegl_dask.storage import RunFolder
from wegl_dask.transport import Embeddings

Record = dict[str, Any]
"""A `PartRecord` as JSON values."""


@dataclass(frozen=True)
class ScanTask:
    """One piece of the source to be scanned."""

    index: int
    piece: str
    input_fingerprint: str


@dataclass(frozen=True)
class IngestTask:
    """The shards of one unit of the plan that are to be made: their indices, and what each is made from."""

    unit: int
    input_fingerprints: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class ShardTask:
    """One graph shard for one stage.

    Attributes
    ----------
    shard : int
    input_fingerprint : str
        Hash of everything the part is made from.
    count : int
        Of the sample: how many nodes (or graphs) of the shard are wanted.
    """

    shard: int
    input_fingerprint: str
    count: int = 0


@dataclass(frozen=True)
class MergeTask:
    """Some moments files to be merged into one."""

    index: int
    input_fingerprint: str
    paths: tuple[str, ...]


def scan_piece(folder: RunFolder, source: Source, nodes_per_shard: int, task: ScanTask) -> list[Record]:
    """Scan one piece of the source and keep the result as a record."""
    with folder.recording("scan", task.index, task.input_fingerprint) as part:
        part.note(scan=source.scan(task.piece, nodes_per_shard))
    return as_results(part, leave_out="scan")


def ingest_unit(
    folder: RunFolder,
    source: Source,
    task: IngestTask,
    *,
    plan_fingerprint: str,
    max_nodes: int | None,
    directed: bool,
    fail: bool,
) -> list[Record]:
    """Read one unit of the source and write its graph shards and its rejects.

    Raises
    ------
    SourceError
        If the unit cannot be read, or `fail` is set and a row of it is rejected.
    """
    plan = _plan(folder, plan_fingerprint)
    inputs = dict(task.input_fingerprints)
    whole = plan.units[task.unit]
    unit = Unit(whole.piece, tuple(cut for cut in whole.cuts if cut.shard in inputs))
    records: list[Record] = []
    for source_shard in source.read(plan, unit):
        with folder.recording("ingest", source_shard.shard, inputs[source_shard.shard]) as part:
            shard = ingest_shard(source_shard, max_nodes=max_nodes, directed=directed)
            if fail and shard.rejected.num_rows:
                row = shard.rejected.slice(0, 1).to_pylist()[0]
                raise SourceError(
                    f"{row['source_file']}, row {row['source_row']} (id {row['graph_id']}): {row['reason']}; "
                    'source.on_error = "reject" would go on without it'
                )
            buffer = io.BytesIO()
            write_shard(buffer, shard.graphs, shard.rows, plan.labels)
            part.write("graphs", buffer.getvalue(), rows=shard.graphs.n_graphs)
            if shard.rejected.num_rows:
                part.write("rejected", _parquet_bytes(shard.rejected), rows=shard.rejected.num_rows)
            part.note(
                **_census(shard.graphs, shard.rows),
                reasons=_reasons(shard.rejected),
                self_loops_dropped=shard.repairs.self_loops_dropped,
                parallel_edges_merged=shard.repairs.parallel_edges_merged,
                reverse_edges_added=shard.repairs.reverse_edges_added,
            )
        records += as_results(part)
    return records


def shard_moments(
    folder: RunFolder, settings: NodeSettings, task: ShardTask, *, seen: Sequence[int], scatter: bool, train: bool
) -> list[Record]:
    """Take the moments of one shard's node embeddings."""
    with folder.recording("moments", task.shard, task.input_fingerprint) as part:
        graphs = _fit_graphs(_read_shard(folder, task.shard), train=train)
        moments = settings.build().moments(graphs, np.asarray(seen, dtype=np.int64), scatter=scatter)
        part.write_arrays("moments", _moments_arrays(moments))
    return as_results(part)


def merge_moments(folder: RunFolder, task: MergeTask) -> list[Record]:
    """Merge moments in the order given."""
    with folder.recording("merge", task.index, task.input_fingerprint) as part:
        first, *others = (read_moments(folder, path) for path in task.paths)
        for other in others:
            first = first.merge(other)
        part.write_arrays("merge", _moments_arrays(first))
    return as_results(part)


def sample_nodes(
    folder: RunFolder, settings: NodeSettings, task: ShardTask, *, projection: str, train: bool, seed: int
) -> list[Record]:
    """Draw some of one shard's points, each as likely as any other, without repeats."""
    with folder.recording("sample", task.shard, task.input_fingerprint) as part:
        chosen = [np.empty((0, read_projection(folder, projection).dimension))]
        graphs = _fit_graphs(_read_shard(folder, task.shard), train=train)
        n_points = graphs.n_nodes + settings.virtual_node * graphs.n_graphs
        wanted = np.sort(np.random.default_rng([seed, task.shard]).choice(n_points, size=task.count, replace=False))
        first = 0
        for points, _ in _point_blocks(folder, settings, projection, graphs):
            here = wanted[(wanted >= first) & (wanted < first + len(points))] - first
            chosen.append(points[here])
            first += len(points)
        part.write_arrays("sample", {"points": np.concatenate(chosen)})
        part.note(points=task.count)
    return as_results(part)


def sample_graphs(
    folder: RunFolder, settings: NodeSettings, task: ShardTask, *, projection: str, train: bool, seed: int
) -> list[Record]:
    """Draw some of one shard's graphs, each as likely as any other, and keep their points."""
    with folder.recording("sample", task.shard, task.input_fingerprint) as part:
        graphs = _fit_graphs(_read_shard(folder, task.shard), train=train)
        rng = np.random.default_rng([seed, task.shard])
        wanted = np.sort(rng.choice(graphs.n_graphs, size=task.count, replace=False))
        blocks = list(_point_blocks(folder, settings, projection, graphs.take(wanted)))
        points = np.concatenate([points for points, _ in blocks])
        counts = np.concatenate([np.diff(offsets) for _, offsets in blocks])
        part.write_arrays("sample", {"points": points, "counts": counts})
        part.note(points=len(points))
    return as_results(part)


def embed_shard(folder: RunFolder, output: EmbeddingFormat, task: ShardTask, *, model_fingerprint: str) -> list[Record]:
    """Embed one shard: write the part, and the graphs that no solver could do to the rejects."""
    with folder.recording("embed", task.shard, task.input_fingerprint) as part:
        shard = _read_shard(folder, task.shard)
        model = _model(folder, model_fingerprint)
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

        part.write("data", lambda file: output.write(file, blocks()))
        if failed:
            rejected = pa.concat_tables(failed)
            part.write("rejected", _parquet_bytes(rejected), rows=rejected.num_rows, tag="embed")
            part.note(reasons=_reasons(rejected))
        part.note(solved={name: count for name, count in solved.items() if count}, dimension=model.dimension)
    return as_results(part)


def check_part(folder: RunFolder, record: Record) -> list[Record]:
    """Hand the record back if its files hold the bytes that were written, and nothing otherwise."""
    return [record] if folder.part_is_intact(PartRecord.from_json(record)) else []


def read_moments(folder: RunFolder, path: str) -> Moments:
    """Read moments that a task wrote."""
    arrays = folder.read_arrays(path)
    return Moments(int(arrays["count"]), arrays["mean"], arrays["deviations"])


def projection_arrays(projection: Projection) -> dict[str, np.ndarray]:
    """Render a projection as arrays for `read_projection`."""
    arrays = {
        "mean": projection.mean,
        "scale": projection.scale,
        "variances": projection.variances,
        "total_variance": np.array(projection.total_variance),
    }
    return arrays if projection.components is None else {**arrays, "components": projection.components}


@lru_cache(maxsize=2)
def read_projection(folder: RunFolder, path: str) -> Projection:
    """Read what `projection_arrays` rendered."""
    arrays = folder.read_arrays(path)
    return Projection(
        arrays["mean"],
        arrays["scale"],
        arrays.get("components"),
        arrays["variances"],
        float(arrays["total_variance"]),
    )


def as_results(part: PartRecorder, leave_out: str = "") -> list[Record]:
    """Render the record of a finished part as a task's results."""
    if part.record is None:
        raise ValueError("the part is not finished")
    return [{key: value for key, value in part.record.to_json().items() if key != leave_out}]


@lru_cache(maxsize=2)
def _plan(folder: RunFolder, fingerprint: str) -> SourcePlan:  # noqa: ARG001  the fingerprint keys the cache
    (record,) = folder.records("plan")
    return SourcePlan.from_json(record.extra["plan"])


@lru_cache(maxsize=2)
def _model(folder: RunFolder, fingerprint: str) -> Model:  # noqa: ARG001  the fingerprint keys the cache
    return Model.from_files(*folder.read_model())


def _read_shard(folder: RunFolder, shard: int) -> Shard:
    return read_shard(io.BytesIO(folder.read(part_path("graphs", shard))))


def _fit_graphs(shard: Shard, *, train: bool) -> GraphBatch:
    if not train:
        return shard.graphs
    return shard.graphs.take(np.flatnonzero(_is_train(shard.rows)))


def _is_train(rows: pa.Table) -> np.ndarray:
    return np.array([name == "train" for name in rows.column("split").to_pylist()], dtype=bool)


def _point_blocks(
    folder: RunFolder, settings: NodeSettings, projection: str, graphs: GraphBatch
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    embedding = PointEmbedding(settings.build(), read_projection(folder, projection))
    for block in graphs.blocks(max(1, 4_000_000 // embedding.nodes.width)):
        yield embedding.evaluate(block)


def _moments_arrays(moments: Moments) -> dict[str, np.ndarray]:
    return {"count": np.array(moments.count), "mean": moments.mean, "deviations": moments.deviations}


def _census(graphs: GraphBatch, rows: pa.Table) -> dict[str, Any]:
    """Count what later stages need to know of a shard without opening it."""
    train = _is_train(rows)
    node_degrees = degrees(graphs)
    return {
        "graphs": graphs.n_graphs,
        "nodes": graphs.n_nodes,
        "edges": graphs.n_edges,
        "train_graphs": int(train.sum()),
        "train_nodes": int(graphs.node_counts[train].sum()),
        "largest_graph": int(graphs.node_counts.max(initial=0)),
        "categories": [
            np.unique(graphs.node_categories[:, k]).tolist() for k in range(graphs.node_categories.shape[1])
        ],
        "degrees": np.unique(node_degrees).tolist(),
    }


def _reasons(rejected: pa.Table) -> dict[str, int]:
    """Count the reasons, the values in them left out."""
    kinds = (
        re.sub(r"'[^']*'|\"[^\"]*\"|-?\d[\w.+-]*", "…", reason) for reason in rejected.column("reason").to_pylist()
    )
    return dict(Counter(kinds).most_common())


def _failed_rows(rows: pa.Table, embeddings: Embeddings) -> pa.Table:
    indices = sorted(embeddings.failures)
    found = rows.select(REJECTED_SCHEMA.names[:-1]).take(pa.array(indices))
    reasons = pa.array([embeddings.failures[i] for i in indices], pa.string())
    return found.append_column("reason", reasons).cast(REJECTED_SCHEMA)


def _parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
