import errno
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression

from wegl_dask import folders
from wegl_dask.cli import main
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.locks import locked
from wegl_dask.reading import read_embeddings
from wegl_dask.spec import ClusterTable, TrainTable
from wegl_dask.storage import RunFolder
from wegl_dask.training import dense, job, trees
from wegl_dask.training.job import train
from wegl_dask.training.models import make_learner
from wegl_dask.training.names import KEPT_NAME, MODEL_NAMES
from wegl_dask.training.problem import Problem
from wegl_dask.training.protocols import evaluate_cv
from wegl_dask.training.results import data_fingerprint, read_results, results_table, summarise
from wegl_dask.training.saved import encode_estimators, load_estimators
from wegl_dask.verify import verify_run

ONE_PROCESS = ClusterTable(workers=1)


@pytest.fixture(autouse=True)
def small_grid(monkeypatch):
    monkeypatch.setattr(trees, "N_TREES", (3, 6))
    monkeypatch.setattr(trees, "SPLIT_SIZES", (2,))
    monkeypatch.setattr(trees, "DEPTHS", (1,))


def trained(folder, model="random-forest", seed=0, **keys):
    return train(folder, TrainTable(model=model, **keys), ONE_PROCESS, seed=seed)


# What is to be learned


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({"kind": "binary"}, "binary"),
        ({"kind": "multiclass"}, "multiclass"),
        ({"kind": "regression"}, "regression"),
        ({"kind": "binary", "n_tasks": 3, "unknown": 9}, "binary"),
        ({"kind": "regression", "n_tasks": 3, "unknown": 9}, "regression"),
    ],
)
def test_the_labels_of_a_run_say_what_is_to_be_learned(labels, kind, make_problem, write_problem):
    problem = make_problem(**labels, split=True)
    found = Problem.of(read_embeddings(write_problem(problem).url))
    assert found.kind == kind
    assert found.n_outputs == (3 if kind == "multiclass" or "n_tasks" in labels else 1)
    assert (found.class_names, found.task_names) == (problem.class_names, problem.task_names)
    assert np.array_equal(found.X, problem.X)
    assert np.array_equal(found.Y, problem.Y, equal_nan=True)
    assert np.array_equal(found.part("valid"), np.flatnonzero(problem.split == "valid"))


def test_a_run_without_labels_has_nothing_to_learn(embedded_run):
    with pytest.raises(WeglError, match="no graph of the run has a label"):
        Problem.of(read_embeddings(embedded_run("mutag")))


def test_labels_of_one_class_are_nothing_to_learn(make_problem, write_problem):
    problem = make_problem("binary")
    problem.Y[:] = 1
    with pytest.raises(WeglError, match="all of one class"):
        Problem.of(read_embeddings(write_problem(problem).url))


@pytest.mark.parametrize("target", [-1e300, 2e100, np.inf])
def test_targets_whose_squares_are_no_numbers_are_refused(target, make_problem, write_problem):
    problem = make_problem("regression")
    problem.Y[7] = target
    with pytest.raises(WeglError, match=rf"graph g7 is {re.escape(f'{target:g}')}, and targets may be 1e\+100 at most"):
        Problem.of(read_embeddings(write_problem(problem).url))


# What is kept


def test_a_training_leaves_metrics_predictions_and_the_model(make_problem, write_problem):
    problem = make_problem("binary", split=True, unknown=4)
    folder = write_problem(problem)
    metrics = trained(folder, seeds=2, seed=3)
    assert json.loads(folder.read("train/random-forest/metrics.json")) == metrics
    assert read_results(folder) == [metrics]
    assert metrics["data"] == data_fingerprint(folder)
    assert (metrics["protocol"], metrics["metric"], metrics["repeats"]) == ("split", "roc-auc", "seed")
    assert (metrics["graphs"], metrics["graphs_labelled"], metrics["seed"]) == (60, 56, 3)
    of_test = metrics["results"]["test"]["roc-auc"]
    assert len(of_test["values"]) == 2
    assert of_test["mean"] == pytest.approx(np.mean(of_test["values"]))

    table = pq.read_table(f"{folder.url}/train/random-forest/predictions.parquet")
    assert table.column_names == ["graph_id", "split", "y", "score"]
    assert set(table.column("split").to_pylist()) == {"valid", "test"}
    place = [int(graph_id[1:]) for graph_id in table.column("graph_id").to_pylist()]
    expected = [None if np.isnan(y) else int(y) for y in problem.Y[place, 0]]
    assert table.column("y").to_pylist() == expected
    # The folder may be a path, as elsewhere.
    (estimator,) = load_estimators(Path(folder.url), "random-forest").values()
    assert table.column("score").to_pylist() == estimator.predict_proba(problem.X[place])[:, 1].tolist()


