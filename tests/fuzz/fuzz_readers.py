"""Spoil small inputs of every kind at random and read them as a job does: no crash, no hang, no traceback, no row lost.

::

    python tests/fuzz/fuzz_readers.py --seconds 600 --state fuzz.json
    python tests/fuzz/fuzz_readers.py --reader sdf --case 17          # one case again, with its traceback

A *case* is a reader and a number, from which follow, with the seed, what is spoilt and how. A case is right if every row
of the plan becomes a graph or a reject, and the graphs can be written as a shard and read back; or if it ends with an
error that is meant for the user. A run folder is looked at in all ways there are, and damage of its parts, its model or
its records must be noticed; a job that is run on it again is refused, or its parts are byte for byte as they were. A
model may hold anything, with checksums that are right, and is refused or embeds. Batches of cases run in a process of their own, which is ended when a case takes too
long. The state is written after every batch, so the program can be stopped at any time and goes on where it was.
"""

import argparse
import io
import itertools
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from changes import spoil_files, spoil_model
from inputs import (
    JOB,
    SOURCES,
    local_client,
    model_files,
    resumed_files,
    run_files,
    run_values,
    shard_batch,
)

ROOT = Path(__file__).parents[2]
BATCH = 100
CASE_SECONDS = 20
START_SECONDS = 120

# --- A case ---


def read_source(table, draw):
    """Read a source as the stages do: how many graphs and rejects came of it."""
    from wegl_dask.graphs import find_invalid
    from wegl_dask.shards import ingest_shard, read_shard, write_shard
    from wegl_dask.sources import open_source
    from wegl_dask.sources.base import SourcePlan
    from wegl_dask.spec import JobSpec

    job = JobSpec.from_values({"source": table, "output": {"path": "out"}})
    source = open_source(job.source, draw.choice(["auto", "auto", "classification", "regression", "none"]))
    source.estimated_nodes()
    nodes_per_shard = draw.choice([1, 5, 1000])
    scans = [json.loads(json.dumps(source.scan(piece, nodes_per_shard))) for piece in source.pieces()]
    plan = SourcePlan.from_json(json.loads(json.dumps(source.plan(scans).to_json())))
    n_graphs = n_rejected = 0
    for unit in plan.units:
        shards = list(source.read(plan, unit))
        if [shard.shard for shard in shards] != [cut.shard for cut in unit.cuts]:
            raise AssertionError(f"shards {[shard.shard for shard in shards]} of cuts {unit.cuts}")
        for shard, cut in zip(shards, unit.cuts, strict=True):
            made = ingest_shard(shard, max_nodes=None, directed=False)
            if made.graphs.n_graphs + made.rejected.num_rows != cut.n_rows:
                raise AssertionError(
                    f"{made.graphs.n_graphs} graphs and {made.rejected.num_rows} rejects of {cut.n_rows} rows"
                )
            if not all(reason for reason in made.rejected.column("reason").to_pylist()):
                raise AssertionError("a reject without a reason")
            if find_invalid(made.graphs):
                raise AssertionError(f"invalid graphs are left: {find_invalid(made.graphs)}")
            file = io.BytesIO()
            write_shard(file, made.graphs, made.rows, plan.labels)
            if read_shard(io.BytesIO(file.getvalue())).graphs.n_graphs != made.graphs.n_graphs:
                raise AssertionError("the shard does not come back")
            n_graphs += made.graphs.n_graphs
            n_rejected += made.rejected.num_rows
    return n_graphs, n_rejected


def look_at_run(changed):
    """Look at a run folder in every way that does not change it: its rows. What is damaged must be noticed."""
    from wegl_dask.errors import WeglError
    from wegl_dask.nearest import neighbours
    from wegl_dask.reading import read_embeddings
    from wegl_dask.report.content import read_content
    from wegl_dask.status import read_status
    from wegl_dask.storage import RunFolder
    from wegl_dask.verify import verify_run

    folder, errors, rows = RunFolder("out"), [], 0
    for look in (
        lambda: read_status(folder),
        lambda: len(read_embeddings("out").X),
        lambda: read_content(folder),
        lambda: neighbours("out", ["a"], k=1),
        load_model,
        lambda: verify_run(folder, deep=True),
    ):
        try:
            found = look()
        except WeglError as error:
            errors.append(error)
        else:
            rows = found if isinstance(found, int) else rows
    noticed = errors or found
    if not noticed and any(name.split("/")[1] in CHECKED and is_altered(name) for name in changed):
        raise AssertionError(f"{changed} are not as they were written, and nothing was noticed")
    if errors:
        raise errors[0]
    return rows, 0


