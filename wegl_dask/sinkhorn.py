"""Entropic transport plans by Sinkhorn's iteration in the log domain, a strip of points at a time.

Notes
-----
The entropic plan is ``pi_jk = exp(u_j + v_k - c_jk / eps)``, with the ``u`` and ``v`` that give it its marginals; the
iteration finds each in turn from the other. No step needs more of the cost matrix than the costs of some points, so
those of a large graph are evaluated anew when they are needed: a graph of 50,000 points against 400 would need
gigabytes for cost matrix, plan and intermediate results, and is embedded in some megabytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wegl_dask.canonical import squared_distances

FloatMatrix = npt.NDArray[np.float64]

STRIP_ENTRIES = 262_144
"""Costs that are evaluated at a time: 2 MB."""


@dataclass(frozen=True)
class Problem:
    """Two weighted sets, and the costs between them in strips of points.

    Attributes
    ----------
    reference_weights : float64, (N,)
    weights : float64, (n,)
    costs : callable
        The costs (N, stop - start) of the points ``start:stop``.
    """

    reference_weights: FloatMatrix
    weights: FloatMatrix
    costs: Callable[[int, int], FloatMatrix]

    @classmethod
    def of_points(
        cls, reference: FloatMatrix, reference_weights: FloatMatrix, points: FloatMatrix, weights: FloatMatrix
    ) -> "Problem":
        """Squared distances, evaluated when they are needed."""
        return cls(reference_weights, weights, lambda start, stop: squared_distances(reference, points[start:stop]))

    @classmethod
    def of_costs(cls, reference_weights: FloatMatrix, weights: FloatMatrix, costs: FloatMatrix) -> "Problem":
        """Costs that are there, (N, n)."""
        return cls(reference_weights, weights, lambda start, stop: costs[:, start:stop])

    def strips(self) -> Iterator[tuple[slice, FloatMatrix]]:
        """Yield the points of each strip and their costs."""
        width = max(1, STRIP_ENTRIES // len(self.reference_weights))
        for start in range(0, len(self.weights), width):
            stop = min(start + width, len(self.weights))
            yield slice(start, stop), self.costs(start, stop)


@dataclass(frozen=True)
class Potentials:
    """What the entropic plan is made from.

    Attributes
    ----------
    reference, points : float64, (N,) and (n,)
        u and v.
    regularization : float
        eps, in units of the cost.
    """

    reference: FloatMatrix
    points: FloatMatrix
    regularization: float

    def plan(self, own: slice, costs: FloatMatrix) -> FloatMatrix:
        """Evaluate the plan of the points `own`, whose costs are given: (N, number of points)."""
        exponents = costs / -self.regularization
        exponents += self.reference[:, None]
        exponents += self.points[own]
        return np.exp(exponents, out=exponents)


def solve(problem: Problem, regularization: float, *, tolerance: float, max_iterations: int) -> Potentials:
    """Find the potentials of the entropic plan.

    Parameters
    ----------
    problem : Problem
        With finite costs.
    regularization : float
        Weight of the entropy, in units of the cost.
    tolerance : float
        Sum of the deviations of the points' marginals at which the iteration ends; those of the reference are exact.
        Their largest would say less of a graph, the more points it has.
    max_iterations : int
        Number of iterations after which it ends in any case; the caller is to look at the marginals.
    """
    with np.errstate(divide="ignore"):
        log_reference_weights, log_weights = np.log(problem.reference_weights), np.log(problem.weights)
    u = np.zeros_like(log_reference_weights)
    v = np.full_like(log_weights, np.nan)
    new_v = np.empty_like(log_weights)
    held = problem.weights > 0
    for iteration in range(max_iterations + 1):
        largest, sums = np.full_like(u, -np.inf), np.zeros_like(u)
        for own, costs in problem.strips():
            exponents = costs / -regularization
            exponents += u[:, None]
            new_v[own] = log_weights[own] - _log_sum_exp(exponents, axis=0)
            exponents += new_v[own]
            largest, sums = _add_rows(largest, sums, exponents)
        # With the old v the plan has the reference's marginals, and of the points' ones these parts.
        if iteration:
            error = problem.weights[held] * np.abs(np.expm1(v[held] - new_v[held]))
            if error.sum() <= tolerance or iteration == max_iterations:
                break
        v[:] = new_v
        u += log_reference_weights - (largest + np.log(sums))
    return Potentials(u, v, regularization)


def _log_sum_exp(exponents: FloatMatrix, axis: int) -> FloatMatrix:
    largest: FloatMatrix = exponents.max(axis=axis)
    shifted = exponents - np.expand_dims(largest, axis)
    sums: FloatMatrix = np.exp(shifted, out=shifted).sum(axis=axis)
    largest += np.log(sums)
    return largest


def _add_rows(largest: FloatMatrix, sums: FloatMatrix, exponents: FloatMatrix) -> tuple[FloatMatrix, FloatMatrix]:
    """Add a strip to ``log(sums) + largest``, the logarithm of the sum of the exponentials along each row."""
    new_largest = np.maximum(largest, exponents.max(axis=1))
    shifted = exponents - new_largest[:, None]
    with np.errstate(invalid="ignore"):
        carried = np.where(sums > 0, sums * np.exp(largest - new_largest), 0.0)
    return new_largest, carried + np.exp(shifted, out=shifted).sum(axis=1)
