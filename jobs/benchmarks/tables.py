"""Write the results that are kept in `results/` into the tables of `README.md`.

For example::

    python jobs/benchmarks/tables.py
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- results: made by  python jobs/benchmarks/tables.py -->\n", "<!-- end of results -->\n"

Result = Mapping[str, Any]
Rows = Iterator[tuple[str, ...]]


def molhiv(result: Result) -> Rows:
    """Time and memory of every side."""
    yield (
        "ogbg-molhiv, from graph shards to vectors",
        "seconds",
        "times slower",
        "CPU seconds",
        "peak MB, all processes",
    )
    for name, side in result["sides"].items():
        seconds = sorted(side["seconds"])
        yield (
            name,
            f"{seconds[0]:.1f} to {seconds[-1]:.1f}",
            f"{result['times_slower_than_wegl_dask'][name]:.2f}",
            f"{side['cpu_seconds']:.1f}",
            f"{side['peak_mb']:,.0f}",
        )


def transport(result: Result) -> Rows:
    """Microseconds a graph."""
    yield "inner part of embed", "N", "points a graph", "solver's core, us", "inner part, us", "ratio"
    for name, one in result["data_sets"].items():
        times = one["microseconds_a_graph"]
        yield (
            name,
            str(one["reference_points"]),
            f"{one['points_a_graph']:.0f}",
            f"{times['core']:,.0f}",
            f"{times['inner part']:,.0f}",
            f"{one['inner_part_to_core']:.2f}",
        )
    yield ()
    yield (
        "equal points merged before solving",
        "merged, ms a graph",
        "not merged, ms",
        "times faster",
        "vectors differ by",
    )
    for name, one in result["data_sets"].items():
        if merging := one.get("merging"):
            times = merging["milliseconds_a_graph"]
            yield (
                name,
                f"{times['merged']:.3g}",
                f"{times['unmerged']:.3g}",
                f"{merging['times_faster']:.2f}",
                f"{merging['largest_difference']:.0e}",
            )


def scale(result: Result) -> Rows:
    """Time and memory against the number of graphs."""
    yield "scale", "graphs", "tasks", "seconds", "us a graph", "largest worker, MB", "client and scheduler, MB"
    for name, one in (result["sizes"] | result["workers"]).items():
        yield (
            {"1 workers": "one worker alone", "2 workers": "two workers, as above"}.get(name, name),
            f"{one['graphs']:,}",
            f"{one['tasks']:,}",
            f"{one['seconds']:.0f}",
            f"{one['microseconds_a_graph']:.0f}",
            f"{one['worker_peak_mb']:.0f}",
            f"{one['client_peak_mb']:.0f}",
        )
    yield ()
    yield "embed, two workers against one", "times faster"
    yield f"{result['workers']['2 workers']['graphs']:,} graphs", f"{result['two_workers_against_one_on_embed']:.2f}"


def forecast(result: Result) -> Rows:
    """Compare what was planned with what was."""
    yield "wegl-dask plan", "planned graphs", "planned s", "s", "ratio", "planned MB a worker", "MB", "ratio"
    for name, one in result["jobs"].items():
        yield (
            name,
            f"{one['graphs']:,}",
            f"{one['planned_seconds']:.1f}",
            f"{one['seconds']:.1f}",
            f"{one['time_ratio']:.2f}",
            f"{one['planned_mb']:.0f}",
            f"{one['worker_peak_mb']:.0f}",
            f"{one['memory_ratio']:.2f}",
        )


def ingest(result: Result) -> Rows:
    """Microseconds a molecule."""
    yield "SMILES to graphs", "CPU us a molecule", "ratio"
    for name, value in result["microseconds"].items():
        yield name, f"{value:.0f}", f"{result['ratio_to_parser'][name]:.2f}"


def pairwise(result: Result) -> Rows:
    """Seconds for all pairs."""
    yield "all pairs of graphs", "graphs", "pairs", "embedding and distances, s", "exact W_2, s", "times faster"
    for name, one in result["data_sets"].items():
        yield (
            name,
            f"{one['graphs']:,}",
            f"{one['pairs']:,}",
            f"{one['ours_seconds']:.2f}",
            f"{one['exact_seconds_in_all']:,.0f}",
            f"{one['times_faster']:,.0f}",
        )


def latency(result: Result) -> Rows:
    """Milliseconds of one molecule."""
    yield "one molecule through a loaded model", "ms"
    yield "the first", f"{result['first_milliseconds']:.2f}"
    yield "median of all others", f"{result['median_milliseconds']:.2f}"
    yield "99th percentile", f"{result['percentile_99_milliseconds']:.2f}"


def sampling(result: Result) -> Rows:
    """How good references from samples are."""
    yield "k-means of a sample", "N", "node embeddings", "mean squared distance", "standard deviation", "k-means, s"
    for name, one in result["data_sets"].items():
        for size, sample in one["samples"].items():
            yield (
                name,
                str(one["reference_points"]),
                f"all {sample['nodes']:,}" if size == "all" else f"{sample['nodes']:,}",
                f"{sample['mean_squared_distance']:.4g}",
                f"{sample['standard_deviation']:.2g}",
                f"{sample['seconds']:.2f}",
            )


def scheduling(result: Result) -> Rows:
    """Milliseconds of a part."""
    yield "a part of a stage, which does nothing", "ms"
    yield "by the clock, with two workers", f"{result['median_milliseconds']:.2f}"
    yield "of the CPU, by the client and the scheduler", f"{result['median_cpu_milliseconds']:.2f}"


def neighbours(result: Result) -> Rows:
    """How many of the nearest by W_2 are found."""
    yield (
        "kind of reference",
        "of the 10 nearest by W_2, found among the 10 nearest",
        "among 100",
        "distance off by",
        "too small for",
        "bound, times W_2",
        "bound broken for",
    )
    for kind, one in result["references"].items():
        yield (
            kind,
            f"{one['recall_at_10']:.1%}",
            f"{one['recall_at_10_of_100_candidates']:.1%}",
            f"{one['mean_relative_error']:.1%}",
            f"{one['fraction_below']:.0%} of the pairs",
            f"{one['bound_mean_ratio']:.2f}",
            f"{one['bound_broken']:,} of {one['pairs']:,}",
        )


def queries(result: Result) -> Rows:
    """Seconds of queries for neighbours."""
    yield "vectors", "one query, s", "a thousand at a time, s", "a thousand by the index, s", "found by the index"
    for one in result["searches"]:
        seconds = one["seconds"]
        yield (
            f"{one['rows']:,} of {one['width']}",
            f"{seconds['scan_1']:.3f}",
            f"{seconds['scan_1000']:.2f}",
            f"{seconds['index_1000']:.1f}",
            f"{one['index_recall_at_10']:.1%}",
        )


TABLES: dict[str, Callable[[Result], Rows]] = {
    each.__name__: each
    for each in (
        molhiv,
        transport,
        scale,
        scheduling,
        forecast,
        ingest,
        pairwise,
        latency,
        sampling,
        neighbours,
        queries,
    )
}


def render(folder: Path = FOLDER / "results") -> str:
    """Render all results that are there as Markdown, those in a subfolder as of the machine that it is called after."""
    lines: list[str] = []
    for name, rows in TABLES.items():
        for path in sorted(folder.rglob(f"{name}.json"), key=lambda path: len(path.parts)):
            result = json.loads(path.read_text(encoding="utf-8"))
            machine = "" if path.parent == folder else f", {path.parent.name}"
            lines += [f"### {name}{machine}", "", f"`{result['command']}`", ""]
            header = True
            for row in rows(result):
                lines.append(f"| {' | '.join(row)} |" if row else "")
                if header and row:
                    lines.append(f"|---|{'---:|' * (len(row) - 1)}")
                header = not row
            found = result["conditions"]
            versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
            lines += [
                "",
                (
                    f"{found['cores']} cores ({found['processor']}), load {found['load_average'][0]} at the end, "
                    f"Python {found['python']}, {versions}."
                ),
                "",
            ]
    return "\n".join(lines)


def main() -> None:
    """Write the tables."""
    readme = FOLDER / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{render()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
