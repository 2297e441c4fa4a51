import asyncio
import logging
import os
import re
import socket
import ssl
import threading
import time

import pytest
from distributed import Client, LocalCluster
from distributed.comm import CommClosedError

from wegl_dask import lost_workers, scheduler_client
from wegl_dask.cluster import open_client
from wegl_dask.errors import WeglError
from wegl_dask.spec import ClusterTable


def local(**keys):
    return ClusterTable(**({"workers": 1, "memory_limit": "600MB"} | keys))


def scheduler(address, **keys):
    return ClusterTable(kind="scheduler", address=address, **keys)


@pytest.fixture(scope="module")
def two_workers():
    """A client of two workers, which stand in for an existing cluster; tests leave them as they are."""
    with open_client(local(workers=2)) as client:
        yield client


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(scheduler_client, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 1)
    monkeypatch.setattr(scheduler_client, "PATIENT_SECONDS", 0)
    monkeypatch.setattr(scheduler_client, "WORKERS_SECONDS", 0.5)


def test_an_existing_scheduler_is_used_and_left_running(two_workers, caplog):
    workers = set(two_workers.run(os.getpid).values())
    with open_client(scheduler(two_workers.scheduler.address)) as client:
        assert client.submit(os.getpid).result() in workers
    assert set(two_workers.run(os.getpid).values()) == workers
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tcp://127.0.0.1:1", "(Connection refused|Timed out)"),
        ("nonsense://127.0.0.1:1", "unknown address scheme 'nonsense'"),
        ("127.0.0.1", "missing port number"),
        ("tls://127.0.0.1:1", "TLS"),
    ],
)
def test_an_address_without_a_scheduler_is_one_message(address, reason):
    with (
        pytest.raises(WeglError, match=f"cannot reach the scheduler at {address}: .*{reason}"),
        open_client(scheduler(address)),
    ):
        pass


@pytest.mark.usefixtures("impatient")
def test_something_that_listens_and_says_nothing_is_given_up(caplog, monkeypatch):
    monkeypatch.setattr(scheduler_client, "SOON_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WeglError, match=f"cannot reach the scheduler at {address}: no answer"):
            open_client(scheduler(address)).__enter__()
    assert f"the scheduler at {address} does not answer yet: waiting for it, for" in caplog.text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
        # A message of Dask's form, in two frames, that holds nothing of sense.
        b"".join(size.to_bytes(8, "little") for size in (2, 16, 16)) + b"\x93" * 64,
    ],
)
def test_something_that_speaks_another_protocol_is_no_scheduler(words):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(words)
                connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WeglError, match=f"cannot reach the scheduler at {address}"):
            open_client(scheduler(address)).__enter__()
        thread.join()


