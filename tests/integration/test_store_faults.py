"""An S3 server that answers with errors, asks to slow down, or does not answer: tried again, or one clear line."""

import contextlib
import http.client
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.reading import read_embeddings
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
ANSWERS = {
    "500": (500, ERROR.format(code="InternalError", message="We encountered an internal error. Please try again.")),
    "503": (503, ERROR.format(code="SlowDown", message="Please reduce your request rate.")),
    "403": (403, ERROR.format(code="AccessDenied", message="Access Denied")),
}


class Proxy(ThreadingHTTPServer):
    """Hands requests on to an S3 server, but for those that `fault` has something else in mind for.

    Attributes
    ----------
    fault : callable
        From the method, the path and the number of the request to a key of `ANSWERS`, "hang", "cut" (the connection
        is closed in the middle of the answer), or None.
    asked : list of tuple
        Method, path and fault of every request.
    lags : bool
        Listings show nothing of what was put here since the proxy was started.
    hidden : int
        Entries that listings have not shown.
    """

    daemon_threads = True

    def __init__(self, upstream):
        self.upstream = urlsplit(upstream).netloc
        self.fault = lambda _method, _path, _number: None
        self.asked = []
        self.lags = False
        self.hidden = 0
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def listing(self, path, content):
        """Take out of a listing what it does not show yet."""
        if not self.lags or "list-type" not in parse_qs(urlsplit(path).query):
            return content
        put = {urlsplit(made).path.split("/", 2)[2].encode() for method, made, _ in self.asked if method == "PUT"}
        kept = re.sub(rb"<Contents>.*?</Contents>", lambda entry: b"" if key_in(entry[0]) in put else entry[0], content)
        self.hidden += content.count(b"<Contents>") - kept.count(b"<Contents>")
        return kept

    def faults(self):
        return [fault for _, _, fault in self.asked if fault]

    def handle_error(self, request, client_address):
        """Clients give up on connections that hang: nothing to report."""


def key_in(entry):
    """The key that an entry of a listing is of."""
    return re.search(rb"<Key>(.*?)</Key>", entry)[1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self):
        body = self.read_body()
        proxy = self.server
        fault = proxy.fault(self.command, self.path, len(proxy.asked))
        proxy.asked.append((self.command, self.path, fault))
        if fault == "hang":
            proxy.ended.wait(60)
            self.close_connection = True
            return
        if fault in ANSWERS:
            status, text = ANSWERS[fault]
            self.answer(status, {"Content-Type": "application/xml"}, text.encode())
            return
        connection = http.client.HTTPConnection(proxy.upstream)
        with contextlib.closing(connection):
            headers = {key: value for key, value in self.headers.items() if key.lower() != "transfer-encoding"}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            response = connection.getresponse()
            content = proxy.listing(self.path, response.read())
            self.answer(response.status, dict(response.getheaders()), content, cut=fault == "cut")

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.pass_on
        raise AttributeError(name)

    def read_body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def answer(self, status, headers, content, *, cut=False):
        self.send_response_only(status)
        length = headers.get("Content-Length", headers.get("content-length")) if self.command == "HEAD" else None
        for key, value in headers.items():
            if key.lower() not in {"content-length", "connection", "transfer-encoding"}:
                self.send_header(key, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = self.close_connection or cut

    def log_message(self, *arguments):
        """Keep quiet."""


@pytest.fixture
def proxy(s3_options):
    """A proxy in front of the session's S3 server, without faults at first."""
    with Proxy(s3_options["endpoint_url"]) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield proxy
        proxy.ended.set()
        proxy.shutdown()
        thread.join()


@pytest.fixture
def folder(proxy, tmp_path):
    """A folder behind the proxy, of a client that does not wait long."""
    return Folder(f"s3://runs/{tmp_path.name}", options(proxy))


def options(proxy, **client):
    quick = {"connect_timeout": 2, "read_timeout": 0.5, "retries": {"mode": "standard", "total_max_attempts": 3}}
    return {"key": "test", "secret": "test", "endpoint_url": proxy.url, "config_kwargs": quick | client}


# --- One request ---


@pytest.mark.parametrize("fault", ["500", "503", "hang"])
def test_a_request_that_fails_once_is_made_again(folder, proxy, fault):
    proxy.fault = lambda method, _path, _number: fault if method == "PUT" and fault not in proxy.faults() else None
    folder.write("data/a", b"content")
    assert proxy.faults() == [fault]
    assert folder.read("data/a") == b"content"


@pytest.mark.parametrize("fault", ["500", "503", "hang"])
def test_reading_and_listing_are_tried_again_too(folder, proxy, fault):
    folder.write("data/a", b"content")
    for ask, answer in (
        (lambda: folder.read("data/a"), b"content"),
        (lambda: folder.listing("data"), {"a": 7}),
        (lambda: folder.sha256("data/a")[:6], "ed7002"),
        (lambda: folder.remove("data/a"), None),
    ):
        proxy.asked.clear()
        proxy.fault = lambda _method, _path, _number: None if fault in proxy.faults() else fault
        assert ask() == answer
        assert proxy.faults() == [fault]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("500", r"We encountered an internal error\. Please try again\.; what was finished stays valid"),
        ("503", r"Please reduce your request rate\.; what was finished stays valid"),
        ("hang", r"Read timeout on endpoint URL.*; what was finished stays valid"),
        ("403", r"permission denied \(Access Denied\)\. Choose another folder, or change its rights"),
    ],
)
def test_a_store_that_goes_on_failing_is_given_up_after_so_many_attempts(folder, proxy, fault, message):
    proxy.fault = lambda *_: fault
    with pytest.raises(WeglError, match=rf"^cannot write s3://runs/.*/data/a: .*{message}"):
        folder.write("data/a", b"content")
    assert proxy.faults() == [fault] * (1 if fault == "403" else 3)
    proxy.fault = lambda *_: None
    assert folder.listing("data") == {}


