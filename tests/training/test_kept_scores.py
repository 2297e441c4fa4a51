"""A training that was stopped goes on with the fits that were done, and comes to the same."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.spec import ClusterTable, TrainTable
from wegl_dask.storage import RunFolder
from wegl_dask.training import kept_scores, trees
from wegl_dask.training.crossvalidation import INNER_FOLDS
from wegl_dask.training.fits import Fit, Search
from wegl_dask.training.job import train
from wegl_dask.training.kept_scores import KeptScores, scores_kept
from wegl_dask.training.spreading import Workers
from wegl_dask.training.trees import RandomForest

ONE_PROCESS = ClusterTable(workers=1)


class Held:
    def ensure_held(self):
        """Nobody else has it."""


HELD = Held()


@pytest.fixture(autouse=True)
def small_grid(monkeypatch):
    monkeypatch.setattr(trees, "N_TREES", (3, 6))
    monkeypatch.setattr(trees, "SPLIT_SIZES", (2,))


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "model"))


def searches(n, seed=0):
    return [Search(RandomForest("binary", 2), fold, [{"n_estimators": 3}], seed) for fold in range(n)]


def scores_of(task, calls):
    """Stand for a fit: scores that say which fold they are of."""
    calls.append(task.fold)
    return np.full((1, 2, 1), task.fold / 3)


def files_of(folder):
    return sorted(folder.listing())


# Tasks


@pytest.mark.parametrize("stop", [KeyboardInterrupt, WeglError, SystemExit])
def test_what_was_done_before_a_stop_is_not_done_again(stop, folder):
    calls = []

    def fit(task, calls):
        if task.fold == 2:
            raise stop
        return scores_of(task, calls)

    with pytest.raises(stop), scores_kept(folder, HELD, "data") as kept:
        Workers(1, kept=kept).map("search", fit, searches(4), (calls,))
    assert calls == [0, 1]
    with scores_kept(folder, HELD, "data") as kept:
        found = Workers(1, kept=kept).map("search", scores_of, searches(4), (calls,))
        assert kept.n_found == 2
    assert calls == [0, 1, 2, 3]
    assert np.array_equal(found, [scores_of(task, []) for task in searches(4)])
    assert files_of(folder) == []


def test_where_all_was_done_nothing_is_left_to_do(folder):
    calls = []
    kept = KeptScores(folder, HELD, "data")
    Workers(1, kept=kept).map("search", scores_of, searches(3), (calls,))
    kept.write()
    with scores_kept(folder, HELD, "data") as kept:
        found = Workers(2, kept=kept).map("search", scores_of, searches(3), (calls,))
    assert calls == [0, 1, 2]
    assert [each[0, 0, 0] for each in found] == [0, 1 / 3, 2 / 3]


@pytest.mark.parametrize(
    ("source", "step", "tasks"),
    [
        ("other data", "search", searches(2)),
        ("data", "another step", searches(2)),
        ("data", "search", searches(2, seed=1)),
        ("data", "search", [Search(RandomForest("binary", 2), 0, [{"n_estimators": 6}], 0)]),
        ("data", "search", [Search(RandomForest("multiclass", 3), 0, [{"n_estimators": 3}], 0)]),
    ],
)
def test_scores_of_anything_else_are_not_taken(source, step, tasks, folder):
    kept = KeptScores(folder, HELD, "data")
    for task in searches(2):
        kept.add("search", task, scores_of(task, []))
    kept.write()
    assert len(KeptScores(folder, HELD, "data").find("search", searches(2))) == 2
    assert KeptScores(folder, HELD, source).find(step, tasks) == {}


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: content[:-9] + bytes(9), lambda _: b""]
)
def test_a_file_that_was_altered_is_passed_over(damage, folder):
    kept = KeptScores(folder, HELD, "data")
    for task in searches(2):
        kept.add("search", task, scores_of(task, []))
        kept.write()
    assert len(files_of(folder)) == 2
    first = Path(folder.url, files_of(folder)[0])
    first.write_bytes(damage(first.read_bytes()))
    assert len(KeptScores(folder, HELD, "data").find("search", searches(2))) == 1


def test_estimators_that_are_to_be_kept_are_fitted_again(folder):
    kept = KeptScores(folder, HELD, "data")
    fits = [Fit(RandomForest("binary", 2), "others", {}, seed, keep=seed == 0) for seed in range(3)]
    for fit in fits:
        kept.add("fit", fit, (np.full((2, 1), fit.seed / 7), ["an estimator"] if fit.keep else []))
    kept.write()
    found = KeptScores(folder, HELD, "data").find("fit", fits)
    assert sorted(found) == [1, 2]
    for seed, (scores, estimators) in found.items():
        assert np.array_equal(scores, np.full((2, 1), seed / 7))
        assert estimators == []


def test_there_is_a_file_every_few_seconds_and_none_of_a_short_training(folder):
    now = [0.0]
    kept = KeptScores(folder, HELD, "data", clock=lambda: now[0])
    counts = []
    for task in searches(7):
        now[0] += 4.0
        kept.add("search", task, scores_of(task, []))
        counts.append(len(files_of(folder)))
    assert kept_scores.KEEP_SECONDS == 10
    assert counts == [0, 0, 1, 1, 1, 2, 2]


# Trainings


@pytest.mark.parametrize("protocol", ["split", "cv"])
def test_a_training_that_was_stopped_anywhere_comes_to_the_same(protocol, make_problem, write_problem, monkeypatch):
    problem = make_problem("regression", split=True)
    table = TrainTable(model="random-forest", protocol=protocol, folds=2, seeds=3)
    whole, halting = write_problem(problem, "whole"), write_problem(problem, "halting")
    expected = train(whole, table, ONE_PROCESS, seed=1)

    fitted, found = [], []
    search, fit = RandomForest.search, RandomForest.fit

    def stopping(how):
        def call(self, *args, **kwargs):
            if len(fitted) % 3 == 2:
                fitted.append("stopped")
                raise KeyboardInterrupt
            result = how(self, *args, **kwargs)
            fitted.append(1)
            return result

        return call

    monkeypatch.setattr(RandomForest, "search", stopping(search))
    monkeypatch.setattr(RandomForest, "fit", stopping(fit))
    n_stops = 0
    while True:
        try:
            found = train(halting, table, ONE_PROCESS, seed=1)
        except KeyboardInterrupt:
            n_stops += 1
            assert n_stops < 50
        else:
            break
    assert n_stops > 2
    assert found["fits_found"] > 2
    own = {"seconds", "date", "fits_found"}
    assert {k: v for k, v in found.items() if k not in own} == {k: v for k, v in expected.items() if k not in own}
    assert files_of(Folder(f"{halting.url}/train/random-forest")) == files_of(
        Folder(f"{whole.url}/train/random-forest")
    )
    predictions = "train/random-forest/predictions.parquet"
    assert halting.read(predictions) == whole.read(predictions)


def test_a_training_by_other_settings_takes_nothing_and_leaves_nothing(make_problem, write_problem, monkeypatch):
    folder = write_problem(make_problem("regression"))
    table = TrainTable(model="ridge", protocol="cv", folds=2)
    monkeypatch.setattr("wegl_dask.training.job.Trained", stop_now)
    with pytest.raises(KeyboardInterrupt):
        train(folder, table, ONE_PROCESS, seed=0)
    monkeypatch.undo()
    assert any(name.startswith("fits-") for name in folder.listing("train/ridge"))
    assert train(folder, table, ONE_PROCESS, seed=1)["fits_found"] == 0
    assert not any(name.startswith("fits-") for name in folder.listing("train/ridge"))


def stop_now(**_):
    raise KeyboardInterrupt


def test_the_command_says_how_to_go_on_and_that_it_went_on(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    options = ["--model", "svm-linear", "--protocol", "cv", "--folds", "2", "--set", "cluster.workers=1"]
    command = f"from wegl_dask.cli import main\nmain({['train', folder.url, *options]!r}, prog_name='wegl-dask')\n"
    # Instead of the last fit, of the estimator that is kept.
    stop = (
        "import os, signal\n"
        "from wegl_dask.training import protocols\n"
        "protocols.Fit = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGTERM)\n"
    )

    def run(code):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )

    stopped = run(stop + command)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert stopped.stderr.splitlines()[-1] == (
        "wegl-dask: stopped by SIGTERM. What was finished stays valid; run the same command again to go on from there"
    )
    n_fits = 2 * (1 + INNER_FOLDS)
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert json.loads(folder.read("train/svm-linear/metrics.json"))["fits_found"] == n_fits
    assert f", and {n_fits} fits before it was stopped\n" in done.stdout


def test_scores_that_are_kept_belong_to_the_run(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    kept = KeptScores(Folder(f"{folder.url}/train/mlp"), HELD, "data")
    kept.add("search", searches(1)[0], np.zeros((1, 2, 1)))
    kept.write()
    toml = folder.job_toml()
    with folder.lock():
        folder.claim(toml, overwrite=True)
    assert not Path(folder.url, "train").exists()
    assert isinstance(folder, RunFolder)
