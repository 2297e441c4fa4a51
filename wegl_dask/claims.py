"""Which job a run folder belongs to: a run continues its own folder, and no other job writes in it."""

import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wegl_dask.checksums import sealed, unsealed
from wegl_dask.errors import JobFileError, OtherJobError
from wegl_dask.folders import TEMPORARY_PREFIX, Folder
from wegl_dask.locks import LOCK_NAME
from wegl_dask.progress import listed
from wegl_dask.records import (
    PART_FOLDERS,
    PART_NAME,
    RECORD_FOLDER,
    RECORD_NAME,
    SCRATCH_FOLDER,
    SCRATCH_NAME,
    json_bytes,
)
from wegl_dask.toml import read_toml
from wegl_dask.training.names import (
    KEPT_NAME,
    METRICS_FILE,
    MODEL_FILE,
    MODEL_NAMES,
    PREDICTIONS_FILE,
    TRAIN_FOLDER,
    training_folder,
)
from wegl_dask.version import NUMERICS_VERSION, __version__

JOB_NAME = "job.toml"
RUN_JSON = f"{RECORD_FOLDER}/run.json"
"""Which versions have written in the folder."""

SUCCESS_NAME = "_SUCCESS"

PERFORMANCE_REPORT_NAME = "performance-report.html"

REPORT_NAME = "report.html"

ROOT_FILES = ("manifest.json", REPORT_NAME, PERFORMANCE_REPORT_NAME)
"""Files that a run writes into the folder itself, besides job.toml and _SUCCESS."""

OWN_NAMES = {
    **dict.fromkeys(PART_FOLDERS, PART_NAME),
    "model": re.compile(r"model\.json|arrays\.npz"),
    RECORD_FOLDER: re.compile(rf"(?:{RECORD_NAME.pattern})|run\.json"),
    SCRATCH_FOLDER: SCRATCH_NAME,
    **dict.fromkeys(
        map(training_folder, MODEL_NAMES),
        re.compile(
            "|".join([*map(re.escape, (METRICS_FILE, PREDICTIONS_FILE, MODEL_FILE, LOCK_NAME)), KEPT_NAME.pattern])
        ),
    ),
    # After those of the models, which are in it: it holds no file of its own.
    TRAIN_FOLDER: re.compile(r"(?!)"),
}
"""The subfolders of a run, and what the names of its files in them look like."""

KEYS_WITHOUT_EFFECT = (
    "name",
    "cluster",
    "model.path",
    "output.path",
    "output.performance_report",
    "source.download",
    "source.max_rejected_fraction",
    "source.trust",
    "train",
)
"""Keys of the job file, and whole tables, that change no part: a run may be continued with other values of them."""

MAX_REQUESTS = 16
"""Files that are read or removed at a time."""


@dataclass(frozen=True)
class Claim:
    """How a run found its folder.

    Attributes
    ----------
    resumed : bool
        The folder holds an earlier run of the same job.
    other_versions : tuple of str
        Versions of this package, other than the one running, that have written in the folder. Their numbers are the
        same, since the numerics version is.
    """

    resumed: bool
    other_versions: tuple[str, ...] = ()


def claim(folder: Folder, job_toml: str, *, overwrite: bool = False) -> Claim:
    """Make a folder this job's, or find that it is already.

    Parameters
    ----------
    folder : Folder
        To be locked by the caller.
    job_toml : str
        The job file with all defaults filled in.
    overwrite : bool, default False
        Remove everything that an earlier run wrote. Files that are not a run's are left alone. What a run of another job
        wrote that has made nothing, since it was refused, say, is removed in any case.

    Returns
    -------
    Claim

    Raises
    ------
    JobFileError
        If the folder holds another job, or the same by code that computes other numbers, or is no run folder; if its
        job.toml was written by no run, even with `overwrite`.
    """
    old_toml, versions = examine(folder, job_toml, overwrite=overwrite)
    if (overwrite or old_toml is None) and _read_job(folder) is not None:
        clear(folder)
        old_toml = None
    if old_toml != job_toml:
        folder.write(JOB_NAME, job_toml.encode())
    if __version__ not in versions:
        run = {"numerics_version": NUMERICS_VERSION, "package_versions": [*versions, __version__]}
        folder.write(RUN_JSON, json_bytes(sealed(run)))
    others = tuple(version for version in versions if version != __version__)
    return Claim(resumed=old_toml is not None, other_versions=others)


def examine(folder: Folder, job_toml: str, *, overwrite: bool = False) -> tuple[str | None, list[str]]:
    """Look whether `claim` would refuse a folder; nothing is changed.

    Returns
    -------
    job_toml : str or None
        Of the run that is there; none where it is of another job, and has made nothing.
    versions : list of str
        Of this package, that have written in the folder; none where it is to be cleared.

    Raises
    ------
    JobFileError
        As `claim` does.
    """
    old_toml = _read_job(folder)
    if old_toml is None:
        _refuse_strangers(folder)
        return None, []
    if old_toml != job_toml and not _is_of_a_run(folder, old_toml):
        raise JobFileError(
            f"{folder.location(JOB_NAME)} was written by no run, and a run would replace it. If it is the job file itself, move "
            "it out of output.path, or choose another output.path"
        )
    if overwrite:
        return old_toml, []
    changes = _changes(folder, old_toml, job_toml)
    if changes and _has_made_something(folder):
        raise OtherJobError(f"{folder.location()} holds the run of a different job ({listed(changes, 6, '; ')})")
    versions = earlier_versions(folder)
    return (None, []) if changes else (old_toml, versions)


