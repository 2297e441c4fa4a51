import io
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from wegl_dask.checksums import sealed
from wegl_dask.errors import MissingDependencyError, WeglError
from wegl_dask.pipeline import run_job
from wegl_dask.progress import Progress
from wegl_dask.reading import read_embeddings
from wegl_dask.report import content as report_content
from wegl_dask.report.content import GraphMap, _leading_components, read_content, spread
from wegl_dask.report.figures import confusion, graph_map, map_section, n_outside, roc_curves, short_names
from wegl_dask.report.job import write_report
from wegl_dask.report.trained import TrainedModel
from wegl_dask.run_rows import RunRows
from wegl_dask.sources.base import LabelSchema
from wegl_dask.spec import ClusterTable, JobSpec, TrainTable
from wegl_dask.storage import RunFolder
from wegl_dask.training import svm
from wegl_dask.training.job import train

pytest.importorskip("bokeh")

METRICS, PREDICTIONS = "train/svm-linear/metrics.json", "train/svm-linear/predictions.parquet"


class Page(HTMLParser):
    """The parts of a page: its visible text, and every address that an element refers to."""

    def __init__(self, text):
        super().__init__()
        self.words, self.addresses, self.styles, self.titles = [], [], [], []
        self._inside = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in {"meta", "link", "br"}:
            self._inside.append(tag)
        self.addresses += [value for name, value in attributes if name in {"src", "href", "data", "action", "poster"}]

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" in self._inside:
            self.styles.append(data)
        elif "script" not in self._inside:
            self.words.append(data)
        if self._inside[-1:] == ["h3"]:
            self.titles.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def quickstart_run(quickstart):
    return RunFolder(str(quickstart.folder / "runs" / "quickstart"))


@pytest.fixture(scope="module")
def quickstart_page(quickstart_run):
    cluster = ClusterTable(workers=1)
    train(quickstart_run, TrainTable(model="ridge", protocol="cv", folds=2), cluster, seed=0)
    return quickstart_run.read(write_report(quickstart_run).rpartition("/")[2]).decode()


def test_the_steps_of_a_report_are_shown_where_they_are_asked_for(quickstart_run, capsys):
    write_report(quickstart_run)
    assert capsys.readouterr().err == ""
    write_report(quickstart_run, progress=partial(Progress, announced=True))
    first, last = capsys.readouterr().err.splitlines()
    assert first == "report: 0 of 6 steps"
    assert last.startswith("report: 6 of 6 steps, ")


def report_of(folder):
    write_report(folder)
    return Page(folder.read("report.html").decode())


def test_the_page_refers_to_nothing_outside_itself(quickstart_page):
    page = Page(quickstart_page)
    assert page.addresses == ["data:,"]
    assert not re.search(r"@import|url\(", " ".join(page.styles))
    # The scripts are in it: Bokeh's own, and the one that draws.
    assert quickstart_page.count("<script") >= 2
    assert len(quickstart_page) > 500_000


def test_the_page_says_what_was_run(quickstart_page, quickstart_run):
    text = Page(quickstart_page).text
    for fact in ("graphs embedded 4,991", "rows rejected 8", "reference points N 16", "coordinates d 20", "vector 320"):
        assert fact in text
    assert "all 4,999 embedded 4,991 rejected: RDKit cannot parse the SMILES" in text
    assert "Transport plans: 4,991 exact." in text
    assert "scikit-learn" in text
    assert " ".join(quickstart_run.job_toml().split()) in text


def test_every_plot_is_there(quickstart_page):
    assert Page(quickstart_page).titles == [
        "Map of the embeddings",
        "Sizes",
        "Transport costs",
        "Variance explained",
        "Points and reference",
        "Seconds a stage",
        "ridge, cv",
        "ridge: predictions",
    ]


def test_the_ids_of_the_graphs_on_the_map_are_in_the_page(quickstart_page, quickstart_run):
    start = quickstart_page.index("docs_json")
    assert all(
        f'"{graph_id}"' in quickstart_page[start:] for graph_id in read_embeddings(quickstart_run.url).graph_id[::200]
    )


