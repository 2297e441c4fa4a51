import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from wegl_dask import network_simplex, transport
from wegl_dask.canonical import WeightedPoints, canonical_points, canonical_reference
from wegl_dask.transport import PlanError, embed_points, exact_plan, sinkhorn_plan

REAL = ("mutag", "ptc_mr", "enzymes", "molhiv_500")


def uniform(n):
    return np.full(n, 1 / n)


def weighted(*graphs):
    """Put point sets of equal weights together, as they are."""
    arrays = [np.array(graph, dtype=float) for graph in graphs]
    return WeightedPoints(
        np.concatenate(arrays),
        np.concatenate([uniform(len(array)) for array in arrays]),
        np.array([0, *itertools.accumulate(map(len, arrays))]),
    )


def graphs_of(case):
    """Canonical points and weights of each graph."""
    points, weights, offsets = case.canonical.points, case.canonical.weights, case.canonical.offsets
    for start, stop in itertools.pairwise(offsets):
        yield points[start:stop], weights[start:stop]


# Values


def test_an_embedding_worked_out_by_hand():
    # Half the mass of each of 0 and 1 goes to thirds at 0, 2 and 4: 0 -> 0 (1/3) and 2 (1/6), 1 -> 2 (1/6) and 4 (1/3).
    reference = np.array([[0.0], [1.0]])
    result = embed_points(weighted([[0.0], [2.0], [4.0]]), reference)
    np.testing.assert_allclose(result.phi, [[(2 / 3) / math.sqrt(2), (10 / 3 - 1) / math.sqrt(2)]], rtol=1e-14)
    np.testing.assert_allclose(result.transport_cost, [4 / 6 + 1 / 6 + 9 / 3], rtol=1e-14)
    assert result.entropic.tolist() == [False]
    assert np.isnan(result.regularization).all()
    assert result.failures == {}


def test_embeddings_list_the_displacement_of_one_reference_point_after_the_other():
    reference = np.array([[0.0, 0.0], [10.0, 0.0], [20.0, 0.0]])
    moved = reference + np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    result = embed_points(weighted(moved), reference)
    np.testing.assert_allclose(result.phi, [np.array([1, 2, 3, 4, 5, 6]) / math.sqrt(3)], rtol=1e-14)


def test_weights_count_as_that_many_equal_points():
    reference = np.array([[0.0], [1.0], [5.0]])
    repeated = weighted([[0.5], [0.5], [0.5], [3.0]])
    merged = WeightedPoints(np.array([[0.5], [3.0]]), np.array([0.75, 0.25]), np.array([0, 2]))
    np.testing.assert_allclose(
        embed_points(merged, reference).phi, embed_points(repeated, reference).phi, rtol=1e-13, atol=1e-15
    )


@pytest.mark.parametrize("name", REAL)
def test_transport_costs_are_those_of_emd2(embedded, name):
    import ot

    case = embedded(name)
    a = uniform(len(case.reference))
    for graph, (points, weights) in enumerate(graphs_of(case)):
        expected = ot.emd2(a, weights, ot.dist(case.reference, points))
        assert case.result.transport_cost[graph] == pytest.approx(expected, rel=1e-9)
        # The points as they were before they were rounded: the grid costs less than 1e-8 of the cost.
        raw = case.points[case.offsets[graph] : case.offsets[graph + 1]]
        unrounded = ot.emd2(a, uniform(len(raw)), ot.dist(case.reference, raw))
        assert case.result.transport_cost[graph] == pytest.approx(unrounded, rel=1e-8)


@pytest.mark.parametrize("name", REAL)
def test_embeddings_are_those_of_the_plans_of_emd(embedded, name):
    import ot

    case = embedded(name)
    n, d = case.reference.shape
    same = np.zeros(case.batch.n_graphs, dtype=bool)
    assert case.result.failures == {}
    assert not case.result.entropic.any()
    for graph, (points, weights) in enumerate(graphs_of(case)):
        costs = ot.dist(case.reference, points)
        plan = ot.emd(uniform(n), weights, costs)
        expected = ((n * plan @ points) - case.reference) / math.sqrt(n)
        found = case.result.phi[graph].reshape(n, d)
        same[graph] = np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
        # Where the plan is another one it is as good: only then is it not determined by the problem.
        assert case.result.transport_cost[graph] == pytest.approx((plan * costs).sum(), rel=1e-12)
    # Sparse one-hot labels without principal components make ties, which POT breaks by the last digit of the weights, some
    # versions of it otherwise than others.
    assert same.mean() >= {"mutag": 0.99, "ptc_mr": 0.7}.get(name, 1)


