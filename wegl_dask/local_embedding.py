"""Embedding in this process, or in those of joblib, batch by batch."""

import warnings
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from wegl_dask.graph_inputs import usable_graphs
from wegl_dask.graphs import GraphBatch
from wegl_dask.plain_graphs import UnusableGraphError
from wegl_dask.saved_model import Model

Vectors = npt.NDArray[np.float32]
Costs = npt.NDArray[np.float64]

ROOM = 1.125
"""The array that vectors are put into is made so many times as large as they are when it is full."""

Embedded = tuple[Vectors, Costs, int]
"""Vectors and costs of a batch, and how many graphs the exact solver failed on."""


def embed_as_read(model: Model, batch: tuple[int, GraphBatch]) -> Embedded:
    """Check graphs as they were read, of which the first has the index that is given with them, and embed them.

    Raises
    ------
    UnusableGraphError
        If a graph cannot be embedded, with its index and the reason.
    """
    first, graphs = batch
    return embed_usable(
        model, (first, usable_graphs(graphs, first=first, directed=model.directed, used=model.points.nodes.used))
    )


def embed_usable(model: Model, batch: tuple[int, GraphBatch]) -> Embedded:
    """Embed graphs in the form that `usable_graphs` gives them; see `embed_as_read`."""
    first, graphs = batch
    vectors, costs = [], []
    n_failed = 0
    for found in model.embed(graphs):
        for graph, reason in found.failures.items():
            raise UnusableGraphError(f"graph {first + graph}: {reason}")
        first += len(found.transport_cost)
        n_failed += int(found.entropic.sum()) if model.solver == "exact" else 0
        vectors.append(found.phi.astype(np.float32))
        costs.append(found.transport_cost)
    return np.concatenate(vectors), np.concatenate(costs), n_failed


def joined(batches: Iterable[Embedded], width: int) -> tuple[Vectors, Costs]:
    """Put batches one after another: vectors of `width` entries, and costs.

    They go into one array that grows where it is, so that the vectors are not held twice, however many there turn out to be.

    Warns
    -----
    ConvergenceWarning
        If the exact solver failed on graphs, and the entropic one did not.
    """
    vectors, costs = np.empty((0, width), dtype=np.float32), np.empty(0)
    n_graphs = failed = 0
    for batch_vectors, batch_costs, n_failed in batches:
        end = n_graphs + len(batch_costs)
        if end > len(costs):
            _resize(vectors, costs, int(ROOM * end))
        vectors[n_graphs:end] = batch_vectors
        costs[n_graphs:end] = batch_costs
        n_graphs = end
        failed += n_failed
    _resize(vectors, costs, n_graphs)
    if failed:
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  its package takes a second

        warnings.warn(
            f"the exact solver failed on {failed} graphs, which were solved by the entropic one instead",
            ConvergenceWarning,
            stacklevel=4,
        )
    return vectors, costs


def _resize(vectors: Vectors, costs: Costs, n_graphs: int) -> None:
    """Change the number of graphs that there is room for, in place: nothing else refers to the arrays yet."""
    vectors.resize((n_graphs, vectors.shape[1]), refcheck=False)
    costs.resize(n_graphs, refcheck=False)
