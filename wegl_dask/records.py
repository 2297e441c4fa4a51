"""What a finished part leaves behind: a record of its files, written after them."""

import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wegl_dask.checksums import sealed, unsealed
from wegl_dask.folders import Content, Folder
from wegl_dask.model_files import Arrays, encode_model, npz_bytes

PART_FOLDERS = ("graphs", "rejected", "data")
"""Subfolders of a run that hold parts."""

RECORD_FOLDER = "records"
SCRATCH_FOLDER = "scratch"

PART_NAME = re.compile(r"part-(?P<index>\d{5,})(?P<tag>-[a-z]+)?\.parquet")
RECORD_NAME = re.compile(r"(?P<stage>[a-z]+)-(?P<index>\d{5,})\.json")
SCRATCH_NAME = re.compile(r"(?P<record>[a-z]+-\d{5,})-[a-z]+\.npz")

_RECORD_KEYS = ("stage", "index", "input", "files", "seconds", "checksum")


@dataclass(frozen=True)
class PartFile:
    """A file of a part: its path in the run folder, rows, size in bytes, and SHA-256."""

    path: str
    rows: int
    n_bytes: int
    sha256: str

    @property
    def folder(self) -> str:
        """The subfolder that holds the file."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The file's name in its subfolder."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class PartRecord:
    """What one stage made of one shard.

    Attributes
    ----------
    stage : str
    index : int
        Index of the shard.
    input_fingerprint : str
        Hash of everything the part was made from; the part is made again when it changes.
    files : tuple of PartFile
    seconds : float
        Wall-clock time that the part took.
    extra : mapping
        JSON values that the stage wants to keep, such as counts.
    """

    stage: str
    index: int
    input_fingerprint: str
    files: tuple[PartFile, ...]
    seconds: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where the record is kept in the run folder."""
        return record_path(self.stage, self.index)

    def rows(self, folder: str) -> int:
        """Rows of the part's files in a subfolder, such as ``"data"``."""
        return sum(file.rows for file in self.files if file.folder == folder)

    def to_json(self) -> dict[str, Any]:
        """Render as JSON values, keys in a fixed order."""
        return {
            "stage": self.stage,
            "index": self.index,
            "input": self.input_fingerprint,
            "files": [
                {"path": file.path, "rows": file.rows, "bytes": file.n_bytes, "sha256": file.sha256}
                for file in self.files
            ],
            "seconds": self.seconds,
            **{key: self.extra[key] for key in sorted(self.extra)},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "PartRecord":
        """Read back what `to_json` wrote; ValueError, KeyError or TypeError where something else is given."""
        return cls(
            stage=str(values["stage"]),
            index=int(values["index"]),
            input_fingerprint=str(values["input"]),
            files=tuple(
                PartFile(str(file["path"]), int(file["rows"]), int(file["bytes"]), str(file["sha256"]))
                for file in values["files"]
            ),
            seconds=float(values["seconds"]),
            extra={key: value for key, value in values.items() if key not in _RECORD_KEYS},
        )

    def to_bytes(self) -> bytes:
        """Render as the content of a file: JSON with a checksum, which tells a record that was altered."""
        return json_bytes(sealed(self.to_json()))

    @classmethod
    def from_bytes(cls, content: bytes) -> "PartRecord":
        """Read back what `to_bytes` wrote; ValueError, KeyError or TypeError where it is something else or altered."""
        return cls.from_json(unsealed(content))


class Work(NamedTuple):
    """A number of parts, and the seconds that workers have spent on them."""

    parts: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, records: Collection[PartRecord]) -> "Work":
        """Add up the records of some parts."""
        return cls(len(records), sum(record.seconds for record in records))

    def plus(self, other: "Work") -> "Work":
        """Take both together."""
        return Work(self.parts + other.parts, self.seconds + other.seconds)


