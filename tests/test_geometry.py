"""The geometry against closed forms, against a linear program written out, and on real graphs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist

from wegl_dask import geometry
from wegl_dask.canonical import WeightedPoints
from wegl_dask.geometry import (
    embedding_distance,
    exp_map,
    generalized_geodesic_distance,
    geodesic,
    inverse,
    log_map,
    mean,
    reference_bound,
    residual,
    wasserstein_bound,
    wasserstein_distance,
)
from wegl_dask.transport import PlanError, embed_points, exact_plan


def uniform(n):
    return np.full(n, 1 / n)


def embed(clouds, reference):
    """Embed point clouds of equal weights, without the rounding that a job does."""
    offsets = np.array([0, *itertools.accumulate(len(points) for points in clouds)])
    weights = np.concatenate([uniform(len(points)) for points in clouds])
    return embed_points(WeightedPoints(np.concatenate(clouds), weights, offsets), reference)


def assignment_distance(one, two):
    """W_2 of two clouds of equally many points, by the Hungarian algorithm."""
    costs = cdist(one, two, "sqeuclidean")
    return np.sqrt(costs[linear_sum_assignment(costs)].mean())


def shift_scale_family(reference, n, rng):
    scales, shifts = rng.uniform(0.1, 3, n), rng.normal(0, 5, (n, reference.shape[1]))
    return scales, shifts, [scale * reference + shift for scale, shift in zip(scales, shifts, strict=True)]


def symmetric_positive(rng, axes, low, high):
    return axes @ np.diag(rng.uniform(low, high, len(axes))) @ axes.T


@pytest.mark.parametrize("dimension", [1, 2, 7])
def test_shifts_and_scalings_of_the_reference_are_embedded_isometrically(dimension):
    rng = np.random.default_rng(dimension)
    reference = rng.normal(size=(40, dimension))
    scales, shifts, clouds = shift_scale_family(reference, 12, rng)
    phi = embed([rng.permutation(points) for points in clouds], reference).phi
    centre, spread = reference.mean(axis=0), reference.var(axis=0).sum()
    for i, j in itertools.combinations(range(12), 2):
        means = (scales[i] - scales[j]) * centre + shifts[i] - shifts[j]
        closed_form = np.sqrt(means @ means + (scales[i] - scales[j]) ** 2 * spread)
        assert embedding_distance(phi[i], phi[j]) == pytest.approx(closed_form, abs=1e-9)
        assert assignment_distance(clouds[i], clouds[j]) == pytest.approx(closed_form, abs=1e-9)


def test_gaussians_are_pushed_by_their_monge_maps():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(60, 3))
    # The Monge map from N(0, I) to N(m, S^2) is x -> S x + m, and maps with common axes lie on one flat piece.
    axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    maps = [(symmetric_positive(rng, axes, 0.2, 4), rng.normal(size=3)) for _ in range(5)]
    clouds = [rng.permutation(reference @ matrix + shift) for matrix, shift in maps]
    found = embed(clouds, reference)
    assert found.transport_cost == pytest.approx([assignment_distance(c, reference) ** 2 for c in clouds], rel=1e-9)
    for phi, (matrix, shift), cloud in zip(found.phi, maps, clouds, strict=True):
        np.testing.assert_allclose(inverse(phi, reference), reference @ matrix + shift, atol=1e-9)
        np.testing.assert_allclose(log_map(reference, cloud), reference @ matrix + shift - reference, atol=1e-9)
    for i, j in itertools.combinations(range(5), 2):
        assert embedding_distance(found.phi[i], found.phi[j]) == pytest.approx(
            assignment_distance(clouds[i], clouds[j]), abs=1e-9
        )


def test_the_mean_of_shifted_and_scaled_copies_is_the_copy_of_mean_shift_and_scale():
    rng = np.random.default_rng(1)
    reference = rng.normal(size=(30, 2))
    scales, shifts, clouds = shift_scale_family(reference, 8, rng)
    phi = embed(clouds, reference).phi
    np.testing.assert_allclose(mean(phi, reference), scales.mean() * reference + shifts.mean(axis=0), atol=1e-9)
    weights = rng.uniform(0, 1, 8)
    expected = (weights @ scales) / weights.sum() * reference + weights @ shifts / weights.sum()
    np.testing.assert_allclose(mean(phi, reference, weights), expected, atol=1e-9)
    np.testing.assert_allclose(mean(phi[:1].astype(np.float32), reference), clouds[0], atol=1e-5)


def test_geodesics_of_the_family_are_the_wasserstein_geodesics():
    rng = np.random.default_rng(2)
    reference = rng.normal(size=(25, 2))
    scales, shifts, clouds = shift_scale_family(reference, 2, rng)
    phi = embed(clouds, reference).phi
    t = np.linspace(0, 1, 6)
    between = geodesic(phi[0], phi[1], t, reference)
    for part, points in zip(t, between, strict=True):
        scale, shift = (1 - part) * scales[0] + part * scales[1], (1 - part) * shifts[0] + part * shifts[1]
        np.testing.assert_allclose(points, scale * reference + shift, atol=1e-9)
        # Constant speed in W_2 itself, measured from the first end.
        whole = assignment_distance(clouds[0], clouds[1])
        assert assignment_distance(clouds[0], points) == pytest.approx(part * whole, abs=1e-9)
    from_reference = geodesic(np.zeros(50), phi[1], t, reference)
    np.testing.assert_allclose(from_reference[0], reference)
    np.testing.assert_allclose(from_reference[-1], clouds[1], atol=1e-9)


clouds_of_any_size = st.integers(0, 2**32 - 1).map(
    lambda seed: [
        np.random.default_rng([seed, i]).normal(i, 1 + i, (n, 2))
        for i, n in enumerate(np.random.default_rng(seed).integers(1, 9, 3))
    ]
)


@settings(max_examples=25)
@given(clouds_of_any_size)
def test_the_inverse_is_the_barycentric_projection_of_the_plan(clouds):
    reference, *others = clouds
    found = embed(others, reference)
    for phi, points in zip(found.phi, others, strict=True):
        plan = exact_plan(uniform(len(reference)), uniform(len(points)), cdist(reference, points, "sqeuclidean"))[0]
        projected = plan @ points / plan.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(inverse(phi, reference), projected, atol=1e-9)
        np.testing.assert_allclose(exp_map(reference, log_map(reference, points)), projected, atol=1e-9)


@settings(max_examples=25)
@given(clouds_of_any_size, st.floats(0, 1), st.floats(0, 1))
def test_points_on_a_geodesic_are_embedded_where_they_came_from_at_constant_speed(clouds, s, t):
    reference, *others = clouds
    start, end = embed(others, reference).phi
    on_the_way = geodesic(start, end, np.array([s, t]), reference)
    phi = embed(list(on_the_way), reference).phi
    np.testing.assert_allclose(phi[0], (1 - s) * start + s * end, atol=1e-8)
    assert embedding_distance(phi[0], phi[1]) == pytest.approx(abs(s - t) * embedding_distance(start, end), abs=1e-8)


def test_the_ends_of_a_geodesic_are_the_inverses():
    reference = np.array([[0.0], [1.0], [5.0]])
    start, end = embed([np.array([[3.0], [4.0]]), np.array([[-1.0]])], reference).phi
    for t, phi in ((0.0, start), (1.0, end)):
        np.testing.assert_allclose(geodesic(start, end, t, reference), inverse(phi, reference), atol=1e-12)
    assert geodesic(start, end, np.zeros((4, 2)), reference).shape == (4, 2, 3, 1)


def test_several_ways_are_followed_at_every_t():
    reference = np.array([[0.0], [1.0], [5.0]])
    rng = np.random.default_rng(0)
    starts, ends = rng.normal(size=(2, 4, 3))
    # As many as there are ways, and fewer.
    for parts in (np.linspace(0, 1, 4), np.array([0.25, 0.5])):
        expected = [
            [
                reference + np.sqrt(3) * ((1 - t) * one + t * other)[:, None]
                for one, other in zip(starts, ends, strict=True)
            ]
            for t in parts
        ]
        np.testing.assert_allclose(geodesic(starts, ends, parts, reference), expected, atol=1e-12)
    halves = geodesic(starts, ends[0], 0.5, reference)
    np.testing.assert_allclose(halves, [geodesic(each, ends[0], 0.5, reference) for each in starts], atol=1e-12)


def test_wrong_shapes_are_named():
    reference = np.zeros((3, 2))
    with pytest.raises(ValueError, match="embeddings have 5 entries; 3 reference points of 2 coordinates need 6"):
        inverse(np.zeros((4, 5)), reference)
    with pytest.raises(ValueError, match="embeddings have no entries; 3 reference points of 2 coordinates need 6"):
        inverse(np.float64(1), reference)
    with pytest.raises(ValueError, match=r"the reference has shape \(6,\); \(N, d\) is needed"):
        inverse(np.zeros(6), reference.ravel())
    for phi, weights in ((np.zeros(6), None), (np.zeros((2, 2, 6)), np.ones(2)), (np.float64(1), None)):
        with pytest.raises(ValueError, match=r"the embeddings have shape .*; \(n_graphs, N \* d\) is needed"):
            mean(phi, reference, weights)
    with pytest.raises(ValueError, match="embeddings have 5 entries"):
        mean(np.zeros((4, 5)), reference)
    with pytest.raises(ValueError, match=r"the field has shape \(2, 2\); one vector for each of the points \(3, 2\)"):
        exp_map(reference, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="the plans have 2 and 3 rows"):
        generalized_geodesic_distance(np.eye(2), np.zeros((2, 1)), np.eye(3), np.zeros((3, 1)))
    with pytest.raises(PlanError, match="not finite"):
        log_map(reference, np.full((2, 2), np.nan))


def test_the_wasserstein_distance_of_points_on_a_line_is_that_of_their_quantiles():
    rng = np.random.default_rng(3)
    for n, m in ((5, 5), (4, 6), (1, 7)):
        one, two = rng.normal(size=n), rng.normal(1, 2, size=m)
        repeated = np.repeat(np.sort(one), m), np.repeat(np.sort(two), n)
        expected = np.sqrt(np.mean((repeated[0] - repeated[1]) ** 2))
        found = wasserstein_distance(one[:, None], uniform(n), two[:, None], uniform(m))
        assert found == pytest.approx(expected, rel=1e-12)


def glued_program(plan_i, points_i, plan_j, points_j):
    """d_LOT by the linear program of the paper's appendix, written out over all triples."""
    n_reference, n, m = len(plan_i), plan_i.shape[1], plan_j.shape[1]
    triples = list(itertools.product(range(n), range(m), range(n_reference)))
    costs = [((points_i[a] - points_j[b]) ** 2).sum() for a, b, _ in triples]
    rows, sums = [], []
    for plan, position in ((plan_i, 0), (plan_j, 1)):
        for ref, point in itertools.product(range(n_reference), range(plan.shape[1])):
            rows.append([float(triple[2] == ref and triple[position] == point) for triple in triples])
            sums.append(plan[ref, point])
    return np.sqrt(linprog(costs, A_eq=rows, b_eq=sums, bounds=(0, None)).fun)


