import gzip
import http.server
import importlib.util
import json
import shutil
import threading
import zipfile

import numpy as np
import pyarrow as pa
import pytest

from wegl_dask.errors import SourceError
from wegl_dask.graphs import canonical_edges, concatenate, find_invalid
from wegl_dask.sources import _text, ogb
from wegl_dask.sources.base import REJECTED_SCHEMA, SourcePlan, Unit
from wegl_dask.sources.ogb import OgbSource
from wegl_dask.spec import OgbTable

ATOMS = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BONDS = (5, 6, 2)

# Methanol, a lone atom, and ethylene oxide, made up.
SMALL = {
    "raw/num-node-list": "2\n1\n3\n",
    "raw/num-edge-list": "1\n0\n3\n",
    "raw/edge": "0,1\n0,1\n1,2\n2,0\n",
    "raw/node-feat": "5,0,4,5,3,0,2,0,0\n7,0,2,5,1,0,2,0,0\n1,0,0,5,0,0,5,0,0\n" + "5,0,4,5,2,0,2,0,1\n" * 3,
    "raw/edge-feat": "0,0,0\n0,1,0\n1,0,1\n0,0,0\n",
    "raw/graph-label": "1\n0\n1\n",
    "split/scaffold/train": "2\n0\n",
    "split/scaffold/valid": "",
    "split/scaffold/test": "1\n",
}
# A set that is not of molecules: no node features, real edge features.
OTHER = {
    **{name: text for name, text in SMALL.items() if name != "raw/node-feat"},
    "raw/edge-feat": "0.5,1\n0,0\n0.25,\n1,1\n",
    "raw/graph-label": "2\n0\n36\n",
}


def make_source(root, name="ogbg-molsmall", *, task="auto", split=None, download=False):
    table = OgbTable(kind="ogb", root=str(root), name=name, split=split, download=download)
    return OgbSource(table, task)


def write(root, files, folder="ogbg_molsmall"):
    for name, text in files.items():
        path = root / folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return root / folder


def make_plan(source, nodes_per_shard=10_000):
    scans = [source.scan(piece, nodes_per_shard) for piece in source.pieces()]
    plan = source.plan(json.loads(json.dumps(scans)))
    assert SourcePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert len(plan.units) == 1
    return plan


def read_shards(source, plan, unit):
    shards = list(source.read(plan, unit))
    assert [shard.shard for shard in shards] == [cut.shard for cut in unit.cuts]
    for shard, cut in zip(shards, unit.cuts, strict=True):
        assert shard.rows.schema.equals(plan.row_schema())
        assert shard.rejected.schema.equals(REJECTED_SCHEMA)
        assert shard.graphs.n_graphs == shard.rows.num_rows == cut.n_rows
        assert shard.rejected.num_rows == 0
    return shards


def read_whole(source, nodes_per_shard=10_000):
    plan = make_plan(source, nodes_per_shard)
    shards = read_shards(source, plan, plan.units[0])
    graphs = concatenate([shard.graphs for shard in shards])
    return plan, graphs, pa.concat_tables(shard.rows for shard in shards)


def assert_same_graphs(one, other):
    for name in (
        "node_offsets",
        "edge_offsets",
        "edge_source",
        "edge_target",
        "node_categories",
        "edge_categories",
        "node_attributes",
        "edge_attributes",
    ):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.schema == other.schema