@pytest.mark.parametrize("question", ["get_versions", "nthreads", "run", "run_on_scheduler"])
def test_a_scheduler_that_goes_away_while_it_is_asked_is_one_message(question, two_workers, monkeypatch):
    def lose(*_, **__):
        raise CommClosedError("in <TCP>: the stream is closed")

    monkeypatch.setattr(Client, question, lose)
    address = two_workers.scheduler.address
    with (
        pytest.raises(WeglError, match=f"cannot reach the scheduler at {address}: .*the stream is closed"),
        open_client(scheduler(address)),
    ):
        pass


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (10, "certificate has expired", "its certificate has expired: make new ones"),
        (19, "self-signed", r"its certificate is not of the authority in tls_ca_file \(self-signed\)"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said(monkeypatch, code, said, reason):
    cause = ssl.SSLCertVerificationError(1, "certificate verify failed")
    cause.verify_code, cause.verify_message = code, said

    async def refuse(*_):
        raise CommClosedError("in <TLS>") from cause

    monkeypatch.setattr(scheduler_client, "_ask_for_kind", refuse)
    with pytest.raises(WeglError, match=f"cannot reach the scheduler at tcp://127.0.0.1:1: {reason}"):
        open_client(scheduler("tcp://127.0.0.1:1")).__enter__()


def test_a_worker_is_no_scheduler(two_workers):
    worker = next(iter(two_workers.scheduler_info(n_workers=-1)["workers"]))
    with pytest.raises(WeglError, match=f"at {worker} is no scheduler but a Worker"), open_client(scheduler(worker)):
        pass


@pytest.fixture
def empty_scheduler():
    """Address of a scheduler without workers."""
    with LocalCluster(n_workers=0, host="127.0.0.1", scheduler_kwargs={"dashboard_address": "127.0.0.1:0"}) as empty:
        yield empty


@pytest.mark.usefixtures("impatient")
def test_a_scheduler_without_workers_is_waited_for_and_given_up(empty_scheduler, caplog):
    with (
        pytest.raises(WeglError, match=r"has had no workers for 0\.5 s: start workers"),
        open_client(scheduler(empty_scheduler.scheduler_address)),
    ):
        pass
    assert "has no workers yet: waiting for them" in caplog.text


def test_a_scheduler_that_ends_while_workers_are_waited_for_is_one_message(empty_scheduler, monkeypatch):
    def end(*_, **__):
        empty_scheduler.close()
        return {}

    monkeypatch.setattr(Client, "nthreads", end)
    address = empty_scheduler.scheduler_address
    with (
        pytest.raises(
            WeglError, match=f"scheduler at {address}: the connection to the scheduler was lost. .* run the same"
        ),
        open_client(scheduler(address)),
    ):
        pass


def test_workers_that_are_at_what_a_stopped_command_has_left_are_waited_for_aloud(caplog, wait_until, tmp_path):
    """A task that runs goes on when it is cancelled, and the scheduler has forgotten it."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, host="127.0.0.1", protocol="tcp", dashboard_address=None
        ) as cluster,
        open_client(scheduler(cluster.scheduler_address)) as first,
    ):
        (worker,) = cluster.workers.values()

        def wait_for(path):
            while not path.exists():
                time.sleep(0.01)

        left = first.submit(wait_for, tmp_path / "go on", pure=False)
        wait_until(lambda: worker.state.executing, "the task")
        first.cancel(left)
        wait_until(lambda: not cluster.scheduler.tasks, "its end")
        with open_client(scheduler(cluster.scheduler_address)) as second:
            assert "all workers of the scheduler at" in caplog.text
            assert "still at those of one that was stopped" in caplog.text
            (tmp_path / "go on").touch()
            assert second.submit(int, pure=False).result(timeout=60) == 0


def test_a_cluster_that_adapts_to_its_load_is_given_some_to_start_a_worker(empty_scheduler):
    empty_scheduler.adapt(minimum=0, maximum=1, interval="50ms")
    with open_client(scheduler(empty_scheduler.scheduler_address)) as client:
        assert client.submit(sum, (1, 2)).result(timeout=30) == 3


def test_that_the_last_worker_is_gone_is_said_while_something_waits_for_one(monkeypatch, caplog, wait_until):
    looks, sleep = [], asyncio.sleep

    async def counting(seconds, *result):
        looks.extend(["a look"] * (seconds == lost_workers.WATCH_SECONDS))
        return await sleep(seconds, *result)

    def wait_for_some_looks():
        there = len(looks)
        wait_until(lambda: len(looks) > there + 2 * scheduler_client.LOST_LOOKS, "some looks")

    monkeypatch.setattr(lost_workers, "WATCH_SECONDS", 0.0123)
    monkeypatch.setattr(asyncio, "sleep", counting)
    with (
        LocalCluster(n_workers=1, processes=False, host="127.0.0.1", protocol="tcp", dashboard_address=None) as cluster,
        open_client(scheduler(cluster.scheduler_address)) as client,
    ):
        cluster.scale(0)
        wait_until(lambda: not client.nthreads(), "the worker to leave")
        wait_for_some_looks()
        assert "no workers any more" not in caplog.text
        waiting = client.submit(int, pure=False)
        wait_until(lambda: "no workers any more, and this command waits for new ones" in caplog.text, "the warning")
        cluster.scale(1)
        assert waiting.result(timeout=60) == 0
        wait_for_some_looks()
    assert caplog.text.count("no workers any more") == 1


def test_a_worker_with_another_version_or_without_this_package_is_refused(tmp_path):
    other = tmp_path / "pot-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: POT\nVersion: 0.0.1\n")

    def shadow(folder=str(tmp_path)):
        import sys

        sys.path.insert(0, folder)

    def hide():
        import sys

        sys.modules["wegl_dask"] = None

    with open_client(local()) as client:
        table = scheduler(client.scheduler.address)
        client.run(shadow)
        with pytest.raises(WeglError, match="install the same versions everywhere") as caught, open_client(table):
            pass
        assert re.search(r"\| POT +\| [\w.]+ +\| [\w.]+ +\| 0\.0\.1 \(1 of 1\)", caught.value.table)
        client.run(hide)
        with pytest.raises(WeglError, match=r"install wegl-dask [\w.]+ where they run") as caught, open_client(table):
            pass
        assert "not installed (1 of 1)" in caught.value.table
