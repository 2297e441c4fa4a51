import os
import pickle
import signal
import tracemalloc
from dataclasses import dataclass, replace

import dask
import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, roc_auc_score, root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from wegl_dask.cluster import open_client
from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.spec import ClusterTable
from wegl_dask.training import dense, svm, trees
from wegl_dask.training.automl import AutoML
from wegl_dask.training.crossvalidation import INNER_FOLDS, cross_validate
from wegl_dask.training.folds import assign_folds, deal_folds
from wegl_dask.training.learner import Learner
from wegl_dask.training.metrics import choose_metric
from wegl_dask.training.models import make_learner
from wegl_dask.training.protocols import BEST, NESTED, default_protocol, evaluate_cv, evaluate_split
from wegl_dask.training.spreading import Workers


def evaluate(problem, name, protocol, workers, *, metric=None, seed=0, seeds=1, n_folds=4):
    chosen = choose_metric(problem.kind, protocol, metric)
    learner = make_learner(name, problem, metric=chosen.name, time_budget=1.0)
    if protocol == "split":
        return evaluate_split(problem, learner, chosen, workers, seeds=range(seed, seed + seeds))
    return evaluate_cv(problem, learner, chosen, workers, n_folds=n_folds, seed=seed)


def same(one, two):
    assert one.results == two.results
    assert one.chosen == two.chosen
    assert np.array_equal(one.scores, two.scores)
    assert np.array_equal(one.rows, two.rows)


@pytest.fixture
def small_forests(monkeypatch):
    monkeypatch.setattr(trees, "N_TREES", (3, 6))
    monkeypatch.setattr(trees, "SPLIT_SIZES", (2,))


@pytest.fixture
def few_penalties(monkeypatch):
    monkeypatch.setattr(svm, "PENALTIES", (0.1, 1.0, 10.0))


# The folds


@pytest.mark.parametrize("kind", ["multiclass", "regression"])
@pytest.mark.parametrize("n_folds", [2, 7])
def test_folds_are_of_equal_size_and_have_their_share_of_every_class(kind, n_folds, make_problem):
    problem = make_problem(kind, n=61)
    rows = np.arange(1, 61)
    folds = assign_folds(problem, rows, n_folds, 3)
    groups = [rows] if kind == "regression" else [rows[problem.Y[rows, 0] == c] for c in range(3)]
    for group in [rows, *groups]:
        sizes = np.bincount(folds[np.isin(rows, group)], minlength=n_folds)
        assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(folds, assign_folds(problem, rows, n_folds, 3))
    assert not np.array_equal(folds, assign_folds(problem, rows, n_folds, 4))


@pytest.mark.parametrize("inner_folds", [0, 3, 100])
def test_inner_folds_are_those_of_the_rows_outside_of_a_fold(inner_folds, make_problem):
    problem = make_problem("multiclass", n=61)
    rows = np.arange(1, 61)
    folds = deal_folds(problem, rows, 4, 3, inner_folds=inner_folds)
    # Of 60 rows a training part has 45, and leaves one out each at the most.
    assert len(folds) == len(list(folds)) == 4 * (1 + min(inner_folds, 45))
    outer = assign_folds(problem, rows, 4, 3)
    for fold in range(4):
        whole = folds[fold, None]
        np.testing.assert_array_equal(whole.train, rows[outer != fold])
        np.testing.assert_array_equal(whole.evaluate, rows[outer == fold])
        if inner_folds:
            inner = assign_folds(problem, whole.train, min(inner_folds, 45), 3)
            for within in range(min(inner_folds, 45)):
                np.testing.assert_array_equal(folds[fold, within].train, whole.train[inner != within])
                np.testing.assert_array_equal(folds[fold, within].evaluate, whole.train[inner == within])