def is_altered(name):
    """Whether a file says something else than it did. A plan that is gone is written again by the next run."""
    path, before = Path(name), _MADE["run"][name]
    if not path.exists():
        return "/plan-" not in name
    try:
        return path.suffix != ".json" or json.loads(path.read_bytes()) != json.loads(before)
    except ValueError:
        return True


CHECKED = {"data", "graphs", "rejected", "model", "records", "manifest.json"}
"""What of a run folder is checked by `verify_run`; the job file is compared with the job of the next run."""


def load_model():
    """Embed with the model of a run folder, in the ways that there are: nothing but errors that are meant for the user."""
    import numpy as np

    from wegl_dask import WEGL
    from wegl_dask.given_model import GivenModel
    from wegl_dask.graphs import canonical_edges, in_single_precision

    model = GivenModel.read("out").model
    batch = canonical_edges(in_single_precision(shard_batch()))[0]
    found = [block.phi for block in model.embed(batch)] if batch.schema == model.schema else []
    vectors = WEGL.load("out").transform(batch)
    if found and not np.array_equal(np.concatenate(found).astype(np.float32), vectors, equal_nan=True):
        raise AssertionError("two ways to load a model differ")
    return len(vectors)


def look_at_model(changed):
    """Load a model whose checksums are those of what it holds, whatever that is."""
    del changed
    return load_model(), 0


def resume_run(changed):
    """Run the job again on a folder that was damaged: it is refused, or all parts are as they were."""
    from wegl_dask.pipeline import run_job
    from wegl_dask.progress import unshown
    from wegl_dask.spec import JobSpec
    from wegl_dask.storage import RunFolder
    from wegl_dask.verify import verify_run

    with local_client() as client:
        summary = run_job(JobSpec.from_values(run_values()), client, progress=unshown)
    for name, content in _MADE["resume"].items():
        if name.split("/")[1] in {"data", "graphs", "model"} and Path(name).read_bytes() != content:
            raise AssertionError(f"{name} is not what it was; changed were {changed}")
    if problems := verify_run(RunFolder("out")):
        raise AssertionError(f"{problems}; changed were {changed}")
    return summary.rows, summary.rejected


def read_job_file(changed):
    """Read a job file, write it out with all defaults, and read that."""
    from wegl_dask.spec import JobSpec, read_job

    del changed
    job = read_job("job.toml")
    if JobSpec.from_toml(job.to_toml()) != job:
        raise AssertionError("the job that is written out is another")
    return 0, 0


RUNS = {
    "job": (lambda: {"job.toml": JOB}, read_job_file),
    "run": (run_files, look_at_run),
    "model": (model_files, look_at_model),
    "resume": (resumed_files, resume_run),
}
"""Files, and what is done with them."""

READERS = [*SOURCES, *RUNS]


def run_case(reader, number, seed):
    """Run one case in the working directory, which is empty: what came of it, as JSON values."""
    from wegl_dask.errors import WeglError

    make = (SOURCES.get(reader) or RUNS[reader])[0]
    draw = random.Random(f"{seed} {reader} {number}")
    if reader not in _MADE:
        _MADE[reader] = make()
    files = (spoil_model if reader == "model" else spoil_files)(draw, _MADE[reader])
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    try:
        if reader in SOURCES:
            n_graphs, n_rejected = read_source(SOURCES[reader][1], draw)
        else:
            n_graphs, n_rejected = RUNS[reader][1]([n for n, was in _MADE[reader].items() if files.get(n) != was])
    except MemoryError:
        if reader != "model":
            return {"failure": traceback.format_exc()}
        # A vocabulary of as many categories as somebody has written into the file, for features of that width.
        return {"refused": 1}
    except WeglError as error:
        if not str(error) or "\n" in str(error):
            return {"failure": f"a message of {str(error).count(chr(10)) + 1} lines: {error}"}
        return {"refused": 1}
    except Exception:  # noqa: BLE001  whatever it is, it is what this program looks for
        return {"failure": traceback.format_exc()}
    return {"read": 1, "graphs": n_graphs, "rejected": n_rejected}


