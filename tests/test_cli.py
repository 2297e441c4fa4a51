"""The command line: help, messages and exit codes, and what each command leaves behind."""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from wegl_dask import checking, planning
from wegl_dask.checksums import sealed
from wegl_dask.cli import main, models
from wegl_dask.cli.jobs import cluster_overrides
from wegl_dask.errors import WeglError
from wegl_dask.plain_graphs import join_graphs, plain_graph
from wegl_dask.records import json_bytes
from wegl_dask.shards import write_shard
from wegl_dask.sources import tud
from wegl_dask.sources.base import LabelSchema
from wegl_dask.spec import JobSpec, documented_keys, read_job
from wegl_dask.stopping import Stopped
from wegl_dask.storage import RunFolder
from wegl_dask.version import NUMERICS_VERSION, __version__

REPOSITORY = Path(__file__).parents[1]
FIRST_COMMANDS = ["run", "check", "plan", "ingest", "init", "status", "verify"]

TRIANGLE_AND_PATH = {
    "A": "1, 2\n2, 3\n3, 1\n4, 5\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "0\n1\n",
    "node_labels": "0\n1\n1\n0\n1\n",
}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run the command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(main, list(arguments), prog_name="wegl-dask", terminal_width=80)

    return run


@pytest.fixture
def job(tmp_path):
    """Write a job file of two small graphs, and the graphs."""
    raw = tmp_path / "data" / "SMALL" / "raw"
    raw.mkdir(parents=True)
    for kind, text in TRIANGLE_AND_PATH.items():
        (raw / f"SMALL_{kind}.txt").write_text(text)
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "small"\n[source]\nkind = "tud"\nroot = "data"\nname = "SMALL"\ndownload = false\n'
        '[reference]\npoints = 2\n[cluster]\nworkers = 1\n[output]\npath = "out"\n'
    )
    return "job.toml"


def smiles_job(folder, *, text, name="molecules.csv", source=""):
    (folder / name).write_text(text)
    (folder / "job.toml").write_text(f'[source]\nkind = "smiles"\npath = "{name}"\n{source}\n[output]\npath = "out"\n')
    return "job.toml"