class PartRecorder:
    """Writes the files of one part and keeps account of them; see `wegl_dask.storage.RunFolder.recording`.

    Attributes
    ----------
    record : PartRecord or None
        None until the part is finished.
    """

    def __init__(
        self, folder: Folder, stage: str, index: int, input_fingerprint: str, since: float | None = None
    ) -> None:
        self.record: PartRecord | None = None
        self._folder = folder
        self._stage = stage
        self._index = index
        self._input_fingerprint = input_fingerprint
        self._files: list[PartFile] = []
        self._extra: dict[str, Any] = {}
        self._started = time.perf_counter() if since is None else since
        # From here on the files of an earlier attempt may be replaced, so its record must not vouch for them. Where there
        # is none, a store is not asked to remove it: it might be slow, and do so when the new one is there.
        if folder.read_if_there(record_path(stage, index)) is not None:
            folder.remove(record_path(stage, index))

    def write(self, folder: str, content: Content, *, rows: int | None = None, tag: str = "") -> PartFile:
        """Write a part file.

        Parameters
        ----------
        folder : str
            One of `PART_FOLDERS`; the name of the file follows from the shard's index.
        content : bytes or callable
            The bytes, or a function that writes them to a binary file.
        rows : int, optional
            Number of rows in the file; what `content` returns by default.
        tag : str, default ""
            Tells apart the files of several stages in the same folder: lower-case letters.

        Returns
        -------
        PartFile
        """
        return self._write(part_path(folder, self._index, tag), content, rows)

    def write_arrays(self, name: str, arrays: Arrays) -> PartFile:
        """Write intermediate arrays to the scratch folder, to be read with `RunFolder.read_arrays`.

        `name`, a word in lower-case letters, tells several files of the same part apart.
        """
        file_name = f"{self._stage}-{self._index:05d}-{name}.npz"
        if not SCRATCH_NAME.fullmatch(file_name):
            raise ValueError(f"{file_name} is no scratch file: a name is a word of a-z")
        return self._write(f"{SCRATCH_FOLDER}/{file_name}", npz_bytes(arrays), 0)

    def write_model(self, model: Mapping[str, Any], arrays: Arrays) -> None:
        """Write the model, see `wegl_dask.model_files.encode_model`."""
        for path, content in encode_model(model, arrays).items():
            self._write(path, content, 0)

    def note(self, **extra: Any) -> None:
        """Keep JSON values in the record."""
        taken = sorted(set(extra) & {*_RECORD_KEYS, *self._extra})
        if taken:
            raise ValueError(f"the record has {', '.join(taken)} already")
        self._extra.update(extra)

    def finish(self) -> PartRecord:
        """Write the record: the part is finished."""
        seconds = round(time.perf_counter() - self._started, 3)
        record = PartRecord(
            self._stage, self._index, self._input_fingerprint, tuple(self._files), seconds, dict(self._extra)
        )
        # Intermediate results are checked before a later run uses them: they need not outlast a power failure.
        lasting = any(file.folder != SCRATCH_FOLDER for file in self._files)
        self._folder.write(record.path, record.to_bytes(), lasting=lasting)
        self.record = record
        return record

    def _write(self, path: str, content: Content, rows: int | None) -> PartFile:
        written = self._folder.write(path, content, lasting=not path.startswith(f"{SCRATCH_FOLDER}/"))
        rows = written.rows if rows is None else rows
        if rows is None:
            raise ValueError(f"{path}: give the number of rows, or return it from the function that writes them")
        file = PartFile(path, rows, written.n_bytes, written.sha256)
        self._files.append(file)
        return file


def part_path(folder: str, index: int, tag: str = "") -> str:
    """Path of a part file in the run folder: ``data/part-00012.parquet``, ``rejected/part-00012-embed.parquet``."""
    name = f"part-{index:05d}{tag and '-'}{tag}.parquet"
    if folder not in PART_FOLDERS or not PART_NAME.fullmatch(name):
        raise ValueError(f"{folder}/{name} is no part: the folders are {', '.join(PART_FOLDERS)}, a tag is a-z")
    return f"{folder}/{name}"


def record_path(stage: str, index: int) -> str:
    """Path of a record in the run folder: ``records/embed-00012.json``."""
    name = f"{stage}-{index:05d}.json"
    if not RECORD_NAME.fullmatch(name):
        raise ValueError(f"{name} is no record: a stage is a word of a-z, an index is not negative")
    return f"{RECORD_FOLDER}/{name}"


def part_index(name: str) -> int | None:
    """Shard index that the name of a part file holds; None for any other name."""
    match = PART_NAME.fullmatch(name)
    return int(match["index"]) if match else None


def json_bytes(values: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Encode as UTF-8 JSON with a final line break; ValueError for NaN and infinity."""
    return (json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()
