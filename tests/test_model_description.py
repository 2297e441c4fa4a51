"""Models that somebody has made or altered, with checksums that are right: they are refused, with what is wrong."""

import json
from functools import reduce
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from wegl_dask import WEGL
from wegl_dask.checksums import unsealed
from wegl_dask.errors import WeglError
from wegl_dask.model_files import encode_model

STORED = Path(__file__).parent / "data" / "model-format-1"


@pytest.fixture
def load_altered(tmp_path):
    """Load a stored model after ``alter(description, arrays)``, which changes them in place."""

    def load(alter, name="molecules"):
        description = unsealed((STORED / name / "model.json").read_bytes())
        del description["arrays"]
        with np.load(STORED / name / "arrays.npz") as archive:
            arrays = dict(archive)
        alter(description, arrays)
        for path, content in encode_model(description, arrays).items():
            (tmp_path / Path(path).name).write_bytes(content)
        return WEGL.load(tmp_path)

    return load


def put(path, value):
    """Put a value in a place of the description, such as ``job.diffusion.layers``."""

    def alter(description, arrays):
        del arrays
        *outer, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
        reduce(lambda found, key: found[key], outer, description)[last] = value

    return alter


def replace(name, change):
    def alter(description, arrays):
        del description
        arrays[name] = change(arrays[name])

    return alter


def test_a_model_that_is_as_it_was_is_loaded(load_altered):
    assert load_altered(lambda *_: None).n_points_ == 6
    assert load_altered(lambda *_: None, "networkx").schema_.node_category_counts


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("rounding_step", "fine", "rounding_step is 'fine': Input should be a valid number"),
        ("rounding_step", -1.0, "rounding_step is -1.0: Input should be greater than"),
        ("rounding_step", 1e-90, "a rounding_step of 1e-90, and that of its variances is"),
        ("rounding_step", 1e90, r"a rounding_step of 1e\+90, and that of its variances is"),
        ("columns", 7, "columns is 7"),
        ("columns.0.kind", "table", "columns.0.kind is 'table'"),
        ("columns.0.width", 118, "have no FeatureBlock"),
        ("columns.0.index", 9, "have no FeatureBlock"),
        ("columns.0.index", -1, "have no FeatureBlock"),
        ("schema.node_category_counts", ["x"], "schema.node_category_counts.0 is 'x'"),
        ("schema.edge_attribute_width", -1, "Input should be greater than or equal to 0"),
        ("schema.edge_category_counts", [], "have no labels"),
        ("schema.edge_category_counts", [2**31 + 1, 6, 2], "counts.0 is 2147483649: Input should be less than"),
        ("job.edges.features", "weight", "have no weight"),
        ("job.edges", {}, "edges.features has to be set"),
        ("job.diffusion.layers", -1, "job.diffusion.layers is -1"),
        ("job.diffusion.pooling", "concat", r"array mean has shape \(12,\); \(48,\) is needed"),
        ("job.transport.solver", "simplex", "job.transport.solver is 'simplex'"),
        ("job.transport", [], r"job.transport is \[\]"),
        ("job", None, "job is None"),
        ("job.seed", None, "job.seed is None"),
        ("job.nodes", {"virtual_node": True}, "not complete: model.json has no job.nodes.features"),
        ("job.projection", None, "not complete: model.json has no job.projection"),
        ("numbering", {"attribute_names": None, "vocabularies": {"node": [], "edge": []}}, "both of vocabularies and"),
        ("numbering", {"vocabularies": 3}, "numbering.vocabularies is 3"),
        ("numbering", {"node_label_minima": [1, 2]}, "for 9 features"),
        ("fitted_on", {"graphs": 1}, "not complete: model.json has no fitted_on.nodes"),
        ("format_version", "1", "format_version is '1'"),
        ("versions", [1], r"versions is \[1\]"),
        ("d", 6, "N = 6 and d = 6"),
        ("total_variance", "x" * 5000, r"total_variance is 'x{99} \.\.\.: Input"),
    ],
)
def test_a_value_of_no_use_is_named(path, value, message, load_altered):
    with pytest.raises(WeglError, match=message) as caught:
        load_altered(put(path, value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def whole_numbers(values, path=""):
    """List the paths of the whole numbers among some values of JSON."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    here = [path[1:]] if isinstance(values, int) and not isinstance(values, bool) else []
    return here + [found for key, value in items for found in whole_numbers(value, f"{path}.{key}")]


@pytest.mark.parametrize("value", [2**31, 2**31 + 1, 2**63, 2**64, -1, -(2**63) - 1])
@pytest.mark.parametrize("name", ["molecules", "networkx"])
def test_no_whole_number_makes_another_error(name, value, load_altered):
    description = unsealed((STORED / name / "model.json").read_bytes())
    del description["arrays"]
    paths = whole_numbers(description)
    assert len(paths) > 20
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, 6, "label")
    refused = set()
    for path in paths:
        try:
            model = load_altered(put(path, value), name)
            model.transform(["CCO"] if name == "molecules" else [graph])
        except WeglError:
            refused.add(path)
    assert {"N", "d"} <= refused


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("reference", lambda array: array.astype("f4"), "is of float32"),
        ("reference", lambda array: array[:0], r"shape \(0, 5\)"),
        ("reference", lambda array: array[:, :4], r"the model's array reference has shape \(6, 4\); \(6, 5\)"),
        ("reference", lambda array: array.ravel(), "in 2 dimensions"),
        ("mean", lambda array: array * np.nan, "not finite, or too large"),
        ("components", lambda array: array + 1e300, "not finite, or too large"),
        ("components", lambda array: array.T, "the model's array components has shape"),
        ("scale", lambda array: array * 0, "too small to use"),
        ("variances", lambda array: -array, "numbers below 0"),
        ("variances", lambda array: array[1:], "the model's array components has shape"),
        ("encoder", lambda array: array[1:], "the model's array encoder has shape"),
        ("encoder", lambda _: np.array(["x"]), "is of <U1"),
    ],
)
def test_arrays_of_no_use_are_named(name, change, message, load_altered):
    with pytest.raises(WeglError, match=message):
        load_altered(replace(name, change))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("numbering.vocabularies.node", [], "the vocabularies in numbering are of 0 features"),
        ("numbering.vocabularies.node.0", ["C"], "the vocabularies in numbering are of 1 features"),
        ("numbering.vocabularies.node.0.0", {}, r"numbering.vocabularies.node.0.0"),
        ("numbering.attribute_names.node_labels", "atom", "attribute_names.node_labels is 'atom'"),
    ],
)
def test_values_of_categories_that_do_not_fit_are_named(path, value, message, load_altered):
    with pytest.raises(WeglError, match=message):
        load_altered(put(path, value), "networkx")


def test_keys_that_are_not_known_do_not_matter(load_altered):
    assert load_altered(put("remark", "from the archive")).n_points_ == 6


def test_the_stored_models_have_their_checksums():
    for path in STORED.glob("*/model.json"):
        assert json.loads(path.read_text())["checksum"]
