"""Disks that fill up in every stage, folders that cannot be written: one clear line, a valid state, and the run goes on."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run

ROOT = Path(__file__).parents[2]
PATIENCE = 240
"""Seconds after which a command hangs."""


@pytest.fixture(scope="module")
def job(shared_data):
    """A job on MUTAG in a dozen shards; its largest file is the manifest, then come embeddings, then graphs."""

    def job(out):
        source = {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG", "nodes_per_shard": 300}
        # The samples of all nodes would be larger than all else; for k-means new workers import some seconds' worth.
        return {"source": source, "reference": {"kind": "sample", "max_nodes": 200}, "output": {"path": str(out)}}

    return job


@pytest.fixture(scope="module")
def undisturbed(run, job, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    run(job(out))
    return out


@pytest.fixture
def on_one_worker(job, job_file):
    """Write the job down, with a cluster of its own: a limit on a process holds for the workers that it starts."""

    def write(out):
        cluster = {"workers": 1, "memory_limit": "1GB"}
        return job_file(job(out) | {"cluster": cluster})

    return write


def largest(out, name):
    path = out / name
    return max(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))


def is_recorded(out, part):
    """Whether a part of data/ has its record; the worker is killed when the job ends, and that may be in between."""
    return (out / "records" / f"{part.replace('data/part', 'embed').removesuffix('.parquet')}.json").exists()


# --- The end of the disk, as a limit on the size of a file ---


@pytest.mark.parametrize("what", ["graphs", "data", "manifest.json"])
def test_a_disk_that_is_full_in_any_stage_ends_the_job_and_the_next_run_goes_on(
    what, on_one_worker, undisturbed, command, same_bytes, written_at, tmp_path
):
    """What the system answers is EFBIG instead of ENOSPC; the rest is the same, and every system has it."""
    out = tmp_path / "out"
    path = on_one_worker(out)
    sizes = {name: largest(undisturbed, name) for name in ("graphs", "data", "manifest.json")}
    assert sizes["graphs"] < sizes["data"] < sizes["manifest.json"] - 2000
    # The manifest has times in it, so that its size is not always the same.
    limit = sizes[what] - 1 if what != "manifest.json" else sizes["data"] + 1000
    with command.start("run", path, shared=False) as process:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith(f"wegl-dask: cannot write {out}/{what}")
    assert last.endswith(
        "Raise the limit that `ulimit -f` shows; what was finished stays valid; run the same command again"
    )
    assert [*out.rglob(".*")] == []
    assert not (out / "_SUCCESS").exists()
    finished = {
        name: moment
        for name, moment in written_at(out).items()
        if name.startswith("model") or (name.startswith("data") and is_recorded(out, name))
    }
    assert len(finished) in {"graphs": [0], "data": range(2, 2 + 12), "manifest.json": [2 + 12]}[what]
    assert command("run", path).code == 0
    assert same_bytes(out, undisturbed)
    assert finished.items() <= written_at(out).items()
    assert verify_run(RunFolder(str(out)), deep=True) == []


# --- The end of the disk, as a file system of so many bytes ---

ON_A_SMALL_DISK = """
import os, shutil, subprocess, sys

