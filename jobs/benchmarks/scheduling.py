"""Measure what a part of a stage costs the client and the scheduler: milliseconds each, of parts that do nothing.

The parts go through `wegl_dask.bags.run_stage`, as those of a run do; two workers do them, and never wait for long. With
as many cores as processes want, the time by the clock is what the client and the scheduler take, which share a process.
For example::

    python jobs/benchmarks/scheduling.py
"""

import time
from statistics import median
from typing import Any

from _measure import finish, parser

from wegl_dask.bags import run_stage
from wegl_dask.cluster import open_client
from wegl_dask.spec import ClusterTable
from wegl_dask.tasks import ShardTask


def do_nothing(task: ShardTask) -> int:
    """Do the part of a stage."""
    return task.index


def main() -> None:
    """Measure a stage several times over, on one cluster."""
    options = parser(__doc__)
    options.add_argument("--parts", type=int, default=6000, help="parts of the stage (default: 6000)")
    options.add_argument("--workers", type=int, default=2, help="workers of wegl-dask (default: 2)")
    arguments = options.parse_args()
    result = measure(arguments.parts, arguments.workers, arguments.repeats)
    finish(result, describe(result), arguments)


def measure(parts: int, workers: int, repeats: int) -> dict[str, Any]:
    """Time a stage by the clock and by the CPU of this process, which holds the client and the scheduler."""
    tasks = [ShardTask(index, f"{index:064x}", f"{index:064x}") for index in range(parts)]
    clock, cpu = [], []
    with open_client(ClusterTable(workers=workers)) as client:
        # The first stage waits for what the workers import.
        for _ in range(repeats + 1):
            began = time.perf_counter(), time.process_time()
            results = [outcome.result for _, outcome in run_stage(client, "nothing", do_nothing, tasks, retries=0)]
            ended = time.perf_counter(), time.process_time()
            if sorted(results) != list(range(parts)):
                raise ValueError("parts were lost")
            clock.append(1e3 * (ended[0] - began[0]) / parts)
            cpu.append(1e3 * (ended[1] - began[1]) / parts)
    return {
        "benchmark": "scheduling",
        "parts": parts,
        "milliseconds": [round(value, 3) for value in clock[1:]],
        "median_milliseconds": round(median(clock[1:]), 3),
        "median_cpu_milliseconds": round(median(cpu[1:]), 3),
    }


def describe(result: dict[str, Any]) -> str:
    """Render the result."""
    return (
        f"a part of a stage of {result['parts']:,}: {result['median_milliseconds']} ms by the clock, of which the client and "
        f"the scheduler compute {result['median_cpu_milliseconds']} ms"
    )


if __name__ == "__main__":
    main()
