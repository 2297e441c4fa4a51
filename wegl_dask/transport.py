"""From the canonical points of a graph to its embedding: the transport plan, the barycentric projection.

Notes
-----
With the reference Z_0 of N points and weight 1/N each, and a graph's points z_k of weight b_k (paper, section
"Numerical Details"):

    pi  = argmin over couplings of  sum_jk pi_jk |z0_j - z_k|^2
    F   = N pi Z
    phi = (F - Z_0) / sqrt(N)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from wegl_dask import network_simplex, sinkhorn
from wegl_dask.canonical import WeightedPoints, squared_distances
from wegl_dask.certificate import EXCESS_TOLERANCE, possible_excess
from wegl_dask.errors import WeglError
from wegl_dask.graphs import IntArray

FloatMatrix = npt.NDArray[np.float64]
Solver = Literal["exact", "sinkhorn", "auto"]

MARGINAL_TOLERANCE = 1e-7
"""Sum of the deviations of a plan's marginals that is allowed on either side, as a part of the whole mass."""

COST_ENTRIES = 131_072
"""Entries of the cost matrix of the graphs that are solved in one go: 1 MB, which stays in a core's cache."""

TOO_LARGE_FOR_EXACT = "there are more pairs of points than transport.auto_size, too many for an exact plan in its place"

LARGEST_ENTRY = float(np.finfo(np.float32).max)
"""Of an embedding that is kept."""

SINKHORN_TOLERANCE = MARGINAL_TOLERANCE / 10
"""Sum of the deviations at which Sinkhorn's iteration ends."""

SINKHORN_ITERATIONS = 20_000

CERTIFIED_EVERY = 16
"""Of so many exact plans one is proven optimal by its dual: it takes a tenth of the time of the solver."""


class PlanError(WeglError):
    """A solver did not return a plan that can be used."""


class MarginalsError(PlanError):
    """The marginals of a plan are not those asked for: the solver has not converged."""


@dataclass(frozen=True)
class TransportEmbeddings:
    """Embeddings of many graphs, and the costs of the plans behind them.

    Attributes
    ----------
    phi : float64, (n_graphs, N * d)
        Row-major: the displacement of the first reference point, then of the second, ...
    transport_cost : float64, (n_graphs,)
        <pi, C>; the squared 2-Wasserstein distance to the reference where the plan is exact.
    entropic : bool, (n_graphs,)
        Whether the plan is entropic.
    regularization : float64, (n_graphs,)
        Entropic regularisation in units of the cost; NaN for exact plans.
    failures : dict of int to str
        Graphs for which no solver gave a plan, and why; their rows above hold NaN.
    """

    phi: FloatMatrix
    transport_cost: FloatMatrix
    entropic: npt.NDArray[np.bool_]
    regularization: FloatMatrix
    failures: dict[int, str]

    @classmethod
    def unsolved(cls, n_graphs: int, width: int, reason: str | None = None) -> "TransportEmbeddings":
        """Make room for the embeddings of `n_graphs` graphs, or say why there is none for any of them."""
        return cls(
            phi=np.full((n_graphs, width), np.nan),
            transport_cost=np.full(n_graphs, np.nan),
            entropic=np.zeros(n_graphs, dtype=bool),
            regularization=np.full(n_graphs, np.nan),
            failures={} if reason is None else dict.fromkeys(range(n_graphs), reason),
        )

    def put(self, graphs: IntArray, found: "TransportEmbeddings") -> None:
        """Replace the rows of the named graphs, in place."""
        self.phi[graphs], self.transport_cost[graphs] = found.phi, found.transport_cost
        self.entropic[graphs], self.regularization[graphs] = found.entropic, found.regularization
        self.failures.update({int(graphs[graph]): reason for graph, reason in found.failures.items()})

    def refuse_too_large(self) -> None:
        """Make failures, in place, of embeddings that single precision, in which they are kept, cannot hold."""
        largest = np.abs(self.phi).max(axis=1, initial=0.0)
        for graph in np.flatnonzero(largest > LARGEST_ENTRY).tolist():
            self.failures[graph] = (
                f"its embedding has an entry of {largest[graph]:.1e}; {LARGEST_ENTRY:.1e} is the most that single precision "
                "holds: scale the attributes or the reference"
            )
            self.phi[graph], self.transport_cost[graph] = np.nan, np.nan