_MADE = {}


def run_batch(reader, first, last, seed):
    """Run cases one after another, a line of JSON each, in a folder that has the same path for all of them."""
    # The package under test is this tree's.
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("error")
    logging.disable()
    if reader in SOURCES and SOURCES[reader][1]["kind"] in {"smiles", "sdf"}:
        from rdkit import RDLogger

        RDLogger.DisableLog("rdApp.*")
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "case")
        for number in range(first, last):
            folder.mkdir()
            os.chdir(folder)
            sys.stdout.write(json.dumps({"case": number} | run_case(reader, number, seed)) + "\n")
            sys.stdout.flush()
            os.chdir("/")
            shutil.rmtree(folder)


# --- The program ---


def batch_in_a_process(reader, first, last, seed):
    """Run a batch: the results by case. A case that crashes or hangs is the last of them."""
    command = [sys.executable, __file__, "--reader", reader, "--seed", str(seed), "--batch", f"{first}:{last}"]
    environment = {**os.environ, "POT_BACKEND_DISABLE_PYTORCH": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("w") as out_file, err.open("w") as err_file:
            process = subprocess.Popen(command, stdout=out_file, stderr=err_file, env=environment)
        n_bytes, moment, hangs = 0, time.monotonic() + START_SECONDS, False
        while process.poll() is None and not hangs:
            time.sleep(0.02)
            if out.stat().st_size > n_bytes:
                n_bytes, moment = out.stat().st_size, time.monotonic()
            hangs = time.monotonic() - moment > CASE_SECONDS
        process.kill()
        process.wait()
        whole_lines = out.read_text().split("\n")[:-1]
        results = {result.pop("case"): result for result in map(json.loads, whole_lines)}
        if hangs:
            results[first + len(results)] = {"failure": f"took more than {CASE_SECONDS} s"}
        elif process.returncode != 0:
            results[first + len(results)] = {"failure": f"exit code {process.returncode}: {err.read_text()[-2000:]}"}
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="time to go on for")
    parser.add_argument("--state", type=Path, help="JSON file of what was done; it is written anew")
    parser.add_argument("--reader", choices=READERS, action="append", help="readers to fuzz; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run one case of the reader here and show what came of it")
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    readers = arguments.reader or list(READERS)
    if arguments.batch or arguments.case is not None:
        first, last = map(int, arguments.batch.split(":")) if arguments.batch else (arguments.case, arguments.case + 1)
        run_batch(readers[0], first, last, arguments.seed)
        return 0
    state = {"seed": arguments.seed, "seconds": 0.0, "readers": {}, "failures": []}
    if arguments.state and arguments.state.exists():
        state |= json.loads(arguments.state.read_text())
        if state["seed"] != arguments.seed:
            raise SystemExit(f"{arguments.state} is of seed {state['seed']}")
    started, before = time.monotonic(), state["seconds"]
    for reader in itertools.cycle(readers):
        if time.monotonic() - started > arguments.seconds:
            break
        counts = state["readers"].setdefault(reader, {"cases": 0, "read": 0, "refused": 0, "graphs": 0, "rejected": 0})
        first = counts["cases"]
        results = batch_in_a_process(reader, first, first + BATCH, arguments.seed)
        for number, result in results.items():
            counts["cases"] = number + 1
            if "failure" in result:
                state["failures"].append({"reader": reader, "case": number, **result})
            for key in result.keys() & counts.keys():
                counts[key] += result[key]
        state["seconds"] = round(before + time.monotonic() - started, 1)
        if arguments.state:
            temporary = arguments.state.with_suffix(".tmp")
            temporary.write_text(json.dumps(state, indent=1))
            temporary.replace(arguments.state)
    print(json.dumps(state, indent=1))  # noqa: T201
    return 1 if state["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
