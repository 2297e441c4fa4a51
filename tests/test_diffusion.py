import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wegl_dask import diffusion
from wegl_dask.diffusion import pooled, propagation_operator
from wegl_dask.graphs import GraphSchema

ROOT_HALF = 0.5**0.5
BONDS = list(itertools.product(range(5), range(6), range(2)))


def plain_graph(n_nodes, edges, labels=None, attributes=None):
    return SimpleNamespace(
        node_labels=[[]] * n_nodes,
        node_attributes=[[]] * n_nodes,
        edges=edges,
        edge_labels=labels or [[]] * len(edges),
        edge_attributes=attributes or [[]] * len(edges),
    )


def by_matrix_products(graph, edge_features, *, virtual_node):
    """Evaluate S = sum_e D_e^-1/2 (W_e + I) D_e^-1/2 with one dense adjacency matrix a channel.

    Labels have the vocabularies 3 and 2, attributes are two.
    """
    weights = {
        "none": [[1.0]] * len(graph.edges),
        "weight": graph.edge_attributes,
        "attributes": graph.edge_attributes,
        "labels": [[*np.eye(3)[first], *np.eye(2)[second]] for first, second in graph.edge_labels],
    }[edge_features]
    n = len(graph.node_labels)
    size = n + virtual_node
    result = np.zeros((size, size))
    for channel in range({"none": 1, "weight": 1, "attributes": 2, "labels": 5}[edge_features]):
        adjacency, linked = np.eye(size), np.eye(size)
        for (source, target), weight in zip(graph.edges, weights, strict=True):
            adjacency[target, source] = weight[channel]
            linked[target, source] = 1
        if virtual_node:
            adjacency[n, :n] = adjacency[:n, n] = 1 / n
            linked[n, :n] = linked[:n, n] = 1
        counted = linked if edge_features in ("none", "weight") else adjacency
        inverse_root = np.diag(counted.sum(axis=1) ** -0.5)
        result += inverse_root @ adjacency @ inverse_root
    return result


def test_a_path_is_weighted_by_degrees_that_count_the_node_itself(make_batch):
    operator = propagation_operator(make_batch([plain_graph(3, [(0, 1), (1, 0), (1, 2), (2, 1)])]))
    off = 6**-0.5
    expected = [[1 / 2, off, 0], [off, 1 / 3, off], [0, off, 1 / 2]]
    assert operator.dtype == np.float64
    np.testing.assert_allclose(operator.toarray(), expected, rtol=1e-15)


def test_a_channel_that_never_occurs_adds_one_to_every_self_weight(make_batch):
    batch = make_batch([plain_graph(2, [(0, 1), (1, 0)], [[0], [0]])], edge_labels=(3,))
    operator = propagation_operator(batch, "labels")
    np.testing.assert_allclose(operator.toarray(), [[2.5, 0.5], [0.5, 2.5]], rtol=1e-15)


@pytest.mark.parametrize(("edge_features", "self_weight"), [("none", 1), ("labels", 4), ("attributes", 2)])
def test_a_node_without_neighbours_keeps_its_features_once_a_channel(make_batch, edge_features, self_weight):
    batch = make_batch([plain_graph(1, [])], edge_labels=(4,), edge_attributes=2)
    np.testing.assert_array_equal(propagation_operator(batch, edge_features).toarray(), [[self_weight]])


def test_a_directed_edge_carries_from_source_to_target(make_batch):
    operator = propagation_operator(make_batch([plain_graph(2, [(0, 1)])]))
    np.testing.assert_allclose(operator.toarray(), [[1, 0], [ROOT_HALF, 0.5]], rtol=1e-15)


def test_a_scalar_weight_scales_the_message_and_not_the_degree(make_batch):
    graph = plain_graph(2, [(0, 1), (1, 0)], attributes=[[3.0], [5.0]])
    operator = propagation_operator(make_batch([graph], edge_attributes=1), "weight")
    np.testing.assert_allclose(operator.toarray(), [[0.5, 2.5], [1.5, 0.5]], rtol=1e-15)


def test_a_scalar_weight_of_zero_leaves_a_neighbour_that_counts(make_batch):
    graph = plain_graph(2, [(0, 1), (1, 0)], attributes=[[0.0], [0.0]])
    operator = propagation_operator(make_batch([graph], edge_attributes=1), "weight")
    np.testing.assert_allclose(operator.toarray(), [[0.5, 0], [0, 0.5]], rtol=1e-15)


def test_attributes_are_channels_and_their_degrees_are_sums_of_weights(make_batch):
    graph = plain_graph(2, [(0, 1), (1, 0)], attributes=[[3.0, 0.0], [3.0, 0.0]])
    operator = propagation_operator(make_batch([graph], edge_attributes=2), "attributes")
    # Channel 0: degrees 1 + 3; channel 1: degrees 1.
    np.testing.assert_allclose(operator.toarray(), [[1.25, 0.75], [0.75, 1.25]], rtol=1e-15)