def test_small_data_set_is_read_as_written_out_by_hand(tmp_path):
    write(tmp_path, SMALL)
    plan, graphs, rows = read_whole(make_source(tmp_path), 2)
    assert plan.schema.node_category_counts == ATOMS
    assert plan.schema.edge_category_counts == BONDS
    assert plan.has_split
    assert graphs.node_offsets.tolist() == [0, 2, 3, 6]
    assert graphs.edge_offsets.tolist() == [0, 1, 1, 4]
    assert graphs.edge_source.tolist() == [0, 0, 1, 2]
    assert graphs.edge_target.tolist() == [1, 1, 2, 0]
    assert graphs.node_categories[:, 0].tolist() == [5, 7, 1, 5, 5, 5]
    assert graphs.edge_categories.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0]]
    assert plan.labels.class_names == ("0", "1")
    assert rows.to_pylist() == [
        {"graph_id": "0", "source_file": "ogbg-molsmall", "source_row": 0, "label": 1, "split": "train"},
        {"graph_id": "1", "source_file": "ogbg-molsmall", "source_row": 1, "label": 0, "split": "test"},
        {"graph_id": "2", "source_file": "ogbg-molsmall", "source_row": 2, "label": 1, "split": "train"},
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raw/edge", "1,0\n0,1\n1,2\n2,0\n"),
        ("raw/node-feat", SMALL["raw/node-feat"].replace("7,0,2", "8,0,2")),
        ("raw/edge-feat", "0,0,0\n0,1,0\n1,0,1\n0,1,0\n"),
        ("raw/graph-label", "1\n1\n0\n"),
        ("split/scaffold/train", "2\n"),
    ],
)
@pytest.mark.parametrize("nodes_per_shard", [1, 100])
def test_a_file_that_changed_after_the_scan_is_noticed(tmp_path, monkeypatch, name, text, nodes_per_shard):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 16)
    write(tmp_path, SMALL)
    source = make_source(tmp_path)
    plan = make_plan(source, nodes_per_shard)
    read_shards(source, plan, plan.units[0])
    write(tmp_path, {name: text})
    with pytest.raises(SourceError, match="ogbg-molsmall has other lines: it was changed after it was scanned"):
        read_shards(source, plan, plan.units[0])


def test_molhiv_has_the_published_sizes_splits_and_positives(shared_data):
    plan, graphs, rows = read_whole(make_source(shared_data / "ogb", "ogbg-molhiv"), 50_000)
    assert len(plan.units[0].cuts) == pytest.approx(21, abs=1)
    assert graphs.n_graphs == 41_127
    assert round(graphs.n_nodes / graphs.n_graphs, 2) == 25.51
    assert round(graphs.n_edges / graphs.n_graphs, 2) == 27.47
    assert find_invalid(graphs) == {}
    split, label = rows["split"].to_numpy(), rows["label"].to_numpy()
    found = {part: (int(np.sum(split == part)), int(label[split == part].sum())) for part in set(split)}
    assert found == {"train": (32_901, 1232), "valid": (4113, 81), "test": (4113, 130)}
    assert rows["graph_id"].to_pylist() == [str(row) for row in range(41_127)]


def test_first_molecules_are_those_of_a_plain_reader(shared_data, molhiv_500):
    source = make_source(shared_data / "ogb", "ogbg-molhiv")
    plan = make_plan(source, 3000)
    shards = []
    for shard in source.read(plan, plan.units[0]):
        shards.append(shard.graphs)
        if sum(graphs.n_graphs for graphs in shards) >= 500:
            break
    graphs, _ = canonical_edges(concatenate(shards).slice(0, 500))
    expected, _ = canonical_edges(molhiv_500.batch, directed=True)
    assert_same_graphs(graphs, expected)


def test_any_subset_of_the_cuts_can_be_read(shared_data):
    source = make_source(shared_data / "ogb", "ogbg-molhiv")
    plan = make_plan(source, 50_000)
    (unit,) = plan.units
    everything = read_shards(source, plan, unit)
    chosen = (0, 3, 4, 11, len(unit.cuts) - 1)
    some = read_shards(source, plan, Unit(unit.piece, tuple(unit.cuts[cut] for cut in chosen)))
    for cut, shard in zip(chosen, some, strict=True):
        assert_same_graphs(shard.graphs, everything[cut].graphs)
        assert shard.rows.equals(everything[cut].rows)


