"""What is kept of tables 2 and 3: every cell that was computed so far, whichever command did it, and the tables of them."""

import json
from collections.abc import Sequence
from typing import Any

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.plots import tud_plot
from wegl_dask.reproduce.provenance import provenance
from wegl_dask.reproduce.tables import tud_table
from wegl_dask.reproduce.tud import DATA_SETS, LARGE_DATA_SETS, METHODS, POOLINGS, Cell, Plan

RESULTS, TABLE, PLOT = "tud.json", "tud.md", "tud.png"


def add_results(folder: Folder, cells: Sequence[Cell], plan: Plan) -> None:
    """Add cells to those that a folder holds, and write the table and the plot of all of them.

    A cell of the same data set, pooling and model is replaced, but for its nested number where the new one has none.

    Parameters
    ----------
    folder : Folder
        ``tud.json``, ``tud.md`` and ``tud.png`` are written to it.
    cells : sequence of Cell
    plan : Plan
        That they are of.
    """
    kept = folder.read_if_there(RESULTS)
    results = {_key(values): values for values in (json.loads(kept)["cells"] if kept is not None else [])}
    how = {
        "seed": plan.seed,
        "layers": list(plan.layers),
        "shortlisted": plan.shortlisted,
        **provenance(("numpy", "scikit-learn")),
    }
    for cell in cells:
        values = cell.to_json()
        earlier = results.get(_key(values))
        if values["nested"] is None and earlier is not None and earlier["best"] == values["best"]:
            values["nested"] = earlier["nested"]
        results[_key(values)] = {**values, "how": how}
    ordered = [results[key] for key in sorted(results, key=_place)]
    folder.write(RESULTS, json_bytes({"cells": ordered}, indent=1))
    every = [Cell.from_json({name: value for name, value in values.items() if name != "how"}) for values in ordered]
    folder.write(TABLE, tud_table(every, [values["how"] for values in ordered]).encode())
    folder.write(PLOT, tud_plot(every))


def _key(values: dict[str, Any]) -> tuple[str, str, str]:
    return values["data_set"], values["pooling"], values["model"]


def _place(key: tuple[str, str, str]) -> tuple[int, int, int]:
    """Find the place of a cell in the tables."""
    name, pooling, model = key
    return (DATA_SETS + LARGE_DATA_SETS).index(name), list(METHODS).index(model), POOLINGS.index(pooling)  # type: ignore[arg-type]
