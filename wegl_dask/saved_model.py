"""A fitted model: what `transform` needs, and its form on storage, ``model.json`` and ``arrays.npz``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.canonical import canonical_points
from wegl_dask.diffusion import EdgeFeature
from wegl_dask.errors import WeglError
from wegl_dask.features import NodeFeatures
from wegl_dask.graphs import BLOCK_ENTRIES, GraphBatch, GraphSchema
from wegl_dask.kernels import Device, kernels
from wegl_dask.model_description import FORMAT_VERSION, ModelDescription
from wegl_dask.points import NodeEmbedding, PointEmbedding
from wegl_dask.projection import Projection
from wegl_dask.transport import CERTIFIED_EVERY, Solver, TransportEmbeddings
from wegl_dask.version import NUMERICS_VERSION, __version__

FloatMatrix = npt.NDArray[np.float64]

ARRAY_AXES = {"mean": 1, "scale": 1, "components": 2, "variances": 1, "reference": 2, "encoder": 2}
"""The arrays of ``arrays.npz`` and their dimensions."""

OPTIONAL_ARRAYS = ("components", "encoder")

LARGEST = 1e100
"""Bound of the numbers in the arrays: products of them are finite."""


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
        """Read the content of ``model.json``; WeglError where a key is missing or its value is of no use."""
        found = ModelDescription.parse(description)
        return cls(
            job=description["job"],
            fingerprint=found.fingerprint,
            n_graphs=found.fitted_on.graphs,
            n_nodes=found.fitted_on.nodes,
            numbering=description["numbering"],
            numerics_version=found.numerics_version,
            versions=found.versions,
        )


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

    def embed(self, batch: GraphBatch, *, certified_every: int = CERTIFIED_EVERY) -> Iterator[TransportEmbeddings]:
        """Embed the graphs of a batch, a run of consecutive graphs at a time so that memory stays flat.

        Parameters
        ----------
        batch : GraphBatch
            Valid, with canonical edges, without virtual nodes.
        certified_every : int
            See `wegl_dask.transport.embed_points`.

        Yields
        ------
        TransportEmbeddings
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
                found = embed_points(
                    canonical.slice(start, min(start + step, nodes_block.n_graphs)),
                    self.reference,
                    solver=self.solver,
                    regularization=self.regularization,
                    auto_size=self.auto_size,
                    certified_every=certified_every,
                )
                found.refuse_too_large()
                yield found

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
            If it is of a later format, a key or an array is missing or of no use, or they contradict one another.
        """
        found = ModelDescription.parse(description)
        _check_arrays(arrays)
        job = found.job
        edge_features: EdgeFeature = job.edges.features or "none"
        nodes = NodeEmbedding(
            NodeFeatures(found.columns, arrays.get("encoder")),
            edge_features,
            job.nodes.virtual_node,
            job.diffusion.layers,
            job.diffusion.pooling,
        )
        if (arrays["variances"] < 0).any():
            raise WeglError("the model's array variances has numbers below 0; copy it anew, or fit it again")
        projection = Projection(
            arrays["mean"], arrays["scale"], arrays.get("components"), arrays["variances"], found.total_variance
        )
        model = cls(
            found.graphs,
            PointEmbedding(nodes, projection),
            arrays["reference"],
            found.rounding_step,
            job.edges.direction == "directed",
            job.transport.solver,
            job.transport.regularization,
            job.transport.auto_size,
        )
        model.require_consistent()
        # It follows from the variances; their mean may have been rounded to the other side of a power of two.
        if not 0.4 < found.rounding_step / projection.rounding_step < 2.5:
            raise WeglError(
                f"the model contradicts itself: model.json has a rounding_step of {found.rounding_step}, and that of its "
                f"variances is {projection.rounding_step}; copy it anew, or fit it again"
            )
        if (model.n_points, model.dimension) != (found.n_points, found.dimension):
            raise WeglError(
                f"model.json has N = {found.n_points} and d = {found.dimension}, and the model's array reference has shape "
                f"{model.reference.shape}"
            )
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
            "encoder": (nodes.features.encoder, (nodes.features.n_columns, nodes.features.n_features)),
            "mean": (projection.mean, (nodes.width,)),
            "scale": (projection.scale, (nodes.width,)),
            "components": (projection.components, (len(projection.variances), nodes.width)),
            "variances": (projection.variances, (projection.dimension,)),
            "reference": (self.reference, (self.n_points, projection.dimension)),
        }
        for name, (array, shape) in expected.items():
            if array is not None and array.shape != shape:
                raise WeglError(f"the model's array {name} has shape {array.shape}; {shape} is needed")


def _check_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, n_axes in ARRAY_AXES.items():
        array = arrays.get(name)
        if array is None:
            if name in OPTIONAL_ARRAYS:
                continue
            raise WeglError(f"the model is not complete: arrays.npz has no {name}; copy it anew, or fit it again")
        if array.dtype != np.float64 or array.ndim != n_axes or not array.size:
            raise WeglError(
                f"the model's array {name} is of {array.dtype} and shape {array.shape}; float64 in {n_axes} dimensions, not "
                "empty, is needed"
            )
        # Comparisons with NaN are False.
        if not (np.abs(array) < LARGEST).all() or (name == "scale" and not (array > 1 / LARGEST).all()):
            raise WeglError(
                f"the model's array {name} has numbers that are not finite, or too large or too small to use"
            )
