"""From graphs to the points that are transported: features, diffusion, pooling, projection, as frozen objects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask.accumulation import MomentAccumulator
from wegl_dask.diffused_columns import DiffusedColumns
from wegl_dask.diffusion import EdgeFeature, Pooling, propagation_operator
from wegl_dask.features import NodeFeatures, build_features
from wegl_dask.graphs import BLOCK_ENTRIES, GraphBatch, GraphSchema, IntArray, UsedAttributes
from wegl_dask.kernels import Device, kernels
from wegl_dask.projection import Moments, Projection

FloatMatrix = npt.NDArray[np.float64]


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
    device : {"cpu", "cuda"}
        What diffuses; see `wegl_dask.kernels`.
    """

    features: NodeFeatures
    edge_features: EdgeFeature
    virtual_node: bool
    layers: int
    pooling: Pooling
    device: Device = "cpu"

    @property
    def repeats(self) -> int:
        """How often the feature columns are repeated in a node embedding."""
        return self.layers + 1 if self.pooling == "concat" else 1

    @property
    def used(self) -> UsedAttributes:
        """The attributes that it uses."""
        return UsedAttributes(
            node=any(block.kind == "attribute" for block in self.features.blocks),
            edge=self.edge_features in {"attributes", "weight"},
        )

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
        return kernels(self.device).pooled(operator, encoded, layers=self.layers, pooling=self.pooling)

    # What is not finite is refused where something is to be fitted to it.
    @np.errstate(over="ignore", invalid="ignore")
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
            Over `moments_width` columns.
        """
        encode = self.encodes_before_moments(seen)
        width = self.moments_width(seen)
        total = MomentAccumulator(width, scatter=scatter)
        for block in batch.blocks(max(1, BLOCK_ENTRIES // max(1, width))):
            prepared = self.prepare(block)
            raw = self.features.raw_matrix(prepared)
            columns = DiffusedColumns(
                propagation_operator(prepared, self.edge_features),
                raw @ self.features.encoder if encode else raw[:, seen],
                self.layers,
                self.pooling,
                self.device,
            )
            columns.add_to(total, prepared.node_offsets, scatter=scatter)
        return total.moments()

    def sketch(
        self, batch: GraphBatch, seen: IntArray, mean: FloatMatrix, factors: FloatMatrix, directions: FloatMatrix
    ) -> FloatMatrix:
        """Multiply the scatter of the scaled node embeddings with some directions, without forming either.

        Diffusion is linear, so that only as many columns are diffused as there are directions: forwards, and back.

        Parameters
        ----------
        batch : GraphBatch
            Without virtual nodes.
        seen : int, (n_seen,)
            See `moments`; the columns are those.
        mean, factors : float64, (width,)
            What is subtracted from the columns, and what they are multiplied with then.
        directions : float64, (width, p)

        Returns
        -------
        float64, (width, p)
            Of several batches they add up.
        """
        result = np.zeros_like(directions)
        scaled = factors[:, None] * directions
        by_layer = np.split(scaled, self.repeats)
        for block in batch.blocks(max(1, BLOCK_ENTRIES // directions.shape[1])):
            prepared = self.prepare(block)
            raw = self.features.raw_matrix(prepared)
            features = raw @ self.features.encoder if self.encodes_before_moments(seen) else raw[:, seen]
            operator = propagation_operator(prepared, self.edge_features)
            images = features @ by_layer[-1]
            if self.pooling != "concat":
                images = kernels(self.device).pooled(operator, images, layers=self.layers, pooling=self.pooling)
            else:
                others = (features @ part for part in by_layer[-2::-1])
                images = kernels(self.device).accumulated(operator, images, others)
            images -= mean @ scaled
            back = kernels(self.device).pooled(operator.T.tocsr(), images, layers=self.layers, pooling=self.pooling)
            parts = [features.T @ part for part in np.split(back, self.repeats, axis=1)]
            result += np.concatenate(parts) - mean[:, None] * images.sum(axis=0)
        return factors[:, None] * result

    def encodes_before_moments(self, seen: IntArray) -> bool:
        """Whether the moments are taken of encoded features: when those are fewer than the raw columns that occur."""
        return self.features.encoder is not None and self.features.n_features < len(seen)

    def moments_width(self, seen: IntArray) -> int:
        """Columns that the moments are taken of: the narrower of raw and encoded features, L + 1 times for "concat"."""
        return self.repeats * (self.features.n_features if self.encodes_before_moments(seen) else len(seen))


@dataclass(frozen=True)
class NodeSettings:
    """What a `NodeEmbedding` is made of: a few hundred bytes, where the embedding itself may hold a large encoder.

    Attributes
    ----------
    schema : GraphSchema
    features : tuple of str
    max_degree, degree_clip, embedding_width, seed : int
        See `wegl_dask.features.build_features`.
    edge_features, virtual_node, layers, pooling, device
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
    device: Device = "cpu"

    def build(self) -> NodeEmbedding:
        """Make the node embedding; SettingsError where the graphs lack a feature that is asked for."""
        features = build_features(
            self.schema,
            self.features,
            max_degree=self.max_degree,
            degree_clip=self.degree_clip,
            embedding_width=self.embedding_width,
            seed=self.seed,
        )
        return NodeEmbedding(features, self.edge_features, self.virtual_node, self.layers, self.pooling, self.device)


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
            points = kernels(nodes.device).pooled(operator, encoded, layers=nodes.layers, pooling=nodes.pooling)
            points -= projection.mean
            points /= projection.scale
        else:
            maps, shift = self._folded
            last = raw @ maps[-1]
            points = kernels(nodes.device).accumulated(operator, last, self._others(raw, maps, last))
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

    def _others(
        self, raw: "scipy.sparse.csr_array", maps: Sequence[FloatMatrix], last: FloatMatrix
    ) -> Iterator[FloatMatrix | None]:
        """Yield X A_l of the layers before the last: only d columns are ever diffused."""
        pooling = self.nodes.pooling
        for layer in range(self.nodes.layers - 1, -1, -1):
            yield raw @ maps[layer] if pooling == "concat" else last if pooling == "average" else None