def test_the_map_is_the_plane_of_the_first_two_components(quickstart_run):
    content = read_content(quickstart_run)
    embeddings = read_embeddings(quickstart_run.url)
    pca = PCA(2).fit(embeddings.X.astype(np.float64))
    places = pca.transform(embeddings.X.astype(np.float64))
    signs = np.sign((places * content.graph_map.places).sum(axis=0))
    np.testing.assert_allclose(content.graph_map.places * signs, places, atol=1e-3 * np.abs(places).max())
    np.testing.assert_allclose(content.graph_map.explained, pca.explained_variance_ratio_, rtol=1e-3)
    assert content.graph_map.rows.column("graph_id").to_pylist() == embeddings.graph_id.tolist()
    assert np.array_equal(content.num_nodes, embeddings.num_nodes)


def test_distances_are_compared_with_wasserstein_distances_of_pairs_of_graphs(quickstart_page, quickstart_run):
    content = read_content(quickstart_run)
    pairs = content.approximation.pairs
    assert len(np.unique(pairs, axis=0)) == 300
    assert (pairs[:, 0] < pairs[:, 1]).all()
    embeddings = read_embeddings(quickstart_run.url)
    distances = np.linalg.norm(embeddings.X[pairs[:, 0]] - embeddings.X[pairs[:, 1]], axis=1)
    error = np.abs(distances / content.approximation.wasserstein - 1)[content.approximation.apart].mean()
    assert f"off the exact 2-Wasserstein distance by {error:.1%} on average" in quickstart_page
    assert "broken by 0 pairs" in quickstart_page


def test_the_components_kept_explain_what_the_model_says(quickstart_run):
    content = read_content(quickstart_run)
    projection = RunRows.open(quickstart_run.url).model.points.projection
    assert content.variance.shares.shape == (20,)
    assert content.variance.shares.sum() * projection.total_variance == pytest.approx(projection.variances.sum())


def test_points_without_a_projection_are_shown_in_components_of_their_own(embedded_run, embedded):
    folder = RunFolder(embedded_run("mutag"))
    model = embedded("mutag")
    rows = RunRows.open(folder.url)
    points = rows.points(np.arange(rows.n_rows)).points
    axes = PCA(2).fit(points)
    from wegl_dask.report import content

    found = content._points(folder, rows)
    assert found.n_graphs == rows.n_rows
    distances = np.linalg.norm(axes.transform(model.reference), axis=1)
    np.testing.assert_allclose(np.linalg.norm(found.reference, axis=1), distances, rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (1, 1), (5, 3)])
def test_components_are_found_of_every_shape(shape):
    vectors = np.outer(np.arange(1.0, shape[0] + 1), [3.0, 0.0, 4.0, 0.0][: shape[1]])
    left, singular, right = _leading_components(vectors)
    assert (left.shape, singular.shape, right.shape) == ((shape[0], 2), (2,), (2, shape[1]))
    # Of one column that is scaled, the length is the product of both lengths.
    np.testing.assert_allclose(singular, [np.linalg.norm(vectors), 0], atol=1e-12)
    np.testing.assert_allclose(left * singular @ right, vectors, atol=1e-12)


def test_axes_of_a_point_alone_are_orthonormal():
    axes = _leading_components(np.zeros((1, 4)))[2]
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-12)


