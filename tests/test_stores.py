import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from wegl_dask.errors import JobFileError, MissingDependencyError
from wegl_dask.folders import Folder
from wegl_dask.sources.paths import expand
from wegl_dask.spec import JobSpec
from wegl_dask.stores import secret_in

ROOT = Path(__file__).parents[1]

PACKAGES = [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gs"), ("gcs", "gcsfs", "gs"), ("az", "adlfs", "az")]


@pytest.fixture
def without_stores(monkeypatch):
    """No package of an object store can be imported."""
    from importlib import import_module

    imported = import_module("fsspec.registry")._registry
    for protocol, package, _ in [*PACKAGES, ("abfs", "adlfs", "az")]:
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(imported, protocol, raising=False)


@pytest.mark.usefixtures("without_stores")
@pytest.mark.parametrize(("protocol", "package", "extra"), [*PACKAGES, ("abfs", "adlfs", "az")])
def test_a_store_whose_package_is_missing_names_the_extra_that_brings_it(protocol, package, extra):
    message = rf"^{package} is needed here and is not installed: run  pip install 'wegl-dask\[{extra}\]'$"
    with pytest.raises(MissingDependencyError, match=message):
        Folder(f"{protocol}://bucket/run").read("a")
    with pytest.raises(MissingDependencyError, match=message):
        expand(f"{protocol}://bucket/a.csv", (".csv",))


def test_the_extras_are_there_and_bring_the_packages():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for _, package, extra in PACKAGES:
        assert [line.partition(">=")[0] for line in extras[extra]] == [package]


@pytest.mark.parametrize(("protocol", "package", "extra"), PACKAGES)
def test_urls_go_to_the_package_of_their_store(protocol, package, extra):
    del extra
    import fsspec

    pytest.importorskip(package)
    assert fsspec.get_filesystem_class(protocol).__module__.partition(".")[0] == package


SECRET = "wJalrXUtnFEMI/K7MDENG"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (f"s3://AKIA:{SECRET}@bucket/runs", "a password or a key before the @"),
        (f"ftp://anna:{SECRET}@host/a.csv", "a password or a key before the @"),
        ("ftp://anna:1234@host/a.csv", "a password or a key before the @"),
        (f"zip://a.csv::https://anna:{SECRET}@host/a.zip", "a password or a key before the @"),
        (f"https://b.s3.amazonaws.com/a.csv?X-Amz-Date=1&X-Amz-Signature={SECRET}", "the parameter X-Amz-Signature"),
        (f"https://account.blob.core.windows.net/c/a.csv?sv=2022&sig={SECRET}", "the parameter sig"),
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url, found):
    assert secret_in(url) == found
    with pytest.raises(JobFileError, match=found) as refused:
        Folder(url)
    assert SECRET.partition("/")[0] not in str(refused.value)
    for key, values in (
        ("output.path", {"output": {"path": url}, "source": {"kind": "smiles", "path": "a.csv"}}),
        ("source.path", {"output": {"path": "out"}, "source": {"kind": "smiles", "path": ["b.csv", url]}}),
        ("source.root", {"output": {"path": "out"}, "source": {"kind": "tud", "root": url, "name": "MUTAG"}}),
        (
            "source.lookup.path",
            {"output": {"path": "out"}, "source": {"kind": "smiles", "path": "a.csv", "lookup": {"path": url}}},
        ),
    ):
        with pytest.raises(JobFileError, match=rf"{key} is a URL with {found}") as refused:
            JobSpec.from_toml(tomli_w.dumps(values))
        assert SECRET.partition("/")[0] not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/runs/a:b@c",
        "abfs://container@account.dfs.core.windows.net/runs",
        "https://host:8080/a@b.csv",
        "https://host/a.csv?version=3&signal=5",
        "memory://runs/a",
        "zip://a@b:c.csv::s3://bucket/a.zip",
        "/data/anna:secret@home/a.csv",
        "package://rdkit/Data/NCI/first_5K.smi",
    ],
)
def test_other_urls_are_taken(url):
    assert secret_in(url) is None


def test_the_command_refuses_a_secret_before_anything_is_written(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(f'[source]\nkind = "smiles"\npath = "s3://AKIA:{SECRET}@bucket/a.csv"\n[output]\npath = "out"\n')
    done = subprocess.run(
        [sys.executable, "-m", "wegl_dask", "run", job],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "source.path is a URL with a password or a key before the @" in done.stderr
    assert SECRET.partition("/")[0] not in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


EMULATED = """
import os
from gcp_storage_emulator.server import create_server
from wegl_dask.folders import Folder

server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="runs")
server.start()
os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{server._api._httpd.socket.getsockname()[1]}"
folder = Folder("gs://runs/a")
folder.write("data/x", b"old")
folder.write("data/x", b"content")
assert folder.read("data/x") == b"content"
assert folder.listing("data") == {"x": 7}
assert folder.listing() == {"data": None}
assert list(folder.times("data")) == ["x"]
assert folder.size("data/x") == 7
folder.remove("data/x")
assert folder.listing("data") == {}
assert folder.read_if_there("data/x") is None
server.stop()
"""


def test_google_cloud_storage_is_a_folder_too():
    """On an emulator; in a process of its own, whose client and server are not closed in time for their warnings."""
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    # Without this the client looks for a metadata server on the network.
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "NO_GCE_CHECK": "true"}
    done = subprocess.run(
        [sys.executable, "-c", EMULATED], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