def test_embeddings_are_those_of_the_plans_of_emd_where_no_column_of_the_reference_makes_ties(embedded):
    import ot

    case = embedded("ptc_mr")
    n, d = case.reference.shape
    draws = np.random.default_rng(0).standard_normal((n, d))
    reference = canonical_reference(draws, case.step)
    result = embed_points(case.canonical, reference)
    for graph, (points, weights) in enumerate(graphs_of(case)):
        plan = ot.emd(uniform(n), weights, ot.dist(reference, points))
        expected = ((n * plan @ points) - reference) / math.sqrt(n)
        np.testing.assert_allclose(result.phi[graph].reshape(n, d), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", REAL)
def test_plans_of_real_graphs_are_optimal_by_their_duals(embedded, name):
    case = embedded(name)
    a = uniform(len(case.reference))
    for graph, (points, weights) in enumerate(graphs_of(case)):
        costs = cdist(case.reference, points, "sqeuclidean")
        plan, reference_dual, dual = exact_plan(a, weights, costs)
        scale = costs.max()
        assert plan.min() >= 0
        np.testing.assert_allclose(plan.sum(axis=1), a, atol=1e-12)
        np.testing.assert_allclose(plan.sum(axis=0), weights, atol=1e-12)
        slack = costs - reference_dual[:, None] - dual
        assert slack.min() >= -1e-12 * scale
        assert np.abs(slack[plan > 0]).max() <= 1e-12 * scale
        assert a @ reference_dual + weights @ dual == pytest.approx(case.result.transport_cost[graph], rel=1e-10)


@pytest.mark.parametrize("exponent", [-300, -60, -18, -14, -12, -8, 0, 8, 60, 290])
def test_plans_are_optimal_at_any_scale_of_the_costs(exponent):
    rng = np.random.default_rng(7)
    for n in (1, 2, 9, 30):
        costs = cdist(rng.standard_normal((n, 3)), rng.standard_normal((n, 3)), "sqeuclidean")
        best = costs[linear_sum_assignment(costs)].sum() / n
        scale = 10.0**exponent
        plan, reference_dual, dual = exact_plan(uniform(n), uniform(n), costs * scale)
        assert (plan * costs).sum() == pytest.approx(best, rel=1e-12)
        assert (reference_dual.mean() + dual.mean()) / scale == pytest.approx(best, rel=1e-10)


@settings(max_examples=100)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**32 - 1), st.booleans())
def test_small_problems_are_solved_to_the_optimum(n, m, d, seed, ties):
    """The optimum is found by assignment: every point is cut into pieces of mass 1 / (n m)."""
    rng = np.random.default_rng(seed)
    draw = (lambda size: rng.integers(0, 3, size).astype(float)) if ties else rng.standard_normal
    reference, points = canonical_reference(draw((n, d)), 2.0**-28), draw((m, d))
    n = len(reference)
    pieces = cdist(np.repeat(reference, m, axis=0), np.repeat(points, n, axis=0), "sqeuclidean")
    best = pieces[linear_sum_assignment(pieces)].sum() / (n * m)
    result = embed_points(canonical_points(points, np.array([0, m]), 2.0**-28), reference)
    np.testing.assert_allclose(result.transport_cost, [best], rtol=1e-7, atol=1e-7)
    assert (result.phi**2).sum() <= result.transport_cost[0] + 1e-12


@pytest.mark.parametrize("entries", [1, 300, 100_000])
def test_embeddings_do_not_depend_on_how_many_graphs_share_a_cost_matrix(embedded, monkeypatch, entries):
    case = embedded("ptc_mr")
    monkeypatch.setattr(transport, "COST_ENTRIES", entries)
    result = embed_points(case.canonical, case.reference)
    np.testing.assert_array_equal(result.phi, case.result.phi)
    np.testing.assert_array_equal(result.transport_cost, case.result.transport_cost)


# Entropic plans


def test_entropic_plans_have_the_form_and_the_marginals_that_make_them_optimal(embedded):
    """The optimum is the one coupling whose log, plus the cost over the regularisation, is a sum of rows and columns."""
    case = embedded("mutag")
    a = uniform(len(case.reference))
    for points, weights in itertools.islice(graphs_of(case), 0, None, 20):
        costs = cdist(case.reference, points, "sqeuclidean")
        regularization = 0.05 * costs.max()
        plan = sinkhorn_plan(a, weights, costs, regularization)
        np.testing.assert_allclose(plan.sum(axis=1), a, atol=1e-7)
        np.testing.assert_allclose(plan.sum(axis=0), weights, atol=1e-7)
        potential = np.log(plan) + costs / regularization
        residual = potential - potential[:1] - potential[:, :1] + potential[0, 0]
        np.testing.assert_allclose(residual, 0, atol=1e-9)


