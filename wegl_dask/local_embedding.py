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

    Warns
    -----
    ConvergenceWarning
        If the exact solver failed on graphs, and the entropic one did not.
    """
    vectors, costs, failed = [np.empty((0, width), dtype=np.float32)], [np.empty(0)], 0
    for batch_vectors, batch_costs, n_failed in batches:
        vectors.append(batch_vectors)
        costs.append(batch_costs)
        failed += n_failed
    if failed:
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  its package takes a second

        warnings.warn(
            f"the exact solver failed on {failed} graphs, which were solved by the entropic one instead",
            ConvergenceWarning,
            stacklevel=4,
        )
    return np.concatenate(vectors), np.concatenate(costs)