@pytest.mark.parametrize("model", MODEL_NAMES)
@pytest.mark.parametrize("protocol", ["split", "cv"])
def test_every_model_can_be_trained_by_both_protocols(model, protocol, make_problem, write_problem, monkeypatch):
    if model == "automl":
        pytest.importorskip("flaml")
        pytest.importorskip("xgboost")
    monkeypatch.setattr(dense, "HIDDEN_LAYERS", ((4,),))
    folder = write_problem(make_problem("regression" if model == "ridge" else "binary", split=True))
    metrics = trained(folder, model, protocol=protocol, folds=2, seeds=1, time_budget=1.0)
    assert metrics["model"] == model
    packages = {"wegl-dask", "numpy", "scipy", "scikit-learn", "skops"}
    assert metrics["versions"].keys() == packages | ({"flaml", "lightgbm"} if model == "automl" else set())
    chose = 'every fit has chosen on "valid", so that its numbers there are optimistic'
    assert (chose in metrics["notes"]) == (model == "automl" and protocol == "split")
    assert list(load_estimators(folder.url, model)) == ["label"]


@pytest.mark.parametrize(
    ("job", "note"),
    [
        ("", "the embedding has seen all graphs, without their labels (transductive)"),
        ('[projection]\nfit_on = "train"\n', 'the embedding has seen the graphs of "train", without their labels'),
        ('[model]\npath = "elsewhere"\n', "the embedding is that of another run's model"),
    ],
)
@pytest.mark.parametrize("protocol", ["split", "cv"])
def test_which_graphs_the_embedding_has_seen_is_said(job, note, protocol, make_problem, write_problem, monkeypatch):
    folder = write_problem(make_problem("regression", split=True))
    monkeypatch.setattr(RunFolder, "job", lambda _: tomllib.loads(job))
    assert trained(folder, "ridge", protocol=protocol, folds=2)["notes"][-1] == note


def test_predictions_of_a_cross_validation_name_the_fold(make_problem, write_problem):
    problem = make_problem("multiclass")
    folder = write_problem(problem)
    metrics = trained(folder, "svm-rbf", folds=3)
    table = pq.read_table(f"{folder.url}/train/svm-rbf/predictions.parquet")
    assert table.column_names == ["graph_id", "fold", "y", "score"]
    scores = np.array(table.column("score").to_pylist())
    y, fold = (table.column(name).to_numpy() for name in ("y", "fold"))
    accuracy = [(scores.argmax(axis=1) == y)[fold == i].mean() for i in range(3)]
    assert metrics["results"]["nested"]["accuracy"]["values"] == pytest.approx(accuracy)


def test_predictions_of_several_tasks_are_lists(make_problem, write_problem):
    problem = make_problem("regression", n_tasks=2, unknown=20, split=True)
    folder = write_problem(problem)
    trained(folder, "ridge")
    table = pq.read_table(f"{folder.url}/train/ridge/predictions.parquet")
    place = [int(graph_id[1:]) for graph_id in table.column("graph_id").to_pylist()]
    found = np.array(table.column("y").to_pylist(), dtype=float)
    assert np.array_equal(found, problem.Y[place], equal_nan=True)
    estimators = load_estimators(folder.url, "ridge")
    assert list(estimators) == ["t0", "t1"]
    scores = np.column_stack([estimator.predict(problem.X[place]) for estimator in estimators.values()])
    np.testing.assert_allclose(np.array(table.column("score").to_pylist()), scores)