def test_entropic_rows_say_so_and_give_their_regularisation_in_units_of_the_cost(embedded):
    case = embedded("mutag")
    some = 25
    part = WeightedPoints(
        case.canonical.points[: case.canonical.offsets[some]],
        case.canonical.weights[: case.canonical.offsets[some]],
        case.canonical.offsets[: some + 1],
    )
    result = embed_points(part, case.reference, solver="sinkhorn", regularization=0.1)
    largest = [cdist(case.reference, points, "sqeuclidean").max() for points, _ in graphs_of(case)][:some]
    assert result.entropic.all()
    assert result.failures == {}
    np.testing.assert_allclose(result.regularization, 0.1 * np.array(largest), rtol=1e-12)
    exact = case.result.transport_cost[:some]
    assert (result.transport_cost >= exact * (1 - 1e-6)).all()
    # The entropy of a plan is at most log of the number of its entries: that bounds what it may cost more.
    entropy = np.log([len(case.reference) * len(points) for points, _ in graphs_of(case)][:some])
    assert (result.transport_cost <= exact + result.regularization * entropy + 1e-6).all()


def test_the_entropic_embedding_goes_to_the_exact_one_with_the_regularisation():
    rng = np.random.default_rng(3)
    reference = canonical_reference(rng.standard_normal((4, 2)), 2.0**-28)
    points = weighted(rng.standard_normal((7, 2)))
    exact = embed_points(points, reference).phi
    errors = []
    for regularization in (0.3, 0.1, 0.03, 0.01, 0.003):
        result = embed_points(points, reference, solver="sinkhorn", regularization=regularization)
        assert result.entropic.all()
        errors.append(np.linalg.norm(result.phi - exact))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1 * errors[0]


def test_auto_takes_the_entropic_solver_above_the_given_number_of_pairs():
    rng = np.random.default_rng(1)
    points = weighted(*(rng.standard_normal((size, 2)) for size in (4, 5, 6)))
    reference = rng.standard_normal((10, 2))
    result = embed_points(points, reference, solver="auto", auto_size=50)
    assert result.entropic.tolist() == [False, False, True]


def test_costs_of_zero_throughout_are_solved_by_either_solver():
    for solver in ("exact", "sinkhorn"):
        result = embed_points(weighted([[1.0, 2.0]]), np.array([[1.0, 2.0]]), solver=solver)
        np.testing.assert_allclose(result.phi, 0, atol=1e-12)
        assert result.transport_cost.tolist() == [0]
        assert result.failures == {}


# The solver is not trusted


@pytest.fixture
def three_graphs():
    rng = np.random.default_rng(11)
    return weighted(*(rng.standard_normal((size, 2)) for size in (5, 6, 7))), rng.standard_normal((4, 2))


def spoil(monkeypatch, change, *, n_points=6):
    """Let the linear program's solver return something else for problems of so many points."""
    solve = network_simplex.network_simplex()

    def spoiled(reference_weights, weights, costs, *options):
        result = solve(reference_weights, weights, costs, *options)
        return change(*result) if len(weights) == n_points else result

    monkeypatch.setattr(network_simplex, "network_simplex", lambda: spoiled)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_points_that_give_no_finite_cost_fail_alone(three_graphs, value, solver):
    points, reference = three_graphs
    undisturbed = embed_points(points, reference, solver=solver)
    spoiled = points.points.copy()
    spoiled[7, 1] = value
    result = embed_points(WeightedPoints(spoiled, points.weights, points.offsets), reference, solver=solver)
    assert result.failures == {1: "the transport costs are not finite"}
    assert np.isnan(result.phi[1]).all()
    assert np.isnan(result.transport_cost[1])
    np.testing.assert_array_equal(result.phi[[0, 2]], undisturbed.phi[[0, 2]])


@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_a_graph_without_points_fails_alone(three_graphs, solver):
    points, reference = three_graphs
    undisturbed = embed_points(points, reference, solver=solver)
    offsets = np.insert(points.offsets, 2, points.offsets[1])
    result = embed_points(WeightedPoints(points.points, points.weights, offsets), reference, solver=solver)
    assert result.failures == {1: "the graph has no points"}
    np.testing.assert_array_equal(result.phi[[0, 2, 3]], undisturbed.phi)