@pytest.mark.parametrize(
    ("smiles", "settings", "plots"),
    [
        (["C"], [], 4),
        (["CCO", "C"], ["reference.points=1", "projection.components=1"], 4),
        (["CCO", "CCCC", "CC(C)O"], ["reference.points=1", "projection.components=1"], 5),
        (["CCO"] * 5, ["reference.points=1"], 5),
    ],
)
def test_a_run_of_any_shape_has_a_page(smiles, settings, plots, tmp_path, dask_client):
    (tmp_path / "a.csv").write_text("\n".join(["smiles", *smiles, ""]))
    job = f'[source]\nkind = "smiles"\npath = "{tmp_path}/a.csv"\nsmiles_column = "smiles"\n'
    folder = RunFolder(str(tmp_path / "run"))
    settings = [*settings, f"output.path={folder.url}"]
    run_job(JobSpec.from_toml(job, settings), dask_client)
    page = report_of(folder)
    assert f"graphs embedded {len(smiles)}" in page.text
    assert len([title for title in page.titles if title]) == plots


def test_a_sample_is_spread_over_all_rows():
    chosen = spread(1_000_003, 100)
    assert (chosen[0], chosen[-1], len(chosen)) == (0, 1_000_002, 100)
    assert np.diff(chosen).max() - np.diff(chosen).min() <= 1


def test_a_report_needs_bokeh(monkeypatch, quickstart_run):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"wegl-dask\[report\]"):
        write_report(quickstart_run)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(WeglError, match=r"not a run folder"):
        write_report(RunFolder(str(tmp_path)))


