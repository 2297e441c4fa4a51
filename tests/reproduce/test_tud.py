import csv
from pathlib import Path

import numpy as np
import pytest

from wegl_dask.cli import main
from wegl_dask.folders import Folder
from wegl_dask.reproduce import tud
from wegl_dask.reproduce.paper import PaperCell, paper_cell
from wegl_dask.reproduce.plots import tud_plot
from wegl_dask.reproduce.tables import SHORT, tud_table
from wegl_dask.training import trees


def cell(best, paper, **settings):
    values = {
        "data_set": "MUTAG",
        "pooling": "final",
        "model": "random-forest",
        "nested": None,
        "chosen": {"layers": 3},
    }
    return tud.Cell(paper=paper, best=np.array(best), **{**values, **settings})


def test_the_papers_numbers_are_those_of_its_tables():
    # Read off the paper: table 3 (MUTAG, concat) and table 1.
    assert paper_cell(3, "WEGL + RF", "MUTAG", pooling="concat", metric="accuracy %") == PaperCell(88.3, 5.1)
    test = paper_cell(1, "WEGL + virtual node + RF", "ogbg-molhiv", metric="test ROC-AUC %")
    assert test == PaperCell(76.5, 1.8)
    assert paper_cell(3, "WEGL + RF", "DD", pooling="concat", metric="accuracy %") is None


def test_table_three_has_a_number_for_every_model_pooling_and_data_set():
    for name in tud.DATA_SETS:
        for pooling in tud.POOLINGS:
            for method in tud.METHODS.values():
                assert paper_cell(3, method, name, pooling=pooling, metric="accuracy %"), (name, pooling, method)


def test_the_copy_of_the_papers_numbers_is_whole():
    path = Path(tud.__file__).with_name("paper_tables.csv")
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "3" and row["method"].startswith("WEGL")]
    assert len(rows) == 150


def test_layers_and_candidate_are_chosen_together():
    steps = {
        3: {"candidates": [{"C": 1}, {"C": 2}], "outer": [[0.5, 0.6], [0.7, 0.6]], "inner": [[0.9, 0.1], [0.2, 0.1]]},
        4: {"candidates": [{"C": 1}, {"C": 2}], "outer": [[0.8, 0.1], [0.7, 0.2]], "inner": [[0.3, 0.2], [0.1, 0.4]]},
    }
    found = tud._cell("MUTAG", "concat", "svm-rbf", steps)
    assert found.chosen == {"layers": 4, "C": 1}
    assert found.best.tolist() == pytest.approx([80, 70])
    # Fold 0 would have taken L = 3, C = 1; fold 1 would have taken L = 4, C = 2.
    assert found.nested.tolist() == pytest.approx([50, 20])


def test_a_cell_is_short_when_it_is_more_than_a_deviation_below_the_paper():
    assert cell([80.0, 84.0], PaperCell(88.1, 6.0)).is_short
    assert not cell([80.0, 84.0], PaperCell(87.9, 6.0)).is_short
    assert not cell([80.0, 84.0], None).is_short


def test_the_table_has_a_row_a_cell_and_marks_short_ones():
    cells = [cell([80.0, 84.0], PaperCell(90.0, 1.0)), cell([90.0, 94.0], PaperCell(90.0, None), pooling="concat")]
    plan = tud.Plan(data_sets=["MUTAG"], layers=[3, 4], nested=False)
    rows = [line for line in tud_table(cells, plan, {"numpy": "2"}).splitlines() if line.startswith("| WEGL")]
    assert rows == [
        f"| WEGL + RF | final | 90.0 ± 1.0 | 82.0 ± 2.0 | {SHORT} | layers = 3 |",
        "| WEGL + RF | concat | 90.0 | 92.0 ± 2.0 |  | layers = 3 |",
    ]


def test_the_plot_is_a_png():
    pytest.importorskip("matplotlib")
    cells = [cell([80.0, 84.0], PaperCell(90.0, 1.0), nested=np.array([79.0])), cell([1.0], None, data_set="PTC_MR")]
    assert tud_plot(cells).startswith(b"\x89PNG")


def test_the_command_goes_on_where_it_was(shared_data, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(trees, "N_TREES", (3,))
    options = ["--only", "MUTAG", "--poolings", "final", "--layers", "3", "--models", "svm-rbf", "--workers", "1"]
    command = ["reproduce", "tud", "--data", str(shared_data / "TUDataset"), "-o", str(tmp_path / "tud"), *options]
    results = []
    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 0
        results.append(capsys.readouterr().err)
    assert "MUTAG, final, L = 3, svm-rbf" in results[0]
    assert "MUTAG, final, L = 3, svm-rbf" not in results[1]
    table = Folder(str(tmp_path / "tud")).read("tud.md").decode()
    (row,) = (line for line in table.splitlines() if line.startswith("| WEGL"))
    assert row.startswith("| WEGL + SVM-RBF | final | 82.4 ± 7.9 | ")


def test_a_name_that_is_not_known_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "tud", "--data", "x", "-o", str(tmp_path / "tud"), "--only", "MUTAG,PTC"])
    assert stop.value.code == 2
    assert "--only names 'PTC'; there are MUTAG, PTC_MR" in capsys.readouterr().err
