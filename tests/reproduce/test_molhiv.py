import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from wegl_dask.cli import main
from wegl_dask.folders import Folder
from wegl_dask.reproduce import molhiv
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.molhiv_results import BELOW, add_row, is_below, molhiv_plot, molhiv_table
from wegl_dask.spec import JobSpec
from wegl_dask.training import protocols, trees
from wegl_dask.training.spreading import Workers

PLAN = molhiv.Plan(methods=["virtual-node"], layers=(3, 4, 5), widths=(300, 100), seeds=3, embedding_seeds=2)


@pytest.fixture(autouse=True)
def small_forests(monkeypatch):
    monkeypatch.setattr(trees, "N_TREES", (2, 4))
    monkeypatch.setattr(molhiv, "FEW_TREES", 2)
    monkeypatch.setattr(molhiv, "SCREENING", {"min_samples_leaf": 1, "n_estimators": 4})


def compute(plan, data_set, folder):
    rows = []
    molhiv.Molhiv(plan, data_set, Ledger(Folder(str(folder))), Workers(1)).compute(rows.append)
    return rows


HOW = {"time_budget": None, "date": "2020-01-01", "versions": {"numpy": "0.1"}}


def row(test, **values):
    found = {
        "method": "virtual-node",
        "setting": {"layers": 4, "pooling": "final", "width": 300},
        "candidate": {"min_samples_leaf": 5, "n_estimators": 200},
        "screened": {"final-3-300": 79.46, "final-4-300": 82.0},
        "valid": np.array([80.0, 82.0]),
        "how": HOW,
    }
    return molhiv.Row(**{**found, **values}, test=np.array(test))


def told_apart_by(layers, pooling, width):
    """Make a signal that is perfect with one setting, and almost so with two of its three values."""

    def signal(changes):
        diffusion, nodes = changes["diffusion"], changes["nodes"]
        hits = [diffusion["layers"] == layers, diffusion["pooling"] == pooling, nodes["atom_embedding_width"] == width]
        return {3: 9.0, 2: 2.5, 1: 1.2, 0: 0.0}[sum(hits)]

    return signal


def test_the_setting_that_does_best_on_valid_is_found_in_steps(made_up, tmp_path):
    data_set = made_up(told_apart_by(5, "average", 100))
    found = compute(PLAN, data_set, tmp_path)
    first, last = found[2], found[-1]
    assert first.setting == {"layers": 5, "pooling": "average", "width": 100}
    # Three numbers of layers, two poolings with the two best of them, one more width.
    assert len(first.screened) == 3 + 2 * 2 + 1
    assert (len(first.test), len(first.embedding_test)) == (3, 0)
    assert (len(last.test), len(last.embedding_test)) == (3, 2)
    # With one seed of each the two are one fit.
    assert last.embedding_test[0] == last.test[0]


def test_labels_of_test_have_no_part_in_the_choice(made_up, tmp_path):
    signal = told_apart_by(5, "average", 100)
    one = compute(PLAN, made_up(signal), tmp_path / "one")[-1]
    two = compute(PLAN, made_up(signal, other_test=True), tmp_path / "two")[-1]
    assert (one.setting, one.candidate, one.screened) == (two.setting, two.candidate, two.screened)
    assert one.valid.tolist() == two.valid.tolist()
    assert one.embedding_valid.tolist() == two.embedding_valid.tolist()
    # Half of the pairs that were in the right order are not, and the other way round.
    assert one.test == pytest.approx(100 - two.test)
    assert one.embedding_test == pytest.approx(100 - two.embedding_test)


def test_numbers_are_those_of_a_forest_fitted_to_train(made_up, tmp_path):
    data_set = made_up(lambda _: 1.0)
    found = compute(PLAN, data_set, tmp_path)[2]
    problem_X = data_set.embed("", {"seed": 0})
    X, split, y = problem_X.X, np.array(problem_X.split), np.array(problem_X.y)
    forest = trees.RandomForest("binary", 2).make(found.candidate, 2).fit(X[split == "train"], y[split == "train"])
    scores = forest.predict_proba(X[split == "test"])[:, 1]
    assert found.test[2] == pytest.approx(100 * roc_auc_score(y[split == "test"], scores))


