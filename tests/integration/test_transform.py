"""Embedding with a model that is there: transforms, appends, and the estimator beside the job."""

import csv
import itertools
import json
import shutil
import tomllib
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow.parquet as pq
import pytest
import tomli_w
from click.testing import CliRunner

from wegl_dask import WEGL, GraphSchema, appending, read_embeddings
from wegl_dask.appending import append_spec
from wegl_dask.cli import main
from wegl_dask.errors import JobFileError, SourceError, TooManyRejectedError, WeglError
from wegl_dask.molecules import graphs_from_smiles
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run


def with_model(job, model, out):
    """The transform of a job's source: what shapes the embedding is left out."""
    kept = {key: job[key] for key in ("source", "output", "task") if key in job}
    return {**kept, "model": {"path": str(model)}, "output": {**kept["output"], "path": str(out)}}


def vectors_by_id(out):
    found = read_embeddings(out)
    return dict(zip(found.graph_id, found.X, strict=True))


# --- Transform ---


@pytest.mark.parametrize("keep_graphs", [True, False])
def test_the_graphs_of_the_fit_come_out_byte_for_byte(run, mutag_job, molecules_job, same_bytes, keep_graphs, tmp_path):
    for make in (mutag_job, molecules_job):
        job = make(make.__qualname__, output={"keep_graphs": keep_graphs})
        out = job["output"]["path"]
        run(job)
        summary = run(with_model(job, out, f"{out} again"))
        assert same_bytes(out, f"{out} again")
        assert (Path(f"{out} again") / "_SUCCESS").exists()
        assert verify_run(RunFolder(f"{out} again"), deep=True) == []
        assert summary.stage_seconds.keys() == {"scan", "ingest", "embed"}
        again = run(with_model(job, out, f"{out} again"))
        assert (again.parts_made, again.rows) == (0, summary.rows)
    del tmp_path


def test_graphs_cut_otherwise_come_out_equal_to_float32(run, mutag_job, tmp_path):
    job = mutag_job()
    run(job)
    other = with_model(job, tmp_path / "out", tmp_path / "other")
    run({**other, "source": {**job["source"], "nodes_per_shard": 1000}})
    one, two = read_embeddings(tmp_path / "out"), read_embeddings(tmp_path / "other")
    assert two.metadata["model"] == one.metadata["model"]
    np.testing.assert_allclose(two.X, one.X, atol=1e-6)
    assert np.array_equal(two.y, one.y)


def test_a_part_that_is_missing_is_made_again_with_the_model(run, mutag_job, tmp_path, contents):
    job = mutag_job()
    run(job)
    transform = with_model(job, tmp_path / "out", tmp_path / "other")
    run(transform)
    before = contents(tmp_path / "other")
    (tmp_path / "other" / "data" / "part-00003.parquet").unlink()
    (tmp_path / "other" / "model" / "arrays.npz").write_bytes(b"damaged")
    shutil.rmtree(tmp_path / "other" / "graphs")
    assert run(transform).parts_made == 12 + 1 + 1
    assert contents(tmp_path / "other") == before
    assert verify_run(RunFolder(str(tmp_path / "other")), deep=True) == []


@pytest.mark.parametrize("by", ["its job file", "the job"])
def test_a_transform_is_mended_by_its_own_copy_of_a_model_that_has_moved(run, mutag_job, tmp_path, contents, by):
    job = mutag_job()
    run(job)
    transform, other = with_model(job, tmp_path / "out", tmp_path / "other"), tmp_path / "other"
    assert run(transform).notes == (f"model: {tmp_path / 'out'}",)
    before = contents(other)
    (tmp_path / "out").rename(tmp_path / "moved")
    (other / "data" / "part-00003.parquet").unlink()
    again = tomllib.loads((other / "job.toml").read_text()) if by == "its job file" else transform
    summary = run(again)
    assert summary.parts_made == 1
    assert f"model: {other}" in summary.notes
    assert contents(other) == before
    assert verify_run(RunFolder(str(other)), deep=True) == []
    # What would clear the only copy is refused, and so is what the copy may not be of, or is not whole.
    for changed in ({"path": str(tmp_path / "gone")}, {"path": str(tmp_path / "out"), "sha256": "0" * 64}):
        with pytest.raises(WeglError, match=r"model\.json: it is not there"):
            run({**transform, "model": changed})
    with pytest.raises(WeglError, match=r"model\.json: it is not there"):
        run(again, overwrite=True)
    assert contents(other) == before
    (other / "model" / "arrays.npz").write_bytes(b"damaged")
    with pytest.raises(WeglError, match=rf"{tmp_path / 'out'}/model/model\.json: it is not there"):
        run(again)