disk, size, saved, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
first = subprocess.run(command, capture_output=True, text=True)
print(first.returncode, *first.stderr.splitlines()[-1:], sep="\\n")
print(*sorted(name for _, _, names in os.walk(disk) for name in names if name.startswith(".")))
subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
second = subprocess.run(command, capture_output=True, text=True)
print(second.returncode, *second.stderr.splitlines()[-1:], sep="\\n")
shutil.copytree(disk, saved, dirs_exist_ok=True)
"""


@pytest.fixture(scope="module")
def in_a_namespace():
    """Arguments that run a command where it may mount file systems, as any user who may have namespaces of his own."""
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return command


@pytest.mark.parametrize(("subfolder", "n_blocks"), [pytest.param("graphs", 16, marks=pytest.mark.slow), ("data", 112)])
def test_a_small_file_system_is_filled_and_made_larger(
    subfolder, n_blocks, on_one_worker, undisturbed, in_a_namespace, same_bytes, tmp_path, command
):
    disk = tmp_path / "disk"
    disk.mkdir()
    path = on_one_worker(disk / "out")
    if in_a_namespace is None:
        # Where no file system may be mounted the limit is one on every file.
        with command.start("run", path, shared=False) as process:
            limit = largest(undisturbed, subfolder) - 1
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
            _, err = process.communicate(timeout=PATIENCE)
        assert f"cannot write {disk / 'out' / subfolder}" in err.splitlines()[-1]
        assert command("run", path).code == 0
        assert same_bytes(disk / "out", undisturbed)
        return
    # Blocks of 4 kB: an ingested shard takes three, its moments two, its sample two, and its embeddings three or four.
    saved = tmp_path / "saved"
    scenario = [sys.executable, "-c", ON_A_SMALL_DISK, disk, 4096 * n_blocks, saved]
    done = started(*in_a_namespace, *scenario, sys.executable, "-m", "wegl_dask", "run", path)
    assert done.returncode == 0, done.stderr
    code, line, hidden, again, *_ = done.stdout.splitlines()
    assert code == "1"
    assert line.startswith(f"wegl-dask: cannot write {disk / 'out'}")
    assert "the disk is full. Free some space; what was finished stays valid" in line
    # What could not be written is gone. The worker may have been killed at its next part, whose file the next run removes.
    unwritten = Path(line.removeprefix("wegl-dask: cannot write ").partition(": ")[0]).name
    assert f".tmp-{unwritten}-" not in hidden
    assert len(hidden.split()) <= 1
    assert again == "0", done.stdout
    assert [*saved.rglob(unwritten)]
    assert not [*saved.rglob(".tmp-*")]
    assert same_bytes(saved / "out", undisturbed)
    assert verify_run(RunFolder(str(saved / "out")), deep=True) == []


def test_a_full_folder_for_spilling_does_not_matter_to_a_job_that_spills_nothing(
    on_one_worker, in_a_namespace, undisturbed, same_bytes, tmp_path
):
    disk, path = tmp_path / "disk", on_one_worker(tmp_path / "out")
    disk.mkdir()
    fill = f"mount -t tmpfs -o size=64k tmpfs {disk} && ! dd if=/dev/zero of={disk}/filled 2> /dev/null &&"
    shell = ["bash", "-c", f'{fill if in_a_namespace else ""} exec "$0" "$@"']
    command = [sys.executable, "-m", "wegl_dask", "run", path, "--set", f"cluster.local_directory={disk}"]
    done = started(*(in_a_namespace or []), *shell, *command)
    assert done.returncode == 0, done.stderr
    assert same_bytes(tmp_path / "out", undisturbed)


# --- Folders that cannot be written ---

REFUSED = r"(Permission denied|Read-only file system|Operation not permitted)"


@pytest.mark.skipif(sys.platform != "linux", reason="a folder that root cannot write in is one of /sys")
def test_a_folder_that_cannot_be_made_is_one_line(job, command, job_file, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    parent = Path("/sys/kernel") if os.geteuid() == 0 else closed
    refused = command("run", job_file(job(parent / "out")))
    assert refused.code == 1
    line = refused.err.splitlines()[-1]
    assert re.fullmatch(rf"wegl-dask: cannot write in {parent}/out: {REFUSED}\. Choose another folder", line)
    assert "Traceback" not in refused.err


def test_a_run_on_a_disk_that_became_read_only_is_left_as_it_is(
    on_one_worker, undisturbed, in_a_namespace, contents, tmp_path
):
    out, path = tmp_path / "out", on_one_worker(tmp_path / "out")
    shutil.copytree(undisturbed, out)
    (out / "data" / "part-00001.parquet").unlink()
    before = contents(out)
    if in_a_namespace:
        command, forbid = in_a_namespace, f"mount --bind {out} {out} && mount -o remount,bind,ro {out}"
    else:
        command, forbid = without_privileges(), f"chmod -R a-w {out}"
    script = f'{forbid} && exec "$0" -m wegl_dask run {path}'
    done = started(*command, "bash", "-c", script, sys.executable)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line == f"wegl-dask: {out} cannot be written: {out} is read-only. Choose another folder"
    assert contents(out) == before
    for folder in (out, *filter(Path.is_dir, out.rglob("*"))):
        folder.chmod(0o755)


def test_a_file_where_the_folder_should_be_is_one_line(job, command, job_file, tmp_path):
    (tmp_path / "out").write_text("a file")
    refused = command("run", job_file(job(tmp_path / "out")))
    out = tmp_path / "out"
    assert refused.code == 2
    assert refused.err == f"wegl-dask: {out} cannot be written: {out} is no folder. Choose another folder\n"


def without_privileges():
    """Arguments that run a command which keeps to the permissions of files, as root's otherwise do not."""
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def started(*command):
    """Run a command with the package at hand to its end."""
    return subprocess.run(
        [*map(str, command)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
    )
