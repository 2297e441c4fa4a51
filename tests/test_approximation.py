"""Measured distances of pairs of graphs, against POT and closed forms."""

import itertools
import json
import re

import numpy as np
import ot
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from wegl_dask import approximation
from wegl_dask.approximation import Approximation, measure_approximation, noise_response, sample_pairs
from wegl_dask.canonical import WeightedPoints
from wegl_dask.cli import main
from wegl_dask.errors import WeglError
from wegl_dask.reading import read_embeddings
from wegl_dask.run_rows import RunRows
from wegl_dask.storage import RunFolder


@pytest.fixture(scope="module")
def measured(embedded_run):
    cache = {}

    def measure(name):
        if name not in cache:
            cache[name] = measure_approximation(embedded_run(name), 300, seed=1)
        return cache[name]

    return measure


@pytest.mark.parametrize("name", ["mutag", "molhiv_500"])
def test_every_distance_of_a_pair_is_what_its_name_says(measured, embedded, embedded_run, name):
    found, data, run = measured(name), embedded(name), read_embeddings(embedded_run(name))
    X, costs = run.X.astype(np.float64), run.transport_cost
    lost = np.sqrt(np.maximum(costs - (X**2).sum(axis=1), 0))
    assert found.n_graphs == len(X)
    assert found.n_entropic == 0
    for (i, j), exact, distance, bound, wider in zip(
        found.pairs, found.wasserstein, found.embedding, found.bound, found.triangle_bound, strict=True
    ):
        one, two = (slice(*data.canonical.offsets[graph : graph + 2]) for graph in (i, j))
        points, weights = data.canonical.points, data.canonical.weights
        cost = ot.emd2(weights[one], weights[two], ot.dist(points[one], points[two]))
        assert exact == pytest.approx(np.sqrt(max(cost, 0)), abs=1e-4)
        assert distance == pytest.approx(np.linalg.norm(X[i] - X[j]), rel=1e-9)
        assert bound == pytest.approx(np.sqrt(distance**2 + lost[i] ** 2 + lost[j] ** 2), abs=1e-2)
        assert wider == pytest.approx(distance + lost[i] + lost[j], abs=2e-2)


@pytest.mark.parametrize("name", ["mutag", "molhiv_500"])
def test_no_pair_of_real_graphs_breaks_what_is_certain(measured, name):
    found = measured(name)
    assert (found.bound >= found.wasserstein).all()
    assert (found.triangle_bound >= found.bound - 1e-6).all()
    assert (found.generalized >= found.wasserstein - 1e-6).all()
    assert (found.generalized >= found.embedding - 1e-5).all()
    assert (found.generalized <= found.bound + 1e-6).all()
    summary = found.summary()
    assert summary["bound_broken"] == 0
    # Barycentric projection makes some distances of embeddings too small, on real graphs.
    assert 0 < summary["fraction_below"] < 1


def test_the_summary_is_that_of_pairs_that_differ():
    found = Approximation(
        pairs=np.array([[0, 1], [0, 2], [1, 2], [1, 3]]),
        wasserstein=np.array([0.0, 1.0, 2.0, 4.0]),
        embedding=np.array([0.0, 1.5, 1.0, 4.0]),
        generalized=np.array([0.0, 2.0, 2.0, 4.0]),
        bound=np.array([0.5, 2.0, 4.0, 4.0]),
        triangle_bound=np.array([1.0, 3.0, 6.0, 4.0]),
        n_graphs=4,
        n_entropic=1,
    )
    assert found.summary() == {
        "graphs": 4,
        "entropic_graphs": 1,
        "pairs": 4,
        "equal_pairs": 1,
        "mean_wasserstein": pytest.approx(7 / 3),
        "mean_relative_error": pytest.approx(1 / 3),
        "median_relative_error": 0.5,
        "largest_relative_error": 0.5,
        "mean_ratio": 1.0,
        "fraction_below": pytest.approx(1 / 3),
        "generalized_mean_relative_error": pytest.approx(1 / 3),
        "bound_mean_ratio": pytest.approx(5 / 3),
        "bound_largest_ratio": 2.0,
        "bound_broken": 0,
        "triangle_bound_mean_ratio": pytest.approx(7 / 3),
    }


def test_graphs_of_equal_points_are_at_distance_0(embedded_run, monkeypatch):
    run = embedded_run("mutag")
    X = read_embeddings(run).X
    same = np.argwhere(np.triu((X[:, None] == X[None]).all(axis=2), k=1))
    assert len(same), "MUTAG has graphs of equal points"
    pairs = np.vstack([same[:5], [[0, 1], [0, 2]]])
    monkeypatch.setattr(approximation, "sample_pairs", lambda *_: pairs)
    found = measure_approximation(run)
    n_same = len(same[:5])
    assert found.wasserstein[:n_same].tolist() == [0] * n_same
    assert found.generalized[:n_same].tolist() == [0] * n_same
    assert (found.wasserstein[n_same:] > 0).all()
    assert found.summary()["equal_pairs"] == n_same