def test_what_was_computed_is_not_computed_again(made_up, tmp_path):
    compute(PLAN, made_up(lambda _: 1.0), tmp_path)
    data_set = made_up(lambda _: 1.0)
    rows = compute(PLAN, data_set, tmp_path)
    # The scores on all embeddings together are computed from the steps; they need the labels.
    assert len(data_set.asked) == 1
    assert [(len(row.test), len(row.embedding_test)) for row in rows] == [(3, 2)]


def test_steps_of_other_data_are_computed_anew(made_up, tmp_path):
    first = compute(PLAN, made_up(lambda _: 1.0), tmp_path)
    data_set = made_up(lambda _: 0.0, fingerprint="others")
    rows = compute(PLAN, data_set, tmp_path)
    assert len(data_set.asked) > 1
    assert rows[-1].test.tolist() != first[-1].test.tolist()
    # Those of the first are still there.
    again = compute(PLAN, made_up(lambda _: 1.0), tmp_path)
    assert again[-1].test.tolist() == first[-1].test.tolist()


def test_a_row_is_handed_on_after_every_step(made_up, tmp_path):
    rows = compute(PLAN, made_up(lambda _: 1.0), tmp_path)
    # The whole row comes once more in the end.
    assert [(len(row.test), len(row.embedding_test)) for row in rows] == [
        (1, 0),
        (2, 0),
        (3, 0),
        (3, 1),
        (3, 2),
        (3, 2),
    ]


@pytest.mark.parametrize("name", molhiv.METHODS)
def test_every_method_is_a_job_file(name, made_up, tmp_path):
    data_set = made_up(lambda _: 1.0)
    steps = molhiv.Molhiv(PLAN, data_set, Ledger(Folder(str(tmp_path))), Workers(1))
    steps._task(molhiv.METHODS[name], molhiv.Setting(3, "concat", 100), 7)
    values = {"source": {"kind": "ogb", "root": "data", "name": "ogbg-molhiv"}, "output": {"path": "out"}}
    spec = JobSpec.from_values({**values, **data_set.asked[0]})
    assert (spec.seed, spec.nodes.atom_embedding_width, spec.diffusion.layers) == (7, 100, 3)
    assert spec.nodes.virtual_node == (name != "wegl")
    assert spec.reference.kind == ("origin" if name == "average" else "kmeans")


def test_automl_searches_on_the_setting_that_forests_chose_and_chooses_on_valid(made_up, tmp_path, monkeypatch):
    asked, held = [], []

    def make_learner(name, problem, *, metric, time_budget):
        asked.append((name, metric, time_budget))
        return trees.RandomForest(problem.kind, 2)

    def fit(how, folds, *_):
        fold = folds[how.fold]
        held.append(fold.held.tolist())
        return np.zeros((len(fold.evaluate), 1)), []

    monkeypatch.setattr(molhiv, "make_learner", make_learner)
    monkeypatch.setattr(protocols, "fit", fit)
    plan = molhiv.Plan(
        methods=["automl"],
        layers=(3,),
        poolings=("final",),
        widths=(300,),
        seeds=3,
        embedding_seeds=2,
        time_budget=7.0,
    )
    data_set = made_up(lambda _: 1.0)
    steps = molhiv.Molhiv(plan, data_set, Ledger(Folder(str(tmp_path))), Workers(1))
    method, setting = molhiv.METHODS["automl"], molhiv.Setting(3, "final", 300)
    *_, found = steps._with_seeds(method, setting, {})
    # Scores that are all alike tell nothing apart.
    assert np.array(found).tolist() == [[50, 50, 50], [50, 50, 50]]
    assert held == [list(range(1, 90, 3))] * 3
    assert asked.count(("automl", "roc-auc", 7.0)) == 2  # steps, of two searches and of one
    so_far = molhiv.Row("automl", vars(setting), {}, {}, *np.array(found), {})
    *_, row = steps._with_embedding_seeds(so_far, method, setting)
    assert [row.embedding_valid.tolist(), row.embedding_test.tolist()] == [[50, 50], [50, 50]]
    assert row.how["time_budget"] == 7.0
    assert asked.count(("automl", "roc-auc", 7.0)) == 4  # with a search for each embedding
    assert {values["seed"] for values in data_set.asked} == {0, 1}
    assert held == [list(range(1, 90, 3))] * 5