def test_a_run_with_trained_models_verifies_and_is_cleared_whole(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    before = verify_run(folder)
    for model in ("random-forest", "svm-rbf"):
        trained(folder, model, folds=2)
    assert verify_run(folder) == before
    folder.write("train/notes.txt", b"mine")
    folder.claim(folder.job_toml(), overwrite=True)
    assert list(folder.listing("train")) == ["notes.txt"]


def test_training_may_be_changed_in_the_job_file_of_a_run(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    changed = folder.job_toml().replace('model = "random-forest"', 'model = "mlp"')
    assert changed != folder.job_toml()
    assert folder.claim(changed).resumed


def test_a_model_is_trained_by_one_process_at_a_time(make_problem, write_problem, capsys):
    folder = write_problem(make_problem("regression"))
    options = ["--folds", 2, "--set", "cluster.workers=1"]
    with locked(Folder(f"{folder.url}/train/svm-linear")):
        code, _, err = run_command(["train", folder.url, "--model", "svm-linear", *options], capsys)
        assert code == 1
        refusal = (
            f"another training of this model is writing in {folder.url}/train/svm-linear (process {os.getpid()} on "
        )
        assert refusal in err
        assert err.endswith("wait until it ends or stop it, or train another model\n")
        assert len(err.splitlines()) == 1
        assert run_command(["train", folder.url, "--model", "ridge", *options], capsys)[0] == 0
    assert [metrics["model"] for metrics in read_results(folder)] == ["ridge"]
    assert set(folder.listing("train/ridge")) == {"metrics.json", "predictions.parquet", "model.skops"}


def test_what_was_trained_on_a_run_that_is_cleared_meanwhile_is_not_written(make_problem, write_problem, monkeypatch):
    folder = write_problem(make_problem("regression"))

    def clearing(*arguments, **keys):
        folder.claim(folder.job_toml(), overwrite=True)
        return evaluate_cv(*arguments, **keys)

    monkeypatch.setattr(job, "evaluate_cv", clearing)
    with pytest.raises(WeglError, match=r"train/ridge/\.lock was removed"):
        trained(folder, "ridge", folds=2)
    assert not folder.listing("train")


def test_a_run_that_ends_meanwhile_does_not_take_files_from_a_training(make_problem, write_problem, monkeypatch):
    folder = write_problem(make_problem("regression"))
    folder.write("train/ridge/.tmp-model.skops-1", b"left by a training that was killed")
    beside = folders._beside

    @contextmanager
    def cleaning(path, content, **options):
        with beside(path, content, **options) as written:
            RunFolder(folder.url).clean_temporary()
            yield written

    monkeypatch.setattr(folders, "_beside", cleaning)
    trained(folder, "ridge", folds=2)
    assert sorted(folder.listing("train/ridge")) == ["metrics.json", "model.skops", "predictions.parquet"]


def test_a_folder_that_cannot_be_written_in_is_found_before_the_fits(make_problem, write_problem, monkeypatch):
    folder = write_problem(make_problem("regression"))
    folder.write("train", b"a file where the folder should be")
    monkeypatch.setattr(job, "evaluate_cv", None)
    with pytest.raises(WeglError, match=rf"cannot write in {folder.url}/train/ridge: Not a directory"):
        trained(folder, "ridge")


def test_damaged_results_are_named(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    folder.write("train/mlp/metrics.json", b"{")
    with pytest.raises(WeglError, match=r"mlp/metrics\.json is damaged"):
        read_results(folder)


# Models on storage


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in MODEL_NAMES for kind in ("binary", "regression") if (name, kind) != ("ridge", "binary")],
)
def test_every_model_is_loaded_without_pickle_and_predicts_the_same(name, kind, make_problem, tmp_path):
    if name == "automl":
        pytest.importorskip("flaml")
        pytest.importorskip("xgboost")
    problem = make_problem(kind)
    learner = make_learner(name, problem, metric="accuracy" if kind == "binary" else "rmse", time_budget=1.0)
    estimator = learner.fit(learner.groups()[0][0], problem.X, problem.Y[:, 0], 0)
    folder = RunFolder(str(tmp_path))
    folder.write(f"train/{name}/model.skops", encode_estimators({"label": estimator}))
    loaded = load_estimators(folder.url, name)["label"]
    assert np.array_equal(loaded.predict(problem.X), estimator.predict(problem.X))


def test_a_file_with_other_objects_is_not_loaded(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    stranger = LogisticRegression()
    stranger.surprise = json.JSONEncoder()
    folder.write("train/mlp/model.skops", skops.io.dumps({"label": stranger}))
    with pytest.raises(WeglError, match=r"holds objects of json\.encoder\.JSONEncoder"):
        load_estimators(folder.url, "mlp")


def test_a_model_that_was_not_trained_is_named_with_those_that_were(make_problem, write_problem, tmp_path):
    folder = write_problem(make_problem("regression"))
    with pytest.raises(WeglError, match="has no trained model 'ridge'; there is none: train it with"):
        load_estimators(folder.url, "ridge")
    for model in ("svm-rbf", "ridge"):
        folder.write(f"train/{model}/model.skops", b"")
    with pytest.raises(
        WeglError, match=f"^{folder.url} has no trained model 'forest'; there are svm-rbf, ridge: train"
    ):
        load_estimators(folder.url, "forest")
    with pytest.raises(WeglError, match="there is none: train it with"):
        load_estimators(tmp_path / "missing", "ridge")


def test_estimators_are_read_from_wherever_the_run_is(run_folder, make_problem):
    problem = make_problem("regression")
    learner = make_learner("ridge", problem, metric="rmse", time_budget=1.0)
    estimator = learner.fit({"alpha": 1.0}, problem.X, problem.Y[:, 0], 0)
    run_folder.write("train/ridge/model.skops", encode_estimators({"label": estimator}))
    found = load_estimators(run_folder.url, "ridge", storage_options=run_folder.storage_options)["label"]
    assert np.array_equal(found.predict(problem.X), estimator.predict(problem.X))


def archive(name, text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as content:
        content.writestr(name, text)
    return file.getvalue()


def with_byte(content, place, value):
    return content[:place] + bytes([value]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-40],
        lambda _: b"",
        # Within the first member, and the version and the compression that its place in the directory names.
        lambda content: with_byte(content, len(content) // 2, content[len(content) // 2] ^ 1),
        lambda content: with_byte(content, content.index(b"PK\x01\x02") + 6, 108),
        lambda content: with_byte(content, content.index(b"PK\x01\x02") + 10, 99),
        lambda content: content.replace(b"schema.json", b"scheme.json"),
        lambda _: archive("schema.json", "[]"),
        lambda _: archive("schema.json", "{}"),
    ],
)
def test_a_damaged_model_is_named(damage, make_problem, write_problem):
    folder = write_problem(make_problem("regression"))
    trained(folder, "ridge", folds=2)
    folder.write("train/ridge/model.skops", damage(folder.read("train/ridge/model.skops")))
    with pytest.raises(WeglError, match=r"ridge/model\.skops is damaged: .*Train the model again"):
        load_estimators(folder.url, "ridge")


# The table


def test_a_summary_leaves_out_what_is_not_defined():
    assert summarise([1.0, 2.0, np.nan]) == {"mean": 1.5, "std": pytest.approx(0.5**0.5), "values": [1.0, 2.0, None]}
    assert summarise([3.0]) == {"mean": 3.0, "std": None, "values": [3.0]}
    assert summarise([np.nan]) == {"mean": None, "std": None, "values": [None]}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([3e-6, 5e-6], "4.000e-06 ± 1.414e-06"),
        ([3e99], "3.000e+99"),
        ([0.0], "0.000"),
        ([22.41131, 22.41131], "22.41 ± 0.000"),
    ],
)
def test_numbers_of_any_size_are_shown_by_four_digits(values, shown):
    labels = {"class_names": ["a", "b", "c"], "task_names": []}
    of = {"kind": "multiclass", **labels, "protocol": "split", "results_by_task": {}}
    metrics = {**of, "repeats": "seed", "chosen": {}, "notes": []}
    row = results_table({**metrics, "results": {"test": {"accuracy": summarise(values)}}})[1]
    assert row.split("  ")[-1].strip() == shown


