"""What is kept of tables 2 and 3: every cell that was computed so far, whichever command did it, and the tables of them."""

from collections.abc import Sequence
from typing import Any

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.kept import as_kept, read_kept
from wegl_dask.reproduce.plots import tud_plot
from wegl_dask.reproduce.provenance import of_same_numerics, together
from wegl_dask.reproduce.tables import tud_table
from wegl_dask.reproduce.tud import DATA_SETS, LARGE_DATA_SETS, METHODS, POOLINGS, Cell

RESULTS, TABLE, PLOT = "tud.json", "tud.md", "tud.png"
_NUMBERS = ("best", "held_out", "chosen", "n_configurations")


def add_results(folder: Folder, cells: Sequence[Cell]) -> None:
    """Add cells to those that a folder holds, and write the table and the plot of all of them.

    A cell of the same data set, pooling and model is replaced. If it was chosen among the same configurations and has the
    same numbers, its nested number is kept where the new one has none.

    Parameters
    ----------
    folder : Folder
        ``tud.json``, ``tud.md`` and ``tud.png`` are written to it.
    cells : sequence of Cell

    Raises
    ------
    WeglError
        If ``tud.json`` holds something else.
    """
    results = {_key(values): values for values in read_kept(folder, RESULTS).get("cells", [])}
    for cell in cells:
        values = as_kept(cell.to_json())
        key = _key(values)
        results[key] = _merged(values, results[key]) if key in results else values
    ordered = [results[key] for key in sorted(results, key=_place)]
    folder.write(RESULTS, json_bytes({"cells": ordered}, indent=1))
    every = [Cell.from_json(values) for values in ordered]
    folder.write(TABLE, tud_table(every).encode())
    folder.write(PLOT, tud_plot(every))


def _merged(values: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Put a cell in place of an earlier one, whose nested number stays if it belongs to the same numbers."""
    is_same = all(values[key] == kept[key] for key in _NUMBERS) and of_same_numerics(values["how"], kept["how"])
    if values["nested"] is not None or kept["nested"] is None or not is_same or _among(values) != _among(kept):
        return values
    how = {**values["how"], **together([values["how"], kept["how"]])}
    return {**values, "nested": kept["nested"], "how": how}


def _among(values: dict[str, Any]) -> tuple[Any, ...]:
    """Tell the configurations that a cell was chosen among."""
    how = values["how"]
    layers = sorted(how["layers"])
    return how["seed"], layers, min(how["shortlisted"], len(layers)), how["constants"], values["n_configurations"]


def _key(values: dict[str, Any]) -> tuple[str, str, str]:
    return values["data_set"], values["pooling"], values["model"]


def _place(key: tuple[str, str, str]) -> tuple[int, int, int]:
    """Find the place of a cell in the tables."""
    name, pooling, model = key
    return (DATA_SETS + LARGE_DATA_SETS).index(name), list(METHODS).index(model), POOLINGS.index(pooling)  # type: ignore[arg-type]
