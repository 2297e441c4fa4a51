import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from wegl_dask import network_simplex, sinkhorn, transport
from wegl_dask.canonical import WeightedPoints
from wegl_dask.graphs import GraphSchema
from wegl_dask.memory import EXACT_PAIR_BYTES, Extent, Features, embed_terms
from wegl_dask.sinkhorn import Problem, solve
from wegl_dask.transport import embed_points


@pytest.fixture
def problem():
    """Reference, its weights, points and theirs: 7 against 40 in the plane."""
    rng = np.random.default_rng(0)
    weights = rng.random(40) + 0.1
    return rng.standard_normal((7, 2)), np.full(7, 1 / 7), rng.standard_normal((40, 2)) + 1.0, weights / weights.sum()


@pytest.mark.parametrize("width", [3, 40])
@pytest.mark.parametrize("regularization", [2.0, 0.1])
def test_the_plan_is_that_of_pot_whatever_the_strips(monkeypatch, problem, width, regularization):
    from ot.bregman import sinkhorn_log

    reference, reference_weights, points, weights = problem
    costs = cdist(reference, points, "sqeuclidean")
    expected = sinkhorn_log(reference_weights, weights, costs, regularization, numItermax=10_000, stopThr=1e-11)
    monkeypatch.setattr(sinkhorn, "STRIP_ENTRIES", 7 * width)
    for given in (Problem.of_points(*problem), Problem.of_costs(reference_weights, weights, costs)):
        potentials = solve(given, regularization, tolerance=1e-11, max_iterations=10_000)
        np.testing.assert_allclose(potentials.plan(slice(None), costs), expected, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("n_points", [30, 3000])
def test_the_error_of_an_embedding_does_not_grow_with_the_graph(n_points):
    rng = np.random.default_rng(2)
    reference, points = rng.standard_normal((20, 3)), rng.standard_normal((n_points, 3)) + 0.5
    weights = np.full(n_points, 1.0 / n_points)
    given = Problem.of_points(reference, np.full(20, 1 / 20), points, weights)
    costs = cdist(reference, points, "sqeuclidean")
    absolute = 0.05 * costs.max()

    def averages(tolerance):
        found = solve(given, absolute, tolerance=tolerance, max_iterations=100_000)
        plan = found.plan(slice(0, n_points), costs)
        return plan @ points, abs(plan.sum(axis=0) - weights).sum()

    (found, error), (converged, _) = averages(transport.SINKHORN_TOLERANCE), averages(1e-13)
    assert error <= 1.01 * transport.SINKHORN_TOLERANCE
    # Not far above the error that the marginals are allowed, whatever the number of points.
    assert abs(20 * (found - converged)).max() < 2e-6


def test_costs_far_beyond_the_regularisation_leave_finite_potentials(problem):
    potentials = solve(Problem.of_points(*problem), 1e-4, tolerance=1e-9, max_iterations=50)
    assert np.isfinite(potentials.reference).all()
    assert np.isfinite(potentials.points).all()


def test_points_without_weight_get_no_mass():
    weights = np.array([0.5, 0.0, 0.5])
    costs = np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0]])
    potentials = solve(Problem.of_costs(np.full(2, 0.5), weights, costs), 0.5, tolerance=1e-12, max_iterations=10_000)
    plan = potentials.plan(slice(None), costs)
    np.testing.assert_allclose(plan.sum(axis=0), weights, atol=1e-11)
    np.testing.assert_allclose(plan.sum(axis=1), 0.5, atol=1e-11)


@pytest.fixture
def graphs():
    """A reference of 20 points, and canonical graphs of 30, 400 and 25 points."""
    rng = np.random.default_rng(1)
    sizes = (30, 400, 25)
    points = rng.standard_normal((sum(sizes), 3))
    weights = np.concatenate([np.full(size, 1 / size) for size in sizes])
    return WeightedPoints(points, weights, np.cumsum([0, *sizes])), rng.standard_normal((20, 3))