def test_another_model_in_the_same_place_is_refused(run, mutag_job, tmp_path):
    job = mutag_job()
    run(job)
    transform = with_model(job, tmp_path / "out", tmp_path / "other")
    run(transform)
    run({**job, "seed": 5}, overwrite=True)
    with pytest.raises(JobFileError, match=r"holds the run of a different job \(model.sha256: "):
        run(transform)
    run(transform, overwrite=True)
    with pytest.raises(JobFileError, match=r"model.sha256 = 'abc', and the model in .* is [0-9a-f]{64}: it is another"):
        run({**transform, "model": {"path": str(tmp_path / "out"), "sha256": "abc"}}, overwrite=True)
    with pytest.raises(WeglError, match=r"cannot read .*nowhere/model/model.json: it is not there"):
        run({**transform, "model": {"path": str(tmp_path / "nowhere")}})


def test_elements_that_the_fit_has_not_seen_are_embedded(run, write_rows, folder_job, tmp_path):
    write_rows("a.csv", [("CCO", "1"), ("CCN", "2"), ("c1ccccc1", "3"), ("CC(=O)O", "4")])
    run(folder_job(projection={"components": 2}))
    write_rows("a.csv", [("CCBr", "5"), ("CCO", "1"), ("[Fe+2]", "6")])
    run(with_model(folder_job(), tmp_path / "out", tmp_path / "new"))
    old, new = vectors_by_id(tmp_path / "out"), vectors_by_id(tmp_path / "new")
    assert set(new) == {"5", "1", "6"}
    np.testing.assert_array_equal(new["1"], old["1"])


