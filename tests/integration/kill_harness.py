"""Kill workers, clients and schedulers of a job at moments drawn from a seed, and compare what comes out.

::

    python tests/integration/kill_harness.py --kills 200 --state kills.json --data ../shared/data

A *round* is one job on the first graphs of ogbg-molhiv, in many small shards. Events drawn from the seed and the number
of the round disturb it, each at a moment of its own: when so many parts of a stage are there, and a little later. A job
that was ended is run again, until it is done. Then its parts must be byte for byte those of a job that nothing happened
to, no row of the input may be lost or doubled, and ``verify --deep`` must find nothing.

The state is written after every round, so the harness can be stopped at any time; called again, it goes on where it was.
What was not as it should be is kept in the state, and makes the exit code 1.
"""

import argparse
import contextlib
import gzip
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import tomli_w

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from wegl_dask.storage import RunFolder  # noqa: E402
from wegl_dask.verify import verify_run  # noqa: E402

STAGES = ("start", "scan", "ingest", "moments", "merge", "projection", "sample", "reference", "embed", "finish")
"""In the order in which a job passes through them."""

BY_SHARD = ("ingest", "moments", "sample", "embed")
"""Stages that make a part of every shard; an event comes when some of them are there."""

BEFORE = {"merge": "moments", "projection": "merge", "reference": "sample", "finish": "embed"}
"""Stages of one short task: an event comes some time after the last part of the stage before."""

LOCAL_KINDS = ("worker", "worker", "workers", "client", "client", "terminate")
SCHEDULER_KINDS = ("worker", "workers", "client", "terminate", "scheduler", "scheduler")

SUBFOLDERS = ("data", "graphs", "rejected", "model")

ENDED_BY_US = {"client": -signal.SIGKILL, "terminate": 143, "scheduler": 1}
"""Exit codes of a command that an event has ended."""

RUN_SECONDS = 300


@dataclass(frozen=True)
class Event:
    """What is to happen to a job, and when.

    Attributes
    ----------
    kind : str
        SIGKILL for one worker ("worker"), for all of them ("workers"), for the command ("client") or the scheduler;
        SIGTERM for the command ("terminate").
    stage : str
    parts : int
        Parts of the stage that must be there first.
    by_file : bool
        Look at the files of the parts rather than at their records, which come a moment later.
    delay : float
        Seconds to wait after that.
    choice : int
        Decides which worker.
    """

    kind: str
    stage: str
    parts: int
    by_file: bool
    delay: float
    choice: int


def draw_round(seed, number, n_shards):
    """Draw what happens in a round: whether on an existing scheduler, and the events in the order of the stages."""
    draw = random.Random(f"{seed} {number}")
    on_scheduler = draw.random() < 0.2
    events = []
    for _ in range(draw.randint(2, 6)):
        stage = draw.choice(STAGES)
        events.append(
            Event(
                kind=draw.choice(SCHEDULER_KINDS if on_scheduler else LOCAL_KINDS),
                stage=stage,
                parts=draw.randint(1, n_shards) if stage in BY_SHARD else 1,
                by_file=stage in {"ingest", "embed"} and draw.random() < 0.5,
                # Right after a part, while the next is made, or anywhere in a stage that takes some tenths of a second.
                delay=draw.choice([0.0, draw.uniform(0, 0.03), draw.uniform(0, 0.3)])
                if stage not in {"start", "scan"}
                else draw.uniform(0, 1.5),
                choice=draw.randrange(1000),
            )
        )
    return on_scheduler, sorted(events, key=lambda event: (STAGES.index(event.stage), event.parts))


def has_come(event, out):
    """Whether the moment of an event has come, its delay aside."""
    if event.stage == "start":
        return True
    if event.stage == "scan":
        return (out / "job.toml").exists()
    if event.by_file:
        return count(out / {"ingest": "graphs", "embed": "data"}[event.stage], "part-*.parquet") >= event.parts
    if event.stage in BY_SHARD:
        return count(out / "records", f"{event.stage}-*.json") >= event.parts
    before = BEFORE[event.stage]
    needed = count(out / "records", "ingest-*.json") if before in BY_SHARD else 1
    return 0 < needed <= count(out / "records", f"{before}-*.json")


def count(folder, pattern):
    return len([*folder.glob(pattern)])


# --- The cluster ---