def holds_run(folder: Folder) -> bool:
    """Whether a run has written in a folder; a file of its job file's name may be somebody's."""
    job_toml = _read_job(folder)
    return job_toml is not None and _is_of_a_run(folder, job_toml)


def require_writable(folder: Folder) -> None:
    """Refuse a folder on a disk that could not be made, or not be written in; nothing is changed.

    Raises
    ------
    JobFileError
        If it, or the nearest folder above it that there is, is read-only or no folder.
    """
    if not folder.is_local:
        return
    path = Path(folder.url)
    there = next(each for each in (path, *path.parents) if os.access(each, os.F_OK))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "read-only" if there.is_dir() else "no folder"
        raise JobFileError(f"{folder.location()} cannot be written: {there} is {what}. Choose another folder")


def clear(folder: Folder) -> None:
    """Remove everything that a run wrote, and nothing else; job.toml goes last."""
    folder.remove(SUCCESS_NAME)
    own = [f"{subfolder}/{name}" for subfolder in OWN_NAMES for name in own_files(folder, subfolder)]
    remove_all(folder, [*own, *ROOT_FILES])
    for subfolder in OWN_NAMES:
        folder.remove_if_empty(subfolder)
    folder.remove(JOB_NAME)


def own_files(folder: Folder, subfolder: str) -> list[str]:
    """List the files of a subfolder that have the names of a run's files, or of files that were never whole."""
    return [
        name
        for name, size in folder.listing(subfolder).items()
        if size is not None and (OWN_NAMES[subfolder].fullmatch(name) or name.startswith(TEMPORARY_PREFIX))
    ]


def remove_all(folder: Folder, names: list[str]) -> None:
    """Remove files, several at a time."""
    with ThreadPoolExecutor(MAX_REQUESTS) as pool:
        list(pool.map(folder.remove, names))


def changed_keys(old_toml: str, new_toml: str) -> list[str]:
    """List the keys of two job files that differ and change the result, as ``key: old -> new``."""
    old, new = _effective_keys(old_toml), _effective_keys(new_toml)
    return [
        f"{key}: {_show(old, key)} -> {_show(new, key)}"
        for key in sorted({*old, *new})
        if key not in old or key not in new or old[key] != new[key]
    ]


def flattened(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """List the values of nested tables by the names of their keys, joined by dots."""
    result: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            result += flattened(value, f"{prefix}{key}.")
        else:
            result.append((f"{prefix}{key}", value))
    return result


def earlier_versions(folder: Folder) -> list[str]:
    """Read which versions of this package have written in a folder.

    Raises
    ------
    OtherJobError
        If they compute other numbers, or it cannot be read.
    """
    content = folder.read_if_there(RUN_JSON)
    if content is None:
        # The run ended between writing job.toml and this file, before any part.
        return []
    where = folder.location(RUN_JSON)
    try:
        run = unsealed(content)
        numerics, versions = run["numerics_version"], [str(version) for version in run["package_versions"]]
    except (ValueError, KeyError, TypeError) as error:
        raise OtherJobError(f"{where} is damaged ({error!r})") from error
    if numerics != NUMERICS_VERSION:
        raise OtherJobError(
            f"{folder.location()} was written by wegl-dask {', '.join(versions)}, numerics version {numerics}; this is "
            f"{__version__}, numerics version {NUMERICS_VERSION}, which computes other numbers: the run can only be finished "
            "with that version"
        )
    return versions


def _read_job(folder: Folder) -> str | None:
    content = folder.read_if_there(JOB_NAME)
    return None if content is None else content.decode(errors="replace")


def _is_of_a_run(folder: Folder, job_toml: str) -> bool:
    """Whether a run has written the job file of a folder; one that was killed may have left nothing else."""
    from wegl_dask.spec import JobSpec  # noqa: PLC0415  pydantic is slow to import, and readers do not need it

    if folder.read_if_there(RUN_JSON) is not None:
        return True
    try:
        return JobSpec.from_toml(job_toml).to_toml() == job_toml
    except JobFileError:
        return False


def _has_made_something(folder: Folder) -> bool:
    """Whether a run has come further than to look at its input."""
    plans = any(name.startswith("plan-") for name in folder.listing(RECORD_FOLDER))
    return plans or any(own_files(folder, subfolder) for subfolder in (*PART_FOLDERS, "model"))


def _refuse_strangers(folder: Folder) -> None:
    # Hidden files, such as those a file manager leaves, do not make a folder somebody's.
    strangers = sorted(name for name in folder.listing() if not name.startswith("."))
    if strangers:
        raise JobFileError(
            f"{folder.location()} is not a run folder: it has no {JOB_NAME}, but it holds {listed(strangers)}. Choose a new "
            "or an empty folder for output.path"
        )


def _changes(folder: Folder, old_toml: str, job_toml: str) -> list[str]:
    try:
        return changed_keys(old_toml, job_toml)
    except ValueError as error:
        raise OtherJobError(f"{folder.location(JOB_NAME)} is damaged: {error}") from error


def _effective_keys(job_toml: str) -> dict[str, Any]:
    """Flatten a job file to ``{"table.key": value}`` without the keys that have no effect."""
    return {
        key: value
        for key, value in flattened(read_toml(job_toml))
        if not any(key == free or key.startswith(f"{free}.") for free in KEYS_WITHOUT_EFFECT)
    }


def _show(keys: Mapping[str, Any], key: str) -> str:
    return json.dumps(keys[key], ensure_ascii=False, default=str) if key in keys else "not set"