@pytest.mark.parametrize("protocol", ["cv", "split"])
def test_what_is_sent_with_a_fit_does_not_grow_with_the_graphs(protocol, make_problem, few_penalties):
    del few_penalties
    sizes = []

    class Weighing(Workers):
        def map(self, step, function, tasks, shared):
            sizes.extend(len(pickle.dumps(task)) for task in tasks)
            return super().map(step, function, tasks, shared)

    evaluate(make_problem("binary", n=900, split=protocol == "split"), "svm-linear", protocol, Weighing(1), n_folds=2)
    assert len(sizes) > 1
    # 400 rows are 3,200 bytes.
    assert max(sizes) < 1000


@dataclass(frozen=True)
class ByChance(Learner):
    """Scores that follow from the numbers of the candidate and of the rows; each candidate is a fit of its own."""

    n_candidates: int = 1

    def groups(self):
        return [[{"number": number}] for number in range(self.n_candidates)]

    def make(self, *_):
        raise AssertionError

    def _search(self, _shared, _y, fold, group, _seed):
        return np.random.default_rng([group[0]["number"], fold.evaluate.sum()]).normal(size=(1, len(fold.evaluate), 1))


def test_what_a_cross_validation_holds_grows_neither_with_the_candidates_nor_with_the_inner_folds(make_problem):
    n, n_tasks = 20_000, 4
    problem, metric = make_problem("regression", n=n, n_tasks=n_tasks), choose_metric("regression", "cv", None)
    once = 8 * n * n_tasks
    sizes, peaks = [], []

    class Weighing(Workers):
        def map(self, *args):
            found = super().map(*args)
            sizes.append(sum(len(pickle.dumps(each)) for each in found))
            return found

    for n_candidates, inner_folds in ((2, 2), (2, 8), (16, 2)):
        learner = ByChance("regression", 0, n_candidates)
        tracemalloc.start()
        found = cross_validate(problem, learner, metric, Weighing(1), n_folds=4, seed=0, inner_folds=inner_folds)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(map(len, found.scores)) == n
        within, outer = sizes[-2:]
        assert within < once / 10
        assert once < outer < 1.1 * once
    assert max(peaks) < min(peaks) + once


def test_each_fold_has_the_scores_of_the_candidate_that_is_best_within_the_others(make_problem, one_worker):
    problem = make_problem("regression", n=60)
    metric = choose_metric("regression", "cv", None)
    found = cross_validate(problem, ByChance("regression", 0, 5), metric, one_worker, n_folds=6, seed=0, inner_folds=3)
    assert len(set(found.own)) > 1
    for rows, scores, own, inner, values in zip(
        found.rows, found.scores, found.own, found.inner, found.outer, strict=True
    ):
        assert own == inner.argmin()
        y = np.delete(problem.Y[:, 0], rows)
        expected = y.mean() + y.std() * np.random.default_rng([own, rows.sum()]).normal(size=len(rows))
        np.testing.assert_allclose(scores[:, 0], expected)
        assert values[own] == pytest.approx(root_mean_squared_error(problem.Y[rows, 0], expected))


# The split


@pytest.mark.usefixtures("few_penalties")
def test_the_split_protocol_is_a_search_on_valid_and_a_measurement_on_test(make_problem, one_worker):
    problem = make_problem("binary", n=120, split=True)
    found = evaluate(problem, "svm-rbf", "split", one_worker, seeds=3)
    train, valid, test = (problem.split == name for name in ("train", "valid", "test"))
    machines = [SVC(C=C).fit(problem.X[train], problem.Y[train, 0]) for C in (0.1, 1.0, 10.0)]
    of_valid = [roc_auc_score(problem.Y[valid, 0], m.decision_function(problem.X[valid])) for m in machines]
    best = int(np.argmax(of_valid))
    scores = machines[best].decision_function(problem.X[test])
    np.testing.assert_allclose(found.candidate_scores, of_valid)
    assert found.chosen == {"C": (0.1, 1.0, 10.0)[best]}
    # Nothing is random: one fit stands for all seeds.
    assert found.results["test"]["roc-auc"] == [pytest.approx(roc_auc_score(problem.Y[test, 0], scores))]
    assert found.results["test"]["accuracy"] == [pytest.approx(accuracy_score(problem.Y[test, 0], scores > 0))]
    assert found.results["valid"]["roc-auc"] == [pytest.approx(max(of_valid))]
    assert found.part == ["valid"] * 30 + ["test"] * 30
    np.testing.assert_allclose(found.scores[30:, 0], scores)
    assert np.array_equal(found.rows, [*np.flatnonzero(valid), *np.flatnonzero(test)])