@pytest.mark.parametrize("nodes_per_shard", [1, 2, 5])
def test_shard_and_block_size_do_not_change_the_graphs(tmp_path, monkeypatch, nodes_per_shard):
    write(tmp_path, SMALL)
    _, graphs, rows = read_whole(make_source(tmp_path))
    monkeypatch.setattr(_text, "BLOCK_BYTES", 16)
    _, other_graphs, other_rows = read_whole(make_source(tmp_path), nodes_per_shard)
    assert_same_graphs(graphs, other_graphs)
    assert rows.equals(other_rows)


@pytest.mark.parametrize(("name", "zip_name"), [("ogbg-molhiv", "hiv"), ("ogbg-mollipo", "lipophilicity")])
def test_zip_is_found_under_its_published_name_and_equals_the_folder(tmp_path, name, zip_name):
    folder = write(tmp_path / "folder", SMALL, name.replace("-", "_"))
    zipped = tmp_path / "zipped"
    zipped.mkdir()
    with zipfile.ZipFile(zipped / f"{zip_name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*.gz")):
            archive.write(file, f"{zip_name}/{file.relative_to(folder)}")
    _, graphs, rows = read_whole(make_source(tmp_path / "folder", name), 2)
    _, other_graphs, other_rows = read_whole(make_source(zipped, name), 2)
    assert_same_graphs(graphs, other_graphs)
    assert rows.equals(other_rows)


def test_sets_without_molecules_have_attributes(tmp_path):
    write(tmp_path, OTHER, "ogbg_other")
    plan, graphs, rows = read_whole(make_source(tmp_path, "ogbg-other"), 2)
    assert plan.schema.node_category_counts == plan.schema.edge_category_counts == ()
    assert (plan.schema.node_attribute_width, plan.schema.edge_attribute_width) == (0, 2)
    np.testing.assert_array_equal(graphs.edge_attributes, [[0.5, 1], [0, 0], [0.25, np.nan], [1, 1]])
    assert plan.labels.class_names == ("0", "2", "36")
    assert rows["label"].to_pylist() == [1, 0, 2]
    assert list(find_invalid(graphs)) == [2]


@pytest.mark.parametrize(
    ("task", "labels", "kind", "expected"),
    [
        ("auto", "1.0\n\n0.0\n", "class", [1, None, 0]),
        ("auto", '1.0\nnan\n""\n', "class", [0, None, None]),
        ("auto", "1\n0\n\n", "class", [1, 0, None]),
        ("auto", '""\nnan\n""\n', "none", [None, None, None]),
        ("classification", '""\nnan\n""\n', "class", [None, None, None]),
        ("regression", '""\nnan\n""\n', "target", [None, None, None]),
        ("auto", "-0.77\n2\n\n", "target", [-0.77, 2.0, None]),
        ("auto", "1,\n,0\n,\n", "tasks", [[1, None], [None, 0], [None, None]]),
        ("classification", "3\n1\n3\n", "class", [1, 0, 1]),
        ("regression", "3\n1\nnan\n", "target", [3.0, 1.0, None]),
        ("multitask", "3\n1\nnan\n", "tasks", [[3], [1], [None]]),
        ("none", "def f ( x )\ng\nh\n", "none", [None, None, None]),
        ("classification", "0\n1e19\n0\n", "class", [0, 1, 0]),
        ("classification", "-1e300\n\n1e300\n", "class", [0, None, 1]),
    ],
)
def test_task_and_values_decide_what_the_labels_are(tmp_path, task, labels, kind, expected):
    write(tmp_path, {**SMALL, "raw/graph-label": labels})
    plan, _, rows = read_whole(make_source(tmp_path, task=task), 1)
    assert plan.labels.kind == kind
    if kind == "tasks":
        values = np.array(rows["label"].to_pylist(), dtype=float)
        np.testing.assert_array_equal(values, np.array(expected, dtype=float))
    else:
        assert rows["label"].to_pylist() == expected