def test_the_table_says_that_the_scores_of_searches_are_averaged_where_they_are():
    values = {"embedding_test": np.array([70.0, 80.0]), "embedding_valid": np.array([60.0, 62.0])}
    together = {"valid": 63.0, "test": 81.0}
    searched = row([76.0, 76.8], method="automl", candidate={}, how={**HOW, "time_budget": 60.0}, **values)
    for each, models in ((row([76.0, 76.8], **values), "forests"), (searched, "searches")):
        text = molhiv_table([replace(each, together=together)])
        assert f"The mean of the scores of 2 {models}, each on another seed's embedding: valid 63.0, test 81.0." in text
    assert "each of which chooses on valid, so that all of its numbers there may be optimistic" in text


def test_a_row_is_below_where_its_mean_on_test_is_below_the_papers():
    # The paper: 76.5 on test.
    assert is_below(row([76.0, 76.8]))
    assert not is_below(row([76.0, 77.2]))


def test_the_table_has_a_row_a_method_and_says_what_is_missing():
    text = molhiv_table(
        [row([76.0, 76.8], embedding_test=np.array([70.0, 80.0]), embedding_valid=np.array([60.0, 62.0]))]
    )
    (line,) = (line for line in text.splitlines() if line.startswith("| WEGL"))
    assert line == (
        f"| WEGL + virtual node + RF | 81.9 ± 1.3 | 81.0 ± 1.4 | 76.5 ± 1.8 | 76.4 ± 0.6 | {BELOW} "
        "| 61.0 ± 1.4 | 75.0 ± 7.1 |"
    )
    assert "Not computed yet: WEGL + RF, WEGL + virtual node + AutoML, GAP + virtual node + RF." in text
    assert "on valid: final-3-300 79.5, final-4-300 82.0." in text
    assert "So 2 of the 54 settings" in text
    assert "layers = 4, pooling = final, width = 300, min_samples_leaf = 5, n_estimators = 200" in text


