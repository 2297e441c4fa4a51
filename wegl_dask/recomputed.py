"""Embeddings of a run computed anew from its graph shards and its model, every plan proven optimal, and compared."""

import io
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wegl_dask.embeddings import EmbeddingFormat
from wegl_dask.records import PartRecord, part_path
from wegl_dask.saved_model import Model
from wegl_dask.shards import origins, read_shard
from wegl_dask.storage import RunFolder
from wegl_dask.transport import TransportEmbeddings

TOLERANCE = {"float32": 1e-5, "float16": 2e-3}
"""Difference that is allowed, as a part of the largest entry of a vector, and of a cost: the package promises as much on
other machines, where the last bits of the points differ. `STEPS` of the points' grid are always allowed."""

STEPS = 16


def differences(folder: RunFolder, model: Model, record: PartRecord) -> Iterator[str]:
    """Compute the embeddings of one shard anew and list what of the stored ones is not so.

    Parameters
    ----------
    folder : RunFolder
    model : Model
    record : PartRecord
        Of the stage "embed"; its files and the graph shard are whole.

    Yields
    ------
    str
        One line for each kind of difference, with the number of rows and the first of them.
    """
    shard = read_shard(io.BytesIO(folder.read(part_path("graphs", record.index))))
    with folder.parquet(part_path("data", record.index)) as file:
        form = EmbeddingFormat.from_schema(file.schema_arrow)
        stored = file.read(use_threads=False)
    if shard.graphs.schema != model.schema:
        yield f"the model embeds graphs of {model.schema}; those of the shard are of {shard.graphs.schema}"
        return
    place = {origin: row for row, origin in enumerate(origins(stored))}
    rows = np.array([place.get(origin, -1) for origin in origins(shard.rows)], dtype=np.int64)
    found: dict[str, list[str]] = {}
    start = 0
    for embeddings in model.embed(shard.graphs, certified_every=1):
        stop = start + len(embeddings.transport_cost)
        ids = shard.rows.column("graph_id").slice(start, stop - start).to_pylist()
        for what, graph, detail in _compare(embeddings, stored, rows[start:stop], form, model.rounding_step):
            found.setdefault(what, []).append(f"number {start + graph} (id {ids[graph]}), {detail}")
        start = stop
    for what, where in found.items():
        yield f"computed anew, {what}: {len(where)} of {len(rows)} graphs of the shard; {where[0]}"


def _compare(
    embeddings: TransportEmbeddings, stored: pa.Table, rows: npt.NDArray[np.int64], form: EmbeddingFormat, step: float
) -> Iterator[tuple[str, int, str]]:
    """List what differs, the graph, and how; `rows` are the rows of the graphs in `stored`, -1 for rejected ones."""
    failed = np.isin(np.arange(len(rows)), list(embeddings.failures))
    for graph in np.flatnonzero(failed & (rows >= 0)).tolist():
        yield "graphs have no plan", graph, embeddings.failures[graph]
    for graph in np.flatnonzero(~failed & (rows < 0)).tolist():
        yield "graphs that were rejected have a plan", graph, "as good as any"
    graphs = np.flatnonzero(~failed & (rows >= 0))
    if not len(graphs):
        return
    table = stored.take(pa.array(rows[graphs]))
    solver = np.where(embeddings.entropic[graphs], "sinkhorn", "exact")
    for i in np.flatnonzero(solver != np.array(table.column("solver").to_pylist())).tolist():
        yield (
            "the solver differs",
            int(graphs[i]),
            f"{table.column('solver')[i]} is stored, and {solver[i]} gives the plan",
        )
    relative, least = TOLERANCE[form.dtype], STEPS * step
    cost, cost_stored = embeddings.transport_cost[graphs], table.column("transport_cost").to_numpy()
    for i in np.flatnonzero(~(np.abs(cost - cost_stored) <= TOLERANCE["float32"] * cost + least**2)).tolist():
        yield "transport_cost differs", int(graphs[i]), f"{cost_stored[i]:.9g} instead of {cost[i]:.9g}"
    phi, phi_stored = embeddings.phi[graphs], form.vectors(table)
    error = np.abs(phi - phi_stored).max(axis=1)
    for i in np.flatnonzero(~(error <= relative * np.abs(phi).max(axis=1) + least)).tolist():
        yield "the embedding differs", int(graphs[i]), f"an entry is off by {error[i]:.3g}"