@pytest.mark.parametrize("solver", ["sinkhorn", "auto"])
def test_a_large_graph_is_embedded_in_strips_as_it_is_at_once(monkeypatch, graphs, solver):
    points, reference = graphs
    at_once = embed_points(points, reference, solver=solver, auto_size=1000)
    monkeypatch.setattr(transport, "COST_ENTRIES", 2000)
    monkeypatch.setattr(sinkhorn, "STRIP_ENTRIES", 1234)
    in_strips = embed_points(points, reference, solver=solver, auto_size=1000)
    assert (
        in_strips.entropic.tolist() == at_once.entropic.tolist() == [solver == "sinkhorn", True, solver == "sinkhorn"]
    )
    assert in_strips.failures == {}
    np.testing.assert_allclose(in_strips.phi, at_once.phi, atol=1e-9)
    np.testing.assert_allclose(in_strips.transport_cost, at_once.transport_cost, rtol=1e-9)
    np.testing.assert_allclose(in_strips.regularization, at_once.regularization, rtol=1e-12)


def test_neither_costs_nor_plan_of_a_large_graph_are_ever_whole(monkeypatch):
    rng = np.random.default_rng(2)
    points = WeightedPoints(rng.standard_normal((20_000, 4)), np.full(20_000, 1 / 20_000), np.array([0, 20_000]))
    reference = rng.standard_normal((30, 4))
    monkeypatch.setattr(sinkhorn, "STRIP_ENTRIES", 30_000)
    tracemalloc.start()
    result = embed_points(points, reference, solver="auto", auto_size=100_000, regularization=0.2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.entropic.all()
    assert peak < 20_000 * 30 * 8 / 2


def test_a_large_graph_whose_iteration_does_not_end_is_solved_exactly_or_rejected(monkeypatch, graphs):
    points, reference = graphs
    exact = embed_points(points, reference)
    monkeypatch.setattr(transport, "COST_ENTRIES", 2000)
    monkeypatch.setattr(transport, "SINKHORN_ITERATIONS", 1)
    result = embed_points(points, reference, solver="sinkhorn", auto_size=8000)
    assert not result.entropic.any()
    np.testing.assert_array_equal(result.phi, exact.phi)
    for solver, auto_size in (("sinkhorn", 7999), ("auto", 7999), ("auto", 1000)):
        result = embed_points(points, reference, solver=solver, auto_size=auto_size)
        assert list(result.failures) == [1]
        assert result.failures[1].startswith("sinkhorn solver: marginals of the plan are off by")
        assert "more pairs of points than transport.auto_size" in result.failures[1]
        np.testing.assert_array_equal(np.isnan(result.phi).all(axis=1), [False, True, False])
        np.testing.assert_array_equal(result.phi[[0, 2]], exact.phi[[0, 2]])


@pytest.mark.parametrize("solver", ["sinkhorn", "auto"])
@pytest.mark.parametrize("auto_size", [200_000, 320_000])
def test_an_exact_plan_in_place_of_an_entropic_one_is_no_larger_than_memory_was_reckoned_for(
    monkeypatch, solver, auto_size
):
    rng = np.random.default_rng(3)
    points = WeightedPoints(rng.standard_normal((8000, 2)), np.full(8000, 1 / 8000), np.array([0, 8000]))
    tried = []

    def give_up(reference_weights, weights, costs, *_):
        tried.append(costs.size)
        return costs, 0.0, reference_weights, weights, 0

    monkeypatch.setattr(transport, "SINKHORN_ITERATIONS", 1)
    monkeypatch.setattr(network_simplex, "network_simplex", lambda: give_up)
    result = embed_points(points, rng.standard_normal((40, 2)), solver=solver, auto_size=auto_size)
    assert list(result.failures) == [0]
    assert set(tried) == ({320_000} if auto_size == 320_000 else set())
    terms = embed_terms(
        Extent(1, 8000, 0, 8000), Features(GraphSchema(), 0, "none"), 2, 40, solver=solver, auto_size=auto_size
    )
    assert terms["the costs and the plan of the largest graph"] == EXACT_PAIR_BYTES * auto_size


def test_a_large_graph_with_points_that_are_not_finite_fails_alone(monkeypatch, graphs):
    points, reference = graphs
    points.points[100, 0] = np.nan
    monkeypatch.setattr(transport, "COST_ENTRIES", 2000)
    result = embed_points(points, reference, solver="auto", auto_size=1000)
    assert result.failures == {1: "the transport costs are not finite"}
