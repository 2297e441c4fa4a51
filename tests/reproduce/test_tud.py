import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from wegl_dask.cli import main
from wegl_dask.cli.jobs import shipped_jobs
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.reproduce import tud, tud_results
from wegl_dask.reproduce.paper import PaperCell, paper_cell
from wegl_dask.reproduce.plots import tud_plot
from wegl_dask.reproduce.tables import LARGE_NOTE, SHORT, held_out_over, tud_table
from wegl_dask.reproduce.tud_results import add_results
from wegl_dask.spec import read_job

HOW = {"layers": [3, 4], "shortlisted": 2, "seed": 0, "constants": {}, "date": "2026-11-28", "versions": {"numpy": "2"}}


def cell(best, paper, **settings):
    values = {
        "data_set": "MUTAG",
        "pooling": "final",
        "model": "random-forest",
        "held_out": np.array(best) - 1,
        "nested": None,
        "chosen": {"layers": 3},
        "n_configurations": 8,
        "how": HOW,
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


def step(candidates, outer, inner):
    return {"candidates": [{"C": C} for C in candidates], "outer": outer, "inner": inner}


def test_layers_and_candidate_are_chosen_together():
    steps = {
        3: [step([1, 2], [[0.5, 0.6], [0.7, 0.6], [0.1, 0.95]], [[0.9, 0.1], [0.2, 0.1], [0.1, 0.3]])],
        4: [
            step([1], [[0.8], [0.7], [0.8]], [[0.3], [0.1], [0.8]]),
            step([2], [[0.1], [0.2], [0.9]], [[0.2], [0.4], [0.1]]),
        ],
    }
    found = tud.choose("MUTAG", "concat", "svm-rbf", steps, HOW)
    assert found.chosen == {"layers": 4, "C": 1}
    assert found.n_configurations == 4
    assert found.best.tolist() == pytest.approx([80, 70, 80])
    # On folds 1 and 2 L = 3, C = 2 is best (0.6 + 0.95); on 0 and 2, and on 0 and 1, it is L = 4, C = 1.
    assert found.held_out.tolist() == pytest.approx([60, 70, 80])
    # Fold 0 would have taken L = 3, C = 1; fold 1 L = 4, C = 2; fold 2 L = 4, C = 1.
    assert found.nested.tolist() == pytest.approx([50, 20, 80])


def test_without_inner_folds_there_is_no_nested_number():
    steps = {3: [step([1, 2], [[0.5, 0.6], [0.7, 0.5]], [[], []])]}
    found = tud.choose("MUTAG", "concat", "svm-rbf", steps, HOW)
    assert found.nested is None
    # What did better on the other fold.
    assert found.held_out.tolist() == pytest.approx([50, 50])


def test_a_cell_that_is_kept_is_read_back():
    made = cell([80.0, 84.0], tud.papers_number("MUTAG", "final", "random-forest"), nested=np.array([79.0, 78.0]))
    back = tud.Cell.from_json(made.to_json())
    assert back.to_json() == made.to_json()
    assert back.paper == PaperCell(86.2, 9.5)


def test_of_a_large_data_set_a_smaller_grid_is_searched_and_only_if_it_is_named():
    plan = tud.Plan()
    assert not set(tud.LARGE_DATA_SETS) & set(plan.data_sets)
    part = plan.of("REDDIT-BINARY")
    assert (list(part.poolings), list(part.layers)) == (["concat"], [3, 5])
    assert set(part.models) == {"svm-linear", "svm-rbf", "gradient-boosting", "random-forest"}
    assert plan.of("MUTAG").models == plan.models


@pytest.mark.parametrize("name", tud.LARGE_DATA_SETS)
def test_the_note_on_a_large_data_set_is_what_its_job_file_has(name):
    projection = read_job(shipped_jobs()[f"paper/{name.lower()}"]).projection
    assert f" {projection.components} principal components" in LARGE_NOTE
    assert not projection.standardize


CELL = {"name": "MUTAG", "pooling": "concat", "model": "random-forest"}


class Answers:
    """Stands for a ledger: of every step it gives an accuracy that follows from the number of layers alone."""

    def __init__(self, accuracy):
        self.accuracy = accuracy
        self.asked = []

    def fresh(self):
        return self

    def how(self):
        return {"date": "2026-11-28"}

    def step(self, name, settings, compute, **options):  # noqa: ARG002
        layers, part = re.fullmatch(r"tud-MUTAG-concat-(\d)-random-forest-(first|rest)", name).groups()
        self.asked.append((int(layers), part))
        outer = [[self.accuracy[int(layers)] + (0.05 if part == "rest" else 0)]] * 10
        return {"candidates": [{"part": part}], "outer": outer, "inner": [[]] * 10}


def test_the_whole_grid_is_searched_with_the_best_numbers_of_layers():
    ledger = Answers({3: 0.7, 4: 0.9, 5: 0.6, 6: 0.8})
    plan = tud.Plan(layers=[3, 4, 5, 6], models=["random-forest"])
    found = tud.compute_cell(plan, SimpleNamespace(fingerprint="1"), ledger, None, **CELL)
    assert ledger.asked == [(3, "first"), (4, "first"), (5, "first"), (6, "first"), (4, "rest"), (6, "rest")]
    assert found.chosen == {"layers": 4, "part": "rest"}
    assert found.n_configurations == 6
    assert found.how == {"seed": 0, "layers": [3, 4, 5, 6], "shortlisted": 2, "constants": {}, "date": "2026-11-28"}


def test_the_first_groups_alone_are_searched():
    ledger = Answers({3: 0.7, 4: 0.9})
    plan = tud.Plan(layers=[3, 4], models=["random-forest"], shortlisted=0)
    found = tud.compute_cell(plan, SimpleNamespace(fingerprint="1"), ledger, None, **CELL)
    assert ledger.asked == [(3, "first"), (4, "first")]
    assert found.chosen == {"layers": 4, "part": "first"}


def test_steps_have_their_data_and_what_their_model_follows_from_among_their_settings(monkeypatch):
    asked = []

    class Settings(Answers):
        def step(self, name, settings, compute, **options):
            asked.append((settings["data"], settings["bins"]))
            return super().step(name, settings, compute, **options)

    monkeypatch.setattr(tud, "constants", lambda *cell: {"bins": "-".join(cell)})
    plan = tud.Plan(layers=[3], models=["random-forest"])
    data_set = SimpleNamespace(fingerprint="of them")
    found = tud.compute_cell(plan, data_set, Settings({3: 0.7}), None, **CELL)
    assert asked == [("of them", "random-forest-MUTAG-concat")] * 2
    assert found.how["constants"] == {"bins": "random-forest-MUTAG-concat"}


def test_the_table_says_what_the_learners_of_its_cells_had_for_constants():
    def boosted(pooling, columns):
        how = {**HOW, "constants": {"max_features": columns}}
        return cell([80.0], None, model="gradient-boosting", pooling=pooling, how=how)

    whole, part = boosted("final", None), boosted("concat", "sqrt")
    assert "- GBDT: " not in tud_table([whole])
    assert "- GBDT: every split looks at a random square root of the columns, as in a forest." in tud_table([part])
    assert "as in a forest; at all of them with MUTAG, final." in tud_table([part, whole])
    svms = [cell([80.0], None, model="svm-rbf", how={**HOW, "constants": {"svm_iterations": n}}) for n in (2_000, 10)]
    lines = [line for line in tud_table(svms).splitlines() if line.startswith("- SVM: ")]
    assert [re.search(r"after ([\d,]+) steps", line)[1] for line in lines] == ["10", "2,000"]


def test_a_cell_is_short_when_it_is_more_than_a_deviation_below_the_paper():
    assert cell([80.0, 84.0], PaperCell(88.1, 6.0)).is_short
    assert not cell([80.0, 84.0], PaperCell(87.9, 6.0)).is_short
    assert not cell([80.0, 84.0], None).is_short


def rows_of(table):
    return [line for line in table.splitlines() if line.startswith("| WEGL")]


def test_the_table_has_a_row_a_cell_and_marks_short_ones():
    cells = [cell([80.0, 84.0], PaperCell(90.0, 1.0)), cell([90.0, 94.0], PaperCell(90.0, None), pooling="concat")]
    assert rows_of(tud_table(cells)) == [
        f"| WEGL + RF | final | 90.0 ± 1.0 | 82.0 ± 2.8 | 81.0 ± 2.8 | {SHORT} | layers = 3 |",
        "| WEGL + RF | concat | 90.0 | 92.0 ± 2.8 | 91.0 ± 2.8 |  | layers = 3 |",
    ]


def test_the_table_sets_our_best_cell_beside_the_papers_and_says_what_is_not_there():
    later = {**HOW, "date": "2026-11-30", "seed": 1}
    table = tud_table([cell([80.0, 84.0], None), cell([90.0, 88.0], None, model="mlp", how=later)])
    # The paper's best on MUTAG is GBDT with concat, 89.3.
    assert "| MUTAG | 89.3 ± 6.6 (GBDT, concat) | 89.0 ± 1.4 (MLP, final) | 88.0 ± 1.4 | below | 2 | 0 |" in table
    assert "Not computed yet: PTC_MR, ENZYMES, PROTEINS, IMDB-BINARY." in table
    assert "- MLP, final: layers 3, 4, with the whole grid, seed 1." in table
    assert "13 of 15 cells are not computed yet." in table
    assert "Seed 0, 1; numpy 2; 2026-11-28 to 2026-11-30." in table


def test_across_cells_a_fold_is_scored_by_what_is_best_on_the_others():
    held_out = [[90.0, 50.0, 70.0], [80.0, 80.0, 60.0]]
    cells = [cell(each, None, held_out=np.array(each)) for each in held_out]
    # Without fold 0 the second is best (140 to 120), without fold 1 the first (160 to 140), without 2 the second (160 to 140).
    assert held_out_over(cells).tolist() == [80.0, 50.0, 60.0]


def test_data_sets_whose_points_are_not_the_papers_are_marked():
    table = tud_table([cell([80.0], None), cell([90.0], None, data_set="COLLAB", pooling="concat")])
    assert "| COLLAB † | 80.6 ± 2.0 (GBDT, concat) |" in table
    assert "| MUTAG | " in table
    assert table.count("Not the paper's points") == 2


def test_the_nested_number_has_a_column_where_it_was_computed():
    cells = [cell([80.0], None, nested=np.array([70.0])), cell([81.0], None, pooling="concat")]
    assert rows_of(tud_table(cells)) == [
        "| WEGL + RF | final |  | 80.0 | 79.0 | 70.0 |  | layers = 3 |",
        "| WEGL + RF | concat |  | 81.0 | 80.0 |  |  | layers = 3 |",
    ]


def test_cells_of_other_grids_are_told_apart():
    one, none = {**HOW, "shortlisted": 1}, {**HOW, "shortlisted": 0}
    cells = [
        cell([80.0, 84.0], None, how=one),
        cell([81.0, 82.0], None, how=one, pooling="concat"),
        cell([70.0, 72.0], None, how={**one, "layers": [3]}, model="mlp"),
        cell([70.0, 72.0], None, how=none, model="gradient-boosting"),
        cell([70.0, 72.0], None, how=none, model="svm-linear"),
    ]
    lines = tud_table(cells).splitlines()
    assert "- RF, final; RF, concat: layers 3, 4; the whole grid with the best 1 of them." in lines
    assert "- MLP, final: layers 3, with the whole grid." in lines
    assert "- GBDT, final: layers 3, 4; the first group of candidates alone." in lines
    # It has one group of candidates.
    assert "- SVM-Linear, final: layers 3, 4, with the whole grid." in lines
    assert "Layers 3, 4; the first group of candidates alone." in tud_table([cell([80.0], None, how=none)])
    assert "Layers 3, with the whole grid." in tud_table([cell([80.0], None, how={**HOW, "layers": [3]})]).splitlines()


def test_the_plot_is_a_png():
    pytest.importorskip("matplotlib")
    cells = [cell([80.0, 84.0], PaperCell(90.0, 1.0)), cell([1.0], None, data_set="PTC_MR")]
    assert tud_plot(cells).startswith(b"\x89PNG")


def test_cells_of_several_commands_are_kept_together(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    nested = np.array([70.0, 71.0])
    add_results(folder, [cell([1.0, 2.0], None, data_set="PTC_MR"), cell([80.0, 84.0], None, nested=nested)])
    add_results(folder, [cell([50.0, 52.0], None, model="mlp"), cell([80.0, 84.0], None)])
    kept = json.loads(folder.read("tud.json"))["cells"]
    # In the order of the table; the nested number of a cell that is the same has been kept.
    assert [(each["data_set"], each["model"], each["nested"]) for each in kept] == [
        ("MUTAG", "mlp", None),
        ("MUTAG", "random-forest", [70.0, 71.0]),
        ("PTC_MR", "random-forest", None),
    ]
    add_results(folder, [cell([90.0, 92.0], None)])
    kept = json.loads(folder.read("tud.json"))["cells"]
    assert kept[1]["best"] == [90.0, 92.0]
    assert kept[1]["nested"] is None
    assert [row.split(" | ")[2] for row in rows_of(folder.read("tud.md").decode())] == [
        "81.9 ± 5.9",
        "86.2 ± 9.5",
        "66.3 ± 6.5",
    ]


def kept_cell(folder):
    (found,) = json.loads(folder.read("tud.json"))["cells"]
    return found


def date_back(folder, name):
    """Make the results of a folder those of an earlier day and another version."""
    text = re.sub(r'"date": "[^"]*"', '"date": "2020-01-01"', folder.read(name).decode())
    folder.write(name, re.sub(r'"scikit-learn": "[^"]*"', '"scikit-learn": "0.0.1"', text).encode())


@pytest.mark.parametrize(
    "other",
    [
        {"how": {**HOW, "layers": [3, 5]}},
        {"how": {**HOW, "seed": 1}},
        {"how": {**HOW, "shortlisted": 1}},
        {"how": {**HOW, "versions": {"wegl-dask numerics": "0"}}},
        # The best configuration is as before, but it was chosen among more.
        {"n_configurations": 16},
        {"chosen": {"layers": 4}},
    ],
)
def test_a_nested_number_is_kept_beside_the_same_numbers_of_the_same_plan_alone(other, tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_results(folder, [cell([80.0, 84.0], None, nested=np.array([85.0, 86.0]))])
    later = {**HOW, "date": "2026-11-30"}
    add_results(folder, [cell([80.0, 84.0], None, how=later)])
    assert kept_cell(folder)["nested"] == [85.0, 86.0]
    assert kept_cell(folder)["how"] == {**later, "earlier": [{"date": "2026-11-28", "versions": {"numpy": "2"}}]}
    add_results(folder, [cell([80.0, 84.0], None, **other)])
    assert kept_cell(folder)["nested"] is None


def test_the_table_says_where_its_cells_differ_in_date_and_versions(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_results(folder, [cell([80.0, 84.0], None)])
    add_results(
        folder, [cell([70.0, 72.0], None, model="mlp", how={**HOW, "date": "2026-11-30", "versions": {"numpy": "3"}})]
    )
    assert "numpy 2 (2026-11-28) and 3 (2026-11-30); 2026-11-28 to 2026-11-30." in folder.read("tud.md").decode()


UNKNOWN = cell([80.0], None, data_set="NCI1").to_json()
# As earlier versions wrote it.
OLD = json.dumps(
    {"cells": [{**cell([80.0], None).to_json(), "how": {"seed": 0, "date": "2026-11-28", "versions": {}}}]}
)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("[]", "Input should be a valid dictionary"),
        ("{", "Expecting property name"),
        ('{"cells": {}}', "cells: Input should be a valid list"),
        ('{"cells": [{"data_set": "MUTAG"}]}', r"cells\.0\.pooling: Field required"),
        (json.dumps({"cells": [UNKNOWN]}), r"cells\.0\.data_set: .*'NCI1' is none of MUTAG, "),
        (OLD, r"cells\.0\.how\.layers: Field required"),
    ],
)
def test_a_file_that_holds_no_results_is_named(content, found, tmp_path):
    folder = Folder(str(tmp_path))
    folder.write("tud.json", content.encode())
    with pytest.raises(WeglError, match=rf"tud\.json is damaged, or of another version \({found}"):
        add_results(folder, [cell([80.0, 84.0], None)])


def test_results_of_the_repository_are_added_to(committed):
    pytest.importorskip("matplotlib")
    folder, earlier = committed("tud.json", "cells")
    add_results(folder, [cell([80.0, 84.0] * 5, None, data_set="REDDIT-BINARY")])
    cells = json.loads(folder.read("tud.json"))["cells"]
    added = next(each for each in cells if (each["data_set"], each["pooling"]) == ("REDDIT-BINARY", "final"))
    assert [each for each in cells if each is not added] == earlier
    assert len(rows_of(folder.read("tud.md").decode())) == len(earlier) + 1


def test_the_command_goes_on_where_it_was(shared_data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
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


def test_the_command_computes_the_same_on_a_cluster_and_writes_each_cell_when_it_has_it(
    shared_data, dask_client, tmp_path, monkeypatch
):
    pytest.importorskip("matplotlib")
    options = ["--only", "MUTAG", "--poolings", "final", "--layers", "3", "--models", "svm-linear,random-forest"]
    written = []
    add = tud_results.add_results

    def note(folder, cells):
        add(folder, cells)
        written.append([each["model"] for each in json.loads(folder.read("tud.json"))["cells"]])

    monkeypatch.setattr(tud_results, "add_results", note)
    cells = {}
    for where, place in {"here": ["--workers", "1"], "cluster": ["--address", dask_client.scheduler.address]}.items():
        out = str(tmp_path / where)
        command = ["reproduce", "tud", "--data", str(shared_data / "TUDataset"), "-o", out, "--shortlist", "0"]
        with pytest.raises(SystemExit) as stop:
            main([*command, *options, *place])
        assert stop.value.code == 0
        cells[where] = json.loads(Folder(out).read("tud.json"))
    assert cells["cluster"] == cells["here"]
    assert written == [["svm-linear"], ["svm-linear", "random-forest"]] * 2


def test_workers_of_this_machine_and_a_cluster_are_not_both_taken(tmp_path, shared_data, capsys):
    for command in ("tud", "molhiv", "reference"):
        with pytest.raises(SystemExit) as stop:
            main(
                [
                    *("reproduce", command, "--data", str(shared_data), "-o", str(tmp_path / "out")),
                    *("--workers", "2", "--address", "tcp://127.0.0.1:1"),
                ]
            )
        assert stop.value.code == 2
        assert (
            "--workers are processes of this machine, and the cluster that --address names" in capsys.readouterr().err
        )


def test_a_name_that_is_not_known_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "tud", "--data", "x", "-o", str(tmp_path / "tud"), "--only", "MUTAG,PTC"])
    assert stop.value.code == 2
    assert "--only names 'PTC'; there are MUTAG, PTC_MR" in capsys.readouterr().err