@pytest.mark.usefixtures("small_forests")
def test_a_model_with_chance_in_it_is_measured_once_a_seed(make_problem, one_worker):
    problem = make_problem("binary", n=120, split=True)
    found = evaluate(problem, "random-forest", "split", one_worker, seeds=3, seed=5)
    learner = make_learner("random-forest", problem, metric="accuracy", time_budget=1.0)
    train, test = (np.flatnonzero(problem.split == name) for name in ("train", "test"))
    expected = []
    for seed in (5, 6, 7):
        forest = learner.make(found.chosen, seed).fit(problem.X[train], problem.Y[train, 0])
        expected.append(roc_auc_score(problem.Y[test, 0], forest.predict_proba(problem.X[test])[:, 1]))
    assert found.results["test"]["roc-auc"] == pytest.approx(expected)
    assert len(set(expected)) > 1
    (estimator,) = found.estimators
    assert np.array_equal(estimator.predict_proba(problem.X[test])[:, 1], found.scores[-len(test) :, 0])


@pytest.mark.usefixtures("small_forests")
def test_labels_of_the_test_part_change_nothing_but_its_numbers(make_problem, one_worker):
    problem = make_problem("binary", n=80, split=True)
    test = np.flatnonzero(problem.split == "test")
    Y = problem.Y.copy()
    Y[test] = 1 - Y[test]
    one = evaluate(problem, "random-forest", "split", one_worker)
    two = evaluate(replace(problem, Y=Y), "random-forest", "split", one_worker)
    assert one.chosen == two.chosen
    assert np.array_equal(one.scores, two.scores)
    assert one.results["valid"] == two.results["valid"]
    assert one.results["test"]["accuracy"][0] == pytest.approx(1 - two.results["test"]["accuracy"][0])


def test_the_valid_part_is_not_trained_on(make_problem, one_worker):
    problem = make_problem("regression", n=80, split=True)
    train, valid, test = (np.flatnonzero(problem.split == name) for name in ("train", "valid", "test"))
    found = evaluate(problem, "ridge", "split", one_worker)
    own = make_pipeline(StandardScaler(), Ridge(**found.chosen)).fit(problem.X[train], problem.Y[train, 0])
    np.testing.assert_allclose(found.scores[len(valid) :, 0], own.predict(problem.X[test]), rtol=1e-6)
    np.testing.assert_allclose(found.estimators[0].predict(problem.X), own.predict(problem.X), rtol=1e-6)


@pytest.mark.usefixtures("few_penalties")
def test_unknown_labels_are_left_out(make_problem, one_worker):
    problem = make_problem("binary", n=120, split=True, unknown=20)
    known = np.flatnonzero(~np.isnan(problem.Y[:, 0]))
    without = replace(
        problem, X=problem.X[known], Y=problem.Y[known], split=problem.split[known], graph_id=problem.graph_id[known]
    )
    for protocol in ("split", "cv"):
        one, two = (evaluate(each, "svm-rbf", protocol, one_worker) for each in (problem, without))
        assert one.chosen == two.chosen
        for part, metrics in one.results.items():
            assert metrics == {name: pytest.approx(values) for name, values in two.results[part].items()}
    # Graphs of the test part are scored whether their label is known or not.
    scored = evaluate(problem, "svm-rbf", "split", one_worker)
    assert set(np.flatnonzero(problem.split == "test")) <= set(scored.rows.tolist())