def test_the_generalized_geodesic_distance_is_the_optimum_over_glued_plans():
    rng = np.random.default_rng(4)
    for _ in range(8):
        n_reference, n, m = rng.integers(1, 5, 3)
        reference, one, two = (rng.normal(size=(k, 2)) for k in (n_reference, n, m))
        plans = [
            exact_plan(uniform(n_reference), uniform(len(z)), cdist(reference, z, "sqeuclidean"))[0] for z in (one, two)
        ]
        found = generalized_geodesic_distance(plans[0], one, plans[1], two)
        assert found == pytest.approx(glued_program(plans[0], one, plans[1], two), abs=1e-7)


def test_the_generalized_geodesic_distance_to_the_reference_is_the_wasserstein_distance():
    rng = np.random.default_rng(5)
    reference, points = rng.normal(size=(6, 3)), rng.normal(2, 2, size=(9, 3))
    costs = cdist(reference, points, "sqeuclidean")
    plan = exact_plan(uniform(6), uniform(9), costs)[0]
    found = generalized_geodesic_distance(np.eye(6) / 6, reference, plan, points)
    assert found == pytest.approx(np.sqrt((plan * costs).sum()), rel=1e-9)
    assert generalized_geodesic_distance(plan, points, plan, points) == pytest.approx(0, abs=1e-7)


