import gc

import dask.array as da
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from wegl_dask import reference
from wegl_dask.reference import (
    TooFewPointsError,
    barycenter_reference,
    import_clustering,
    kmeans_reference,
    kmeans_reference_in_memory,
    mini_batches,
    normal_reference,
    reference_from_samples,
    sample_reference,
)

STEP = 2.0**-20


@pytest.fixture
def blobs():
    """Points around five places, 200 each, in random order; and the means of each place's points."""
    rng = np.random.default_rng(1)
    places = np.array([[0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9], [9, 9, 9]])
    points = np.repeat(places, 200, axis=0) + rng.normal(scale=0.3, size=(1000, 3))
    means = points.reshape(5, 200, 3).mean(axis=1)
    return points[rng.permutation(1000)], means[np.lexsort(means.T[::-1])]


def in_chunks(points, rows):
    return da.from_array(points, chunks=(rows, points.shape[1]))


def is_canonical(points):
    on_grid = np.array_equal(np.round(points / STEP) * STEP, points)
    return on_grid and points.tolist() == sorted(points.tolist()) and len(np.unique(points, axis=0)) == len(points)


# --- k-means ---


def test_kmeans_finds_the_means_of_clusters_that_are_far_apart(blobs):
    points, means = blobs
    centres = kmeans_reference(in_chunks(points, 300), 5, epochs=3, step=STEP, seed=0)
    assert is_canonical(centres)
    np.testing.assert_allclose(centres, means, atol=0.1)


@pytest.mark.parametrize("n_points", [12, 60, 120])
def test_kmeans_with_mini_batches_is_as_good_as_on_all_points_at_once(n_points, monkeypatch):
    monkeypatch.setattr(reference, "BLOCK_ROWS", 500)
    monkeypatch.setattr(reference, "START_ROWS", 800)
    points = np.random.default_rng(2).normal(size=(8000, 4)) * [3, 2, 1, 1]
    centres = kmeans_reference(in_chunks(points, 1000), n_points, epochs=5, step=STEP, seed=0)
    inertia = ((points[:, None] - centres[None]) ** 2).sum(axis=2).min(axis=1).sum()
    full = [KMeans(n_points, n_init=1, random_state=seed).fit(points).inertia_ for seed in range(5)]
    assert inertia < 1.03 * np.median(full)


@pytest.mark.parametrize("rows", [37, 1000])
def test_kmeans_does_not_depend_on_how_the_points_come(rows, blobs, monkeypatch):
    monkeypatch.setattr(reference, "BLOCK_ROWS", 100)
    points, _ = blobs
    expected = kmeans_reference_in_memory(points, 7, epochs=2, step=STEP, seed=3)
    assert np.array_equal(kmeans_reference(in_chunks(points, rows), 7, epochs=2, step=STEP, seed=3), expected)


@pytest.mark.parametrize("with_dask", [True, False])
def test_kmeans_does_not_depend_on_the_number_of_threads(with_dask):
    points = np.random.default_rng(7).normal(size=(30_000, 8)).astype(np.float32)
    found = []
    for threads in (1, 2, 3):
        with threadpool_limits(threads):
            given = in_chunks(points, 10_000) if with_dask else points
            kmeans = kmeans_reference if with_dask else kmeans_reference_in_memory
            found.append(kmeans(given, 20, epochs=2, step=STEP, seed=0))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("with_dask", [True, False])
@pytest.mark.parametrize("offset", [1e4, -3e5])
def test_kmeans_of_points_far_from_the_origin_is_as_good_as_near_it(offset, with_dask):
    points = np.random.default_rng(8).normal(size=(20_000, 4))

    def mean_squared_distance(shift):
        given = (points + shift).astype(np.float32)
        kmeans = kmeans_reference if with_dask else kmeans_reference_in_memory
        found = kmeans(in_chunks(given, 5_000) if with_dask else given, 30, epochs=3, step=STEP, seed=0)
        return cdist(points + shift, found, "sqeuclidean").min(axis=1).mean()

    # Single precision keeps 0.03 of an offset of 3e5.
    assert mean_squared_distance(offset) < 1.02 * mean_squared_distance(0.0)


@pytest.mark.parametrize("with_dask", [True, False])
@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("unit", [2.0**-100, 2.0**-70, 2.0**-7, 2.0**62, 2.0**100])
def test_kmeans_does_not_depend_on_the_unit_of_the_points(unit, offset, with_dask):
    """Single precision holds the points, and not the squares of their lengths."""
    points = (np.random.default_rng(9).normal(size=(500, 3)) + offset).astype(np.float32)
    kmeans = kmeans_reference if with_dask else kmeans_reference_in_memory

    def found(given, step):
        return kmeans(in_chunks(given, 200) if with_dask else given, 8, epochs=2, step=step, seed=0)

    np.testing.assert_array_equal(found(points * np.float32(unit), STEP * unit) / unit, found(points, STEP))


def test_kmeans_depends_on_the_seed(blobs):
    one, two = (kmeans_reference_in_memory(blobs[0], 9, epochs=1, step=STEP, seed=seed) for seed in (0, 1))
    assert not np.array_equal(one, two)


