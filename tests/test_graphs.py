from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from wegl_dask.graphs import (
    VIRTUAL,
    EdgeRepairs,
    GraphBatch,
    GraphSchema,
    UsedAttributes,
    canonical_edges,
    concatenate,
    find_invalid,
    offsets_from_counts,
)

laws = settings(max_examples=50)


def graph(n_nodes, edges=(), *, labels=None, edge_labels=None, attributes=None, edge_attributes=None):
    """A plain graph with one category and one attribute a node and an edge, 0 and 1.0 unless given."""
    return SimpleNamespace(
        node_labels=[[label] for label in (labels or [0] * n_nodes)],
        node_attributes=[[value] for value in (attributes or [1.0] * n_nodes)],
        edges=list(edges),
        edge_labels=[[label] for label in (edge_labels or [0] * len(edges))],
        edge_attributes=[[value] for value in (edge_attributes or [1.0] * len(edges))],
    )


@pytest.fixture
def batch_of(make_batch):
    def make(*graphs):
        return make_batch(graphs, node_labels=(3,), edge_labels=(2,), node_attributes=1, edge_attributes=1)

    return make


def listed_edges(batch):
    """The edges of each graph with their features, in the order listed."""
    result = []
    for start, stop in zip(batch.edge_offsets[:-1], batch.edge_offsets[1:], strict=True):
        ends = zip(batch.edge_source[start:stop].tolist(), batch.edge_target[start:stop].tolist(), strict=True)
        features = zip(
            batch.edge_categories[start:stop].tolist(), batch.edge_attributes[start:stop].tolist(), strict=True
        )
        result.append(list(zip(ends, features, strict=True)))
    return result


# Parts of a batch


@laws
@given(data=st.data())
def test_taking_graphs_gives_the_batch_of_those_graphs(data, plain_graphs, plain_batch, assert_same_batch):
    graphs = data.draw(plain_graphs)
    indices = st.lists(st.integers(0, len(graphs) - 1), max_size=6) if graphs else st.just([])
    order = data.draw(indices)
    assert_same_batch(plain_batch(graphs).take(order), plain_batch([graphs[i] for i in order]))


@laws
@given(data=st.data())
def test_a_slice_is_the_batch_of_the_sliced_graphs(data, plain_graphs, plain_batch, assert_same_batch):
    graphs = data.draw(plain_graphs)
    start = data.draw(st.integers(0, len(graphs)))
    stop = data.draw(st.integers(start, len(graphs)))
    assert_same_batch(plain_batch(graphs).slice(start, stop), plain_batch(graphs[start:stop]))


@laws
@given(data=st.data())
def test_concatenating_batches_gives_the_batch_of_all_graphs(data, plain_graphs, plain_batch, assert_same_batch):
    parts = data.draw(st.lists(plain_graphs, min_size=1, max_size=3))
    whole = [graph for part in parts for graph in part]
    assert_same_batch(concatenate([plain_batch(part) for part in parts]), plain_batch(whole))


@laws
@given(data=st.data(), max_nodes=st.integers(1, 12))
def test_blocks_put_together_are_the_batch_and_each_is_as_large_as_allowed(
    data, max_nodes, plain_graphs, plain_batch, assert_same_batch
):
    batch = plain_batch(data.draw(plain_graphs))
    blocks = list(batch.blocks(max_nodes))
    assert_same_batch(concatenate([batch.slice(0, 0), *blocks]), batch)
    assert all(block.n_nodes <= max_nodes or block.n_graphs == 1 for block in blocks)
    assert all(block.n_nodes + after.node_counts[0] > max_nodes for block, after in pairwise(blocks))


def test_the_sizes_of_a_schema_are_whole_numbers_of_python():
    schema = GraphSchema([np.int64(7), 3], node_attribute_width=np.int16(2))
    assert schema == GraphSchema((7, 3), (), 2)
    assert {type(size) for size in (*schema.node_category_counts, schema.node_attribute_width)} == {int}
    with pytest.raises(
        TypeError, match=r"node_category_counts of a GraphSchema is 7; a whole number a feature is needed"
    ):
        GraphSchema(7)
    with pytest.raises(TypeError, match=r"edge_attribute_width of a GraphSchema is 1.5; a whole number is needed"):
        GraphSchema(edge_attribute_width=1.5)


def test_slices_share_memory_with_the_batch(batch_of):
    batch = batch_of(graph(3, [(0, 1)]), graph(2, [(1, 0)]))
    assert np.shares_memory(batch.slice(1, 2).node_attributes, batch.node_attributes)