@pytest.mark.parametrize("scale", [1e-199, 1e-311, 1.0, 1e199])
def test_values_of_any_size_have_a_deviation(scale):
    summary = summarise([scale, np.nan, 3 * scale, 5 * scale])
    assert summary["mean"] == pytest.approx(3 * scale, rel=1e-9)
    assert summary["std"] == pytest.approx(2 * scale, rel=1e-9)


@pytest.mark.parametrize("failing", ["predictions.parquet", "model.skops", "metrics.json"])
def test_a_training_that_cannot_be_written_leaves_the_earlier_one(failing, make_problem, write_problem, monkeypatch):
    folder = write_problem(make_problem("regression"))
    trained(folder, "ridge", folds=2)
    before = {path: path.read_bytes() for path in Path(folder.url, "train/ridge").iterdir()}

    def full(file, content):
        if failing in file.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_hashed(file, content)

    write_hashed = folders._write_hashed
    monkeypatch.setattr(folders, "_write_hashed", full)
    with pytest.raises(WeglError, match=rf"cannot write {folder.url}/train/ridge/{failing}: the disk is full"):
        trained(folder, "ridge", seed=1, folds=2)
    found = {path: path.read_bytes() for path in Path(folder.url, "train/ridge").iterdir()}
    # What it has found out is kept for the next one.
    (scores,) = found.keys() - before.keys()
    assert KEPT_NAME.fullmatch(scores.name)
    del found[scores]
    assert found == before


