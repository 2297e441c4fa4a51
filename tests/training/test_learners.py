from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import ParameterGrid
from sklearn.neural_network._multilayer_perceptron import BaseMultilayerPerceptron
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from wegl_dask.errors import JobFileError, MissingDependencyError, WeglError
from wegl_dask.training import automl, dense, svm, trees
from wegl_dask.training.convergence import convergence_notes
from wegl_dask.training.dense import PENALTIES
from wegl_dask.training.learner import Fold
from wegl_dask.training.models import make_learner
from wegl_dask.training.svm import SupportVectorMachine

KINDS = ("binary", "multiclass", "regression")
GRID_MODELS = ("random-forest", "gradient-boosting", "svm-linear", "svm-rbf", "mlp")
TRAIN, EVALUATE = np.arange(40), np.arange(40, 60)


def learner_of(name, problem):
    return make_learner(name, problem, metric="accuracy", time_budget=1.0)


def searched(learner, problem, group, train=TRAIN, seed=3):
    return learner.search(learner.shared(problem.X), problem.Y[:, 0], Fold(train, EVALUATE), group, seed)


def fitted(learner, problem, candidate, train=TRAIN, seed=3):
    estimator = learner.fit(candidate, problem.X[train], problem.Y[train, 0], seed)
    return learner.scores(estimator, problem.X[EVALUATE])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["random-forest", "gradient-boosting"])
