"""Malformed input through the real command: a reject with its reason, or one clear line and an exit code."""

import gzip
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from wegl_dask import scheduler_client
from wegl_dask.cli import main


@pytest.fixture
def wegl(dask_client, job_file):
    """Run ``wegl-dask run`` on a job in this process, with the session's cluster as an existing scheduler."""

    def wegl(values, *arguments):
        address = dask_client.scheduler.address
        job = job_file({**values, "cluster": {"kind": "scheduler", "address": address, **values.get("cluster", {})}})
        result = CliRunner().invoke(main, ["run", str(job), *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.stderr
        lines = [line for line in result.stderr.splitlines() if line.startswith("wegl-dask: ")]
        assert len(lines) == (result.exit_code != 0)
        return SimpleNamespace(code=result.exit_code, line=lines[-1] if lines else "", out=result.stdout)

    return wegl


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def tu_job(tmp_path, out):
    """A job on a TU data set of paths of a few nodes; files given by keyword replace or add to its own."""

    def job(n_graphs=6, tables=None, source=None, **files):
        folder = tmp_path / "tu" / "PATHS"
        folder.mkdir(parents=True)
        sizes = [3 + graph % 3 for graph in range(n_graphs)]
        first = [sum(sizes[:graph]) + 1 for graph in range(n_graphs)]
        steps = [(start + k, start + k + 1) for start, size in zip(first, sizes, strict=True) for k in range(size - 1)]
        content = {
            "A": [f"{s}, {t}\n{t}, {s}" for s, t in steps],
            "graph_indicator": [graph + 1 for graph, size in enumerate(sizes) for _ in range(size)],
            "graph_labels": [graph % 2 for graph in range(n_graphs)],
            **files,
        }
        for name, lines in content.items():
            (folder / f"PATHS_{name}.txt").write_text("".join(f"{line}\n" for line in lines))
        source = {"kind": "tud", "root": str(tmp_path / "tu"), "name": "PATHS", **(source or {})}
        return {"source": source, "reference": {"points": 2}, "output": {"path": str(out)}, **(tables or {})}

    return job


@pytest.fixture
def csv_job(tmp_path, out):
    def job(text, tables=None, **source):
        path = tmp_path / "molecules.csv"
        path.write_text(text)
        return {
            "source": {"kind": "smiles", "path": str(path), **source},
            "output": {"path": str(out)},
            **(tables or {}),
        }

    return job


def rejects(out):
    return {
        row["graph_id"]: row["reason"]
        for path in sorted((out / "rejected").glob("*"))
        for row in pq.read_table(path).to_pylist()
    }


def embedded(out):
    return [name for path in sorted((out / "data").iterdir()) for name in pq.read_table(path)["graph_id"].to_pylist()]


# --- Graphs that cannot be embedded ---


def test_a_graph_without_nodes_is_rejected(wegl, tu_job, out):
    job = tu_job(6, graph_labels=[0, 1, 0, 1, 0, 1, 0])
    assert wegl(job).code == 0
    assert rejects(out) == {"7": "the graph has no nodes"}
    assert embedded(out) == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300"])
def test_node_attributes_that_are_not_finite_are_rejected(value, wegl, tu_job, out):
    attributes = [f"{node * 0.5}, {node % 3}" for node in range(24)]
    attributes[4] = f"1.5, {value}"
    job = tu_job(node_attributes=attributes, node_labels=[node % 2 for node in range(24)])
    assert wegl(job).code == 0
    # The labels are used, where nothing else is said.
    assert not rejects(out)
    job["nodes"] = {"features": ["attributes"]}
    assert wegl(job, "--overwrite").code == 0
    (name, reason), *others = rejects(out).items()
    assert (name, others) == ("2", [])
    assert reason.startswith("node 1, attribute 1 is not finite")


def test_a_negative_edge_weight_is_rejected(wegl, tu_job, out):
    weights = [1.0] * 36
    weights[5] = -0.25
    job = tu_job(edge_attributes=weights, tables={"edges": {"features": "weight"}})
    assert wegl(job).code == 0
    assert rejects(out) == {"2": "edge 1, attribute 0 is negative: -0.25"}
    # What is not used may be negative, also in the shards that other jobs start from, which look for themselves.
    assert wegl({**job, "edges": {"features": "none"}}, "--overwrite").code == 0
    assert not rejects(out)
    again = {**job, "source": {"kind": "graph_parquet", "path": str(out / "graphs")}, "output": {"path": f"{out}-2"}}
    assert wegl(again).code == 0
    assert set(rejects(Path(f"{out}-2"))) == {"2"}


def test_an_edge_to_a_node_of_another_graph_is_rejected_with_both_graphs(wegl, tu_job, out):
    edges = [f"{s}, {s + 1}" for s in (1, 2, 4, 5, 6, 8, 9, 10, 11, 13, 14, 16, 17, 18, 20, 21, 22, 23)]
    assert wegl(tu_job(A=[*edges, "3, 4"])).code == 0
    assert set(rejects(out)) == {"1", "2"}
    assert "joins node 3 to node 4; node 4 is not in this graph" in rejects(out)["1"]


def test_a_category_outside_the_vocabulary_is_rejected(wegl, molhiv_head, tmp_path, out):
    root = Path(shutil.copytree(molhiv_head(30), tmp_path / "ogb"))
    features = root / "ogbg_molhiv" / "raw" / "node-feat.csv.gz"
    lines = gzip.decompress(features.read_bytes()).decode().splitlines()
    lines[0] = "119," + lines[0].partition(",")[2]
    features.write_bytes(gzip.compress("\n".join(lines).encode()))
    job = {"source": {"kind": "ogb", "root": str(root), "name": "ogbg-molhiv"}, "output": {"path": str(out)}}
    assert wegl(job).code == 0
    assert rejects(out) == {"0": "node 0, categorical feature 0: category 119 is outside the vocabulary 0 to 118"}
    assert len(embedded(out)) == 29


def test_smiles_that_cannot_be_read_are_rejected(wegl, csv_job, out):
    pytest.importorskip("rdkit")
    good = ["CCO", "c1ccccc1", "CC(=O)O", "CCN", "CCCC", "C1CCCCC1", "OCCO"]
    job = csv_job(
        "smiles,id\n" + "".join(f"{s},{s}\n" for s in [*good, "not a molecule", "C1CC", "c1ccc", ""]), id_column="id"
    )
    assert wegl(job).code == 0
    assert embedded(out) == good
    # A row without an id goes by its number.
    assert set(rejects(out)) == {"not a molecule", "C1CC", "c1ccc", "10"}
    assert all("SMILES" in reason for reason in rejects(out).values())


def test_all_rows_unusable_end_with_the_number_and_the_reasons(wegl, csv_job):
    pytest.importorskip("rdkit")
    job = csv_job("smiles\nnot a molecule\nnor this\nCCO\n")
    result = wegl(job)
    assert result.code == 3
    assert "2 of 3 rows were rejected, and source.max_rejected_fraction = 0.5 allows 1: 2 x " in result.line
    result = wegl(job, "--set", "source.on_error=fail", "--overwrite")
    assert result.code == 1
    assert "row 0 (id 0): " in result.line
    assert result.line.endswith('source.on_error = "reject" would go on without it')


def test_no_usable_row_at_all_is_an_error_of_its_own(wegl, tu_job):
    result = wegl(tu_job(source={"max_nodes": 2, "max_rejected_fraction": 1.0}))
    assert result.code == 1
    assert result.line == "wegl-dask: none of the 6 rows of the source is a graph that can be embedded"


# --- Collections that are too small, or too much alike ---


@pytest.mark.parametrize("n_graphs", [1, 2])
def test_one_graph_or_two_are_enough(n_graphs, wegl, tu_job, out):
    assert wegl(tu_job(n_graphs)).code == 0
    assert len(embedded(out)) == n_graphs


@pytest.mark.parametrize("kind", ["kmeans", "sample", "barycenter", "normal"])
def test_graphs_that_are_all_alike_end_with_both_numbers(kind, wegl, tu_job):
    triangles = [f"{3 * g + s}, {3 * g + t}" for g in range(4) for s in (1, 2, 3) for t in (1, 2, 3) if s != t]
    job = tu_job(4, A=triangles, graph_indicator=[g + 1 for g in range(4) for _ in range(3)])
    result = wegl({**job, "reference": {"kind": kind, "points": 3}})
    assert result.code == 1
    assert result.line.startswith(
        "wegl-dask: there are 1 distinct node embeddings among those that the reference is computed from, and it is to have "
        "3 distinct points; set reference.points to 1 at most"
    )


@pytest.mark.parametrize("components", [None, 2])
def test_categories_that_are_numbered_far_apart_are_refused_before_they_take_memory(wegl, tu_job, components):
    pairs = ["1, 2", "2, 1", "3, 4", "4, 3"]
    job = tu_job(2, A=pairs, graph_indicator=[1, 1, 2, 2], node_labels=[0, 2_000_000_000, 0, 1])
    values = {"reference": {"points": 2}, "cluster": {"workers": 1, "memory_limit": "1GB"}}
    result = wegl({**job, **values, **({"projection": {"components": components}} if components else {})})
    assert result.code == 2
    assert (
        "number the categories of the graphs 0, 1, 2, ... (the statistics of all categories would take " in result.line
    )


# --- Files ---


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is empty"), ("smiles\n", "the source holds no graphs"), ("id,target\n1,2\n", "smiles")],
)
def test_a_text_file_without_rows_is_one_line(text, words, wegl, csv_job, tmp_path):
    result = wegl(csv_job(text))
    assert result.code in (1, 2)
    assert str(tmp_path / "molecules.csv") in result.line
    assert words in result.line


@pytest.mark.parametrize("kind", ["smiles", "graph_parquet"])
def test_a_missing_file_is_one_line(kind, wegl, tmp_path, out):
    result = wegl(
        {"source": {"kind": kind, "path": str(tmp_path / "no" / "such.parquet")}, "output": {"path": str(out)}}
    )
    assert result.code == 1
    assert str(tmp_path / "no" / "such.parquet") in result.line


def test_files_that_contradict_one_another_are_one_line(wegl, tu_job):
    result = wegl(tu_job(node_labels=[0] * 23))
    assert result.code == 1
    assert "has 24 lines and" in result.line
    assert "has 23 lines; both must have one line for each node" in result.line


def test_a_line_that_is_no_number_is_named(wegl, tu_job):
    result = wegl(tu_job(node_attributes=[*(["0.5"] * 23), "half"]))
    assert result.code == 1
    assert "line 24 of" in result.line
    assert "'half'" in result.line


def test_a_compressed_file_that_is_cut_off_is_one_line(wegl, molhiv_head, tmp_path, out):
    root = Path(shutil.copytree(molhiv_head(30), tmp_path / "ogb"))
    edges = root / "ogbg_molhiv" / "raw" / "edge.csv.gz"
    edges.write_bytes(edges.read_bytes()[:-20])
    job = {"source": {"kind": "ogb", "root": str(root), "name": "ogbg-molhiv"}, "output": {"path": str(out)}}
    result = wegl(job)
    assert result.code == 1
    assert f"{edges} is damaged or cut off" in result.line


def test_a_graph_shard_that_is_cut_off_is_one_line(wegl, tmp_path, out):
    shard = tmp_path / "graphs" / "part-00000.parquet"
    shard.parent.mkdir()
    pq.write_table(pa.table({"graph_id": ["a"]}), shard)
    job = {"source": {"kind": "graph_parquet", "path": str(shard.parent)}, "output": {"path": str(out)}}
    result = wegl(job)
    assert result.code == 1
    assert "is no graph shard: the column source_file is missing" in result.line
    shard.write_bytes(shard.read_bytes()[:-10])
    result = wegl(job)
    assert result.code == 1
    assert f"{shard}" in result.line


# --- The output folder ---


def test_graph_shards_of_the_same_rows_are_one_line_that_names_the_first(wegl, tu_job, out, tmp_path):
    job = tu_job()
    assert wegl(job).code == 0
    (tmp_path / "both").mkdir()
    for name in ("a", "b"):
        shutil.copy(out / "graphs" / "part-00000.parquet", tmp_path / "both" / f"{name}.parquet")
    source = {"kind": "graph_parquet", "path": str(tmp_path / "both")}
    ended = wegl({**job, "source": source, "output": {"path": f"{out}-2"}})
    assert ended.code == 1
    assert "row 0 of PATHS (source_row, source_file) occurs several times in the source" in ended.line


def test_an_output_folder_that_cannot_be_written_is_one_line(wegl, tu_job, tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = wegl(tu_job(), "--set", f"output.path={tmp_path / 'file' / 'out'}")
    assert result.code == 2
    out = tmp_path / "file" / "out"
    assert f"{out} cannot be written: {tmp_path / 'file'} is no folder. Choose another folder" in result.line


def test_a_folder_that_is_no_run_is_left_alone(wegl, tu_job, out):
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    (out / ".tmp-thesis.tex").write_text("more of it")
    job = tu_job()
    for arguments in ((), ("--overwrite",)):
        result = wegl(job, *arguments)
        assert result.code == 2
        assert f"{out} is not a run folder: it has no job.toml, but it holds thesis.tex" in result.line
    assert {path.name for path in out.iterdir()} == {"thesis.tex", ".tmp-thesis.tex"}


def test_an_output_folder_in_the_folder_of_the_input_is_refused(wegl, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"nodes": [{"id": 0}], "edges": []}')
    job = {"source": {"kind": "networkx", "path": str(tmp_path / "in")}, "reference": {"points": 1}}
    result = wegl({**job, "output": {"path": str(tmp_path / "in" / "out")}})
    assert result.code == 2
    assert "from which what the run writes would be read as input: choose an output.path elsewhere" in result.line
    assert not (tmp_path / "in" / "out").exists()
    for glob in ("/*", "/**/*.json"):
        result = wegl(
            job | {"source": job["source"] | {"path": f"{tmp_path}/in{glob}"}, "output": {"path": f"{tmp_path}/in/out"}}
        )
        assert result.code == 2
        assert "name the input's files by a glob with their ending, such as *.csv" in result.line
        assert not (tmp_path / "in" / "out").exists()
    job["source"]["path"] += "/*.json"
    assert wegl({**job, "output": {"path": str(tmp_path / "in" / "out")}}).code == 0


# --- The job file ---


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"transport": {"solver": "simplex"}}, 'transport.solver = "simplex"'),
        ({"diffusion": {"layer": 3}}, "unknown key diffusion.layer; did you mean diffusion.layers?"),
        ({"reference": {"points": 0}}, "reference.points = 0"),
        ({"projection": {"fit_on": "train"}}, 'projection.fit_on = "train" needs'),
        ({"projection": {"components": 4}}, "the node embeddings have 3 columns: set it to 3 at most"),
        ({"nodes": {"features": ["attributes"]}}, "nodes.features asks for attributes, and these graphs have none"),
        ({"nodes": {"features": ["atom_embedding"]}}, "nodes.features"),
        ({"edges": {"features": "labels"}}, 'edges.features = "labels", and the edges of this source have no labels'),
        ({"edges": {"features": "weight"}}, "needs one attribute an edge; this source has 0"),
        (
            {"output": {"layout": "wide"}, "diffusion": {"layers": 2000, "pooling": "concat"}},
            "columns (N = 2 times d = 6003)",
        ),
    ],
)
def test_a_job_that_cannot_be_done_names_the_key(tables, words, wegl, tu_job, out):
    job = tu_job()
    result = wegl({**job, **{name: {**job.get(name, {}), **table} for name, table in tables.items()}})
    assert result.code == 2
    assert words in result.line
    assert not (out / "data").exists()


