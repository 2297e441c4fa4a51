"""What the benchmarks share: processes watched from outside, sides run in turn, and results with what they were run on."""

import argparse
import compileall
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from wegl_dask.reproduce.provenance import processor

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("wegl-dask", "numpy", "scipy", "scikit-learn", "POT", "pyarrow", "dask", "distributed", "dask-ml")

POLL_SECONDS = 0.2
"""Between two looks at the processes; a look takes some milliseconds of a core that is measured."""


@dataclass(frozen=True)
class Usage:
    """What a process and its children used.

    Attributes
    ----------
    seconds, cpu_seconds : float
        CPU of children that have ended without their parent waiting for them is missing.
    own_peak, tree_peak : int
        Largest resident memory of the process, and of it and all its children together as far as it was seen, in bytes.
    children_peaks : tuple of int
        Largest resident memory of each child, largest first.
    output : str
        Standard output.
    """

    seconds: float
    cpu_seconds: float
    own_peak: int
    tree_peak: int
    children_peaks: tuple[int, ...]
    output: str


def watch(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Usage:
    """Run a command to its end and sample the memory of its process tree from outside.

    Raises
    ------
    SystemExit
        If it fails; its last lines are shown.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = psutil.Popen(list(command), stdout=output, stderr=errors, env={**os.environ, **(environment or {})})
        peaks: dict[int, int] = {}
        cpu: dict[int, float] = {}
        tree_peak = 0
        while process.poll() is None:
            now = 0
            for one in _tree(process):
                try:
                    memory, times = one.memory_info().rss, one.cpu_times()
                    peaks[one.pid] = max(peaks.get(one.pid, 0), _high_water_mark(one.pid))
                except (psutil.Error, OSError):
                    continue
                cpu[one.pid] = times.user + times.system
                now += memory
            tree_peak = max(tree_peak, now)
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - started
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed with {process.returncode}:\n{''.join(errors.readlines()[-20:])}")
        own = peaks.pop(process.pid, 0)
        children = tuple(sorted(peaks.values(), reverse=True))
        return Usage(seconds, sum(cpu.values()), own, tree_peak, children, output.read())


def alternate(sides: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[Any]]:
    """Run every side once, then every side again, and so on, and say on standard error how far it is."""
    results: dict[str, list[Any]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name, run in sides.items():
            print(f"{name}, {repeat + 1} of {repeats} ...", file=sys.stderr, flush=True)
            results[name].append(run())
    return results


def become_worker() -> None:
    """Start this program anew in the environment of a worker, unless it is in it: one BLAS thread, its own `malloc`."""
    from wegl_dask.worker_environment import WORKER_ENVIRONMENT  # noqa: PLC0415  many benchmarks do without

    if any(os.environ.get(name) != value for name, value in WORKER_ENVIRONMENT.items()):
        environment = {**os.environ, **WORKER_ENVIRONMENT}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)  # noqa: S606  this program again


def median(values: Sequence[float]) -> float:
    """Round a median to four figures."""
    return float(f"{statistics.median(values):.4g}")


def wegl_dask(*arguments: str) -> list[str]:
    """Spell the command ``wegl-dask`` of this source tree."""
    return [sys.executable, "-m", "wegl_dask", *arguments]


def tree_environment() -> dict[str, str]:
    """Let processes find this source tree, whether it is installed or not, and compiled as pip leaves what it installs."""
    compileall.compile_dir(REPOSITORY / "wegl_dask", quiet=1)
    found = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *([found] if found else [])])}


def conditions(*more_packages: str) -> dict[str, Any]:
    """Describe the machine, its load, and the versions."""
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in (*PACKAGES, *more_packages)},
    }


def parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the options that every benchmark has."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--repeats", type=int, default=3, help="times that every side is run (default: 3)")
    result.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    return result


def finish(result: dict[str, Any], table: str, arguments: argparse.Namespace, *more_packages: str) -> None:
    """Print the table, and write the results where they are wanted."""
    found = conditions(*more_packages)
    result = {"command": _command_line(), **result, "conditions": found}
    print(table)
    load = found["load_average"][0]
    print(f"\n{found['cores']} cores ({found['processor']}), load {load} at the end, Python {found['python']}")
    print(", ".join(f"{name} {value}" for name, value in found["versions"].items()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


@contextmanager
def working_folder(given: Path | None) -> Iterator[Path]:
    """Give a folder for intermediate files: the one named, which is kept, or a temporary one."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
    else:
        with tempfile.TemporaryDirectory(prefix="wegl-dask-benchmark-") as folder:
            yield Path(folder)


def run_quietly(command: Sequence[str]) -> None:
    """Run a command that prepares something and is not measured."""
    done = subprocess.run(  # noqa: S603  a command of this package
        list(command), env={**os.environ, **tree_environment()}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")


def _high_water_mark(pid: int) -> int:
    """Largest resident memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    # A process that has ended and was not waited for has no memory.
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def shown(argument: str) -> str:
    """Leave out where a file or folder lies: that is the machine's matter."""
    return Path(argument).name if argument.startswith("/") else argument


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _command_line() -> str:
    script = Path(sys.argv[0])
    name = f"jobs/benchmarks/{script.name}" if script.parent.name == "benchmarks" else str(script)
    return " ".join(["python", name, *map(shown, sys.argv[1:])])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "source tree" if package == "wegl-dask" else "not installed"
