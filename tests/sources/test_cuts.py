import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wegl_dask.sources._cuts import EDGES_PER_SHARD, SPARSE, cut_by_nodes, shard_loads

SIZES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5000)), min_size=1, max_size=40)


@given(sizes=SIZES, nodes_per_shard=st.integers(1, 200))
def test_a_shard_has_no_more_nodes_or_edges_than_it_may_have_besides_its_last_graph(sizes, nodes_per_shard):
    nodes, edges = np.array(sizes).T
    edges = edges * 1000
    boundaries = cut_by_nodes(shard_loads(nodes, edges, nodes_per_shard), nodes_per_shard)
    assert boundaries[0] == 0
    assert boundaries[-1] == len(sizes)
    assert (np.diff(boundaries) > 0).all()
    most_edges = nodes_per_shard * (max(EDGES_PER_SHARD // nodes_per_shard, SPARSE) + 1)
    for start, stop in itertools.pairwise(boundaries):
        assert nodes[start : stop - 1].sum() <= nodes_per_shard
        assert edges[start : stop - 1].sum() <= most_edges + len(sizes) * most_edges / nodes_per_shard


def test_sparse_graphs_are_cut_by_their_nodes_alone_however_large_the_shards():
    nodes = np.full(100, 26)
    for nodes_per_shard in (100, 10_000, 1_000_000, 100_000_000):
        loads = shard_loads(nodes, SPARSE * nodes, nodes_per_shard)
        np.testing.assert_array_equal(loads, nodes)


def test_complete_graphs_are_cut_by_their_edges():
    nodes = np.full(30, 1000)
    edges = nodes * (nodes - 1)
    boundaries = cut_by_nodes(shard_loads(nodes, edges, 131_072), 131_072)
    assert np.diff(boundaries).max() * edges[0] <= EDGES_PER_SHARD + edges[0]
