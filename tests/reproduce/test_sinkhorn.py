import json
from dataclasses import replace

import numpy as np
import ot
import pytest

from wegl_dask.canonical import WeightedPoints
from wegl_dask.folders import Folder
from wegl_dask.reproduce import sinkhorn
from wegl_dask.reproduce.ledger import Ledger
from wegl_dask.reproduce.sinkhorn import Growth, Molecules, compare_on_molecules, crossing, measure_growth
from wegl_dask.reproduce.sinkhorn_results import write_results
from wegl_dask.transport import exact_plan

HOW = {"date": "2020-01-01", "versions": {"POT": "0.1"}}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(Folder(str(tmp_path)))


@pytest.fixture
def graphs():
    rng = np.random.default_rng(0)
    return WeightedPoints(rng.standard_normal((9, 2)), np.repeat([1 / 4, 1 / 5], [4, 5]), np.array([0, 4, 9]))


def growth(regularization, sizes, seconds):
    return Growth(regularization, sizes, seconds, (True,) * len(sizes), 6400)


def test_the_error_is_that_of_w2_against_the_linear_program(graphs, ledger):
    reference = np.random.default_rng(1).standard_normal((3, 2))
    found = {
        each.regularization: each for each in compare_on_molecules(graphs, reference, ledger, data="of the graphs")
    }
    assert tuple(found) == sinkhorn.REGULARIZATIONS
    costs = ot.dist(reference, graphs.points[4:])
    exact = ot.emd2([], [], costs)
    plan = ot.sinkhorn([], [], costs, 0.1 * costs.max(), method="sinkhorn_log", numItermax=10_000, stopThr=1e-10)
    entropic = (plan * costs).sum()
    assert found[0.1].error[1] == pytest.approx(np.sqrt(entropic / exact) - 1, rel=1e-4)
    # The entropic plan is no better than the best, and the better the smaller the regularisation.
    assert (np.diff([each.error[1] for each in found.values()]) < 0).all()
    assert all((each.ratio > 0).all() for each in found.values())


def test_growth_is_measured_for_every_solver_and_size(ledger):
    pool = np.random.default_rng(0).standard_normal((40, 3))
    found = list(measure_growth(pool, ledger, sizes=(5, 20), data="of the graphs"))
    assert [each.regularization for each in found] == [None, *sinkhorn.REGULARIZATIONS]
    assert found[0].converged == (True, True)
    assert all(each.sizes == (5, 20) and min(each.seconds) > 0 for each in found)


def test_sizes_that_would_take_too_long_are_left_out(ledger, monkeypatch):
    monkeypatch.setattr(sinkhorn, "LONGEST", 0.0)
    (first, *_) = measure_growth(
        np.random.default_rng(0).standard_normal((40, 3)), ledger, sizes=(5, 20), data="of the graphs"
    )
    assert first.sizes == (5,)


def test_of_few_points_there_are_as_many_on_either_side_as_there_are(ledger):
    pool = np.random.default_rng(0).standard_normal((31, 3))
    found = list(measure_growth(pool, ledger, sizes=(5, 20, 40), data="of 31 points"))
    assert all((each.sizes, each.n_points) == ((5, 15), 31) for each in found)
    assert list(measure_growth(pool[:1], ledger, sizes=(5,), data="of one point")) == []


def test_what_was_measured_is_not_measured_again(ledger, monkeypatch):
    pool = np.random.default_rng(0).standard_normal((10, 3))
    first = list(measure_growth(pool, ledger, sizes=(5,), data="of the graphs"))
    monkeypatch.setattr(sinkhorn, "exact_plan", None)
    monkeypatch.setattr(sinkhorn, "sinkhorn_plan", None)
    assert list(measure_growth(pool, ledger, sizes=(5,), data="of the graphs")) == first


def test_what_was_measured_on_other_graphs_is_measured_anew(graphs, ledger, monkeypatch):
    reference = np.random.default_rng(1).standard_normal((3, 2))
    solved = []

    def solve(*arguments):
        solved.append(arguments)
        return exact_plan(*arguments)

    monkeypatch.setattr(sinkhorn, "exact_plan", solve)
    counts = []
    for data in ("one", "other", "one"):
        list(compare_on_molecules(graphs, reference, ledger, data=data))
        counts.append(len(solved))
    # The first graph is solved in any case, to import POT.
    assert np.diff([0, *counts]).tolist() == [3, 3, 1]


def test_an_iteration_that_does_not_converge_is_no_error(graphs, ledger, monkeypatch):
    def fail(*_):
        raise sinkhorn.PlanError("marginals")

    monkeypatch.setattr(sinkhorn, "sinkhorn_plan", fail)
    reference = np.random.default_rng(1).standard_normal((3, 2))
    for each in compare_on_molecules(graphs, reference, ledger, data="of the graphs"):
        assert np.isnan(each.error).all()
    (_, second, *_) = measure_growth(graphs.points, ledger, sizes=(4,), data="of the graphs")
    assert second.converged == (False,)


