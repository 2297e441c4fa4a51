import errno
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from distributed import Future, wait

from wegl_dask import bags
from wegl_dask.bags import StageError, run_stage
from wegl_dask.cluster import open_client
from wegl_dask.errors import SourceError, TooManyRejectedError, WeglError
from wegl_dask.spec import ClusterTable
from wegl_dask.worker_checks import own_versions


def test_every_descriptor_comes_back_once_with_its_number(dask_client, monkeypatch):
    monkeypatch.setattr(bags, "WAVE", 7)
    monkeypatch.setattr(bags, "UNDER_WAY", 21)

    def square(number):
        return number**2

    done = list(run_stage(dask_client, "square", square, range(50), retries=0))
    assert sorted((number, outcome.result) for number, outcome in done) == [(n, n**2) for n in range(50)]
    assert {outcome.worker for _, outcome in done} <= set(dask_client.nthreads())


@pytest.mark.parametrize("is_beside", [False, True])
def test_the_scheduler_has_a_task_a_descriptor(is_beside, dask_client):
    def count(dask_scheduler):
        return sum(str(key).startswith("('tasks-") for key in dask_scheduler.tasks)

    beside = dask_client.submit(int, pure=False) if is_beside else None
    if is_beside:
        wait(beside)
    stage = run_stage(dask_client, "tasks", abs, range(40), retries=0, beside=beside)
    next(stage)
    assert dask_client.run_on_scheduler(count) == 40
    stage.close()


def test_a_bag_of_large_descriptors_holds_fewer(dask_client, monkeypatch):
    sizes = []
    bag = bags._bag_of
    monkeypatch.setattr(bags, "_bag_of", lambda *args: sizes.append(len(args[2])) or bag(*args))
    descriptors = ["x" * 100_000] * 11 + ["x" * 700_000] + ["x"] * 600
    done = run_stage(dask_client, "count", len, descriptors, retries=0)
    assert sorted(outcome.result for _, outcome in done) == sorted(map(len, descriptors))
    assert sizes == [4, 4, 3, 1, 500, 100]


def test_nothing_is_submitted_for_no_descriptors(dask_client):
    assert list(run_stage(dask_client, "nothing", abs, [], retries=0)) == []


def test_the_same_call_is_computed_anew_each_time(dask_client, tmp_path):
    calls = str(tmp_path)

    def note(number):
        import tempfile

        tempfile.mkstemp(dir=calls)
        return number

    for _ in range(3):
        list(run_stage(dask_client, "note", note, [1, 2], retries=0))
    assert len([*tmp_path.iterdir()]) == 6


@pytest.mark.parametrize("error", [WeglError("a"), SourceError("b"), TooManyRejectedError("c")])
def test_an_error_meant_for_the_user_comes_through_as_it_is(error, dask_client):
    def fail(number):
        if number == 3:
            raise error
        return number

    with pytest.raises(type(error), match=f"^{error}$") as caught:
        list(run_stage(dask_client, "fail", fail, range(10), retries=3))
    assert type(caught.value) is type(error)


@pytest.mark.parametrize(("caused_by_system", "n_attempts"), [(True, 3), (False, 1)])
def test_what_the_system_refused_is_tried_again_and_bad_input_is_not(
    caused_by_system, n_attempts, dask_client, tmp_path
):
    calls, number = str(tmp_path), errno.EIO

    def fail(_):
        import tempfile

        tempfile.mkstemp(dir=calls)
        cause = OSError(number, "Input/output error") if caused_by_system else ValueError("not a number")
        raise WeglError("cannot read it") from cause

    with pytest.raises(WeglError, match=r"^cannot read it$"):
        list(run_stage(dask_client, "fail", fail, [0], retries=2))
    assert len([*tmp_path.iterdir()]) == n_attempts


def test_other_errors_are_listed_when_all_else_is_done(dask_client):
    def fail_on_odd(number):
        if number % 2:
            raise ZeroDivisionError(f"at {number}")
        return number

    with pytest.raises(StageError) as caught:
        list(run_stage(dask_client, "halve", fail_on_odd, range(20), retries=0))
    message = str(caught.value)
    assert message.startswith("halve: 10 of 20 parts failed: ")
    assert message.count("ZeroDivisionError: at ") == 5
    assert "; and 5 more. What was finished stays valid" in message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_finished_ones_are_handed_on_before_the_failed_ones_are_reported(dask_client):
    def fail_on_odd(number):
        if number % 2:
            raise ZeroDivisionError
        return number

    results = run_stage(dask_client, "halve", fail_on_odd, range(20), retries=0)
    assert {next(results)[0] for _ in range(10)} == set(range(0, 20, 2))
    with pytest.raises(StageError):
        next(results)


