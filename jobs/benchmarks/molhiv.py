"""Measure ogbg-molhiv from graph shards on disk to embeddings in Parquet, against the plain pipeline in one process.

wegl-dask runs as a command with two workers, and everything counts: starting Python and the cluster, copying the shards
into the run, fitting, embedding, ending. The plain pipeline is `baseline.py`, of which only what follows its reading of
the data set counts; likewise the code that the paper's authors published, if a checkout of it is named. The settings are
those of the paper's table 1: virtual nodes, L = 4, an atom embedding of 300, the last layer, 20 components, statistics
and reference from the training graphs. For example::

    python jobs/benchmarks/molhiv.py --data data/ogb
    git clone https://github.com/navid-naderi/WEGL published
    python jobs/benchmarks/molhiv.py --data data/ogb --published published
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _measure import (
    Usage,
    alternate,
    finish,
    median,
    parser,
    run_quietly,
    tree_environment,
    watch,
    wegl_dask,
    working_folder,
)

JOB = """
name = "molhiv"
[source]
{source}
[nodes]
features = ["atom_embedding"]
atom_embedding_width = 300
virtual_node = true
[diffusion]
layers = 4
pooling = "final"
[projection]
components = 20
fit_on = "train"
[output]
path = "{output}"
[cluster]
workers = {workers}
"""


def write_job(path: Path, source: str, output: Path, workers: int) -> Path:
    """Write a job file."""
    path.write_text(JOB.format(source=source, output=output, workers=workers), encoding="utf-8")
    return path


def ingested(data: Path, work: Path) -> Path:
    """Make graph shards of ogbg-molhiv, if they are not there: their folder."""
    source = f'kind = "ogb"\nroot = "{data}"\nname = "ogbg-molhiv"\ndownload = false'
    run_quietly(wegl_dask("ingest", str(write_job(work / "ingest.toml", source, work / "shards", 2))))
    return work / "shards" / "graphs"


def main() -> None:
    """Run all sides in turn."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder that holds ogbg_molhiv/")
    options.add_argument("--published", type=Path, help="checkout of the code that the authors published")
    options.add_argument("--workers", type=int, default=2, help="workers of wegl-dask (default: 2)")
    options.add_argument("--work", type=Path, help="folder for shards and runs, which is kept")
    arguments = options.parse_args()
    here = Path(__file__).parent
    with working_folder(arguments.work) as work:
        shards = ingested(arguments.data.resolve(), work.resolve())
        job = write_job(
            work / "run.toml", f'kind = "graph_parquet"\npath = "{shards}"', work.resolve() / "run", arguments.workers
        )

        def ours() -> Usage:
            shutil.rmtree(work / "run", ignore_errors=True)
            return watch(wegl_dask("run", str(job)), environment=tree_environment())

        def script(name: str, *more: str) -> Callable[[], Usage]:
            command = [sys.executable, str(here / name), "--data", str(arguments.data), *more]
            return lambda: watch(command, environment=tree_environment())

        sides = {"wegl-dask": ours, "baseline.py": script("baseline.py")}
        if arguments.published is not None:
            sides["published"] = script("_published.py", "--code", str(arguments.published.resolve()))
        used = alternate(sides, arguments.repeats)
        stages = json.loads((work / "run" / "manifest.json").read_text(encoding="utf-8"))["stages"]
    result = summarize(used, stages)
    finish(result, describe(result), arguments)


def summarize(used: dict[str, list[Usage]], stages: dict[str, Any]) -> dict[str, Any]:
    """Take the medians of all sides, and their ratios to wegl-dask."""
    sides: dict[str, dict[str, Any]] = {}
    for name, runs in used.items():
        inside = [json.loads(run.output.splitlines()[-1]) if name != "wegl-dask" else None for run in runs]
        sides[name] = {
            "seconds": [
                round(run.seconds if own is None else own["seconds_in_all"], 2)
                for run, own in zip(runs, inside, strict=True)
            ],
            "cpu_seconds": median([run.cpu_seconds for run in runs]),
            "peak_mb": median([run.tree_peak / 1e6 for run in runs]),
            "peak_of_one_process_mb": median([max(run.own_peak, *run.children_peaks, 0) / 1e6 for run in runs]),
        }
        staged = [own["seconds"] for own in inside if own is not None and "seconds" in own]
        if staged:
            sides[name]["stages"] = {stage: median([own[stage] for own in staged]) for stage in staged[0]}
    sides["wegl-dask"]["stages"] = {name: stage["seconds"] for name, stage in stages.items() if stage["seconds"]}
    ours = median(sides["wegl-dask"]["seconds"])
    ratios = {name: round(median(side["seconds"]) / ours, 2) for name, side in sides.items()}
    return {"benchmark": "molhiv", "sides": sides, "times_slower_than_wegl_dask": ratios}


def describe(result: dict[str, Any]) -> str:
    """Render the result as a table."""
    lines = [f"{'':14}{'seconds':>10}{'ratio':>8}{'CPU s':>9}{'peak MB':>10}{'of one process':>17}"]
    for name, side in result["sides"].items():
        ratio = result["times_slower_than_wegl_dask"][name]
        lines.append(
            f"{name:14}{median(side['seconds']):10.2f}{ratio:8.2f}{side['cpu_seconds']:9.1f}{side['peak_mb']:10.0f}"
            f"{side['peak_of_one_process_mb']:17.0f}"
        )
    for name, side in result["sides"].items():
        if "stages" in side:
            stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in side["stages"].items())
            lines.append(f"{name}: {stages}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
