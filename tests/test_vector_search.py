"""Nearest vectors and close pairs against every distance worked out one by one."""

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wegl_dask import vector_search
from wegl_dask.errors import MissingDependencyError
from wegl_dask.vector_search import close_pairs, index_search, scan


def distances_between(one, two):
    """All distances in float64, from the differences."""
    differences = one[:, None].astype(np.float64) - two[None].astype(np.float64)
    return np.sqrt((differences**2).sum(axis=2))


def nearest_by_sorting(vectors, queries, k, own=None):
    distances = distances_between(queries, vectors)
    rows = []
    for query, row in enumerate(distances):
        others = [i for i in range(len(vectors)) if own is None or i != own[query]]
        rows.append(sorted(others, key=lambda i, row=row: (row[i], i))[:k])
    return rows, [[distances[query, i] for i in found] for query, found in enumerate(rows)]


def in_blocks(vectors, *cuts):
    starts = [0, *cuts]
    return [(start, vectors[start:stop]) for start, stop in zip(starts, [*cuts, len(vectors)], strict=True)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks so small that a few vectors go through every loop."""
    monkeypatch.setattr(vector_search, "QUERY_ROWS", 3)
    monkeypatch.setattr(vector_search, "BLOCK_ROWS", 5)
    monkeypatch.setattr(vector_search, "EXACT_ENTRIES", 8)


# Small whole numbers: many distances tie, and vectors repeat.
few_vectors = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).integers(-2, 3, (23, 2)).astype("f4")
)


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vectors=few_vectors, k=st.integers(1, 22))
def test_the_nearest_are_those_that_sorting_finds(vectors, k):
    own = np.arange(len(vectors))
    rows, distances = scan(in_blocks(vectors, 1, 7, 7, 20), vectors, k, own=own)
    expected_rows, expected_distances = nearest_by_sorting(vectors, vectors, k, own)
    assert rows.tolist() == expected_rows
    np.testing.assert_allclose(distances, expected_distances, rtol=1e-12)


def test_vectors_that_are_not_among_those_searched_may_find_themselves():
    vectors = np.arange(12.0).reshape(6, 2)
    rows, distances = scan([(0, vectors)], vectors[[4, 1]], 2)
    assert rows[:, 0].tolist() == [4, 1]
    assert distances[:, 0].tolist() == [0, 0]


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vectors=few_vectors, k=st.integers(1, 22), power=st.sampled_from([-44, -30, -23, -20, 19, 20, 30, 37]))
def test_the_nearest_of_vectors_whose_squares_single_precision_cannot_hold(vectors, k, power):
    vectors = vectors * np.float32(10.0**power)
    own = np.arange(len(vectors))
    rows, _ = scan(in_blocks(vectors, 1, 7, 7, 20), vectors, k, own=own)
    assert rows.tolist() == nearest_by_sorting(vectors, vectors, k, own)[0]
    threshold = 1.5 * 10.0**power
    pairs = {pair for first, second, _ in close_pairs(vectors, threshold) for pair in zip(first, second, strict=True)}
    near = np.argwhere(np.triu(distances_between(vectors, vectors) <= threshold, 1))
    assert pairs == set(map(tuple, near.tolist()))


@pytest.mark.usefixtures("small_blocks")
def test_of_very_many_equal_vectors_few_are_looked_at_again(monkeypatch):
    looked_at = []
    original = vector_search._squared_distances
    monkeypatch.setattr(
        vector_search, "_squared_distances", lambda one, two, i, j: looked_at.append(len(i)) or original(one, two, i, j)
    )
    vectors = np.ones((500, 2))
    rows, _ = scan(in_blocks(vectors), vectors[:3], 2)
    assert rows.tolist() == [[0, 1]] * 3
    assert sum(looked_at) < 20


def test_where_there_are_fewer_than_k_the_rest_is_marked():
    vectors = np.array([[0.0], [2.0]])
    rows, distances = scan([(0, vectors)], vectors, 3, own=np.arange(2))
    assert rows.tolist() == [[1, -1, -1], [0, -1, -1]]
    assert distances.tolist() == [[2, np.inf, np.inf]] * 2
    assert scan([], vectors, 1)[0].tolist() == [[-1], [-1]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_small_distances_far_from_the_origin_are_exact(dtype):
    # In float32 the matrix product alone is off by more than all of these distances.
    rng = np.random.default_rng(0)
    vectors = (500 + rng.integers(0, 8, (300, 40))).astype(dtype)
    rows, distances = scan(in_blocks(vectors, 100), vectors[:20], 10, own=np.arange(20))
    expected_rows, expected_distances = nearest_by_sorting(vectors, vectors[:20], 10, np.arange(20))
    assert rows.tolist() == expected_rows
    np.testing.assert_allclose(distances, expected_distances, rtol=1e-14)


def pairs_of(found):
    return sorted(
        (int(i), int(j), float(d))
        for first, second, distance in found
        for i, j, d in zip(first, second, distance, strict=True)
    )


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vectors=few_vectors, threshold=st.sampled_from([0.0, 1.0, 1.5, 2.0, 100.0]))
def test_close_pairs_are_all_pairs_within_the_threshold_once_each(vectors, threshold):
    distances = distances_between(vectors, vectors)
    expected = [(i, j, distances[i, j]) for i in range(23) for j in range(i + 1, 23) if distances[i, j] <= threshold]
    found = pairs_of(close_pairs(vectors, threshold))
    assert [pair[:2] for pair in found] == [pair[:2] for pair in expected]
    np.testing.assert_allclose([pair[2] for pair in found], [pair[2] for pair in expected], rtol=1e-12)


def test_equal_vectors_far_from_the_origin_are_close_at_threshold_0():
    vectors = np.random.default_rng(1).normal(1000, 1, (50, 30)).astype(np.float32)
    vectors[[10, 49]] = vectors[3]
    vectors[20, 5] = np.nextafter(vectors[3, 5], np.float32(np.inf))
    assert pairs_of(close_pairs(vectors, 0.0)) == [(3, 10, 0.0), (3, 49, 0.0), (10, 49, 0.0)]
    assert list(close_pairs(vectors[:1], 1.0)) == []
    assert len(pairs_of(close_pairs(np.zeros((4, 2)), 0.0))) == 6


def test_the_index_finds_nearly_all_neighbours_and_their_distances():
    pytest.importorskip("faiss")
    rng = np.random.default_rng(2)
    vectors = (rng.normal(0, 3, (100, 1, 8)) + rng.normal(size=(100, 20, 8))).reshape(2000, 8).astype(np.float32)
    own = np.arange(2000)
    rows, distances = index_search(lambda: in_blocks(vectors, 700), vectors[::2], vectors, 5, n_lists=178, own=own)
    exact, _ = scan([(0, vectors)], vectors, 5, own=own)
    recall = np.mean([len(set(some) & set(all_of_them)) / 5 for some, all_of_them in zip(rows, exact, strict=True)])
    assert recall > 0.98
    assert not (rows == own[:, None]).any()
    expected = np.sqrt(((vectors[:, None].astype(np.float64) - vectors[rows]) ** 2).sum(axis=2))
    np.testing.assert_allclose(distances, expected, rtol=1e-14)
    assert (np.diff(distances, axis=1) >= 0).all()


def test_the_index_marks_what_it_does_not_find():
    pytest.importorskip("faiss")
    vectors = np.array([[0.0], [1.0], [10.0]])
    rows, distances = index_search(lambda: [(0, vectors)], vectors, vectors, 3, n_lists=2, own=np.arange(3))
    assert rows.tolist() == [[1, 2, -1], [0, 2, -1], [1, 0, -1]]
    assert distances.tolist() == [[1, 10, np.inf], [1, 9, np.inf], [9, 10, np.inf]]


def test_without_faiss_the_line_that_installs_it_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependencyError, match=r"faiss-cpu is needed .* pip install 'wegl-dask\[neighbours\]'"):
        index_search(list, np.zeros((3, 1)), np.zeros((3, 1)), 1, n_lists=1)