def own_points(canonical, graph):
    rows = slice(canonical.offsets[graph], canonical.offsets[graph + 1])
    return canonical.points[rows], canonical.weights[rows]


@pytest.mark.parametrize("name", ["mutag", "molhiv_500"])
def test_distances_of_real_graphs_are_in_the_order_that_is_certain(embedded, name):
    data = embedded(name)
    n_reference = len(data.reference)
    rng = np.random.default_rng(6)
    below = 0
    for i, j in rng.choice(data.batch.n_graphs, (150, 2)):
        (one, weights_one), (two, weights_two) = own_points(data.canonical, i), own_points(data.canonical, j)
        plan_one, plan_two = (
            exact_plan(uniform(n_reference), weights, cdist(data.reference, points, "sqeuclidean"))[0]
            for points, weights in ((one, weights_one), (two, weights_two))
        )
        exact = wasserstein_distance(one, weights_one, two, weights_two)
        glued = generalized_geodesic_distance(plan_one, one, plan_two, two)
        costs = data.result.transport_cost[[i, j]]
        distance = embedding_distance(data.result.phi[i], data.result.phi[j])
        slack = 1e-6
        assert exact <= glued + slack
        assert distance <= glued + slack
        below += distance < exact - slack
        for dtype in (np.float64, np.float32, np.float16):
            phi = data.result.phi[[i, j]].astype(dtype)
            bound = wasserstein_bound(*phi, *costs)
            assert exact <= bound
            assert glued <= bound + slack
            assert bound <= embedding_distance(*phi) + residual(phi, costs).sum() + 0.01 * np.sqrt(costs.sum())
            assert bound <= reference_bound(*costs) + 0.01 * np.sqrt(costs.sum())
        assert distance <= reference_bound(*costs) + slack
    assert below > 0  # the embedding alone is no bound