def test_values_are_numbered_as_in_the_fit_and_others_are_rejected(run, tmp_path):
    def write(folder, **graphs):
        (tmp_path / folder).mkdir()
        for name, atoms in graphs.items():
            graph = nx.path_graph(len(atoms))
            nx.set_node_attributes(graph, dict(enumerate(atoms)), "atom")
            (tmp_path / folder / f"{name}.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))

    write("fit", a="CNO", b="CCO", c="NNC")
    write("new", a="ON", b="CCO", c="OXC", d="NNC")
    job = {
        "source": {"kind": "networkx", "path": str(tmp_path / "fit"), "node_labels": ["atom"]},
        "reference": {"points": 2},
        "output": {"path": str(tmp_path / "out")},
    }
    run(job)
    new = {**job["source"], "path": str(tmp_path / "new")}
    summary = run({**with_model(job, tmp_path / "out", tmp_path / "other"), "source": new})
    assert (summary.rows, summary.rejected) == (3, 1)
    old, found = vectors_by_id(tmp_path / "out"), vectors_by_id(tmp_path / "other")
    assert set(found) == {"a", "b", "d"}
    np.testing.assert_array_equal(found["b"], old["b"])
    np.testing.assert_array_equal(found["d"], old["c"])
    (rejected,) = pq.read_table(tmp_path / "other" / "rejected").to_pylist()
    assert rejected["graph_id"] == "c"
    assert "'X' as 'atom', which is not in the vocabulary of 3 values" in rejected["reason"]
    for path in (tmp_path / "new").iterdir():
        path.write_text(path.read_text().replace('"atom"', '"kind"'))
    with pytest.raises(SourceError, match=r"reads the attributes .*'kind'.*, and the model was fitted to .*'atom'"):
        run({**with_model(job, tmp_path / "out", tmp_path / "third"), "source": {**new, "node_labels": ["kind"]}})
    # In Python it is the same, with the graphs in memory.
    graph = nx.Graph()
    graph.add_nodes_from([(0, {"atom": "C"}), (1, {"atom": "C"}), (2, {"atom": "O"})])
    graph.add_edges_from([(0, 1), (1, 2)])
    np.testing.assert_allclose(WEGL.load(tmp_path / "out").transform([graph])[0], old["b"], atol=1e-6)


def test_labels_of_tu_data_sets_mean_what_they_meant_in_the_fit(run, tmp_path):
    """The labels of the new set begin at 4, those of the fit at 3."""

    def write(name, labels):
        raw = tmp_path / name / "raw"
        raw.mkdir(parents=True)
        nodes = list(itertools.chain(*labels))
        graph_of_node = [i + 1 for i, graph in enumerate(labels) for _ in graph]
        bonds = [(i + 1, i + 2) for i in range(len(nodes) - 1) if graph_of_node[i] == graph_of_node[i + 1]]
        bonds = sorted(bonds + [(b, a) for a, b in bonds])
        for kind, lines in (
            ("A", [f"{a}, {b}" for a, b in bonds]),
            ("graph_indicator", graph_of_node),
            ("node_labels", nodes),
        ):
            (raw / f"{name}_{kind}.txt").write_text("".join(f"{line}\n" for line in lines))

    write("FIT", [[3, 4, 5], [5, 5, 4, 3], [4, 5, 4]])
    write("NEW", [[4, 5, 4], [6, 4, 5], [5, 4]])
    source = {"kind": "tud", "root": str(tmp_path), "name": "FIT"}
    run({"source": source, "reference": {"points": 3}, "output": {"path": str(tmp_path / "out")}})
    summary = run(
        {
            "source": {**source, "name": "NEW"},
            "model": {"path": str(tmp_path / "out")},
            "output": {"path": str(tmp_path / "new")},
        }
    )
    assert (summary.rows, summary.rejected) == (2, 1)
    np.testing.assert_array_equal(vectors_by_id(tmp_path / "new")["1"], vectors_by_id(tmp_path / "out")["3"])
    (rejected,) = pq.read_table(tmp_path / "new" / "rejected").to_pylist()
    assert rejected["reason"] == "node 0, categorical feature 0: category 3 is outside the vocabulary 0 to 2"


def test_other_features_are_refused_before_anything_is_read(run, mutag_job, molecules_job, shared_data, tmp_path):
    job = mutag_job()
    run(job)
    for source, reason in (
        (
            {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "ENZYMES"},
            "have 1 categories and 18 attributes a node, 0 and 0 an edge; the model was fitted to graphs with 1 categories",
        ),
        (molecules_job()["source"], "have 9 categories and 0 attributes a node, 3 and 0 an edge; the model was fitted"),
    ):
        with pytest.raises(SourceError, match=reason):
            run({**with_model(job, tmp_path / "out", tmp_path / "new"), "source": source})
        assert not (tmp_path / "new" / "graphs").exists()
        shutil.rmtree(tmp_path / "new")


def test_numbers_are_not_taken_for_values_of_a_source(run, mutag_job, mutag, tmp_path):
    """A model that was fitted to numbered categories cannot know what the labels of a TU data set are."""
    WEGL(n_points=3, reference="sample").fit(mutag.batch).save(tmp_path / "model")
    job = mutag_job()
    with pytest.raises(
        SourceError, match="numbers categories by its own edge_label_minima, node_label_minima, and what"
    ):
        run(with_model(job, tmp_path / "model", tmp_path / "new"))


def test_shards_are_read_if_their_categories_are_those_of_the_model(run, mutag_job, same_bytes, tmp_path):
    job = mutag_job()
    run(job)
    shards = {"kind": "graph_parquet", "path": str(tmp_path / "out" / "graphs")}
    run({**with_model(job, tmp_path / "out", tmp_path / "new"), "source": shards})
    assert same_bytes(tmp_path / "out", tmp_path / "new", ("data", "graphs", "model"))


def test_the_command_transforms_with_the_source_of_a_job_file(
    command, job_file, run, molecules_job, same_bytes, tmp_path
):
    job = molecules_job()
    run(job)
    path = job_file({**job, "diffusion": {"layers": 1}, "output": {"path": "elsewhere", "dtype": "float32"}})
    done = command("transform", tmp_path / "out", "--source", path, "--output", tmp_path / "new")
    assert done.code == 0, done.err
    assert f"model: {tmp_path / 'out'}" in done.out
    assert same_bytes(tmp_path / "out", tmp_path / "new")
    done = command("run", tmp_path / "new" / "job.toml")
    assert "nothing was computed" in done.out
    done = command("transform", tmp_path / "out", "--source", path, "--set", "diffusion.layers=2")
    assert (done.code, done.out) == (2, "")
    assert "diffusion is the model's where model.path is set" in done.err


def test_check_and_ingest_take_the_model_of_a_job_as_the_run_does(
    command, job_file, run, molecules_job, same_bytes, tmp_path
):
    job = {**molecules_job(), "edges": {"direction": "directed"}}
    run(job)
    path = job_file(with_model(job, tmp_path / "out", tmp_path / "new"))
    done = command("check", path)
    assert f"node features: those of the model in {tmp_path / 'out'}" in done.out
    assert f"output: {tmp_path / 'new'}: a new folder" in done.out
    done = command("ingest", path)
    assert done.code == 0, done.err
    assert same_bytes(tmp_path / "out", tmp_path / "new", ("graphs",))
    assert "a run of this job that has not finished" in command("check", path).out
    made = (tmp_path / "new" / "graphs" / "part-00000.parquet").stat().st_mtime_ns
    done = command("run", path)
    assert done.code == 0, done.err
    assert (tmp_path / "new" / "graphs" / "part-00000.parquet").stat().st_mtime_ns == made
    assert same_bytes(tmp_path / "out", tmp_path / "new")
    assert "a finished run of this job" in command("check", path).out
    path = job_file(with_model(job, tmp_path / "nowhere", tmp_path / "newer"))
    for name in ("check", "ingest", "run"):
        done = command(name, path)
        assert done.code != 0
        assert f"{tmp_path / 'nowhere'}" in done.err


def test_check_refuses_graphs_that_are_not_those_of_the_model(
    command, job_file, run, molecules_job, mutag_job, tmp_path
):
    run(molecules_job())
    job = with_model(mutag_job(), tmp_path / "out", tmp_path / "new")
    assert "the model was fitted to graphs with 9 categories" in command("check", job_file(job)).err


def test_an_append_to_a_folder_whose_job_names_no_output_is_refused(tmp_path):
    (tmp_path / "job.toml").write_text('name = "somebody else\'s"\n')
    with pytest.raises(JobFileError, match=r"job\.toml has no table \[output\]"):
        append_spec(str(tmp_path), None, ())


# --- The estimator beside the job ---


@pytest.mark.parametrize("reference", ["kmeans", "sample", "normal"])
def test_a_fit_in_python_is_that_of_the_job(run, mutag, mutag_job, reference, tmp_path):
    run(mutag_job(projection={"components": 5}, reference={"kind": reference}, nodes={"virtual_node": True}))
    job = WEGL.load(tmp_path / "out")
    own = WEGL(n_components=5, reference=reference, virtual_node=True).fit(mutag.batch)
    np.testing.assert_allclose(own.mean_, job.mean_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(own.scale_, job.scale_, rtol=1e-9)
    np.testing.assert_allclose(own.components_, job.components_, atol=1e-9)
    chosen = {"node_features": ["labels"], "edge_features": "labels", "schema": job.schema_}
    assert own.get_params() | chosen == job.get_params()
    assert (own.n_points_, own.n_nodes_seen_) == (job.n_points_, job.n_nodes_seen_)
    if reference == "kmeans":
        points, _ = own.model_.points.evaluate(mutag.batch)
        squares = [
            np.square(points[:, None] - r).sum(axis=2).min(axis=1).sum() for r in (own.reference_, job.reference_)
        ]
        assert squares[0] == pytest.approx(squares[1], rel=0.03)
    elif reference == "sample":
        # Nodes are drawn by their number; those of equal embeddings are one.
        np.testing.assert_allclose(own.reference_, job.reference_, atol=1e-6)


def test_a_model_of_a_job_embeds_in_python_as_the_job_did(run, mutag, mutag_job, tmp_path):
    run(mutag_job(projection={"components": 5}))
    expected = read_embeddings(tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "out" / "model", f"file://{tmp_path}/out"):
        vectors, costs = WEGL.load(path).transform(mutag.batch, return_cost=True)
        np.testing.assert_allclose(vectors, expected.X, atol=1e-6)
        np.testing.assert_allclose(costs, expected.transport_cost, rtol=1e-9)


def test_a_model_of_python_embeds_on_the_cluster(run, rows, molecules_job, tmp_path):
    graphs, rejected = graphs_from_smiles([smiles for smiles, _ in rows])
    wegl = WEGL(3, n_components=7, reference=np.random.default_rng(0).standard_normal((4, 7)), virtual_node=True)
    expected = wegl.fit_transform(graphs)
    wegl.save(tmp_path / "model")
    summary = run(with_model(molecules_job(), tmp_path / "model", tmp_path / "new"))
    assert (summary.rows, summary.rejected) == (len(expected), len(rejected))
    np.testing.assert_allclose(read_embeddings(tmp_path / "new").X, expected, atol=1e-5)
    assert WEGL.load(tmp_path / "new").schema_ == graphs.schema


# --- Append ---


def test_new_files_and_new_rows_are_embedded_and_nothing_else(
    run, rows, write_rows, folder_job, append, contents, tmp_path
):
    write_rows("b.csv", rows[:150])
    write_rows("c.csv", rows[150:250])
    run(folder_job())
    before = contents(tmp_path / "out")
    write_rows("b.csv", rows[250:270], mode="a")
    write_rows("a.csv", rows[270:330])
    summary = append(tmp_path / "out")
    assert summary.rows + summary.rejected == 80
    after = contents(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []
    # As a transform of all rows has it.
    run(with_model(folder_job(), tmp_path / "out", tmp_path / "whole"))
    appended, whole = vectors_by_id(tmp_path / "out"), vectors_by_id(tmp_path / "whole")
    assert appended.keys() == whole.keys()
    np.testing.assert_allclose([appended[i] for i in whole], list(whole.values()), atol=1e-6)
    places = pq.read_table(tmp_path / "out" / "data", columns=["source_file", "source_row"]).to_pylist()
    assert len({tuple(place.values()) for place in places}) == len(places)
    nothing = append(tmp_path / "out")
    assert (nothing.rows, nothing.parts_made, nothing.notes) == (0, 0, ("no row is new",))
    assert contents(tmp_path / "out") == after
    manifest = RunFolder(str(tmp_path / "out")).read_manifest()
    assert manifest["summary"]["rows"] == len(appended)


def test_appends_follow_one_another(run, rows, write_rows, folder_job, append, tmp_path):
    write_rows("a.csv", rows[:50])
    run(folder_job())
    for night in range(3):
        write_rows(f"night-{night}.csv", rows[50 + 10 * night : 60 + 10 * night])
        write_rows("a.csv", rows[100 + 3 * night : 103 + 3 * night], mode="a")
        summary = append(tmp_path / "out")
        assert summary.rows + summary.rejected == 13
    assert [record.index for record in RunFolder(str(tmp_path / "out")).records("plan")] == [0, 1, 2, 3]
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


def test_a_file_that_is_written_anew_without_a_new_id_leaves_nothing_behind(
    run, rows, write_rows, folder_job, append, tmp_path
):
    write_rows("monday.csv", rows[:80])
    run(folder_job(source={"path": str(tmp_path / "in" / "monday.csv")}))

    def files():
        return {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}

    before = files()
    write_rows("tuesday.csv", rows[10:60][::-1])
    for _ in range(2):
        summary = append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'tuesday.csv'}", key="id")
        assert (summary.rows, summary.rejected, summary.notes) == (0, 0, ("no row is new",))
        assert files() == before
    assert verify_run(RunFolder(str(tmp_path / "out"))) == []


def test_files_that_are_written_anew_are_read_by_id(run, rows, write_rows, folder_job, append, tmp_path):
    write_rows("monday.csv", rows[:80])
    run(folder_job(source={"path": str(tmp_path / "in" / "monday.csv")}))
    write_rows("tuesday.csv", [*rows[60:100], *rows[:40]][::-1])
    summary = append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'tuesday.csv'}", key="id")
    assert summary.rows + summary.rejected == 20
    ids = [record["graph_id"] for record in pq.read_table(tmp_path / "out" / "data", columns=["graph_id"]).to_pylist()]
    rejected = tmp_path / "out" / "rejected"
    ids += [row["graph_id"] for row in pq.read_table(rejected).to_pylist()] if rejected.exists() else []
    assert sorted(ids) == sorted(name for _, name in rows[:100])
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []
    write_rows("tuesday.csv", rows[200:290])
    with pytest.raises(
        SourceError, match=r"tuesday.csv, row \d+ \(id .*\) is new, and a row of that file and number was emb"
    ):
        append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'tuesday.csv'}", key="id")


