"""The README's section of that name: each of its lines is what a command says, and its advice works."""

import errno
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from wegl_dask import folders
from wegl_dask.cli import main
from wegl_dask.storage import RunFolder

README = Path(__file__).parents[2] / "README.md"


def lines_of_the_readme():
    section = README.read_text(encoding="utf-8").partition("\n## When something goes wrong\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def job(shared_data, tmp_path_factory):
    """A job on a copy of MUTAG that a test may change."""
    root = tmp_path_factory.mktemp("data")
    shutil.copytree(shared_data / "TUDataset" / "MUTAG", root / "MUTAG")
    source = {"kind": "tud", "root": str(root), "name": "MUTAG", "nodes_per_shard": 1000}

    def job(out, **source_keys):
        return {"source": source | source_keys, "output": {"path": str(out)}}

    return job


@pytest.fixture(scope="module")
def whole(run, job, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    run(job(out))
    return out


@pytest.fixture
def out(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "out"))


@pytest.fixture
def wegl(dask_client, job_file):
    """Run a command in this process, on the session's cluster where it takes a job: its exit code and its last line."""

    def wegl(*arguments):
        if isinstance(arguments[1], dict):
            cluster = {"kind": "scheduler", "address": dask_client.scheduler.address}
            arguments = (arguments[0], job_file(arguments[1] | {"cluster": cluster}), *arguments[2:])
        result = CliRunner().invoke(main, [*map(str, arguments)])
        return result.exit_code, result.output

    return wegl


def test_too_many_rejects(wegl, job, tmp_path):
    code, output = wegl("run", job(tmp_path / "out", max_nodes=15))
    assert code == 3
    assert "rows were rejected, and source.max_rejected_fraction" in output
    advice = "it has more rejects than source.max_rejected_fraction allows: see what they are, below, and run it again"
    assert advice in wegl("status", tmp_path / "out")[1]
    assert wegl("run", job(tmp_path / "out", max_nodes=15, max_rejected_fraction=0.9))[0] == 0


def test_another_job_and_another_run(wegl, job, out):
    code, output = wegl("run", job(out, max_nodes=100))
    assert code == 2
    assert "holds the run of a different job" in output
    assert wegl("run", job(out, max_nodes=100), "--overwrite")[0] == 0
    with RunFolder(str(out)).lock():
        code, output = wegl("run", job(out))
    assert code == 1
    assert "another run is writing in" in output


def test_a_damaged_part(wegl, job, out, same_bytes, whole):
    part = out / "data" / "part-00001.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    code, output = wegl("verify", out)
    assert code == 1
    assert "altered: its SHA-256 is not that of what was written" in output
    assert wegl("run", job(out))[0] == 0
    assert wegl("verify", out)[0] == 0
    assert same_bytes(out, whole)


def run_on_changed_input(wegl, job, out):
    """Run the job while a file of its input is another one: exit code and output."""
    labels = Path(job(out)["source"]["root"]) / "MUTAG" / "raw" / "MUTAG_node_labels.txt"
    before = labels.read_bytes()
    labels.write_bytes(b"1" + before[1:])
    try:
        return wegl("run", job(out))
    finally:
        labels.write_bytes(before)


def test_input_that_has_changed(wegl, job, out, whole, same_bytes):
    code, output = run_on_changed_input(wegl, job, out)
    assert code == 1
    assert "the input has changed since the run in this folder began" in output
    assert "by  wegl-dask append" in output
    assert wegl("run", job(out))[0] == 0
    assert same_bytes(out, whole)


def test_a_part_that_is_lost_with_its_input(wegl, job, out, whole, same_bytes):
    (out / "graphs" / "part-00000.parquet").unlink()
    code, output = run_on_changed_input(wegl, job, out)
    assert code == 1
    assert "it was changed after it was scanned" in output
    assert "MUTAG" in output
    assert wegl("run", job(out))[0] == 0
    assert same_bytes(out, whole)


def test_input_that_cannot_be_read(wegl, tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "in.parquet").write_bytes(b"PAR1 and no more")
    source = {"kind": "smiles", "path": str(tmp_path / "in.parquet")}
    code, output = wegl("run", {"source": source, "output": {"path": str(tmp_path / "out")}})
    assert code == 1
    assert "cannot be read" in output


def test_a_full_disk(wegl, job, tmp_path, monkeypatch, whole, same_bytes):
    def full(file, content):
        del file, content
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_write_hashed", full)
        code, output = wegl("run", job(tmp_path / "out"))
    assert code == 1
    assert "the disk is full" in output
    assert wegl("run", job(tmp_path / "out"))[0] == 0
    assert same_bytes(tmp_path / "out", whole)


def test_a_command_that_was_stopped(command, wegl, job, job_file, held, wait_until, tmp_path, whole, same_bytes):
    out = tmp_path / "out"
    hold, release = held
    hold("moments", 1)
    with command.start("run", job_file(job(out), "stopped.toml")) as process:
        wait_until(lambda: [*(out / "records").glob("ingest-*")], "the first part")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in err
    release()
    code, output = wegl("status", out)
    assert code == 0
    assert "stopped; run the job again to go on" in output
    assert wegl("run", job(out))[0] == 0
    assert same_bytes(out, whole)


def test_workers_that_die_and_a_scheduler_that_is_lost_are_told_as_elsewhere():
    """Both are tested, with these words, in test_faults."""
    text = (Path(__file__).parent / "test_faults.py").read_text()
    for line in ("the workers that tried it died", "the connection to the scheduler was lost"):
        assert line in text


def test_every_line_of_the_section_is_shown_by_one_of_these_tests():
    lines = lines_of_the_readme()
    assert len(lines) == 11
    assert [line for line in lines if f'"{line}"' not in Path(__file__).read_text(encoding="utf-8")] == []