def test_the_short_way_to_the_scores_of_trees_changes_no_bit(name, kind, make_problem, monkeypatch):
    monkeypatch.setattr(trees, "N_TREES", (2, 5, 25))
    problem = make_problem(kind)
    learner = learner_of(name, problem)
    groups = learner.groups()
    # The first group, and one whose candidates differ in more than the number of trees where there is one.
    for group in (groups[0], groups[-1]):
        together = searched(learner, problem, group)
        for candidate, scores in list(zip(group, together, strict=True))[:: max(1, len(group) // 4)]:
            assert np.array_equal(scores, fitted(learner, problem, candidate)), candidate


@pytest.mark.parametrize("name", GRID_MODELS)
def test_a_model_predicts_the_class_of_the_highest_score(name, make_problem, monkeypatch):
    monkeypatch.setattr(trees, "N_TREES", (5,))
    # With so many classes that overlap, votes between pairs of classes are often as many for several.
    problem = make_problem("multiclass", n=240, n_classes=6)
    learner = learner_of(name, problem)
    group = learner.groups()[0]
    estimator = learner.fit(group[len(group) // 2], problem.X[:120], problem.Y[:120, 0], 3)
    predicted = learner.scores(estimator, problem.X[120:]).argmax(axis=1)
    assert len(set(predicted)) > 2
    assert np.array_equal(estimator.predict(problem.X[120:]), predicted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["svm-linear", "svm-rbf"])
def test_scores_from_a_gram_matrix_are_those_of_the_vectors(name, kind, make_problem):
    problem = make_problem(kind)
    learner = learner_of(name, problem)
    (group,) = learner.groups()
    group = [candidate for candidate in group if candidate["C"] <= 10]
    together = searched(learner, problem, group)
    for candidate, scores in zip(group, together, strict=True):
        np.testing.assert_allclose(scores, fitted(learner, problem, candidate), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_svms_of_many_graphs_do_without_the_gram_matrix(kind, make_problem, monkeypatch):
    monkeypatch.setattr(svm, "GRAM_GRAPHS", 10)
    problem = make_problem(kind)
    learner = learner_of("svm-rbf", problem)
    group = learner.groups()[0][:3]
    assert len(learner.shared(problem.X)) == 1
    together = searched(learner, problem, group)
    for candidate, scores in zip(group, together, strict=True):
        assert np.array_equal(scores, fitted(learner, problem, candidate))


def test_the_scores_of_an_svm_are_scikit_learns(make_problem):
    problem = make_problem("binary")
    expected = SVC(C=10.0).fit(problem.X[TRAIN], problem.Y[TRAIN, 0]).decision_function(problem.X[EVALUATE])
    scores = fitted(learner_of("svm-rbf", problem), problem, {"C": 10.0})
    np.testing.assert_allclose(scores[:, 0], expected)


def test_a_gram_matrix_is_summed_over_blocks_of_columns(monkeypatch):
    X = np.random.default_rng(0).normal(size=(7, 23)).astype(np.float32)
    monkeypatch.setattr(svm, "_BLOCK_ENTRIES", 7 * 5)
    np.testing.assert_allclose(svm.gram_matrix(X), X.astype(np.float64) @ X.T.astype(np.float64), rtol=1e-13)


def test_forests_of_targets_look_at_a_square_root_of_the_columns(make_problem):
    problem = make_problem("regression")
    candidate = {"n_estimators": 12, "min_samples_leaf": 2, "min_samples_split": 5}
    expected = RandomForestRegressor(12, min_samples_leaf=2, min_samples_split=5, max_features="sqrt", random_state=3)
    y = problem.Y[TRAIN, 0]
    expected.fit(problem.X[TRAIN], (y - y.mean()) / y.std())
    scores = fitted(learner_of("random-forest", problem), problem, candidate, seed=3)
    np.testing.assert_allclose((scores[:, 0] - y.mean()) / y.std(), expected.predict(problem.X[EVALUATE]), atol=1e-9)


def test_the_grid_of_the_forest_is_the_papers_in_seven_fits(make_problem):
    groups = learner_of("random-forest", make_problem("binary")).groups()
    paper = ParameterGrid(
        {"min_samples_leaf": [1, 2, 5], "min_samples_split": [2, 5, 10], "n_estimators": [25, 50, 100, 150, 200]}
    )
    assert len(groups) == 7
    assert sorted(map(str, (sorted(c.items()) for group in groups for c in group))) == sorted(
        str(sorted(c.items())) for c in paper
    )


def test_a_split_size_below_twice_the_leaf_is_no_constraint(make_problem):
    problem = make_problem("binary", n=200)
    forests = [
        RandomForestClassifier(20, min_samples_leaf=5, min_samples_split=split, random_state=1).fit(
            problem.X, problem.Y[:, 0]
        )
        for split in (2, 5, 10)
    ]
    scores = [forest.predict_proba(problem.X) for forest in forests]
    assert np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[0], scores[2])


def test_the_other_grids_are_the_papers(make_problem):
    problem = make_problem("binary")
    groups = learner_of("gradient-boosting", problem).groups()
    assert len(groups) == 9
    boosting = [c for group in groups for c in group]
    assert {c["max_iter"] for c in boosting} == {25, 50, 100, 150, 200}
    assert {c["max_depth"] for c in boosting} == {1, 3, 5}
    assert {c["min_samples_leaf"] for c in boosting} == {1, 2, 5}
    assert len(boosting) == 45
    for name in ("svm-linear", "svm-rbf"):
        (group,) = learner_of(name, problem).groups()
        np.testing.assert_allclose([c["C"] for c in group], [1e-2, 1e-1, 1, 10, 1e2, 1e3, 1e4, 1e5])
    layers = [c["hidden_layer_sizes"] for (c,) in learner_of("mlp", problem).groups()]
    assert layers == [(128,), (256,), (128, 64), (256, 128)]


@pytest.mark.parametrize("name", [*GRID_MODELS, "ridge"])
def test_a_seed_makes_a_difference_exactly_where_the_model_says_so(name, make_problem):
    problem = make_problem("regression" if name == "ridge" else "binary")
    learner = learner_of(name, problem)
    candidate = learner.groups()[0][0]
    one, again, other = (fitted(learner, problem, candidate, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one, again)
    assert np.array_equal(one, other) != learner.is_seeded


@pytest.mark.parametrize("name", GRID_MODELS)
def test_a_class_that_is_not_in_the_training_part_is_never_predicted(name, make_problem, monkeypatch):
    monkeypatch.setattr(trees, "N_TREES", (2, 5))
    problem = make_problem("multiclass", n_classes=4)
    learner = learner_of(name, problem)
    for known in ([0, 3], [0, 1, 3], [2]):
        train = TRAIN[np.isin(problem.Y[TRAIN, 0], known)]
        group = learner.groups()[0][:1]
        (scores,) = searched(learner, problem, group, train)
        assert scores.shape == (20, 4)
        assert np.isfinite(scores).all()
        assert set(scores.argmax(axis=1).tolist()) <= set(known)
        if "svm" not in name:
            assert (np.delete(scores, known, axis=1) == 0).all()
            np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
        assert set(fitted(learner, problem, group[0], train).argmax(axis=1).tolist()) <= set(known)


@pytest.mark.parametrize("name", GRID_MODELS)
@pytest.mark.parametrize("only", [0, 1])
def test_one_class_of_two_in_the_training_part_is_predicted_for_all(name, only, make_problem):
    problem = make_problem("binary")
    learner = learner_of(name, problem)
    train = TRAIN[problem.Y[TRAIN, 0] == only]
    for scores in (*searched(learner, problem, learner.groups()[0][:2], train), fitted(learner, problem, {}, train)):
        assert ((scores[:, 0] > learner.threshold) == only).all()
        if "svm" not in name:
            assert (scores[:, 0] == only).all()


@pytest.mark.parametrize("name", ["svm-linear", "svm-rbf", "mlp", "ridge"])
def test_targets_of_any_scale_and_origin_are_learned(name, make_problem):
    problem = make_problem("regression", n=200)
    learner = learner_of(name, problem)
    train, evaluate = np.arange(150), np.arange(150, 200)
    group = learner.groups()[-1] if name == "mlp" else [{"alpha": 1.0}] if name == "ridge" else [{"C": 1.0}]
    for scale, origin in ((1, 0), (1e4, -1e6)):
        y = problem.Y[:, 0] * scale + origin
        scores = learner.search(learner.shared(problem.X), y, Fold(train, evaluate), group, 0)[0]
        assert np.corrcoef(scores[:, 0], y[evaluate])[0, 1] > 0.5
        assert abs(scores.mean() - y.mean()) < y.std()


@pytest.mark.parametrize("name", [*GRID_MODELS, "ridge", "automl"])
def test_targets_far_from_zero_or_very_small_keep_their_digits(name, make_problem):
    if name == "automl":
        pytest.importorskip("flaml")
        pytest.importorskip("xgboost")
    problem = make_problem("regression", n=60)
    step = (np.arange(60) % 4).astype(np.float64)
    problem.X[:, 0] = step
    learner = make_learner(name, problem, metric="rmse", time_budget=1.0)
    candidate = {"C": 1.0} if name.startswith("svm") else learner.groups()[0][-1]
    expected = None
    for scale, origin in ((1, 0), (0.05, 0), (0.05, -1e6), (0.05, 1e9), (1e-12, 0), (1e30, 0)):
        y = origin + scale * step
        estimator = learner.fit(candidate, problem.X[TRAIN], y[TRAIN], 0)
        found = [learner.scores(estimator, problem.X[EVALUATE])]
        if name == "automl":
            # What the search comes to follows from the time too.
            assert np.abs((found[0][:, 0] - origin) / scale - step[EVALUATE]).max() < 0.8
            continue
        found += list(learner.search(learner.shared(problem.X), y, Fold(TRAIN, EVALUATE), [candidate], 0))
        for scores in found:
            plain = (scores[:, 0] - origin) / scale
            expected = plain if expected is None else expected
            # Of two splits of a forest that are equally good, the last digits choose.
            np.testing.assert_allclose(plain, expected, rtol=0, atol=0.15 if name == "random-forest" else 0.05)


def test_ridge_is_that_of_scikit_learn_in_double_precision(make_problem):
    problem = make_problem("regression", n=60)
    y = -1e6 - 0.05 * (np.arange(60) % 4)
    X = problem.X.astype(np.float64)
    expected = make_pipeline(StandardScaler(), Ridge(alpha=1.0)).fit(X[TRAIN], y[TRAIN]).predict(X[EVALUATE])
    learner = learner_of("ridge", problem)
    estimator = learner.fit({"alpha": 1.0}, problem.X[TRAIN], y[TRAIN], 0)
    np.testing.assert_allclose(estimator.predict(problem.X[EVALUATE]), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("width", [5, 400])
def test_ridge_searches_all_penalties_as_if_each_were_fitted_alone(width, make_problem):
    random = np.random.default_rng(1)
    X, y = random.normal(size=(90, width)).astype(np.float32), 1e6 + random.normal(size=90)
    train, evaluate = np.arange(60), np.arange(60, 90)
    learner = learner_of("ridge", make_problem("regression"))
    (group,) = learner.groups()
    scores = learner.search(learner.shared(X), y, Fold(train, evaluate), group, 0)
    assert [candidate["alpha"] for candidate in group] == list(PENALTIES)
    for candidate, found in zip(group, scores, strict=True):
        alone = make_pipeline(StandardScaler(), Ridge(**candidate)).fit(X[train].astype(np.float64), y[train])
        np.testing.assert_allclose(found[:, 0], alone.predict(X[evaluate]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("alpha", PENALTIES)
def test_ridge_of_few_graphs_with_columns_that_hang_together_is_the_closed_form(make_problem, alpha):
    random = np.random.default_rng(0)
    X = (random.normal(size=(90, 5)) @ random.normal(size=(5, 400)) / 30).astype(np.float32)
    y = random.normal(size=90)
    estimator = learner_of("ridge", make_problem("regression")).fit({"alpha": alpha}, X, y, 0)
    Z = (X - X.mean(axis=0, dtype=np.float64)) / X.std(axis=0, dtype=np.float64)
    weights = Z.T @ np.linalg.solve(Z @ Z.T + alpha * np.eye(90), y - y.mean())
    np.testing.assert_allclose(estimator.predict(X.astype(np.float64)), Z @ weights + y.mean(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("n_tasks", "otherwise"), [(1, ' or, if they are targets, .*task = "regression"'), (2, "")])
def test_ridge_is_for_targets(n_tasks, otherwise, make_problem):
    # Of several labels 0 and 1 cannot be made targets.
    with pytest.raises(JobFileError, match=rf"are classes: choose svm-linear{otherwise}( in the job file)?$"):
        learner_of("ridge", make_problem("binary", n_tasks=n_tasks))


def test_automl_names_what_is_missing(make_problem, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"wegl-dask\[automl\]"):
        learner_of("automl", make_problem("binary"))


@pytest.mark.parametrize("kind", KINDS)
def test_automl_finds_a_model_in_the_time_it_is_given(kind, make_problem):
    pytest.importorskip("flaml")
    pytest.importorskip("xgboost")
    problem = make_problem(kind, n=200)
    learner = make_learner("automl", problem, metric="rmse" if kind == "regression" else "accuracy", time_budget=1.0)
    X, y = problem.X, problem.Y[:, 0]
    for held in (None, (X[100:150], y[100:150])):
        estimator = learner.fit({}, X[:100], y[:100], 0, held=held)
        scores = learner.scores(estimator, X[150:])
        assert scores.shape == (50, 3 if kind == "multiclass" else 1)
        if kind == "binary":
            assert ((scores[:, 0] > 0.5) == y[150:]).mean() > 0.6


def automl_of(problem, metric, seconds):
    pytest.importorskip("flaml")
    pytest.importorskip("xgboost")
    return make_learner("automl", problem, metric=metric, time_budget=seconds)


def test_automl_without_the_time_for_a_model_says_so(make_problem):
    problem = make_problem("binary")
    X, y = problem.X, problem.Y[:, 0]
    for held in (None, (X[40:], y[40:])):
        with pytest.raises(WeglError, match=r"no model was found in train\.time_budget = 0\.0001 seconds"):
            automl_of(problem, "roc-auc", 1e-4).fit({}, X[:40], y[:40], 0, held=held)


def test_automl_does_not_choose_on_graphs_that_measure_nothing(make_problem):
    problem = make_problem("binary", n=100)
    X, y = problem.X, problem.Y[:, 0]
    for held in ([], np.flatnonzero(y == 1)[:4]):
        estimator = automl_of(problem, "roc-auc", 0.5).fit({}, X, y, 0, held=(X[held], y[held]))
        assert set(estimator.predict(X)) == {0, 1}


@pytest.mark.parametrize("kind", ["binary", "regression"])
@pytest.mark.parametrize(
    ("name", "steps", "converges"),
    [
        ("svm-rbf", 10, False),
        ("svm-rbf", 10**6, True),
        ("mlp", 3, False),
        ("mlp", 10**4, True),
        ("random-forest", 0, True),
    ],
)
def test_a_model_that_ended_before_it_had_converged_is_noted(name, steps, converges, kind, make_problem, monkeypatch):
    monkeypatch.setattr(dense, "EPOCHS", steps)
    problem = make_problem(kind)
    learner = learner_of(name, problem)
    if name == "svm-rbf":
        learner = replace(learner, max_iterations=steps)
    estimator = learner.fit(learner.groups()[0][0], problem.X, problem.Y[:, 0], 0)
    expected = [] if converges else ["the fitted model ended at the most steps there are, before converging"]
    assert convergence_notes([estimator]) == expected
    both = convergence_notes([estimator, estimator])
    assert len(both) == len(expected)
    assert all(note.startswith("2 of the 2 fitted models, one a label, ended") for note in both)


def test_automl_counts_the_targets_it_needs(make_problem):
    problem = make_problem("regression")
    with pytest.raises(WeglError, match="needs 5 targets in the training part, and there are 4"):
        automl_of(problem, "rmse", 1.0).fit({}, problem.X[:4], problem.Y[:4, 0], 0)


def test_the_seed_of_automl_is_that_of_its_forests(make_problem, monkeypatch):
    pytest.importorskip("flaml")
    pytest.importorskip("xgboost")
    problem = make_problem("binary", n=200)
    monkeypatch.setattr(automl, "ESTIMATORS", ("balanced_forest",))
    learner = make_learner("automl", problem, metric="accuracy", time_budget=0.5)
    X, y = problem.X, problem.Y[:, 0]
    forests = [learner.fit({}, X[:100], y[:100], seed, held=(X[100:150], y[100:150])) for seed in (3, 4)]
    assert [forest.random_state for forest in forests] == [3, 4]


def test_the_scores_of_a_forest_do_not_depend_on_the_threads_that_it_is_fitted_with(make_problem):
    problem = make_problem("binary", n=2000, width=20)
    learner = learner_of("random-forest", problem)
    candidate = {"n_estimators": 40, "min_samples_leaf": 1}
    found = [fitted(learner, problem, {**candidate, "n_jobs": 2}, slice(None)) for _ in range(5)]
    expected = fitted(learner, problem, candidate, slice(None))
    assert all(np.array_equal(each, expected) for each in found)


def test_the_forests_of_automl_are_balanced_and_all_of_one_size(make_problem):
    pytest.importorskip("flaml")
    pytest.importorskip("xgboost")
    from flaml.automl.task.factory import task_factory

    from wegl_dask.training.balanced_forest import BalancedForest

    problem = make_problem("binary", n=120)
    X, y = problem.X, problem.Y[:, 0].astype(int)
    task = task_factory("binary")
    space = BalancedForest.search_space(X.shape, task)
    first = {name: one["init_value"] for name, one in space.items()}
    forest = BalancedForest(task=task, **first, n_jobs=1, random_seed=3)
    forest.fit(X[:80], y[:80])
    expected = RandomForestClassifier(
        500, min_samples_leaf=2, max_features=X.shape[1] ** -0.5, class_weight="balanced", random_state=3
    ).fit(X[:80], y[:80])
    np.testing.assert_array_equal(forest.predict_proba(X[80:]), expected.predict_proba(X[80:]))


@pytest.mark.parametrize("most_graphs", [10, 1000])
def test_vectors_too_long_for_a_linear_svm_are_refused(most_graphs, make_problem, monkeypatch):
    monkeypatch.setattr(svm, "GRAM_GRAPHS", most_graphs)
    X = make_problem("binary").X
    longest = np.sqrt((X.astype(np.float64) ** 2).sum(axis=1).max())
    limit = np.sqrt(np.finfo(np.float32).max) / longest
    linear = SupportVectorMachine("binary", 2, "linear")
    linear.shared((0.99 * limit * X).astype(np.float32))
    too_long = (1.01 * limit * X).astype(np.float32)
    with pytest.raises(WeglError, match=r"a linear SVM takes none above 1\.8e\+19: set projection\.standardize = true"):
        linear.shared(too_long)
    SupportVectorMachine("binary", 2, "rbf").shared(too_long)


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_a_fit_that_is_interrupted_is_none(kind, make_problem, monkeypatch):
    """scikit-learn would hand on a perceptron that has seen a part of its epochs, with a warning."""
    problem = make_problem(kind)
    passes = []

    def interrupted(self, *args, **kwargs):
        passes.append(self)
        if len(passes) > 3:
            raise KeyboardInterrupt("stopped by SIGINT")
        return backprop(self, *args, **kwargs)

    backprop = BaseMultilayerPerceptron._backprop
    monkeypatch.setattr(BaseMultilayerPerceptron, "_backprop", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
        fitted(learner_of("mlp", problem), problem, {"hidden_layer_sizes": (8,)})
    passes.clear()
    learner = learner_of("mlp", problem)
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
        learner.fit({"hidden_layer_sizes": (8,)}, problem.X[TRAIN], problem.Y[TRAIN, 0], 0)
