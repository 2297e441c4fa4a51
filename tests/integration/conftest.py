"""Whole jobs: how they are written down, run in this process or as a command, and what a run folder holds."""

import contextlib
import gzip
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import tomli_w

from wegl_dask.progress import unshown

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run(dask_client):
    """Run a job, given as nested mappings: its summary. On the session's cluster, if no other client is given."""
    from wegl_dask.pipeline import run_job
    from wegl_dask.spec import JobSpec

    def run(values, *, client=None, overwrite=False, only=run_job):
        return only(JobSpec.from_values(values), client or dask_client, overwrite=overwrite, progress=unshown)

    return run


@pytest.fixture(scope="session")
def append(dask_client):
    """Append to a run; the source is that of its job, with the keys given set."""
    from wegl_dask.appending import append_job, append_spec

    def append(out, *overrides, key="row", job_toml=None):
        return append_job(append_spec(str(out), job_toml, overrides), dask_client, key=key, progress=unshown)

    return append


@pytest.fixture(scope="session")
def command(dask_client):
    """Run ``wegl-dask`` as a process of its own: exit code, standard output and error.

    ``shared=True`` lets it use the session's cluster, as an existing scheduler, which saves it starting one. `prefix` goes
    before the command, such as ``nsenter`` with its arguments.
    """

    @contextlib.contextmanager
    def start(*arguments, shared=True, environment=None, prefix=(), **options):
        address = dask_client.scheduler.address
        on_shared = ["--set", "cluster.kind=scheduler", "--set", f"cluster.address={address}"] if shared else []
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "wegl_dask", *map(str, arguments), *on_shared],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            **options,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=60)

    def command(*arguments, **options):
        with start(*arguments, **options) as process:
            out, err = process.communicate(timeout=120)
        return SimpleNamespace(code=process.returncode, out=out, err=err)

    command.start = start
    return command


@pytest.fixture
def replaced_on_workers(dask_client):
    """Replace a function of the package on all workers of the session's cluster, new ones too, until the test ends.

    ``replaced_on_workers("wegl_dask.tasks", "embed_shard", make)``: `make` gets the function and returns the one that
    takes its place; it is defined inside of the test, so that it travels to the workers whole. A class's method is
    ``"RunFolder.recording"``.
    """
    from distributed import WorkerPlugin

    names = []

    def replace(module, name, make):
        class Replacement(WorkerPlugin):
            def setup(self, worker):
                del worker
                from functools import reduce
                from importlib import import_module

                *owners, self.attribute = name.split(".")
                self.owner = reduce(getattr, owners, import_module(module))
                self.original = getattr(self.owner, self.attribute)
                setattr(self.owner, self.attribute, make(self.original))

            def teardown(self, worker):
                del worker
                setattr(self.owner, self.attribute, self.original)

        names.append(f"{module} {name}")
        dask_client.register_plugin(Replacement(), name=names[-1])

    yield replace
    for name in names[::-1]:
        dask_client.unregister_worker_plugin(name)


@pytest.fixture
def job_file(tmp_path):
    """Write a job down as a file: its path."""

    def write(values, name="job.toml"):
        path = tmp_path / name
        path.write_text(tomli_w.dumps(values))
        return path

    return write