def test_tasks_are_named_by_the_table_of_molecules(tmp_path):
    files = {**SMALL, "raw/graph-label": "1,0\n0,\n1,1\n"}
    write(tmp_path, files)
    assert make_plan(make_source(tmp_path)).labels.task_names == ("task_0", "task_1")
    write(tmp_path, {"mapping/mol": '"Disorders, benign",SR-p53,smiles,mol_id\n1,0,CO,1\n'})
    assert make_plan(make_source(tmp_path)).labels.task_names == ("Disorders, benign", "SR-p53")
    write(tmp_path, {"mapping/mol": "smiles,mol_id\nCO,1\n"})
    assert make_plan(make_source(tmp_path)).labels.task_names == ("task_0", "task_1")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(b"a,b,smiles,mol_id\n")[:12], "is damaged or cut off"),
        (gzip.compress(b"a,b,smiles,mol_id\n")[:10] + b"\xff\xff\xff\xff", "is damaged or cut off"),
        (b"a,b,smiles,mol_id\n", "cannot be read"),
        (gzip.compress(b"a\rb,smiles,mol_id\n"), "its first line has no names of columns"),
        (gzip.compress(b"a" * 200_000), "its first line has no names of columns"),
        (gzip.compress(b"a,a,smiles,mol_id\n"), "two columns have the name 'a': rename one of them"),
    ],
)
def test_a_damaged_table_of_task_names_is_one_error_that_names_it(tmp_path, content, problem):
    write(tmp_path, {**SMALL, "raw/graph-label": "0,1\n1,0\n,1\n", "mapping/mol": ""})
    (tmp_path / "ogbg_molsmall" / "mapping" / "mol.csv.gz").write_bytes(content)
    with pytest.raises(SourceError, match=rf"mapping/mol\.csv\.gz.*{problem}"):
        make_plan(make_source(tmp_path))


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        ("classification", "0.5\n1\n2\n", 'task = "classification" needs whole numbers; .*set task = "regression"'),
        ("classification", "0,1\n1,1\n2,1\n", 'needs one label a graph; .* has 2: set task = "multitask"'),
        ("regression", "0,1\n1,1\n2,1\n", 'needs one label a graph; .* has 2: set task = "multitask"'),
        ("auto", "get name\nset\nx\n", r"line 1 of .*graph-label\.csv\.gz is 'get name'.*task = \"none\""),
        ("multitask", None, r'task = "multitask" needs labels, and .*graph-label\.csv\.gz is missing'),
    ],
)
def test_task_that_the_labels_do_not_allow_is_refused(tmp_path, task, labels, message):
    folder = write(tmp_path, SMALL)
    (folder / "raw" / "graph-label.csv.gz").unlink()
    if labels is not None:
        write(tmp_path, {"raw/graph-label": labels})
    with pytest.raises(SourceError, match=message):
        make_plan(make_source(tmp_path, task=task))


def test_several_splits_need_a_choice(tmp_path):
    write(tmp_path, {**SMALL, "split/random/train": "0\n", "split/random/valid": "1\n", "split/random/test": "\n"})
    with pytest.raises(SourceError, match=r"has random, scaffold; choose one with source\.split"):
        make_plan(make_source(tmp_path))
    _, _, rows = read_whole(make_source(tmp_path, split="random"), 1)
    assert rows["split"].to_pylist() == ["train", "valid", None]
    with pytest.raises(SourceError, match=r'source\.split = "species" is not in .*; there are random, scaffold'):
        make_plan(make_source(tmp_path, split="species"))


def test_data_set_may_have_no_split(tmp_path):
    write(tmp_path, {name: text for name, text in SMALL.items() if not name.startswith("split")})
    plan, _, rows = read_whole(make_source(tmp_path))
    assert not plan.has_split
    assert rows["split"].to_pylist() == [None] * 3


