"""What the commands of `reproduce` refuse, and that they refuse it before anything is computed or written."""

import json
import shutil
import sys

import pytest

from wegl_dask.cli import main
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.locks import locked
from wegl_dask.reproduce.kept import read_kept

COMMANDS = ("tud", "molhiv", "reference", "sinkhorn", "runtime")


@pytest.fixture
def call(capsys):
    """Run a command of `reproduce` in this process: exit code and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", *map(str, arguments)])
        return stop.value.code, capsys.readouterr().err

    return run


@pytest.fixture
def data(write_tud, tmp_path):
    write_tud(tmp_path / "data", "MUTAG")
    return write_tud(tmp_path / "data", "REDDIT-BINARY")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_data_that_is_not_there_is_refused_before_anything_is_written(command, call, tmp_path):
    code, message = call(command, "--data", tmp_path / "typo", "-o", tmp_path / "out")
    assert code == 2
    assert message.startswith(f"wegl-dask: there is no folder {tmp_path}/typo, which --data names")
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_without_matplotlib_nothing_is_begun(command, call, data, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, message = call(command, "--data", data, "-o", tmp_path / "out")
    assert code == 1
    assert "matplotlib is needed here" in message
    assert "wegl-dask[plots]" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_command_in_a_folder_is_refused(command, call, data, tmp_path):
    with locked(Folder(str(tmp_path / "out"))):
        code, message = call(command, "--data", data, "-o", tmp_path / "out")
    assert code == 1
    assert message.startswith(f"wegl-dask: another run is writing in {tmp_path}/out (process ")
    assert message.count("\n") == 1


def test_data_of_no_known_name_are_nothing_to_measure(call, tmp_path):
    (tmp_path / "data").mkdir()
    code, message = call("runtime", "--data", tmp_path / "data", "-o", tmp_path / "out")
    assert code == 2
    assert f"{tmp_path}/data, which --data names, holds none of IMDB-BINARY, MUTAG, PTC_MR" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (
            ["--models", "mlp"],
            "--models mlp: its grid is smaller, and has svm-linear, svm-rbf, gradient-boosting, random-forest",
        ),
        (["--layers", "4,6", "--models", "svm-linear"], "--layers 4,6: its grid is smaller, and has 3, 5"),
        (["--poolings", "final"], "--poolings final: its grid is smaller, and has concat"),
    ],
)
@pytest.mark.parametrize("only", ["REDDIT-BINARY", "MUTAG,REDDIT-BINARY"])
def test_a_part_of_the_grid_that_there_is_not_is_refused_with_those_that_there_are(
    only, options, refused, call, data, tmp_path
):
    code, message = call("tud", "--data", data, "-o", tmp_path / "out", "--only", only, *options)
    assert code == 2
    assert message == f"wegl-dask: nothing is computed of REDDIT-BINARY with {refused}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_models_do_not_take_is_refused(seed, call, data, tmp_path):
    code, message = call("tud", "--data", data, "-o", tmp_path / "out", "--only", "MUTAG", "--seed", seed)
    assert code == 2
    assert f"{seed} is not in the range 0<=x<=4294967295" in message


HOW = {"date": "2026-11-28", "versions": {"numpy": "2"}}
CELL = {
    "data_set": "MUTAG",
    "pooling": "final",
    "model": "mlp",
    "best": [1.0],
    "held_out": [1.0],
    "nested": None,
    "chosen": {"layers": 3},
    "n_configurations": 1,
    "how": {**HOW, "seed": 0, "layers": [3], "shortlisted": 2, "constants": {}},
}
ROW = {
    "method": "wegl",
    "setting": {"layers": 3},
    "candidate": {"n_estimators": 50},
    "screened": {"final-3-300": 80.0},
    "valid": [1.0],
    "test": [1.0],
    "embedding_valid": [],
    "embedding_test": [],
    "together": {},
    "how": {**HOW, "time_budget": None},
}
MEASURED = {
    "data_set": "MUTAG",
    "n_graphs": 188,
    "mean_nodes": 17.9,
    "mean_edges": 19.8,
    "timings": {"wegl": {"training": 1.0, "inference": 0.1, "measured": 1.0}},
    "how": {"wegl": HOW},
}
WHOLE = {
    "tud.json": {"cells": [CELL]},
    "molhiv.json": {"rows": {"wegl": ROW}},
    "reference.json": {"kinds": {"kmeans": {"valid": [1.0], "test": [1.0], "how": HOW}}},
    "runtime.json": {"data_sets": {"MUTAG": MEASURED}},
}


@pytest.mark.parametrize("name", WHOLE)
def test_results_that_are_whole_or_not_there_can_be_added_to(name, tmp_path):
    folder = Folder(str(tmp_path))
    assert read_kept(folder, name) == {}
    folder.write(name, json.dumps(WHOLE[name]).encode())
    assert read_kept(folder, name) == WHOLE[name]


OPEN = {"chosen", "setting", "candidate", "screened", "versions", "together", "timings", "rows", "kinds", "data_sets"}
"""Objects that may have any keys, or some of those there are."""


def spoilt(values, name=""):
    """Leave out every key in turn, at every depth, or put text in place of its list or object."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(values, dict) and name not in OPEN:
            yield {other: each for other, each in values.items() if other != key}
        if isinstance(value, dict | list):
            for part in ("text", float("nan"), *spoilt(value, key if isinstance(values, dict) else "")):
                changed = dict(values) if isinstance(values, dict) else list(values)
                changed[key] = part
                yield changed