@laws
@given(data=st.data())
def test_a_batch_is_a_sequence_of_its_graphs(data, plain_graphs, plain_batch, assert_same_batch):
    graphs = data.draw(plain_graphs)
    batch = plain_batch(graphs)
    assert len(batch) == len(graphs)
    for found, expected in zip(batch, graphs, strict=True):
        assert_same_batch(found, plain_batch([expected]))
    chosen = data.draw(st.slices(len(graphs)))
    assert_same_batch(batch[chosen], plain_batch(graphs[chosen]))
    if graphs:
        assert_same_batch(batch[-1], plain_batch(graphs[-1:]))
    with pytest.raises(IndexError):
        batch[len(graphs)]


def test_scikit_learn_splits_a_batch(batch_of):
    batch = batch_of(*(graph(n) for n in range(1, 9)))
    train, test = train_test_split(batch, test_size=0.25, shuffle=False)
    assert [int(part.n_nodes) for part in (*train, *test)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_global_edges_are_numbered_through_the_batch(batch_of):
    source, target = batch_of(graph(3, [(0, 2)]), graph(1), graph(2, [(1, 0)])).global_edges()
    assert source.tolist() == [0, 5]
    assert target.tolist() == [2, 4]


def test_offsets_of_no_pieces_are_a_single_zero():
    assert offsets_from_counts(np.array([], dtype=np.int64)).tolist() == [0]


def test_nothing_cannot_be_concatenated():
    with pytest.raises(ValueError, match="at least one batch"):
        concatenate([])


def test_batches_of_different_schemas_are_not_concatenated(batch_of, make_batch):
    with pytest.raises(ValueError, match="2 different schemas"):
        concatenate([batch_of(graph(1)), make_batch([graph(1)], node_labels=(4,), node_attributes=1)])


def test_arrays_that_do_not_fit_the_offsets_are_refused():
    with pytest.raises(ValueError, match=r"node_categories has shape \(2, 1\); \(3, 1\) is needed"):
        GraphBatch(
            schema=GraphSchema((2,)),
            node_offsets=np.array([0, 3]),
            edge_offsets=np.array([0, 0]),
            edge_source=np.empty(0, dtype=int),
            edge_target=np.empty(0, dtype=int),
            node_categories=np.zeros((2, 1), dtype=int),
            node_attributes=np.empty((3, 0)),
            edge_categories=np.empty((0, 0), dtype=int),
            edge_attributes=np.empty((0, 0)),
        )


# Virtual nodes


@laws
@given(data=st.data())
def test_a_virtual_node_has_no_features_and_is_joined_both_ways_to_every_node(data, plain_graphs, plain_batch):
    graphs = data.draw(plain_graphs)
    batch = plain_batch(graphs)
    extended = batch.with_virtual_nodes()
    assert extended.has_virtual_nodes
    no_features = ([VIRTUAL], [0.0, 0.0])
    for index, (plain, edges) in enumerate(zip(graphs, listed_edges(extended), strict=True)):
        hub = len(plain.node_labels)
        nodes = slice(extended.node_offsets[index], extended.node_offsets[index + 1])
        assert extended.node_categories[nodes].tolist() == [*plain.node_labels, [VIRTUAL, VIRTUAL]]
        assert extended.node_attributes[nodes].tolist() == [*plain.node_attributes, [0.0]]
        n_old = len(plain.edges)
        assert edges[:n_old] == listed_edges(batch)[index]
        spokes = [(node, hub) for node in range(hub)] + [(hub, node) for node in range(hub)]
        assert sorted(edges[n_old:]) == sorted((ends, no_features) for ends in spokes)


@pytest.mark.parametrize(("n_nodes", "kind"), [(127, np.int8), (128, np.int8), (32_767, np.int16), (32_768, np.int16)])
def test_the_virtual_node_of_a_graph_whose_edges_end_before_it_has_its_number(batch_of, n_nodes, kind):
    """Edge ends are kept in the narrowest type that holds them, and no edge need end at the last node."""
    batch = batch_of(graph(n_nodes, [(0, 1)]), graph(2, [(0, 1)]))
    narrow = replace(batch, edge_source=batch.edge_source.astype(kind), edge_target=batch.edge_target.astype(kind))
    extended = narrow.with_virtual_nodes()
    assert listed_edges(extended) == listed_edges(batch.with_virtual_nodes())
    assert extended[0].edge_source.max() == extended[0].edge_target.max() == n_nodes
    assert extended.edge_source.dtype == (kind if n_nodes <= np.iinfo(kind).max else np.int64)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64, bool])
