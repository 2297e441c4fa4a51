"""Whether the results that a folder holds can be added to: looked at before anything is computed."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.reproduce import molhiv, runtime, tud
from wegl_dask.reproduce.runtime_methods import Timing


def require_readable(folder: Folder, name: str) -> None:
    """Refuse a file of results that is damaged; one that is not there is no error.

    Parameters
    ----------
    folder : Folder
    name : {"tud.json", "molhiv.json", "runtime.json"}
        The files that commands add to.

    Raises
    ------
    WeglError
        If it is not what a command has written.
    """
    kept = folder.read_if_there(name)
    if kept is None:
        return
    try:
        _READERS[name](json.loads(kept))
    except (ValueError, KeyError, TypeError) as error:
        raise WeglError(
            f"{folder.location(name)} is damaged ({type(error).__name__}: {error}). Remove it, and run the commands again "
            "whose results it held: they take what was computed from the steps that are kept"
        ) from error


def _read_cells(kept: Any) -> None:
    for values in kept["cells"]:
        cell = tud.Cell.from_json(_fields_of(tud.Cell, values, "paper"))
        _require_known(cell.data_set, tud.DATA_SETS + tud.LARGE_DATA_SETS)
        _require_known(cell.pooling, tud.POOLINGS)
        _require_known(cell.model, tud.METHODS)
        _require_numbers(cell.best, cell.held_out)
        _items(values["chosen"])
        _require_how(values, "seed", "layers", "shortlisted")
        _require_numbers(values["how"]["layers"])


def _read_rows(kept: Any) -> None:
    for name, values in _items(kept["rows"]):
        _require_known(name, molhiv.METHODS)
        row = molhiv.Row(**_fields_of(molhiv.Row, values))
        _require_numbers(*(values[name] for name in ("valid", "test", "embedding_valid", "embedding_test")))
        for mapping in (row.setting, row.candidate, row.screened, row.together):
            _items(mapping)
        _require_how(values, "time_budget")


def _read_measured(kept: Any) -> None:
    for _, values in _items(kept["data_sets"]):
        found = runtime.Measured(**_fields_of(runtime.Measured, values))
        _require_numbers([found.n_graphs, found.mean_nodes, found.mean_edges])
        for name, timing in _items(found.timings):
            _require_known(name, runtime.METHODS)
            _require_numbers(list(vars(Timing(**timing)).values()))
        how = dict(_items(values["how"]))
        # Earlier versions noted of all methods together how they were measured.
        for of_method in [how] if "date" in how else [how[name] for name in found.timings]:
            _require_how({"how": of_method})


_READERS: Mapping[str, Callable[[Any], None]] = {
    "tud.json": _read_cells,
    "molhiv.json": _read_rows,
    "runtime.json": _read_measured,
}


def _fields_of(kind: Any, values: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Take what a data class has, and what it can do without only where it is there."""
    wanted = [field for field in fields(kind) if field.name not in without]
    return {
        field.name: values[field.name]
        for field in wanted
        if field.name in values or (field.default, field.default_factory) == (MISSING, MISSING)
    }


def _items(values: Any) -> list[tuple[str, Any]]:
    if not isinstance(values, dict):
        raise TypeError(f"{json.dumps(values)[:40]} is no object")
    return list(values.items())


def _require_known(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"{name!r} is none of {', '.join(known)}")


def _require_numbers(*series: Any) -> None:
    for each in series:
        if np.asarray(each, dtype=np.float64).ndim != 1:
            raise ValueError(f"{each!r} is no list of numbers")


def _require_how(values: Mapping[str, Any], *keys: str) -> None:
    how = dict(_items(values["how"]))
    for key in ("date", "versions", *keys):
        if key not in how:
            raise KeyError(key)
    _items(how["versions"])
