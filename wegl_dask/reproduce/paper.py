"""The numbers that the paper reports, in its tables 1, 2 and 3."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class PaperCell:
    """A mean and a standard deviation, in per cent; the latter is None where the paper has none."""

    mean: float
    std: float | None


def paper_cell(table: int, method: str, data_set: str, *, pooling: str = "", metric: str) -> PaperCell | None:
    """Look a number of the paper up; None where it has none.

    Examples
    --------
    >>> paper_cell(3, "WEGL + GBDT", "MUTAG", pooling="concat", metric="accuracy %")
    PaperCell(mean=89.3, std=6.6)
    """
    return _cells().get((table, method, pooling, data_set, metric))


@cache
def _cells() -> dict[tuple[int, str, str, str, str], PaperCell]:
    text = resources.files("wegl_dask.reproduce").joinpath("paper_tables.csv").read_text(encoding="utf-8")
    return {
        (int(row["table"]), row["method"], row["pooling"], row["dataset"], row["metric"]): PaperCell(
            float(row["mean"]), float(row["std"]) if row["std"] else None
        )
        for row in csv.DictReader(text.splitlines())
        if row["mean"]
    }