class Scheduler:
    """An existing scheduler with two workers, as processes of their own."""

    def __init__(self, folder):
        self._processes = []
        self._former = []
        self._folder = folder
        self._number = 0
        self.address = ""
        self.start()

    def start(self):
        """Start a scheduler and its workers; those of the one before live on, and may end what they are at."""
        end(self._former)
        self._former, self._processes = self._processes, []
        self._number += 1
        file = self._folder / f"scheduler-{self._number}.json"
        start_scheduler = (
            "-m",
            "distributed.cli.dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
        )
        self.scheduler = self._start(*start_scheduler, "--scheduler-file", str(file))
        wait_for(file.exists, "the scheduler")
        self.address = json.loads(file.read_text())["address"]
        for _ in range(2):
            options = ("--nthreads", "1", "--memory-limit", "1GB", "--no-dashboard", "--host", "127.0.0.1")
            folder = tempfile.mkdtemp(dir=self._folder)
            self._start("-m", "distributed.cli.dask_worker", self.address, *options, "--local-directory", folder)

    def _start(self, *arguments):
        process = start_python(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def workers(self):
        """Processes that run tasks, children of the nannies."""
        return [worker for nanny in self._processes if nanny is not self.scheduler for worker in spawned(nanny.pid)]

    def revive(self):
        """Start a new one where it was killed."""
        if self.scheduler.poll() is not None:
            self.start()

    def close(self):
        end([*self._former, *self._processes])


def end(processes):
    for process in processes:
        for child in spawned(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()


def spawned(pid):
    """Worker processes under a process: neither Python's resource tracker nor the server that they are forks of."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(pid).children(recursive=True)
        forked = {child.pid for child in children if "forkserver import main" in command_line(child)}
        return [child for child in children if "spawn_main" in command_line(child) or parent_of(child) in forked]
    return []


def parent_of(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.ppid()
    return None


def command_line(process):
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""


def start_python(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *arguments], env=environment, **options)


def wait_for(condition, what, seconds=RUN_SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.005)


# --- A job ---


class Job:
    """A command that can be started again and again."""

    def __init__(self, *arguments):
        self.arguments = arguments

    @contextlib.contextmanager
    def started(self):
        with tempfile.TemporaryFile("w+") as err:
            process = start_python("-m", "wegl_dask", *self.arguments, stdout=subprocess.DEVNULL, stderr=err)

            def message():
                err.seek(0)
                return err.read()

            process.message = message
            try:
                yield process
            finally:
                orphans = spawned(process.pid)
                process.kill()
                process.wait()
                psutil.wait_procs(orphans, timeout=30)

    def finish(self):
        """Run the command undisturbed."""
        with self.started() as process:
            if process.wait(RUN_SECONDS) != 0:
                raise SystemExit(process.message())

    def disturbed(self, events, happened, has_come, scheduler=None):
        """Run the command once; take events off the list as they come: exit code, message, kind of the last event.

        `has_come` says of an event whether its moment has come, its delay aside.
        """
        last = None
        with self.started() as process:
            while events:
                event = events[0]
                while not has_come(event) and process.poll() is None:
                    time.sleep(0.002)
                time.sleep(event.delay)
                if process.poll() is not None:
                    break
                events.pop(0)
                if strike(event, process, scheduler):
                    happened.append(event)
                    last = event.kind
                if event.kind in ENDED_BY_US:
                    break
            code = process.wait(RUN_SECONDS)
            return code, process.message(), last


def write_job(folder, root, nodes_per_shard, reference):
    path = folder / "job.toml"
    job = {
        # Some graphs are larger, so that there is something in rejected/.
        "source": {
            "kind": "ogb",
            "root": str(root),
            "name": "ogbg-molhiv",
            "nodes_per_shard": nodes_per_shard,
            "max_nodes": 45,
        },
        "nodes": {"virtual_node": True},
        "projection": {"components": 10},
        "reference": {"kind": reference},
        "output": {"path": "given with --set"},
        "cluster": {"workers": 2, "memory_limit": "1GB", "allowed_failures": 10},
    }
    path.write_text(tomli_w.dumps(job))
    return path


def molhiv_head(data, root, n_graphs):
    """Make a data set of the first graphs of ogbg-molhiv."""
    whole, part = data / "ogb" / "ogbg_molhiv", root / "ogbg_molhiv"
    (part / "raw").mkdir(parents=True)
    (part / "split" / "scaffold").mkdir(parents=True)

    def copy(name, n_lines):
        with gzip.open(whole / name, "rt") as file:
            lines = [*itertools.islice(file, n_lines)]
        with gzip.open(part / name, "wt", compresslevel=1) as file:
            file.writelines(lines)
        return lines

    copy("raw/graph-label.csv.gz", n_graphs)
    copy("raw/node-feat.csv.gz", sum(map(int, copy("raw/num-node-list.csv.gz", n_graphs))))
    n_edges = sum(map(int, copy("raw/num-edge-list.csv.gz", n_graphs)))
    copy("raw/edge.csv.gz", n_edges)
    copy("raw/edge-feat.csv.gz", n_edges)
    for split in (whole / "split" / "scaffold").iterdir():
        with gzip.open(split, "rt") as file, gzip.open(part / "split" / "scaffold" / split.name, "wt") as kept:
            kept.writelines(line for line in file if int(line) < n_graphs)


# --- A round ---


class State:
    """What was done and found so far, in a JSON file that is written after every round.

    Parameters
    ----------
    path : Path
        Of the file; what it says is gone on with.
    seed, n_graphs : int
    """

    def __init__(self, path, seed, n_graphs):
        self._path = path
        self.values = {
            "seed": seed,
            "graphs": n_graphs,
            "rounds": 0,
            "runs": 0,
            "kills": 0,
            "by_kind": {},
            "by_stage": {},
            "missed": 0,
            "seconds": 0.0,
            "rows_lost": 0,
            "rows_doubled": 0,
            "rounds_with_other_bytes": 0,
            "problems": [],
        }
        if path.exists():
            found = json.loads(path.read_text())
            if (found["seed"], found["graphs"]) != (seed, n_graphs):
                raise SystemExit(f"{path} is of seed {found['seed']} and {found['graphs']} graphs")
            self.values |= found

    def compare(self, expected, found, other):
        """Note the rows that are lost and doubled, and what has other bytes than it should: the problems."""
        counts = Counter(found)
        lost = len(set(expected) - counts.keys())
        doubled = counts.total() - len(counts)
        self.values["rows_lost"] += lost
        self.values["rows_doubled"] += doubled
        self.values["rounds_with_other_bytes"] += bool(other)
        return [{"lost": lost, "doubled": doubled, "other bytes in": other}] if lost or doubled or other else []

    def note(self, missed, happened, problems, n_runs, seconds):
        """Write down a round: the events that came too late, those that happened, and the rest."""
        values, number = self.values, self.values["rounds"]
        values["rounds"] = number + 1
        values["runs"] += n_runs
        values["kills"] += len(happened)
        values["missed"] += len(missed)
        values["seconds"] = round(values["seconds"] + seconds, 1)
        for key, attribute in (("by_kind", "kind"), ("by_stage", "stage")):
            counts = Counter(values[key])
            counts.update(getattr(event, attribute) for event in happened)
            values[key] = dict(counts)
        values["problems"] += [
            {"round": number, "events": [asdict(event) for event in happened], **p} for p in problems
        ]
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(values, indent=1))
        temporary.replace(self._path)
        kinds = ", ".join(f"{event.kind} in {event.stage}" for event in happened)
        print(f"round {number}: {n_runs} runs, {seconds:.0f} s; {kinds}; {len(problems)} problems", flush=True)  # noqa: T201


class Harness:
    """Rounds of a job, and what became of them."""

    def __init__(self, work, data, state, reference):
        self.work = work
        self.state = state
        self.n_graphs = n_graphs = state.values["graphs"]
        root = work / "ogb"
        molhiv_head(data, root, n_graphs)
        self.job_path = write_job(work, root, max(100, 25 * n_graphs // 40), reference)
        self.undisturbed = work / "undisturbed"
        self.job(self.undisturbed).finish()
        self.n_shards = count(self.undisturbed / "data", "part-*.parquet")
        check = column(self.undisturbed, "source_row")
        if sorted(check) != sorted(range(n_graphs)):
            raise SystemExit("the undisturbed run has lost or doubled rows")
        self.scheduler = None

    def job(self, out, *arguments):
        return Job("run", str(self.job_path), "--set", f"output.path={out}", *arguments)

    def round(self):
        """Run one job to its end through all that happens to it, and look at what it has made."""
        number, started = self.state.values["rounds"], time.monotonic()
        on_scheduler, events = draw_round(self.state.values["seed"], number, self.n_shards)
        out = self.work / f"round {number}"
        happened, problems, n_runs = [], [], 0
        while True:
            scheduler = self.existing_scheduler() if on_scheduler else None
            n_runs += 1
            where = (
                ("--set", "cluster.kind=scheduler", "--set", f"cluster.address={scheduler.address}")
                if scheduler
                else ()
            )
            job = self.job(out, *where)
            code, message, last = job.disturbed(events, happened, lambda event: has_come(event, out), scheduler)
            if code == 0:
                break
            if not is_expected(code, message, last, out):
                problems.append({"exit": code, "after": last, "message": message[-2000:]})
            if n_runs > 20:
                raise SystemExit(f"round {number} does not come to an end: {problems}")
        problems += self.compare(out)
        shutil.rmtree(out)
        self.state.note(events, happened, problems, n_runs, time.monotonic() - started)

    def existing_scheduler(self):
        self.scheduler = self.scheduler or Scheduler(self.work)
        self.scheduler.revive()
        return self.scheduler

    def compare(self, out):
        """List what is not as in the undisturbed run."""
        other = [name for name in SUBFOLDERS if contents(out / name) != contents(self.undisturbed / name)]
        return self.state.compare(range(self.n_graphs), column(out, "source_row"), other) + faults(out)

    def close(self):
        if self.scheduler:
            self.scheduler.close()


def is_expected(code, message, last, out):
    """Whether a command that did not come to its end says so as it should; `last` is what happened to it last."""
    if last in {"worker", "workers"}:
        # Workers that die while they start end the command, before it has looked at its folder.
        return code == 1 and message.splitlines()[-1:] and "workers could not be started" in message.splitlines()[-1]
    if last == "terminate" and code == -signal.SIGTERM:
        # Python was still starting, and nothing had been said, or all was done. A shell reports it as 143 too.
        return not message or (out / "_SUCCESS").exists()
    if last == "scheduler" and code == 1 and "cannot reach the scheduler at" in message:
        # It was killed before the command had come to it.
        return True
    return code == ENDED_BY_US.get(last) and (last == "client" or "run the same" in message)


def strike(event, process, scheduler):
    """Do what the event says; whether there was something to do it to."""
    if event.kind in {"worker", "workers"}:
        workers = scheduler.workers() if scheduler else spawned(process.pid)
        chosen = [workers[event.choice % len(workers)]] if event.kind == "worker" and workers else workers
        for worker in chosen:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        return bool(chosen)
    if event.kind == "scheduler":
        scheduler.scheduler.kill()
    else:
        process.send_signal(signal.SIGTERM if event.kind == "terminate" else signal.SIGKILL)
    return True


def column(out, name):
    """Values of a column in data/ and rejected/."""
    paths = [*out.glob("data/part-*.parquet"), *out.glob("rejected/part-*.parquet")]
    return [value for path in paths for value in pq.read_table(path, columns=[name]).column(0).to_pylist()]


def faults(out):
    """List what ``verify --deep`` finds in a run folder, and what was left behind in it."""
    found = [{"verify": str(problem)} for problem in verify_run(RunFolder(str(out)), deep=True)]
    return found + [{"left behind": str(path.relative_to(out))} for path in out.rglob(".*")]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def main(make_harness, description):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="kills to do in all, those of the state included")
    parser.add_argument("--state", type=Path, required=True, help="JSON file of what was done; it is written anew")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds ogb/ogbg_molhiv")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--reference", default="kmeans", help="`reference.kind` of the jobs")
    arguments = parser.parse_args()
    # So that a harness that is stopped ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="kills-") as work:
        state = State(arguments.state, arguments.seed, arguments.graphs)
        harness = make_harness(Path(work), arguments.data, state, arguments.reference)
        try:
            while state.values["kills"] < arguments.kills:
                harness.round()
        finally:
            harness.close()
    print(json.dumps(state.values, indent=1))  # noqa: T201
    return 1 if state.values["problems"] else 0


if __name__ == "__main__":
    sys.exit(main(Harness, __doc__))