def test_bounds_hold_where_there_is_nothing_to_spare():
    rng = np.random.default_rng(7)
    reference = rng.normal(size=(30, 4))
    clouds = shift_scale_family(reference, 30, rng)[2]
    found = embed(clouds, reference)
    assert residual(found.phi, found.transport_cost) == pytest.approx(0, abs=1e-5)
    for dtype, width in ((np.float64, 1e-6), (np.float32, 1e-2), (np.float16, 0.5)):
        phi = found.phi.astype(dtype)
        for i, j in itertools.pairwise(range(30)):
            exact = assignment_distance(clouds[i], clouds[j])
            bound = wasserstein_bound(phi[i], phi[j], *found.transport_cost[[i, j]])
            assert exact <= bound <= exact + width


def test_bounds_hold_for_entropic_plans_too(embedded):
    data = embedded("mutag")
    first = own_points(data.canonical, 0)
    found = [
        embed_points(data.canonical.slice(0, 20), data.reference, solver="sinkhorn", regularization=level)
        for level in (0.01, 0.3)
    ]
    for i in range(1, 20):
        exact = wasserstein_distance(*first, *own_points(data.canonical, i))
        for result in found:
            assert result.entropic[[0, i]].all()
            bound = wasserstein_bound(result.phi[0], result.phi[i], *result.transport_cost[[0, i]])
            assert exact <= bound * (1 + 1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: geometry.embedding_distance(np.ones(6), np.ones(1)),
        lambda: geometry.wasserstein_bound(np.ones((2, 6)), np.ones((2, 1)), np.full(2, 10.0), np.full(2, 10.0)),
        lambda: geometry.geodesic(np.ones(6), np.ones(1), 0.5, np.ones((3, 2))),
        lambda: geometry.mean(np.ones((2, 6)), np.ones((3, 2)), np.zeros(2)),
        lambda: geometry.mean(np.ones((2, 6)), np.ones((3, 2)), np.array([2.0, -1.0])),
        lambda: geometry.mean(np.ones((2, 6)), np.ones((3, 2)), np.array([np.nan, 1.0])),
        lambda: geometry.wasserstein_distance(np.ones((2, 1)), np.full(2, 1.5), np.ones((2, 1)), np.full(2, 1.5)),
        lambda: geometry.wasserstein_distance(np.ones((2, 1)), np.full(3, 1 / 3), np.ones((2, 1)), np.full(2, 0.5)),
        lambda: geometry.log_map(np.ones((2, 1)), np.ones((2, 1)), np.array([1.5, -0.5])),
    ],
)
def test_shapes_and_weights_that_make_no_sense_are_refused(call):
    with pytest.raises(ValueError, match=r"of one width|weights"):
        call()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_may_be_of_low_precision(dtype):
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=(7, 2)), rng.normal(size=(300, 2))
    one, two = rng.random(7), rng.random(300)
    rounded = [(weights / weights.sum()).astype(dtype) for weights in (one, two)]
    weights = [each.astype(np.float64) / each.sum(dtype=np.float64) for each in rounded]
    expected = wasserstein_distance(first, weights[0], second, weights[1])
    assert wasserstein_distance(first, rounded[0], second, rounded[1]) == pytest.approx(expected, rel=1e-12)
    field = log_map(first, second, rounded[1])
    np.testing.assert_allclose(field, log_map(first, second, weights[1]), atol=1e-12)
    with pytest.raises(ValueError, match="add up to 1"):
        log_map(first, second, rounded[1] * dtype(2))
    with pytest.raises(ValueError, match="add up to 1"):
        log_map(first, np.zeros((2000, 2)), np.zeros(2000, dtype))
    assert wasserstein_distance([[0.0]], [1], [[3.0], [4.0]], [0.0, 1.0]) == 4.0


