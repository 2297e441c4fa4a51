"""A training that was stopped goes on with the fits that were done, and comes to the same."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.spec import ClusterTable, TrainTable
from wegl_dask.training import kept_scores, trees
from wegl_dask.training.crossvalidation import INNER_FOLDS
from wegl_dask.training.fits import Fit, Measured, Search
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
    return [Search(RandomForest("binary", 2), fold, [{"n_estimators": 3}], seed, ("accuracy",)) for fold in range(n)]


def measured(value):
    """Stand for the result of a fit."""
    return Measured(np.full((1, 1, 1), value), np.full((2, 1), value))


def values_of(results):
    """Take both arrays of results apart again."""
    assert {(each.values.shape, each.scores.shape) for each in results} <= {((1, 1, 1), (2, 1))}
    return [(each.values[0, 0, 0], each.scores[1, 0]) for each in results]


def scores_of(task, calls):
    """Stand for a fit: scores that say which fold they are of."""
    calls.append(task.fold)
    return measured(task.fold / 3)


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
    assert values_of(found) == values_of([scores_of(task, []) for task in searches(4)])
    assert files_of(folder) == []


@pytest.fixture(scope="module")
def dask_cluster():
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


@pytest.fixture(params=["processes", "Dask"])
def two_workers(request):
    """Make the workers for some kept scores."""
    if request.param == "processes":
        yield lambda kept: Workers(2, kept=kept)
        return
    with Client(request.getfixturevalue("dask_cluster")):
        yield lambda kept: Workers(1, on_dask=True, kept=kept)


def test_results_come_in_the_order_of_the_tasks_whichever_were_there(two_workers, folder):
    tasks = searches(6)
    earlier = KeptScores(folder, HELD, "data")
    for number in (0, 3):
        # Not what would be computed now.
        earlier.add("search", tasks[number], measured(70.0 + number))
    earlier.write()
    kept = KeptScores(folder, HELD, "data")
    found = two_workers(kept).map("search", scores_of, tasks, ([],))
    assert values_of(found) == [(value, value) for value in (70, 1 / 3, 2 / 3, 73, 4 / 3, 5 / 3)]
    kept.write()
    assert len(KeptScores(folder, HELD, "data").find("search", tasks)) == 6


def wait_for(task, path):
    """Stand for a fit that takes long, of the first fold, and for short ones."""
    ends = time.monotonic() + 60
    while task.fold == 0 and not path.exists():
        assert time.monotonic() < ends
        time.sleep(0.01)
    return measured(0.0)


def test_scores_are_kept_before_a_long_fit_ends(two_workers, folder, tmp_path):
    class Released(KeptScores):
        """Lets the long fit go on when some of the others are there."""

        def add(self, step, task, result):
            order.append(task.fold)
            super().add(step, task, result)
            if len(order) == 3:
                (tmp_path / "go on").touch()

    order = []
    two_workers(Released(folder, HELD, "data")).map("search", wait_for, searches(8), (tmp_path / "go on",))
    assert sorted(order) == list(range(8))
    assert 0 not in order[:3]


class Lost:
    def ensure_held(self):
        raise WeglError("the lock was removed")


@pytest.mark.parametrize("how", ["write", "clear"])
def test_nothing_is_written_or_removed_without_the_lock(how, folder):
    earlier = KeptScores(folder, HELD, "data")
    earlier.add("search", searches(1)[0], measured(0.0))
    earlier.write()
    before = files_of(folder)
    kept = KeptScores(folder, Lost(), "data")
    kept.add("search", searches(2)[1], measured(0.0))
    with pytest.raises(WeglError, match="the lock was removed"):
        getattr(kept, how)()
    assert files_of(folder) == before


def test_an_error_is_not_hidden_by_scores_that_cannot_be_kept(folder):
    def stop(error):
        with scores_kept(folder, Lost(), "data") as kept:
            kept.add("search", searches(1)[0], measured(0.0))
            raise error

    with pytest.raises(ValueError, match="the error") as raised:
        stop(ValueError("the error"))
    assert raised.value.__notes__ == ["The last scores could not be kept: the lock was removed"]
    with pytest.raises(KeyboardInterrupt) as raised:
        stop(KeyboardInterrupt())
    assert raised.value.__notes__ == ["The last scores could not be kept: the lock was removed"]
    with pytest.raises(WeglError) as raised:
        stop(WeglError("the lock was removed"))
    assert not hasattr(raised.value, "__notes__")


def test_where_all_was_done_nothing_is_left_to_do(folder):
    calls = []
    kept = KeptScores(folder, HELD, "data")
    Workers(1, kept=kept).map("search", scores_of, searches(3), (calls,))
    kept.write()
    with scores_kept(folder, HELD, "data") as kept:
        found = Workers(2, kept=kept).map("search", scores_of, searches(3), (calls,))
    assert calls == [0, 1, 2]
    assert values_of(found) == [(value, value) for value in (0, 1 / 3, 2 / 3)]


@pytest.mark.parametrize(
    ("source", "step", "tasks"),
    [
        ("other data", "search", searches(2)),
        ("data", "another step", searches(2)),
        ("data", "search", searches(2, seed=1)),
        ("data", "search", [Search(RandomForest("binary", 2), 0, [{"n_estimators": 6}], 0, ("accuracy",))]),
        ("data", "search", [Search(RandomForest("multiclass", 3), 0, [{"n_estimators": 3}], 0, ("accuracy",))]),
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


@pytest.mark.parametrize(
    ("seconds", "counts"),
    [
        ([4, 8, 12, 16, 20, 24, 28], [0, 0, 1, 1, 2, 2, 2]),
        # Fits that take long, and end together.
        ([100, 100, 101, 101], [1, 2, 3, 4]),
        ([1, 2, 3, 4], [0, 0, 0, 0]),
    ],
)
def test_at_most_ten_seconds_of_finished_work_are_not_written(seconds, counts, folder):
    now = [0.0]
    kept = KeptScores(folder, HELD, "data", clock=lambda: now[0])
    found = []
    for task, moment in zip(searches(len(seconds)), seconds, strict=True):
        now[0] = float(moment)
        kept.add("search", task, scores_of(task, []))
        found.append(len(files_of(folder)))
    assert kept_scores.KEEP_SECONDS == 10
    assert found == counts


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK"])
def test_what_is_no_file_of_scores_is_passed_over(content, folder):
    name = f"fits-{hashlib.sha256(content).hexdigest()[:32]}.npz"
    Path(folder.url, "fits-" + 32 * "0" + ".npz").mkdir(parents=True)
    Path(folder.url, name).write_bytes(content)
    with scores_kept(folder, HELD, "data") as kept:
        assert kept.find("search", searches(2)) == {}
    assert not Path(folder.url, name).exists()


# Trainings


def but_for_times(metrics):
    return {key: value for key, value in metrics.items() if key not in {"seconds", "date", "fits_found"}}


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
    assert but_for_times(found) == but_for_times(expected)
    assert files_of(Folder(f"{halting.url}/train/random-forest")) == files_of(
        Folder(f"{whole.url}/train/random-forest")
    )
    predictions = "train/random-forest/predictions.parquet"
    assert halting.read(predictions) == whole.read(predictions)


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_training_that_is_killed_again_and_again_comes_to_the_same(n_workers, make_problem, write_problem):
    problem = make_problem("binary", n=300)
    whole, killed = write_problem(problem, "whole"), write_problem(problem, "killed")
    options = ["--model", "mlp", "--protocol", "cv", "--folds", "2", "--set", f"cluster.workers={n_workers}"]
    often = "from wegl_dask.training import kept_scores\nkept_scores.KEEP_SECONDS = 0.01\n"

    def start(folder):
        command = f"from wegl_dask.cli import main\nmain({['train', folder.url, *options]!r}, prog_name='wegl-dask')\n"
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.Popen([sys.executable, "-c", often + command], env=environment, stderr=subprocess.DEVNULL)

    assert start(whole).wait() == 0
    n_kept = 0
    while True:
        process = start(killed)
        # As soon as eight more have been kept, it is killed.
        while (code := process.poll()) is None and n_files(killed) < n_kept + 8:
            time.sleep(0.01)
        if code is not None:
            break
        process.kill()
        process.wait()
        n_kept = n_files(killed)
    assert code == 0
    assert n_kept >= 16
    found, expected = (json.loads(folder.read("train/mlp/metrics.json")) for folder in (killed, whole))
    assert found["fits_found"] >= 16
    assert but_for_times(found) == but_for_times(expected)
    assert killed.read("train/mlp/predictions.parquet") == whole.read("train/mlp/predictions.parquet")
    assert killed.listing("train/mlp").keys() == whole.listing("train/mlp").keys()


def n_files(run):
    return sum(name.startswith("fits-") for name in run.listing("train/mlp"))


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
    folder = write_problem(make_problem("regression"))
    options = ["--model", "ridge", "--protocol", "cv", "--folds", "2", "--set", "cluster.workers=1"]
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
    # All penalties share one.
    n_fits = 2 * (1 + INNER_FOLDS)
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert json.loads(folder.read("train/ridge/metrics.json"))["fits_found"] == n_fits
    assert f", and {n_fits} fits before it was stopped\n" in done.stdout


def test_scores_that_are_kept_belong_to_the_run(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    kept = KeptScores(Folder(f"{folder.url}/train/mlp"), HELD, "data")
    kept.add("search", searches(1)[0], measured(0.0))
    kept.write()
    toml = folder.job_toml()
    with folder.lock():
        folder.claim(toml, overwrite=True)
    assert not Path(folder.url, "train").exists()
