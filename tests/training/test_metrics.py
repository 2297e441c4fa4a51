import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from wegl_dask.errors import JobFileError
from wegl_dask.training.crossvalidation import first_best
from wegl_dask.training.metrics import METRICS, all_metrics, choose_metric


def tasks(n_tasks=4, n=80, *, binary=True):
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(n, n_tasks))
    Y = scores + rng.normal(size=(n, n_tasks))
    Y = (Y > 0).astype(float) if binary else Y
    Y[rng.random(Y.shape) < 0.3] = np.nan
    return Y, scores


@pytest.mark.parametrize(
    ("data_set", "name", "kind"),
    [
        ("ogbg-molhiv", "roc-auc", "binary"),
        ("ogbg-molpcba", "average-precision", "binary"),
        ("ogbg-molesol", "rmse", "regression"),
    ],
)
def test_metrics_are_those_of_the_open_graph_benchmark(data_set, name, kind):
    graphproppred = pytest.importorskip("ogb.graphproppred")
    # One task is scored, or several of which one has a single class: it is left out of the mean.
    Y, scores = tasks(n_tasks=128 if data_set == "ogbg-molpcba" else 1, n=300, binary=kind == "binary")
    if data_set == "ogbg-molpcba":
        Y[:, 1] = np.where(np.isnan(Y[:, 1]), np.nan, 0)
    evaluator = graphproppred.Evaluator(data_set)
    expected = evaluator.eval({"y_true": Y, "y_pred": scores})[evaluator.eval_metric]
    assert all_metrics(kind, Y, scores, 0.0)[name] == pytest.approx(expected, rel=1e-12)


def test_roc_auc_of_several_tasks_is_their_mean():
    Y, scores = tasks()
    expected = []
    for y, score in zip(Y.T, scores.T, strict=True):
        pairs = [(p, n) for p in score[y == 1] for n in score[y == 0]]
        expected.append(np.mean([(p > n) + (p == n) / 2 for p, n in pairs]))
    assert all_metrics("binary", Y, scores, 0.0)["roc-auc"] == pytest.approx(np.mean(expected))


def test_accuracy_of_two_classes_compares_the_score_with_the_threshold():
    Y = np.array([[0], [0], [1], [1], [np.nan]])
    scores = np.array([[0.5], [0.6], [0.4], [0.9], [0.9]])
    assert all_metrics("binary", Y, scores, 0.5)["accuracy"] == 0.5


def test_accuracy_of_classes_takes_the_highest_score_of_known_labels():
    Y = np.array([[0], [1], [2], [2], [np.nan]])
    scores = np.array([[3, 1, 2], [3, 1, 2], [1, 0, 5], [-3, -2, -1], [9, 0, 0]], dtype=float)
    assert all_metrics("multiclass", Y, scores, 0.5) == {"accuracy": 0.75}


def test_metrics_of_targets_are_those_of_scikit_learn():
    Y, scores = tasks(1, binary=False)
    known = ~np.isnan(Y[:, 0])
    y, score = Y[known, 0], scores[known, 0]
    found = all_metrics("regression", Y, scores, 0.5)
    assert found["rmse"] == pytest.approx(sklearn_metrics.root_mean_squared_error(y, score))
    assert found["mae"] == pytest.approx(sklearn_metrics.mean_absolute_error(y, score))
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(y, score))


@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1.0, 1e90])
def test_metrics_of_targets_do_not_depend_on_their_unit(unit):
    # By hand: errors 1, 0, 2, 1, the mean of the targets 2.5.
    Y, scores = unit * np.array([[1.0], [2.0], [3.0], [4.0]]), unit * np.array([[2.0], [2.0], [1.0], [3.0]])
    found = all_metrics("regression", Y, scores, 0.5)
    assert found["rmse"] == pytest.approx(unit * np.sqrt(6 / 4), rel=1e-12, abs=0)
    assert found["mae"] == pytest.approx(unit, rel=1e-12, abs=0)
    assert found["r2"] == pytest.approx(1 - 6 / 5, rel=1e-12)


def test_a_metric_without_a_value_is_nan():
    ones, nothing, scores = np.ones((3, 1)), np.full((3, 1), np.nan), np.arange(3.0).reshape(3, 1)
    assert np.isnan(all_metrics("binary", ones, scores, 0.5)["roc-auc"])
    assert np.isnan(list(all_metrics("binary", nothing, scores, 0.5).values())).all()
    assert np.isnan(all_metrics("multiclass", nothing, np.zeros((3, 3)), 0.5)["accuracy"])
    assert np.isnan(all_metrics("regression", ones, scores, 0.5)["r2"])
    for wrong in (np.nan, np.inf):
        found = all_metrics("regression", scores, np.array([[0.0], [wrong], [2.0]]), 0.5)
        assert not any(np.isfinite(value) for value in found.values())


@pytest.mark.parametrize("target", [0.1, 1 / 3, 2.0])
@pytest.mark.parametrize("n", [3, 10])
def test_there_is_no_r2_of_equal_targets_also_where_their_mean_is_another_number(target, n):
    """The mean of three times 0.1 is a little more."""
    Y = np.full((n, 1), target)
    assert np.isnan(all_metrics("regression", Y, np.zeros((n, 1)), 0.0)["r2"])


def test_a_candidate_whose_scores_are_not_numbers_is_never_the_best():
    assert first_best(np.array([0.5, np.nan, 0.7, 0.1])) == 2
    assert first_best(np.array([np.nan, -3.0])) == 1
    assert first_best(np.array([[np.nan, 1.0], [2.0, np.nan]]), axis=1).tolist() == [1, 0]


@pytest.mark.parametrize("diverged", [-1e15, -1e300, -np.inf])
def test_a_candidate_that_has_diverged_makes_no_difference_to_the_best_of_the_others(diverged):
    errors = -np.array([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
    assert first_best(np.array([diverged, *errors[0]])) == 3
    assert first_best(np.column_stack([errors, [0.0, diverged]]), axis=1).tolist() == [3, 0]
    assert first_best(np.full(3, diverged)) == 0


@pytest.mark.parametrize("unit", [1e-200, -1e-200, 1.0, -1.0, 1e200])
def test_of_candidates_that_are_the_same_but_for_rounding_the_first_is_best(unit):
    best = unit * np.array([1 + 2e-16, 1.0, 1 - 2e-16])
    worse = unit - 1e-9 * abs(unit)
    assert first_best(np.array([worse, *best])) == 1
    assert first_best(np.array([worse, *best[::-1]])) == 1


@pytest.mark.parametrize(
    ("kind", "protocol", "name"),
    [
        ("binary", "split", "roc-auc"),
        ("binary", "cv", "accuracy"),
        ("multiclass", "split", "accuracy"),
        ("multiclass", "cv", "accuracy"),
        ("regression", "split", "rmse"),
        ("regression", "cv", "rmse"),
    ],
)
def test_the_metric_follows_labels_and_protocol(kind, protocol, name):
    assert choose_metric(kind, protocol, None).name == name


def test_less_is_better_for_errors_alone():
    less = {metric.name for metrics in METRICS.values() for metric in metrics if metric.sign < 0}
    assert less == {"rmse", "mae"}


def test_a_metric_of_other_labels_is_refused():
    with pytest.raises(
        JobFileError, match=r"train\.metric = 'rmse' is no metric of two classes: choose one of roc-auc"
    ):
        choose_metric("binary", "split", "rmse")
