import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from wegl_dask.features import (
    atom_embedding,
    build_features,
    default_edge_features,
    default_features,
    degrees,
    is_virtual,
)
from wegl_dask.graphs import GraphSchema

OGB_TABLES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
MOLECULES = GraphSchema(node_category_counts=OGB_TABLES, edge_category_counts=(5, 6, 2))


@pytest.fixture(scope="module")
def two_graphs(make_batch):
    """A star of four nodes, then an edge and a node of its own; two labels and two attributes a node."""
    star = SimpleNamespace(
        node_labels=[[0, 1], [2, 0], [1, 1], [2, 1]],
        node_attributes=[[0.5, -1.0], [1.5, -2.0], [2.5, -3.0], [3.5, -4.0]],
        edges=[(0, 1), (1, 0), (0, 2), (2, 0), (0, 3), (3, 0)],
        edge_labels=[[]] * 6,
        edge_attributes=[[]] * 6,
    )
    pair = SimpleNamespace(
        node_labels=[[1, 0], [0, 0], [2, 1]],
        node_attributes=[[4.5, -5.0], [5.5, -6.0], [6.5, -7.0]],
        edges=[(0, 1), (1, 0)],
        edge_labels=[[]] * 2,
        edge_attributes=[[]] * 2,
    )
    return make_batch([star, pair], node_labels=(3, 2), node_attributes=2)


def layout(schema, *names, max_degree=10, degree_clip=10, embedding_width=4, seed=0):
    return build_features(
        schema, names, max_degree=max_degree, degree_clip=degree_clip, embedding_width=embedding_width, seed=seed
    )


def test_labels_are_one_hot_one_block_a_categorical_feature(two_graphs):
    features = layout(two_graphs.schema, "labels")
    assert (features.n_columns, features.n_features, features.encoder) == (5, 5, None)
    expected = [
        [1, 0, 0, 0, 1],
        [0, 0, 1, 1, 0],
        [0, 1, 0, 0, 1],
        [0, 0, 1, 0, 1],
        [0, 1, 0, 1, 0],
        [1, 0, 0, 1, 0],
        [0, 0, 1, 0, 1],
    ]
    raw = features.raw_matrix(two_graphs)
    assert raw.dtype == np.float64
    np.testing.assert_array_equal(raw.toarray(), expected)


def test_large_vocabularies_have_columns_of_their_own_even_where_categories_are_stored_in_two_bytes(make_batch):
    graph = SimpleNamespace(
        node_labels=[[5, 19_999]], node_attributes=[[]], edges=[], edge_labels=[], edge_attributes=[]
    )
    batch = make_batch([graph], node_labels=(20_000, 20_000))
    batch = replace(batch, node_categories=batch.node_categories.astype(np.int16))
    assert layout(batch.schema, "labels").raw_matrix(batch).indices.tolist() == [5, 39_999]


def test_large_vocabularies_need_no_dense_matrix():
    tracemalloc.start()
    features = layout(GraphSchema((30_000, 500)), "labels", "degrees")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert features.n_features == 30_511
    # The identity of that width has 7 GB.
    assert peak < 1e6


def test_degrees_are_one_hot_and_count_no_self_connection(two_graphs):
    raw = layout(two_graphs.schema, "degrees", max_degree=3).raw_matrix(two_graphs).toarray()
    np.testing.assert_array_equal(raw, np.eye(4)[[3, 1, 1, 1, 1, 1, 0]])


def test_degrees_above_the_clip_count_as_the_clip(two_graphs):
    features = layout(two_graphs.schema, "degrees", max_degree=3, degree_clip=2)
    np.testing.assert_array_equal(features.raw_matrix(two_graphs).toarray(), np.eye(3)[[2, 1, 1, 1, 1, 1, 0]])


def test_degrees_that_the_fit_has_not_seen_count_as_the_largest_it_has_seen(two_graphs):
    features = layout(two_graphs.schema, "degrees", max_degree=1)
    np.testing.assert_array_equal(features.raw_matrix(two_graphs).toarray(), np.eye(2)[[1, 1, 1, 1, 1, 1, 0]])


def test_a_directed_edge_adds_to_the_degree_of_its_target_alone(make_batch):
    graph = SimpleNamespace(
        node_labels=[[], [], []],
        node_attributes=[[]] * 3,
        edges=[(0, 1), (2, 1)],
        edge_labels=[[]] * 2,
        edge_attributes=[[]] * 2,
    )
    np.testing.assert_array_equal(degrees(make_batch([graph])), [0, 2, 0])


