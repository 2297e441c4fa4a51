"""Nearest graphs and near duplicates of runs of real graphs, against scikit-learn and POT."""

import io
import itertools
import os
import shutil
import sys
from functools import partial

import numpy as np
import ot
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from sklearn.neighbors import NearestNeighbors

import wegl_dask
from wegl_dask import nearest, vector_search
from wegl_dask.cli import main
from wegl_dask.cli import neighbours as cli_neighbours
from wegl_dask.errors import MissingDependencyError, WeglError
from wegl_dask.progress import Progress
from wegl_dask.reading import read_embeddings
from wegl_dask.sources.base import REJECTED_SCHEMA


def frame(table):
    return pd.DataFrame(table.to_pydict())


def all_wasserstein(data):
    """W_2 of all pairs of graphs, by POT."""
    n_graphs = data.batch.n_graphs
    owned = [slice(start, stop) for start, stop in itertools.pairwise(data.canonical.offsets.tolist())]
    distances = np.zeros((n_graphs, n_graphs))
    for i, j in itertools.combinations(range(n_graphs), 2):
        costs = ot.dist(data.canonical.points[owned[i]], data.canonical.points[owned[j]])
        cost = ot.emd2(data.canonical.weights[owned[i]], data.canonical.weights[owned[j]], costs)
        distances[i, j] = distances[j, i] = np.sqrt(max(cost, 0))
    return distances


@pytest.fixture(scope="module")
def mutag_wasserstein(embedded):
    return all_wasserstein(embedded("mutag"))


@pytest.mark.parametrize("name", ["mutag", "molhiv_500"])
def test_neighbours_of_all_graphs_are_those_of_scikit_learn(embedded_run, name):
    X = read_embeddings(embedded_run(name)).X.astype(np.float64)
    found = frame(nearest.neighbours(embedded_run(name), k=7))
    expected, _ = NearestNeighbors(n_neighbors=7, algorithm="brute").fit(X).kneighbors()
    assert found["query"].tolist() == np.repeat(np.arange(len(X)), 7).tolist()
    assert found["rank"].tolist() == list(range(1, 8)) * len(X)
    # Duplicates tie: the distances are what must agree.
    np.testing.assert_allclose(found["distance"].to_numpy().reshape(-1, 7), expected, atol=1e-5)
    rows, queries = found["row"].to_numpy(), found["query"].to_numpy()
    assert (rows != queries).all()
    np.testing.assert_allclose(found["distance"], np.linalg.norm(X[queries] - X[rows], axis=1), rtol=1e-12)
    assert found["graph_id"].tolist() == [f"g{row}" for row in rows]
    assert found["query_id"].tolist() == [f"g{query}" for query in queries]


def test_exact_ranking_of_all_candidates_finds_the_nearest_by_wasserstein_distance(embedded_run, mutag_wasserstein):
    some = list(range(0, 188, 9))
    ids = [f"g{graph}" for graph in some]
    found = frame(nearest.neighbours(embedded_run("mutag"), ids, k=5, exact=True, candidates=187))
    others = mutag_wasserstein + np.diag(np.full(188, np.inf))
    expected = np.sort(others[some], axis=1)[:, :5]
    np.testing.assert_allclose(found["wasserstein"].to_numpy().reshape(-1, 5), expected, atol=1e-5)
    np.testing.assert_allclose(found["wasserstein"], others[found["query"], found["row"]], atol=1e-5)
    assert (found["bound"] >= found["wasserstein"]).all()


def test_exact_ranking_keeps_the_best_of_its_candidates(embedded_run, mutag_wasserstein):
    run = embedded_run("mutag")
    candidates = frame(nearest.neighbours(run, "g11", k=20))
    found = frame(nearest.neighbours(run, "g11", k=4, exact=True, candidates=20))
    assert len(found) == 4
    best = np.sort(mutag_wasserstein[11, candidates["row"]])[:4]
    np.testing.assert_allclose(found["wasserstein"], best, atol=1e-5)
    assert set(found["row"]) <= set(candidates["row"])
    # Fewer candidates than neighbours asked for are no limit.
    assert len(nearest.neighbours(run, "g11", k=9, exact=True, candidates=1)) == 9


