"""The steps of a fit that the job and the estimator share: moments to a projection, graphs to samples of points."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import SettingsError
from wegl_dask.graphs import BLOCK_ENTRIES, GraphBatch, IntArray, offsets_from_counts
from wegl_dask.job_checks import MOST_REFERENCE_NODES, NODES_A_POINT
from wegl_dask.points import NodeEmbedding, PointEmbedding
from wegl_dask.projection import Moments, Projection, fit_projection

FloatMatrix = npt.NDArray[np.float64]

SCATTER_WIDTH = 4096
"""Widest moments whose scatter matrix is taken: 128 MB."""

SAMPLE_ENTRIES = 20_000_000
"""Float64 entries that the sample for the reference has at most, where N is not so large: 160 MB."""

ProjectionMethod = Literal["exact", "randomized"]


def needs_sketch(nodes: NodeEmbedding, seen: IntArray, components: int | None, method: ProjectionMethod) -> bool:
    """Whether the PCA is found from products with random directions; parameters as of `needs_scatter`.

    Where columns are encoded later there are fewer of them, whose scatter gives the variances and the PCA alike.
    """
    encodes_later = nodes.features.encoder is not None and not nodes.encodes_before_moments(seen)
    return method == "randomized" and components is not None and not encodes_later


def needs_scatter(
    nodes: NodeEmbedding, seen: IntArray, components: int | None, method: ProjectionMethod = "exact"
) -> bool:
    """Whether all pairs of columns are needed: for a PCA, and for the variances of columns that are encoded later.

    Parameters
    ----------
    nodes : NodeEmbedding
    seen : int, (n_seen,)
        The raw columns that occur in the collection.
    components : int or None
        Number of principal components.
    method : {"exact", "randomized"}

    Raises
    ------
    SettingsError
        If there are more pairs than can be held.
    """
    encodes_later = nodes.features.encoder is not None and not nodes.encodes_before_moments(seen)
    scatter = (components is not None or encodes_later) and not needs_sketch(nodes, seen, components, method)
    width = nodes.moments_width(seen)
    if scatter and width > SCATTER_WIDTH:
        raise SettingsError(
            f"the PCA would need a scatter matrix of {width} x {width} columns, and {SCATTER_WIDTH} are allowed: lower "
            'nodes.degree_clip or diffusion.layers, set diffusion.pooling to "average" or "final", or set projection.method '
            'to "randomized", where node features are not encoded'
        )
    return scatter


def projection_from_moments(
    nodes: NodeEmbedding,
    seen: IntArray,
    moments: Moments,
    *,
    standardize: bool,
    components: int | None,
    fewer: bool = False,
    sketch: tuple[FloatMatrix, FloatMatrix] | None = None,
) -> Projection:
    """Fit the projection to the moments that `NodeEmbedding.moments` took; see `fit_projection`."""
    encoder = nodes.features.encoder
    is_encoded = encoder is None or nodes.encodes_before_moments(seen)
    return fit_projection(
        moments,
        encoder=None if is_encoded or encoder is None else encoder[seen],
        columns=seen if encoder is None else None,
        n_columns=nodes.features.n_features,
        repeats=nodes.repeats,
        standardize=standardize,
        components=components,
        fewer=fewer,
        sketch=sketch,
    )


def sample_shares(held: IntArray, wanted: int) -> IntArray:
    """Split a sample between the parts of a collection, in proportion to what they hold.

    Examples
    --------
    >>> sample_shares(np.array([10, 30, 0, 20]), 6)
    array([1, 3, 0, 2])
    """
    upto = offsets_from_counts(held)
    return np.diff(upto * wanted // max(1, int(upto[-1])))


def most_nodes(max_nodes: int | None, n_points: int) -> int:
    """Say how many node embeddings a reference is computed from at most: as many as the job has, or as its points need.

    Examples
    --------
    >>> most_nodes(None, 26), most_nodes(None, 500), most_nodes(70_000, 26)
    (260000, 1000000, 70000)
    """
    return min(MOST_REFERENCE_NODES, NODES_A_POINT * n_points) if max_nodes is None else max_nodes


def largest_sample(n_nodes: int, max_nodes: int | None, *, dimension: int, n_points: int) -> int:
    """Say how many points the reference is computed from: all, as far as `most_nodes` and memory allow."""
    return min(n_nodes, most_nodes(max_nodes, n_points), max(SAMPLE_ENTRIES // dimension, 50 * n_points))


def draw_points(embedding: PointEmbedding, graphs: GraphBatch, count: int, rng: np.random.Generator) -> FloatMatrix:
    """Draw some points of a batch of graphs, each as likely as any other, without repeats: (count, d).

    It is graphs whose points are diffused, so they are drawn by graphs: in a circle of all graphs in random order, those
    points that come after a random one. If all points are drawn they come in their own order.
    """
    counts = np.diff(graphs.node_offsets) + embedding.nodes.virtual_node
    if count < counts.sum():
        order, before = _circle_from_a_random_point(counts, rng)
    else:
        order, before = np.arange(graphs.n_graphs), 0
    upto = np.cumsum(counts[order])
    taken = order[: int(np.searchsorted(upto, before + count)) + 1]
    chosen = [np.empty((0, embedding.dimension))]
    first = -before
    for points, _ in point_blocks(embedding, graphs.take(taken)):
        chosen.append(points[max(0, -first) : max(0, count - first)])
        first += len(points)
    return np.concatenate(chosen)


def _circle_from_a_random_point(counts: IntArray, rng: np.random.Generator) -> tuple[IntArray, int]:
    """Put graphs with so many points into a circle, and choose a point: the graphs from its own on, and those before it.

    Returns
    -------
    order : int, (n_graphs + 1,)
        The first graph comes at the end once more.
    before : int
        Points of the first graph that come before the chosen one.
    """
    order = rng.permutation(len(counts))
    upto = np.cumsum(counts[order])
    point = int(rng.integers(upto[-1]))
    first = int(np.searchsorted(upto, point, side="right"))
    return np.concatenate([order[first:], order[: first + 1]]), point - int(upto[first] - counts[order[first]])


def draw_graphs(
    embedding: PointEmbedding, graphs: GraphBatch, count: int, rng: np.random.Generator
) -> tuple[FloatMatrix, IntArray]:
    """Draw some graphs of a batch, each as likely as any other: their points, and the number of points of each."""
    wanted = np.sort(rng.choice(graphs.n_graphs, size=count, replace=False))
    blocks = list(point_blocks(embedding, graphs.take(wanted)))
    return (
        np.concatenate([points for points, _ in blocks]),
        np.concatenate([np.diff(offsets) for _, offsets in blocks]),
    )


def point_blocks(embedding: PointEmbedding, graphs: GraphBatch) -> Iterator[tuple[FloatMatrix, IntArray]]:
    """Evaluate the points of a batch in blocks of bounded memory: points and offsets of each."""
    # With principal components only those are diffused, however many columns the node embeddings have.
    for block in graphs.blocks(max(1, BLOCK_ENTRIES // embedding.dimension)):
        yield embedding.evaluate(block)