def test_virtual_nodes_have_no_category_whatever_the_type_of_the_others(batch_of, kind):
    batch = batch_of(graph(2, [(0, 1)], labels=[1, 0], edge_labels=[1]))
    typed = replace(
        batch, node_categories=batch.node_categories.astype(kind), edge_categories=batch.edge_categories.astype(kind)
    )
    extended = typed.with_virtual_nodes()
    assert extended.node_categories.ravel().tolist() == [1, 0, VIRTUAL]
    assert extended.edge_categories.ravel().tolist() == [1] + 4 * [VIRTUAL]


def test_virtual_nodes_are_not_added_twice(batch_of):
    with pytest.raises(ValueError, match="has virtual nodes already"):
        batch_of(graph(2)).with_virtual_nodes().with_virtual_nodes()


# Canonical edges


@laws
@given(data=st.data())
def test_undirected_canonical_edges_are_those_of_the_simple_graph_both_ways(data, plain_graphs, plain_batch):
    graphs = data.draw(plain_graphs)
    canonical, _ = canonical_edges(plain_batch(graphs))
    for plain, edges in zip(graphs, listed_edges(canonical), strict=True):
        simple = nx.Graph(pair for pair in plain.edges if pair[0] != pair[1])
        assert [ends for ends, _ in edges] == sorted(simple.to_directed().edges)


@laws
@given(data=st.data(), directed=st.booleans())
def test_a_canonical_edge_has_the_features_of_the_first_that_it_was_made_of(data, directed, plain_graphs, plain_batch):
    graphs = data.draw(plain_graphs)
    canonical, _ = canonical_edges(plain_batch(graphs), directed=directed)
    for plain, edges in zip(graphs, listed_edges(canonical), strict=True):
        for (source, target), features in edges:
            same_way = [i for i, ends in enumerate(plain.edges) if ends == (source, target)]
            other_way = [] if directed else [i for i, ends in enumerate(plain.edges) if ends == (target, source)]
            first = (same_way or other_way)[0]
            assert features == (plain.edge_labels[first], plain.edge_attributes[first])


@laws
@given(data=st.data())
def test_directed_canonical_edges_are_the_distinct_edges_as_listed(data, plain_graphs, plain_batch):
    graphs = data.draw(plain_graphs)
    canonical, repairs = canonical_edges(plain_batch(graphs), directed=True)
    for plain, edges in zip(graphs, listed_edges(canonical), strict=True):
        assert [ends for ends, _ in edges] == sorted({ends for ends in plain.edges if ends[0] != ends[1]})
    assert repairs.reverse_edges_added == 0


@laws
@given(data=st.data(), directed=st.booleans())
def test_canonical_edges_stay_as_they_are(data, directed, plain_graphs, plain_batch, assert_same_batch):
    once, _ = canonical_edges(plain_batch(data.draw(plain_graphs)), directed=directed)
    twice, repairs = canonical_edges(once, directed=directed)
    assert_same_batch(twice, once)
    assert repairs == EdgeRepairs(0, 0, 0)


@laws
@given(data=st.data())
def test_repairs_are_counted_in_listed_edges(data, plain_graphs, plain_batch):
    graphs = data.draw(plain_graphs)
    loops = parallel = added = 0
    for plain in graphs:
        counts = Counter(ends for ends in plain.edges if ends[0] != ends[1])
        loops += len(plain.edges) - counts.total()
        parallel += counts.total() - len(counts)
        added += sum((target, source) not in counts for source, target in counts)
    assert canonical_edges(plain_batch(graphs))[1] == EdgeRepairs(loops, parallel, added)


def test_canonical_edges_do_not_change_the_batch_that_they_are_made_from(batch_of):
    batch = batch_of(graph(3, [(2, 1), (1, 1), (0, 2)]))
    canonical_edges(batch)
    assert batch.edge_source.tolist() == [2, 1, 0]


@pytest.mark.parametrize("name", ["mutag", "ptc_mr", "enzymes", "molhiv_500"])
def test_real_data_are_symmetric_already(name, real_data):
    batch = real_data(name).batch
    canonical, repairs = canonical_edges(batch)
    assert repairs == EdgeRepairs(0, 0, 0)
    assert [sorted(edges) for edges in listed_edges(batch)] == listed_edges(canonical)