def error_of(result, code):
    """Return the one line that a command failed with."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    line = result.stderr[:-1]
    assert "\n" not in line
    return line.removeprefix("wegl-dask: ")


# Help


def test_the_help_lists_the_commands_in_the_order_of_their_use(call):
    text = call("--help").output
    listed = [line.split()[0] for line in text.partition("Commands:\n")[2].splitlines()]
    assert [command for command in listed if command in main.commands] == list(main.commands)
    assert listed[: len(FIRST_COMMANDS)] == FIRST_COMMANDS


@pytest.mark.parametrize("command", [[], *([command] for command in main.commands)])
def test_help_fits_into_80_columns(call, command):
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80


def test_the_help_of_run_explains_every_key_under_its_table(call):
    text = call("run", "--help").output
    for key in documented_keys():
        table = text.partition(f"\n[{key.table}]\n" if key.table else "\nAt the top\n")[2].partition("\n\n")[0]
        assert f"\n  {key.leaf} = " in f"\n{table}", key
    words = " ".join(text.split())
    for key in documented_keys():
        assert key.meaning in words, key


def test_help_and_the_reading_of_a_job_wait_for_no_slow_import():
    code = (
        "import sys\n"
        "from wegl_dask.cli import main\n"
        "main(['run', '--help'], standalone_mode=False)\n"
        "slow = {'numpy', 'pyarrow', 'dask', 'distributed', 'scipy', 'sklearn', 'ot', 'torch', 'fsspec'}\n"
        "print(sorted(slow & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.splitlines()[-1] == "[]"


# Usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "No such command 'rnu'."),
        (["--frob"], "No such option"),
        (["run"], "Missing argument 'JOB'. See  wegl-dask run --help"),
        (["run", "a", "b"], "Got unexpected extra argument (b) See  wegl-dask run --help"),
        (["run", "a", "--overwite"], "--overwite"),
        (["run", "a", "--set"], "--set"),
        (["run", "."], "is a directory"),
        (["run", "absent.toml"], "cannot read the job file absent.toml: No such file or directory"),
        (["status"], "Missing argument 'OUT'. See  wegl-dask status --help"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(call, arguments, message):
    assert message in error_of(call(*arguments), 2)


@pytest.mark.parametrize("command", ["run", "ingest", "check"])
def test_a_job_file_that_is_not_allowed_is_one_line_and_exit_code_2(call, job, command):
    message = error_of(call(command, job, "--set", "transport.solvr=exact"), 2)
    assert message == "job.toml: unknown key transport.solvr; did you mean transport.solver?"


# Where it runs


@pytest.mark.parametrize("command", ["run", "ingest", "transform", "append"])
def test_a_scheduler_on_another_machine_without_encryption_is_refused(call, job, quickstart, command):
    run = str(quickstart.folder / "runs" / "quickstart")
    arguments = {"run": [job], "ingest": [job], "transform": [run, "--source", job], "append": [run]}[command]
    message = error_of(call(command, *arguments, "--scheduler", "tcp://192.0.2.1:8786"), 2)
    assert message.startswith(
        "the scheduler at tcp://192.0.2.1:8786 is on another machine, and tcp:// is not encrypted"
    )
    assert "--insecure or cluster.insecure = true" in message


def test_the_options_of_the_cluster_are_keys_and_go_before_those_that_are_set():
    assert cluster_overrides(None, insecure=False) == ()
    overrides = ("cluster.address=tcp://there:1", *cluster_overrides('tls://"host":8786', insecure=True))
    text = '[source]\nkind = "ogb"\nroot = "a"\nname = "b"\n[output]\npath = "c"\n[cluster]\nworkers = 3\n'
    cluster = JobSpec.from_toml(text, overrides).cluster
    assert (cluster.kind, cluster.address, cluster.insecure) == ("scheduler", 'tls://"host":8786', True)


# check


def test_check_says_what_a_job_would_read_and_write(call, job, tmp_path):
    result = call("check", job)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "small: the job can be run",
        "source: tud, about 2 nodes; SMALL",
        "  2 rows, to be cut into 1 shard",
        "  labels: 2 classes (0, 1); split: no",
        "  nodes: categories [2], 0 attributes",
        "  edges: categories [], 0 attributes",
        "node features: labels",
        "edge features: none",
        f"output: {tmp_path / 'out'}: a new folder",
    ]
    assert not (tmp_path / "out").exists()


def test_check_downloads_a_data_set_that_is_not_there(call, job, monkeypatch, tmp_path):
    shutil.make_archive(str(tmp_path / "web" / "SMALL"), "zip", tmp_path / "data")
    monkeypatch.setattr(tud, "DOWNLOAD_URL", (tmp_path / "web").as_uri())
    result = call("check", job, "--set", "source.root=new", "--set", "source.download=true")
    assert result.exit_code == 0, result.stderr
    assert "  2 rows, to be cut into 1 shard" in result.stdout.splitlines()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["SMALL.zip"]


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("source.root=elsewhere", 1, "the data set SMALL is not there: SMALL_A.txt was looked for in elsewhere/SMALL"),
        ('nodes.features=["attributes"]', 2, "nodes.features asks for attributes, and these graphs have none"),
        ("edges.features=labels", 2, 'edges.features = "labels", and the edges of this source have no labels'),
        ("output.path=data", 2, "is not a run folder: it has no job.toml, but it holds SMALL"),
        ("output.path=.", 2, "job.toml was written by no run, and a run would replace it"),
    ],
)
def test_check_refuses_what_a_run_would_refuse(call, job, override, code, message):
    assert message in error_of(call("check", job, "--set", override), code)


def test_a_plan_that_is_stopped_leaves_nothing_behind(call, job, monkeypatch):
    tried = []

    def stopped(*_, **__):
        with tempfile.TemporaryDirectory() as folder:
            tried.append(Path(folder))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)

    monkeypatch.setattr(planning, "forecast", stopped)
    result = call("plan", job)
    assert result.exit_code == 143
    assert "stopped by SIGTERM. Run the same command again" in result.stderr
    assert not tried[0].exists()


@pytest.mark.parametrize("command", ["check", "run"])
def test_an_output_that_is_damaged_or_of_other_numerics_is_refused(call, job, tmp_path, command):
    out = RunFolder(str(tmp_path / "out"))
    out.claim(read_job(job).to_toml())
    record = sealed({"numerics_version": 0, "package_versions": ["0.0.1"]})
    out.write("records/run.json", json_bytes(record))
    result = call(command, job)
    assert result.exit_code == 2
    assert "was written by wegl-dask 0.0.1, numerics version 0" in result.stderr.splitlines()[-1]
    out.write("job.toml", b'name = "x')
    result = call(command, job)
    assert result.exit_code == 2
    assert "job.toml is damaged" in result.stderr.splitlines()[-1]


def test_check_finds_that_the_output_cannot_be_written(call, job, tmp_path, monkeypatch):
    # Nothing is read-only to root, which the tests may be run by.
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: access(path, mode) and not (path == tmp_path and mode & os.W_OK)
    )
    message = error_of(call("check", job, "--set", "output.path=new/run"), 2)
    assert message == f"{tmp_path}/new/run cannot be written: {tmp_path} is read-only. Choose another folder"


def test_check_finds_a_line_that_is_wrong(call, job, tmp_path):
    (tmp_path / "data/SMALL/raw/SMALL_A.txt").write_text("1, 2\n2, x\n")
    assert "line 2 of data/SMALL/raw/SMALL_A.txt is '2, x'" in error_of(call("check", job), 1)


@pytest.mark.parametrize("scanned_nodes", [-1, 1000])
@pytest.mark.parametrize(
    "case",
    [
        ({"text": "smiles,y\nCC,1\n", "source": 'targets = ["z"]'}, "'z'"),
        ({"text": "mol,y\nCC,1\n"}, "'smiles'"),
        ({"text": ""}, "is empty; a header is needed"),
    ],
)
def test_check_looks_for_the_columns_in_files_of_any_size(call, tmp_path, monkeypatch, scanned_nodes, case):
    pytest.importorskip("rdkit")
    monkeypatch.setattr(checking, "SCANNED_NODES", scanned_nodes)
    written, message = case
    assert message in error_of(call("check", smiles_job(tmp_path, **written)), 1)


def test_check_does_not_read_a_large_source_through(call, tmp_path, monkeypatch):
    pytest.importorskip("rdkit")
    monkeypatch.setattr(checking, "SCANNED_NODES", -1)
    result = call("check", smiles_job(tmp_path, text="smiles\nCC\n"))
    assert result.exit_code == 0
    assert "too large to be read through here; 1 of 1 file opened" in result.stdout
    assert "rows" not in result.stdout


def test_check_finds_a_large_data_set(call, job, monkeypatch):
    monkeypatch.setattr(checking, "SCANNED_NODES", -1)
    result = call("check", job)
    assert result.exit_code == 0
    assert "  too large to be read through here\n" in result.stdout
    assert "node features: chosen by what the graphs have\n" in result.stdout


def test_check_opens_a_large_file_of_another_kind(call, tmp_path, monkeypatch):
    pytest.importorskip("rdkit")
    monkeypatch.setattr(checking, "SCANNED_NODES", -1)
    (tmp_path / "a.sdf.gz").write_bytes(b"not compressed")
    (tmp_path / "job.toml").write_text('[source]\nkind = "sdf"\npath = "a.sdf.gz"\n[output]\npath = "out"\n')
    assert "a.sdf.gz" in error_of(call("check", "job.toml"), 1)


def test_check_names_the_extra_that_brings_a_missing_package(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    message = error_of(call("check", smiles_job(tmp_path, text="smiles\nCC\n")), 1)
    assert message.endswith("pip install 'wegl-dask[molecules]'")


# init


def test_init_without_a_name_lists_the_job_files(call):
    lines = call("init").stdout.splitlines()
    names = {line.split()[0] for line in lines}
    assert names == {
        str(path.relative_to(REPOSITORY / "jobs").with_suffix(""))
        for path in (REPOSITORY / "jobs").rglob("*.toml")
        if "benchmarks" not in path.parts
    }
    assert any(line.startswith("quickstart") and "4,999 molecules" in line for line in lines)


def test_init_writes_a_job_file_that_can_be_checked(call, tmp_path):
    result = call("init", "paper/mutag")
    assert result.stdout == "wrote mutag.toml; run it with  wegl-dask run mutag.toml\n"
    assert (tmp_path / "mutag.toml").read_bytes() == (REPOSITORY / "jobs/paper/mutag.toml").read_bytes()


def test_init_overwrites_nothing(call, tmp_path):
    (tmp_path / "mine.toml").write_text("mine")
    message = error_of(call("init", "quickstart", "--output", "mine.toml"), 2)
    assert message == "mine.toml is there already; remove it or give another name with --output"
    assert (tmp_path / "mine.toml").read_text() == "mine"


@pytest.mark.parametrize(("limit", "message"), [("much", "is not a size"), ("1MB", "a worker needs")])
def test_check_refuses_a_memory_that_no_worker_can_have(call, job, limit, message):
    assert message in error_of(call("check", job, "--set", f"cluster.memory_limit={limit}"), 2)


def test_init_suggests_the_nearest_name(call):
    assert error_of(call("init", "quickstrat"), 2) == "there is no job file 'quickstrat'; did you mean quickstart?"
    assert "there are ogbg-molhiv, quickstart, smiles, paper/collab" in error_of(call("init", "zzz"), 2)


def test_init_says_why_it_cannot_write(call):
    message = error_of(call("init", "quickstart", "-o", "absent/job.toml"), 2)
    assert message == "cannot write absent/job.toml: No such file or directory"


# Runs


def test_a_run_ends_with_a_summary_and_the_lines_that_read_it(quickstart):
    assert "quickstart: 4,991 graphs embedded, 8 rows rejected" in quickstart.stdout
    assert "vectors of 320" in quickstart.stdout
    assert quickstart.stdout.rstrip().endswith("print(e.X.shape)")
    assert "embed: 6 of 6 parts, 4,991 graphs" in quickstart.stderr
    assert "Traceback" not in quickstart.stderr


def test_the_status_of_a_finished_run_has_all_parts_and_rejects(call, quickstart):
    result = call("status", str(quickstart.folder / "runs/quickstart"))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].endswith("runs/quickstart: finished")
    assert "input: 4,999 rows" in lines
    assert any(line.startswith("ingest: 6 of 6 parts, 4,991 graphs") for line in lines)
    assert any(line.startswith("embed: 6 of 6 parts, 4,991 graphs") for line in lines)
    assert "rejected: 8 rows" in lines
    assert not any("missing" in line for line in lines)


def test_the_status_of_a_stopped_run_names_the_missing_parts(call, quickstart, tmp_path):
    copy = shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path / "copy")
    for name in ("_SUCCESS", "records/embed-00001.json", "records/embed-00002.json", "records/embed-00005.json"):
        (copy / name).unlink()
    lines = call("status", "copy").stdout.splitlines()
    assert lines[0].endswith("copy: stopped; run the job again to go on")
    assert any(line.startswith("embed: 3 of 6 parts") for line in lines)
    assert "  missing: 1-2, 5" in lines


def test_a_run_of_other_numerics_is_not_said_to_go_on(call, quickstart, tmp_path):
    copy = shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path / "copy")
    versions = {"numerics_version": NUMERICS_VERSION + 1, "package_versions": ["9.1"]}
    (copy / "records/run.json").write_bytes(json_bytes(sealed(versions)))
    assert call("status", "copy").stdout.splitlines()[0].endswith("copy: finished")
    (copy / "records/embed-00001.json").unlink()
    obstacle = (
        f"{copy} was written by wegl-dask 9.1, numerics version {NUMERICS_VERSION + 1}; this is {__version__}, numerics "
        f"version {NUMERICS_VERSION}, which computes other numbers: the run can only be finished with that version. Choose "
        "another output.path, or clear the folder with --overwrite"
    )
    assert call("status", "copy").stdout.splitlines()[0] == f"{copy}: finished; {obstacle}"
    result = call("verify", "copy")
    assert result.exit_code == 1
    assert result.stdout == "records/embed-00001.json: missing or damaged, but listed in manifest.json\n"
    assert result.stderr.endswith(f"copy has a problem: {obstacle}\n")
    (copy / "_SUCCESS").unlink()
    assert call("status", "copy").stdout.splitlines()[0] == f"{copy}: stopped; {obstacle}"


def test_the_status_of_a_running_run_has_its_speed(call, quickstart, tmp_path):
    copy = shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path / "copy")
    (copy / "records/embed-00003.json").unlink()
    lock = {"host": socket.gethostname(), "pid": os.getpid(), "since": "2026-01-31T12:00:00+00:00"}
    (copy / ".lock").write_text(json.dumps(lock))
    for second, path in enumerate(sorted((copy / "records").glob("embed-*"))):
        os.utime(path, (1_800_000_000 + second,) * 2)
    with (copy / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (line,) = (line for line in call("status", "copy").stdout.splitlines() if line.startswith("embed: "))
    assert re.fullmatch(r"embed: 5 of 6 parts, \d,\d\d\d graphs, .* of work, [\d,]+ graphs/s, \d\.\d s left", line)


def test_the_status_of_trainings_says_which_can_go_on(call, quickstart, tmp_path):
    copy = shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path / "copy")
    shutil.rmtree(copy / "train", ignore_errors=True)
    for model, name in (("ridge", "metrics.json"), ("mlp", f"fits-{'0' * 32}.npz"), ("svm-rbf", ".lock")):
        (copy / "train" / model).mkdir(parents=True)
        (copy / "train" / model / name).write_text("{}")
    with (copy / "train/svm-rbf/.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lines = call("status", "copy").stdout.splitlines()
    assert lines[-3:] == [
        "train svm-rbf: running (a process that its lock does not name)",
        "train mlp: stopped; train it again to go on",
        "train ridge: finished",
    ]


def test_a_folder_that_is_no_run_has_no_status(call, tmp_path):
    assert error_of(call("status", "."), 1) == f"{tmp_path} is not a run folder: it has no job.toml. Check the path"


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_a_whole_run_is_verified(call, quickstart, deep):
    result = call("verify", str(quickstart.folder / "runs/quickstart"), *deep)
    assert result.exit_code == 0
    assert result.stdout.endswith("every part is there and as it was written\n")


def test_the_speed_of_a_run_is_that_of_all_its_graphs_or_none(call, quickstart, tmp_path):
    shutil.copytree(quickstart.folder / "runs", tmp_path / "runs")
    (tmp_path / "runs/quickstart/data/part-00002.parquet").unlink()
    again = call("run", str(Path(__file__).parents[1] / "jobs/quickstart.toml"), "--set", "cluster.workers=1")
    assert again.exit_code == 0
    assert "1 part made anew" in again.stdout
    assert "graphs/s" in quickstart.stdout
    assert "graphs/s" not in again.stdout


def test_of_a_run_that_is_under_way_verify_says_so(call, quickstart, tmp_path):
    copy = shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path / "copy")
    with RunFolder(str(copy)).lock():
        assert call("verify", "copy").exit_code == 0
        (copy / "_SUCCESS").unlink()
        result = call("verify", "copy")
    assert result.exit_code == 1
    assert result.stdout == "_SUCCESS: missing: the run has not finished\n"
    said = f"wegl-dask: {copy} has a problem, and a run is writing in it: look at it when that has ended\n"
    assert result.stderr == said


def test_of_a_run_on_a_store_that_nobody_holds_verify_says_what_to_do(call, quickstart):
    store = fsspec.filesystem("memory")
    store.put(str(quickstart.folder / "runs/quickstart"), "/unheld", recursive=True)
    try:
        store.rm("/unheld/_SUCCESS")
        result = call("verify", "memory://unheld")
    finally:
        store.rm("/unheld", recursive=True)
    assert result.exit_code == 1
    assert "memory://unheld has a problem: run the job again" in result.stderr


def test_a_deep_check_without_graphs_says_that_embeddings_were_not_computed_anew(call, quickstart, tmp_path):
    copy = shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path / "copy")
    shutil.rmtree(copy / "graphs")
    assert "graphs/part-00000.parquet: missing" in call("verify", "copy").stdout
    text = (copy / "job.toml").read_text()
    (copy / "job.toml").write_text(text.replace("keep_graphs = true", "keep_graphs = false"))
    result = call("verify", "copy", "--deep")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "graphs/ was not kept: the embeddings were not computed anew"


def test_verify_names_what_is_wrong_and_fails(call, quickstart, tmp_path):
    copy = shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path / "copy")
    part = copy / "data/part-00003.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    (copy / "data/part-00004.parquet").unlink()
    result = call("verify", "copy")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "data/part-00003.parquet: altered: its SHA-256 is not that of what was written",
        "data/part-00004.parquet: missing",
    ]
    assert result.stderr.count("\n") == 1
    assert f"{copy} has 2 problems: run the job again" in result.stderr


def test_ingest_makes_graph_shards_alone(job, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "wegl_dask", "ingest", job]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "small: 2 graphs read, 0 rows rejected" in done.stdout
    assert pq.read_table(tmp_path / "out/graphs/part-00000.parquet").column("num_nodes").to_pylist() == [3, 2]
    assert not (tmp_path / "out/data").exists()
    assert not (tmp_path / "out/_SUCCESS").exists()


# --- Standard streams that are closed, or that cannot be written ---


@pytest.fixture
def in_a_shell(tmp_path):
    """Run the command with redirections of a shell: the exit code, and what came through standard error."""

    def run(line):
        script = f'python() {{ "{sys.executable}" -m wegl_dask "$@"; }}; {line}'
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.mark.parametrize("streams", ["<&- 2>&-", "<&- >&- 2>&-"])
def test_processes_that_fit_have_streams_where_the_command_has_none(
    streams, in_a_shell, make_problem, write_problem, tmp_path
):
    write_problem(make_problem("regression"))
    done = in_a_shell(f"python train run --model ridge --protocol cv --folds 2 {streams}")
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (0, False)
    assert (tmp_path / "run/train/ridge/metrics.json").exists()


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2> /dev/full"])
def test_a_run_whose_streams_are_closed_or_full_is_done(streams, in_a_shell, tmp_path):
    done = in_a_shell(f"python run job.toml {streams}")
    assert (done.returncode, done.stderr) == (0, "")
    assert RunFolder(str(tmp_path / "out")).has_succeeded()


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("arguments", ["--help", "check job.toml", "plan --help"])
def test_a_result_that_cannot_be_written_is_one_line(arguments, in_a_shell):
    done = in_a_shell(f"python {arguments} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "wegl-dask: cannot write to standard output: No space left on device\n"


def test_an_error_that_nobody_can_be_told_has_its_exit_code(in_a_shell):
    assert in_a_shell("python check missing.toml 2> /dev/full").returncode == 2


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "threads or processes"),
        (ImportError("libarrow.so.2600: failed to map segment from shared object"), "memory"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "open files"),
    ],
)
def test_a_shortage_is_one_line(error, what, call, job, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(planning, "forecast", fail)
    assert f"the system gives this command no more {what}: see what `ulimit -a` says" in error_of(call("plan", job), 1)
    done = call("--debug", "plan", job)
    assert done.exit_code == 1
    assert "Traceback" in done.stderr
    assert type(error).__name__ in done.stderr
    assert done.stderr.splitlines()[-1].startswith("wegl-dask: the system gives this command no more")


def test_debug_adds_the_traceback_and_leaves_the_exit_code(call, job):
    for arguments, code in ((("check", "missing.toml"), 2), (("status", "nowhere"), 1), (("check", job, "--no"), 2)):
        plain, with_traceback = call(*arguments), call("--debug", *arguments)
        assert plain.exit_code == with_traceback.exit_code == code
        assert with_traceback.stderr.endswith(plain.stderr)
        assert "Traceback" not in plain.stderr
    assert "Traceback" in call("--debug", "status", "nowhere").stderr


@pytest.mark.parametrize("first", ["It went wrong", "It went wrong."])
def test_what_was_added_to_an_error_is_said_after_it(first, call, job, monkeypatch):
    def fail(*_, **__):
        error = WeglError(first)
        error.add_note("And so did this")
        raise error

    monkeypatch.setattr(planning, "forecast", fail)
    assert call("plan", job).stderr == "wegl-dask: It went wrong. And so did this\n"


def test_an_error_that_is_nobodys_fault_but_ours_is_a_traceback(call, job, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("unexpected")

    monkeypatch.setattr(planning, "forecast", fail)
    assert isinstance(call("plan", job).exception, RuntimeError)


def test_a_job_file_of_a_transform_or_an_append_may_begin_with_a_byte_order_mark(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('name = "a"\n', encoding="utf-8-sig")
    assert models._text(str(job)) == 'name = "a"\n'
    assert models._read(str(job)) == {"name": "a"}


def test_what_a_terminal_has_no_character_for_is_a_question_mark(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("smiles\nC\nC1\n")
    job = tmp_path / "job.toml"
    job.write_text(f'[source]\nkind = "smiles"\npath = "{path}"\n[output]\npath = "{tmp_path / "Ł"}"\n')
    environment = os.environ | {"PYTHONIOENCODING": "latin-1:strict", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "wegl_dask", "check", str(job)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"output: {tmp_path}/?: ".encode("latin-1") in done.stdout


def test_neighbours_are_written_over_files_alone(embedded_run, tmp_path):
    run = embedded_run("mutag")
    os.mkfifo(tmp_path / "pipe")
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    command = ["neighbours", run, "--graph-id", "g0", "-o"]
    refused = CliRunner().invoke(main, [*command, str(tmp_path / "pipe")])
    assert refused.exit_code == 2
    assert "it is no file" in refused.stderr
    assert (tmp_path / "pipe").is_fifo()
    assert CliRunner().invoke(main, [*command, str(link)]).exit_code == 0
    assert link.is_symlink()
    assert pq.read_table(target).num_rows > 0


def test_a_stop_in_the_middle_of_a_lock_is_a_stop(monkeypatch, tmp_path):
    def stopped_as_it_lets_go(*_args, **_options):
        lock = threading.Condition()
        with lock:
            lock.release()
            raise Stopped(signal.SIGTERM, "What was finished stays valid")

    monkeypatch.setattr(checking, "check_job", stopped_as_it_lets_go)
    job = tmp_path / "job.toml"
    job.write_text('[source]\nkind = "smiles"\npath = "m.csv"\n[output]\npath = "out"\n')
    result = CliRunner().invoke(main, ["check", str(job)])
    assert result.exit_code == 128 + signal.SIGTERM
    assert result.stderr == "\nwegl-dask: stopped by SIGTERM. What was finished stays valid\n"


def test_a_malformed_configuration_file_of_dask_is_one_line(tmp_path, job):
    (tmp_path / "dask.yaml").write_text("a: [1\nb: {")
    done = subprocess.run(
        [sys.executable, "-m", "wegl_dask", "check", job],
        env={**os.environ, "DASK_CONFIG": str(tmp_path / "dask.yaml"), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("wegl-dask: Dask's own configuration cannot be read: A dask config file at '")


# What is refused before workers are started


@pytest.fixture
def no_workers(monkeypatch):
    """A cluster that must not be opened."""

    def opened(_):
        raise AssertionError("workers were started")

    monkeypatch.setattr("wegl_dask.cluster.open_client", opened)


def in_place_of(text, old, new):
    assert old in text
    return text.replace(old, new)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("command", ["run", "ingest"])
def test_what_needs_no_workers_is_refused_before_they_start(call, job, tmp_path, monkeypatch, command):
    text = Path(job).read_text()
    Path("missing.toml").write_text(in_place_of(text, '"SMALL"', '"LARGE"'))
    assert "LARGE" in error_of(call(command, "missing.toml"), 1)
    Path("model.toml").write_text(in_place_of(text, "[reference]\npoints = 2", '[model]\npath = "nowhere"'))
    assert "nowhere" in error_of(call(command, "model.toml"), 1)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    Path("smiles.toml").write_text('[source]\nkind = "smiles"\npath = "m.csv"\n[output]\npath = "out"\n')
    assert "wegl-dask[molecules]" in error_of(call(command, "smiles.toml"), 1)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    refused = call(command, job, "--set", "output.performance_report=true")
    assert "wegl-dask[cluster]" in error_of(refused, 1)
    assert not (tmp_path / "out").exists()
    with RunFolder("out").lock():
        assert "another run is writing in" in error_of(call(command, job), 1)
    folder = RunFolder("out")
    other = JobSpec.from_toml(text, ["seed=1"]).to_toml()
    folder.claim(other)
    folder.write("data/part-00000.parquet", b"")
    assert "holds the run of a different job (seed: 1 -> 0)" in error_of(call(command, job), 2)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "file").touch()
    assert "is not a run folder" in error_of(call(command, job, "--set", "output.path=strange"), 2)
    assert str(call(command, job, "--overwrite").exception) == "workers were started"


@pytest.mark.usefixtures("no_workers")
def test_a_transform_and_an_append_are_refused_before_workers_start(call, job, tmp_path):
    read = ["--set", "source.kind=smiles", "--set", "source.path=new.smi"]
    assert "nowhere" in error_of(call("transform", "nowhere", *read, "--output", "new"), 1)
    folder = RunFolder("out")
    folder.claim(read_job(job).to_toml())
    assert "has not finished: run its job again" in error_of(call("append", "out"), 1)
    with folder.lock():
        assert "another run is writing in" in error_of(call("append", "out"), 1)
    assert not (tmp_path / "new").exists()


def test_check_refuses_a_dashboard_that_nothing_can_listen_at(call, job):
    pytest.importorskip("bokeh")
    for kind in ("local", "slurm"):
        result = call("check", job, "--set", f"cluster.kind={kind}", "--set", "cluster.dashboard_address=a:b:c")
        assert 'cluster.dashboard_address = "a:b:c" cannot be listened on' in error_of(result, 2)


def test_a_job_file_whose_output_is_no_table_is_refused_by_transform(call, tmp_path):
    (tmp_path / "job.toml").write_text('output = "x"\n[source]\nkind = "smiles"\npath = "m.csv"\n')
    message = error_of(call("transform", "model", "--source", "job.toml", "--output", "new"), 2)
    assert message == "job.toml: output = 'x': it must be a table, [output]"


def test_check_counts_the_nodes_of_wide_tables_and_the_labels_of_each_target(call, tmp_path):
    pytest.importorskip("rdkit")
    rows = [f"{'x' * 1000},CCCCCCCCCC,{i},{'' if i % 2 else 0.5}\n" for i in range(10)]
    source = 'targets = ["whole", "half"]\nextra_columns = ["note"]'
    result = call("check", smiles_job(tmp_path, text="note,smiles,whole,half\n" + "".join(rows), source=source))
    assert result.exit_code == 0, result.output
    nodes = re.search(r"source: smiles, about (\d+) nodes; ", result.stdout)[1]
    assert 50 <= int(nodes) <= 100
    assert "  labels that are known: 10 of whole, 5 of half\n" in result.stdout


def test_check_counts_no_label_of_a_row_that_is_to_be_rejected_for_one(call, tmp_path):
    pytest.importorskip("rdkit")
    # Of a the second row has none, of b the third, and the fourth and fifth are rejected.
    text = "smiles,a,b\nC,1,2\nCC,,3\nCO,4,NA\nCN,5,n/a\nCS,inf,6\n"
    result = call("check", smiles_job(tmp_path, text=text, source='targets = ["a", "b"]'))
    assert result.exit_code == 0, result.output
    assert "  labels that are known: 2 of a, 2 of b\n" in result.stdout
    assert (
        "  to be rejected for a label: 2 rows; the first is row 3 of molecules.csv: column b holds 'n/a'; several targets hold "
        "each a finite number, or nothing\n"
    ) in result.stdout
    # As classes of a single target texts are labels.
    result = call("check", smiles_job(tmp_path, text="smiles,a\nC,yes\nCO,no\nCN,\n", source='targets = ["a"]'))
    assert "  labels that are known: 2 of a\n" in result.stdout
    assert "rejected" not in result.stdout


@pytest.mark.parametrize(("name", "layout"), [("transport_cost", "list"), ("embedding", "list"), ("e0003", "wide")])
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_shard_with_a_column_that_every_part_has_is_refused_before_it_is_read(call, tmp_path, command, name, layout):
    labels = LabelSchema()
    batch = join_graphs([plain_graph([[0, 1], [1, 2]], {"x": [0, 1, 0]}, {})])
    rows = pa.table(
        {
            "graph_id": ["g"],
            "source_file": ["a.csv"],
            "source_row": pa.array([0], pa.int64()),
            "label": pa.array([None], labels.arrow_type),
            "split": pa.array([None], pa.string()),
            name: ["x"],
        }
    )
    write_shard(tmp_path / "part-00000.parquet", batch, rows, labels)
    (tmp_path / "job.toml").write_text(
        '[source]\nkind = "graph_parquet"\npath = "part-00000.parquet"\n[cluster]\nworkers = 1\n'
        f'[output]\npath = "out"\nlayout = "{layout}"\n'
    )
    result = call(command, "job.toml")
    assert result.exit_code == 2, result.output
    assert f'an extra column of the source: "{name}" is the name of a column' in result.stderr.splitlines()[-1]
    assert not (tmp_path / "out" / "graphs").exists()


# Signals before and after the command's own work

SIGNALLED = """
import atexit
import os
import runpy
import signal
import sys

number, where, *sys.argv[1:] = int(sys.argv[1]), sys.argv[2], *sys.argv[3:]


def tell():
    os.kill(os.getpid(), number)


class Finder:
    def find_spec(self, name, *_):
        if name == where:
            tell()


if where == "the end":
    atexit.register(tell)
sys.meta_path.insert(0, Finder())
runpy.run_module("wegl_dask", run_name="__main__", alter_sys=True)
"""


def signalled(number, where, *arguments, **options):
    """Run the command, and send it a signal as it begins to import a module, or at its end."""
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), where, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("where", ["wegl_dask.cli", "pydantic", "pydantic_core", "distributed"])
def test_a_signal_while_the_command_is_imported_ends_it_with_a_line(number, where):
    done = signalled(number, where, "run", "jobs/quickstart.toml")
    assert done.stderr == f"\nwegl-dask: stopped by {number.name}. Run the same command again\n"
    assert done.returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_end_of_python_ends_it_at_once(number):
    done = signalled(number, "the end", "init")
    assert (done.returncode, done.stderr) == (-number, "")


def test_a_command_goes_on_without_its_terminal_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = signalled(signal.SIGHUP, "pydantic", "init")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