def embed_points(
    points: WeightedPoints,
    reference: FloatMatrix,
    *,
    solver: Solver = "exact",
    regularization: float = 0.01,
    auto_size: int = 4_000_000,
    certified_every: int = CERTIFIED_EVERY,
) -> TransportEmbeddings:
    """Solve the transport problem of every graph and project its plan.

    Parameters
    ----------
    points : WeightedPoints
        Canonical, see `wegl_dask.canonical.canonical_points`.
    reference : float64, (N, d)
        Canonical, see `wegl_dask.canonical.canonical_reference`.
    solver : {"exact", "sinkhorn", "auto"}
        "auto" is "sinkhorn" for graphs with more than `auto_size` pairs of points, and "exact" for all others.
    regularization : float
        For "sinkhorn", as a fraction of the graph's largest cost.
    auto_size : int
        In more pairs than this no exact plan is looked for in place of an entropic one either, unless they are few.
    certified_every : int
        Of so many exact plans one is proven optimal, see `wegl_dask.certificate`; 1 for all.

    Returns
    -------
    TransportEmbeddings
        A plan that fails its checks is solved again by the other solver; its row says so.
    """
    n_reference = len(reference)
    result = TransportEmbeddings.unsolved(len(points.offsets) - 1, reference.size)
    entropic_size, exact_size = first_entropic(solver, auto_size), largest_exact(solver, auto_size)
    for start, stop in _cost_blocks(points.offsets, n_reference):
        graphs = points.slice(start, stop)
        pairs = np.diff(graphs.offsets) * n_reference
        exact = pairs <= entropic_size
        if pairs.sum() > COST_ENTRIES and not exact.any():
            try:
                solution = _embed_in_strips(graphs, reference, regularization)
            except MarginalsError as error:
                if pairs.sum() > exact_size:
                    result.failures[start] = f"{error}; {TOO_LARGE_FOR_EXACT}"
                    continue
                exact[:] = True
            except PlanError as error:
                result.failures[start] = str(error)
                continue
            else:
                result.phi[start], result.transport_cost[start], result.regularization[start] = solution
                result.entropic[start] = True
                continue
        block = _Block.of(graphs, reference)
        solved = block.solve_exactly(np.flatnonzero(exact), certified_every)
        for graph in np.flatnonzero(~solved).tolist():
            try:
                entropic, absolute = block.solve_carefully(
                    graph, entropic_first=not exact[graph], regularization=regularization
                )
            except PlanError as error:
                result.failures[start + graph] = str(error)
            else:
                solved[graph] = True
                result.entropic[start + graph], result.regularization[start + graph] = entropic, absolute
        result.phi[start:stop], result.transport_cost[start:stop] = block.embed(solved)
    return result


def first_entropic(solver: Solver, auto_size: int) -> float:
    """Pairs of points above which a graph's plan is entropic; see `embed_points`."""
    return {"exact": np.inf, "sinkhorn": -1, "auto": auto_size}[solver]


def largest_exact(solver: Solver, auto_size: int) -> float:
    """Pairs of points up to which a graph's plan may be exact, if only in place of an entropic one that failed."""
    return np.inf if solver == "exact" else max(auto_size, COST_ENTRIES)