def test_an_answer_that_breaks_off_is_no_content(folder, proxy):
    folder.write("data/a", b"content")
    proxy.fault = lambda *_: "cut"
    with pytest.raises(WeglError, match=r"cannot read s3://runs/.*/data/a: "):
        folder.read("data/a")
    proxy.fault = lambda *_: None
    assert folder.read("data/a") == b"content"


def test_the_clients_settings_may_be_set_for_all_of_fsspec(proxy, monkeypatch, tmp_path):
    import fsspec

    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"total_max_attempts": 1}}})
    given = {key: value for key, value in options(proxy).items() if key != "config_kwargs"}
    proxy.fault = lambda *_: "500"
    with pytest.raises(WeglError, match="internal error"):
        Folder(f"s3://runs/{tmp_path.name}", given).write("a", b"1")
    assert proxy.faults() == ["500"]


# --- A whole job ---


SOURCE = {"nodes_per_shard": 800}
"""Five shards."""

REFERENCE = {"kind": "sample"}
"""It reads the samples as k-means does, for which new workers import some seconds' worth."""


@pytest.fixture
def on_s3(command, job_file, mutag_job, proxy, tmp_path):
    """Run the job on MUTAG by the command, on workers of its own, into a bucket behind the proxy."""
    url = f"s3://runs/{tmp_path.name}"
    cluster = {"workers": 2, "memory_limit": "1GB", "retries": 1}
    job = job_file(mutag_job(source=SOURCE, reference=REFERENCE, output={"path": url}, cluster=cluster))

    def run(attempts=4):
        # Long enough for a server that is only slow: what it was asked it may still do when nobody waits for it any more.
        client = {"read_timeout": 5, "retries": {"mode": "standard", "total_max_attempts": attempts}}
        environment = {"FSSPEC_S3": json.dumps(options(proxy, **client)), "AWS_DEFAULT_REGION": "us-east-1"}
        return command("run", job, shared=False, environment=environment)

    run.folder = RunFolder(url, options(proxy))
    run.options = options(proxy)
    return run


