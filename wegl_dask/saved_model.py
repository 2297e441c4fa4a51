"""A fitted model: what `transform` needs, and its form on storage, ``model.json`` and ``arrays.npz``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.diffusion import EdgeFeature, Pooling
from wegl_dask.errors import WeglError
from wegl_dask.features import FeatureBlock, NodeFeatures
from wegl_dask.graphs import GraphBatch, GraphSchema
from wegl_dask.points import NodeEmbedding, PointEmbedding
from wegl_dask.projection import Projection
from wegl_dask.transport import Embeddings, Solver, canonical_points, embed_points

FloatMatrix = npt.NDArray[np.float64]

BLOCK_ENTRIES = 4_000_000
"""Float64 entries of points, or of embeddings, that are held at a time: 32 MB of each."""


@dataclass(frozen=True)
class Model:
    """A fitted embedding.

    Attributes
    ----------
    schema : GraphSchema
        Of the graphs it embeds.
    points : PointEmbedding
        From a graph to its points.
    reference : float64, (N, d)
        Distinct, on the grid, in lexicographic order.
    rounding_step : float
        Grid spacing of points and reference.
    directed : bool
        How edge lists are read.
    solver : {"exact", "sinkhorn", "auto"}
    regularization : float
    auto_size : int
        See `wegl_dask.transport.embed_points`.
    """

    schema: GraphSchema
    points: PointEmbedding
    reference: FloatMatrix
    rounding_step: float
    directed: bool
    solver: Solver
    regularization: float
    auto_size: int

    @property
    def n_points(self) -> int:
        """Number N of reference points."""
        return len(self.reference)

    @property
    def dimension(self) -> int:
        """Number d of coordinates of a point."""
        return int(self.reference.shape[1])

    def embed(self, batch: GraphBatch) -> Iterator[Embeddings]:
        """Embed the graphs of a batch, a run of consecutive graphs at a time so that memory stays flat.

        Parameters
        ----------
        batch : GraphBatch
            Valid, with canonical edges, without virtual nodes.

        Yields
        ------
        Embeddings
            Of the next graphs, in order.

        Raises
        ------
        ValueError
            If the graphs carry other features than those the model was fitted for.
        """
        if batch.schema != self.schema:
            raise ValueError(f"the model embeds graphs of {self.schema}; these are of {batch.schema}")
        for nodes_block in batch.blocks(max(1, BLOCK_ENTRIES // self.dimension)):
            points, offsets = self.points.evaluate(nodes_block)
            canonical = canonical_points(points, offsets, self.rounding_step)
            step = max(1, BLOCK_ENTRIES // self.reference.size)
            for start in range(0, nodes_block.n_graphs, step):
                yield embed_points(
                    canonical.slice(start, min(start + step, nodes_block.n_graphs)),
                    self.reference,
                    solver=self.solver,
                    regularization=self.regularization,
                    auto_size=self.auto_size,
                )

    def to_files(self) -> tuple[dict[str, Any], dict[str, FloatMatrix]]:
        """Render the model as the content of ``model.json`` and the arrays of ``arrays.npz``."""
        nodes, projection = self.points.nodes, self.points.projection
        arrays = {"reference": self.reference, "mean": projection.mean, "scale": projection.scale}
        arrays["variances"] = projection.variances
        if nodes.features.encoder is not None:
            arrays["encoder"] = nodes.features.encoder
        if projection.components is not None:
            arrays["components"] = projection.components
        description = {
            "N": self.n_points,
            "d": self.dimension,
            "rounding_step": self.rounding_step,
            "schema": asdict(self.schema),
            "columns": [asdict(block) for block in nodes.features.blocks],
            "total_variance": projection.total_variance,
            "job": {
                "nodes": {"virtual_node": nodes.virtual_node},
                "edges": {
                    "features": nodes.edge_features,
                    "direction": "directed" if self.directed else "undirected",
                },
                "diffusion": {"layers": nodes.layers, "pooling": nodes.pooling},
                "transport": {
                    "solver": self.solver,
                    "regularization": self.regularization,
                    "auto_size": self.auto_size,
                },
            },
        }
        return description, arrays

    @classmethod
    def from_files(cls, description: Mapping[str, Any], arrays: Mapping[str, FloatMatrix]) -> "Model":
        """Read back what `to_files` wrote.

        Raises
        ------
        WeglError
            If a key or an array is missing, or the shapes contradict one another.
        """
        try:
            job = description["job"]
            schema = description["schema"]
            features = NodeFeatures(
                tuple(FeatureBlock(**block) for block in description["columns"]), arrays.get("encoder")
            )
            edge_features: EdgeFeature = job["edges"]["features"]
            pooling: Pooling = job["diffusion"]["pooling"]
            nodes = NodeEmbedding(
                features, edge_features, job["nodes"]["virtual_node"], job["diffusion"]["layers"], pooling
            )
            projection = Projection(
                arrays["mean"],
                arrays["scale"],
                arrays.get("components"),
                arrays["variances"],
                description["total_variance"],
            )
            model = cls(
                GraphSchema(
                    tuple(schema["node_category_counts"]),
                    tuple(schema["edge_category_counts"]),
                    schema["node_attribute_width"],
                    schema["edge_attribute_width"],
                ),
                PointEmbedding(nodes, projection),
                arrays["reference"],
                description["rounding_step"],
                job["edges"]["direction"] == "directed",
                **job["transport"],
            )
        except (KeyError, TypeError) as error:
            raise WeglError(f"the model is not complete: {error}") from error
        model.require_consistent()
        return model

    def require_consistent(self) -> None:
        """Check that the arrays fit one another.

        Raises
        ------
        WeglError
            If they do not.
        """
        nodes, projection = self.points.nodes, self.points.projection
        expected = {
            "mean": (projection.mean, (nodes.width,)),
            "scale": (projection.scale, (nodes.width,)),
            "components": (projection.components, (self.dimension, nodes.width)),
            "encoder": (nodes.features.encoder, (nodes.features.n_columns, nodes.features.n_features)),
            "reference": (self.reference, (self.n_points, projection.dimension)),
        }
        for name, (array, shape) in expected.items():
            if array is not None and array.shape != shape:
                raise WeglError(f"the model's array {name} has shape {array.shape}; {shape} is needed")