def test_a_run_without_records_is_refused(make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    folder.remove("records/embed-00000.json")
    with pytest.raises(WeglError, match="no whole record of its embeddings"):
        write_report(folder)


@pytest.mark.parametrize(("content", "message"), [(b"a = [", "is not TOML"), (b"a = 1", "unknown key a")])
def test_a_damaged_job_file_is_named(content, message, make_problem, write_problem):
    folder = write_problem(make_problem("binary"))
    folder.write("job.toml", content)
    with pytest.raises(WeglError, match=rf"{re.escape(folder.location('job.toml'))}.*{message}"):
        write_report(folder)


# Training


@pytest.fixture
def trained_run(make_problem, write_problem, monkeypatch):
    """A run with labels and no model of the embedding, on which an SVM was trained."""
    monkeypatch.setattr(svm, "PENALTIES", (0.1, 1.0))

    def make(kind, protocol, **options):
        folder = write_problem(make_problem(kind, split=protocol == "split", **options), job='name = "a < b"\n')
        train(folder, TrainTable(model="svm-linear", protocol=protocol, folds=2), ClusterTable(workers=1), seed=0)
        folder.unmark_success()
        manifest = {"stage_seconds": {"embed": 1.5}, "work": {}, "versions": {"numpy": "2"}, "summary": {}}
        folder.write_manifest(folder.records(), **manifest)
        folder.remove("model/model.json")
        folder.mark_success()
        return folder

    return make


@pytest.mark.parametrize(
    ("kind", "protocol", "titles"),
    [
        ("binary", "split", ["svm-linear, split", "ROC curves", "svm-linear: confusion"]),
        ("binary", "cv", ["svm-linear, cv", "ROC curves", "svm-linear: confusion"]),
        ("multiclass", "cv", ["svm-linear, cv", "svm-linear: confusion"]),
        ("regression", "split", ["svm-linear, split", "svm-linear: predictions"]),
    ],
)
def test_a_trained_model_is_shown_by_its_kind(kind, protocol, titles, trained_run):
    page = report_of(trained_run(kind, protocol, unknown=3))
    assert page.titles[-len(titles) :] == titles
    assert ("test" if protocol == "split" else "nested") in page.text
    assert "changed since" not in page.text


def test_the_curve_of_folds_is_their_mean_whatever_the_scale_of_their_scores(trained_run):
    rng = np.random.default_rng(0)
    part, y = np.repeat(np.arange(10), 200), rng.integers(0, 2, 2000)
    scores = (y + rng.normal(size=2000)) * np.where(part % 2, 100, 1) + 5 * (part % 3)
    (trained,) = read_content(trained_run("binary", "cv")).trained
    model = replace(trained, graph_id=[], part=part.astype(object), Y=y[:, None].astype(float), scores=scores[:, None])
    areas = [roc_auc_score(y[part == fold], scores[part == fold]) for fold in range(10)]
    assert roc_auc_score(y, scores) < np.mean(areas) - 0.02
    curve = roc_curves([model]).renderers[-1].data_source.data
    assert np.trapezoid(curve["y"], curve["x"]) == pytest.approx(np.mean(areas), abs=0.003)
    assert (curve["x"][0], curve["y"][0], curve["x"][-1], curve["y"][-1]) == (0, 0, 1, 1)


def test_there_is_no_curve_of_folds_that_have_one_class_each(trained_run):
    """Their scores have scales of their own: together they would make a curve of the folds and not of the model."""
    (trained,) = read_content(trained_run("binary", "cv")).trained
    part, y = np.repeat(np.arange(4), 50), np.repeat([0.0, 1.0, 0.0, 1.0], 50)
    scores = np.linspace(0, 1, 200)
    model = replace(trained, graph_id=[], part=part.astype(object), Y=y[:, None], scores=scores[:, None])
    assert roc_curves([model]) is None


def test_pairs_of_large_graphs_are_left_out_and_counted(quickstart_run, monkeypatch):
    whole = read_content(quickstart_run).approximation
    sizes = read_embeddings(quickstart_run.url).num_nodes[whole.pairs].prod(axis=1)
    monkeypatch.setattr(report_content, "PAIR_ENTRIES", int(np.median(sizes)))
    some = read_content(quickstart_run)
    small = sizes <= np.median(sizes)
    np.testing.assert_array_equal(some.approximation.pairs, whole.pairs[small])
    np.testing.assert_array_equal(some.approximation.wasserstein, whole.wasserstein[small])
    assert some.n_large_pairs == 300 - small.sum() > 0
    assert f"{some.n_large_pairs} pairs of large graphs were left out" in report_of(quickstart_run).text
    monkeypatch.setattr(report_content, "PAIR_NODES", 0)
    assert read_content(quickstart_run).approximation is None
    assert "300 pairs of large graphs were left out" in report_of(quickstart_run).text


def test_a_run_that_has_not_kept_its_graphs_has_a_report_whatever_lies_in_their_folder(quickstart_run, tmp_path):
    folder = RunFolder(str(shutil.copytree(quickstart_run.url, tmp_path / "run")))
    for name in folder.listing("graphs"):
        folder.remove(f"graphs/{name}")
    folder.write("graphs/.DS_Store", b"")
    content = read_content(folder)
    assert content.approximation is None
    assert content.graph_map is not None


def test_wide_vectors_have_fewer_graphs_on_the_map(quickstart_run, monkeypatch):
    content = read_content(quickstart_run)
    monkeypatch.setattr(report_content, "MAP_BYTES", 8 * content.n_points * content.dimension * 17)
    assert len(read_content(quickstart_run).graph_map.places) == 17


def test_a_model_of_several_tasks_has_the_mean_of_their_curves(trained_run):
    folder = trained_run("binary", "split", n_tasks=2, n=100, unknown=5)
    page = report_of(folder)
    assert page.titles[-2:] == ["svm-linear, split", "ROC curves"]
    (model,) = read_content(folder).trained
    curve = roc_curves([model]).renderers[-1].data_source.data
    areas = []
    for y, scores in zip(model.Y[model.measured].T, model.scores[model.measured].T, strict=True):
        known = ~np.isnan(y)
        areas.append(roc_auc_score(y[known], scores[known]))
    assert np.trapezoid(curve["y"], curve["x"]) == pytest.approx(np.mean(areas), abs=0.003)
    assert f"{np.mean(areas):#.4g}" in page.text
    for task, area in enumerate(areas):
        assert re.search(rf"test, t{task} {area:#.4g} ", page.text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda by_task: {"t0": by_task["t0"]}, f"{METRICS} is damaged: .*the results by task"),
        (lambda by_task: {"t0": by_task["t0"], "t1": {}}, f"{METRICS} is damaged: .*the results are not"),
        (
            lambda by_task: by_task | {"t0": by_task["t0"] | {"rest": by_task["t0"]["test"]}},
            f"{METRICS} is damaged: .*the results of task 't0' are of other parts",
        ),
        (
            lambda by_task: {"t0": by_task["t1"], "t1": by_task["t0"]},
            f"{PREDICTIONS} is not of this training: .*'t0' than",
        ),
    ],
)
def test_results_of_tasks_that_are_not_theirs_are_named(change, message, trained_run):
    folder = trained_run("binary", "split", n_tasks=2, n=100, unknown=5)
    found = json.loads(folder.read(METRICS))
    folder.write(METRICS, json.dumps(found | {"results_by_task": change(found["results_by_task"])}).encode())
    with pytest.raises(WeglError, match=f"{message}.*Train the model again$"):
        write_report(folder)


