"""Node embeddings against the paper's equations, written out a node, an edge and a channel at a time."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import wegl_dask.points as points_module
from wegl_dask import diffused_columns
from wegl_dask.diffused_columns import DiffusedColumns
from wegl_dask.features import build_features, degrees
from wegl_dask.fitting import draw_points
from wegl_dask.points import NodeEmbedding, PointEmbedding
from wegl_dask.projection import Moments

POOLINGS = ("concat", "average", "final")


def layers_by_messages(start, edges, n_layers, *, n_channels, virtual_node):
    """Send x^(0) .. x^(L) along the edges of one graph, (source, target, weight of each channel).

    `n_channels` is None for scalar weights, whose degrees count neighbours (paper, equation eq:wl_diff); else degrees
    add up weights, channel by channel (equation eq:wl_diff_binary_edge_features).
    """
    n, width = len(start), n_channels or 1
    current = [np.array(row, dtype=float) for row in start]
    edges = list(edges)
    if virtual_node:
        current.append(np.zeros_like(current[0]))
        for node in range(n):
            edges += [(node, n, [1 / n] * width), (n, node, [1 / n] * width)]
    degree = [[1.0] * width for _ in current]
    for _, target, weights in edges:
        for channel in range(width):
            degree[target][channel] += 1 if n_channels is None else weights[channel]
    messages = []
    for source, target, weights in edges + [(node, node, [1.0] * width) for node in range(len(current))]:
        coefficient = 0.0
        for channel in range(width):
            coefficient += weights[channel] / math.sqrt(degree[source][channel] * degree[target][channel])
        messages.append((source, target, coefficient))
    layers = [current]
    for _ in range(n_layers):
        following = [np.zeros_like(row) for row in current]
        for source, target, coefficient in messages:
            following[target] += coefficient * current[source]
        layers.append(following)
        current = following
    return layers


def pool_by_hand(layers, pooling):
    """Pool the layers of every node of one graph."""
    rows = []
    for node in range(len(layers[0])):
        history = [layer[node] for layer in layers]
        rows.append(
            {"concat": np.concatenate(history), "average": sum(history) / len(history), "final": history[-1]}[pooling]
        )
    return np.array(rows)


def one_hot(label, size):
    return [float(value == label) for value in range(size)]


def xavier_tables(seed, width):
    rng = np.random.default_rng(seed)
    bounds = [math.sqrt(6 / (rows + width)) for rows in (119, 5, 12, 12, 10, 6, 6, 2, 2)]
    sizes = (119, 5, 12, 12, 10, 6, 6, 2, 2)
    return [rng.uniform(-bound, bound, (rows, width)) for rows, bound in zip(sizes, bounds, strict=True)]


def start_by_hand(name, graph, tables):
    """Initial features of each node of a plain graph of a real data set."""
    if name == "molhiv_500":
        return [sum(table[value] for table, value in zip(tables, row, strict=True)) for row in graph.node_labels]
    if name == "enzymes":
        return [
            one_hot(label, 3) + list(numbers)
            for (label,), numbers in zip(graph.node_labels, graph.node_attributes, strict=True)
        ]
    size = {"mutag": 7, "ptc_mr": 18}[name]
    return [one_hot(label, size) for (label,) in graph.node_labels]


def edges_by_hand(name, graph):
    """Edges of a plain graph with the weight of each channel: 1, or the one-hot labels."""
    if name == "enzymes":
        return [(source, target, [1.0]) for source, target in graph.edges]
    sizes = (5, 6, 2) if name == "molhiv_500" else (4,)
    return [
        (source, target, [entry for label, size in zip(labels, sizes, strict=True) for entry in one_hot(label, size)])
        for (source, target), labels in zip(graph.edges, graph.edge_labels, strict=True)
    ]


FEATURES = {
    "mutag": ("labels",),
    "ptc_mr": ("labels",),
    "enzymes": ("labels", "attributes"),
    "molhiv_500": ("atom_embedding",),
}
EDGE_FEATURES = {"mutag": "labels", "ptc_mr": "labels", "enzymes": "none", "molhiv_500": "labels"}
N_CHANNELS = {"mutag": 4, "ptc_mr": 4, "enzymes": None, "molhiv_500": 13}


def features_of(batch, names, *, embedding_width=12, seed=4):
    return build_features(batch.schema, names, max_degree=5, degree_clip=5, embedding_width=embedding_width, seed=seed)


@pytest.mark.parametrize("virtual_node", [False, True])
@pytest.mark.parametrize("name", FEATURES)
def test_node_embeddings_are_those_of_the_papers_equations(real_data, name, virtual_node):
    data = real_data(name)
    tables = xavier_tables(seed=4, width=12)
    graphs = []
    for graph in data.graphs:
        start, edges = start_by_hand(name, graph, tables), edges_by_hand(name, graph)
        graphs.append(layers_by_messages(start, edges, 4, n_channels=N_CHANNELS[name], virtual_node=virtual_node))
    features = features_of(data.batch, FEATURES[name])
    for n_layers in (0, 1, 4):
        for pooling in POOLINGS:
            nodes = NodeEmbedding(features, EDGE_FEATURES[name], virtual_node, n_layers, pooling)
            found = nodes.evaluate(data.batch)
            expected = np.concatenate([pool_by_hand(layers[: n_layers + 1], pooling) for layers in graphs])
            assert found.shape == expected.shape == (len(expected), nodes.width)
            scale = np.linalg.norm(expected, axis=1, keepdims=True)
            error = np.linalg.norm(found - expected, axis=1, keepdims=True)
            assert (error <= 1e-9 * scale).all(), f"{pooling}, {n_layers} layers: off by {(error / scale).max()}"


@st.composite
def small_graphs(draw):
    """One to three graphs with attributes and any edges that are not loops, weighed by two numbers from 0."""
    graphs = []
    number = st.floats(-10, 10)
    weight = st.one_of(st.just(0.0), st.floats(0.01, 100))
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 6))
        ends = st.integers(0, n - 1)
        edges = draw(st.lists(st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1]), unique=True, max_size=12))
        graphs.append(
            SimpleNamespace(
                node_labels=[[]] * n,
                node_attributes=[[draw(number), draw(number)] for _ in range(n)],
                edges=edges,
                edge_labels=[[draw(st.integers(0, 2))] for _ in edges],
                edge_attributes=[[draw(weight), draw(weight)] for _ in edges],
            )
        )
    return graphs


@settings(max_examples=60)
@given(
    graphs=small_graphs(),
    edge_features=st.sampled_from(["none", "labels", "attributes", "weight"]),
    virtual_node=st.booleans(),
    n_layers=st.integers(0, 3),
    pooling=st.sampled_from(POOLINGS),
)
def test_directed_weighted_and_isolated_nodes_follow_the_equations(
    *, make_batch, graphs, edge_features, virtual_node, n_layers, pooling
):
    n_channels = {"none": None, "weight": None, "attributes": 2, "labels": 3}[edge_features]
    if edge_features == "weight":
        for graph in graphs:
            graph.edge_attributes = [row[:1] for row in graph.edge_attributes]
    n_attributes = 1 if edge_features == "weight" else 2
    batch = make_batch(graphs, edge_labels=(3,), node_attributes=2, edge_attributes=n_attributes)
    nodes = NodeEmbedding(features_of(batch, ["attributes"]), edge_features, virtual_node, n_layers, pooling)
    expected = []
    for graph in graphs:
        weights = {
            "none": [[1.0]] * len(graph.edges),
            "weight": graph.edge_attributes,
            "attributes": graph.edge_attributes,
            "labels": [one_hot(label, 3) for (label,) in graph.edge_labels],
        }[edge_features]
        edges = [(*pair, weight) for pair, weight in zip(graph.edges, weights, strict=True)]
        layers = layers_by_messages(
            graph.node_attributes, edges, n_layers, n_channels=n_channels, virtual_node=virtual_node
        )
        expected.append(pool_by_hand(layers, pooling))
    np.testing.assert_allclose(nodes.evaluate(batch), np.concatenate(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("n_layers", [0, 1, 4])
@pytest.mark.parametrize("components", [None, 5])
@pytest.mark.parametrize(("name", "virtual_node"), [("ptc_mr", False), ("molhiv_500", True)])
def test_points_are_the_node_embeddings_standardised_and_projected(
    *, real_data, fit_points, name, virtual_node, components, n_layers, pooling
):
    batch = real_data(name).batch.slice(0, 100)
    features = features_of(batch, FEATURES[name])
    model = fit_points(
        batch, features, "labels", virtual_node=virtual_node, layers=n_layers, pooling=pooling, components=components
    )
    embeddings = model.nodes.evaluate(batch)
    expected = (embeddings - model.projection.mean) / model.projection.scale
    if components:
        expected = expected @ model.projection.components.T
    found, offsets = model.evaluate(batch)
    assert found.shape == (len(expected), model.dimension)
    np.testing.assert_array_equal(offsets, batch.node_offsets + virtual_node * np.arange(batch.n_graphs + 1))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    # What a fit standardises has mean 0 on what it was fitted to, virtual nodes included.
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize("embedding_width", [12, 80])
@pytest.mark.parametrize(("pooling", "n_layers"), [("final", 4), ("concat", 2), ("concat", 8), ("average", 3)])
def test_the_projection_of_molecules_is_scikit_learns_of_the_encoded_node_embeddings(
    molhiv_500, fit_points, embedding_width, pooling, n_layers
):
    batch = molhiv_500.batch.slice(0, 40)
    features = features_of(batch, ["atom_embedding"], embedding_width=embedding_width)
    model = fit_points(batch, features, "labels", virtual_node=True, layers=n_layers, pooling=pooling, components=10)
    embeddings = model.nodes.evaluate(batch)
    scaler = StandardScaler().fit(embeddings)
    pca = PCA(10, svd_solver="full").fit(scaler.transform(embeddings))
    np.testing.assert_allclose(model.projection.mean, scaler.mean_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.projection.scale, scaler.scale_, rtol=1e-9)
    np.testing.assert_allclose(model.projection.components, pca.components_, atol=1e-7)
    n = len(embeddings)
    np.testing.assert_allclose(model.projection.variances, pca.explained_variance_ * (n - 1) / n, rtol=1e-9)
    expected = pca.transform(scaler.transform(embeddings))
    np.testing.assert_allclose(model.evaluate(batch)[0], expected, atol=1e-6)


def seen_of(batch, features):
    return features.seen_columns([np.unique(column) for column in batch.node_categories.T], np.unique(degrees(batch)))


def assert_same_moments(found, expected):
    assert found.count == expected.count
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(found.deviations, expected.deviations, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_moments_cover_the_columns_that_occur_once_a_layer(molhiv_500, pooling, scatter):
    batch = molhiv_500.batch.slice(0, 60)
    features = features_of(batch, ["labels", "degrees"])
    nodes = NodeEmbedding(features, "labels", virtual_node=True, layers=2, pooling=pooling)
    seen = seen_of(batch, features)
    assert len(seen) < features.n_columns
    layers = np.split(nodes.evaluate(batch), nodes.repeats, axis=1)
    expected = Moments.of(np.hstack([layer[:, seen] for layer in layers]), scatter=scatter)
    assert_same_moments(nodes.moments(batch, seen, scatter=scatter), expected)
    assert nodes.moments_width(seen) == len(seen) * (3 if pooling == "concat" else 1)


def test_moments_are_taken_in_the_narrower_of_raw_and_encoded_space(molhiv_500):
    batch = molhiv_500.batch.slice(0, 60)
    wide = features_of(batch, ["atom_embedding"], embedding_width=300)
    narrow = features_of(batch, ["atom_embedding"], embedding_width=8)
    seen = seen_of(batch, wide)
    assert 8 < len(seen) < 300
    nodes = NodeEmbedding(wide, "labels", virtual_node=False, layers=1, pooling="final")
    labels = NodeEmbedding(features_of(batch, ["labels"]), "labels", virtual_node=False, layers=1, pooling="final")
    expected = Moments.of(labels.evaluate(batch)[:, seen], scatter=True)
    assert_same_moments(nodes.moments(batch, seen, scatter=True), expected)
    assert nodes.moments_width(seen) == len(seen)
    nodes = NodeEmbedding(narrow, "labels", virtual_node=False, layers=1, pooling="final")
    assert nodes.moments_width(seen) == 8
    assert_same_moments(nodes.moments(batch, seen, scatter=True), Moments.of(nodes.evaluate(batch), scatter=True))


@pytest.mark.parametrize("graph_entries", [1, 300, 5000])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("names", "layers"), [(("labels", "degrees"), 2), (("atom_embedding",), 2), (("labels",), 0)])
def test_the_columns_of_a_large_graph_need_not_be_in_memory_together(
    monkeypatch, molhiv_500, names, layers, pooling, graph_entries
):
    batch = molhiv_500.batch.slice(0, 6)
    features = features_of(batch, names, embedding_width=8)
    nodes = NodeEmbedding(features, "labels", virtual_node=True, layers=layers, pooling=pooling)
    seen = seen_of(batch, features)
    at_once = nodes.moments(batch, seen, scatter=True)
    monkeypatch.setattr("wegl_dask.diffused_columns.GRAPH_ENTRIES", graph_entries)
    assert_same_moments(nodes.moments(batch, seen, scatter=True), at_once)


@pytest.mark.parametrize("graph_entries", [100, 16_000_000])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("names", [("labels", "degrees"), ("atom_embedding",), ("degrees",)])
def test_moments_taken_graph_by_graph_are_those_of_all_graphs(monkeypatch, molhiv_500, names, pooling, graph_entries):
    batch = molhiv_500.batch.slice(0, 30)
    features = features_of(batch, names, embedding_width=300)
    nodes = NodeEmbedding(features, "labels", virtual_node=True, layers=2, pooling=pooling)
    seen = seen_of(batch, features)
    by_graph = []
    monkeypatch.setattr(diffused_columns, "CALL_PRODUCTS", -(10**9))
    monkeypatch.setattr(diffused_columns, "GRAPH_ENTRIES", graph_entries)
    add = DiffusedColumns._add_products_of
    monkeypatch.setattr(DiffusedColumns, "_add_products_of", lambda *args: by_graph.append(args[2]) or add(*args))
    found = nodes.moments(batch, seen, scatter=True)
    raw = replace(nodes, features=replace(features, encoder=None))
    columns = (np.arange(nodes.repeats)[:, None] * features.n_columns + seen).ravel()
    assert_same_moments(found, Moments.of(raw.evaluate(batch)[:, columns], scatter=True))
    assert len(by_graph) == batch.n_graphs


@pytest.mark.parametrize("block_entries", [1, 7, 50, 1000, 20_000])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("names", [("labels",), ("atom_embedding",)])
@pytest.mark.parametrize("scatter", [False, True])
def test_moments_do_not_depend_on_the_size_of_the_blocks(
    *, molhiv_500, monkeypatch, names, pooling, block_entries, scatter
):
    batch = molhiv_500.batch.slice(0, 8)
    features = features_of(batch, names, embedding_width=9)
    nodes = NodeEmbedding(features, "labels", virtual_node=True, layers=2, pooling=pooling)
    seen = seen_of(batch, features)
    whole = nodes.moments(batch, seen, scatter=scatter)
    for module in (points_module, diffused_columns):
        monkeypatch.setattr(module, "BLOCK_ENTRIES", block_entries)
    assert_same_moments(nodes.moments(batch, seen, scatter=scatter), whole)


def test_no_graphs_have_no_moments_and_no_points(mutag, fit_points):
    features = features_of(mutag.batch, ["labels"])
    model = fit_points(mutag.batch, features, "labels", virtual_node=True, components=3)
    nothing = mutag.batch.slice(0, 0)
    for scatter in (True, False):
        moments = model.nodes.moments(nothing, np.arange(7), scatter=scatter)
        assert moments.count == 0
        assert not moments.deviations.any()
    points, offsets = model.evaluate(nothing)
    assert points.shape == (0, 3)
    assert offsets.tolist() == [0]


@pytest.mark.parametrize("name", ["enzymes", "molhiv_500"])
def test_the_narrow_types_of_graph_shards_give_the_same_points(embedded, name):
    case = embedded(name)
    batch = replace(
        case.batch,
        edge_source=case.batch.edge_source.astype(np.int32),
        edge_target=case.batch.edge_target.astype(np.int32),
        node_categories=case.batch.node_categories.astype(np.int16),
        edge_categories=case.batch.edge_categories.astype(np.int16),
        node_attributes=case.batch.node_attributes.astype(np.float32),
    )
    wide = replace(case.batch, node_attributes=batch.node_attributes.astype(np.float64))
    np.testing.assert_array_equal(case.model.evaluate(batch)[0], case.model.evaluate(wide)[0])


@pytest.mark.parametrize("name", ["ptc_mr", "molhiv_500"])
def test_a_graphs_points_do_not_depend_on_the_graphs_beside_it(embedded, name):
    case = embedded(name)
    for graph in range(0, case.batch.n_graphs, 29):
        alone, _ = case.model.evaluate(case.batch.slice(graph, graph + 1))
        beside = case.points[case.offsets[graph] : case.offsets[graph + 1]]
        np.testing.assert_allclose(alone, beside, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["ptc_mr", "molhiv_500"])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.3, 1.0])
def test_drawn_points_are_points_of_the_batch_without_repeats(embedded, name, share):
    case = embedded(name)
    count = int(share * len(case.points))
    drawn = draw_points(case.model, case.batch, count, np.random.default_rng(5))
    assert len(drawn) == count
    assert counted(drawn) <= counted(case.points)


def counted(points):
    """How often every point occurs, but for what depends on the graphs that it was computed with."""
    return Counter(map(tuple, np.round(points, 9) + 0.0))


def test_points_are_drawn_beside_graphs_without_nodes(mutag, fit_points):
    features = features_of(mutag.batch, ["labels"])
    model = fit_points(mutag.batch, features, "labels", components=3)
    sizes = mutag.batch.node_offsets[1:4]
    with_empty = replace(
        mutag.batch.slice(0, 3),
        node_offsets=np.array([0, 0, sizes[0], sizes[0], sizes[1], sizes[2], sizes[2]]),
        edge_offsets=mutag.batch.edge_offsets[[0, 0, 1, 1, 2, 3, 3]],
    )
    points, _ = model.evaluate(mutag.batch.slice(0, 3))
    for count in range(1, len(points)):
        drawn = draw_points(model, with_empty, count, np.random.default_rng(count))
        assert len(drawn) == count
        assert counted(drawn) <= counted(points)
    drawn = draw_points(model, with_empty, len(points), np.random.default_rng(0))
    np.testing.assert_allclose(drawn, points, rtol=1e-12, atol=1e-12)


def test_more_components_than_one_hot_labels_vary_in_are_refused(mutag, fit_points):
    features = features_of(mutag.batch, ["labels"])
    # Without layers, seven labels are one-hot: they add up to 1 and vary in six directions.
    assert isinstance(fit_points(mutag.batch, features, layers=0, components=6), PointEmbedding)
    with pytest.raises(ValueError, match="components = 7, and the node embeddings vary in 6 directions only"):
        fit_points(mutag.batch, features, layers=0, components=7)
