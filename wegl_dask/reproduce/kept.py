"""Results of earlier commands, as their JSON files hold them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from wegl_dask.errors import SourceError
from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes

Rows = TypeVar("Rows", list[Any], dict[str, Any])


def read_kept(folder: Folder, name: str) -> dict[str, Any]:
    """Read the results that a folder holds; empty if there are none.

    Raises
    ------
    SourceError
        If the file is no JSON object.
    """
    content = folder.read_if_there(name)
    if content is None:
        return {}
    try:
        values = json.loads(content)
    except ValueError as error:
        raise not_results(folder, name, f"not JSON, {error}") from error
    if not isinstance(values, dict):
        raise not_results(folder, name, f"a JSON {type(values).__name__}, not an object")
    return values


def kept_rows(folder: Folder, name: str, kept: Mapping[str, Any], key: str, kind: type[Rows]) -> Rows:
    """Take the rows of results that are kept under a key, a list or an object; empty if there are none.

    Raises
    ------
    SourceError
        If it is something else.
    """
    rows = kept.get(key, kind())
    if not isinstance(rows, kind):
        raise not_results(folder, name, f"{key!r} is a JSON {type(rows).__name__}, not a {kind.__name__}")
    return rows


def check_kept(folder: Folder, name: str, rows: Iterable[Any], needed: Sequence[str], of_how: Sequence[str]) -> None:
    """Check that rows of results are JSON objects with some keys, and ``how`` with others.

    Raises
    ------
    SourceError
        If one is not, such as in a file that another version wrote.
    """
    for row in rows:
        missing = _missing(row, (*needed, "how")) or [f"how.{key}" for key in _missing(row["how"], of_how)]
        if missing:
            raise not_results(folder, name, f"a row without {', '.join(missing)}")


def _missing(values: Any, needed: Sequence[str]) -> list[str]:
    return [key for key in needed if not isinstance(values, dict) or key not in values]


def not_results(folder: Folder, name: str, found: str) -> SourceError:
    """Say that a file holds no results that can be added to."""
    return SourceError(
        f"{folder.location(name)}: {found}, where the results of earlier commands are expected; move the file away and "
        "run the command again, which computes no step anew"
    )


def as_kept(values: dict[str, Any]) -> dict[str, Any]:
    """Render values as they will be read back, to compare them with what is kept."""
    kept: dict[str, Any] = json.loads(json_bytes(values))
    return kept


def begins_with(longer: Sequence[Any], shorter: Sequence[Any]) -> bool:
    """Whether a series is the beginning of another, or all of it."""
    return list(longer[: len(shorter)]) == list(shorter)