@pytest.mark.parametrize("how", ["row", "order", "shorter"])
def test_a_file_that_has_changed_is_refused_and_the_run_stays_as_it_was(
    run, rows, write_rows, folder_job, append, contents, written_at, how, tmp_path
):
    write_rows("a.csv", rows[:100])
    run(folder_job())
    before = contents(tmp_path / "out"), written_at(tmp_path / "out")
    changed = {"row": [("CCCC", "new"), *rows[1:100]], "order": rows[:100][::-1], "shorter": rows[1:100]}[how]
    write_rows("a.csv", [*changed, *rows[100:120]])
    with pytest.raises(SourceError, match=r"row .* of .*a.csv .* has changed since it was embedded: it .* use --by-id"):
        append(tmp_path / "out")
    assert (contents(tmp_path / "out"), written_at(tmp_path / "out")) == before
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []
    write_rows("a.csv", rows[:120])
    summary = append(tmp_path / "out")
    assert summary.rows + summary.rejected == 20


def test_an_append_of_rows_that_are_all_bad_is_refused(run, rows, write_rows, folder_job, append, tmp_path):
    write_rows("a.csv", rows[:60])
    run(folder_job())
    write_rows("b.csv", [("no molecule", "x"), ("C1CC", "y"), ("CCO", "z")])
    with pytest.raises(TooManyRejectedError, match="2 of 3 rows were rejected"):
        append(tmp_path / "out")
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []
    summary = append(tmp_path / "out", "source.max_rejected_fraction=1")
    assert (summary.rows, summary.rejected) == (1, 2)
    assert append(tmp_path / "out").rows == 0