def test_edges_and_categories_that_are_out_of_range_are_left_to_the_check(tmp_path):
    files = {
        "raw/edge": "0,2\n0,1\n1,2\n2,0\n",
        "raw/node-feat": SMALL["raw/node-feat"].replace("1,0,0,5,0,0,5,0,0", f"{2**40},0,0,5,0,0,5,0,0"),
    }
    write(tmp_path, {**SMALL, **files})
    _, graphs, _ = read_whole(make_source(tmp_path))
    reasons = find_invalid(graphs)
    assert set(reasons) == {0, 1}
    assert "edge 0 has target 2" in reasons[0]
    assert str(2**40) in reasons[1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("raw/edge", "0,1\n0,1\n1,2\n", r"edge\.csv\.gz has 3 lines and must have 4, one for each edge"),
        ("raw/edge", "0,1\n0,1\n1,2\n2,?\n", r"line 4 of .*edge\.csv\.gz is '2,\?'"),
        ("raw/edge", "0\n0\n1\n2\n", r"edge\.csv\.gz has 1 columns; in ogbg-molsmall it must have 2"),
        ("raw/node-feat", SMALL["raw/node-feat"] * 2, r"node-feat\.csv\.gz has 12 lines and must have 6"),
        ("raw/node-feat", "1,2\n" * 6, r"node-feat\.csv\.gz has 2 columns; in ogbg-molsmall it must have 9"),
        ("raw/node-feat", "1,2,3,4,5,6,7,8,9\n1,2,3,4,5,6,7,8,\n", r"line 2 of .*node-feat\.csv\.gz is '1,2,3,4"),
        ("raw/edge-feat", "0,0,0\n", r"edge-feat\.csv\.gz has 1 lines and must have 4, one for each edge"),
        ("raw/edge-feat", "0.5,0,0\n" * 4, r"line 1 of .*edge-feat\.csv\.gz is '0\.5,0,0'; .* 3 whole numbers"),
        ("raw/num-node-list", "2\n-1\n3\n", r"line 2 of .*num-node-list\.csv\.gz is -1"),
        ("raw/num-edge-list", "1\n3\n", r"num-edge-list\.csv\.gz has 2 lines and must have 3, one for each graph"),
        ("raw/graph-label", "1\n0\n", r"graph-label\.csv\.gz has 2 lines and must have 3, one for each graph"),
        ("split/scaffold/train", "0\n3\n", r"line 2 of .*train\.csv\.gz names graph 3; there are graphs 0 to 2"),
        ("split/scaffold/train", "-1\n", r"line 1 of .*train\.csv\.gz names graph -1"),
        ("split/scaffold/test", "1\n0\n", r"line 2 of .*test\.csv\.gz names graph 0; train\.csv\.gz names it too"),
    ],
)
def test_malformed_files_are_one_error_that_names_file_and_line(tmp_path, monkeypatch, name, text, message):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 16)
    write(tmp_path, {**SMALL, name: text})
    with pytest.raises(SourceError, match=message) as caught:
        make_plan(make_source(tmp_path))
    assert "\n" not in str(caught.value)


def test_truncated_file_is_one_error(tmp_path):
    folder = write(tmp_path, SMALL)
    path = folder / "raw" / "node-feat.csv.gz"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SourceError, match=r"node-feat\.csv\.gz is damaged or cut off"):
        make_plan(make_source(tmp_path))


def test_missing_files_are_named(tmp_path):
    folder = write(tmp_path, SMALL)
    (folder / "split" / "scaffold" / "valid.csv.gz").unlink()
    with pytest.raises(SourceError, match=r"valid\.csv\.gz is missing"):
        make_plan(make_source(tmp_path))
    (folder / "raw" / "num-node-list.csv.gz").unlink()
    with pytest.raises(SourceError, match=r"num-node-list\.csv\.gz is missing"):
        make_source(tmp_path).pieces()
    with pytest.raises(SourceError, match=r"edge\.csv\.gz was looked for in .*ogbg_molhiv and in .*hiv\.zip"):
        make_source(tmp_path, "ogbg-molhiv").pieces()
    with pytest.raises(SourceError, match="no zip of that name is published"):
        make_source(tmp_path, "ogbg-unheard-of", download=True).pieces()