def test_every_graph_of_an_id_is_a_query_and_can_be_a_neighbour(write_embedded_run):
    run = write_embedded_run("mutag", ids=["twin" if row in (5, 130) else f"g{row}" for row in range(188)])
    found = frame(nearest.neighbours(run, ["twin"], k=187))
    assert found["query"].unique().tolist() == [5, 130]
    assert found["query_id"].unique().tolist() == ["twin"]
    assert sorted(found[found["query"] == 5]["row"]) == [row for row in range(188) if row != 5]
    assert found[(found["query"] == 5) & (found["graph_id"] == "twin")]["row"].tolist() == [130]


def test_more_neighbours_than_there_are_graphs_are_all_the_others(embedded_run):
    found = frame(nearest.neighbours(embedded_run("mutag"), ["g3", "g150"], k=1000))
    assert len(found) == 2 * 187
    assert found["distance"].groupby(found["query"]).apply(lambda d: d.is_monotonic_increasing).all()


def test_the_neighbours_of_vectors_may_be_graphs_of_equal_embedding(embedded_run):
    X = read_embeddings(embedded_run("mutag")).X
    found = frame(nearest.neighbours(embedded_run("mutag"), vectors=X[[20, 30]].astype(np.float64) + 1e-7, k=2))
    assert list(found.columns) == ["query", "rank", "row", "graph_id", "distance"]
    assert found["query"].tolist() == [0, 0, 1, 1]
    assert (found["distance"][[0, 2]] < 1e-4).all()
    np.testing.assert_array_equal(X[found["row"][[0, 2]]], X[[20, 30]])


def test_a_graph_that_is_named_twice_is_two_queries(embedded_run):
    once, other = (frame(nearest.neighbours(embedded_run("mutag"), name, k=3, exact=True)) for name in ("g7", "g2"))
    found = frame(nearest.neighbours(embedded_run("mutag"), ["g7", "g2", "g7"], k=3, exact=True))
    pd.testing.assert_frame_equal(found, pd.concat([once, other, once], ignore_index=True))


def test_columns_of_the_run_are_shown_of_the_neighbours(embedded_run):
    found = frame(nearest.neighbours(embedded_run("mutag"), "g0", 3, columns=["num_nodes", "graph_id"]))
    num_nodes = read_embeddings(embedded_run("mutag")).num_nodes
    assert found["num_nodes"].tolist() == num_nodes[found["row"]].tolist()
    one = frame(nearest.neighbours(embedded_run("mutag"), "g0", 3, columns="num_nodes"))
    assert one["num_nodes"].tolist() == found["num_nodes"].tolist()


def test_columns_may_come_from_an_iterator(embedded_run):
    found = nearest.neighbours(embedded_run("mutag"), "g7", 2, columns=iter(["num_nodes"]))
    assert found.equals(nearest.neighbours(embedded_run("mutag"), "g7", 2, columns=["num_nodes"]))
    assert "num_nodes" in found.column_names


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bounds_hold_for_vectors_as_they_are_stored(write_embedded_run, mutag_wasserstein, dtype):
    found = frame(nearest.neighbours(write_embedded_run("mutag", dtype=dtype), k=187))
    exact = mutag_wasserstein[found["query"], found["row"]]
    # Graphs of equal points are at W_2 = 0, of which POT leaves some 1e-8.
    assert (found["bound"] >= exact - 1e-7).all()
    assert (found["distance"] < exact - 1e-4).any()