def exact_plan(
    reference_weights: FloatMatrix, weights: FloatMatrix, costs: FloatMatrix
) -> tuple[FloatMatrix, FloatMatrix, FloatMatrix]:
    """Solve the linear program with POT's network simplex.

    Parameters
    ----------
    reference_weights : float64, (N,)
    weights : float64, (n,)
    costs : float64, (N, n), C order

    Returns
    -------
    plan : float64, (N, n)
    reference_dual, dual : float64, (N,) and (n,)
        Dual potentials: ``reference_dual[:, None] + dual <= costs``, with equality where the plan is positive.

    Raises
    ------
    PlanError
        If there are no points, a cost is not finite, the solver did not finish, the marginals are not those asked for,
        or the dual does not prove that the plan is optimal.
    """
    _require_finite(costs)
    max_iterations, factor = int(_iterations(sum(costs.shape))), float(_normalizing_factor(costs.max()))
    scaled = costs * factor
    plan, _, reference_dual, dual, code = network_simplex.network_simplex()(
        reference_weights, weights, scaled, max_iterations, 1
    )
    if code != network_simplex.OPTIMAL:
        meaning = {0: "infeasible", 2: "unbounded", 3: f"not finished after {max_iterations} iterations"}
        raise PlanError(f"exact solver: {meaning.get(code, f'result code {code}')}")
    _require_marginals(plan, reference_weights, weights, "exact solver")
    reference_dual, dual = _with_duals_of_weightless_points(scaled, reference_weights, weights, reference_dual, dual)
    excess = possible_excess(plan, scaled, reference_dual, dual)
    if not excess <= EXCESS_TOLERANCE:
        raise PlanError(
            f"exact solver: the plan may cost {excess:.1e} of the largest cost more than the optimum; "
            f"{EXCESS_TOLERANCE:.0e} is allowed"
        )
    return plan, reference_dual / factor, dual / factor


def sinkhorn_plan(
    reference_weights: FloatMatrix, weights: FloatMatrix, costs: FloatMatrix, regularization: float
) -> FloatMatrix:
    """Solve the entropic problem by Sinkhorn's iteration in the log domain.

    Parameters
    ----------
    reference_weights, weights, costs
        As in `exact_plan`.
    regularization : float
        Weight of the entropy, in units of the cost.

    Raises
    ------
    PlanError
        If there are no points, a cost is not finite, or the marginals did not converge.
    """
    _require_finite(costs)
    problem = sinkhorn.Problem.of_costs(reference_weights, weights, costs)
    plan = _entropic_potentials(problem, regularization).plan(slice(None), costs)
    _require_marginals(plan, reference_weights, weights, "sinkhorn solver")
    return plan


def _entropic_potentials(problem: sinkhorn.Problem, regularization: float) -> sinkhorn.Potentials:
    return sinkhorn.solve(problem, regularization, tolerance=SINKHORN_TOLERANCE, max_iterations=SINKHORN_ITERATIONS)


