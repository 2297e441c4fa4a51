import errno
import hashlib
import io
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask import folders
from wegl_dask.errors import JobFileError, MissingDependencyError, WeglError
from wegl_dask.folders import Folder


def test_what_is_written_is_read_back_with_its_size_and_hash(run_folder):
    written = run_folder.write("data/x.bin", b"one two")
    assert run_folder.read("data/x.bin") == b"one two"
    assert (written.n_bytes, written.sha256, written.rows) == (7, hashlib.sha256(b"one two").hexdigest(), None)
    assert run_folder.sha256("data/x.bin") == written.sha256
    assert run_folder.listing("data") == {"x.bin": 7}
    assert run_folder.listing() == {"data": None}


def test_a_function_may_write_the_content_and_return_rows(run_folder):
    table = pa.table({"a": np.arange(100_000)})

    def content(file):
        file.write(memoryview(np.arange(3, dtype=np.int16)))
        return 17

    assert run_folder.write("numbers", content).rows == 17
    assert run_folder.read("numbers") == np.arange(3, dtype=np.int16).tobytes()
    written = run_folder.write("table.parquet", lambda file: pq.write_table(table, file))
    assert run_folder.sha256("table.parquet") == written.sha256
    with run_folder.parquet("table.parquet") as file:
        assert file.read().equals(table)
    assert run_folder.parquet_footer("table.parquet").num_rows == 100_000


def test_a_file_is_replaced_and_removed(run_folder):
    run_folder.write("a", b"old")
    run_folder.write("a", b"new content")
    assert run_folder.listing() == {"a": 11}
    run_folder.remove("a")
    run_folder.remove("a")
    assert run_folder.listing() == {}
    assert run_folder.read_if_there("a") is None


def test_files_that_are_not_there(run_folder):
    assert run_folder.read_if_there("no/such") is None
    assert run_folder.sha256("no/such") is None
    assert run_folder.modified("no/such") is None
    assert run_folder.listing("no") == {}
    for read in (run_folder.read, run_folder.parquet_footer):
        with pytest.raises(WeglError, match=r"cannot read .*no/such: "):
            read("no/such")
    with pytest.raises(WeglError, match=r"cannot read .*no/such: "), run_folder.parquet("no/such"):
        pass