# Graphs that cannot be embedded


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (graph(0), "the graph has no nodes"),
        (graph(4), "the graph has 4 nodes; max_nodes allows 3"),
        (graph(2, [(0, 1), (2, 0)]), "edge 1 has source 2; the graph has nodes 0 to 1"),
        (graph(2, [(0, 1), (1, -1)]), "edge 1 has target -1; the graph has nodes 0 to 1"),
        (graph(2, labels=[0, 3]), "node 1, categorical feature 0: category 3 is outside the vocabulary 0 to 2"),
        (graph(2, labels=[-1, 0]), "node 0, categorical feature 0: category -1 is outside the vocabulary 0 to 2"),
        (
            graph(2, [(0, 1), (1, 0)], edge_labels=[1, 2]),
            "edge 1, categorical feature 0: category 2 is outside the vocabulary 0 to 1",
        ),
        (graph(2, attributes=[1.0, float("nan")]), "node 1, attribute 0 is not finite: nan"),
        (graph(2, attributes=[float("-inf"), 1.0]), "node 0, attribute 0 is not finite: -inf"),
        (graph(2, [(0, 1)], edge_attributes=[float("inf")]), "edge 0, attribute 0 is not finite: inf"),
        (graph(2, attributes=[1.0, 3.5e38]), "node 1, attribute 0 is not finite as float32: 3.5e+38"),
        (graph(2, [(0, 1)], edge_attributes=[1e300]), "edge 0, attribute 0 is not finite as float32: 1e+300"),
        (graph(2, [(0, 1)], edge_attributes=[-0.5]), "edge 0, attribute 0 is negative: -0.5"),
    ],
)
def test_a_graph_that_cannot_be_embedded_is_found_with_its_reason(bad, reason, batch_of):
    good = graph(3, [(0, 1), (1, 2)], labels=[0, 1, 2], edge_labels=[0, 1], edge_attributes=[0.0, 2.5])
    assert find_invalid(batch_of(good, bad, good), max_nodes=3) == {1: reason}


def test_attributes_that_are_not_used_may_be_anything(batch_of):
    nodes, edges = {"attributes": [float("nan"), 1e300]}, {"edge_attributes": [-1.0]}
    batch = batch_of(graph(2, [(0, 1)], **nodes), graph(2, [(0, 1)], **edges), graph(2, [(0, 1)], **nodes, **edges))
    assert list(find_invalid(batch, used=UsedAttributes(node=False))) == [1, 2]
    assert list(find_invalid(batch, used=UsedAttributes(edge=False))) == [0, 2]
    assert find_invalid(batch, used=UsedAttributes(node=False, edge=False)) == {}


def test_the_reasons_come_in_a_fixed_order(batch_of):
    nan = float("nan")
    everything = {"labels": [5, 0], "edge_labels": [7], "attributes": [nan, 1.0], "edge_attributes": [-1.0]}
    assert find_invalid(batch_of(graph(2, [(0, 9)], **everything)), max_nodes=1)[0].startswith("the graph has 2 nodes")
    assert "target 9" in find_invalid(batch_of(graph(2, [(0, 9)], **everything)))[0]
    assert "node 0, categorical" in find_invalid(batch_of(graph(2, [(0, 1)], **everything)))[0]
    assert "edge 0, categorical" in find_invalid(batch_of(graph(2, [(0, 1)], **everything | {"labels": None})))[0]
    numbers_only = {"attributes": [nan, 1.0], "edge_attributes": [-1.0]}
    assert "node 0, attribute 0 is not" in find_invalid(batch_of(graph(2, [(0, 1)], **numbers_only)))[0]


def test_graphs_are_reported_in_their_order(batch_of):
    batch = batch_of(graph(1, attributes=[float("nan")]), graph(0), graph(2, [(0, 2)]))
    assert list(find_invalid(batch)) == [0, 1, 2]


def test_an_empty_batch_has_no_invalid_graph(batch_of):
    assert find_invalid(batch_of(), max_nodes=1) == {}


@pytest.mark.parametrize("index", [np.array([0, 2]), [0, 2], "0", 1.0])
def test_several_graphs_are_taken_by_take(mutag, index):
    with pytest.raises(
        TypeError, match=r"by a number or a slice, not by a (ndarray|list|str|float): use \.take\(numbers\)"
    ):
        mutag.batch[index]
    assert mutag.batch.take([2, 0]).node_counts.tolist() == mutag.batch.node_counts[[2, 0]].tolist()


def test_booleans_are_not_taken_for_numbers_of_graphs(mutag):
    with pytest.raises(TypeError, match=r"not by booleans: use \.take"):
        mutag.batch.take(mutag.batch.node_counts > 20)