@dataclass(frozen=True)
class _Block:
    """Consecutive graphs whose plans are found together; everything but the solver's call is done for all at once.

    Attributes
    ----------
    reference : float64, (N, d)
    reference_weights : float64, (N,)
    points : float64, (n_points, d)
    weights : float64, (n_points,)
    offsets : int64, (n_graphs + 1,)
    costs : float64, (N, n_points)
    plans : float64, (N, n_points)
        Of the graphs solved so far, side by side.
    averages : float64, (n_graphs, N, d)
        ``pi Z`` of the graphs solved so far.
    """

    reference: FloatMatrix
    reference_weights: FloatMatrix
    points: FloatMatrix
    weights: FloatMatrix
    offsets: IntArray
    costs: FloatMatrix
    plans: FloatMatrix
    averages: FloatMatrix

    @classmethod
    def of(cls, graphs: WeightedPoints, reference: FloatMatrix) -> "_Block":
        costs = squared_distances(reference, graphs.points)
        return cls(
            reference,
            np.full(len(reference), 1.0 / len(reference)),
            graphs.points,
            graphs.weights,
            graphs.offsets,
            costs,
            np.zeros_like(costs),
            np.full((len(graphs.offsets) - 1, *reference.shape), np.nan),
        )

    def solve_exactly(self, graphs: IntArray, certified_every: int) -> npt.NDArray[np.bool_]:
        """Solve the named graphs exactly; say which plans hold, out of all graphs of the block.

        The checks are those of `exact_plan`, made for all graphs at once, since one by one they take as long as the
        solver. That plans are optimal is proven for some.
        """
        solve = network_simplex.network_simplex()
        counts = np.diff(self.offsets)
        solved = np.zeros(len(counts), dtype=bool)
        # POT's solver ends the process on a graph without points.
        held = np.flatnonzero(counts)
        if not len(graphs) or not len(held):
            return solved
        starts = self.offsets[held]
        largest = np.full(len(counts), np.nan)
        largest[held] = np.maximum.reduceat(self.costs.max(axis=0), starts)
        scaled = self.costs * np.repeat(_normalizing_factor(largest), counts)
        bounds = self.offsets.tolist()
        limits = _iterations(len(self.reference) + counts).tolist()
        graphs = graphs[np.isfinite(largest[graphs])]
        holds = []
        # Everything in this loop counts: the solver takes 50 microseconds for a molecule.
        reference_weights, points, weights = self.reference_weights, self.points, self.weights
        plans, averages = self.plans, self.averages
        for graph in graphs.tolist():
            own = slice(bounds[graph], bounds[graph + 1])
            costs = np.ascontiguousarray(scaled[:, own])
            plan, _, reference_dual, dual, code = solve(reference_weights, weights[own], costs, limits[graph], 1)
            plans[:, own] = plan
            plan.dot(points[own], averages[graph])
            holds.append(
                code == network_simplex.OPTIMAL
                and (
                    graph % certified_every != 0
                    or possible_excess(plan, costs, reference_dual, dual) <= EXCESS_TOLERANCE
                )
            )
        solved[graphs] = holds
        row_error = np.abs(np.add.reduceat(self.plans, starts, axis=1) - self.reference_weights[:, None]).sum(axis=0)
        column_error = np.add.reduceat(np.abs(self.plans.sum(axis=0) - self.weights), starts)
        least = np.minimum.reduceat(self.plans.min(axis=0), starts)
        solved[held] &= (row_error <= MARGINAL_TOLERANCE) & (column_error <= MARGINAL_TOLERANCE) & (least >= 0)
        return solved

    def solve_carefully(self, graph: int, *, entropic_first: bool, regularization: float) -> tuple[bool, float]:
        """Solve a graph by one solver, then by the other: whether the plan is entropic, and its regularisation."""
        own = slice(int(self.offsets[graph]), int(self.offsets[graph + 1]))
        costs = np.ascontiguousarray(self.costs[:, own])
        if not costs.size:
            raise PlanError("the graph has no points")
        problems = []
        for entropic in (entropic_first, not entropic_first):
            # Costs of 0 throughout need no regularisation to be solved; any positive one gives the same plan.
            absolute = regularization * (costs.max() or 1.0) if entropic else np.nan
            try:
                if entropic:
                    plan = sinkhorn_plan(self.reference_weights, self.weights[own], costs, absolute)
                else:
                    plan = exact_plan(self.reference_weights, self.weights[own], costs)[0]
            except PlanError as error:
                problems.append(str(error))
            else:
                self.plans[:, own] = plan
                plan.dot(self.points[own], self.averages[graph])
                return entropic, absolute
        raise PlanError("; ".join(dict.fromkeys(problems)))

    def embed(self, solved: npt.NDArray[np.bool_]) -> tuple[FloatMatrix, FloatMatrix]:
        """Turn the plans into phi, (n_graphs, N * d), and the transport costs; NaN for graphs that are not solved."""
        n_reference = len(self.reference)
        phi = self.averages * n_reference
        phi -= self.reference
        phi /= np.sqrt(n_reference)
        graph_of_point = np.repeat(np.arange(len(solved)), np.diff(self.offsets))
        # Where there is no plan the costs need not be finite.
        costs = self.costs if solved.all() else np.where(solved[graph_of_point], self.costs, 0.0)
        by_point = np.einsum("jk,jk->k", self.plans, costs)
        cost = np.bincount(graph_of_point, by_point, minlength=len(solved)).astype(np.float64)
        phi[~solved], cost[~solved] = np.nan, np.nan
        return phi.reshape(len(phi), -1), cost


