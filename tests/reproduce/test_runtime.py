import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from wegl_dask.cli import main
from wegl_dask.folders import Folder
from wegl_dask.reproduce import runtime, runtime_methods
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.runtime import Measured, measure
from wegl_dask.reproduce.runtime_methods import Timing, time_gin, time_wwl
from wegl_dask.reproduce.runtime_results import add_measured
from wegl_dask.spec import JobSpec

JOB = JobSpec.from_values(
    {"source": {"kind": "tud", "root": "data", "name": "MUTAG"}, "output": {"path": "out"}, "diffusion": {"layers": 2}}
)


HOW = {"date": "2020-01-01", "versions": {"POT": "0.1"}}


def measured(name, **timings):
    return Measured(name, 100, 17.5, 19.25, timings, dict.fromkeys(timings, HOW))


def test_what_takes_long_is_extrapolated_in_proportion_to_the_pairs(mutag, monkeypatch):
    pytest.importorskip("wwl")
    clock = iter([0.0, 3.0])
    monkeypatch.setattr(runtime_methods.time, "perf_counter", lambda: next(clock))
    found = time_wwl(mutag.batch.slice(0, 20), longest=10.0, part=4)
    # Of 20 * 21 / 2 = 210 pairs, 10 took 3 seconds. One more graph makes 20 pairs.
    assert found == Timing(pytest.approx(63.0), pytest.approx(6.0), pytest.approx(10 / 210))


def test_what_is_fast_is_measured_in_whole(mutag, monkeypatch):
    pytest.importorskip("wwl")
    clock = iter([0.0, 3.0, 10.0, 14.2])
    monkeypatch.setattr(runtime_methods.time, "perf_counter", lambda: next(clock))
    found = time_wwl(mutag.batch.slice(0, 20), longest=100.0, part=4)
    assert found == Timing(pytest.approx(4.2), pytest.approx(0.4), 1.0)


def test_the_graphs_of_the_kernel_are_those_of_the_data_set(mutag):
    pytest.importorskip("wwl")
    for graph, expected in zip(runtime_methods._igraphs(mutag.batch.slice(0, 5)), mutag.graphs[:5], strict=True):
        assert {tuple(sorted(edge)) for edge in graph.get_edgelist()} == {
            tuple(sorted(edge[:2])) for edge in expected.edges
        }
        assert graph.vs["label"] == [str(labels[0]) for labels in expected.node_labels]


def test_nodes_without_labels_are_told_apart_by_their_degrees(make_batch):
    pytest.importorskip("wwl")
    edges = [(0, 1), (1, 0), (1, 2), (2, 1)]
    path = SimpleNamespace(
        node_labels=[[]] * 3, node_attributes=[[]] * 3, edges=edges, edge_labels=[], edge_attributes=[]
    )
    (graph,) = runtime_methods._igraphs(make_batch([path]))
    assert graph.vs["label"] == ["1", "2", "1"]
    assert [labels.tolist() for labels in runtime_methods._categories(make_batch([path]), 1)] == [[1, 1, 1]]


def test_gin_is_extrapolated_from_an_epoch(mutag, monkeypatch):
    pytest.importorskip("torch_geometric")
    # The start of every span and its end: the first epoch, one more, the predictions.
    clock = iter([0.0, 9.0, 10.0, 10.5, 20.0, 20.3])
    monkeypatch.setattr(runtime_methods.time, "perf_counter", lambda: next(clock))
    y = np.arange(8) % 2
    found = time_gin(JOB, mutag.batch.slice(0, 8), y, mutag.batch.slice(8, 11), longest=100.0, n_epochs=300)
    assert found == Timing(pytest.approx(150.0), pytest.approx(0.1), pytest.approx(1 / 300))


def test_every_method_is_measured_and_kept(mutag, tmp_path, monkeypatch):
    pytest.importorskip("wwl")
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr(runtime, "GIN_EPOCHS", 2)
    monkeypatch.setattr(runtime, "PART", 3)
    graphs, y = mutag.batch.slice(0, 20), np.arange(20) % 2
    ledger = Ledger(Folder(str(tmp_path)))
    *_, found = measure("MUTAG", JOB, graphs, y, data="1", ledger=ledger, methods=["wegl", "wwl", "gin"])
    assert (found.n_graphs, list(found.timings)) == (20, ["wegl", "wwl", "gin"])
    assert found.mean_edges == sum(len(graph.edges) for graph in mutag.graphs[:20]) / 20 / 2
    assert all(timing.training > 0 and timing.inference > 0 for timing in found.timings.values())
    monkeypatch.setattr(runtime, "time_wegl", None)
    *_, again = measure("MUTAG", JOB, graphs, y, data="1", ledger=ledger, methods=["wegl"])
    assert again.timings["wegl"] == found.timings["wegl"]