@pytest.mark.parametrize("stage", ["ingest", "embed", "finish"])
def test_an_append_that_was_killed_goes_on(
    run, rows, write_rows, folder_job, append, contents, monkeypatch, stage, tmp_path
):
    write_rows("a.csv", rows[:100])
    run(folder_job())
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    write_rows("b.csv", rows[100:200])
    append(tmp_path / "other")

    class KilledError(Exception):
        pass

    original = getattr(appending, stage)

    def kill(*arguments, **options):
        if stage == "embed":
            original(*arguments, **options)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(appending, stage, kill)
        with pytest.raises(KilledError):
            append(tmp_path / "out")
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    assert "append again" in CliRunner().invoke(main, ["status", str(tmp_path / "out")]).stdout
    append(tmp_path / "out")
    for subfolder in ("data", "graphs", "rejected", "model"):
        assert contents(tmp_path / "out", subfolder) == contents(tmp_path / "other", subfolder)
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


def test_what_a_killed_append_has_made_is_kept_where_further_files_came(
    run, rows, write_rows, folder_job, append, monkeypatch, tmp_path
):
    write_rows("a.csv", rows[:50])
    run(folder_job())
    write_rows("b.csv", rows[50:150])
    original = appending.embed
    with monkeypatch.context() as patched:
        patched.setattr(appending, "embed", lambda *arguments: original(*arguments) and (1 / 0))
        with pytest.raises(ZeroDivisionError):
            append(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").iterdir()}
    write_rows("c.csv", rows[150:170])
    summary = append(tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(read_embeddings(tmp_path / "out").X) == len(vectors_by_id(tmp_path / "out"))
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []
    assert summary.rejected + summary.rows >= 20


def test_rows_of_an_earlier_run_in_the_folder_are_not_known(run, rows, write_rows, folder_job, append, tmp_path):
    """The workers of an existing scheduler outlive a job, and with them what they have read of its folder."""
    job = folder_job(source={"path": str(tmp_path / "in" / "a.csv")})
    write_rows("a.csv", rows[:20])
    run(job)
    write_rows("b.csv", rows[20:30])
    append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'b.csv'}", key="id")
    write_rows("a.csv", [[smiles, f"other {row_id}"] for smiles, row_id in rows[:20]])
    run(job, overwrite=True)
    write_rows("c.csv", rows[:20])
    before = len(read_embeddings(tmp_path / "out").X)
    append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'c.csv'}", key="id")
    assert len(read_embeddings(tmp_path / "out").X) == 2 * before


