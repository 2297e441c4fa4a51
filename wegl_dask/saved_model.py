"""A fitted model: what `transform` needs, and its form on storage, ``model.json`` and ``arrays.npz``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.diffusion import EdgeFeature, Pooling
from wegl_dask.errors import WeglError
from wegl_dask.features import FeatureBlock, NodeFeatures
from wegl_dask.graphs import GraphBatch, GraphSchema
from wegl_dask.kernels import Device, kernels
from wegl_dask.points import NodeEmbedding, PointEmbedding
from wegl_dask.projection import Projection
from wegl_dask.transport import CERTIFIED_EVERY, Embeddings, Solver, canonical_points
from wegl_dask.version import NUMERICS_VERSION, __version__

FloatMatrix = npt.NDArray[np.float64]

BLOCK_ENTRIES = 4_000_000
"""Float64 entries of points, or of embeddings, that are held at a time: 32 MB of each."""

FORMAT_VERSION = 1
"""Changes when ``model.json`` does, in such a way that older code would read it wrongly."""


def _versions() -> dict[str, str]:
    return {"wegl_dask": __version__, "numpy": np.__version__}


@dataclass(frozen=True)
class Origin:
    """What a model was made from and by.

    Attributes
    ----------
    job : mapping
        The tables of the job file that shape the embedding, as JSON values, with the choices filled in that a job may
        leave to the data; and its ``seed``.
    fingerprint : str
        Hash of everything that the model follows from.
    n_graphs, n_nodes : int
        Graphs and points (virtual nodes included) that it was fitted to.
    numbering : mapping
        How the source numbers categories, see `wegl_dask.sources.base.SourcePlan.numbering`; empty where they are
        numbers already.
    numerics_version : int
        Of the code that fitted it.
    versions : mapping of str to str
        Of the packages that fitted it.
    """

    job: Mapping[str, Any]
    fingerprint: str
    n_graphs: int
    n_nodes: int
    numbering: Mapping[str, Any] = field(default_factory=dict)
    numerics_version: int = NUMERICS_VERSION
    versions: Mapping[str, str] = field(default_factory=_versions)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> "Origin":
        """Read the content of ``model.json``; WeglError where a key is missing."""
        try:
            return cls(
                job=description["job"],
                fingerprint=description["fingerprint"],
                n_graphs=description["fitted_on"]["graphs"],
                n_nodes=description["fitted_on"]["nodes"],
                numbering=description["numbering"],
                numerics_version=description["numerics_version"],
                versions=description["versions"],
            )
        except (KeyError, TypeError) as error:
            raise _not_complete(error) from error


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

    def on(self, device: Device) -> "Model":
        """Make the same model compute on a device; see `wegl_dask.kernels`."""
        nodes = replace(self.points.nodes, device=device)
        return replace(self, points=replace(self.points, nodes=nodes))

    def embed(self, batch: GraphBatch, *, certified_every: int = CERTIFIED_EVERY) -> Iterator[Embeddings]:
        """Embed the graphs of a batch, a run of consecutive graphs at a time so that memory stays flat.

        Parameters
        ----------
        batch : GraphBatch
            Valid, with canonical edges, without virtual nodes.
        certified_every : int
            See `wegl_dask.transport.embed_points`.

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
        embed_points = kernels(self.points.nodes.device).embed_points
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
                    certified_every=certified_every,
                )

    def to_files(self, origin: Origin) -> tuple[dict[str, Any], dict[str, FloatMatrix]]:
        """Render the model as the content of ``model.json`` and the arrays of ``arrays.npz``.

        Raises
        ------
        ValueError
            If the job of `origin` is not the one that the model follows.
        """
        nodes, projection = self.points.nodes, self.points.projection
        arrays = {"reference": self.reference, "mean": projection.mean, "scale": projection.scale}
        arrays["variances"] = projection.variances
        if nodes.features.encoder is not None:
            arrays["encoder"] = nodes.features.encoder
        if projection.components is not None:
            arrays["components"] = projection.components
        for table, keys in self._job().items():
            if any(origin.job[table][key] != value for key, value in keys.items()):
                raise ValueError(f"the job has [{table}] {origin.job[table]}, and the model follows {keys}")
        description = {
            "format_version": FORMAT_VERSION,
            "N": self.n_points,
            "d": self.dimension,
            "rounding_step": self.rounding_step,
            "schema": asdict(self.schema),
            "columns": [asdict(block) for block in nodes.features.blocks],
            "numbering": dict(origin.numbering),
            "total_variance": projection.total_variance,
            "job": dict(origin.job),
            "fitted_on": {"graphs": origin.n_graphs, "nodes": origin.n_nodes},
            "fingerprint": origin.fingerprint,
            "numerics_version": origin.numerics_version,
            "versions": dict(origin.versions),
        }
        return description, arrays

    def _job(self) -> dict[str, dict[str, Any]]:
        """Render the keys of the job file that the model holds."""
        nodes = self.points.nodes
        return {
            "nodes": {"virtual_node": nodes.virtual_node},
            "edges": {"features": nodes.edge_features, "direction": "directed" if self.directed else "undirected"},
            "diffusion": {"layers": nodes.layers, "pooling": nodes.pooling},
            "transport": {
                "solver": self.solver,
                "regularization": self.regularization,
                "auto_size": self.auto_size,
            },
        }

    @classmethod
    def from_files(cls, description: Mapping[str, Any], arrays: Mapping[str, FloatMatrix]) -> "Model":
        """Read back what `to_files` wrote.

        Raises
        ------
        WeglError
            If it is of a later format, a key or an array is missing, or the shapes contradict one another.
        """
        try:
            version = description["format_version"]
            if version > FORMAT_VERSION:
                made_by = description["versions"]["wegl_dask"]
                raise WeglError(
                    f"the model is of format {version}, written by wegl-dask {made_by}; this is {__version__}, which reads "
                    f"formats up to {FORMAT_VERSION}: install a later version"
                )
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
            raise _not_complete(error) from error
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


def _not_complete(error: Exception) -> WeglError:
    return WeglError(f"the model is not complete: model.json, or an array of arrays.npz, is at fault ({error!r})")
