import json

import pytest

from wegl_dask.errors import SourceError
from wegl_dask.plain_graphs import UnusableGraphError
from wegl_dask.sources._label_kinds import decide_labels, encode_labels, read_labels, tally_labels
from wegl_dask.sources.base import LabelSchema

NAN = float("nan")


def decide(*pieces, task="auto"):
    tallies = [tally_labels([read_labels("y", value) for value in piece]) for piece in pieces]
    return decide_labels(json.loads(json.dumps(tallies)), task, "labels y")


@pytest.mark.parametrize(
    ("values", "labels", "classes"),
    [
        ([1, 0, 1], LabelSchema("class", class_names=("0", "1")), (0, 1)),
        ([True, False], LabelSchema("class", class_names=("0", "1")), (0, 1)),
        ([10, -1, None, 9], LabelSchema("class", class_names=("-1", "9", "10")), (-1, 9, 10)),
        (["no", "yes", 3], LabelSchema("class", class_names=("3", "no", "yes")), (3, "no", "yes")),
        ([1.0, 0.0], LabelSchema("target"), ()),
        ([1, 2.5], LabelSchema("target"), ()),
        ([NAN, 1.5], LabelSchema("target"), ()),
        ([[1, 0], [0, None]], LabelSchema("tasks", task_names=("task_0", "task_1")), ()),
        ([[7], [5]], LabelSchema("class", class_names=("5", "7")), (5, 7)),
        ([None, []], LabelSchema(), ()),
        ([1, 2, [3, 4]], LabelSchema("class", class_names=("1", "2")), (1, 2)),
        ([1, [3, 4]], LabelSchema("class", class_names=("1",)), (1,)),
    ],
)
def test_what_labels_are_is_found_from_their_values(values, labels, classes):
    assert decide(values) == (labels, classes)


def test_it_does_not_matter_how_the_collection_is_cut_into_pieces():
    assert decide([3, 1], [], [2]) == decide([3, 1, 2])
    assert decide([3, 1], [0.5])[0].kind == "target"
    assert decide([[1, 2]], [3], [[3, 4]])[0].kind == "tasks"


@pytest.mark.parametrize(
    ("values", "task", "kind"),
    [
        ([1.0, 0.0], "classification", "class"),
        ([1, 2], "regression", "target"),
        ([1, 2], "multitask", "tasks"),
        ([[1, 2]], "multitask", "tasks"),
        ([1, 2], "none", "none"),
        ([["a"], {}][:1], "none", "none"),
    ],
)
def test_the_task_decides_where_it_is_given(values, task, kind):
    assert decide(values, task=task)[0].kind == kind


def test_whole_numbers_of_a_real_type_are_the_same_classes():
    assert decide([1.0, 0.0], [1], task="classification") == (LabelSchema("class", class_names=("0", "1")), (0, 1))


def test_a_text_and_a_number_that_read_alike_are_one_class():
    labels, classes = decide(["1", 10, "2"], [1, True, 1.0, "10", "01", "+1", "1_0", "\u0661", "9" * 5000])
    assert labels.class_names == ("1", "10", "+1", "01", "1_0", "2", "9" * 5000, "\u0661")
    found = [encode_labels([each], labels, classes) for each in ("1", 1, 1.0, True, "10", 10.0, 2, "2", "01", "\u0661")]
    assert found == [0, 0, 0, 0, 1, 1, 5, 5, 3, 7]
    with pytest.raises(UnusableGraphError, match=r"the label 1\.5 is none of the 8 classes"):
        encode_labels([1.5], labels, classes)


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        ([0.5, 1.0], "classification", "labels y: one is 0.5, which is no class"),
        (["a", 0.5], "auto", "labels y: one is 0.5, which is no class"),
        (["a", 1], "regression", "labels y: one is the text 'a', and numbers are needed"),
        ([["a", 1]], "auto", "labels y: one is the text 'a', and numbers are needed"),
        ([[1, 2]], "classification", 'labels y: most graphs have 2, and task = "classification" needs one'),
        ([[1, 2]], "regression", 'labels y: most graphs have 2, and task = "regression" needs one'),
        ([None], "classification", 'labels y: no graph has one, and task = "classification" needs them'),
    ],
)
def test_labels_that_do_not_fit_the_task_are_refused(values, task, message):
    with pytest.raises(SourceError, match=message):
        decide(values, task=task)


@pytest.mark.parametrize("value", [float("inf"), [1, float("-inf")], {"a": 1}, 1j, [[1], [2]]])
def test_a_label_of_no_use_is_refused(value):
    with pytest.raises(UnusableGraphError, match=r"y is .*; a text, finite numbers or nothing is needed"):
        read_labels("y", value)


def test_labels_are_encoded_as_the_column_wants_them():
    classes = LabelSchema("class", class_names=("3", "no", "yes"))
    tasks = LabelSchema("tasks", task_names=("p", "q"))
    assert [encode_labels([label], classes, (3, "no", "yes")) for label in (3.0, "no", "yes", None)] == [0, 1, 2, None]
    assert encode_labels([], classes, (3,)) is None
    assert encode_labels([2.5], LabelSchema("target"), ()) == 2.5
    assert str(encode_labels([-(2**63)], LabelSchema("target"), ())) == "-9.223372036854776e+18"
    assert encode_labels([1, 0.5], tasks, ()) == [1.0, 0.5]
    assert str(encode_labels([1, None], tasks, ())) == "[1.0, nan]"
    assert encode_labels([1], LabelSchema(), ()) is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2], "the graph has 2 labels; the collection has 1 a graph"),
        (["new"], "the label 'new' is none of the 2 classes"),
        ([7], "the label 7 is none of the 2 classes"),
    ],
)
def test_labels_that_do_not_fit_the_collection_are_refused(labels, message):
    with pytest.raises(UnusableGraphError, match=message):
        encode_labels(labels, LabelSchema("class", class_names=("3", "no")), (3, "no"))
