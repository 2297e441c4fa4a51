import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score

from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.reproduce import molhiv, reference
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.reference import Areas, measure_references, p_value
from wegl_dask.reproduce.reference_results import reference_table, write_results
from wegl_dask.spec import JobSpec
from wegl_dask.training.spreading import Workers

HOW = {"date": "2020-01-01", "versions": {"numpy": "0.1"}}


@pytest.fixture(autouse=True)
def small_forests(monkeypatch):
    monkeypatch.setattr(reference, "FOREST", {"n_estimators": 4})


def measure(data_set, folder, **seeds):
    return list(measure_references(seeds, data_set, Ledger(Folder(str(folder))), Workers(1)))


def test_kinds_are_measured_seed_by_seed(made_up, tmp_path):
    data_set = made_up(lambda _: 1.0)
    found = measure(data_set, tmp_path, kmeans=2, barycenter=1)
    asked = [(changes["reference"]["kind"], changes["seed"]) for changes in data_set.asked]
    assert asked == [("kmeans", 0), ("barycenter", 0), ("kmeans", 1)]
    assert {kind: len(areas.test) for kind, areas in found[-1].items()} == {"kmeans": 2, "barycenter": 1}
    # The embeddings of a hundred seeds would take gigabytes.
    assert data_set.removed == ["reference-kmeans-0", "reference-barycenter-0", "reference-kmeans-1"]


def test_numbers_are_those_of_a_forest_with_the_seed(made_up, tmp_path):
    data_set = made_up(lambda _: 1.0)
    found = measure(data_set, tmp_path, normal=2)[-1]["normal"]
    embeddings = data_set.embed("", {"seed": 1})
    X, split, y = embeddings.X, np.array(embeddings.split), np.array(embeddings.y)
    forest = RandomForestClassifier(4, class_weight="balanced", random_state=1).fit(
        X[split == "train"], y[split == "train"]
    )
    for part in ("valid", "test"):
        area = roc_auc_score(y[split == part], forest.predict_proba(X[split == part])[:, 1])
        assert getattr(found, part)[1] == pytest.approx(100 * area)


def test_what_was_measured_is_not_measured_again(made_up, tmp_path):
    first = measure(made_up(lambda _: 1.0), tmp_path, kmeans=2)
    data_set = made_up(lambda _: 1.0)
    again = measure(data_set, tmp_path, kmeans=3)
    assert [changes["seed"] for changes in data_set.asked] == [2]
    assert again[-1]["kmeans"].test[:2].tolist() == first[-1]["kmeans"].test.tolist()


def test_what_was_measured_on_other_data_is_measured_anew(made_up, tmp_path):
    measure(made_up(lambda _: 1.0), tmp_path, kmeans=2)
    data_set = made_up(lambda _: 1.0, fingerprint="others")
    measure(data_set, tmp_path, kmeans=2)
    assert [changes["seed"] for changes in data_set.asked] == [0, 1]


@pytest.mark.parametrize(("name", "other"), [("WIDTH", 100), ("LAYERS", 7), ("POOLING", "concat"), ("FOREST", {})])
def test_what_was_measured_with_other_settings_is_measured_anew(name, other, made_up, tmp_path, monkeypatch):
    measure(made_up(lambda _: 1.0), tmp_path, kmeans=1)
    monkeypatch.setattr(reference, name, other)
    data_set = made_up(lambda _: 1.0)
    measure(data_set, tmp_path, kmeans=1)
    assert [changes["seed"] for changes in data_set.asked] == [0]


@pytest.mark.parametrize("kind", reference.KINDS)
def test_every_kind_is_a_job_file(kind, made_up, tmp_path):
    data_set = made_up(lambda _: 1.0)
    measure(data_set, tmp_path, **{kind: 1})
    values = {"source": {"kind": "ogb", "root": "data", "name": "ogbg-molhiv"}, "output": {"path": "out"}}
    spec = JobSpec.from_values({**values, **data_set.asked[0]})
    assert (spec.reference.kind, spec.nodes.atom_embedding_width, spec.diffusion.layers) == (kind, 300, 4)


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_part_of_one_class_is_named(part, made_up, tmp_path):
    data_set = made_up(lambda _: 1.0)

    def embed(name, changes):
        found = embedded(name, changes)
        labels = np.where(np.array(found.split) == part, 0, np.array(found.y))
        rows = found.rows.set_column(1, "label", [labels])
        return replace(found, rows=rows)

    embedded, data_set.embed = data_set.embed, embed
    with pytest.raises(WeglError, match=f'ROC-AUC is not defined on the part "{part}", where the labels are all alike'):
        measure(data_set, tmp_path, kmeans=1)
    with pytest.raises(WeglError, match=f'ROC-AUC is not defined on the part "{part}"'):
        molhiv.Molhiv(molhiv.Plan(), data_set, Ledger(Folder(str(tmp_path))), Workers(1)).compute(print)