def test_the_table_has_a_row_a_part_and_a_column_a_metric():
    metrics = {
        "kind": "binary",
        "protocol": "split",
        "class_names": ["active", "inactive"],
        "task_names": [],
        "repeats": "seed",
        "chosen": {"C": 1.0},
        "notes": ["a note"],
        "results": {
            name: {"roc-auc": summarise(values), "average-precision": summarise([np.nan]), "accuracy": summarise([1.0])}
            for name, values in (("valid", [0.5, 0.7]), ("test", [0.25, 0.75]))
        },
        "results_by_task": {},
    }
    assert results_table(metrics) == [
        "               ROC-AUC  average precision  accuracy",
        "valid  0.6000 ± 0.1414                  -     1.000",
        "test   0.5000 ± 0.3536                  -     1.000",
        "mean and standard deviation over 2 seeds",
        "chosen: C = 1.0",
        "scores and average precision are of the class 'inactive', the second by name",
        "a note",
    ]


def summaries(**values):
    return {name: summarise(value) for name, value in values.items()}


def test_the_table_has_a_row_for_each_of_several_tasks_and_for_many_says_where_they_are():
    tasks = {
        name: {"valid": summaries(rmse=[9.0], mae=[9.0], r2=[9.0]), "test": summaries(rmse=rmse, mae=[1.0], r2=[0.5])}
        for name, rmse in (("free\nenergy", [1.0, 3.0]), ("volume", [40.0]))
    }
    metrics = {
        "kind": "regression",
        "protocol": "split",
        "class_names": [],
        "task_names": list(tasks),
        "repeats": "seed",
        "chosen": {},
        "notes": [],
        "results": {"test": summaries(rmse=[21.0], mae=[1.0], r2=[0.5])},
        "results_by_task": tasks,
    }
    of_both = "every number without the name of a task is a mean over 2 tasks"
    assert results_table(metrics) == [
        "                            RMSE    MAE      R2",
        "test                       21.00  1.000  0.5000",
        "test, free energy  2.000 ± 1.414  1.000  0.5000",
        "test, volume               40.00  1.000  0.5000",
        of_both,
    ]
    names = [f"t{i}" for i in range(21)]
    metrics |= {"task_names": names, "results_by_task": dict.fromkeys(names, tasks["volume"])}
    assert results_table(metrics) == [
        "       RMSE    MAE      R2",
        "test  21.00  1.000  0.5000",
        of_both.replace("2 tasks", "21 tasks"),
        "of each of the 21 tasks: results_by_task in metrics.json",
    ]


def test_the_table_says_over_how_many_tasks_a_mean_is_and_over_how_many_folds():
    none = float("nan")
    tasks = {
        "a": {
            "nested": summaries(**{"roc-auc": [0.5, 0.7, 0.9], "average-precision": [0.5] * 3, "accuracy": [1.0] * 3})
        },
        "b": {
            "nested": summaries(
                **{"roc-auc": [none] * 3, "average-precision": [0.5, none, none], "accuracy": [1.0] * 3}
            )
        },
    }
    metrics = {
        "kind": "binary",
        "protocol": "cv",
        "class_names": [],
        "task_names": list(tasks),
        "repeats": "fold",
        "chosen": {},
        "notes": [],
        "results": tasks["a"],
        "results_by_task": tasks,
    }
    assert results_table(metrics)[4:] == [
        "mean and standard deviation over 3 folds, or over those of them in which the metric is defined:",
        "average precision of nested, b: over 1 of 3 folds",
        "every number without the name of a task is a mean over 2 tasks, or over those of them in which the metric is defined:",
        "ROC-AUC of nested: over 1 of 2 tasks",
        "average precision of nested: over 1 to 2 of 2 tasks",
    ]
    one = {"class_names": ["no", "yes"], "task_names": [], "results_by_task": {}, "results": tasks["b"]}
    assert results_table(metrics | one)[2:4] == [
        "mean and standard deviation over 3 folds, or over those of them in which the metric is defined:",
        "average precision of nested: over 1 of 3 folds",
    ]


def test_a_task_of_one_class_in_the_part_test_is_not_in_the_mean_and_the_table_says_so(make_problem, write_problem):
    problem = make_problem("binary", n_tasks=2, split=True)
    problem.Y[problem.part("test"), 1] = 0.0
    folder = write_problem(problem)
    lines = results_table(trained(folder, "svm-linear", protocol="split"))
    assert "ROC-AUC and average precision of test: over 1 of 2 tasks" in lines


