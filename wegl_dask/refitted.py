"""The points that a model was fitted to computed anew, and their moments compared with what the model says of them."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from wegl_dask.accumulation import MomentAccumulator
from wegl_dask.graphs import BLOCK_ENTRIES
from wegl_dask.saved_model import Model, Origin
from wegl_dask.shards import Shard
from wegl_dask.spec import ProjectionTable
from wegl_dask.tasks import graphs_of_fit

TOLERANCE = 1e-6
"""Deviation that is allowed, as a part of the largest standard deviation or variance."""

ROUNDING = 256 * float(np.finfo(np.float64).eps)
"""Allowed besides, as a part of how far the points lay from the origin before they were centred."""


class FittedPoints:
    """Moments of the points of a fit, shard by shard.

    Those points have mean 0, and a diagonal covariance with the model's variances: so much is known without fitting
    again. They are computed as for an embedding, which has little in common with how the fit finds the projection.

    Parameters
    ----------
    model : Model
    origin : Origin
        Of a run: what the model was fitted to, and how.
    """

    def __init__(self, model: Model, origin: Origin) -> None:
        table = ProjectionTable.model_validate(origin.job["projection"])
        has_axes = model.points.projection.components is not None
        self._model = model
        self._origin = origin
        self._train = table.fit_on == "train"
        self._centred = table.standardize or has_axes
        self._exact = table.method == "exact"
        self._graphs = 0
        self._moments = MomentAccumulator(model.dimension, scatter=self._exact and has_axes)

    def add(self, shard: Shard) -> None:
        """Add a shard that the model was fitted to."""
        graphs = graphs_of_fit(shard, train=self._train)
        self._graphs += graphs.n_graphs
        for block in graphs.blocks(max(1, BLOCK_ENTRIES // self._model.dimension)):
            self._moments.consume(self._model.points.evaluate(block)[0])

    def differences(self) -> Iterator[str]:
        """List what the model says otherwise: one line for each kind of difference."""
        moments, projection = self._moments.moments(), self._model.points.projection
        found, given = (self._graphs, moments.count), (self._origin.n_graphs, self._origin.n_nodes)
        if found != given:
            yield (
                f"it was fitted to {given[0]} graphs with {given[1]} points; those of the run that count for it are "
                f"{found[0]}, with {found[1]}"
            )
            return
        largest = float(projection.variances.max())
        noise = ROUNDING * float(np.linalg.norm(projection.mean / projection.scale))
        mean_allowed = TOLERANCE * np.sqrt(largest) + noise
        allowed = TOLERANCE * largest + 2 * np.sqrt(largest) * noise
        if self._centred:
            yield from _largest(
                moments.mean, mean_allowed, "the points it was fitted to have mean {} along axis {}, not 0"
            )
        wrong = moments.variance - projection.variances
        # The variances of a randomised PCA are approximate, and never too large.
        yield from _largest(
            wrong if self._exact else np.minimum(wrong, 0.0),
            allowed,
            "the variance of the points it was fitted to differs by {} along axis {} from the one it holds",
        )
        if moments.has_scatter:
            covariance = moments.deviations / moments.count
            np.fill_diagonal(covariance, 0.0)
            yield from _largest(
                np.abs(covariance).max(axis=0),
                allowed,
                "the points it was fitted to have a covariance of {} between axis {} and another, not 0",
            )


def _largest(values: npt.NDArray[np.float64], allowed: float, message: str) -> Iterator[str]:
    axis = int(np.abs(values).argmax())
    if not abs(values[axis]) <= allowed:
        yield message.format(f"{values[axis]:.3g}", axis)