def test_features_are_laid_out_in_the_order_they_are_named(two_graphs):
    raw = layout(two_graphs.schema, "attributes", "degrees", "labels", max_degree=3).raw_matrix(two_graphs).toarray()
    np.testing.assert_array_equal(raw[0], [0.5, -1.0, 0, 0, 0, 1, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(raw[6], [6.5, -7.0, 1, 0, 0, 0, 0, 0, 1, 0, 1])


def test_virtual_nodes_have_no_features_and_leave_the_others_as_they_were(two_graphs):
    features = layout(two_graphs.schema, "attributes", "degrees", "labels", max_degree=3)
    plain = features.raw_matrix(two_graphs).toarray()
    extended = two_graphs.with_virtual_nodes()
    virtual = is_virtual(extended)
    np.testing.assert_array_equal(np.flatnonzero(virtual), [4, 8])
    raw = features.raw_matrix(extended).toarray()
    np.testing.assert_array_equal(raw[virtual], 0)
    np.testing.assert_array_equal(raw[~virtual], plain)
    np.testing.assert_array_equal(degrees(extended)[~virtual], degrees(two_graphs))


def test_degrees_agree_with_the_listed_neighbours_of_real_graphs(ptc_mr):
    expected = [
        len({source for source, target in graph.edges if target == node})
        for graph in ptc_mr.graphs
        for node in range(len(graph.node_labels))
    ]
    np.testing.assert_array_equal(degrees(ptc_mr.batch), expected)


def test_seen_columns_are_the_columns_that_are_not_zero(molhiv_500):
    features = layout(molhiv_500.batch.schema, "labels", "degrees", max_degree=6, degree_clip=3)
    categories = [np.unique(column) for column in molhiv_500.batch.node_categories.T]
    seen = features.seen_columns(categories, np.unique(degrees(molhiv_500.batch)))
    raw = features.raw_matrix(molhiv_500.batch).toarray()
    unseen = np.setdiff1d(np.arange(features.n_columns), seen)
    assert (np.diff(seen) > 0).all()
    assert len(unseen) > 50
    assert not raw[:, unseen].any()
    assert raw[:, seen].any(axis=0).all()


def test_attribute_columns_count_as_seen(two_graphs):
    features = layout(two_graphs.schema, "attributes", "labels")
    np.testing.assert_array_equal(features.seen_columns([[1], []], []), [0, 1, 3])


def test_the_atom_embedding_sums_a_row_of_each_table(molhiv_500):
    features = layout(MOLECULES, "atom_embedding", embedding_width=6, seed=3)
    rng = np.random.default_rng(3)
    tables = [rng.uniform(-((6 / (n + 6)) ** 0.5), (6 / (n + 6)) ** 0.5, (n, 6)) for n in OGB_TABLES]
    encoded = features.raw_matrix(molhiv_500.batch) @ features.encoder
    atoms = [labels for graph in molhiv_500.graphs for labels in graph.node_labels]
    expected = [sum(table[label] for table, label in zip(tables, labels, strict=True)) for labels in atoms]
    np.testing.assert_allclose(encoded, expected, rtol=1e-14, atol=1e-14)


def test_the_atom_embedding_goes_with_other_features_side_by_side(molhiv_500):
    batch = molhiv_500.batch.slice(0, 20)
    both = layout(MOLECULES, "degrees", "atom_embedding", max_degree=4, embedding_width=3, seed=1)
    assert (both.n_columns, both.n_features) == (5 + 174, 5 + 3)
    one_hot = layout(MOLECULES, "degrees", max_degree=4).raw_matrix(batch).toarray()
    atoms = layout(MOLECULES, "labels").raw_matrix(batch) @ atom_embedding(3, seed=1)
    np.testing.assert_allclose(both.raw_matrix(batch) @ both.encoder, np.hstack([one_hot, atoms]), rtol=1e-14)


def test_atom_embedding_tables_fill_their_xavier_bounds():
    width = 300
    table = atom_embedding(width, seed=0)
    assert table.shape == (174, width)
    assert table.dtype == np.float64
    for rows, part in zip(OGB_TABLES, np.split(table, np.cumsum(OGB_TABLES)[:-1]), strict=True):
        bound = (6 / (rows + width)) ** 0.5
        assert 0.98 * bound < np.abs(part).max() <= bound
        assert abs(part.mean()) < 0.1 * bound
        # A uniform variable between -b and b has the variance b**2 / 3.
        assert part.var() == pytest.approx(bound**2 / 3, rel=0.1)


def test_the_atom_embedding_is_a_function_of_the_seed_and_the_width():
    np.testing.assert_array_equal(atom_embedding(20, seed=7), atom_embedding(20, seed=7))
    assert not np.isin(atom_embedding(20, seed=7), atom_embedding(20, seed=8)).any()


def test_the_atom_embedding_does_not_depend_on_the_data_or_on_other_features():
    alone = layout(MOLECULES, "atom_embedding", embedding_width=5, seed=2)
    with_degrees = layout(MOLECULES, "atom_embedding", "degrees", max_degree=2, embedding_width=5, seed=2)
    np.testing.assert_array_equal(alone.encoder, atom_embedding(5, seed=2))
    np.testing.assert_array_equal(with_degrees.encoder[:174, :5], alone.encoder)


@pytest.mark.parametrize(
    ("schema", "names", "words"),
    [
        (GraphSchema((7,)), ["attributes"], "attributes, and these graphs have none"),
        (GraphSchema(), ["labels"], "labels, and these graphs have none"),
        (GraphSchema((119, 5)), ["atom_embedding"], r"these graphs have \[119, 5\]"),
        (GraphSchema((7,)), ["colours"], "'colours' is no node feature"),
    ],
)
def test_features_that_the_graphs_do_not_carry_are_refused(schema, names, words):
    with pytest.raises(ValueError, match=words):
        layout(schema, *names)


@pytest.mark.parametrize(
    ("schema", "expected", "of_edges"),
    [
        (MOLECULES, ("atom_embedding",), "labels"),
        (GraphSchema((3,), node_attribute_width=18), ("labels",), "none"),
        (GraphSchema(node_attribute_width=2, edge_attribute_width=1), ("attributes",), "none"),
        (GraphSchema(edge_category_counts=(4,)), ("degrees",), "labels"),
        (GraphSchema(edge_category_counts=(0, 0)), ("degrees",), "none"),
    ],
)
def test_features_that_no_job_names_follow_from_what_the_graphs_carry(schema, expected, of_edges):
    assert default_features(schema) == expected
    assert default_edge_features(schema) == of_edges