def test_a_virtual_node_is_a_neighbour_over_an_edge_of_one_part_in_n(make_batch):
    batch = make_batch([plain_graph(2, [(0, 1), (1, 0)])]).with_virtual_nodes()
    # Every node has two neighbours: deg = 3 throughout.
    expected = [[1 / 3, 1 / 3, 1 / 6], [1 / 3, 1 / 3, 1 / 6], [1 / 6, 1 / 6, 1 / 3]]
    np.testing.assert_allclose(propagation_operator(batch).toarray(), expected, rtol=1e-15)


def test_a_virtual_node_weighs_the_same_in_every_channel(make_batch):
    batch = make_batch([plain_graph(2, [(0, 1), (1, 0)], [[0], [0]])], edge_labels=(2,)).with_virtual_nodes()
    # Real nodes: deg_0 = 1 + 1 + 1/2, deg_1 = 1 + 1/2; virtual node: 2 and 2.
    own = 1 / 2.5 + 1 / 1.5
    spoke = 0.5 * (5**-0.5 + 3**-0.5)
    expected = [[own, 0.4, spoke], [0.4, own, spoke], [spoke, spoke, 1]]
    np.testing.assert_allclose(propagation_operator(batch, "labels").toarray(), expected, rtol=1e-15)


def test_every_virtual_node_has_degree_two_in_every_channel(molhiv_500):
    one_hot = {tuple(bond): np.eye(13)[[bond[0], 5 + bond[1], 11 + bond[2]]].sum(axis=0) for bond in BONDS}
    channels = np.array([one_hot[tuple(bond)] for bond in molhiv_500.batch.edge_categories.tolist()])
    assert channels.any(axis=0).sum() > 6
    for channel in channels.T:
        batch = replace(
            molhiv_500.batch,
            schema=replace(molhiv_500.batch.schema, edge_category_counts=(), edge_attribute_width=1),
            edge_categories=np.empty((molhiv_500.batch.n_edges, 0), dtype=np.int64),
            edge_attributes=channel[:, None],
        ).with_virtual_nodes()
        # The self-weight of a node in a single channel is 1 / deg_e.
        virtual = batch.node_offsets[1:] - 1
        self_weights = propagation_operator(batch, "attributes").diagonal()[virtual]
        np.testing.assert_allclose(self_weights, 0.5, rtol=1e-12)


@pytest.mark.parametrize("virtual_node", [False, True])
def test_labels_are_the_same_as_their_one_hot_vectors_as_attributes(molhiv_500, virtual_node):
    batch = molhiv_500.batch
    one_hot = np.concatenate(
        [np.eye(count)[batch.edge_categories[:, column]] for column, count in enumerate((5, 6, 2))], axis=1
    )
    other = replace(
        batch,
        schema=replace(batch.schema, edge_category_counts=(), edge_attribute_width=13),
        edge_categories=np.empty((batch.n_edges, 0), dtype=np.int64),
        edge_attributes=one_hot,
    )
    if virtual_node:
        batch, other = batch.with_virtual_nodes(), other.with_virtual_nodes()
    difference = propagation_operator(batch, "labels") - propagation_operator(other, "attributes")
    assert abs(difference).max() < 1e-14


@st.composite
def small_graphs(draw):
    """One to four graphs of one to seven nodes, any edges that are not loops, two labels and two weights an edge."""
    graphs = []
    for _ in range(draw(st.integers(1, 4))):
        n_nodes = draw(st.integers(1, 7))
        ends = st.integers(0, n_nodes - 1)
        edges = draw(st.lists(st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1]), unique=True, max_size=14))
        weights = st.one_of(st.just(0.0), st.floats(0.001, 100))
        labels = [[draw(st.integers(0, 2)), draw(st.integers(0, 1))] for _ in edges]
        attributes = [[draw(weights), draw(weights)] for _ in edges]
        graphs.append(plain_graph(n_nodes, edges, labels, attributes))
    return graphs


def test_a_vocabulary_of_any_size_takes_no_memory(make_batch):
    batch = make_batch([plain_graph(2, [(0, 1), (1, 0)], [[5], [5]])], edge_labels=(2**31,))
    operator = propagation_operator(batch, "labels")
    # By hand: in the channel of the edges both degrees are 2, in all others 1.
    np.testing.assert_allclose(operator.toarray(), [[2**31 - 0.5, 0.5], [0.5, 2**31 - 0.5]], rtol=1e-15)


