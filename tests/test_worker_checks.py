import pytest

from wegl_dask.worker_checks import VersionsError, check_versions, own_versions, version_reporter, warn_of_threads


def test_workers_that_use_several_threads_are_reported(caplog):
    warn_of_threads({"tcp://one:1": 1, "tcp://two:2": 8})
    [record] = caplog.records
    assert "1 of 2 workers" in record.message
    assert "(tcp://two:2: 8)" in record.message
    assert "OMP_NUM_THREADS" in record.message


CLIENT = {"Python": "3.11", "wegl-dask": "0.1.0, numerics 1", "numpy": "2.4.6"}


def test_equal_versions_pass():
    check_versions("tcp://here:1", CLIENT, CLIENT, {"a": dict(CLIENT), "b": dict(CLIENT)})


def cells(error):
    lines = error.table.splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]


def test_different_versions_are_one_table():
    workers = {
        "a": CLIENT | {"numpy": "2.3.0"},
        "b": CLIENT | {"Python": "3.12"},
        "c": dict(CLIENT),
        "d": CLIENT | {"numpy": "2.3.0"},
    }
    with pytest.raises(VersionsError, match=r"^the scheduler at tcp://here:1 and its workers") as caught:
        check_versions("tcp://here:1", CLIENT, CLIENT, workers)
    assert cells(caught.value) == [
        ["package", "client", "scheduler", "workers"],
        ["Python", "3.11", "3.11", "3.11 (3 of 4), 3.12 (1 of 4)"],
        ["numpy", "2.4.6", "2.4.6", "2.3.0 (2 of 4), 2.4.6 (2 of 4)"],
    ]


def test_the_scheduler_needs_what_computes_in_any_version_and_what_it_understands_in_the_same():
    check_versions("tcp://here:1", CLIENT, CLIENT | {"numpy": "2.3.0"}, {"a": dict(CLIENT)})
    scheduler = CLIENT | {"numpy": "not installed", "Python": "3.12"}
    with pytest.raises(VersionsError) as caught:
        check_versions("tcp://here:1", CLIENT, scheduler, {"a": dict(CLIENT)})
    assert [row[2] for row in cells(caught.value)] == ["scheduler", "3.12", "not installed"]


def test_the_scheduler_needs_nothing_of_what_one_job_needs():
    job = {"rdkit": "2025.03.6"}
    check_versions("tcp://here:1", CLIENT | job, CLIENT | {"rdkit": "not installed"}, {"a": CLIENT | job})
    for worker in ("not installed", "2024.09.1"):
        with pytest.raises(VersionsError) as caught:
            check_versions("tcp://here:1", CLIENT | job, CLIENT | job, {"a": CLIENT | {"rdkit": worker}})
        assert cells(caught.value)[1:] == [["rdkit", "2025.03.6", "2025.03.6", f"{worker} (1 of 1)"]]


def test_rdkit_reports_the_version_that_it_says_itself():
    rdkit = pytest.importorskip("rdkit.rdBase")
    assert version_reporter(("rdkit",))()["rdkit"] == rdkit.rdkitVersion
    assert own_versions(("networkx", "no-such-package"))["no-such-package"] == "not installed"


def test_where_the_package_is_not_installed_the_message_says_how_to_bring_it_there():
    bare = CLIENT | {"wegl-dask": "not installed"}
    for scheduler, worker in ((bare, CLIENT), (CLIENT, bare)):
        with pytest.raises(
            VersionsError, match=r"install wegl-dask [\w.]+ where they run, .*or set cluster\.upload to a wheel of it"
        ):
            check_versions("tcp://here:1", CLIENT, scheduler, {"a": worker})


def test_where_the_python_alone_is_known_to_differ_the_table_has_it():
    ours, theirs = {"Python": "3.11"}, {"Python": "3.13"}
    for scheduler, worker in ((theirs, ours), (ours, theirs)):
        with pytest.raises(VersionsError, match="install the same versions everywhere") as caught:
            check_versions("tcp://here:1", ours, scheduler, {"a": worker})
        assert "3.13" in caught.value.table