def test_the_table_of_a_model_has_a_row_for_each_metric(trained_run):
    text = report_of(trained_run("multiclass", "cv")).text
    assert re.search(r"best configuration nested accuracy [\d.]+ ± [\d.]+ [\d.]+ ± [\d.]+ ", text)


def test_a_model_of_other_embeddings_is_told_apart(trained_run):
    folder = trained_run("binary", "cv")
    metrics = folder.read("train/svm-linear/metrics.json").decode()
    folder.write("train/svm-linear/metrics.json", re.sub(r'"data": "\w+"', '"data": "0"', metrics).encode())
    page = report_of(folder)
    assert "changed since" in page.text
    assert page.titles[-2:] == ["ROC curves", "svm-linear (of earlier embeddings): confusion"]
    assert (
        "svm-linear (of earlier embeddings)" in roc_curves(read_content(folder).trained).legend[0].items[0].label.value
    )


def test_text_of_the_job_is_not_taken_for_html(trained_run):
    folder = trained_run("binary", "cv")
    write_report(folder)
    assert "<h1>a &lt; b</h1>" in folder.read("report.html").decode()
    assert "a < b" in report_of(folder).text


# Damaged results


def _with_summary(found, result, **values):
    """Alter the mean or the deviation of a metric."""
    results = found["results"]
    summary = results[result]["accuracy"] | values
    return found | {"results": results | {result: results[result] | {"accuracy": summary}}}


RIDGE = TrainTable(model="ridge", protocol="cv", folds=2)


@pytest.mark.parametrize("look", [read_content, lambda folder: train(folder, RIDGE, ClusterTable(workers=1), seed=0)])
@pytest.mark.parametrize(
    "change", [lambda table: table.slice(0, 40), lambda table: table.set_column(*_reversed(table, "label"))]
)
def test_a_part_that_was_altered_is_no_part_of_the_run(look, change, make_problem, write_problem):
    folder = write_problem(make_problem("regression"))
    path = Path(folder.location("data/part-00000.parquet"))
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(WeglError, match=r"data/part-00000\.parquet is not what its record says: run the job again"):
        look(folder)


def _reversed(table, name):
    place = table.schema.get_field_index(name)
    return place, table.schema.field(place), table.column(name).take(list(range(len(table)))[::-1])


@pytest.mark.parametrize(
    "change",
    [
        lambda _: [],
        lambda _: None,
        lambda _: {},
        lambda _: "x",
        lambda _: {"model": "svm-linear"},
        lambda found: found | {"model": "mlp"},
        lambda found: found | {"results": {}},
        lambda found: found | {"results": {"nested": {}}},
        lambda found: found | {"results": {"nested": {"accuracy": {"mean": 1, "std": 0, "values": []}}}},
        lambda found: _with_summary(found, "nested", mean=0.5),
        lambda found: _with_summary(found, "best configuration", mean=0.5),
        lambda found: _with_summary(found, "best configuration", std=0.5),
        lambda found: _with_summary(found, "best configuration", std=None),
        lambda found: found | {"kind": "multiclass"},
        lambda found: found | {"kind": "none"},
        lambda found: found | {"protocol": "split"},
        lambda found: found | {"class_names": ["a", 1]},
        lambda found: found | {"threshold": float("nan")},
        lambda found: found | {"chosen": None},
        lambda found: found | {"notes": "x"},
        lambda found: {key: found[key] for key in found if key != "data"},
    ],
)
def test_results_that_a_training_does_not_write_are_named(change, trained_run):
    folder = trained_run("binary", "cv")
    folder.write(METRICS, json.dumps(change(json.loads(folder.read(METRICS)))).encode())
    with pytest.raises(WeglError, match=rf"{METRICS} is damaged: .*[Tt]rain the model again$"):
        write_report(folder)


