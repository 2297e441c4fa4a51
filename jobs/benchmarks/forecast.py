"""Measure how well `wegl-dask plan` foretells what a job takes: seconds in all, and memory of the largest worker.

Every job is planned and then run as a command with two workers, whose memory is sampled from outside. Graph shards that
are there, such as the million graphs of `scale.py`, are a further job with the settings of ogbg-molhiv. For example::

    python jobs/benchmarks/forecast.py --data data --shards work/copies-25
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from _fitted import DATA_SETS, job
from _measure import alternate, finish, median, parser, tree_environment, watch, wegl_dask, working_folder

from wegl_dask.planning import forecast
from wegl_dask.spec import JobSpec

SETS = ("ogbg-molhiv", "PROTEINS", "REDDIT-BINARY")
WORKERS = 2


def main() -> None:
    """Plan and run all jobs in turn."""
    options = parser(__doc__)
    options.set_defaults(repeats=1)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogb/ and TUDataset/")
    options.add_argument("--sets", nargs="*", default=list(SETS), choices=DATA_SETS, help="data sets")
    options.add_argument("--shards", type=Path, help="folder of graph shards of molecules, planned and run too")
    options.add_argument("--work", type=Path, help="folder for runs, which is kept")
    arguments = options.parse_args()
    with working_folder(arguments.work) as given:
        work = given.resolve()
        cluster = {"workers": WORKERS}
        jobs = {name: job(name, arguments.data.resolve(), work / name, cluster=cluster) for name in arguments.sets}
        if arguments.shards is not None:
            values = jobs_of_shards(arguments.shards.resolve(), work / "shards", cluster)
            jobs[arguments.shards.name] = JobSpec.from_values(values)
        runs = alternate(
            {name: partial(measure, spec, work / f"{name}.toml") for name, spec in jobs.items()}, arguments.repeats
        )
    found = {name: summarize(forecasts) for name, forecasts in runs.items()}
    finish({"benchmark": "forecast", "workers": WORKERS, "jobs": found}, describe(found), arguments)


def jobs_of_shards(shards: Path, output: Path, cluster: dict[str, Any]) -> dict[str, Any]:
    """Make the tables of a job on graph shards."""
    tables = {name: table for name, table in DATA_SETS["ogbg-molhiv"].items() if name != "source"}
    source = {"kind": "graph_parquet", "path": str(shards)}
    return {"source": source, **tables, "output": {"path": str(output)}, "cluster": cluster}


def measure(spec: JobSpec, file: Path) -> dict[str, float]:
    """Plan a job, then run it."""
    found = forecast(spec)
    file.write_text(spec.to_toml(), encoding="utf-8")
    used = watch(wegl_dask("run", str(file), "--overwrite"), environment=tree_environment())
    stages = json.loads((Path(spec.output.path) / "manifest.json").read_text(encoding="utf-8"))["stages"]
    return {
        "graphs": found.graphs,
        "planned_seconds": found.seconds,
        "seconds": used.seconds,
        "planned_mb": found.peak_bytes / 1e6,
        "worker_peak_mb": max(used.children_peaks[:WORKERS]) / 1e6,
        **{f"planned_{stage.name}": stage.seconds for stage in found.stages},
        **{name: stage["seconds"] for name, stage in stages.items() if stage["seconds"] is not None},
    }


def summarize(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Take medians, and the ratios of what was planned to what was."""
    found: dict[str, Any] = {name: median([run[name] for run in runs]) for name in runs[0]}
    found["graphs"] = int(runs[0]["graphs"])
    return found | {
        "time_ratio": round(found["planned_seconds"] / found["seconds"], 2),
        "memory_ratio": round(found["planned_mb"] / found["worker_peak_mb"], 2),
    }


def describe(jobs: dict[str, dict[str, Any]]) -> str:
    """Render the result as a table."""
    columns = ("graphs", "planned s", "s", "ratio", "planned MB", "MB", "ratio")
    lines = ["".join([f"{'':16}", *(f"{column:>12}" for column in columns)])]
    lines += [
        f"{name:16}{one['graphs']:12,}{one['planned_seconds']:12.1f}{one['seconds']:12.1f}{one['time_ratio']:12.2f}"
        f"{one['planned_mb']:12.0f}{one['worker_peak_mb']:12.0f}{one['memory_ratio']:12.2f}"
        for name, one in jobs.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