def test_attributes_that_are_not_used_may_be_nan_in_what_is_appended_to(run, append, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()

    def write(number, x):
        nodes = [{"id": k, "type": "CNO"[(k + number) % 3], "x": x} for k in range(4 + number % 3)]
        links = [{"source": k, "target": k + 1} for k in range(3)]
        graph = {"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "links": links}
        (folder / f"g{number:03d}.json").write_text(json.dumps(graph))

    for number in range(6):
        write(number, float("nan") if number == 2 else 1.5)
    source = {"kind": "networkx", "path": f"{folder}/", "node_labels": ["type"], "node_attributes": ["x"]}
    run({"source": source, "reference": {"points": 3}, "output": {"path": str(tmp_path / "out")}})
    write(6, 1.0)
    assert append(tmp_path / "out").rows == 1


def test_what_came_after_a_kill_is_appended_too(run, rows, write_rows, folder_job, append, monkeypatch, tmp_path):
    write_rows("b.csv", rows[:60])
    run(folder_job())
    write_rows("c.csv", rows[60:160])
    with monkeypatch.context() as patched:
        patched.setattr(appending, "embed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            append(tmp_path / "out")
    write_rows("a.csv", rows[160:200])
    summary = append(tmp_path / "out")
    assert summary.rows + summary.rejected == 140
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


def test_the_job_itself_keeps_what_was_appended(run, rows, write_rows, folder_job, append, contents, tmp_path):
    write_rows("a.csv", rows[:100])
    job = folder_job(source={"path": str(tmp_path / "in" / "a.csv")})
    run(job)
    write_rows("b.csv", rows[100:150])
    append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'b.csv'}")
    before = contents(tmp_path / "out")
    in_all, n_parts = len(read_embeddings(tmp_path / "out").X), len([*(tmp_path / "out" / "data").iterdir()])
    assert f"in all, with what was appended: {in_all} graphs in {n_parts} parts" in run(job).notes
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "data" / "part-00001.parquet").write_bytes(b"damaged")
    run(job)
    assert contents(tmp_path / "out") == before
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []
    assert (
        len(read_embeddings(tmp_path / "out").X) == RunFolder(str(tmp_path / "out")).read_manifest()["summary"]["rows"]
    )


@pytest.mark.parametrize("keep_graphs", [True, False])
@pytest.mark.parametrize("column", ["active", "fold", "vendor"])
def test_a_row_of_which_anything_else_has_changed_is_refused(
    run, rows, append, folder_job, column, keep_graphs, tmp_path
):
    def write(n_rows, **changed):
        table = [
            {"smiles": smiles, "id": name, "active": i % 2, "fold": "train", "vendor": "a"}
            for i, (smiles, name) in enumerate(rows[:n_rows])
        ]
        table[5] |= changed
        (tmp_path / "in").mkdir(exist_ok=True)
        with (tmp_path / "in" / "a.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, table[0])
            writer.writeheader()
            writer.writerows(table)

    write(60)
    columns = {"targets": ["active"], "split_column": "fold", "extra_columns": ["vendor"]}
    run(folder_job(source=columns, output={"keep_graphs": keep_graphs}))
    write(65, **{column: {"active": 0, "fold": "test", "vendor": "b"}[column]})
    name = {"active": "label 1", "fold": "split 'train'", "vendor": "vendor 'a'"}[column]
    with pytest.raises(
        SourceError, match=rf"row 5 of .*a.csv .* has changed since it was embedded: it had the {name}\. "
    ):
        append(tmp_path / "out")
    write(65)
    summary = append(tmp_path / "out")
    assert summary.rows + summary.rejected == 5


@pytest.mark.parametrize("key", ["row", "id"])
@pytest.mark.parametrize("folder", ["data", "graphs"])
def test_nothing_is_appended_to_parts_that_were_altered(
    run, rows, write_rows, folder_job, append, folder, key, tmp_path
):
    write_rows("a.csv", rows[:60])
    write_rows("b.csv", rows[60:120])
    run(folder_job(source={"nodes_per_shard": 700}))
    out = tmp_path / "out"
    part = out / folder / "part-00000.parquet"
    whole = part.read_bytes()
    shutil.copy(out / folder / "part-00001.parquet", part)
    for n_new in (0, 10):
        write_rows("c.csv", rows[120 : 120 + n_new])
        with pytest.raises(
            WeglError, match=rf"{folder}/part-00000.parquet, or .*, was altered after it was written: run"
        ):
            append(out, key=key)
    part.write_bytes(whole)
    summary = append(out, key=key)
    assert summary.rows + summary.rejected == 10
    assert verify_run(RunFolder(str(out)), deep=True) == []


def test_labels_of_new_rows_are_those_of_the_run(run, append, tmp_path):
    (tmp_path / "in").mkdir()

    def write(name, atoms, **labels):
        graph = nx.path_graph(len(atoms))
        nx.set_node_attributes(graph, dict(enumerate(atoms)), "atom")
        graph.graph |= labels
        (tmp_path / "in" / f"{name}.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))

    for name, atoms, label in (("a", "CNO", 3), ("b", "OOC", 5), ("c", "NCC", 9)):
        write(name, atoms, y=label)
    source = {"kind": "networkx", "path": str(tmp_path / "in"), "label": "y", "node_labels": ["atom"]}
    run(
        {
            "task": "classification",
            "source": source,
            "reference": {"points": 2},
            "output": {"path": str(tmp_path / "out")},
        }
    )
    write("0", "CCN", y=9)
    write("d", "NNO", y=3)
    assert append(tmp_path / "out").rows == 2
    write("e", "CCN", y=7)
    write("f", "ONO", y=5)
    write("g", "OXO", y=5)
    assert append(tmp_path / "out", "source.max_rejected_fraction=1").rejected == 2
    write("h", "C")
    assert append(tmp_path / "out").rows == 1
    found = read_embeddings(tmp_path / "out")
    assert found.labels.class_names == ("3", "5", "9")
    assert found.graph_id.tolist() == ["a", "b", "c", "0", "d", "f", "h"]
    np.testing.assert_array_equal(found.y, [0, 1, 2, 2, 0, 1, np.nan])
    reasons = pq.read_table(tmp_path / "out" / "rejected").column("reason").to_pylist()
    assert ["7 is none of the 3 classes" in reasons[0], "'X' as 'atom'" in reasons[1]] == [True, True]
    write("a", "CNN", y=3)
    write("i", "CO", y=3)
    with pytest.raises(
        SourceError, match=r"row 0 of .*in/a.json \(id a\) has changed since it was embedded: it is another graph now"
    ):
        append(tmp_path / "out")


def test_runs_that_cannot_be_appended_to_are_refused(run, rows, write_rows, folder_job, append, tmp_path, mutag_job):
    with pytest.raises(WeglError, match=r"is not a run folder: it has no job.toml"):
        append(tmp_path / "nowhere")
    write_rows("a.csv", rows[:60])
    run(folder_job())
    with pytest.raises(JobFileError, match=r"would change transport.solver: .*: set keys of source and cluster alone"):
        append(tmp_path / "out", "transport.solver=sinkhorn")
    with pytest.raises(SourceError, match="the model was fitted to graphs with 9 categories"):
        append(tmp_path / "out", job_toml=tomli_w.dumps(mutag_job()))
    write_rows("b.csv", [(*row, "1") for row in rows[60:70]])
    (tmp_path / "in" / "b.csv").write_text((tmp_path / "in" / "b.csv").read_text().replace("smiles,id", "smiles,id,y"))
    with pytest.raises(SourceError, match=r"has labels of kind 'class' .*, and the run has 'none'"):
        append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'b.csv'}", 'source.targets=["y"]')
    with pytest.raises(SourceError, match=r"passes through \['y'\], and the run has \[\]"):
        append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'b.csv'}", 'source.extra_columns=["y"]')
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []
    (tmp_path / "out" / "_SUCCESS").unlink()
    next((tmp_path / "out" / "records").glob("embed-*")).unlink()
    with pytest.raises(WeglError, match="has not finished: run its job again before appending to it"):
        append(tmp_path / "out")


def test_the_command_appends(command, run, rows, write_rows, folder_job, tmp_path):
    write_rows("a.csv", rows[:60])
    run(folder_job())
    write_rows("b.csv", rows[60:90])
    done = command("append", tmp_path / "out")
    assert done.code == 0, done.err
    assert "30 graphs embedded" in done.out
    done = command("append", tmp_path / "out", "--by-id")
    assert "no row is new" in done.out
    done = command("append", tmp_path / "out", "--source", tmp_path / "nothing.toml")
    assert (done.code, done.out) == (2, "")
    assert "cannot read the job file" in done.err


def test_graph_schemas_of_models_are_those_of_their_sources(run, mutag_job, tmp_path):
    run(mutag_job())
    assert WEGL.load(tmp_path / "out").schema_ == GraphSchema((7,), (4,))