def test_results_that_are_nested_too_deeply_are_named(trained_run):
    folder = trained_run("binary", "cv")
    folder.write(METRICS, b"[" * 100_000)
    with pytest.raises(WeglError, match=f"{METRICS} is damaged"):
        write_report(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.rename_columns(["graph_id", "fold", "y", "z"]), "no column score of double"),
        (lambda found: found.drop_columns(["graph_id"]), "no column graph_id of string"),
        (lambda found: found.append_column("y", found["y"]), "no column y of int64"),
        (lambda found: found.set_column(2, "y", found["score"]), "no column y of int64"),
        (lambda found: found.set_column(2, "y", pa.array([2] * len(found))), "no class"),
        (lambda found: found.set_column(3, "score", pa.nulls(len(found), pa.float64())), "no finite number"),
        (lambda found: found.set_column(3, "score", pa.array(np.arange(len(found)) / 7)), "other results"),
        (lambda found: found.slice(0, 0), "other results"),
    ],
)
def test_predictions_of_another_run_are_named(change, message, trained_run):
    folder = trained_run("binary", "cv", unknown=3)
    replace_predictions(folder, change)
    with pytest.raises(WeglError, match=rf"{PREDICTIONS} is not of this training: .*{message}.*Train the model again$"):
        write_report(folder)


@pytest.mark.parametrize("change", [lambda _: b"x", lambda _: b"", lambda content: content[: len(content) // 2]])
def test_predictions_that_are_no_parquet_are_named(change, trained_run):
    folder = trained_run("binary", "cv")
    folder.write(PREDICTIONS, change(folder.read(PREDICTIONS)))
    with pytest.raises(WeglError, match=rf"(?s){PREDICTIONS} is damaged: .*Train the model again$"):
        write_report(folder)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({}, "versions"),
        ({"stages": None}, "stages"),
        ({"versions": ["numpy"]}, "versions"),
        ({"stages": {"embed": {"seconds": 1.0}}}, "stages.embed.part_seconds"),
        ({"stages": {"embed": {"seconds": "x", "part_seconds": 1.0}}}, "stages.embed.seconds"),
    ],
)
def test_a_manifest_of_something_else_is_named(values, key, trained_run):
    folder = trained_run("binary", "cv")
    whole = {"records": [], **({"versions": {}, "stages": {}} if values else {})}
    folder.write("manifest.json", json.dumps(sealed(whole | values)).encode())
    with pytest.raises(WeglError, match=rf"manifest\.json is damaged: {re.escape(key)}: .*Run the job again$"):
        write_report(folder)


@pytest.mark.parametrize("size", [2, 4])
def test_scores_of_another_number_of_classes_are_named(size, trained_run):
    folder = trained_run("multiclass", "cv")
    scores = pa.array([[0.5] * size] * 60)
    replace_predictions(folder, lambda found: found.set_column(3, "score", scores))
    with pytest.raises(WeglError, match=rf"{PREDICTIONS} is not of this training: the lists in the column score"):
        write_report(folder)


def replace_predictions(folder, change):
    content = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(folder.read(PREDICTIONS)))), content)
    folder.write(PREDICTIONS, content.getvalue())


# Names of classes