def test_the_same_seed_measures_the_same_pairs(embedded_run):
    one, two, other = (measure_approximation(embedded_run("mutag"), 20, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.pairs, two.pairs)
    assert np.array_equal(one.generalized, two.generalized)
    assert not np.array_equal(one.pairs, other.pairs)


@pytest.mark.parametrize(("others", "n_entropic"), [("exact", 1), (None, 1), ("sinkhorn", 188)])
def test_entropic_graphs_are_counted(others, n_entropic, embedded_run, monkeypatch):
    """Also where a file was altered, and does not say of some."""
    read = RunRows.tables

    def altered(self, columns, groups=None):
        for start, table in read(self, columns, groups):
            if tuple(columns) == ("solver",):
                solvers = [others] * table.num_rows
                if start == 0:
                    solvers[0] = "sinkhorn"
                yield start, table.set_column(0, "solver", pa.array(solvers, pa.string()))
            else:
                yield start, table

    monkeypatch.setattr(RunRows, "tables", altered)
    assert measure_approximation(embedded_run("mutag"), 1).n_entropic == n_entropic


def test_pairs_are_distinct_and_equally_likely():
    counts = np.zeros((7, 7), dtype=int)
    for seed in range(700):
        pairs = sample_pairs(7, 3, seed)
        assert len({tuple(pair) for pair in pairs.tolist()}) == 3
        counts[tuple(pairs.T)] += 1
    assert np.tril(counts).sum() == 0
    # 21 pairs, each drawn 100 times on average.
    assert np.abs(counts[np.triu_indices(7, 1)] - 100).max() < 45


@pytest.mark.parametrize("n", [2, 3, 10, 101])
def test_all_pairs_are_drawn_where_there_are_no_more(n):
    assert sample_pairs(n, 10**9, 0).tolist() == [list(pair) for pair in itertools.combinations(range(n), 2)]


def test_pairs_of_very_many_graphs_are_pairs():
    n = 2**31
    pairs = sample_pairs(n, 5000, 0)
    assert (pairs[:, 0] >= 0).all()
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert (pairs[:, 1] < n).all()
    assert len(np.unique(pairs, axis=0)) == 5000


@pytest.mark.parametrize("n_pairs", [0, -1])
def test_no_pairs_are_refused(embedded_run, n_pairs):
    with pytest.raises(WeglError, match=f"n_pairs = {n_pairs}; at least one pair must be asked for"):
        measure_approximation(embedded_run("mutag"), n_pairs)


def test_one_graph_is_refused(write_embedded_run):
    run = RunFolder(write_embedded_run("mutag", n_shards=1))
    part = run.location("data/part-00000.parquet")
    table = pq.read_table(part)
    pq.write_table(table.slice(0, 1), part)
    with pytest.raises(WeglError, match="has 1 graphs; a pair is needed"):
        measure_approximation(run.url)


def test_noise_that_shifts_all_points_alike_moves_the_embedding_as_far():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(5, 2))
    # A graph of one point is shifted by its noise, whatever the reference.
    points = WeightedPoints(np.array([[1.0, 2.0], [-3.0, 0.5]]), np.ones(2), np.array([0, 1, 2]))
    levels = np.array([0.0, 0.1, 10.0])
    moved, noise = noise_response(points, reference, levels, seed=9)
    draws = np.linalg.norm(np.random.default_rng(9).standard_normal((2, 2)), axis=1)
    np.testing.assert_allclose(noise, levels[:, None] * draws, atol=1e-12)
    np.testing.assert_allclose(moved, noise, atol=1e-12)


def test_small_noise_moves_embeddings_of_rings_as_far_as_the_rings():
    rng = np.random.default_rng(1)
    angles = rng.uniform(0, 2 * np.pi, 60)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    reference = rng.normal(size=(60, 2))
    points = WeightedPoints(ring, np.full(60, 1 / 60), np.array([0, 60]))
    moved, noise = noise_response(points, reference, np.array([1e-6, 0.05]))
    # As many points as the reference has: the plan is a permutation, which tiny noise leaves as it is.
    assert moved[0, 0] == pytest.approx(noise[0, 0], rel=1e-6)
    assert noise[1, 0] <= moved[1, 0] < 4 * noise[1, 0]


def command(*arguments):
    return CliRunner().invoke(main, ["approximation", *map(str, arguments)])


def test_the_command_prints_the_summary(embedded_run):
    result = command(embedded_run("mutag"), "--pairs", 50, "--seed", 2, "--json")
    assert result.exit_code == 0
    expected = measure_approximation(embedded_run("mutag"), 50, seed=2).summary()
    assert json.loads(result.stdout) == {name: pytest.approx(value) for name, value in expected.items()}

    lines = command(embedded_run("mutag"), "--pairs", 50, "--seed", 2).stdout.splitlines()
    assert lines[0].startswith("50 pairs of 188 graphs, seed 2; the exact W_2 is ")
    below = f"too small for {expected['fraction_below']:.2%} of the pairs"
    assert any(line.strip().startswith("|phi_i - phi_j| ") and line.endswith(below) for line in lines)
    assert any("broken by 0 pairs" in line for line in lines)


def test_of_equal_graphs_alone_the_command_shows_no_shares_of_nothing(embedded_run, monkeypatch):
    found = Approximation(np.array([[0, 1]]), *np.zeros((5, 1)), n_graphs=188, n_entropic=0)
    monkeypatch.setattr(approximation, "measure_approximation", lambda *_, **__: found)
    result = command(embedded_run("mutag"), "--pairs", 1)
    assert result.exit_code == 0
    assert result.stdout == (
        "1 pair of 188 graphs, seed 0: all of equal points, W_2 = 0, so that there is nothing to be off from\n"
    )
    numbers = json.loads(command(embedded_run("mutag"), "--json").stdout)
    assert (numbers["equal_pairs"], numbers["mean_wasserstein"]) == (1, None)


def test_the_command_shows_how_far_it_is_and_a_function_does_not(embedded_run, capsys):
    shown = command(embedded_run("mutag"), "--pairs", 50).stderr
    assert re.fullmatch(r"points: 3 of 3 parts, \d+ graphs.*\ndistances: 50 of 50 pairs, .*\n", shown)
    measure_approximation(embedded_run("mutag"), 5)
    assert capsys.readouterr().err == ""


def test_the_command_names_what_is_missing(tmp_path):
    result = command(tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"wegl-dask: {tmp_path} is no run folder: give the folder that holds job.toml and data/\n"
