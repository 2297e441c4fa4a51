"""A fit in this process, batch by batch: what the job does in stages on a cluster."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from wegl_dask.canonical import canonical_reference
from wegl_dask.fitting import (
    ProjectionMethod,
    draw_graphs,
    draw_points,
    largest_sample,
    needs_scatter,
    needs_sketch,
    projection_from_moments,
    sample_shares,
)
from wegl_dask.graph_collections import GraphCollection
from wegl_dask.graphs import GraphBatch, IntArray
from wegl_dask.points import NodeEmbedding, NodeSettings, PointEmbedding
from wegl_dask.projection import Moments, column_factors, random_directions
from wegl_dask.reference import (
    KMEANS_DTYPE,
    ReferenceKind,
    as_sample,
    kmeans_reference_in_memory,
    origin_reference,
    reference_from_samples,
)

FloatMatrix = npt.NDArray[np.float64]
Item = TypeVar("Item")
Result = TypeVar("Result")


class MapInOrder(Protocol):
    """Applies a function to items, some at a time, and returns the results in the order of the items."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Apply it."""


@dataclass(frozen=True)
class ReferenceSettings:
    """How the reference is computed; see the table ``[reference]`` of the job file.

    Attributes
    ----------
    kind : {"kmeans", "normal", "barycenter", "sample", "origin"}
    n_points : int or None
        Number N of reference points; None is the mean number of points a graph, rounded down.
    max_nodes : int or None
        See `wegl_dask.fitting.most_nodes`.
    epochs, n_graphs, seed : int
    """

    kind: ReferenceKind
    n_points: int | None
    max_nodes: int | None
    epochs: int
    n_graphs: int
    seed: int


LARGEST_WIDTH = 10_000_000
"""Columns of node embeddings, those of categories that do not occur included: with 20 components they take 2 GB."""


def fit_points(
    graphs: GraphCollection,
    settings: NodeSettings,
    *,
    standardize: bool,
    components: int | None,
    method: ProjectionMethod,
    run: MapInOrder,
) -> PointEmbedding:
    """Fit the projection to the node embeddings of all graphs.

    Parameters
    ----------
    graphs : GraphCollection
    settings : NodeSettings
    standardize : bool
    components : int or None
        Largest number of principal components; there are fewer where the node embeddings vary in fewer directions.
    method : {"exact", "randomized"}
    run : MapInOrder

    Raises
    ------
    ValueError
        If a feature is asked for that the graphs do not have, the node embeddings do not vary, or they or a PCA would need
        too much memory.
    """
    nodes = settings.build()
    width = nodes.width
    if width > LARGEST_WIDTH:
        raise ValueError(
            f"the node embeddings have {width:,} columns, of which there may be {LARGEST_WIDTH:,}: number the categories of the "
            "graphs 0, 1, 2, ..., or give real numbers, which are attributes"
        )
    seen = nodes.features.seen_columns(graphs.census.categories, graphs.census.degrees)
    scatter = needs_scatter(nodes, seen, components, method)
    moments: Moments | None = None
    for part in run(partial(_moments, nodes, seen, scatter), graphs):
        moments = part if moments is None else moments.merge(part)
    if moments is None:
        raise ValueError("there are no graphs")
    sketch = None
    if components is not None and needs_sketch(nodes, seen, components, method):
        factors = column_factors(moments, standardize=standardize)
        directions = random_directions(len(factors), components, settings.seed)
        products = np.zeros_like(directions)
        for found in run(
            partial(nodes.sketch, seen=seen, mean=moments.mean, factors=factors, directions=directions), graphs
        ):
            products += found
        sketch = directions, products
    projection = projection_from_moments(
        nodes, seen, moments, standardize=standardize, components=components, fewer=True, sketch=sketch
    )
    return PointEmbedding(nodes, projection)


def fit_reference(
    graphs: GraphCollection, embedding: PointEmbedding, settings: ReferenceSettings, run: MapInOrder
) -> FloatMatrix:
    """Compute the reference from the points of the graphs.

    Returns
    -------
    float64, (N, d)
        Distinct, on the grid of the projection, in lexicographic order.

    Raises
    ------
    TooFewPointsError
        If there are fewer distinct points than the reference is to have.
    ValueError
        If the origin is to be more than one point.
    """
    if settings.kind == "origin":
        if settings.n_points not in {None, 1}:
            raise ValueError(
                f'reference = "origin" is one point, and n_points = {settings.n_points}; leave out n_points'
            )
        return origin_reference(embedding.dimension)
    held: IntArray = graphs.census.node_counts + embedding.nodes.virtual_node * graphs.census.graph_counts
    n_points = settings.n_points or int(held.sum()) // graphs.census.n_graphs
    step, seed = embedding.projection.rounding_step, settings.seed
    by_graph = settings.kind == "barycenter"
    if by_graph:
        held = graphs.census.graph_counts
        wanted = min(graphs.census.n_graphs, settings.n_graphs)
    else:
        wanted = largest_sample(int(held.sum()), settings.max_nodes, dimension=embedding.dimension, n_points=n_points)
    shares = sample_shares(held, wanted).tolist()
    tasks = ((i, count, batch) for i, (count, batch) in enumerate(zip(shares, graphs, strict=True)) if count)
    samples = list(run(partial(_draw, embedding, seed, by_graph=by_graph), tasks))
    if settings.kind == "kmeans":
        points = np.concatenate([as_sample(points, KMEANS_DTYPE) for points, _ in samples])
        return kmeans_reference_in_memory(points, n_points, epochs=settings.epochs, step=step, seed=seed)
    return reference_from_samples(settings.kind, samples, n_points, step=step, seed=seed)


def given_reference(points: npt.ArrayLike, embedding: PointEmbedding, n_points: int | None) -> FloatMatrix:
    """Bring a reference of the caller's to the grid and the order of all references.

    Raises
    ------
    ValueError
        If it does not have `n_points` rows, or not the coordinates of the points, or two of its rows are equal.
    """
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != embedding.dimension or not len(array):
        raise ValueError(
            f"reference has shape {array.shape}; (number of points, {embedding.dimension}) is needed: the coordinates are "
            "those of the node embeddings after standardisation and PCA"
        )
    if not np.isfinite(array).all():
        raise ValueError("reference has entries that are not finite")
    if n_points not in (None, len(array)):
        raise ValueError(f"reference has {len(array)} points, and n_points = {n_points}; leave out n_points")
    reference = canonical_reference(array, embedding.projection.rounding_step)
    if len(reference) < len(array):
        raise ValueError(f"reference has {len(array)} points, of which {len(reference)} are distinct; all have to be")
    return reference


def _moments(nodes: NodeEmbedding, seen: IntArray, scatter: bool, batch: GraphBatch) -> Moments:
    return nodes.moments(batch, seen, scatter=scatter)


def _draw(
    embedding: PointEmbedding, seed: int, task: tuple[int, int, GraphBatch], *, by_graph: bool
) -> tuple[FloatMatrix, IntArray | None]:
    index, count, batch = task
    rng = np.random.default_rng([seed, index])
    if by_graph:
        return draw_graphs(embedding, batch, count, rng)
    return draw_points(embedding, batch, count, rng), None