@given(n_rows=st.integers(1, 200_000), dimension=st.integers(1, 5000), n_points=st.integers(1, 500))
def test_mini_batches_are_of_one_size_and_never_smaller_than_there_are_centres(n_rows, dimension, n_points):
    sizes = np.diff(mini_batches(n_rows, dimension, n_points))
    assert sizes.sum() == n_rows
    assert sizes.max() - sizes.min() <= 1
    assert sizes.min() >= min(n_rows, 8 * n_points)


@given(dimension=st.integers(1, 5000), n_points=st.integers(1, 100))
def test_mini_batches_and_starts_stay_small_in_memory_however_wide_the_points(dimension, n_points):
    rows = np.diff(mini_batches(1_000_000, dimension, n_points)).max()
    assert rows * dimension <= 2 * max(reference.HELD_ENTRIES, 8 * n_points * dimension)
    start = reference._start_rows(1_000_000, dimension, n_points, seed=0)
    assert len(start) * dimension <= max(reference.HELD_ENTRIES, 20 * n_points * dimension)


def test_kmeans_of_few_distinct_points_gives_all_of_them(monkeypatch):
    """A sample finds the common ones alone; the rare ones are looked for in all blocks."""
    monkeypatch.setattr(reference, "START_ROWS", 50)
    rare = np.array([[5.0, 0.0], [0.0, 5.0], [-5.0, 1.0]])
    points = np.concatenate([np.zeros((3000, 2)), rare])
    centres = kmeans_reference(in_chunks(points, 500), 4, epochs=2, step=STEP, seed=0)
    assert is_canonical(centres)
    assert len(centres) == 4


@pytest.mark.parametrize("n_needed", [4, 40])
def test_kmeans_of_too_few_distinct_points_names_both_numbers(n_needed):
    points = np.repeat(np.arange(6.0).reshape(3, 2), 100, axis=0)
    message = f"there are 3 distinct node embeddings among .* it is to have {n_needed} distinct points; set"
    for attempt in (
        lambda: kmeans_reference(in_chunks(points, 64), n_needed, epochs=1, step=STEP, seed=0),
        lambda: kmeans_reference_in_memory(points, n_needed, epochs=1, step=STEP, seed=0),
    ):
        with pytest.raises(TooFewPointsError, match=message):
            attempt()


def test_points_that_differ_by_less_than_the_grid_are_one():
    points = np.array([[0.0], [STEP / 10], [1.0], [1.0 + STEP / 10]])
    with pytest.raises(TooFewPointsError, match="are 2 distinct"):
        kmeans_reference_in_memory(points, 3, epochs=1, step=STEP, seed=0)


@given(
    points=arrays(np.float64, st.tuples(st.integers(4, 20), st.just(2)), elements=st.integers(-3, 3).map(float)),
    data=st.data(),
)
def test_centres_that_fall_together_are_moved_apart(points, data):
    n_distinct = len(np.unique(points, axis=0))
    rows = data.draw(st.lists(st.integers(0, len(points) - 1), min_size=1, max_size=n_distinct))
    centres = reference._with_distinct_centres(points[rows], points, STEP)
    assert is_canonical(centres)
    assert len(centres) == len(rows)
    assert set(map(tuple, points[rows].tolist())) <= set(map(tuple, centres.tolist()))


def test_more_centres_than_there_are_distinct_points_are_refused_and_not_looked_for_without_end():
    with pytest.raises(TooFewPointsError, match=r"are 2 distinct .* to have 3 distinct"):
        reference._with_distinct_centres(np.array([[0.0], [0.0], [1.0]]), np.array([[1.0], [0.0]]), STEP)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("with_dask", [True, False])
def test_kmeans_tells_points_apart_that_are_one_from_another_origin(with_dask):
    """Two points differ in their last bit, which single precision does not keep at their distance from the others."""
    last = np.nextafter(np.float32(-1), np.float32(0))
    points = np.append(np.repeat(np.float32([2, 2.5, 3]), 8), np.float32([-1, last, -1, last]))[:, None]
    kmeans = kmeans_reference if with_dask else kmeans_reference_in_memory
    found = kmeans(in_chunks(points, 10) if with_dask else points, 5, epochs=1, step=2.0**-28, seed=0)
    assert found.ravel().tolist() == [-1.0, float(last), 2.0, 2.5, 3.0]


# --- The other kinds ---


def test_normal_draws_have_the_mean_and_the_variance_asked_for():
    draws = normal_reference(np.array([1.0, -2.0]), np.array([4.0, 0.25]), 40_000, step=STEP, seed=0)
    assert is_canonical(draws)
    np.testing.assert_allclose(draws.mean(axis=0), [1, -2], atol=0.05)
    np.testing.assert_allclose(draws.var(axis=0), [4, 0.25], rtol=0.05)