@pytest.mark.parametrize("name", WHOLE)
def test_results_that_are_damaged_are_refused(name, tmp_path):
    folder = Folder(str(tmp_path))
    damaged = [b"{", b"", b"{}", b"[]", b"null", b"\xff", b"3", b"[" * 100_000]
    damaged += [json.dumps(values).encode() for values in spoilt(WHOLE[name])]
    for content in damaged:
        folder.write(name, content)
        with pytest.raises(WeglError, match=rf"{name} is damaged, or of another version \(.*\)\. Remove it"):
            read_kept(folder, name)


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("tud", '{"cells":[{}]}'),
        ("molhiv", "{"),
        ("reference", '{"kinds":[]}'),
        ("runtime", "{}"),
        ("tud", '{"cells":[]'),
    ],
)
def test_damaged_results_stop_a_command_before_anything_is_computed(command, content, call, data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{command}.json").write_text(content)
    code, message = call(command, "--data", data, "-o", tmp_path / "out")
    assert code == 1
    assert message.startswith(f"wegl-dask: {tmp_path}/out/{command}.json is damaged, or of another version (")
    assert message.count("\n") == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"{command}.json"]


def test_other_labels_and_other_seeds_are_computed_and_the_earlier_kept(call, data, write_tud, tmp_path):
    pytest.importorskip("matplotlib")
    other = write_tud(tmp_path / "other", "MUTAG", swapped=True)
    options = ["--only", "MUTAG", "--poolings", "final", "--layers", "3", "--models", "svm-rbf", "--workers", "1"]
    computed = []
    for out, root, seed in (
        ("out", data, 0),
        ("out", data, 1),
        ("out", data, 0),
        ("moved", other, 0),
        ("moved", other, 0),
    ):
        if out == "moved" and not (tmp_path / "moved").exists():
            # As a user does who removes what was derived from the data, and keeps the steps.
            (tmp_path / "moved").mkdir()
            (tmp_path / "out" / "steps").rename(tmp_path / "moved" / "steps")
        code, message = call("tud", "--data", root, "-o", tmp_path / out, *options, "--seed", seed)
        assert code == 0, message
        assert message.startswith("cell 1 of 1: MUTAG, final, svm-rbf\n")
        computed.append("svm-rbf: 10 of 10 fits" in message)
    assert computed == [True, True, False, True, False]


@pytest.mark.parametrize("series", ["best", "held_out", "nested"])
def test_a_series_of_nothing_is_no_result(series, tmp_path):
    folder = Folder(str(tmp_path))
    folder.write("tud.json", json.dumps({"cells": [CELL | {series: []}]}).encode())
    with pytest.raises(WeglError, match=rf"tud\.json is damaged, or of another version \(cells\.0\.{series}: "):
        read_kept(folder, "tud.json")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_folder_of_a_run_is_not_written_to(command, call, data, quickstart, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(quickstart.folder / "runs" / "quickstart", run)
    before = sorted(run.rglob("*"))
    code, message = call(command, "--data", data, "-o", run)
    assert code == 2
    assert message.endswith(f"{run} holds a run: name a folder of its own by --output\n")
    assert sorted(run.rglob("*")) == before