@pytest.mark.parametrize("kind", ["binary", "regression"])
@pytest.mark.usefixtures("small_forests")
def test_several_tasks_are_learned_one_by_one_and_averaged(kind, make_problem, one_worker):
    problem = make_problem(kind, n=120, n_tasks=3, unknown=60, split=True)
    found = evaluate(problem, "random-forest", "split", one_worker)
    assert found.scores.shape == (60, 3)
    assert len(found.estimators) == 3
    test = np.flatnonzero(problem.split == "test")
    values = []
    for task in range(3):
        train = np.flatnonzero((problem.split == "train") & ~np.isnan(problem.Y[:, task]))
        learner = make_learner("random-forest", problem, metric="accuracy", time_budget=1.0)
        forest = learner.make(found.chosen, 0).fit(problem.X[train], problem.Y[train, task])
        known = test[~np.isnan(problem.Y[test, task])]
        y, X = problem.Y[known, task], problem.X[known]
        if kind == "binary":
            values.append(roc_auc_score(y, forest.predict_proba(X)[:, 1]))
        else:
            values.append(root_mean_squared_error(y, forest.predict(X)))
    name = "roc-auc" if kind == "binary" else "rmse"
    assert found.results["test"][name] == [pytest.approx(np.mean(values))]
    assert [of_task["test"][name] for of_task in found.results_by_task.values()] == [[pytest.approx(v)] for v in values]


@pytest.mark.usefixtures("small_forests")
def test_each_of_several_tasks_is_measured_on_the_folds_by_the_choices_of_all(make_problem, one_worker):
    problem = make_problem("binary", n=120, n_tasks=2, unknown=30)
    found = evaluate(problem, "random-forest", "cv", one_worker)
    assert list(found.results_by_task) == ["t0", "t1"]
    fold = np.array(found.part)
    for task, of_task in enumerate(found.results_by_task.values()):
        for i, value in enumerate(of_task[NESTED]["roc-auc"]):
            y, score = problem.Y[found.rows, task][fold == i], found.scores[fold == i, task]
            assert value == pytest.approx(roc_auc_score(y[~np.isnan(y)], score[~np.isnan(y)]))
    for result, values in found.results.items():
        tasks = [of_task[result]["roc-auc"] for of_task in found.results_by_task.values()]
        assert np.mean(tasks, axis=0) == pytest.approx(values["roc-auc"])


def test_data_without_a_split_are_sent_to_cross_validation(make_problem, one_worker):
    problem = make_problem("binary")
    with pytest.raises(JobFileError, match="these have none: choose --protocol cv"):
        evaluate(problem, "svm-rbf", "split", one_worker)
    assert default_protocol(problem) == "cv"
    assert default_protocol(make_problem("binary", split=True)) == "split"


def test_a_split_without_a_part_is_named(make_problem, one_worker):
    problem = make_problem("binary", split=True)
    renamed = np.where(problem.split == "valid", "dev", problem.split)
    with pytest.raises(JobFileError, match=r'"valid" has none \(there are dev, test, train\)'):
        evaluate(replace(problem, split=renamed), "svm-rbf", "split", one_worker)


@pytest.mark.usefixtures("few_penalties")
def test_a_metric_that_is_not_defined_on_a_part_is_an_error(make_problem, one_worker):
    problem = make_problem("binary", split=True)
    for name in ("valid", "test"):
        Y = problem.Y.copy()
        Y[problem.split == name] = 1
        with pytest.raises(WeglError, match=f'ROC-AUC is not defined on the part "{name}"'):
            evaluate(replace(problem, Y=Y), "svm-rbf", "split", one_worker)


# Cross-validation