def _embed_in_strips(
    graph: WeightedPoints, reference: FloatMatrix, regularization: float
) -> tuple[FloatMatrix, float, float]:
    """Embed one large graph by an entropic plan: phi, the transport cost, and the regularisation in units of the cost."""
    n_reference = len(reference)
    reference_weights = np.full(n_reference, 1.0 / n_reference)
    problem = sinkhorn.Problem.of_points(reference, reference_weights, graph.points, graph.weights)
    largest = 0.0
    for _, costs in problem.strips():
        _require_finite(costs)
        largest = max(largest, float(costs.max()))
    absolute = regularization * (largest or 1.0)
    potentials = _entropic_potentials(problem, absolute)
    average, cost = np.zeros_like(reference), 0.0
    row_sums, column_error = np.zeros(n_reference), 0.0
    for own, costs in problem.strips():
        plan = potentials.plan(own, costs)
        average += plan @ graph.points[own]
        cost += float(np.vdot(plan, costs))
        row_sums += plan.sum(axis=1)
        column_error += float(abs(plan.sum(axis=0) - graph.weights[own]).sum())
    _require_small(max(column_error, float(abs(row_sums - reference_weights).sum())), "sinkhorn solver")
    return ((average * n_reference - reference) / np.sqrt(n_reference)).ravel(), cost, absolute


def _normalizing_factor(largest: FloatMatrix) -> FloatMatrix:
    """Power of two that brings the largest cost of a problem to between 1/2 and 1.

    POT's network simplex takes gains below 2.2e-15 for nothing, whatever the costs: it would leave small costs far from
    their optimum, and call that optimal. A power of two changes no digit of a cost.
    """
    exponents = np.clip(np.frexp(largest)[1], -1000, 1000)
    return np.asarray(np.ldexp(1.0, -exponents), dtype=np.float64)


def _iterations(n_points: IntArray | int) -> IntArray:
    """Bound on the steps of the network simplex, by the points on both sides: far more than it takes, but it ends."""
    return np.asarray(100_000 + 100 * n_points, dtype=np.int64)


def _require_finite(costs: FloatMatrix) -> None:
    if not costs.size:
        raise PlanError("the graph has no points")  # POT's solver would end the process
    if not np.isfinite(costs).all():
        raise PlanError("the transport costs are not finite")


def _require_marginals(plan: FloatMatrix, reference_weights: FloatMatrix, weights: FloatMatrix, who: str) -> None:
    if plan.min() < 0:
        raise PlanError(f"{who}: the plan has a negative entry, {plan.min():.1e}")
    _require_small(max(abs(plan.sum(axis=1) - reference_weights).sum(), abs(plan.sum(axis=0) - weights).sum()), who)


def _require_small(error: float, who: str) -> None:
    if not error <= MARGINAL_TOLERANCE:
        raise MarginalsError(marginals_off(error, who))


def marginals_off(error: float, who: str) -> str:
    """Say that a plan of the solver `who` has not converged."""
    return f"{who}: marginals of the plan are off by {error:.1e}; {MARGINAL_TOLERANCE:.0e} is allowed"


def _with_duals_of_weightless_points(
    costs: FloatMatrix,
    reference_weights: FloatMatrix,
    weights: FloatMatrix,
    reference_dual: FloatMatrix,
    dual: FloatMatrix,
) -> tuple[FloatMatrix, FloatMatrix]:
    """Fill in the largest duals that keep to the costs; the solver gives 0 for points without weight."""
    held = reference_weights > 0
    if not (weights > 0).all():
        largest = (costs[held] - reference_dual[held, None]).min(axis=0)
        dual = np.where(weights > 0, dual, largest)
    if not held.all():
        reference_dual = np.where(held, reference_dual, (costs - dual).min(axis=1))
    return reference_dual, dual


def _cost_blocks(offsets: IntArray, n_reference: int) -> Iterator[tuple[int, int]]:
    """Cut graphs into runs whose cost matrices together have at most `COST_ENTRIES` entries, or one graph."""
    start, n_graphs = 0, len(offsets) - 1
    while start < n_graphs:
        limit = offsets[start] + COST_ENTRIES // n_reference
        stop = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, stop
        start = stop