WRONG_RESULTS = {
    "too little mass": lambda plan, *rest: (0.999 * plan, *rest),
    "all mass at one point of the graph": lambda plan, *rest: (np.outer(plan.sum(axis=1), np.eye(6)[0]), *rest),
    "all mass from one point of the reference": lambda plan, *rest: (np.outer(np.eye(4)[0], plan.sum(axis=0)), *rest),
    "NaN": lambda plan, *rest: (np.where(plan > 0.1, np.nan, plan), *rest),
    "all zero": lambda plan, *rest: (0 * plan, *rest),
    "negative entries": lambda plan, *rest: (plan + np.pad([[1, -1], [-1, 1]], ((0, 2), (0, 4))), *rest),
    "infeasible": lambda *result: (*result[:-1], 0),
    "unbounded": lambda *result: (*result[:-1], 2),
    "not finished": lambda *result: (*result[:-1], 3),
    "unknown code": lambda *result: (*result[:-1], 17),
}


@pytest.mark.parametrize("change", WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_wrong_exact_plan_is_replaced_by_an_entropic_one_and_the_row_says_so(three_graphs, monkeypatch, change):
    points, reference = three_graphs
    exact = embed_points(points, reference)
    entropic = embed_points(points, reference, solver="sinkhorn", regularization=0.03)
    spoil(monkeypatch, change)
    result = embed_points(points, reference, regularization=0.03)
    assert result.entropic.tolist() == [False, True, False]
    assert result.failures == {}
    np.testing.assert_array_equal(result.phi, [exact.phi[0], entropic.phi[1], exact.phi[2]])
    np.testing.assert_array_equal(result.regularization, [np.nan, entropic.regularization[1], np.nan])


NOT_OPTIMAL = {
    "another plan": lambda plan, *rest: (np.outer(plan.sum(axis=1), plan.sum(axis=0)), *rest),
    "a dual that exceeds the costs": lambda plan, cost, u, v, code: (plan, cost, u + 1e-3 * np.eye(len(u))[0], v, code),
    "a dual that is not tight": lambda plan, cost, u, v, code: (plan, cost, u - 4e-3 * np.eye(len(u))[0], v, code),
    "a dual of NaN": lambda plan, cost, u, v, code: (plan, cost, u * np.nan, v, code),
}
"""With the right marginals, and said to be optimal."""


@pytest.mark.parametrize("change", NOT_OPTIMAL.values(), ids=NOT_OPTIMAL)
def test_an_exact_plan_that_its_dual_does_not_prove_optimal_is_replaced(three_graphs, monkeypatch, change):
    points, reference = three_graphs
    exact = embed_points(points, reference)
    entropic = embed_points(points, reference, solver="sinkhorn")
    spoil(monkeypatch, change)
    result = embed_points(points, reference, certified_every=1)
    assert result.entropic.tolist() == [False, True, False]
    assert result.failures == {}
    np.testing.assert_array_equal(result.phi, [exact.phi[0], entropic.phi[1], exact.phi[2]])


def test_of_every_so_many_plans_one_is_proven_optimal(three_graphs, monkeypatch):
    points, reference = three_graphs
    for size in (5, 6, 7):
        spoil(monkeypatch, NOT_OPTIMAL["another plan"], n_points=size)
    assert embed_points(points, reference, certified_every=2).entropic.tolist() == [True, False, True]
    assert embed_points(points, reference).entropic.tolist() == [True, False, False]


def test_a_plan_that_is_not_optimal_is_refused_with_the_number(three_graphs, monkeypatch):
    points, reference = three_graphs
    spoil(monkeypatch, NOT_OPTIMAL["a dual that is not tight"], n_points=5)
    costs = cdist(reference, points.points[:5], "sqeuclidean")
    with pytest.raises(
        PlanError, match=r"the plan may cost 1\.0e-03 of the largest cost more than the optimum; 1e-09 is"
    ):
        exact_plan(uniform(4), uniform(5), costs * 2.0 ** -math.frexp(costs.max())[1])


@settings(max_examples=100)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_the_dual_keeps_to_the_costs_also_at_points_without_weight(reference_counts, counts):
    assume(sum(reference_counts) and sum(counts))
    a, b = np.array(reference_counts) / sum(reference_counts), np.array(counts) / sum(counts)
    rng = np.random.default_rng(0)
    costs = cdist(rng.standard_normal((len(a), 2)), rng.standard_normal((len(b), 2)), "sqeuclidean")
    plan, reference_dual, dual = exact_plan(a, b, costs)
    assert (costs - reference_dual[:, None] - dual).min() >= -1e-12
    assert a @ reference_dual + b @ dual == pytest.approx((plan * costs).sum(), abs=1e-12)


def test_an_entropic_plan_that_does_not_converge_is_replaced_by_an_exact_one(three_graphs, monkeypatch):
    points, reference = three_graphs
    exact = embed_points(points, reference)
    monkeypatch.setattr(transport, "SINKHORN_ITERATIONS", 1)
    with pytest.raises(PlanError, match="sinkhorn solver: marginals of the plan are off by"):
        sinkhorn_plan(uniform(4), uniform(5), cdist(reference, points.points[:5], "sqeuclidean"), 0.01)
    result = embed_points(points, reference, solver="sinkhorn")
    assert not result.entropic.any()
    assert np.isnan(result.regularization).all()
    assert result.failures == {}
    np.testing.assert_array_equal(result.phi, exact.phi)


def test_the_iteration_of_a_large_graph_that_does_not_converge_is_not_repeated(three_graphs, monkeypatch):
    points, reference = three_graphs
    exact = embed_points(points, reference)
    monkeypatch.setattr(transport, "COST_ENTRIES", 1)  # each is large
    monkeypatch.setattr(transport, "SINKHORN_ITERATIONS", 1)
    solved = []
    original = transport.sinkhorn.solve
    monkeypatch.setattr(transport.sinkhorn, "solve", lambda *a, **k: solved.append(1) or original(*a, **k))
    result = embed_points(points, reference, solver="sinkhorn")
    assert len(solved) == 3
    assert not result.entropic.any()
    np.testing.assert_allclose(result.phi, exact.phi, atol=1e-12)


def test_a_graph_that_neither_solver_solves_fails_alone_with_both_reasons(three_graphs, monkeypatch):
    points, reference = three_graphs
    exact = embed_points(points, reference)
    spoil(monkeypatch, WRONG_RESULTS["not finished"])
    monkeypatch.setattr(transport, "SINKHORN_ITERATIONS", 1)
    result = embed_points(points, reference)
    assert list(result.failures) == [1]
    assert result.failures[1].startswith(
        "exact solver: not finished after 101000 iterations; sinkhorn solver: marginals"
    )
    np.testing.assert_array_equal(np.isnan(result.phi).all(axis=1), [False, True, False])
    np.testing.assert_array_equal(np.isnan(result.transport_cost), [False, True, False])
    np.testing.assert_array_equal(result.phi[[0, 2]], exact.phi[[0, 2]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_both_solvers_refuse_costs_that_are_not_finite(bad):
    costs = np.array([[0.0, 1.0], [bad, 0.0]])
    with pytest.raises(PlanError, match="not finite"):
        exact_plan(uniform(2), uniform(2), costs)
    with pytest.raises(PlanError, match="not finite"):
        sinkhorn_plan(uniform(2), uniform(2), costs, 0.1)


# What is relied on of POT


def test_pots_compiled_solver_is_called_as_it_expects():
    """`emd_c` is not part of POT's documented interface: this fails when it changes."""
    from ot.lp.emd_wrap import emd_c

    a, b = np.array([0.5, 0.5]), np.array([0.25, 0.5, 0.25])
    costs = np.array([[0.0, 1.0, 9.0], [4.0, 1.0, 0.5]])
    given_costs = costs.copy()
    plan, cost, reference_dual, dual, code = emd_c(a, b, costs, 1000, 1)
    assert code == 1
    assert plan.dtype == np.float64
    np.testing.assert_allclose(plan, [[0.25, 0.25, 0], [0, 0.25, 0.25]], atol=1e-15)
    assert cost == pytest.approx(0.625)
    assert (reference_dual.shape, dual.shape) == ((2,), (3,))
    slack = costs - reference_dual[:, None] - dual
    assert slack.min() > -1e-12
    np.testing.assert_allclose(slack[plan > 0], 0, atol=1e-12)
    assert a @ reference_dual + b @ dual == pytest.approx(0.625)
    np.testing.assert_array_equal(costs, given_costs)


def test_pots_compiled_solver_says_by_its_code_that_it_stopped_early():
    from ot.lp.emd_wrap import emd_c

    rng = np.random.default_rng(0)
    costs = cdist(rng.standard_normal((40, 2)), rng.standard_normal((40, 2)), "sqeuclidean")
    *_, code = emd_c(uniform(40), uniform(40), costs, 3, 1)
    assert code == 3


def test_an_exact_plan_that_is_not_finished_names_the_limit(monkeypatch):
    monkeypatch.setattr(
        network_simplex, "network_simplex", lambda: lambda *_: (np.eye(2) / 2, 0, uniform(2), uniform(2), 3)
    )
    with pytest.raises(PlanError, match="exact solver: not finished after 100400 iterations"):
        exact_plan(uniform(2), uniform(2), np.ones((2, 2)))