def test_components_beyond_the_rank_are_refused_with_the_rank(wegl, tu_job):
    """Degree 0 does not occur, so its column is constant."""
    result = wegl(tu_job(tables={"projection": {"components": 3}}))
    assert result.code == 2
    assert "the node embeddings vary in 2 directions only" in result.line
    assert result.line.endswith("run the corrected job with --overwrite")


def test_components_beyond_the_columns_are_refused_before_a_graph_is_read(wegl, mutag_job, out, job_file):
    job = mutag_job(projection={"components": 20})
    said = "components = 20, and the node embeddings have 7 columns: set it to 7 at most"
    checked = CliRunner().invoke(main, ["check", str(job_file(job))])
    assert checked.exit_code == 2
    assert said in checked.stderr
    result = wegl(job)
    assert result.code == 2
    assert said in result.line
    assert not (out / "graphs").exists()
    assert wegl(mutag_job(projection={"components": 7})).code == 0


def test_a_scatter_matrix_that_is_too_large_is_refused_with_its_size(wegl, mutag_job):
    result = wegl(mutag_job(diffusion={"layers": 600, "pooling": "concat"}, projection={"components": 5}))
    assert result.code == 2
    assert "4207 x 4207 columns, and 4096 are allowed" in result.line


def test_a_scheduler_that_nobody_runs_is_one_line(wegl, tu_job, out, monkeypatch):
    monkeypatch.setattr(scheduler_client, "CONNECT_SECONDS", 0.5)
    result = wegl(tu_job(tables={"cluster": {"address": "tcp://127.0.0.1:1"}}))
    assert result.code == 1
    assert "cannot reach the scheduler at tcp://127.0.0.1:1" in result.line
    assert not out.exists()