def test_rows_are_kept_with_those_of_earlier_commands(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_row(folder, row([76.0]))
    add_row(folder, row([70.0], method="wegl", together={"valid": 1.0, "test": 2.0}))
    add_row(folder, row([78.0]))
    kept = json.loads(folder.read("molhiv.json"))["rows"]
    assert {name: each["test"] for name, each in kept.items()} == {"wegl": [70.0], "virtual-node": [78.0]}
    assert "| 78.0 (one seed) |" in folder.read("molhiv.md").decode()
    assert folder.read("molhiv.png").startswith(b"\x89PNG")


def kept_row(folder):
    (found,) = json.loads(folder.read("molhiv.json"))["rows"].values()
    return found


def seeds(n_seeds, n_embedding_seeds, **values):
    """Make a row of some seeds of the classifier and of the embedding."""
    test, of_embedding = 76.0 + np.arange(n_seeds), 76.0 + np.arange(n_embedding_seeds)
    parts = {"valid": test + 1, "embedding_valid": of_embedding + 1, "embedding_test": of_embedding}
    together = {"valid": 80.0 + n_embedding_seeds, "test": 79.0} if n_embedding_seeds else {}
    return row(test, **{**parts, "together": together, **values})


def test_seeds_of_the_same_settings_stay_when_fewer_are_asked_for(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_row(folder, seeds(3, 2))
    before = folder.read("molhiv.json")
    add_row(folder, seeds(1, 0))
    add_row(folder, seeds(3, 2))
    assert folder.read("molhiv.json") == before
    assert folder.read("molhiv.md").decode().endswith("; 2020-01-01.\n")
    # More of one kind and fewer of the other.
    add_row(folder, seeds(1, 4, how={**HOW, "date": "2020-01-02"}))
    found = kept_row(folder)
    assert (found["test"], found["embedding_test"]) == ([76.0, 77.0, 78.0], [76.0, 77.0, 78.0, 79.0])
    assert found["together"]["valid"] == 84.0
    assert folder.read("molhiv.md").decode().endswith("; 2020-01-01 to 2020-01-02.\n")


def test_a_row_of_another_setting_or_of_other_numbers_takes_the_place_of_the_earlier_one(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    for changed in (
        seeds(1, 0, setting={"layers": 3, "pooling": "final", "width": 300}),
        seeds(1, 0, candidate={"min_samples_leaf": 1, "n_estimators": 200}),
        seeds(1, 0, valid=np.array([50.0])),
    ):
        add_row(folder, seeds(3, 2))
        add_row(folder, changed)
        assert (kept_row(folder)["test"], kept_row(folder)["embedding_test"]) == ([76.0], [])


def test_searches_of_another_length_are_not_those_of_the_same_settings(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_row(folder, seeds(3, 0, method="automl", candidate={}, how={**HOW, "time_budget": 60.0}))
    add_row(folder, seeds(1, 0, method="automl", candidate={}, how={**HOW, "time_budget": 5.0}))
    assert kept_row(folder)["test"] == [76.0]


def test_settings_that_an_earlier_choice_was_made_among_stay(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_row(folder, seeds(1, 0))
    add_row(folder, seeds(1, 0, screened={"final-4-300": 82.0}))
    assert kept_row(folder)["screened"] == {"final-3-300": 79.46, "final-4-300": 82.0}


@pytest.mark.parametrize(
    ("screened", "text"),
    [
        (["concat-3-100"], "Of the 54 settings of the paper's grid concat-3-100 alone was looked at."),
        (
            ["average-3-100", "average-8-100"],
            "Only the number of layers, with average pooling and width 100. So 2 of the 54 settings",
        ),
        (
            ["concat-3-300", "average-3-300"],
            "Only the pooling, with 3 layers and width 300. So 2 of the 54 settings",
        ),
        (["concat-3-300", "concat-3-500"], "Only the width. So 2 of the 54 settings"),
        (
            ["concat-3-100", "concat-4-100", "concat-5-100", "average-4-100", "average-3-100", "average-4-500"],
            (
                "First the number of layers, with concat pooling and width 100; then the pooling, with the two best "
                "numbers of layers and width 100; then the width, with the best of these. So 6 of the 54 settings"
            ),
        ),
    ],
)
def test_how_the_choice_was_narrowed_follows_from_what_was_screened(screened, text):
    assert text in molhiv_table([row([76.0], screened=dict.fromkeys(screened, 80.0))])


def test_rows_whose_choice_was_narrowed_in_other_ways_are_told_apart():
    text = molhiv_table([row([76.0], method="wegl", screened={"concat-3-100": 80.0}), row([76.0])])
    assert "WEGL + RF: Of the 54 settings of the paper's grid concat-3-100 alone was looked at." in text
    assert "WEGL + virtual node + RF: Only the number of layers, with final pooling and width 300." in text


def test_results_of_the_repository_are_added_to(committed):
    pytest.importorskip("matplotlib")
    folder, earlier = committed("molhiv.json", "rows")
    add_row(folder, row([70.0]))
    kept = json.loads(folder.read("molhiv.json"))["rows"]
    assert kept.pop("virtual-node")["test"] == [70.0]
    del earlier["virtual-node"]
    assert kept == earlier
    table = folder.read("molhiv.md").decode()
    assert "First the number of layers, with final pooling and width 300; then the pooling" in table


def test_the_plot_is_a_png():
    pytest.importorskip("matplotlib")
    assert molhiv_plot([row([76.0, 76.8])]).startswith(b"\x89PNG")


def test_a_method_that_is_not_known_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "molhiv", "--data", "x", "-o", str(tmp_path / "molhiv"), "--only", "gap"])
    assert stop.value.code == 2
    assert "--only names 'gap'; there are wegl, virtual-node, automl, average" in capsys.readouterr().err