def test_sizes_that_changed_after_the_scan_are_one_error(tmp_path):
    write(tmp_path, SMALL)
    source = make_source(tmp_path)
    plan = make_plan(source)
    write(tmp_path, {"raw/num-node-list": "2\n1\n4\n"})
    with pytest.raises(SourceError, match="it was changed after it was scanned"):
        list(source.read(plan, plan.units[0]))


def test_fingerprint_follows_the_cut_and_its_split(tmp_path, monkeypatch):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 32)
    n_graphs = 40
    files = {
        "raw/num-node-list": "2\n" * n_graphs,
        "raw/num-edge-list": "1\n" * n_graphs,
        "raw/edge": "0,1\n" * n_graphs,
        "raw/node-feat": "5,0,4,5,3,0,2,0,0\n" * 2 * n_graphs,
        "raw/edge-feat": "0,0,0\n" * n_graphs,
        "raw/graph-label": "0\n1\n" * (n_graphs // 2),
        "split/scaffold/train": "".join(f"{graph}\n" for graph in range(1, n_graphs)),
        "split/scaffold/valid": "",
        "split/scaffold/test": "0\n",
    }
    write(tmp_path, files)

    def fingerprints():
        return [cut.fingerprint for cut in make_plan(make_source(tmp_path), 20).units[0].cuts]

    before = fingerprints()
    assert len(set(before)) == len(before) == 4
    assert fingerprints() == before
    for name, old, new in (
        ("raw/edge", "0,1\n", "1,0\n"),
        ("raw/node-feat", "5", "6"),
        ("raw/edge-feat", "0", "1"),
        ("raw/graph-label", "0\n", "1\n"),
    ):
        write(tmp_path, {name: new + files[name].removeprefix(old)})
        after = fingerprints()
        assert after[0] != before[0], name
        assert after[-1] == before[-1], name
        write(tmp_path, {name: files[name]})
    write(tmp_path, {"split/scaffold/valid": "0\n", "split/scaffold/test": ""})
    after = fingerprints()
    assert after[0] != before[0]
    assert after[1:] == before[1:]


def test_estimate_is_the_number_of_nodes(shared_data):
    assert round(make_source(shared_data / "ogb", "ogbg-molhiv").estimated_nodes() / 41_127, 2) == 25.51


def test_data_set_that_is_not_there_is_downloaded_once(tmp_path, monkeypatch):
    write(tmp_path / "made", SMALL, "hiv")
    web = tmp_path / "web" / "csv_mol_download"
    web.mkdir(parents=True)
    shutil.make_archive(str(web / "hiv"), "zip", tmp_path / "made")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=tmp_path / "web")

        def log_message(self, *_):
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    source = make_source(tmp_path / "root", "ogbg-molhiv", download=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setattr(ogb, "DOWNLOAD_URL", f"http://127.0.0.1:{server.server_port}")
        assert source.pieces() == ["ogbg-molhiv"]
        server.shutdown()
        thread.join()
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["hiv.zip"]
    _, graphs, _ = read_whole(source)
    assert graphs.n_nodes == 6
    with pytest.raises(SourceError, match=r"bace\.zip.*could not be fetched.*put the zip there by hand"):
        make_source(tmp_path / "root", "ogbg-molbace", download=True).pieces()


def test_addresses_of_the_zips_are_those_of_the_benchmark(monkeypatch, tmp_path):
    """The addresses are in ogb's own table, which it ships."""
    pandas = pytest.importorskip("pandas")
    package = importlib.util.find_spec("ogb")
    if package is None:
        pytest.skip("ogb is not installed")
    asked = []

    def refuse(address, target):
        asked.append(address)
        raise SourceError(f"no network for {target}")

    monkeypatch.setattr(ogb, "download_zip", refuse)
    table = pandas.read_csv(f"{package.submodule_search_locations[0]}/graphproppred/master.csv", index_col=0)
    for name in table.columns:
        with pytest.raises(SourceError):
            make_source(tmp_path, name, download=True).pieces()
    assert asked == [address.replace("http://", "https://") for address in table.loc["url"]]