def test_an_exception_while_writing_leaves_nothing_and_keeps_the_old_file(run_folder):
    run_folder.write("data/x", b"old")

    def content(file):
        file.write(b"half of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_folder.write("data/x", content)
    with pytest.raises(KeyboardInterrupt):
        run_folder.write("data/y", content)
    assert run_folder.listing("data") == {"x": 3}
    assert run_folder.read("data/x") == b"old"


@pytest.mark.parametrize("fails_at", ["a", "b", "last"])
def test_the_last_of_files_that_belong_together_vouches_for_the_others(fails_at, run_folder):
    def files(content):
        return {f"t/{name}": content for name in ("a", "b", "last")}

    def fail(_):
        raise KeyboardInterrupt

    run_folder.write_together(files(b"old"))
    with pytest.raises(KeyboardInterrupt):
        run_folder.write_together({**files(b"new"), f"t/{fails_at}": fail})
    found = {name: run_folder.read_if_there(name) for name in files(b"")}
    assert found["t/last"] is None or set(found.values()) == {b"old"}
    if run_folder.is_local:
        assert set(found.values()) == {b"old"}
    run_folder.write_together(files(b"new"))
    assert run_folder.listing("t") == {"a": 3, "b": 3, "last": 3}
    assert {run_folder.read(name) for name in files(b"")} == {b"new"}


def test_a_file_is_not_seen_before_it_is_whole(run_folder):
    def content(file):
        file.write(b"x" * 1_000_000)
        file.flush()
        visible = [name for name in run_folder.listing("data") if not name.startswith(".tmp-")]
        assert visible == []

    run_folder.write("data/x", content)
    assert run_folder.listing("data") == {"x": 1_000_000}


def test_files_have_the_times_of_their_writing(run_folder):
    assert run_folder.times("data") == {}
    before = datetime.now(UTC)
    run_folder.write("data/a", b"1")
    run_folder.write("data/b", b"2")
    run_folder.write("data/below/c", b"3")
    times = run_folder.times("data")
    assert {"a", "b"} <= set(times)
    # Stores may keep whole seconds.
    assert all(-2 < (times[name] - before).total_seconds() < 60 for name in "ab")


def test_other_processes_are_seen_at_once(run_folder):
    other = pickle.loads(pickle.dumps(run_folder))
    assert other == run_folder
    assert other.listing("data") == {}
    run_folder.write("data/a", b"1")
    assert other.listing("data") == {"a": 1}
    if not run_folder.is_local and run_folder.url.startswith("s3"):
        # A client of its own, whose cache knows nothing of the writes of the first.
        separate = Folder(run_folder.url, run_folder.storage_options | {"default_block_size": 2**20})
        assert separate.listing("data") == {"a": 1}
        run_folder.write("data/b", b"22")
        assert separate.read("data/b") == b"22"
        assert separate.sha256("data/b") == hashlib.sha256(b"22").hexdigest()
        assert separate.listing("data") == {"a": 1, "b": 2}
        run_folder.remove("data/b")
        assert separate.read_if_there("data/b") is None


def test_damaged_parquet_is_named(run_folder):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": np.arange(10_000)}), buffer, write_page_checksum=True)
    whole = buffer.getvalue()
    altered = bytearray(whole)
    altered[len(whole) // 2] ^= 0x10
    for name, content in (("cut", whole[:-100]), ("empty", b""), ("altered", bytes(altered))):
        run_folder.write(name, content)
        with (
            pytest.raises(WeglError, match=rf"/{name} is not a whole Parquet file \("),
            run_folder.parquet(name) as file,
        ):
            file.read()
    with pytest.raises(WeglError, match=r"not a whole Parquet file .* Run the job again"):
        run_folder.parquet_footer("cut")
    run_folder.write("train/mlp/predictions.parquet", b"")
    with pytest.raises(WeglError, match=r"predictions\.parquet is not a whole Parquet file .* Train the model again"):
        run_folder.parquet_footer("train/mlp/predictions.parquet")


def test_a_footer_with_names_that_are_no_text_is_damaged_parquet(run_folder):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"smiles": ["C"]}), buffer, store_schema=False)
    run_folder.write("odd", buffer.getvalue().replace(b"smiles", b"smi\xedes"))
    with (
        pytest.raises(WeglError, match=r"/odd is not a whole Parquet file \(.*can't decode byte 0xed"),
        run_folder.parquet("odd") as file,
    ):
        file.read()


def test_plain_paths_are_taken_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert Folder("~/runs").url == str(tmp_path / "home" / "runs")
    assert Folder("runs/a%20b").url == str(tmp_path / "runs" / "a%20b")
    assert Folder(f"file://{tmp_path}/x y").url == str(tmp_path / "x y")
    assert Folder("/a::b/c:d").url == "/a::b/c:d"
    assert Folder("/a/b/").url == "/a/b"
    assert Folder("s3://bucket/a/").url == "s3://bucket/a"
    Folder("über::all#1?").write("ä=ö", b"1")
    assert (tmp_path / "über::all#1?" / "ä=ö").read_bytes() == b"1"


def test_credentials_are_not_shown():
    folder = Folder("s3://bucket/a", {"secret": "hunter2"})
    assert "hunter2" not in repr(folder)


def test_unknown_protocols_are_an_error_of_the_job_file():
    with pytest.raises(JobFileError, match=r"nosuch://x is no place to read or write: .*nosuch"):
        Folder("nosuch://x").listing()


def test_a_missing_client_library_is_named(monkeypatch):
    def missing(*_args, **_kwargs):
        raise ImportError("Please install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'wegl-dask\[s3\]'"):
        Folder("s3://bucket").listing()
    with pytest.raises(MissingDependencyError, match=r"pip install 'wegl-dask\[gs\]'"):
        Folder("gs://bucket").listing()