def test_kinds_are_compared_on_the_seeds_that_both_have():
    one, other = [78.0, 79.0, 77.5, 10.0], [77.0, 78.5, 77.6]
    # By hand: differences 1, 0.5, -0.1; t = mean / (deviation / sqrt 3) with 2 degrees of freedom.
    differences = np.array([1.0, 0.5, -0.1])
    t = differences.mean() / (differences.std(ddof=1) / np.sqrt(3))
    assert p_value(one, other) == pytest.approx(2 * stats.t.sf(t, df=2))
    assert p_value(one, other[:1]) is None
    assert p_value([1.0, 2.0], [1.0, 2.0]) is None


def test_the_table_has_a_row_a_kind():
    found = {
        "kmeans": Areas("kmeans", np.array([80.0, 82.0]), np.array([78.0, 79.0]), HOW),
        "normal": Areas("normal", np.array([80.0]), np.array([77.0]), HOW),
    }
    lines = reference_table(found).splitlines()
    assert "| kmeans | 2 | 81.00 ± 1.41 | 78.50 ± 0.71 |  |" in lines
    assert "| normal | 1 | 80.00 | 77.00 |  |" in lines


def areas(kind, *test, how=HOW):
    return {kind: Areas(kind, np.array(test) + 2, np.array(test), how)}


def kept_kinds(folder):
    return json.loads(folder.read("reference.json"))["kinds"]


def test_results_are_written_as_table_plot_and_json(tmp_path):
    pytest.importorskip("matplotlib")
    write_results(Folder(str(tmp_path)), areas("kmeans", 78.0))
    kept = json.loads((tmp_path / "reference.json").read_text())["kinds"]["kmeans"]
    assert (kept["valid"], kept["test"]) == ([80.0], [78.0])
    assert (tmp_path / "reference.png").read_bytes().startswith(b"\x89PNG")


def test_rows_of_other_kinds_and_of_more_seeds_are_kept(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    write_results(folder, {**areas("barycenter", 70.0), **areas("kmeans", 78.0, 79.0), **areas("normal", 76.0, 77.0)})
    write_results(folder, areas("normal", 76.0))
    assert {kind: values["test"] for kind, values in kept_kinds(folder).items()} == {
        "kmeans": [78.0, 79.0],
        "normal": [76.0, 77.0],
        "barycenter": [70.0],
    }
    assert "| normal | 2 | 78.50 ± 0.71 | 76.50 ± 0.71 |" in folder.read("reference.md").decode()
    # A seed that gives another number was measured anew.
    write_results(folder, areas("normal", 75.0))
    assert kept_kinds(folder)["normal"]["test"] == [75.0]


def test_areas_have_the_date_and_the_versions_of_their_steps(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    write_results(folder, areas("kmeans", 78.0, 79.0))
    assert folder.read("reference.md").decode().endswith("numpy 0.1; 2020-01-01.\n")
    later = {"date": "2020-01-02", "versions": {"numpy": "0.2"}}
    write_results(folder, areas("kmeans", 78.0, how=later))
    assert kept_kinds(folder)["kmeans"]["how"] == HOW
    write_results(folder, areas("kmeans", 78.0, 79.0, how=later))
    assert kept_kinds(folder)["kmeans"]["how"] == later
    # Of another version of the numerics, the same numbers and more are no part of them.
    other = {"date": "2020-01-03", "versions": {"wegl-dask numerics": "0"}}
    write_results(folder, areas("kmeans", 78.0, how=other))
    assert kept_kinds(folder)["kmeans"]["test"] == [78.0]


def test_results_of_the_repository_are_added_to(committed):
    pytest.importorskip("matplotlib")
    folder, earlier = committed("reference.json", "kinds")
    write_results(folder, areas("barycenter", 70.0))
    kept = kept_kinds(folder)
    assert kept["kmeans"] == earlier["kmeans"]
    assert kept["barycenter"]["test"] == [70.0]
