import pytest

from wegl_dask.errors import WeglError
from wegl_dask.worker_checks import check_versions, warn_of_threads


def test_workers_that_use_several_threads_are_reported(caplog):
    warn_of_threads({"tcp://one:1": 1, "tcp://two:2": 8})
    [record] = caplog.records
    assert "1 of 2 workers" in record.message
    assert "(tcp://two:2: 8)" in record.message
    assert "OMP_NUM_THREADS" in record.message


CLIENT = {"Python": "3.11", "wegl-dask": "0.1.0, numerics 1", "numpy": "2.4.6"}


def test_equal_versions_pass():
    check_versions("tcp://here:1", CLIENT, {"a": dict(CLIENT), "b": dict(CLIENT)})


def test_different_versions_are_one_table():
    workers = {
        "a": CLIENT | {"numpy": "2.3.0"},
        "b": CLIENT | {"Python": "3.12"},
        "c": dict(CLIENT),
        "d": CLIENT | {"numpy": "2.3.0"},
    }
    with pytest.raises(WeglError) as caught:
        check_versions("tcp://here:1", CLIENT, workers)
    lines = str(caught.value).splitlines()
    assert "tcp://here:1" in lines[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert cells == [
        ["package", "client", "workers"],
        ["Python", "3.11", "3.11 (3 of 4), 3.12 (1 of 4)"],
        ["numpy", "2.4.6", "2.3.0 (2 of 4), 2.4.6 (2 of 4)"],
    ]
