from itertools import permutations

import numpy as np
import pytest

from wegl_dask.fitting import draw_points
from wegl_dask.graphs import GraphBatch, GraphSchema, offsets_from_counts
from wegl_dask.points import NodeSettings, PointEmbedding
from wegl_dask.projection import Projection

SCHEMA = GraphSchema(node_attribute_width=1)


def numbered(counts):
    """Graphs without edges, with so many nodes, whose only attribute is the node's number in the batch."""
    n_nodes = sum(counts)
    return GraphBatch(
        schema=SCHEMA,
        node_offsets=offsets_from_counts(np.array(counts)),
        edge_offsets=np.zeros(len(counts) + 1, dtype=np.int64),
        edge_source=np.empty(0, dtype=np.int32),
        edge_target=np.empty(0, dtype=np.int32),
        node_categories=np.empty((n_nodes, 0), dtype=np.int16),
        node_attributes=np.arange(n_nodes, dtype=np.float32)[:, None],
        edge_categories=np.empty((0, 0), dtype=np.int16),
        edge_attributes=np.empty((0, 0), dtype=np.float32),
    )


class Counting(PointEmbedding):
    """Points that are the nodes' numbers; it counts the graphs that it evaluates."""

    n_graphs = 0

    def evaluate(self, batch):
        type(self).n_graphs += batch.n_graphs
        return super().evaluate(batch)


@pytest.fixture
def embedding():
    nodes = NodeSettings(
        schema=SCHEMA,
        features=("attributes",),
        max_degree=0,
        degree_clip=0,
        embedding_width=0,
        seed=0,
        edge_features="none",
        virtual_node=False,
        layers=0,
        pooling="final",
    ).build()
    Counting.n_graphs = 0
    return Counting(nodes, Projection(np.zeros(1), np.ones(1), None, np.ones(1), 1.0))


class Loaded:
    """Draws what it is told to."""

    def __init__(self, order, number):
        self.permutation = lambda _: np.array(order)
        self.integers = lambda _: number


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_over_all_draws_there_are_every_point_comes_equally_often_and_in_none_twice(embedding, count):
    sizes = [1, 3, 0, 2]
    often = np.zeros(6, dtype=int)
    for order in permutations(range(4)):
        for number in range(6):
            drawn = draw_points(embedding, numbered(sizes), count, Loaded(order, number))
            assert drawn.shape == (count, 1)
            often[drawn[:, 0].astype(int)] += 1
    # 24 orders, 6 points to begin with.
    assert often.tolist() == [24 * count] * 6


def test_all_points_come_in_their_own_order(embedding):
    drawn = draw_points(embedding, numbered([2, 5, 1]), 8, np.random.default_rng(0))
    assert drawn[:, 0].tolist() == list(range(8))


def test_only_graphs_that_points_are_drawn_from_are_evaluated(embedding):
    for seed in range(20):
        Counting.n_graphs = 0
        drawn = draw_points(embedding, numbered([10] * 500), 35, np.random.default_rng(seed))
        owners = np.unique(drawn[:, 0] // 10)
        assert len(np.unique(drawn)) == 35
        # All points of those in the middle.
        assert 4 <= len(owners) <= 5
        assert Counting.n_graphs == len(owners)


def test_a_part_of_one_large_graph_is_drawn(embedding):
    drawn = draw_points(embedding, numbered([1000]), 10, np.random.default_rng(1))
    assert len(np.unique(drawn)) == 10


def test_draws_of_other_seeds_are_of_other_graphs(embedding):
    draws = [draw_points(embedding, numbered([10] * 500), 30, np.random.default_rng(seed)) for seed in range(10)]
    assert len({tuple(np.unique(drawn // 10)) for drawn in draws}) == 10


def test_nothing_is_drawn_of_nothing(embedding):
    assert draw_points(embedding, numbered([]), 0, np.random.default_rng(0)).shape == (0, 1)