def test_what_was_measured_on_other_data_is_measured_anew(mutag, tmp_path, monkeypatch):
    seconds = iter([1.0, 2.0])
    monkeypatch.setattr(runtime, "time_wegl", lambda *_: Timing(next(seconds), 0.1, 1.0))
    graphs, y = mutag.batch.slice(0, 20), np.arange(20) % 2
    found = [
        next(measure("MUTAG", JOB, graphs, y, data=data, ledger=Ledger(Folder(str(tmp_path))), methods=["wegl"]))
        for data in ("one", "other", "one")
    ]
    assert [each.timings["wegl"].training for each in found] == [1.0, 2.0, 1.0]


def test_the_parts_are_nine_tenths_and_the_rest():
    train, test = runtime._parts(30)
    assert (len(train), len(test)) == (27, 3)
    assert sorted([*train, *test]) == list(range(30))


def test_results_are_added_to_those_of_earlier_commands(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_measured(folder, measured("MUTAG", wegl=Timing(0.125, 0.001, 1.0), wwl=Timing(5.0, 0.5, 1.0)))
    add_measured(folder, measured("PTC_MR", wegl=Timing(2.0, 0.002, 1.0)))
    add_measured(folder, measured("MUTAG", wwl=Timing(1234.0, 0.25, 0.1)))
    lines = (tmp_path / "runtime.md").read_text().splitlines()
    assert "| MUTAG | 100 | 17.5 | 19.2 | 0.125 | 1,234* |  | 1 | 250* |  |" in lines
    assert "| PTC_MR | 100 | 17.5 | 19.2 | 2 |  |  | 2 |  |  |" in lines
    assert "Not measured: IMDB-BINARY, PROTEINS, NCI1." in lines
    assert set(json.loads((tmp_path / "runtime.json").read_text())["data_sets"]) == {"MUTAG", "PTC_MR"}
    assert (tmp_path / "runtime.png").read_bytes().startswith(b"\x89PNG")


def kept_sets(folder):
    return json.loads(folder.read("runtime.json"))["data_sets"]


def test_timings_have_the_date_and_the_versions_of_their_steps(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_measured(folder, measured("MUTAG", wegl=Timing(0.125, 0.001, 1.0), wwl=Timing(5.0, 0.5, 1.0)))
    later = {"date": "2020-01-02", "versions": {"POT": "0.2"}}
    add_measured(folder, replace(measured("MUTAG", wwl=Timing(5.0, 0.5, 1.0)), how={"wwl": later}))
    assert kept_sets(folder)["MUTAG"]["how"] == {"wegl": HOW, "wwl": later}
    text = folder.read("runtime.md").decode()
    assert "POT 0.1 (2020-01-01) and 0.2 (2020-01-02); 2020-01-01 to 2020-01-02." in text


def test_timings_of_other_graphs_are_not_kept(tmp_path):
    pytest.importorskip("matplotlib")
    folder = Folder(str(tmp_path))
    add_measured(folder, measured("MUTAG", wegl=Timing(0.125, 0.001, 1.0)))
    add_measured(folder, Measured("MUTAG", 50, 17.5, 19.25, {"gin": Timing(1.0, 0.5, 1.0)}, {"gin": HOW}))
    assert list(kept_sets(folder)["MUTAG"]["timings"]) == ["gin"]


def test_results_of_the_repository_are_added_to(committed):
    pytest.importorskip("matplotlib")
    folder, earlier = committed("runtime.json", "data_sets")
    add_measured(folder, Measured("NCI1", 100, 17.5, 19.25, {"wegl": Timing(1.0, 0.5, 1.0)}, {"wegl": HOW}))
    kept = kept_sets(folder)
    assert kept["MUTAG"] == earlier["MUTAG"]
    assert list(kept) == [*earlier, "NCI1"]
    gin = earlier["MUTAG"]["timings"]["gin"]["training"]
    (row,) = re.findall(r"^\| MUTAG \| 188 \| 17\.9 \| 19\.8 \|.*$", folder.read("runtime.md").decode(), re.MULTILINE)
    assert f"| {gin:.3g} |" in row


@pytest.mark.slow
def test_the_command_measures_a_data_set(shared_data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    options = ["--only", "MUTAG", "--methods", "wegl"]
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "runtime", "--data", str(shared_data / "TUDataset"), "-o", str(tmp_path), *options])
    assert stop.value.code == 0
    assert "wrote" in capsys.readouterr().out
    assert "| MUTAG | 188 | 17.9 | 19.8 |" in (tmp_path / "runtime.md").read_text()
