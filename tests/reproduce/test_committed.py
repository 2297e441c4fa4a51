"""The tables that the repository holds are those that are written of the results beside them."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from wegl_dask.folders import Folder
from wegl_dask.memory import EXACT_PAIR_BYTES
from wegl_dask.reproduce import (
    molhiv,
    molhiv_results,
    reference_results,
    runtime,
    runtime_results,
    sinkhorn,
    sinkhorn_results,
    tud_results,
)
from wegl_dask.reproduce.numbers import mean_and_deviation
from wegl_dask.reproduce.runtime_methods import Timing
from wegl_dask.reproduce.tud import papers_number
from wegl_dask.spec import TransportTable

RESULTS = Path(__file__).parents[2] / "jobs" / "paper" / "results"

pytestmark = pytest.mark.usefixtures("plots")


@pytest.fixture(scope="module")
def plots():
    pytest.importorskip("matplotlib")


def is_committed(folder, name):
    return folder.read(name).decode() == (RESULTS / name).read_text(encoding="utf-8")


def test_tables_2_and_3(committed):
    folder, _ = committed("tud.json")
    tud_results.add_results(folder, [])
    assert is_committed(folder, "tud.md")
    assert is_committed(folder, "tud.json")


def test_table_1(committed):
    folder, rows = committed("molhiv.json", "rows")
    values = rows["automl"]
    series = {name: np.array(value) for name, value in values.items() if isinstance(value, list)}
    molhiv_results.add_row(folder, molhiv.Row(**{**values, **series}))
    assert is_committed(folder, "molhiv.md")
    assert is_committed(folder, "molhiv.json")


def test_the_table_of_references(committed):
    folder, _ = committed("reference.json")
    reference_results.write_results(folder, {})
    assert is_committed(folder, "reference.md")
    assert is_committed(folder, "reference.json")


def test_the_table_of_figure_3(committed):
    folder, measured = committed("runtime.json", "data_sets")
    values = measured["MUTAG"]
    timings = {name: Timing(**timing) for name, timing in values["timings"].items()}
    runtime_results.add_measured(folder, runtime.Measured(**{**values, "timings": timings}))
    assert is_committed(folder, "runtime.md")
    assert is_committed(folder, "runtime.json")


def test_the_table_of_solvers(tmp_path):
    kept = json.loads((RESULTS / "sinkhorn.json").read_text(encoding="utf-8"))
    molecules = [
        sinkhorn.Molecules(
            each["regularization"], np.array(each["time_ratio"]), np.array(each["relative_error"], dtype=np.float64)
        )
        for each in kept["molecules"]
    ]
    growth = [sinkhorn.Growth(**{name: _tuple(value) for name, value in each.items()}) for each in kept["growth"]]
    folder = Folder(str(tmp_path))
    sinkhorn_results.write_results(folder, molecules, growth, kept["how"])
    assert is_committed(folder, "sinkhorn.md")
    assert is_committed(folder, "sinkhorn.json")


def test_the_readme_says_how_far_the_exact_solver_was_found_to_be_the_faster():
    growth = json.loads((RESULTS / "sinkhorn.json").read_text(encoding="utf-8"))["growth"]
    seconds = {each["regularization"]: dict(zip(each["sizes"], each["seconds"], strict=False)) for each in growth}
    default = seconds[TransportTable().regularization]
    compared = [size for size, entropic in default.items() if entropic is not None]
    assert all(seconds[None][size] < default[size] for size in compared)
    text = " ".join((RESULTS.parents[2] / "README.md").read_text(encoding="utf-8").split())
    assert f"up to {max(compared):,} points, as far as it was measured, the exact solver is faster" in text
    assert f"an exact one takes {EXACT_PAIR_BYTES} bytes a pair of points" in text


def _tuple(value):
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "title"), [("virtual-node", "virtual nodes"), ("average", "average pooling")])
def test_the_table_of_balanced_forests(name, title):
    areas = json.loads((RESULTS / f"balanced-{name}.json").read_text(encoding="utf-8"))["areas"]
    ours = [
        mean_and_deviation(np.array(areas[how][part])) for how in ("balanced", "None") for part in ("valid", "test")
    ]
    assert f"| {title} | {' | '.join(ours)} | " in (RESULTS / "molhiv-notes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def fold_draws():
    """The program jobs/paper/checks/fold_draws.py."""
    spec = spec_from_file_location("fold_draws", RESULTS.parent / "checks" / "fold_draws.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_draws_of_the_folds_are_set_beside_the_paper(fold_draws):
    cells = {"random-forest, average": [66.0, 68.0], "svm-rbf, final": [69.0, 60.0]}
    assert fold_draws.describe({"data_set": "PTC_MR", "cells": cells}).splitlines()[2:] == [
        "| random-forest, average | 67.5 | 67.0 ± 1.4 | 66.0 to 68.0 | 1 of 2 |",
        "| svm-rbf, final | 62.8 | 64.5 ± 6.4 | 60.0 to 69.0 | 1 of 2 |",
        "| the best of them | 67.5 | 68.5 ± 0.7 | 68.0 to 69.0 | 2 of 2 |",
    ]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("draws-*.json")), ids=lambda path: path.stem)
def test_the_tables_of_draws(path, fold_draws):
    notes = (RESULTS / "tud-notes.md").read_text(encoding="utf-8")
    table = fold_draws.describe(json.loads(path.read_text(encoding="utf-8")))
    assert all(f"  {line}\n" in notes for line in table.splitlines())


def forests(name):
    """Read what unweighted_forests.py wrote: with balanced classes, without, and the number of draws."""
    best = json.loads((RESULTS / f"unweighted-{name}.json").read_text(encoding="utf-8"))["best"]
    return *(mean_and_deviation(np.array(best[kind])) for kind in ("balanced", "not balanced")), len(best["balanced"])


def test_forests_without_balanced_classes():
    with_them, without, n_draws = forests("PTC_MR")
    notes = " ".join((RESULTS / "tud-notes.md").read_text(encoding="utf-8").split())
    assert f"have {with_them} with them and {without} without, over {n_draws} draws" in notes


@pytest.mark.parametrize("pooling", ["concat", "average", "final"])
def test_forests_without_edge_labels(pooling):
    with_them, without, n_draws = forests(f"PTC_MR-noedge-{pooling}")
    paper = papers_number("PTC_MR", pooling, "random-forest").mean
    notes = (RESULTS / "tud-notes.md").read_text(encoding="utf-8")
    assert f"  | {pooling} | {paper:.1f} | {with_them} | {without} |\n" in notes
    assert n_draws == 10