@given(
    points=arrays(np.float64, st.tuples(st.integers(4, 20), st.just(2)), elements=st.floats(-3, 3, width=16)),
    seed=st.integers(0, 5),
)
@example(points=np.array([[0.49, 0.49], [0.51, 0.0]]), seed=0)
def test_centres_on_a_coarse_grid_are_moved_apart(points, seed):
    """A row may be farther from the centre that it is rounded to than another is from its nearest."""
    n_distinct = len(np.unique(np.rint(points) + 0.0, axis=0))
    centres = np.random.default_rng(seed).uniform(-0.4, 0.4, size=(n_distinct, 2))
    found = reference._with_distinct_centres(centres, points, 1.0)
    assert len(np.unique(found, axis=0)) == n_distinct


def test_normal_draws_around_points_that_do_not_vary_are_refused():
    with pytest.raises(TooFewPointsError, match=r"are 1 distinct .* to have 3 distinct"):
        normal_reference(np.zeros(2), np.zeros(2), 3, step=STEP, seed=0)


def test_the_normal_distribution_of_samples_has_their_mean_and_variance_together(blobs):
    points, _ = blobs
    together = normal_reference(points.mean(axis=0), points.var(axis=0), 50, step=STEP, seed=4)
    samples = [(part, None) for part in np.array_split(points, 7)]
    apart = reference_from_samples("normal", samples, 50, step=STEP, seed=4)
    np.testing.assert_allclose(apart, together, atol=2 * STEP)


def test_a_sample_is_of_the_points_and_distinct(blobs):
    points, _ = blobs
    chosen = sample_reference(points, 60, step=STEP, seed=0)
    assert is_canonical(chosen)
    assert len(chosen) == 60
    assert set(map(tuple, chosen.tolist())) <= set(map(tuple, (np.round(points / STEP) * STEP).tolist()))


def test_a_sample_takes_frequent_points_more_often():
    points = np.array([[0.0]] * 900 + [[float(i)] for i in range(1, 101)])
    hits = sum(0.0 in sample_reference(points, 2, step=STEP, seed=seed) for seed in range(50))
    assert hits > 45


def test_a_sample_of_as_many_points_as_are_distinct_is_all_of_them():
    points = np.repeat(np.arange(10.0)[:, None], 50, axis=0)
    assert sample_reference(points, 10, step=STEP, seed=0).ravel().tolist() == list(range(10))
    with pytest.raises(TooFewPointsError, match=r"are 10 distinct .* to have 11 distinct"):
        sample_reference(points, 11, step=STEP, seed=0)


@given(
    points=arrays(np.float64, st.tuples(st.integers(1, 30), st.just(2)), elements=st.integers(-2, 2).map(float)),
    data=st.data(),
)
def test_a_sample_is_the_first_distinct_points_in_random_order(points, data):
    n_points = data.draw(st.integers(1, len(np.unique(points, axis=0))))
    drawn = []
    for row in np.random.default_rng(7).permutation(points).tolist():
        if len(drawn) < n_points and row not in drawn:
            drawn.append(row)
    assert sample_reference(points, n_points, step=STEP, seed=7).tolist() == sorted(drawn)


def test_few_distinct_points_among_many_are_looked_at_a_few_times(monkeypatch):
    looked_at = []
    original = reference.round_to_grid
    monkeypatch.setattr(reference, "round_to_grid", lambda rows, _: looked_at.append(len(rows)) or original(rows, STEP))
    points = np.repeat(np.arange(20.0)[:, None], 500, axis=0)
    with pytest.raises(TooFewPointsError):
        sample_reference(points, 21, step=STEP, seed=0)
    assert sum(looked_at) < 4 * len(points)


def test_the_barycenter_of_shifted_copies_is_the_copy_in_the_middle():
    """Translations are the simplest case in which the Wasserstein barycenter is known."""
    rng = np.random.default_rng(5)
    shape = rng.uniform(-10, 10, size=(8, 2))
    shifts = rng.normal(scale=0.05, size=(6, 2))
    found = barycenter_reference([shape + shift for shift in shifts], 8, step=STEP, seed=0)
    middle = shape + shifts.mean(axis=0)
    np.testing.assert_allclose(found, middle[np.lexsort(middle.T[::-1])], atol=0.02)


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**-10, 2.0**30])
def test_a_barycenter_does_not_depend_on_the_unit_of_the_points(unit):
    rng = np.random.default_rng(6)
    graphs = [rng.normal(scale=3.0, size=(size, 2)) for size in (5, 9, 12)]
    found = barycenter_reference(graphs, 6, step=STEP, seed=0)
    in_unit = barycenter_reference([graph * unit for graph in graphs], 6, step=STEP * unit, seed=0)
    np.testing.assert_array_equal(in_unit / unit, found)


def test_a_barycenter_counts_graphs_alike_whatever_their_size():
    samples = [(np.array([[0.0], [0.0], [0.0], [6.0]]), np.array([3, 1]))]
    (centre,) = reference_from_samples("barycenter", samples, 1, step=STEP, seed=0).tolist()
    np.testing.assert_allclose(centre, [3.0], atol=1e-6)


def test_cycles_are_collected_again_after_the_import_of_clustering():
    import_clustering()
    assert gc.isenabled()
    gc.disable()
    try:
        import_clustering()
        assert not gc.isenabled()
    finally:
        gc.enable()