def is_same(on_s3, local):
    """Compare the parts on the store with those of a run on disk."""
    return all(
        on_s3.folder.read(f"data/{path.name}") == path.read_bytes() for path in (local / "data").iterdir()
    ) and len(on_s3.folder.listing("data")) == len([*(local / "data").iterdir()])


@pytest.fixture(scope="module")
def undisturbed(run, shared_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    source = {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG", **SOURCE}
    run({"source": source, "reference": REFERENCE, "output": {"path": str(out)}})
    return out


def test_a_job_comes_through_errors_and_delays_of_the_store(on_s3, proxy, undisturbed):
    kinds = {31: "500", 37: "503", 199: "hang"}

    def fault(_method, _path, number):
        return next((kind for every, kind in kinds.items() if number % every == every - 1), None)

    proxy.fault = fault
    done = on_s3()
    assert done.code == 0, done.err
    assert set(proxy.faults()) == {"500", "503", "hang"}
    proxy.fault = lambda *_: None
    assert is_same(on_s3, undisturbed)
    assert verify_run(on_s3.folder) == []
    assert len(read_embeddings(on_s3.folder.url, storage_options=on_s3.options).X) == 188


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500", "hang"])
def test_a_store_that_fails_in_a_stage_and_then_at_the_manifest_leaves_a_run_that_goes_on(
    on_s3, proxy, undisturbed, fault
):
    def from_the_third_part_on(method, path, _number):
        there = [1 for asked, made, failed in proxy.asked if asked == "PUT" and "/data/" in made and not failed]
        return fault if method == "PUT" and "/data/" in path and len(there) >= 2 else None

    proxy.fault = from_the_third_part_on
    failed = on_s3(attempts=1)
    assert failed.code == 1
    last = failed.err.splitlines()[-1]
    assert last.startswith(f"wegl-dask: cannot write {on_s3.folder.url}/data/part-000")
    assert "what was finished stays valid; run the same command again" in last
    assert "Traceback" not in failed.err
    made = sorted(on_s3.folder.listing("data"))
    assert len(made) == 2
    assert ".lock" not in on_s3.folder.listing()
    proxy.fault = lambda method, path, _: "500" if method == "PUT" and "manifest.json" in path else None
    proxy.asked.clear()
    failed = on_s3(attempts=2)
    assert failed.code == 1
    assert f"cannot write {on_s3.folder.url}/manifest.json: " in failed.err.splitlines()[-1]
    assert not on_s3.folder.has_succeeded()
    rewritten = [path for method, path, _ in proxy.asked if method == "PUT" and "/data/" in path]
    assert len(rewritten) == 5 - len(made)
    proxy.fault = lambda *_: None
    proxy.asked.clear()
    assert on_s3().code == 0
    assert not [path for method, path, _ in proxy.asked if method == "PUT" and "/data/" in path]
    assert is_same(on_s3, undisturbed)
    assert verify_run(on_s3.folder) == []


def assert_whole_in_spite_of_lag(done, on_s3, proxy, undisturbed):
    assert done.code == 0, done.err
    assert proxy.hidden > 0
    proxy.lags = False
    assert is_same(on_s3, undisturbed)
    assert verify_run(on_s3.folder) == []


@pytest.mark.slow
def test_a_store_whose_listings_lag_behind_gives_the_same_parts(on_s3, proxy, undisturbed):
    proxy.lags = True
    done = on_s3()
    assert_whole_in_spite_of_lag(done, on_s3, proxy, undisturbed)


@pytest.mark.slow
def test_a_run_that_goes_on_while_listings_lag_makes_again_what_it_does_not_see(on_s3, proxy, undisturbed):
    proxy.fault = lambda method, path, _: "500" if method == "PUT" and "/data/part-00003" in path else None
    assert on_s3(attempts=1).code == 1
    proxy.fault = lambda *_: None
    proxy.lags = True
    again = on_s3()
    assert_whole_in_spite_of_lag(again, on_s3, proxy, undisturbed)