# The command


def run_command(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code, *capsys.readouterr()


def test_the_command_trains_what_it_is_asked_for(make_problem, write_problem, capsys):
    folder = write_problem(make_problem("regression"), job='name = "areas"\nseed = 4\n')
    options = ["--model", "ridge", "--protocol", "cv", "--folds", 3, "--set", "cluster.workers=1"]
    code, out, _ = run_command(["train", folder.url, *options], capsys)
    assert code == 0
    assert "areas: ridge, cv, 60 graphs with labels, vectors of 6" in out
    assert "mean and standard deviation over 3 folds" in out
    (metrics,) = read_results(folder)
    assert all(line in out for line in results_table(metrics))
    assert metrics["seed"] == 4


def test_the_command_takes_what_is_not_given_from_the_job_of_the_run(make_problem, write_problem, capsys):
    job = '[train]\nmodel = "svm-linear"\nfolds = 2\n[cluster]\nworkers = 1\n'
    folder = write_problem(make_problem("binary"), job=job)
    code, out, _ = run_command(["train", folder.url], capsys)
    assert code == 0
    assert "svm-linear, cv" in out
    assert "over 2 folds" in out


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--protocol", "split"], 2, "choose --protocol cv"),
        (
            ["--model", "ridge"],
            2,
            'choose svm-linear or, if they are targets, embed the graphs with task = "regression"',
        ),
        (["--model", "forest"], 2, "random-forest"),
        (["--metric", "rmse"], 2, "no metric of two classes"),
        (["--set", "train.fold=3"], 2, "did you mean train.folds?"),
        (["--set", "output.path=x"], 2, "output.path has no effect on a training"),
        (["--set", "seed=4294967295", "--seeds", "2"], 2, "4294967296 the last seed, and the largest is 4294967295"),
        (["--seeds", "99999999999999999999"], 2, "1<=x<=10000"),
        (["--set", "train.seeds=99999999999999999999"], 2, "less than or equal to 10000"),
    ],
)
def test_what_cannot_be_done_is_one_line(options, code, message, make_problem, write_problem, capsys):
    folder = write_problem(make_problem("binary"))
    found, _, err = run_command(["train", folder.url, *options], capsys)
    assert found == code
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_training_that_is_refused_leaves_no_folder(make_problem, write_problem):
    folder = write_problem(make_problem("regression"))
    with pytest.raises(WeglError):
        trained(folder, "ridge", protocol="split")
    assert not Path(folder.url, "train").exists()
    trained(folder, "mlp", folds=2)
    with pytest.raises(WeglError):
        trained(folder, "ridge", protocol="split")
    assert list(folder.listing("train")) == ["mlp"]


def test_a_run_that_has_not_finished_is_not_trained_on(make_problem, write_problem, capsys):
    folder = write_problem(make_problem("binary"))
    folder.unmark_success()
    code, _, err = run_command(["train", folder.url], capsys)
    assert code == 1
    assert "has not finished" in err
    assert "allow_unfinished" not in err


def test_what_trains_and_saves_models_does_without_torch_which_can_be_imported_later():
    code = (
        "import sys, importlib.util, wegl_dask.training.job\n"
        "print('skops.io' in sys.modules, 'torch' in sys.modules, importlib.util.find_spec('torch') is not None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["True", "False"]
    assert done.stdout.split()[2] == str(importlib.util.find_spec("torch") is not None)


def test_where_the_output_is_is_shown_as_it_was_given(make_problem, write_problem, capsys):
    folder = write_problem(make_problem("regression"))
    options = ["--model", "ridge", "--folds", 2, "--set", "cluster.workers=1"]
    _, out, _ = run_command(["train", f"file://{folder.url}/", *options], capsys)
    assert out.endswith(f"\noutput: file://{folder.url}/train/ridge\n")


def test_a_command_that_keeps_nothing_promises_nothing_when_it_is_stopped(
    make_problem, write_problem, capsys, monkeypatch
):
    folder = write_problem(make_problem("binary"))
    monkeypatch.setattr("wegl_dask.report.job.write_report", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    # As in a command's own process, whatever other tests have imported.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = run_command(["report", folder.url], capsys)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert err == "\nwegl-dask: stopped by SIGINT. Run the same command again\n"