def test_the_crossing_is_the_last_one():
    lp = growth(None, (10, 100, 1000), (1.0, 10.0, 1000.0))
    # Faster, slower, faster again: between 100 (ten times as long) and 1000 (a tenth), the middle on a logarithmic scale.
    assert crossing(lp, growth(0.1, (10, 100, 1000), (0.5, 100.0, 100.0))) == pytest.approx(10**2.5)
    assert crossing(lp, growth(0.1, (10, 100), (2.0, 11.0))) is None
    assert crossing(lp, growth(0.1, (10, 100), (0.5, 1.0))) == 10
    # Where it did not converge it has solved nothing.
    quick = replace(growth(0.1, (10, 100, 1000), (2.0, 11.0, 1.0)), converged=(True, True, False))
    assert crossing(lp, quick) is None
    assert crossing(lp, replace(quick, converged=(False, False, False))) is None


def test_the_table_names_the_crossing_and_what_was_not_measured(tmp_path):
    pytest.importorskip("matplotlib")
    molecules = [Molecules(0.1, np.array([2.0, 4.0, 9.0]), np.array([0.1, 0.3, np.nan]))]
    series = [growth(None, (10, 1000), (1.0, 1e4)), growth(0.1, (10,), (10.0,)), growth(0.01, (10, 1000), (10.0, 1e3))]
    write_results(Folder(str(tmp_path)), molecules, series, HOW)
    text = (tmp_path / "sinkhorn.md").read_text()
    assert "| 0.1 | 5.0 ± 3.6 | 4.0 | 20.00% ± 14.14% | 30.00% | 66.7% |" in text
    assert "| LP | 1 | 10000 | |" in text
    assert "| Sinkhorn, 0.1 | 10 | - | none measured, up to 10 |" in text
    assert "| Sinkhorn, 0.01 | 10 | 1000 | 100 points |" in text
    assert (tmp_path / "sinkhorn.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((tmp_path / "sinkhorn.json").read_text())
    assert kept["growth"][2]["seconds"] == [10.0, 1000.0]
    assert kept["molecules"] == [
        {"regularization": 0.1, "time_ratio": [2.0, 4.0, 9.0], "relative_error": [0.1, 0.3, None]}
    ]


def test_tables_are_written_when_a_part_is_done(tmp_path):
    pytest.importorskip("matplotlib")
    write_results(Folder(str(tmp_path)), [], [], HOW)
    assert "number of points is not measured yet" in (tmp_path / "sinkhorn.md").read_text()


def test_the_table_says_where_there_are_few_points(tmp_path):
    pytest.importorskip("matplotlib")
    few = [Growth(None, (25, 60), (1.0, 2.0), (True, True), 121)]
    write_results(Folder(str(tmp_path)), [], few, HOW)
    text = (tmp_path / "sinkhorn.md").read_text()
    assert "There are 121 distinct points, so that no more than 60 are on either side." in text
    write_results(Folder(str(tmp_path)), [], [growth(None, (25,), (1.0,))], HOW)
    assert "distinct points, so" not in (tmp_path / "sinkhorn.md").read_text()


def test_one_molecule_has_no_deviation_and_an_iteration_that_never_converged_no_error(tmp_path):
    pytest.importorskip("matplotlib")
    never = Molecules(0.01, np.array([2.0, 4.0]), np.array([np.nan, np.nan]))
    write_results(Folder(str(tmp_path)), [Molecules(0.1, np.array([2.0]), np.array([0.25])), never], [], HOW)
    text = (tmp_path / "sinkhorn.md").read_text()
    assert "| 0.1 | 2.0 | 2.0 | 25.00% | 25.00% | 100.0% |" in text
    assert "| 0.01 | 3.0 ± 1.4 | 3.0 |  |  | 0.0% |" in text
    assert json.loads((tmp_path / "sinkhorn.json").read_text())["molecules"][1]["relative_error"] == [None, None]
    write_results(Folder(str(tmp_path)), [never], [], HOW)
    assert (tmp_path / "sinkhorn.png").read_bytes().startswith(b"\x89PNG")


def test_growth_is_the_median_over_draws_of_the_points(ledger, monkeypatch):
    pool = np.random.default_rng(0).standard_normal((40, 3))
    seconds = iter([5.0, 1.0, 2.0])
    solved = []

    def solve(problem, regularization):
        assert regularization is None
        solved.append(problem.costs)
        return next(seconds), 1.0

    monkeypatch.setattr(sinkhorn._Problem, "solve", solve)
    first = next(measure_growth(pool, ledger, sizes=(5,), data="of the graphs"))
    assert first.seconds == (2.0,)
    assert len({costs.tobytes() for costs in solved}) == 3


def test_what_was_measured_has_the_processor_beside_the_versions(ledger):
    list(measure_growth(np.random.default_rng(0).standard_normal((10, 3)), ledger, sizes=(5,), data="of the graphs"))
    assert ledger.how()["versions"]["processor"]
    assert ledger.how()["versions"]["POT"] == ot.__version__