def loop(problem, penalties, n_folds, seed):
    """Both ways of cross-validation, written out."""
    X, y = problem.X, problem.Y[:, 0]

    def accuracy(train, test, C):
        return accuracy_score(y[test], SVC(C=C).fit(X[train], y[train]).predict(X[test]))

    folds = assign_folds(problem, np.arange(len(y)), n_folds, seed)
    table, nested = [], []
    for fold in range(n_folds):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        table.append([accuracy(train, test, C) for C in penalties])
        inner = assign_folds(problem, train, INNER_FOLDS, seed)
        means = [
            np.mean([accuracy(train[inner != i], train[inner == i], C) for i in range(INNER_FOLDS)]) for C in penalties
        ]
        nested.append(table[-1][int(np.argmax(means))])
    best = int(np.argmax(np.mean(table, axis=0)))
    return [row[best] for row in table], nested, penalties[best]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("few_penalties")
def test_cross_validation_is_the_loop_written_out(seed, make_problem, one_worker):
    problem = make_problem("binary", n=80, seed=seed)
    found = evaluate(problem, "svm-rbf", "cv", one_worker, seed=seed)
    best, nested, C = loop(problem, (0.1, 1.0, 10.0), 4, seed)
    assert found.results[BEST]["accuracy"] == pytest.approx(best)
    assert found.results[NESTED]["accuracy"] == pytest.approx(nested)
    assert found.chosen == {"C": C}
    assert np.array_equal(np.sort(found.rows), np.arange(80))
    (estimator,) = found.estimators
    expected = SVC(C=C).fit(problem.X, problem.Y[:, 0]).decision_function(problem.X)
    np.testing.assert_allclose(estimator.decision_function(problem.X), expected)


@pytest.mark.usefixtures("small_forests")
def test_labels_of_a_fold_change_neither_its_scores_nor_its_choice(make_problem, one_worker):
    problem = make_problem("regression", n=60)
    folds = assign_folds(problem, np.arange(60), 4, 0)
    Y = problem.Y.copy()
    Y[folds == 2] = np.random.default_rng(8).normal(size=(15, 1)) * 100
    one, two = (evaluate(each, "random-forest", "cv", one_worker) for each in (problem, replace(problem, Y=Y)))
    here = np.array(one.part) == 2
    # The scores kept are those of each fold's own choice.
    assert np.array_equal(one.scores[here], two.scores[here])
    assert not np.array_equal(one.scores[~here], two.scores[~here])


def test_on_labels_of_pure_chance_the_nested_number_is_not_above_chance(make_problem, one_worker):
    rng = np.random.default_rng(0)
    best, nested = [], []
    for seed in range(6):
        problem = make_problem("binary", n=60, seed=seed)
        problem = replace(problem, Y=rng.permutation(problem.Y))
        found = evaluate(problem, "svm-rbf", "cv", one_worker, seed=seed, n_folds=5)
        best.append(np.mean(found.results[BEST]["accuracy"]))
        nested.append(np.mean(found.results[NESTED]["accuracy"]))
    assert np.mean(best) > np.mean(nested) + 0.02
    assert np.mean(nested) < 0.56


def test_the_least_error_is_the_best(make_problem, one_worker):
    found = evaluate(make_problem("regression"), "ridge", "cv", one_worker)
    place = [candidate == found.chosen for candidate in found.candidates].index(True)
    assert found.candidate_scores[place] == found.candidate_scores.min()


@pytest.mark.usefixtures("small_forests")
def test_equal_runs_have_equal_results_whatever_the_number_of_processes(make_problem, one_worker):
    problem = make_problem("binary", n=60, split=True)
    for protocol in ("split", "cv"):
        one, again, other = (
            evaluate(problem, "random-forest", protocol, one_worker, seed=seed, n_folds=2) for seed in (1, 1, 2)
        )
        same(one, again)
        assert not np.array_equal(one.scores, other.scores)
    same(
        evaluate(problem, "svm-linear", "cv", one_worker, n_folds=2),
        evaluate(problem, "svm-linear", "cv", Workers(2), n_folds=2),
    )


@pytest.mark.usefixtures("dask_client")
def test_fits_on_the_workers_of_a_dask_cluster_are_the_same(make_problem, one_worker):
    problem = make_problem("multiclass", n=60)
    same(
        evaluate(problem, "svm-rbf", "cv", one_worker, n_folds=2),
        evaluate(problem, "svm-rbf", "cv", Workers(1, on_dask=True), n_folds=2),
    )


