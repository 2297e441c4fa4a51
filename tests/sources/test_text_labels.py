import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wegl_dask.errors import SourceError
from wegl_dask.sources.base import LabelSchema
from wegl_dask.sources.text_labels import MAX_CLASSES, LabelError, LabelReader, LabelSurvey, label_schema


def survey_of(*texts):
    survey = LabelSurvey()
    for text in texts:
        survey.add(text)
    return survey


def schema_of(task, *texts):
    return label_schema(task, ["y"], survey_of(*texts))


@pytest.mark.parametrize(
    ("task", "texts", "expected"),
    [
        ("auto", ["1", "0", "1"], LabelSchema("class", ("0", "1"))),
        ("auto", ["1.0", "", "0.0", "1"], LabelSchema("class", ("0", "1"))),
        ("auto", ["1", "1"], LabelSchema("class", ("1",))),
        ("auto", ["no", "yes", None, "NaN"], LabelSchema("class", ("no", "yes"))),
        ("auto", ["10", "9", "x"], LabelSchema("class", ("10", "9", "x"))),
        ("auto", ["1", "2"], LabelSchema("target")),
        ("auto", ["0.5"], LabelSchema("target")),
        ("auto", ["-1", "1"], LabelSchema("target")),
        ("auto", ["", None, "NA", "NaN", "null"], LabelSchema("none")),
        ("auto", [], LabelSchema("none")),
        ("classification", ["10", "9", "-1", "9.0"], LabelSchema("class", ("-1", "9", "10"))),
        ("classification", ["0.5", "2"], LabelSchema("class", ("0.5", "2"))),
        ("classification", ["b", " a "], LabelSchema("class", ("a", "b"))),
        ("classification", ["1_0", "2"], LabelSchema("class", ("1_0", "2"))),
        ("regression", [], LabelSchema("target")),
        ("multitask", [], LabelSchema("tasks", task_names=("y",))),
        ("none", [], LabelSchema("none")),
    ],
)
def test_one_column_of_labels_is_what_the_task_and_its_texts_say(task, texts, expected):
    assert schema_of(task, *texts) == expected


@pytest.mark.parametrize("task", ["auto", "classification", "regression", "multitask"])
def test_several_columns_of_labels_are_tasks(task):
    assert label_schema(task, ["b", "a"], LabelSurvey()) == LabelSchema("tasks", task_names=("b", "a"))


@pytest.mark.parametrize("task", ["auto", "classification", "regression", "multitask", "none"])
def test_without_target_columns_there_are_no_labels(task):
    assert label_schema(task, [], LabelSurvey()) == LabelSchema("none")


def test_too_many_classes_are_one_clear_error():
    survey = survey_of(*(f"name {i}" for i in range(MAX_CLASSES + 50)))
    assert len(survey.texts) == MAX_CLASSES + 1
    with pytest.raises(SourceError, match=r"column 'y' has more than 10000 different labels, for example 'name 0'"):
        label_schema("classification", ["y"], survey)


def test_more_numbers_than_there_may_be_classes_are_targets():
    assert schema_of("auto", *map(str, range(MAX_CLASSES + 50))) == LabelSchema("target")


def test_a_text_after_very_many_numbers_is_noticed():
    with pytest.raises(SourceError, match="too many for classes"):
        schema_of("auto", *map(str, range(MAX_CLASSES + 50)), "high")


@pytest.mark.parametrize("text", ["n/a", "-", "1,5", "< 3"])
def test_a_text_among_measurements_is_asked_about(text):
    with pytest.raises(
        SourceError, match=rf"for example '2.5', and texts that are none, for example '{text}': set task"
    ):
        schema_of("auto", "2.5", text, "3.75")
    assert schema_of("classification", "2.5", text).kind == "class"
    assert schema_of("regression", "2.5", text) == LabelSchema("target")


