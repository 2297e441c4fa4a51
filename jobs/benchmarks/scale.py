"""Measure whether time a graph and memory stay flat when there are more graphs: ogbg-molhiv copied 1, 25, ... times.

Every copy has ids of its own. The jobs are run as commands with two workers, whose memory is sampled from outside; the
client's process holds the scheduler too. Workers have a memory limit, above half of which they give freed memory back.
Then the stage embed is run with one worker and with two. For example::

    python jobs/benchmarks/scale.py --data data/ogb --copies 1 25
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from _measure import Usage, alternate, finish, median, parser, tree_environment, watch, wegl_dask, working_folder
from molhiv import ingested, write_job


def replicate(shards: Path, target: Path, copies: int) -> None:
    """Write so many copies of graph shards, the copy's number in front of every id."""
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(shards.glob("*.parquet"))
    for number, file in enumerate(files):
        table = pq.read_table(file)
        ids = table.column("graph_id").to_pylist()
        for copy in range(copies):
            own = {
                "graph_id": [f"{copy}:{graph_id}" for graph_id in ids],
                "source_file": [f"copy {copy}"] * len(ids),
            }
            copied = table
            for name, values in own.items():
                position = table.schema.get_field_index(name)
                copied = copied.set_column(position, table.schema.field(position), pa.array(values, pa.string()))
            pq.write_table(copied, target / f"part-{copy * len(files) + number:06d}.parquet", compression="zstd")


def run(job: Path, output: Path, limit: str) -> tuple[Usage, dict[str, Any]]:
    """Run a job anew, with one more key: what it used, and its manifest."""
    shutil.rmtree(output, ignore_errors=True)
    used = watch(wegl_dask("run", str(job), "--set", limit), environment=tree_environment())
    return used, json.loads((output / "manifest.json").read_text(encoding="utf-8"))


def summarize(runs: list[tuple[Usage, dict[str, Any]]], workers: int) -> dict[str, Any]:
    """Take the medians of the runs of one job."""
    manifest = runs[0][1]
    graphs = manifest["summary"]["rows"]
    stages = manifest["stages"]
    return {
        "graphs": graphs,
        "shards": stages["embed"]["parts"],
        "tasks": sum(stage["parts"] for stage in stages.values()),
        "seconds": median([used.seconds for used, _ in runs]),
        "microseconds_a_graph": median([1e6 * used.seconds / graphs for used, _ in runs]),
        "embed_seconds": median([found["stages"]["embed"]["seconds"] for _, found in runs]),
        "worker_peak_mb": median([max(used.children_peaks[:workers]) / 1e6 for used, _ in runs]),
        "client_peak_mb": median([used.own_peak / 1e6 for used, _ in runs]),
        "cpu_seconds": median([used.cpu_seconds for used, _ in runs]),
        "stages": {name: stage["seconds"] for name, stage in stages.items() if stage["seconds"]},
    }


def main() -> None:
    """Run all sizes in turn, then one worker against two."""
    options = parser(__doc__)
    options.set_defaults(repeats=1)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogbg_molhiv/")
    options.add_argument("--copies", type=int, nargs="+", default=[1, 25], help="sizes (default: 1 25)")
    options.add_argument("--speedup-copies", type=int, default=2, help="size for one worker against two (default: 2)")
    options.add_argument("--memory-limit", default="700MB", help="of a worker (default: 700MB)")
    options.add_argument("--work", type=Path, help="folder for shards and runs, which is kept")
    arguments = options.parse_args()
    with working_folder(arguments.work) as given:
        work = given.resolve()
        shards = ingested(arguments.data.resolve(), work)

        def side(copies: int, workers: int) -> Any:
            source = work / f"copies-{copies}"
            if not source.exists():
                replicate(shards, source, copies)
            output = work / f"run-{copies}-{workers}"
            job = write_job(
                work / f"run-{copies}-{workers}.toml", f'kind = "graph_parquet"\npath = "{source}"', output, workers
            )
            limit = f"cluster.memory_limit={arguments.memory_limit}"
            return lambda: run(job, output, limit)

        sizes = alternate({f"{copies} copies": side(copies, 2) for copies in arguments.copies}, arguments.repeats)
        speed = alternate(
            {f"{workers} workers": side(arguments.speedup_copies, workers) for workers in (1, 2)}, arguments.repeats
        )
    found = {name: summarize(runs, 2) for name, runs in sizes.items()}
    workers = {name: summarize(runs, int(name.split()[0])) for name, runs in speed.items()}
    first = found[f"{arguments.copies[0]} copies"]
    result = {
        "benchmark": "scale",
        "sizes": found,
        "time_a_graph_against_the_first": {
            name: round(one["microseconds_a_graph"] / first["microseconds_a_graph"], 3) for name, one in found.items()
        },
        "worker_peak_against_the_first": {
            name: round(one["worker_peak_mb"] / first["worker_peak_mb"], 3) for name, one in found.items()
        },
        "workers": workers,
        "two_workers_against_one_on_embed": round(
            workers["1 workers"]["embed_seconds"] / workers["2 workers"]["embed_seconds"], 2
        ),
    }
    finish(result, describe(result), arguments)


def describe(result: dict[str, Any]) -> str:
    """Render the result as a table."""
    columns = ("graphs", "tasks", "seconds", "us a graph", "embed s", "worker MB", "client MB", "CPU s")
    lines = ["".join([f"{'':12}", *(f"{column:>11}" for column in columns)])]
    lines += [
        f"{name:12}{one['graphs']:11,}{one['tasks']:11,}{one['seconds']:11.1f}{one['microseconds_a_graph']:11.0f}"
        f"{one['embed_seconds']:11.1f}{one['worker_peak_mb']:11.0f}{one['client_peak_mb']:11.0f}{one['cpu_seconds']:11.1f}"
        for name, one in (result["sizes"] | result["workers"]).items()
    ]
    lines.append(f"time a graph: {result['time_a_graph_against_the_first']}")
    lines.append(f"worker memory: {result['worker_peak_against_the_first']}")
    lines.append(f"embed, two workers against one: {result['two_workers_against_one_on_embed']} times faster")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
