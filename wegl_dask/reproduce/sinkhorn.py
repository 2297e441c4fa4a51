"""Exact against entropic plans: on the molecules of ogbg-molhiv, and on sets of up to thousands of points.

Paper, appendix "Linear Programming vs. Entropy Regularization". Regularisations are fractions of a problem's largest cost.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from wegl_dask.canonical import WeightedPoints
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.provenance import PROCESSOR
from wegl_dask.transport import PlanError, exact_plan, sinkhorn_plan
from wegl_dask.version import NUMERICS_VERSION

FloatMatrix = npt.NDArray[np.float64]

REGULARIZATIONS = (0.1, 0.05, 0.02, 0.01)
N_GRAPHS = 200
"""Molecules that both solvers are measured on."""

POOL_GRAPHS = 2000
"""Molecules whose points are drawn from, to measure the growth."""

SIZES = (25, 50, 100, 200, 400, 800, 1600, 3200)
LONGEST = 60.0
"""Seconds that a measurement may take, going by the size before; a longer one is left out."""

N_DRAWS = 3
"""Sets of points of every size; the median of the seconds counts."""

REPEATED = 0.2
"""Seconds below which a measurement is repeated, three times in all; the shortest counts."""

PACKAGES = (PROCESSOR, "numpy", "scipy", "POT")
"""What is kept with what is measured: the processor, and versions."""

SEED = 0


@dataclass(frozen=True)
class Molecules:
    """How a regularisation does on molecules.

    Attributes
    ----------
    regularization : float
    ratio : float64, (n_graphs,)
        Seconds of the entropic solver over those of the exact one.
    error : float64, (n_graphs,)
        Relative error of W_2; NaN where the iteration did not converge.
    """

    regularization: float
    ratio: FloatMatrix
    error: FloatMatrix


@dataclass(frozen=True)
class Growth:
    """Seconds of a solver by the number of points on either side.

    Attributes
    ----------
    regularization : float or None
        None for the exact solver.
    sizes : tuple of int
        That were measured.
    seconds : tuple of float
        The median over `N_DRAWS` draws of the points.
    converged : tuple of bool
        Whether all plans have the marginals that were asked for.
    n_points : int
        Distinct points that both sides were drawn from.
    """

    regularization: float | None
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    converged: tuple[bool, ...]
    n_points: int


def compare_on_molecules(
    points: WeightedPoints, reference: FloatMatrix, ledger: Ledger, *, data: str
) -> Iterator[Molecules]:
    """Solve the transport problem of every graph by both solvers.

    Parameters
    ----------
    points : WeightedPoints
        Of the graphs.
    reference : float64, (N, d)
    ledger : Ledger
    data : str
        Fingerprint of the graphs that points and reference follow from.

    Yields
    ------
    Molecules
        For each of `REGULARIZATIONS`.
    """
    graphs = [points.slice(i, i + 1) for i in range(len(points.offsets) - 1)]
    problems = [_Problem.of(reference, graph.points, graph.weights) for graph in graphs]

    def measure(regularization: float | None) -> dict[str, Any]:
        solved = [problem.solve(regularization) for problem in problems]
        return {"seconds": [seconds for seconds, _ in solved], "costs": [cost for _, cost in solved]}

    problems[0].solve(None)  # POT is imported
    exact = _step(ledger, "molecules-exact", partial(measure, None), graphs=len(graphs), data=data)
    for regularization in REGULARIZATIONS:
        name = f"molecules-{regularization}"
        found = _step(ledger, name, partial(measure, regularization), graphs=len(graphs), data=data)
        costs = np.array([np.nan if cost is None else cost for cost in found["costs"]])
        errors = np.abs(np.sqrt(costs / np.array(exact["costs"])) - 1)
        yield Molecules(regularization, np.divide(found["seconds"], exact["seconds"]), errors)


def measure_growth(pool: FloatMatrix, ledger: Ledger, sizes: Sequence[int] = SIZES, *, data: str) -> Iterator[Growth]:
    """Time the solvers on as many points as reference points, both drawn from a pool.

    Parameters
    ----------
    pool : float64, (n, d)
        Distinct points.
    ledger : Ledger
    sizes : sequence of int
        Ascending; in place of those above half the number of points, the largest that there are points for.
    data : str
        Fingerprint of the graphs that the points are of.

    Yields
    ------
    Growth
        Of the exact solver, then of every regularisation; nothing if there are fewer than two points.
    """
    sizes = _fitting(sizes, len(pool))
    if not sizes:
        return
    for regularization in (None, *REGULARIZATIONS):
        done: list[tuple[int, float, bool]] = []
        for size in sizes:
            if done and done[-1][1] * (size / done[-1][0]) ** (3 if regularization is None else 2) > LONGEST:
                break

            def measure(size: int = size, regularization: float | None = regularization) -> list[Any]:
                found = [_timed(pool, size, draw, regularization) for draw in range(N_DRAWS)]
                seconds, converged = zip(*found, strict=True)
                return [size, median(seconds), all(converged)]

            name = f"size-{size}-{'exact' if regularization is None else regularization}"
            done.append(tuple(_step(ledger, name, measure, pool=len(pool), draws=N_DRAWS, data=data)))
        measured, seconds, converged = zip(*done, strict=True)
        yield Growth(regularization, measured, seconds, converged, len(pool))


def _timed(pool: FloatMatrix, size: int, draw: int, regularization: float | None) -> tuple[float, bool]:
    """Solve the problem of a draw of points: the seconds, and whether the plan has its marginals."""
    places = np.random.default_rng([SEED, size, draw]).choice(len(pool), 2 * size, replace=False)
    problem = _Problem.of(pool[places[:size]], pool[places[size:]], np.full(size, 1 / size))
    seconds, cost = problem.solve(regularization)
    if seconds < REPEATED:
        seconds = min(seconds, *(problem.solve(regularization)[0] for _ in range(2)))
    return seconds, cost is not None


def _fitting(sizes: Sequence[int], n_points: int) -> list[int]:
    """Cut sizes to those that there are twice as many points for.

    Examples
    --------
    >>> _fitting([25, 50, 100], 120), _fitting([25, 50, 100], 100), _fitting([25, 50, 100], 200), _fitting([25], 1)
    ([25, 50, 60], [25, 50], [25, 50, 100], [])
    """
    return sorted({size for size in (min(size, n_points // 2) for size in sizes) if size > 0})


def crossing(exact: Growth, entropic: Growth) -> float | None:
    """Find the number of points from which on the entropic solver is faster, between two at which it converged.

    Returns
    -------
    float or None
        By interpolation on logarithmic scales; None if the exact solver is the faster at the largest of these sizes, or
        there is none.

    Examples
    --------
    >>> lp = Growth(None, (10, 1000), (1.0, 1e4), (True, True), 2000)
    >>> round(crossing(lp, Growth(0.1, (10, 1000), (10.0, 1e3), (True, True), 2000)), 6)
    100.0
    """
    converged = {size for size, is_converged in zip(entropic.sizes, entropic.converged, strict=True) if is_converged}
    common = [size for size in exact.sizes if size in converged]
    # Positive where the exact solver takes longer.
    lead = [
        np.log(exact.seconds[exact.sizes.index(size)] / entropic.seconds[entropic.sizes.index(size)]) for size in common
    ]
    if not lead or lead[-1] <= 0:
        return None
    for i in range(len(common) - 1, 0, -1):
        if lead[i - 1] <= 0:
            share = lead[i - 1] / (lead[i - 1] - lead[i])
            return float(np.exp(np.log(common[i - 1]) + share * np.log(common[i] / common[i - 1])))
    return float(common[0])


@dataclass(frozen=True)
class _Problem:
    """A transport problem between a uniform reference and weighted points."""

    reference_weights: FloatMatrix
    weights: FloatMatrix
    costs: FloatMatrix

    @classmethod
    def of(cls, reference: FloatMatrix, points: FloatMatrix, weights: FloatMatrix) -> "_Problem":
        return cls(np.full(len(reference), 1 / len(reference)), weights, cdist(reference, points, metric="sqeuclidean"))

    def solve(self, regularization: float | None) -> tuple[float, float | None]:
        """Time a solver: the seconds, and the cost of its plan, None if it has not converged."""
        started = time.perf_counter()
        try:
            if regularization is None:
                plan = exact_plan(self.reference_weights, self.weights, self.costs)[0]
            else:
                absolute = regularization * float(self.costs.max())
                plan = sinkhorn_plan(self.reference_weights, self.weights, self.costs, absolute)
        except PlanError:
            return time.perf_counter() - started, None
        return time.perf_counter() - started, float(np.vdot(plan, self.costs))


def _step(ledger: Ledger, name: str, compute: Callable[[], Any], **settings: Any) -> Any:
    settings |= {"numerics_version": NUMERICS_VERSION}
    return ledger.step(f"sinkhorn-{name}", settings, compute, packages=PACKAGES)
