"""A client of a Dask scheduler that runs already, and what is made sure of before it is given work."""

import asyncio
import logging
import math
import ssl
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from distributed import CancelledError, Client, Worker, rpc
from distributed.security import Security
from distributed.utils import LoopRunner
from distributed.versions import VersionMismatchWarning

from wegl_dask.errors import WeglError, lost_connection
from wegl_dask.lost_workers import watched
from wegl_dask.quiet import innermost, silenced
from wegl_dask.spec import ClusterTable
from wegl_dask.stopping import signals_held
from wegl_dask.tls import refuse_insecure, security
from wegl_dask.uploads import upload_wheel
from wegl_dask.worker_checks import (
    MATCHED_PACKAGES,
    blas_threads,
    check_versions,
    version_reporter,
    warn_of_threads,
)

CONNECT_SECONDS = 30
ANSWER_SECONDS = 35
PATIENT_SECONDS = 5
SOON_SECONDS = 1
"""After which it is said that a scheduler has not answered yet, and is waited for."""

WORKERS_SECONDS = 600
CLOSE_SECONDS = 10
EXPIRED = 10
"""What OpenSSL calls X509_V_ERR_CERT_HAS_EXPIRED."""

LOST_LOOKS = 2
"""Looks in turn that find no worker, before that is said: one may be on its way."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


@contextmanager
def scheduler_client(table: ClusterTable) -> Iterator[Client]:
    """Open a client of the scheduler at ``table.address``; see `wegl_dask.cluster.open_client`."""
    address = str(table.address)
    try:
        refuse_insecure(address, table)
    except ValueError as error:
        raise _unreachable(address, error) from error
    certificates = security(table)
    _check_scheduler(address, certificates)
    with warnings.catch_warnings():
        # Compared below, with the packages that matter here.
        warnings.simplefilter("ignore", VersionMismatchWarning)
        client = Client(address, timeout=CONNECT_SECONDS, security=certificates)
    try:
        _make_ready(client, address, table.upload)

        async def say_so() -> None:
            _log.warning(
                "the scheduler at %s has no workers any more, and this command waits for new ones: start some, or stop it",
                address,
            )

        with watched(client, say_so, looks=LOST_LOOKS):
            yield client
    finally:
        close_client(client)


def _make_ready(client: Client, address: str, wheel: str | None) -> None:
    """Wait for a worker, and see to it that scheduler and workers run what this client does."""
    try:
        _wait_for_a_worker(client, address)
        _check_python(client, address)
        if wheel is not None:
            upload_wheel(client, wheel)
        check_workers(client, address)
        _say_if_busy(client, address)
    except OSError as error:
        raise _unreachable(address, error) from error
    except CancelledError as error:
        # The task that is to start a worker: its scheduler has ended while it was waited for.
        raise lost_connection(f"waiting for workers of the scheduler at {address}") from error


def _say_if_busy(client: Client, address: str) -> None:
    """Warn if all workers are at tasks: of another command, or of one that was stopped, whose tasks they still finish."""
    busy = _run_on_workers(client, _n_running)
    threads = client.nthreads()
    if busy and all(count >= threads.get(worker, 1) for worker, count in busy.items()):
        _log.warning(
            "all workers of the scheduler at %s are at tasks of another command, or still at those of one that was stopped: "
            "this one waits until they are done",
            address,
        )


def _n_running(dask_worker: Worker) -> int:
    """Count the tasks that run on a worker, those among them that nobody waits for any more."""
    return len(dask_worker.state.executing)


def check_workers(client: Client, address: str) -> None:
    """Compare versions with the scheduler and the workers there are; warn of their threads.

    Raises
    ------
    WeglError
        If versions differ.
    """
    _compare(client, address, MATCHED_PACKAGES)
    warn_of_threads(_run_on_workers(client, blas_threads))


def require_packages(client: Client, packages: tuple[str, ...]) -> None:
    """Compare with the workers there are what one job needs beyond the packages that all do.

    Parameters
    ----------
    client : distributed.Client
    packages : tuple of str
        Those that its results follow from. The scheduler needs none of them.

    Raises
    ------
    VersionsError
        If a worker has another version than this process, or lacks one of them.
    """
    if packages:
        _compare(client, client.scheduler.address, packages)


def _compare(client: Client, address: str, packages: tuple[str, ...]) -> None:
    report = version_reporter(packages)
    check_versions(address, report(), client.run_on_scheduler(report), _run_on_workers(client, report))


def _check_python(client: Client, address: str) -> None:
    """Refuse another Python before it is sent a function, as the bytecode of this one, which may end the process.

    Raises
    ------
    VersionsError
        If the scheduler or a worker has one.
    """

    def minor(found: Mapping[str, Any]) -> dict[str, str]:
        return {"Python": ".".join(str(found["host"]["python"]).split(".")[:2])}

    versions = client.get_versions()
    workers = {worker: minor(found) for worker, found in versions["workers"].items()}
    check_versions(address, minor(versions["client"]), minor(versions["scheduler"]), workers)


def _run_on_workers(client: Client, function: Callable[..., Result]) -> dict[str, Result]:
    """Call a function on every worker: what it returned, by address, without the workers that left meanwhile."""
    answers = client.run(function, on_error="return")
    for answer in answers.values():
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise answer
    return {worker: answer for worker, answer in answers.items() if not isinstance(answer, OSError)}


def close_client(client: Client) -> None:
    """Close a client; a scheduler that does not answer any more must not keep the job from ending."""
    with signals_held(), silenced(), suppress(TimeoutError):
        client.close(timeout=CLOSE_SECONDS)


def _wait_for_a_worker(client: Client, address: str) -> None:
    """Wait until there is a worker, busy or not. A cluster that adapts to its load starts none before it is given work."""
    asked = client.submit(int, pure=False)
    started = told = time.monotonic()
    try:
        while not client.nthreads():
            now = time.monotonic()
            if now - started > WORKERS_SECONDS:
                raise WeglError(
                    f"the scheduler at {address} has had no workers for {WORKERS_SECONDS} s: start workers that connect to it"
                )
            if now - told > PATIENT_SECONDS:
                # Not every command shows what is only worth knowing.
                _log.warning(
                    "the scheduler at %s has no workers yet: waiting for them, for %d s at most",
                    address,
                    WORKERS_SECONDS,
                )
                told = math.inf
            with suppress(TimeoutError):
                asked.result(timeout=0.5)
    finally:
        asked.release()


def _check_scheduler(address: str, certificates: Security) -> None:
    """Ask whatever listens at the address what it is.

    `Client` would wait without end for something that accepts connections and says nothing, and a client that failed to
    connect complains when it is collected.
    """
    try:
        kind = LoopRunner().run_sync(_ask_for_kind, address, certificates)
    # What is no scheduler may answer anything: bytes that are no message, or a message of an absurd length.
    except (OSError, ValueError, TypeError, MemoryError, struct.error) as error:
        raise _unreachable(address, error) from error
    if kind != "Scheduler":
        raise WeglError(f"at {address} is no scheduler but a {kind}: set cluster.address to the scheduler's address")


def _unreachable(address: str, error: BaseException) -> WeglError:
    return WeglError(
        f"cannot reach the scheduler at {address}: {_reason(address, error)}. cluster.address is what the scheduler prints "
        "when it starts, such as tls://host:8786; tls:// needs cluster.tls_ca_file, tls_cert and tls_key, or Dask's "
        "distributed.comm.tls settings"
    )


def _reason(address: str, error: BaseException) -> str:
    """Say what is behind an error; of certificates that do not match, either side sees one of several by chance."""
    said = innermost(error)
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case ssl.SSLCertVerificationError(verify_code=code) if code == EXPIRED:
                return "its certificate has expired: make new ones"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not of the authority in tls_ca_file ({cause.verify_message})"
            case ssl.SSLError() | ConnectionResetError() if address.startswith("tls"):
                return f"it hangs up on our certificate, which is not of its authority perhaps ({said})"
            case ConnectionResetError():
                return f"it hangs up, since it uses tls:// perhaps ({said})"
        cause = cause.__cause__
    return said


async def _ask_for_kind(address: str, certificates: Security) -> str:
    connection = certificates.get_connection_args("client")
    waiting = "the scheduler at %s does not answer yet: waiting for it, for %d s at most"
    telling = asyncio.get_running_loop().call_later(SOON_SECONDS, _log.warning, waiting, address, CONNECT_SECONDS)
    # The outer limit is for what accepts the connection and says nothing.
    try:
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            rpc(address, timeout=CONNECT_SECONDS, connection_args=connection) as peer,
        ):
            return str((await peer.identity())["type"])
    finally:
        telling.cancel()
