"""A wheel of this package for scheduler and workers that have not installed it: it lies beside their own files."""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Client, WorkerPlugin

from wegl_dask.errors import JobFileError, WeglError


def upload_wheel(client: Client, path: str) -> None:
    """Give the scheduler and all workers, also those that join later, a wheel to import this package from.

    Nothing is installed: the wheel is a file in the temporary folder of each process, ahead of all else that Python
    imports from, until the process ends. A process that can import the package already is left as it is.

    Parameters
    ----------
    client : distributed.Client
    path : str
        A wheel of wegl-dask on this machine.

    Raises
    ------
    JobFileError
        If there is no such file or it is something else.
    WeglError
        If another wheel was uploaded to one of them before.
    """
    content = _read_wheel(path)
    name = f"{hashlib.sha256(content).hexdigest()[:16]}-{Path(path).name}"
    place = _placer()
    has_other = [client.run_on_scheduler(place, content, name)]
    # It replaces that of a job that has gone before, whose wheel workers that join would get.
    client.register_plugin(_plugin(place, content, name), name="wegl-dask-upload")
    has_other += client.run(place, content, name).values()
    if any(has_other):
        raise WeglError(
            f'cluster.upload = "{path}" comes too late: another wheel was uploaded to the scheduler or its workers, which go '
            "on with that one until they end. Restart them"
        )


def _read_wheel(path: str) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            archive.getinfo("wegl_dask/version.py")
        return Path(path).read_bytes()
    except OSError as error:
        raise JobFileError(f'cluster.upload = "{path}" cannot be read: {error.strerror}') from error
    except (zipfile.BadZipFile, KeyError) as error:
        raise JobFileError(
            f'cluster.upload = "{path}" is no wheel of wegl-dask: make one with  pip wheel --no-deps  from its source'
        ) from error


def _placer() -> Callable[..., bool]:
    """Make the function that places a wheel where it runs; it travels whole, since there is no package there yet.

    It says whether there is another wheel already, in whose place this one does not come.
    """

    def place(content: bytes, name: str, parent: str | None = None) -> bool:
        import atexit  # noqa: PLC0415
        import importlib  # noqa: PLC0415
        import shutil  # noqa: PLC0415
        import sys  # noqa: PLC0415
        import tempfile  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        try:
            found = importlib.import_module("wegl_dask.version").__file__ or ""
        except ModuleNotFoundError:
            folder = tempfile.mkdtemp(prefix="wegl-dask-upload-", dir=parent)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            wheel = Path(folder, name)
            wheel.write_bytes(content)
            sys.path.insert(0, str(wheel))
            importlib.invalidate_caches()
            return False
        return "wegl-dask-upload-" in found and name not in Path(found).parts

    return place


def _plugin(place: Callable[..., bool], content: bytes, name: str) -> WorkerPlugin:
    class Upload(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
        def setup(self, worker: Any) -> None:
            place(content, name, worker.local_directory)

    return Upload()