@pytest.mark.parametrize("virtual_node", [False, True])
@pytest.mark.parametrize("size", [2, 25, 26, 300])
def test_both_ways_to_weigh_labels_give_the_same_operator(make_batch, monkeypatch, size, virtual_node):
    rng = np.random.default_rng(size)
    pairs = [(i, j) for i in range(40) for j in range(40) if i != j and (i + j) % 3]
    labels = rng.integers(0, size, (len(pairs), 1)).tolist()
    batch = make_batch([plain_graph(40, pairs, labels)], edge_labels=(size,))
    if virtual_node:
        batch = batch.with_virtual_nodes()
    found = []
    for looked_up in (0, size):
        monkeypatch.setattr(diffusion, "LOOKED_UP", looked_up)
        found.append(propagation_operator(batch, "labels").toarray())
    np.testing.assert_allclose(*found, rtol=1e-14)


@pytest.mark.parametrize("virtual_node", [False, True])
@pytest.mark.parametrize("size", [26, 300])
def test_labels_that_are_counted_weigh_the_same_to_the_last_digit_as_sorted_ones(
    make_batch, monkeypatch, size, virtual_node
):
    rng = np.random.default_rng(size)
    # Edges in one direction alone: a label of a source need not be one of an edge that ends in it.
    pairs = [(i, j) for i in range(40) for j in range(i) if (i + j) % 3]
    batch = make_batch([plain_graph(40, pairs, rng.integers(0, size, (len(pairs), 1)).tolist())], edge_labels=(size,))
    if virtual_node:
        batch = batch.with_virtual_nodes()
    used = []
    unique, occurring = np.unique, diffusion._occurring
    monkeypatch.setattr(np, "unique", lambda *a, **options: used.append("sorted") or unique(*a, **options))
    monkeypatch.setattr(diffusion, "_occurring", lambda *a: used.append("counted") or occurring(*a))
    found = []
    for counted in (0, size * 40):
        monkeypatch.setattr(diffusion, "COUNTED", counted)
        found.append(propagation_operator(batch, "labels").toarray())
    assert used == ["sorted", "counted"]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("looked_up", [0, 2, 1024])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    graphs=small_graphs(),
    edge_features=st.sampled_from(["none", "labels", "attributes", "weight"]),
    virtual_node=st.booleans(),
)
def test_the_operator_is_the_sum_of_normalised_adjacencies(
    looked_up, make_batch, monkeypatch, graphs, edge_features, virtual_node
):
    monkeypatch.setattr(diffusion, "LOOKED_UP", looked_up)
    if edge_features == "weight":
        for graph in graphs:
            graph.edge_attributes = [row[:1] for row in graph.edge_attributes]
    width = 1 if edge_features == "weight" else 2
    batch = make_batch(graphs, edge_labels=(3, 2), edge_attributes=width)
    operator = propagation_operator(batch.with_virtual_nodes() if virtual_node else batch, edge_features)
    dense = operator.toarray()
    start = 0
    for graph in graphs:
        expected = by_matrix_products(graph, edge_features, virtual_node=virtual_node)
        stop = start + len(expected)
        np.testing.assert_allclose(dense[start:stop, start:stop], expected, rtol=1e-12, atol=1e-14)
        dense[start:stop, start:stop] = 0
        start = stop
    assert start == len(dense)
    assert not dense.any()


@pytest.mark.parametrize(
    ("edge_features", "schema", "words"),
    [
        ("labels", GraphSchema(), "no edge labels"),
        ("attributes", GraphSchema(), "no edge attributes"),
        ("weight", GraphSchema(), "these graphs have 0"),
        ("weight", GraphSchema(edge_attribute_width=3), "these graphs have 3"),
    ],
)
def test_edge_features_that_the_graphs_do_not_carry_are_refused(make_batch, edge_features, schema, words):
    batch = make_batch([plain_graph(2, [])], edge_attributes=schema.edge_attribute_width)
    with pytest.raises(ValueError, match=words):
        propagation_operator(batch, edge_features)


@pytest.mark.parametrize("sparse_features", [True, False])
@pytest.mark.parametrize("layers", [0, 1, 4])
def test_pooling_takes_all_their_mean_or_the_last_of_the_layers(make_batch, layers, sparse_features):
    from scipy import sparse

    operator = propagation_operator(make_batch([plain_graph(3, [(0, 1), (1, 0), (1, 2), (2, 1)])]))
    start = np.array([[1.0, 0], [0, 2.0], [-3.0, 0.5]])
    features = sparse.csr_array(start) if sparse_features else start.copy()
    powers = [np.linalg.matrix_power(operator.toarray(), layer) @ start for layer in range(layers + 1)]
    for pooling, expected in {
        "concat": np.hstack(powers),
        "average": np.mean(powers, axis=0),
        "final": powers[-1],
    }.items():
        result = pooled(operator, features, layers=layers, pooling=pooling)
        np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(features.toarray() if sparse_features else features, start)