def test_names_are_shown_so_that_each_is_told_from_the_others():
    names = short_names(["a", "", "a", "a (2)", "a", " ", '""', "x" * 10_000, "x" * 9_999])
    cut = f"{'x' * 27}..."
    assert names == ["a", '""', "a (2)", "a (2) (2)", "a (3)", '" "', '"" (2)', cut, f"{cut} (2)"]


def test_a_class_without_a_name_is_not_taken_for_the_other_classes():
    names = ["", "unknown", "other classes", *"abcdefgh"]
    labels = [*range(11), *range(8), 0, None]
    rows = pa.table(
        {
            "graph_id": [str(i) for i in range(len(labels))],
            "label": pa.array(labels, pa.int64()),
            "num_nodes": [3] * len(labels),
            "transport_cost": [0.5] * len(labels),
        }
    )
    graphs = GraphMap(places=np.zeros((len(labels), 2)), explained=(0.0, 0.0), rows=rows)
    plot = graph_map(graphs, LabelSchema("class", class_names=tuple(names)))
    shown = {
        item.label.value: sum(len(each.data_source.data["id"]) for each in item.renderers) for item in plot.legend.items
    }
    common = {'""': 3, "unknown (2)": 2, "other classes (2)": 2, **dict.fromkeys("abcde", 2)}
    assert shown == common | {"other classes": 3, "unknown": 1}


def map_of(places):
    return GraphMap(places=np.asarray(places, dtype=float), explained=(0.0, 0.0), rows=pa.table({}))


def test_the_map_shows_the_many_and_counts_the_few_that_lie_far_out():
    # The quantiles of 1 and 99 per cent of 0, 1, ..., 1000 are 10 and 990.
    line = np.arange(1001.0)
    scattered = np.random.default_rng(0).permutation(1001)
    assert map_section(map_of(np.column_stack([line, line[scattered]]))) == ((-30.0, 1030.0), (-30.0, 1030.0))
    far = line.copy()
    far[-3:] = [1e6, 2e6, -5e6]
    (left, right), (bottom, top) = map_section(graphs := map_of(np.column_stack([far, line[scattered]])))
    low, high = np.quantile(far, [0.01, 0.99])
    assert (left, right) == (2 * low - high, 2 * high - low)
    assert (bottom, top) == (-30.0, 1030.0)
    assert n_outside(graphs) == 3
    assert n_outside(map_of(np.column_stack([line, line]))) == 0


@pytest.mark.parametrize("places", [np.zeros((5, 2)), np.ones((1, 2)), np.column_stack([np.arange(9), np.zeros(9)])])
def test_the_map_of_graphs_in_a_line_or_on_a_spot_has_a_section(places):
    for start, end in map_section(map_of(places)):
        assert start < end
    assert n_outside(map_of(places)) == 0


def test_the_map_of_graphs_that_are_all_alike_but_one_shows_all():
    places = np.zeros((1000, 2))
    places[7] = [5.0, 3.0]
    assert n_outside(map_of(places)) == 0


@pytest.mark.parametrize("n_classes", [3, 300])
def test_the_confusion_matrix_counts_every_graph(n_classes):
    true = np.arange(n_classes).repeat(2)
    predicted = np.where(np.arange(len(true)) % 2, 0, true)
    metrics = {"kind": "multiclass", "protocol": "cv", "class_names": ["same"] * n_classes}
    model = TrainedModel(metrics, ["g"] * len(true), true, true[:, None] * 1.0, np.eye(n_classes)[predicted], True)
    plot = confusion(model)
    cells = plot.renderers[0].data_source.data
    drawn = {(int(y), int(x)): int(count) for y, x, count in zip(cells["y"], cells["x"], cells["count"], strict=True)}
    expected = {(0, 0): 2} | {(i, j): 1 for i in range(1, n_classes) for j in (0, i)}
    assert {pair: count for pair, count in drawn.items() if count} == expected
    assert len(drawn) == (9 if n_classes == 3 else len(expected))
    assert len(set(plot.xaxis.major_label_overrides.values())) == min(n_classes, 12)
