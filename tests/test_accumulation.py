import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask.accumulation import MomentAccumulator
from wegl_dask.projection import Moments


def moments_by_numpy(vectors, *, scatter):
    """Count, mean, and squared deviations by NumPy's covariance."""
    covariance = np.cov(vectors, rowvar=False, ddof=0).reshape(vectors.shape[1], -1)
    return len(vectors), vectors.mean(axis=0), (covariance if scatter else np.diagonal(covariance)) * len(vectors)


def assert_moments(found, vectors, *, scatter):
    count, mean, deviations = moments_by_numpy(vectors, scatter=scatter)
    assert found.count == count
    np.testing.assert_allclose(found.mean, mean, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found.deviations, deviations, rtol=1e-9, atol=1e-9 * max(1.0, abs(deviations).max()))


@pytest.mark.parametrize("scatter", [False, True])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_blocks_of_any_size_give_the_moments_of_all_rows(scatter, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    sizes = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 1))
    width = data.draw(st.integers(1, 6))
    vectors = rng.standard_normal((sum(sizes), width)) * 10.0 ** rng.integers(-3, 4, width) + 100.0
    total = MomentAccumulator(width, scatter=scatter)
    for piece in np.split(vectors, np.cumsum(sizes)[:-1]):
        if data.draw(st.booleans()) and len(piece):
            total.add(Moments.of(piece, scatter=scatter))
        else:
            total.consume(piece.copy())
    assert_moments(total.moments(), vectors, scatter=scatter)


def test_wide_scatter_matrices_are_symmetric_to_the_last_bit():
    vectors = np.random.default_rng(0).standard_normal((40, 1100))
    total = MomentAccumulator(1100, scatter=True)
    for piece in np.split(vectors, [11, 25]):
        total.consume(piece.copy())
    found = total.moments()
    assert_moments(found, vectors, scatter=True)
    np.testing.assert_array_equal(found.deviations, found.deviations.T)


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("columns", [[], [3], [0, 2, 6], [1, 2, 3, 4, 5], list(range(7))])
def test_columns_that_are_zero_throughout_may_be_left_out(columns, scatter):
    rng = np.random.default_rng(2)
    before, vectors = rng.standard_normal((5, 7)) - 2.0, np.zeros((9, 7))
    vectors[:, columns] = rng.standard_normal((9, len(columns))) + 3.0
    total = MomentAccumulator(7, scatter=scatter)
    total.consume(before.copy())
    total.consume(vectors[:, columns], np.array(columns, dtype=np.int64))
    assert_moments(total.moments(), np.concatenate([before, vectors]), scatter=scatter)


def test_products_may_come_for_some_columns_at_a_time():
    rng = np.random.default_rng(1)
    before, vectors = rng.standard_normal((5, 7)), rng.standard_normal((9, 7)) + 3.0
    groups = [np.array([0, 3, 6]), np.array([1, 4]), np.array([5, 2])]
    centred = vectors - vectors.mean(axis=0)
    pairs = [(0, 0), (0, 1), (2, 0), (1, 1), (2, 1), (2, 2)]
    products = ((groups[i], groups[j].copy(), centred[:, groups[i]].T @ centred[:, groups[j]]) for i, j in pairs)
    total = MomentAccumulator(7, scatter=True)
    total.consume(before.copy())
    total.add_products(9, vectors.mean(axis=0), products)
    assert_moments(total.moments(), np.concatenate([before, vectors]), scatter=True)


def test_nothing_added_is_the_moments_of_no_vector():
    for scatter, shape in ((False, (3,)), (True, (3, 3))):
        total = MomentAccumulator(3, scatter=scatter)
        total.consume(np.empty((0, 3)))
        total.add(Moments.none(3, scatter=scatter))
        found = total.moments()
        assert found.count == 0
        assert found.deviations.shape == shape
        assert not found.deviations.any()
