import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask.canonical import canonical_points, canonical_reference, round_to_grid


def canonical_by_hand(graph, step):
    """Round, count and sort the rows of one graph: points and weights."""
    counts = Counter(tuple(step * round(value / step) for value in row) for row in graph.tolist())
    rows = sorted(counts)
    return rows, [counts[row] / len(graph) for row in rows]


@st.composite
def tied_graphs(draw):
    """Graphs, some empty, whose coordinates take few values, on, between and next to the points of the grid."""
    dimension = draw(st.integers(1, 4))
    step = draw(st.sampled_from([2.0**-28, 0.125, 1.0, 4.0]))
    value = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 1.0 + 2**-40, -(2.0**-40), 1e6, 3.2])
    row = st.tuples(*[value] * dimension)
    sizes = draw(st.lists(st.integers(0, 12), max_size=5))
    rows = [[draw(row) for _ in range(size)] for size in sizes]
    return [step * np.array(graph, dtype=float).reshape(-1, dimension) for graph in rows], dimension, step


@settings(max_examples=150)
@given(tied_graphs())
def test_canonical_points_are_rounded_counted_and_sorted(case):
    graphs, dimension, step = case
    offsets = np.array([0, *itertools.accumulate(map(len, graphs))])
    points = np.concatenate([np.empty((0, dimension)), *graphs])
    result = canonical_points(points, offsets, step)
    assert len(result.offsets) == len(graphs) + 1
    assert not np.signbit(result.points[result.points == 0]).any()
    for graph, (start, stop) in zip(graphs, itertools.pairwise(result.offsets), strict=True):
        rows, weights = canonical_by_hand(graph, step)
        assert result.points[start:stop].tolist() == [list(row) for row in rows]
        assert result.weights[start:stop].tolist() == weights
    assert result.offsets[-1] == len(result.points) == len(result.weights)


@pytest.mark.parametrize("name", ["mutag", "ptc_mr", "enzymes", "molhiv_500"])
def test_canonical_points_of_real_graphs_are_rounded_counted_and_sorted(embedded, name):
    case = embedded(name)
    for graph in range(min(150, case.batch.n_graphs)):
        start, stop = case.offsets[graph : graph + 2]
        rows, weights = canonical_by_hand(case.points[start:stop], case.step)
        found = case.canonical.slice(graph, graph + 1)
        assert found.points.tolist() == [list(row) for row in rows]
        assert found.weights.tolist() == weights


@settings(max_examples=50)
@given(tied_graphs(), st.randoms(use_true_random=False))
def test_canonical_points_depend_neither_on_the_order_of_rows_nor_on_repetition(case, random):
    graphs, dimension, step = case
    moved = []
    for graph in graphs:
        rows = [*graph.tolist()] * 3
        random.shuffle(rows)
        moved.append(np.array(rows).reshape(-1, dimension))
    nothing = np.empty((0, dimension))
    before, after = (
        canonical_points(np.concatenate([nothing, *part]), np.array([0, *itertools.accumulate(map(len, part))]), step)
        for part in (graphs, moved)
    )
    np.testing.assert_array_equal(before.points, after.points)
    np.testing.assert_array_equal(before.weights, after.weights)
    np.testing.assert_array_equal(before.offsets, after.offsets)


def test_the_grid_is_hit_exactly_and_has_no_negative_zero():
    values = np.array([[0.3, -0.3, 0.5, 1.5, -0.0, 7.74]])
    rounded = round_to_grid(values, 0.5)
    assert rounded.tolist() == [[0.5, -0.5, 0.5, 1.5, 0.0, 7.5]]
    assert not np.signbit(round_to_grid(np.array([-1e-9]), 1.0)).any()


def test_the_reference_is_rounded_sorted_and_distinct():
    reference = np.array([[2.0, 1.0], [0.1, 5.0], [2.0, 0.9], [-0.2, 4.0], [2.0, 1.4]])
    np.testing.assert_array_equal(canonical_reference(reference, 1.0), [[0, 4], [0, 5], [2, 1]])


def test_what_is_too_large_for_the_grid_becomes_infinite():
    rounded = round_to_grid(np.array([[1e300, -1e300, 3.2, -0.1]]), 2.0**-60)
    assert rounded[0, :2].tolist() == [np.inf, -np.inf]
    np.testing.assert_allclose(rounded[0, 2:], [3.2, -0.1], atol=2.0**-61, rtol=0)