def test_a_missing_bucket_and_a_closed_port_are_one_line(s3_options):
    folder, said = (
        Folder("s3://nosuchbucket/run", s3_options),
        "there is no such bucket. Check the path, or make the bucket",
    )
    with pytest.raises(WeglError, match=f"^cannot write s3://nosuchbucket/run/a: {said}$"):
        folder.write("a", b"1")
    # Where only the folder is missing nothing is listed: it comes to be with its first file.
    with pytest.raises(WeglError, match=f"^cannot list s3://nosuchbucket/run: {said}$"):
        folder.listing()
    assert Folder("s3://runs/no-such-folder", s3_options).listing() == {}
    closed = s3_options | {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 1}}}
    with pytest.raises(WeglError, match="cannot write s3://runs/a: EndpointConnectionError"):
        Folder("s3://runs", closed).write("a", b"1")


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    # The kernel's own answer: every write to /dev/full ends with ENOSPC.
    original = folders.Path.open

    def open_full(path, mode):
        return original(path, mode) if "tmp-" not in path.name else open("/dev/full", "wb")  # noqa: PTH123

    folder = Folder(str(tmp_path))
    folder.write("data/a", b"old")
    monkeypatch.setattr(folders.Path, "open", open_full)
    with pytest.raises(
        WeglError, match=r"cannot write .*data/a: the disk is full\. Free some space; what was finished"
    ):
        folder.write("data/a", b"x" * 100_000)
    assert folder.read("data/a") == b"old"


def test_a_write_that_fails_half_way_leaves_no_temporary_file(tmp_path):
    script = """
import resource, sys
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    Folder(sys.argv[1]).write("data/a", b"x" * 100_000)
except WeglError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert (
        f"cannot write {tmp_path}/data/a: the file would be larger than it may be. Raise the limit that `ulimit -f` shows; "
        in done.stdout
    )
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EIO, "Input/output error; what was finished stays valid"),
    ],
)
def test_failures_of_the_disk_are_explained(tmp_path, monkeypatch, number, message):
    def fail(_descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.os, "fsync", fail)
    with pytest.raises(WeglError, match=rf"cannot write {tmp_path}/a: {message}") as caught:
        Folder(str(tmp_path)).write("a", b"1")
    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_where_a_file_is_cannot_be_written(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(WeglError, match=r"cannot write .*/data/a: there is a file where a folder should be\. Check"):
        Folder(str(tmp_path)).write("data/a", b"1")


def test_errors_of_the_writing_code_are_its_own(run_folder):
    def content(_file):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_folder.write("a", content)


def test_an_empty_subfolder_is_removed_and_another_is_kept(tmp_path):
    folder = Folder(str(tmp_path))
    folder.write("a/x", b"1")
    folder.remove_if_empty("a")
    assert folder.listing() == {"a": None}
    folder.remove("a/x")
    folder.remove_if_empty("a")
    folder.remove_if_empty("a")
    assert folder.listing() == {}


def test_only_files_that_are_to_last_wait_for_the_disk(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(folders.os, "fsync", flushed.append)
    folder = Folder(str(tmp_path))
    folder.write("brief", b"x", lasting=False)
    assert (tmp_path / "brief").read_bytes() == b"x"
    assert flushed == []
    folder.write("lasting", b"x")
    assert len(flushed) == 2


def test_files_folders_and_links_in_one_anothers_place_are_named(tmp_path):
    folder = Folder(str(tmp_path))
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("link")
    for name, reason in {
        "file/a": "there is a file where a folder should be. Check the path, or move the file",
        "folder": "there is a folder where a file should be. Move it, and run the job again",
        "link": "its links lead back to itself. Check the path",
    }.items():
        with pytest.raises(WeglError) as caught:
            folder.read(name)
        assert str(caught.value) == f"cannot read {tmp_path}/{name}: {reason}"
    with pytest.raises(WeglError, match="there is a folder where a file should be"):
        folder.write("folder", b"")


def test_a_pipe_in_the_place_of_a_file_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "part-00000.parquet")
    folder = Folder(str(tmp_path))
    for read in (folder.read, folder.sha256, folder.parquet_footer, lambda name: folder.parquet(name).__enter__()):
        with pytest.raises(WeglError, match=r"part-00000\.parquet is no file: remove it"):
            read("part-00000.parquet")


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(JobFileError, match=r"the folder '.*\\udcff' has a name that is not UTF-8 text: rename it"):
        Folder(path)


@pytest.mark.parametrize("url", ["memory://", "s3://", "zip:///", "gs:////"])
def test_a_url_that_names_no_folder_is_refused(url):
    with pytest.raises(JobFileError, match=r"has no name: write for example [a-z0-9+]+://bucket/folder$"):
        Folder(url)