def die(task):
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def process_of(task):
    return os.getpid(), task


def test_a_single_dask_worker_does_the_fits_and_not_this_process():
    with open_client(ClusterTable(workers=1, memory_limit="600MB")):
        done = Workers(1, on_dask=True).map("search", process_of, [3, 1, 2], ())
    assert [task for _, task in done] == [3, 1, 2]
    assert os.getpid() not in {process for process, _ in done}


def test_a_dask_worker_that_dies_is_an_error_in_words():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        open_client(ClusterTable(workers=1, memory_limit="600MB")),
        pytest.raises(WeglError, match=r"search: the workers that fitted died, .* give workers more memory"),
    ):
        Workers(1, on_dask=True).map("search", die, [1, 2], ())


@pytest.mark.usefixtures("dask_client")
def test_an_error_of_a_fit_on_dask_is_that_error():
    with pytest.raises(ZeroDivisionError):
        Workers(1, on_dask=True).map("search", lambda task: 1 / task, [1, 0], ())


def test_a_process_that_dies_is_an_error_in_words():
    with pytest.raises(WeglError, match=r"search: a process that fitted died, .* lower cluster\.workers"):
        Workers(2).map("search", die, [1, 2], ())


@pytest.mark.parametrize("name", ["svm-linear", "svm-rbf", "random-forest", "gradient-boosting", "mlp", "ridge"])
@pytest.mark.usefixtures("small_forests", "few_penalties")
def test_few_labelled_graphs_have_fewer_inner_folds(name, make_problem, one_worker, monkeypatch):
    monkeypatch.setattr(dense, "HIDDEN_LAYERS", ((4,), (8,)))
    for n, unknown in ((4, 0), (5, 0), (60, 55)):
        problem = make_problem("regression", n=n, unknown=unknown)
        found = evaluate(problem, name, "cv", one_worker, n_folds=2)
        assert np.isfinite(found.scores).all()
        assert len(found.rows) == n - unknown
        assert f"{NESTED}: chosen for each fold within the others, in 2 folds" in found.notes


@pytest.fixture
def no_fits(monkeypatch):
    """Workers that are never asked for anything."""
    workers = Workers(1)
    monkeypatch.setattr(workers, "map", None)
    return workers


def with_labels(problem, rows, value):
    Y = problem.Y.copy()
    Y[rows] = value
    return replace(problem, Y=Y)


def test_what_labels_and_folds_foretell_is_said_before_the_fits(make_problem, no_fits):
    binary = make_problem("binary", n=60)
    rare = with_labels(with_labels(binary, slice(None), 0.0), [3, 5, 8], 1.0)
    with pytest.raises(WeglError, match=r"ROC-AUC is not defined on a fold, .* fewer folds"):
        evaluate(rare, "svm-rbf", "cv", no_fits, metric="roc-auc", n_folds=4)
    with pytest.raises(WeglError, match=r"ROC-AUC is not defined on an inner fold, .* more labels"):
        evaluate(rare, "svm-rbf", "cv", no_fits, metric="roc-auc", n_folds=3)
    targets = make_problem("regression", n=60, split=True)
    for protocol, where in (("cv", "a fold"), ("split", 'the part "valid"')):
        for value in (3.0, 0.1):
            with pytest.raises(WeglError, match=f"R2 is not defined on {where}, where the labels are all alike"):
                evaluate(with_labels(targets, slice(None), value), "ridge", protocol, no_fits, metric="r2")


def test_a_part_to_train_on_of_one_class_is_said_before_the_fits(make_problem, no_fits):
    problem = make_problem("binary", split=True)
    problem = with_labels(problem, problem.part("train"), 1)
    with pytest.raises(WeglError, match='all labels in the part "train" are of one class'):
        evaluate(problem, "random-forest", "split", no_fits)
    # Of several tasks one may be.
    problem = make_problem("binary", n_tasks=2, split=True)
    problem.Y[problem.part("train"), 0] = 1
    with pytest.raises(TypeError):  # no_fits was asked for fits
        evaluate(problem, "random-forest", "split", no_fits)