def test_no_points_have_no_map():
    with pytest.raises(PlanError, match="no points"):
        geometry.log_map(np.ones((2, 2)), np.ones((0, 2)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_of_very_many_vectors_of_low_precision_is_computed_in_double(dtype, weighted):
    phi = np.full((200_000, 2), 1.001, dtype)
    weights = np.linspace(1, 2, len(phi), dtype=np.float32) if weighted else None
    np.testing.assert_allclose(mean(phi, np.zeros((1, 2)), weights), [[float(phi[0, 0])] * 2], rtol=1e-12)


def test_weights_of_a_mean_may_add_up_to_more_than_their_precision_holds():
    weights = np.full(70_000, 8.0, dtype=np.float16)
    weights[::2] = 24
    phi = np.tile(np.array([[4.0], [0.0]]), (35_000, 1))
    # Three quarters of the weight are at 4.
    np.testing.assert_allclose(mean(phi, np.zeros((1, 1)), weights), [[3.0]], rtol=1e-12)


def test_no_graphs_have_no_mean():
    for weights in (None, np.empty(0)):
        with pytest.raises(ValueError, match="no graphs to take the mean of"):
            mean(np.empty((0, 6)), np.ones((3, 2)), weights)


def test_the_weights_of_a_mean_are_as_many_as_the_vectors():
    with pytest.raises(ValueError, match=r"there are 3 graphs, and the weights have the shape \(4,\)"):
        mean(np.zeros((3, 2)), np.zeros((1, 2)), np.ones(4))
