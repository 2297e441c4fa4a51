"""What a model says of the points it was fitted to: nothing is found in models as they are, and every change is."""

import dataclasses
import itertools
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from wegl_dask.features import build_features
from wegl_dask.refitted import TOLERANCE, FittedPoints
from wegl_dask.saved_model import Model, Origin
from wegl_dask.shards import Shard
from wegl_dask.sources.base import LabelSchema

TABLE = {"standardize": True, "method": "exact", "fit_on": "all"}

SETTINGS = {
    "mutag, scaled columns": ("mutag", ("labels",), {"edge_features": "labels", "pooling": "average"}),
    "mutag, columns as they are": ("mutag", ("labels",), {"standardize": False}),
    "mutag, axes of columns as they are": ("mutag", ("labels", "degrees"), {"standardize": False, "components": 4}),
    "enzymes, axes": ("enzymes", ("labels", "attributes"), {"pooling": "concat", "components": 9}),
    "molecules, encoded": ("molhiv_500", ("atom_embedding",), {"virtual_node": True}),
    "molecules, many layers": (
        "molhiv_500",
        ("atom_embedding",),
        {"edge_features": "labels", "virtual_node": True, "layers": 8, "pooling": "concat", "components": 20},
    ),
}


@pytest.fixture(scope="module")
def fitted(real_data, fit_points):
    """Fit a model by the settings of a name: its points, and the graphs."""

    @cache
    def fit(name):
        data, features, options = SETTINGS[name]
        batch = real_data(data).batch
        built = build_features(batch.schema, features, max_degree=10, degree_clip=10, embedding_width=300, seed=5)
        return fit_points(batch, built, **options), batch

    return fit


def differences(points, batch, *, splits=None, n_shards=3, counts=None, **table):
    """Compare a model with the graphs of some shards."""
    model = Model(batch.schema, points, np.zeros((1, points.dimension)), 1.0, False, "exact", 0.01, 4_000_000)
    n_nodes = int(batch.node_offsets[-1]) + points.nodes.virtual_node * batch.n_graphs
    n_graphs, n_nodes = counts or (batch.n_graphs, n_nodes)
    check = FittedPoints(model, Origin({"projection": TABLE | table}, "", n_graphs, n_nodes))
    bounds = np.linspace(0, batch.n_graphs, n_shards + 1).astype(int)
    splits = ["test"] * batch.n_graphs if splits is None else splits
    for start, stop in itertools.pairwise(bounds):
        rows = pa.table({"split": pa.array(splits[start:stop], pa.string())})
        check.add(Shard(batch.slice(start, stop), rows, LabelSchema()))
    return [*check.differences()]


def changed(points, **arrays):
    return dataclasses.replace(points, projection=dataclasses.replace(points.projection, **arrays))


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_is_found_in_models_as_they_are(name, fitted):
    points, batch = fitted(name)
    assert differences(points, batch, standardize=SETTINGS[name][2].get("standardize", True)) == []


def test_only_the_graphs_of_the_split_count_where_the_fit_is_on_them(real_data, fit_points):
    batch = real_data("mutag").batch
    features = build_features(batch.schema, ("labels",), max_degree=10, degree_clip=10, embedding_width=300, seed=5)
    train = np.arange(batch.n_graphs) % 3 > 0
    points = fit_points(batch.take(np.flatnonzero(train)), features, components=3)
    splits = np.where(train, "train", "valid").tolist()
    counts = (int(train.sum()), int(np.diff(batch.node_offsets)[train].sum()))
    assert differences(points, batch, splits=splits, counts=counts, fit_on="train") == []
    everything = differences(points, batch, splits=splits, fit_on="all")
    assert [message.split(" differs")[0].split(" have")[0] for message in everything] == [
        "the points it was fitted to",
        "the variance of the points it was fitted to",
        "the points it was fitted to",
    ]
    assert differences(points, batch, splits=splits, counts=counts, fit_on="all") == [
        f"it was fitted to {counts[0]} graphs with {counts[1]} points; those of the run that count for it are 188, with 3371"
    ]


@pytest.mark.parametrize("name", ["mutag, scaled columns", "molecules, many layers"])
def test_another_mean_or_another_variance_is_found(name, fitted):
    points, batch = fitted(name)
    projection = points.projection
    (message,) = differences(changed(points, mean=projection.mean + 1e-3 * projection.scale), batch)
    assert message.startswith("the points it was fitted to have mean ")
    variances = projection.variances.copy()
    variances[1] *= 1.001
    (message,) = differences(changed(points, variances=variances), batch)
    change = -projection.variances[1] * 1e-3
    assert message == (
        f"the variance of the points it was fitted to differs by {change:.3g} along axis 1 from the one it holds"
    )


@pytest.mark.parametrize("name", ["enzymes, axes", "molecules, many layers"])
def test_axes_that_are_not_the_principal_ones_are_found(name, fitted):
    points, batch = fitted(name)
    components = points.projection.components.copy()
    # A turn by a thousandth changes the variances by a millionth, and the covariance by a thousandth.
    turn = np.array([[np.cos(1e-3), np.sin(1e-3)], [-np.sin(1e-3), np.cos(1e-3)]])
    components[:2] = turn @ components[:2]
    messages = differences(changed(points, components=components), batch)
    assert any(" have a covariance of " in message for message in messages)


def test_the_variances_of_a_randomised_pca_may_be_too_small_and_not_too_large(fitted):
    points, batch = fitted("enzymes, axes")
    variances = points.projection.variances
    assert differences(changed(points, variances=variances * 0.95), batch, method="randomized") == []
    (message,) = differences(changed(points, variances=variances * 1.05), batch, method="randomized")
    assert message.startswith("the variance of the points it was fitted to differs by -")


def test_columns_far_from_the_origin_may_have_the_rounding_errors_that_come_with_it(real_data, fit_points):
    batch = real_data("enzymes").batch
    moved = dataclasses.replace(batch, node_attributes=batch.node_attributes + 1e10)
    features = build_features(batch.schema, ("attributes",), max_degree=10, degree_clip=10, embedding_width=300, seed=5)
    points = fit_points(moved, features, layers=0, components=4)
    rounded = points.evaluate(moved)[0].mean(axis=0) / np.sqrt(points.projection.variances[0])
    assert np.abs(rounded).max() > TOLERANCE
    assert differences(points, moved) == []
