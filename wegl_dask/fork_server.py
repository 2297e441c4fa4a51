"""A process that has imported what workers import, of which the command's local workers are forks.

The command starts it before it imports Dask itself, so that both do so at the same time, and its workers are there a tenth
of a second later. One that takes the place of a worker that died is started by itself. The process has no threads and has
computed nothing, and ends with the command, however that ends.
"""

import atexit
import multiprocessing
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from wegl_dask.scratch import scratch_folder
from wegl_dask.stopping import signals_held, start_resource_tracker
from wegl_dask.toml import read_toml
from wegl_dask.worker_environment import WORKER_ENVIRONMENT, prepare_command, variables_put_back

ENVIRONMENT = {**WORKER_ENVIRONMENT, "PYTHONHASHSEED": "6640"}
"""What the environment of a process is set to as it starts, for itself and its forks. Dask gives its workers that seed."""

POSSIBLE = sys.platform == "linux"
"""Elsewhere what libraries do as they are imported need not survive a fork."""

LONGEST_FOLDER = 70
"""Characters; the path of a socket has 107 at most, of which Python takes some thirty for the name."""

_started: list[bool] = []


def start(parent: str | None = None) -> None:
    """Start it, once in a process, where that is possible.

    Where it cannot be started nothing is: workers are then started by themselves, which takes longer, or says what is
    wrong. What stands in the environment later its forks do not see.

    Parameters
    ----------
    parent : path, optional
        Where it has its folder; the system's folder for temporary files if not given.
    """
    if _started or not POSSIBLE:
        return
    from multiprocessing import forkserver  # noqa: PLC0415  not all systems have it

    # Python looks for modules in the current folder too if it is not told otherwise, and not where this process does.
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path)  # noqa: PTH100  an empty one is this folder
    values = {**ENVIRONMENT, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"}
    # ValueError is that of a folder that is no path, which the command refuses.
    with ExitStack() as stack, suppress(OSError, ValueError):
        # For its socket, which is a file, and would stay when this process is killed.
        folder = stack.enter_context(scratch_folder(parent))
        if len(folder) > LONGEST_FOLDER:
            return
        forkserver.set_forkserver_preload(["wegl_dask.preloaded"])
        start_resource_tracker()
        # One of its own would stay behind, in the system's place for such folders.
        multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]  # noqa: SLF001
        with signals_held(), variables_put_back(values):
            os.environ.update(values)
            forkserver.ensure_running()
        atexit.register(stack.pop_all().close)
        _started.append(True)


def start_for(arguments: Sequence[str]) -> None:
    """Start it for a command that runs a job file on workers of this machine, before the command itself is imported.

    What is not plain from the file and the arguments is left to the command, which starts it when it has read the job.
    """
    match arguments:
        case ["run" | "ingest", job, *others] if not any("scheduler" in each or "cluster" in each for each in others):
            # The forks see what is set now. The option --debug, with which the command sets less, would stand before these.
            prepare_command(debug=False)
            match _cluster_table(Path(job)):
                case {"kind": kind} if kind != "local":
                    return
                case {"local_directory": str(folder)}:
                    start(folder)
                case {}:
                    start()


def _cluster_table(job: Path) -> Any:
    with suppress(OSError, ValueError):
        # What is no file, as a pipe, can be read only once.
        if job.is_file():
            return read_toml(job.read_text(encoding="utf-8-sig")).get("cluster", {})
    return None


def is_started() -> bool:
    """Whether workers can be forked."""
    return bool(_started)
