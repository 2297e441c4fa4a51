import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import ParameterGrid
from sklearn.svm import SVC

from wegl_dask.reproduce import learners
from wegl_dask.reproduce.learners import leading_components, table_learner
from wegl_dask.reproduce.tud import METHODS
from wegl_dask.training.learner import Fold

TRAIN, EVALUATE = np.arange(40), np.arange(40, 60)


def searched(learner, problem, group):
    return learner.search(learner.shared(problem.X), problem.Y[:, 0], Fold(TRAIN, EVALUATE), group, 3)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_every_model_scores_every_class(name, kind, make_problem):
    problem = make_problem(kind)
    learner = table_learner(name, problem, "MUTAG", "final")
    scores = searched(learner, problem, learner.groups()[0][-1:])
    assert scores.shape == (1, 20, {"binary": 1, "multiclass": 3}[kind])
    predicted = scores[0].argmax(axis=1) if kind == "multiclass" else scores[0, :, 0] > learner.threshold
    assert (predicted == problem.Y[EVALUATE, 0]).mean() > 0.5


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
@pytest.mark.parametrize(("data_set", "max_features"), [("PTC_MR", None), ("PROTEINS", "sqrt")])
def test_stages_of_boosting_are_what_shorter_ones_would_be(kind, data_set, max_features, make_problem, monkeypatch):
    monkeypatch.setattr(learners, "N_TREES", (2, 5))
    problem = make_problem(kind, width=9)
    learner = table_learner("gradient-boosting", problem, data_set, "final")
    group = learner.groups()[1]
    for candidate, scores in zip(group, searched(learner, problem, group), strict=True):
        expected = GradientBoostingClassifier(**candidate, max_features=max_features, random_state=3)
        expected.fit(problem.X[TRAIN], problem.Y[TRAIN, 0])
        probabilities = expected.predict_proba(problem.X[EVALUATE])
        assert np.array_equal(scores, probabilities if kind == "multiclass" else probabilities[:, 1:])


def test_what_is_fitted_once_by_boosting_has_the_same_scores(make_problem):
    problem = make_problem("binary", n=200)
    for group in table_learner("gradient-boosting", problem, "PROTEINS", "final").groups():
        alike = [{**each, "n_estimators": 5} for each in group if each["n_estimators"] == 25]
        scores = [
            GradientBoostingClassifier(**each, max_features="sqrt", random_state=3)
            .fit(problem.X, problem.Y[:, 0])
            .predict_proba(problem.X)
            for each in alike
        ]
        assert all(np.array_equal(one, scores[0]) for one in scores)


def test_the_grid_of_boosting_starts_with_the_deepest_trees(make_problem):
    groups = table_learner("gradient-boosting", make_problem("binary"), "MUTAG", "final").groups()
    assert {(each["max_depth"], each["min_samples_leaf"]) for each in groups[0]} == {(5, 1)}
    paper = ParameterGrid(
        {
            "min_samples_leaf": [1, 2, 5],
            "min_samples_split": [2, 5, 10],
            "max_depth": [1, 3, 5],
            "n_estimators": [25, 50, 100, 150, 200],
        }
    )
    assert len(groups) == 17
    listed = [tuple(sorted(each.items())) for group in groups for each in group]
    assert sorted(listed) == sorted(tuple(sorted(each.items())) for each in paper)


def test_svms_end_after_the_steps_of_the_tables(make_problem, monkeypatch):
    monkeypatch.setattr(learners, "SVM_ITERATIONS", 2)
    problem = make_problem("binary", n=60)
    learner = table_learner("svm-linear", problem, "MUTAG", "final")
    found = searched(learner, problem, [{"C": 100.0}])
    with pytest.warns(match="terminated early"):
        ended = SVC(C=100.0, kernel="linear", max_iter=2).fit(problem.X[TRAIN], problem.Y[TRAIN, 0])
    np.testing.assert_allclose(found[0, :, 0], ended.decision_function(problem.X[EVALUATE]), rtol=1e-3, atol=1e-3)


def test_leading_components_are_those_of_a_pca_on_one_scale(make_problem):
    X = make_problem("binary", width=8).X * np.array([9, 5, 3, 1, 1, 1, 0.1, 0.1], dtype=np.float32)
    pca = PCA().fit(X.astype(np.float64))
    kept = int((np.cumsum(pca.explained_variance_ratio_) < 0.95).sum()) + 1
    expected = pca.transform(X.astype(np.float64))[:, :kept]
    expected /= expected[:, 0].std()
    found = leading_components(X, 0.95)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found * np.sign((found * expected).sum(axis=0)), expected, atol=1e-5)


def test_vectors_that_are_all_alike_have_one_component_of_nothing():
    assert np.array_equal(leading_components(np.ones((4, 3), dtype=np.float32), 0.9), np.zeros((4, 1)))