@pytest.fixture
def mutag_job(shared_data, tmp_path):
    """A job on MUTAG in a dozen shards; tables given by keyword are merged in."""

    def job(out="out", **tables):
        source = {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG", "nodes_per_shard": 300}
        return merged({"source": source, "output": {"path": str(tmp_path / out)}}, tables)

    return job


@pytest.fixture(scope="session")
def molecules(tmp_path_factory):
    """400 of the molecules that ship in rdkit, four of which it cannot read: path of a CSV file with a header."""
    rdkit = pytest.importorskip("rdkit")
    source = Path(rdkit.__file__).parent / "Data" / "NCI" / "first_5K.smi"
    if not source.exists():
        pytest.skip("this rdkit comes without its data")
    with source.open() as file:
        lines = [line.split() for line in itertools.islice(file, 4450, 4850)]
    path = tmp_path_factory.mktemp("molecules") / "nci.csv"
    path.write_text("smiles,id\n" + "".join(f"{smiles},{name}\n" for smiles, name in lines))
    return path


@pytest.fixture
def molecules_job(molecules, tmp_path):
    """A job on `molecules` in about 20 shards; tables given by keyword are merged in."""

    def job(out="out", **tables):
        source = {"kind": "smiles", "path": str(molecules), "id_column": "id", "nodes_per_shard": 300}
        projection = {"components": 10}
        return merged({"source": source, "projection": projection, "output": {"path": str(tmp_path / out)}}, tables)

    return job


@pytest.fixture(scope="session")
def molhiv_head(shared_data, tmp_path_factory):
    """Make a data set of the first graphs of ogbg-molhiv: the ``root`` that holds it."""

    def head(n_graphs):
        root = tmp_path_factory.mktemp("ogb")
        whole, part = shared_data / "ogb" / "ogbg_molhiv", root / "ogbg_molhiv"
        (part / "raw").mkdir(parents=True)
        (part / "split" / "scaffold").mkdir(parents=True)
        counts = {}
        for name in ("num-node-list", "num-edge-list", "graph-label"):
            counts[name] = copy_lines(whole, part, f"raw/{name}.csv.gz", n_graphs)
        n_nodes, n_edges = (sum(map(int, counts[name])) for name in ("num-node-list", "num-edge-list"))
        copy_lines(whole, part, "raw/node-feat.csv.gz", n_nodes)
        for name in ("edge", "edge-feat"):
            copy_lines(whole, part, f"raw/{name}.csv.gz", n_edges)
        for split in (whole / "split" / "scaffold").iterdir():
            with gzip.open(split, "rt") as file, gzip.open(part / "split" / "scaffold" / split.name, "wt") as kept:
                kept.writelines(line for line in file if int(line) < n_graphs)
        return root

    return head


@pytest.fixture(scope="session")
def contents():
    """Read all files of a subfolder of a run folder: bytes by name."""

    def read(out, subfolder="data"):
        folder = Path(out) / subfolder
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.is_dir() else {}

    return read


@pytest.fixture(scope="session")
def same_bytes(contents):
    """Compare what two runs have made."""

    def same(out, other, subfolders=("data", "graphs", "rejected", "model")):
        return all(contents(out, name) == contents(other, name) for name in subfolders)

    return same


@pytest.fixture(scope="session")
def table():
    """Read the parts of a subfolder of a run folder, in order, as one table."""

    def read(out, subfolder="data"):
        import pyarrow as pa

        paths = sorted((Path(out) / subfolder).glob("part-*.parquet"))
        return pa.concat_tables([pq.read_table(path) for path in paths])

    return read


@pytest.fixture(scope="session")
def written_at():
    """List the files of a run folder that vouch for something: time of writing by path."""

    def times(out):
        return {
            str(path.relative_to(out)): path.stat().st_mtime_ns
            for subfolder in ("graphs", "rejected", "model", "data", "records")
            for path in (Path(out) / subfolder).glob("[!.]*")
            if path.name != "run.json"
        }

    return times


def merged(values, tables):
    """Put the tables into a job: keys of a table that is there already are added to it."""
    result = {**values}
    for name, table in tables.items():
        result[name] = {**result.get(name, {}), **table} if isinstance(table, dict) else table
    return result


def copy_lines(whole, part, name, n_lines):
    with gzip.open(whole / name, "rt") as file:
        lines = list(itertools.islice(file, n_lines))
    with gzip.open(part / name, "wt", compresslevel=1) as file:
        file.writelines(lines)
    return lines


@pytest.fixture
def held(dask_client, replaced_on_workers, tmp_path, wait_until):
    """Hold the workers back in a stage when some of its parts are there, until they are let go."""
    gate = tmp_path / "gate"

    def hold(stage, n_parts):
        gate_file = str(gate)

        def make(recording):
            import time
            from pathlib import Path

            def held_recording(folder, at_stage, index, input_fingerprint, **options):
                deadline = time.monotonic() + 60
                records = Path(folder.url, "records")
                while (
                    at_stage == stage and len([*records.glob(f"{stage}-*")]) >= n_parts and not Path(gate_file).exists()
                ):
                    if time.monotonic() > deadline:
                        raise TimeoutError("nobody opened the gate")
                    time.sleep(0.01)
                return recording(folder, at_stage, index, input_fingerprint, **options)

            return held_recording

        replaced_on_workers("wegl_dask.storage", "RunFolder.recording", make)

    def release():
        gate.touch()

        def idle(dask_worker):
            return not dask_worker.state.executing_count and not dask_worker.state.tasks

        wait_until(lambda: all(dask_client.run(idle).values()), "the workers to be idle")

    yield hold, release
    gate.touch()


@pytest.fixture(scope="session")
def rows(molecules):
    """The rows of `molecules`: SMILES and id."""
    return [line.split(",") for line in molecules.read_text().splitlines()[1:]]


@pytest.fixture
def write_rows(tmp_path):
    """Write molecules to a CSV file of the folder in/, or add them to its end."""

    def write(name, rows, mode="w"):
        (tmp_path / "in").mkdir(exist_ok=True)
        with (tmp_path / "in" / name).open(mode) as file:
            file.write("smiles,id\n" if mode == "w" else "")
            file.writelines(",".join(row) + "\n" for row in rows)

    return write


@pytest.fixture
def folder_job(tmp_path):
    """A job on the CSV files in the folder in/; tables given by keyword are merged in."""

    def job(**tables):
        source = {"kind": "smiles", "path": str(tmp_path / "in"), "id_column": "id", "nodes_per_shard": 500}
        values = {"source": source, "projection": {"components": 6}, "output": {"path": str(tmp_path / "out")}}
        return values | {name: {**values.get(name, {}), **table} for name, table in tables.items()}

    return job