def test_the_index_finds_what_the_scan_finds(embedded_run, monkeypatch):
    pytest.importorskip("faiss")
    run = embedded_run("molhiv_500")
    exhaustive = frame(nearest.neighbours(run, search="exhaustive"))
    monkeypatch.setattr(nearest, "EXHAUSTIVE_PAIRS", 0)
    approximate = frame(nearest.neighbours(run))
    both = exhaustive.merge(approximate, on=["query", "row"], suffixes=("", "_index"))
    assert len(both) > 0.95 * len(exhaustive)
    np.testing.assert_allclose(both["distance"], both["distance_index"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(both["bound"], both["bound_index"], rtol=1e-4)


@pytest.mark.parametrize("search", ["exhaustive", "index"])
def test_a_search_shows_how_many_graphs_it_has_done(embedded_run, search):
    if search == "index":
        pytest.importorskip("faiss")
    shown = io.StringIO()
    nearest.neighbours(embedded_run("mutag"), k=2, search=search, progress=partial(Progress, stream=shown))
    steps = {"exhaustive": ["neighbours"], "index": ["index", "neighbours"]}[search]
    assert [line.partition(",")[0] for line in shown.getvalue().splitlines()] == [
        f"{step}: 188 of 188 graphs" for step in steps
    ]


def test_the_index_is_taken_for_many_pairs_alone(embedded_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    run = embedded_run("mutag")
    monkeypatch.setattr(nearest, "EXHAUSTIVE_PAIRS", 188 * 2)
    assert len(nearest.neighbours(run, ["g0", "g1"])) == 20
    with pytest.raises(MissingDependencyError):
        nearest.neighbours(run, ["g0", "g1", "g2"])


def test_the_exact_distances_of_close_pairs_are_computed_many_at_a_time(embedded_run, monkeypatch):
    monkeypatch.setattr(vector_search, "QUERY_ROWS", 7)
    run = embedded_run("mutag")
    whole = pa.concat_tables(nearest.similar(run, 0.5))
    tables = [*nearest.similar(run, 0.5, exact=True)]
    assert len(tables) == 1
    assert tables[0].drop_columns("wasserstein").equals(whole)
    monkeypatch.setattr(nearest, "PAIRS_AT_A_TIME", 50)
    some = [*nearest.similar(run, 0.5, exact=True)]
    assert len(some) > 1
    assert all(table.num_rows >= 50 for table in some[:-1])
    assert pa.concat_tables(some).equals(tables[0])


def test_close_graphs_are_all_pairs_within_the_threshold(embedded_run, mutag_wasserstein):
    X = read_embeddings(embedded_run("mutag")).X.astype(np.float64)
    for threshold in (0.0, 0.5, 2.0):
        tables = [frame(table) for table in nearest.similar(embedded_run("mutag"), threshold, exact=True)]
        found = pd.concat(tables).sort_values(["first_row", "second_row"])
        distances = np.linalg.norm(X[:, None] - X[None], axis=2)
        expected = np.argwhere(np.triu(distances <= threshold, k=1))
        assert found[["first_row", "second_row"]].to_numpy().tolist() == expected.tolist()
        np.testing.assert_allclose(found["distance"], distances[tuple(expected.T)], atol=1e-12)
        assert found["first_id"].tolist() == [f"g{row}" for row in expected[:, 0]]
        assert found["second_id"].tolist() == [f"g{row}" for row in expected[:, 1]]
        assert (found["bound"] >= found["wasserstein"]).all()
        np.testing.assert_allclose(found["wasserstein"], mutag_wasserstein[tuple(expected.T)], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graph_ids": "none"}, r"no graph of .* has the id 'none'; ids are .* such as 'g0', 'g1', 'g2'"),
        ({"graph_ids": 1}, "^1, of type int, is no id: ids are texts, those of the column graph_id, such as '1'"),
        ({"graph_ids": ["g0", np.int64(2)]}, "of type int64, is no id: .* such as '2'"),
        ({"k": 0}, "k = 0; at least one neighbour"),
        ({"search": "exhaustiv"}, "^search = 'exhaustiv'; it is one of auto, exhaustive, index"),
        ({"columns": ["smiles"]}, "has no column smiles; there are graph_id"),
        ({"columns": ["rank", "label", "distance"]}, "^distance, rank: a column of the result has that name itself"),
        ({"vectors": np.zeros((2, 3))}, r"vectors have the shape \(2, 3\); \(n, \d+\) is needed"),
        ({"vectors": np.zeros((2, 3)), "exact": True}, "vectors are no graphs of the run"),
    ],
)
def test_what_cannot_be_asked_for_is_named(embedded_run, arguments, message):
    with pytest.raises(WeglError, match=message):
        nearest.neighbours(embedded_run("mutag"), **arguments)


@pytest.mark.parametrize("entry", [np.nan, np.inf, 1e200])
def test_vectors_that_are_not_finite_are_refused(embedded_run, entry):
    vectors = read_embeddings(embedded_run("mutag")).X[:2].astype(np.float64)
    vectors[1, 0] = entry
    with pytest.raises(WeglError, match="no finite numbers of single precision"):
        nearest.neighbours(embedded_run("mutag"), vectors=vectors)


@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
def test_vectors_of_half_precision_that_are_not_finite_are_refused(embedded_run, entry):
    vectors = read_embeddings(embedded_run("mutag")).X[:2].astype(np.float16)
    assert len(nearest.neighbours(embedded_run("mutag"), vectors=vectors, k=3)) == 6
    vectors[1, 0] = entry
    with pytest.raises(WeglError, match="no finite numbers of single precision"):
        nearest.neighbours(embedded_run("mutag"), vectors=vectors)


def test_vectors_may_be_lists_of_numbers_and_nothing_else(embedded_run):
    zeros = np.zeros((1, read_embeddings(embedded_run("mutag")).X.shape[1]))
    expected = nearest.neighbours(embedded_run("mutag"), vectors=zeros, k=2)
    for given_zeros in (zeros.tolist(), zeros.astype(int)):
        assert nearest.neighbours(embedded_run("mutag"), vectors=given_zeros, k=2).equals(expected)
    with pytest.raises(WeglError, match="vectors are of type <U32; real numbers are needed"):
        nearest.neighbours(embedded_run("mutag"), vectors=zeros.astype(str))


def test_under_a_threshold_of_any_size_all_pairs_are_near(embedded_run):
    n_graphs = len(read_embeddings(embedded_run("mutag")).X)
    found = sum(pairs.num_rows for pairs in nearest.similar(embedded_run("mutag"), 1e300))
    assert found == n_graphs * (n_graphs - 1) // 2


def test_a_negative_threshold_is_refused_at_once(embedded_run):
    with pytest.raises(WeglError, match=r"the threshold is -1.0; distances are 0 or more"):
        next(nearest.similar(embedded_run("mutag"), -1.0))


def test_the_exact_distance_needs_the_graphs_and_the_others_do_not(embedded_run, tmp_path):
    shutil.copytree(embedded_run("mutag"), tmp_path / "run", ignore=shutil.ignore_patterns("graphs"))
    assert len(nearest.neighbours(tmp_path / "run", "g0")) == 10
    with pytest.raises(WeglError, match="has no folder graphs/"):
        nearest.neighbours(tmp_path / "run", "g0", exact=True)


def test_the_package_offers_both_functions_whatever_was_imported_before():
    assert wegl_dask.neighbours is nearest.neighbours
    assert wegl_dask.similar is nearest.similar


def command(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_command_prints_a_table(embedded_run):
    result = command(
        "neighbours", embedded_run("mutag"), "--graph-id", "g7", "-k", 3, "--exact", "--column", "num_nodes"
    )
    assert result.exit_code == 0
    printed = pd.read_csv(io.StringIO(result.output), sep="\t")
    found = frame(nearest.neighbours(embedded_run("mutag"), "g7", 3, exact=True, columns=["num_nodes"]))
    pd.testing.assert_frame_equal(printed, found, rtol=1e-5)


def test_the_command_shows_columns_of_the_run_whole(embedded_run, monkeypatch):
    number, text = 123456789.5, "1234567.25"
    table = pa.table({"rank": [1, 2], "distance": [1 / 3, 1234567.5], "cid": [number, None], "text": [text, None]})
    monkeypatch.setattr(nearest, "neighbours", lambda *_, **__: table.append_column("query", [[0, 0]]))
    monkeypatch.setattr(cli_neighbours, "_note_repeated_ids", lambda _: None)
    result = command("neighbours", embedded_run("mutag"), "--graph-id", "g7", "--column", "cid")
    assert result.stdout.splitlines()[1:] == ["1\t0.333333\t123456789.5\t1234567.25\t0", "2\t1.23457e+06\t\t\t0"]


def test_a_folder_that_is_not_there_is_said_before_the_search(embedded_run, monkeypatch, tmp_path):
    monkeypatch.setattr(nearest, "neighbours", lambda *_, **__: pytest.fail("it was searched"))
    result = command("neighbours", embedded_run("mutag"), "--all", "-o", tmp_path / "missing" / "n.parquet")
    assert result.exit_code == 2
    assert f"cannot be written: there is no folder {tmp_path}/missing" in result.stderr


def test_the_command_writes_a_table_of_all(embedded_run, tmp_path):
    target = tmp_path / "all.parquet"
    result = command("neighbours", embedded_run("mutag"), "--all", "-k", 2, "-o", target)
    assert result.output == f"wrote 376 neighbours to {target}\n"
    assert pq.read_table(target).equals(nearest.neighbours(embedded_run("mutag"), k=2))


def test_the_command_lists_pairs_and_counts_them_aside(embedded_run):
    result = command("similar", embedded_run("mutag"), "--threshold", 0)
    expected = sum(table.num_rows for table in nearest.similar(embedded_run("mutag"), 0))
    lines = result.stdout.splitlines()
    assert lines[0] == "first_row\tsecond_row\tfirst_id\tsecond_id\tdistance\tbound"
    assert len(lines) == 1 + expected == 2
    assert result.stderr == "1 pair\n"


@pytest.mark.parametrize("exact", [False, True])
def test_the_command_prints_a_table_where_there_is_no_pair(embedded_run, monkeypatch, exact):
    arguments = ["similar", embedded_run("mutag"), "--threshold", 0, *(["--exact"] if exact else [])]
    some = command(*arguments).stdout.splitlines()
    monkeypatch.setattr(nearest, "close_pairs", lambda *_: iter(()))
    none = command(*arguments)
    assert (none.stdout.splitlines(), none.stderr) == (some[:1], "0 pairs\n")


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--graph-id", "none"], "has the id 'none'", 1),
        (["--graph-id", os.fsdecode(b"\xff")], r"the id '\udcff' is not UTF-8 text", 1),
        (["--all", "-o", "all.CSV"], "all.CSV would be a Parquet file: give it a name that ends in .parquet", 2),
        ([], "give --graph-id, once or several times, or --all", 2),
        (["--all", "--graph-id", "g0"], "give --graph-id, once or several times, or --all", 2),
    ],
)
def test_mistakes_are_one_line(embedded_run, arguments, message, code):
    result = command("neighbours", embedded_run("mutag"), *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_graph_that_was_rejected_is_told_of_with_its_reason(embedded_run, tmp_path):
    shutil.copytree(embedded_run("mutag"), tmp_path / "run")
    (tmp_path / "run" / "rejected").mkdir()
    rows = {
        "graph_id": ["bad", "worse"],
        "source_file": ["a.csv"] * 2,
        "source_row": [3, 7],
        "reason": ["is odd", "is odder"],
    }
    pq.write_table(pa.Table.from_pydict(rows, REJECTED_SCHEMA), tmp_path / "run" / "rejected" / "part-00000.parquet")
    with pytest.raises(WeglError, match=r"no embedding of 'worse': it was rejected, a\.csv, row 7: is odder"):
        nearest.neighbours(tmp_path / "run", "worse")
    with pytest.raises(WeglError, match=r"no graph of .* has the id 'none'"):
        nearest.neighbours(tmp_path / "run", "none")


def test_the_command_notes_an_id_of_several_graphs(write_embedded_run):
    ids = [f"g{graph // 2}" for graph in range(188)]
    result = command("neighbours", write_embedded_run("mutag", ids=ids), "--graph-id", "g3", "-k", 2)
    assert result.stderr == "g3 is the id of 2 graphs, the rows 6, 7; those of each follow\n"
    assert len(result.stdout.splitlines()) == 5