def test_texts_and_whole_numbers_are_classes():
    assert schema_of("auto", "2", "1.0", "n/a").class_names == ("1.0", "2", "n/a")


@given(st.lists(st.lists(st.sampled_from(["0", "1", "2.5", "a", "b", "", "1.0"]), max_size=5), max_size=4))
def test_surveys_of_parts_together_are_the_survey_of_the_whole(parts):
    merged = LabelSurvey.merged(survey_of(*part).to_json() for part in parts)
    whole = survey_of(*(text for part in parts for text in part))
    assert merged == whole


@pytest.mark.parametrize("text", ["", " ", None, "NA", "NaN", "nan", "null", "NULL"])
@pytest.mark.parametrize("kind", ["class", "target"])
def test_a_missing_label_is_unknown(kind, text):
    labels = LabelSchema(kind, class_names=("a",) if kind == "class" else ())
    assert LabelReader(labels, ["y"])([text]) is None


def test_classes_are_numbered_and_equal_numbers_are_one_class():
    read = LabelReader(LabelSchema("class", ("-1", "2", "10")), ["y"])
    assert [read([text]) for text in ("-1", " 2 ", "2.0", "1e1", "10")] == [0, 1, 1, 2, 2]
    read = LabelReader(LabelSchema("class", ("1", "a")), ["y"])
    assert read(["1"]) == 0
    with pytest.raises(LabelError, match=r"column y holds '1\.0', which was no class when it was scanned"):
        read(["1.0"])


def test_large_whole_numbers_that_differ_are_classes_that_differ():
    texts = [str(2**53), str(2**53 + 1), f"{2**53 + 2}.0", "-9007199254740993", "1e20", str(10**20 + 1)]
    labels = schema_of("classification", *texts)
    assert labels.class_names == (
        *("-9007199254740993", "9007199254740992", "9007199254740993", "9007199254740994"),
        *("100000000000000000000", "100000000000000000001"),
    )
    read = LabelReader(labels, ["y"])
    assert [read([text]) for text in texts] == [1, 2, 3, 0, 4, 5]
    assert read(["9007199254740993.00"]) == 2
    with pytest.raises(LabelError, match="'9007199254740995', which was no class"):
        read(["9007199254740995"])


def test_what_is_beyond_all_numbers_is_read_as_before():
    assert schema_of("classification", "1e400", "-inf", "1e-99999999999999999999").class_names == ("-inf", "0", "inf")


def test_targets_are_numbers():
    read = LabelReader(LabelSchema("target"), ["y"])
    assert [read([text]) for text in ("1", "-2.5e-3", " 7 ", "0x10".removeprefix("0x"))] == [1.0, -0.0025, 7.0, 10.0]


@pytest.mark.parametrize("text", ["high", "1_000", "1,5", "inf", "-Infinity", "nan(0)", "x" * 100])
def test_a_text_that_is_no_finite_number_is_an_error_with_the_value_and_the_column(text):
    shown = text if len(text) <= 40 else "x" * 37 + "..."
    with pytest.raises(LabelError) as caught:
        LabelReader(LabelSchema("target"), ["y"])([text])
    assert str(caught.value) == f"column y holds {shown!r}; a target holds a finite number, or nothing"


def test_of_several_targets_each_is_a_number():
    with pytest.raises(
        LabelError, match=r"^column a holds 'yes'; several targets hold each a finite number, or nothing$"
    ):
        LabelReader(LabelSchema("tasks", task_names=("a", "b")), ["a", "b"])(["yes", "1"])


def test_tasks_are_lists_with_nan_where_one_is_unknown():
    read = LabelReader(LabelSchema("tasks", task_names=("a", "b")), ["a", "b"])
    assert read(["1", "0.5"]) == [1.0, 0.5]
    first, second = read(["", "0.5"])
    assert math.isnan(first)
    assert second == 0.5
    assert read(["NA", None]) is None
    with pytest.raises(LabelError, match="column b holds 'x'"):
        read(["1", "x"])