OTHERS = 'others, whose labels there are all alike or unknown, within "train"'


@pytest.mark.parametrize(
    ("alike", "note"),
    [
        ([], 'every fit has chosen on "valid", so that its numbers there are optimistic'),
        (
            [0],
            f'fits of 1 of 2 tasks have chosen on "valid", so that their numbers there are optimistic; those of the {OTHERS}',
        ),
        ([0, 1], 'no fit has chosen on "valid", where the labels are all alike or unknown, but within "train"'),
    ],
)
def test_a_search_says_what_it_has_chosen_by(alike, note, make_problem, one_worker, monkeypatch):
    pytest.importorskip("flaml")
    pytest.importorskip("xgboost")
    held_out = []

    def fit(self, _candidate, X, y, _seed, held):
        held_out.append(self._is_measurable(held[1]))
        return DummyClassifier().fit(X, y)

    monkeypatch.setattr(AutoML, "_fit", fit)
    problem = make_problem("binary", n_tasks=2, split=True)
    problem.Y[np.ix_(problem.part("valid"), alike)] = 1
    found = evaluate(problem, "automl", "split", one_worker, metric="accuracy")
    assert held_out.count(False) == len(alike)
    assert note in found.notes
    assert sum("chosen on" in each for each in found.notes) == 1


def test_a_fold_that_a_search_cannot_be_fitted_to_is_found_before_the_first_search(make_problem, no_fits):
    pytest.importorskip("flaml")
    problem = make_problem("multiclass")
    problem.Y[problem.Y == 2] = 0
    problem.Y[7] = 2  # which only the folds that do not measure it have
    with pytest.raises(WeglError, match='"automl" needs graphs of every class in the training part'):
        evaluate(problem, "automl", "cv", no_fits)


def test_a_test_part_without_labels_is_said_before_the_fits(make_problem, no_fits):
    problem = make_problem("binary", n=60, split=True)
    with pytest.raises(WeglError, match=r'no label is known in the part "test", .* --protocol cv') as error:
        evaluate(with_labels(problem, problem.split == "test", np.nan), "svm-rbf", "split", no_fits)
    assert "folds" not in str(error.value)


def test_a_task_without_labels_in_a_training_part_is_named_before_the_fits(make_problem, no_fits):
    problem = make_problem("binary", n=60, n_tasks=2, split=True)
    Y = problem.Y.copy()
    Y[problem.split == "train", 1] = np.nan
    with pytest.raises(WeglError, match="no label of task 't1' is known in the part \"train\""):
        evaluate(replace(problem, Y=Y), "svm-rbf", "split", no_fits)
    Y = problem.Y.copy()
    Y[1:, 1] = np.nan
    with pytest.raises(WeglError, match="no label of task 't1' is known in the training part of a fold"):
        evaluate(replace(problem, Y=Y), "svm-rbf", "cv", no_fits)


def test_too_few_graphs_for_the_folds_are_counted(make_problem, one_worker):
    with pytest.raises(JobFileError, match=r"train\.folds = 40 folds need 80 graphs with labels; there are 60"):
        evaluate(make_problem("binary"), "svm-rbf", "cv", one_worker, n_folds=40)


def test_graphs_in_no_part_of_the_split_are_counted(make_problem):
    problem = make_problem("regression", split=True)
    split = problem.split.copy()
    split[:3], split[3] = "TRAIN", None
    Y = problem.Y.copy()
    Y[0] = np.nan
    outcome = evaluate(replace(problem, split=split, Y=Y), "ridge", "split", Workers(1))
    assert "graphs with labels in none of the parts train, valid, test, which were left out: 3" in outcome.notes
    assert not any("left out" in note for note in evaluate(problem, "ridge", "split", Workers(1)).notes)
