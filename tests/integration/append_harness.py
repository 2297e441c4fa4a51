"""Kill appends and their workers at moments drawn from a seed, while files come and grow, and compare what comes out.

::

    python tests/integration/append_harness.py --kills 100 --state appends.json --data ../shared/data

A *round* begins with a finished run on the first molecules of ogbg-molhiv. In every *wave* more rows come, in new files or
at the end of the last one, and an append reads all files or the last one alone; the last wave brings all that is left, and
reads all. An append that was killed is started again, or more rows come before it is. In the end every row must be there
once, with the vector that it has in a run to which all was appended at once, and ``verify --deep`` must find nothing.

The state is that of `kill_harness`.
"""

import csv
import gzip
import itertools
import random
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tomli_w

sys.path.insert(0, str(Path(__file__).parent))

from kill_harness import Event, Job, column, count, faults, is_expected, main

KINDS = ("worker", "workers", "client", "client", "terminate", "terminate")
STAGES = ("start", "known", "ingest", "embed", "finish")
FIRST = 0.3
"""Part of the rows that the run is fitted on."""

COLUMNS = ["graph_id", "embedding"]


def draw_wave(draw):
    """Draw what happens to the append of a wave, in the order of its stages."""
    events = []
    for _ in range(draw.choice([0, 1, 1, 1, 2, 3])):
        stage = draw.choice(STAGES)
        delay = (
            draw.uniform(0, 2.0)
            if stage == "start"
            else draw.choice([0.0, draw.uniform(0, 0.03), draw.uniform(0, 0.3)])
        )
        by_file = stage in {"ingest", "embed"} and draw.random() < 0.5
        events.append(Event(draw.choice(KINDS), stage, draw.randint(1, 4), by_file, delay, draw.randrange(1000)))
    return sorted(events, key=lambda event: (STAGES.index(event.stage), event.parts))


class Harness:
    """Rounds of appends, and what became of them."""

    def __init__(self, work, data, state, reference):
        self.state = state
        self.inputs = work / "in"
        self.work = work
        with gzip.open(data / "ogb" / "ogbg_molhiv" / "mapping" / "mol.csv.gz", "rt", newline="") as file:
            rows = itertools.islice(csv.DictReader(file), state.values["graphs"])
            self.rows = [(row["smiles"], f"molecule {number}") for number, row in enumerate(rows)]
        self.job_path = work / "job.toml"
        self.job_path.write_text(
            tomli_w.dumps(
                {
                    # Some graphs are larger, so that there is something in rejected/.
                    "source": {
                        "kind": "smiles",
                        "path": f"{self.inputs}/*.csv",
                        "smiles_column": "smiles",
                        "id_column": "id",
                        "nodes_per_shard": 600,
                        "max_nodes": 45,
                        "max_rejected_fraction": 1.0,
                    },
                    "projection": {"components": 10},
                    "reference": {"kind": reference},
                    "output": {"path": str(work / "base")},
                    "cluster": {"workers": 2, "memory_limit": "1GB"},
                }
            )
        )
        self.come(range(int(FIRST * len(self.rows))), 0)
        Job("run", str(self.job_path)).finish()
        shutil.copytree(self.inputs, work / "base-in")
        shutil.copytree(work / "base", work / "whole")
        self.come(range(int(FIRST * len(self.rows)), len(self.rows)), 1)
        self.append(work / "whole").finish()
        self.vectors = vectors(work / "whole")

    def come(self, rows, file):
        """Write rows to the end of a file, which begins with its header."""
        self.inputs.mkdir(exist_ok=True)
        path = self.path(file)
        is_new = not path.exists()
        with path.open("a", newline="") as out:
            csv.writer(out).writerows([("smiles", "id")] * is_new + [self.rows[row] for row in rows])

    def append(self, out, *, by_id=False, file=None):
        alone = [] if file is None else ["--set", f"source.path={self.path(file)}"]
        return Job("append", str(out), *["--by-id"] * by_id, *alone)

    def path(self, file):
        return self.inputs / f"part-{file:03d}.csv"

    def round(self):
        """Let all rows come, wave by wave, and look at what there is in the end."""
        number, started = self.state.values["rounds"], time.monotonic()
        draw = random.Random(f"{self.state.values['seed']} {number}")
        shutil.rmtree(self.inputs)
        shutil.copytree(self.work / "base-in", self.inputs)
        out = self.work / f"round {number}"
        shutil.copytree(self.work / "base", out)
        by_id = draw.random() < 0.5
        first, last = int(FIRST * len(self.rows)), len(self.rows)
        bounds = [first, *sorted(draw.sample(range(first + 1, last), draw.randint(2, 5))), last]
        happened, missed, problems, n_runs, file = [], [], [], 0, 0
        for start, stop in itertools.pairwise(bounds):
            file += draw.random() < 0.85
            self.come(range(start, stop), file)
            events = draw_wave(draw)
            runs = draw.choice([1, 1, 2]) if stop < last else 20
            alone = file if stop < last and draw.random() < 0.7 else None
            for _ in range(runs):
                n_runs += 1
                moment = partial(has_come, out, {stage: count(out / "records", f"{stage}-*.json") for stage in STAGES})
                code, message, what = self.append(out, by_id=by_id, file=alone).disturbed(events, happened, moment)
                if code == 0:
                    break
                if not is_expected(code, message, what, out):
                    problems.append({"exit": code, "after": what, "message": message[-2000:]})
            else:
                if stop == last:
                    raise SystemExit(f"round {number} does not come to an end: {problems}")
            missed += events
        problems += self.compare(out)
        shutil.rmtree(out)
        self.state.note(missed, happened, problems, n_runs, time.monotonic() - started)

    def compare(self, out):
        """List what is not as where all was appended at once."""
        found = vectors(out)
        other = [
            row
            for row in found.keys() | self.vectors.keys()
            if row not in found or row not in self.vectors or not np.allclose(found[row], self.vectors[row], atol=1e-6)
        ]
        expected = [row for _, row in self.rows]
        return self.state.compare(expected, column(out, "graph_id"), sorted(other)[:5]) + faults(out)

    def close(self):
        """Nothing outlives a round."""


def has_come(out, before, event):
    """Whether the moment of an event has come: so many parts of its stage are there that were not before."""
    if event.stage == "start":
        return True
    if event.stage == "finish":
        return new(out, before, "known") and new(out, before, "ingest") == new(out, before, "embed") > 0
    if event.by_file and event.stage == "embed":
        return count(out / "data", "part-*.parquet") - before["embed"] >= event.parts
    return new(out, before, event.stage) >= (1 if event.stage == "known" else event.parts)


def new(out, before, stage):
    return count(out / "records", f"{stage}-*.json") - before[stage]


def vectors(out):
    """Embeddings by graph id."""
    tables = [pq.read_table(path, columns=COLUMNS) for path in out.glob("data/*.parquet")]
    return {row["graph_id"]: np.array(row["embedding"]) for table in tables for row in table.to_pylist()}


if __name__ == "__main__":
    sys.exit(main(Harness, __doc__))
