"""From graphs to the points that are transported: features, diffusion, pooling, projection, as frozen objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from wegl_dask.diffusion import EdgeFeature, Pooling, pooled, propagation_operator
from wegl_dask.features import NodeFeatures, build_features
from wegl_dask.graphs import GraphBatch, GraphSchema, IntArray
from wegl_dask.projection import Moments, Projection

FloatMatrix = npt.NDArray[np.float64]

BLOCK_ENTRIES = 4_000_000
"""Float64 entries a dense matrix of node rows may have at a time: 32 MB."""


@dataclass(frozen=True)
class NodeEmbedding:
    """The node embedding before the projection: features, diffusion, local pooling (paper, section "Node Embedding").

    Attributes
    ----------
    features : NodeFeatures
    edge_features : {"none", "labels", "attributes", "weight"}
    virtual_node : bool
        Add a virtual node to every graph first; it is one of the graph's points.
    layers : int
        L.
    pooling : {"concat", "average", "final"}
    """

    features: NodeFeatures
    edge_features: EdgeFeature
    virtual_node: bool
    layers: int
    pooling: Pooling

    @property
    def repeats(self) -> int:
        """How often the feature columns are repeated in a node embedding."""
        return self.layers + 1 if self.pooling == "concat" else 1

    @property
    def width(self) -> int:
        """Columns of a node embedding."""
        return self.repeats * self.features.n_features

    def prepare(self, batch: GraphBatch) -> GraphBatch:
        """Add the virtual nodes, if they are asked for."""
        return batch.with_virtual_nodes() if self.virtual_node else batch

    def evaluate(self, batch: GraphBatch) -> FloatMatrix:
        """Evaluate the node embeddings of all nodes: (n_points, width).

        `batch` has no virtual nodes yet; where they are asked for, that of each graph comes last among its points.
        """
        batch = self.prepare(batch)
        raw = self.features.raw_matrix(batch)
        encoded = raw if self.features.encoder is None else raw @ self.features.encoder
        operator = propagation_operator(batch, self.edge_features)
        return pooled(operator, encoded, layers=self.layers, pooling=self.pooling)

    def moments(self, batch: GraphBatch, seen: IntArray, *, scatter: bool) -> Moments:
        """Take the moments of the pooled node features in the narrower of raw and encoded space.

        Parameters
        ----------
        batch : GraphBatch
            Without virtual nodes.
        seen : int, (n_seen,)
            The raw columns that occur in the collection.
        scatter : bool
            Take the products of all pairs of columns too.

        Returns
        -------
        Moments
            Over the columns `moment_columns` (L + 1 times for "concat").
        """
        encode = self.encodes_before_moments(seen)
        width = self.features.n_features if encode else len(seen)
        result = Moments.none(self.repeats * width, scatter=scatter)
        for block in batch.blocks(max(1, BLOCK_ENTRIES // max(1, self.repeats * width))):
            prepared = self.prepare(block)
            raw = self.features.raw_matrix(prepared)
            chosen = raw @ self.features.encoder if encode else raw[:, seen]
            result = result.merge(self._block_moments(prepared, chosen, scatter=scatter))
        return result

    def encodes_before_moments(self, seen: IntArray) -> bool:
        """Whether the moments are taken of encoded features: when those are fewer than the raw columns that occur."""
        return self.features.encoder is not None and self.features.n_features < len(seen)

    def _block_moments(self, batch: GraphBatch, features: sparse.csr_array | FloatMatrix, *, scatter: bool) -> Moments:
        operator = propagation_operator(batch, self.edge_features)
        width = features.shape[1]
        step = width if scatter else max(1, BLOCK_ENTRIES // (batch.n_nodes * self.repeats))
        parts = []
        for start in range(0, width, step):
            values = pooled(operator, features[:, start : start + step], layers=self.layers, pooling=self.pooling)
            parts.append(Moments.of(values, scatter=scatter))
        if len(parts) == 1:
            return parts[0]
        # The column blocks interleave with the layers of "concat": put every layer's columns side by side.
        columns = [part.mean.reshape(self.repeats, -1) for part in parts]
        squares = [part.deviations.reshape(self.repeats, -1) for part in parts]
        return Moments(batch.n_nodes, np.concatenate(columns, axis=1).ravel(), np.concatenate(squares, axis=1).ravel())


@dataclass(frozen=True)
class NodeSettings:
    """What a `NodeEmbedding` is made of: a few hundred bytes, where the embedding itself may hold a large encoder.

    Attributes
    ----------
    schema : GraphSchema
    features : tuple of str
    max_degree, degree_clip, embedding_width, seed : int
        See `wegl_dask.features.build_features`.
    edge_features, virtual_node, layers, pooling
        See `NodeEmbedding`.
    """

    schema: GraphSchema
    features: tuple[str, ...]
    max_degree: int
    degree_clip: int
    embedding_width: int
    seed: int
    edge_features: EdgeFeature
    virtual_node: bool
    layers: int
    pooling: Pooling

    def build(self) -> NodeEmbedding:
        """Make the node embedding; ValueError where the graphs lack a feature that is asked for."""
        features = build_features(
            self.schema,
            self.features,
            max_degree=self.max_degree,
            degree_clip=self.degree_clip,
            embedding_width=self.embedding_width,
            seed=self.seed,
        )
        return NodeEmbedding(features, self.edge_features, self.virtual_node, self.layers, self.pooling)


@dataclass(frozen=True)
class PointEmbedding:
    """From graphs to the points that are transported: the node embedding followed by the projection."""

    nodes: NodeEmbedding
    projection: Projection

    @property
    def dimension(self) -> int:
        """Number d of coordinates of a point."""
        return self.projection.dimension

    def evaluate(self, batch: GraphBatch) -> tuple[FloatMatrix, IntArray]:
        """Compute the points of all graphs of a batch.

        Parameters
        ----------
        batch : GraphBatch
            With canonical edges, without virtual nodes.

        Returns
        -------
        points : float64, (n_points, d)
            The virtual node of each graph, if any, comes last among its points.
        offsets : int64, (n_graphs + 1,)
            Graph i owns rows ``offsets[i]:offsets[i + 1]``.
        """
        nodes, projection = self.nodes, self.projection
        prepared = nodes.prepare(batch)
        raw = nodes.features.raw_matrix(prepared)
        operator = propagation_operator(prepared, nodes.edge_features)
        if self._folded is None:
            encoder = nodes.features.encoder
            encoded = raw if encoder is None else raw @ encoder
            points = pooled(operator, encoded, layers=nodes.layers, pooling=nodes.pooling)
            points -= projection.mean
            points /= projection.scale
        else:
            maps, shift = self._folded
            points = self._projected(operator, raw, maps)
            points -= shift
        return points, prepared.node_offsets

    @cached_property
    def _folded(self) -> tuple[list[FloatMatrix], FloatMatrix] | None:
        """Encoder, pooling, scaling and components as one matrix A_l a layer, and the image of the mean.

        None without components. They cost more than the points of a small graph, so they are made once.
        """
        nodes, projection, components = self.nodes, self.projection, self.projection.components
        if components is None:
            return None
        encoder, axes = nodes.features.encoder, components / projection.scale
        by_layer = axes.reshape(len(axes), nodes.repeats, nodes.features.n_features)
        maps = [(axes_l.T if encoder is None else encoder @ axes_l.T) for axes_l in np.moveaxis(by_layer, 1, 0)]
        if nodes.pooling == "average":
            maps = [maps[0] / (nodes.layers + 1)]
        return maps, components @ (projection.mean / projection.scale)

    def _projected(self, operator: sparse.csr_array, raw: sparse.csr_array, maps: Sequence[FloatMatrix]) -> FloatMatrix:
        """Sum S^l X A_l over the layers by Horner's rule: only d columns are ever diffused."""
        pooling = self.nodes.pooling
        last: FloatMatrix = raw @ maps[-1]
        points = last
        for layer in range(self.nodes.layers - 1, -1, -1):
            points = operator @ points
            if pooling == "concat":
                points += raw @ maps[layer]
            elif pooling == "average":
                points += last
        return points if points is not last else last.copy()