def test_a_consumer_that_stops_cancels_what_is_under_way(dask_client, wait_until):
    def busy(number):
        import time

        time.sleep(0.01 * number)
        return number

    for _ in run_stage(dask_client, "busy", busy, range(100), retries=0):
        break
    # Tests of other files may have left something on the cluster that all of them share.
    tasks = dask_client.cluster.scheduler.tasks
    # Without cancelling they would take 25 s.
    wait_until(
        lambda: not [key for key in tasks if "busy" in str(key)], "the scheduler to forget the tasks", seconds=15
    )


def test_a_worker_that_joins_with_other_versions_stops_the_stage_with_a_table(dask_client, monkeypatch):
    monkeypatch.setattr(bags, "versions_digest", lambda _: "of other versions")
    monkeypatch.setattr(bags, "own_versions", lambda _: {**own_versions(), "numpy": "2.0.0"})
    with pytest.raises(WeglError, match="do not run what this client runs") as caught:
        list(run_stage(dask_client, "square", abs, range(3), retries=0))
    assert re.search(r"\| numpy +\| 2\.0\.0 +\| 2\.0\.0 +\| 2\.", caught.value.table)


def test_a_worker_that_joins_with_another_version_of_what_the_job_needs_stops_the_stage(dask_client, monkeypatch):
    pytest.importorskip("rdkit")
    assert len(list(run_stage(dask_client, "square", abs, range(3), retries=0, packages=("rdkit",)))) == 3
    monkeypatch.setattr(bags, "versions_digest", lambda packages: f"of another {packages[0]}")
    monkeypatch.setattr(bags, "own_versions", lambda packages: {**own_versions(packages), packages[0]: "2019.03.1"})
    with pytest.raises(WeglError, match="do not run what this client runs") as caught:
        list(run_stage(dask_client, "square", abs, range(3), retries=0, packages=("rdkit",)))
    assert re.search(r"\| rdkit +\| 2019\.03\.1 +\| 2019\.03\.1 +\| 2", caught.value.table)


def test_a_worker_that_joins_without_the_package_stops_the_stage(dask_client):
    def unknown(_):
        raise ModuleNotFoundError("No module named 'wegl_dask'", name="wegl_dask")

    with pytest.raises(WeglError, match=r"a worker has joined on which wegl-dask is not installed: install wegl-dask"):
        list(run_stage(dask_client, "square", unknown, range(3), retries=0))


def test_a_task_is_done_beside_a_result(dask_client):
    addresses = sorted(dask_client.nthreads())
    assert len(addresses) > 1
    for address in addresses * 3:
        result = dask_client.submit(int, workers=[address], pure=False)
        wait([result])
        ((_, outcome),) = run_stage(dask_client, "count", abs, [-3], retries=0, beside=result)
        assert (outcome.result, outcome.worker) == (3, address)


def test_a_task_beside_a_result_survives_all_workers(tmp_path, wait_until):
    """The workers that come in their place have other addresses."""
    started, go_on = str(tmp_path / "started"), str(tmp_path / "go on")

    def hold(number):
        import time
        from pathlib import Path

        Path(started).touch()
        while not Path(go_on).exists():
            time.sleep(0.01)
        return number

    def kill_all():
        try:
            wait_until(Path(started).exists, "the task")
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
        finally:
            Path(go_on).touch()

    with open_client(ClusterTable(workers=2, memory_limit="1GB")) as client:
        workers = set(client.run(os.getpid).values())
        result = client.submit(int, pure=False)
        wait([result])
        killer = threading.Thread(target=kill_all)
        killer.start()
        ((_, outcome),) = run_stage(client, "hold", hold, [3], retries=0, beside=result)
        killer.join()
        assert outcome.result == 3
        assert workers.isdisjoint(client.run(os.getpid).values())


class NoAnswer:
    """In place of the calls to a scheduler that a client has."""

    def __getattr__(self, name):
        raise OSError(f"no answer to {name}")


def test_a_scheduler_that_is_gone_is_not_asked_why_it_dropped_the_tasks(dask_client, monkeypatch, tmp_path):
    """A client still takes itself for connected when it has just learned that there will be no results."""
    allowed = tmp_path / "allowed"

    def wait_to_be_allowed(number):
        import time

        while number and not allowed.exists():
            time.sleep(0.01)
        return number

    stage = run_stage(dask_client, "held", wait_to_be_allowed, [0, 1], retries=0)
    next(stage)
    try:
        dask_client.cancel([Future(key) for key in dask_client.futures])
        monkeypatch.setattr(dask_client, "scheduler", NoAnswer())
        with pytest.raises(WeglError, match="held: the connection to the scheduler was lost"):
            next(stage)
    finally:
        allowed.touch()
