"""When and with what numbers were computed: the date, the versions of packages, the processor where it matters."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from wegl_dask.version import NUMERICS_VERSION

EARLIER = "earlier"
"""Key of what was computed in part on another day or by other versions: the provenance of each part but the latest."""

PROCESSOR = "processor"
"""Stands among the packages for the name of the processor."""

_NUMERICS = "wegl-dask numerics"


def provenance(packages: Iterable[str]) -> dict[str, Any]:
    """Say today's date, and the versions of this package and others; of `PROCESSOR` its name."""
    versions = {each: processor() if each == PROCESSOR else version(each) for each in packages}
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": {_NUMERICS: str(NUMERICS_VERSION), **versions}}


def processor() -> str:
    """Name the processor as Linux does; its architecture where that has no name for it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def together(how: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the provenance of several numbers together, the latest first.

    Parameters
    ----------
    how : sequence of mapping
        What `provenance` said of each, or this function.

    Examples
    --------
    >>> then, now = {"date": "2026-01-01", "versions": {"numpy": "2.0"}}, {"date": "2026-01-02", "versions": {"numpy": "2.1"}}
    >>> together([then, now, then])
    {'date': '2026-01-02', 'versions': {'numpy': '2.1'}, 'earlier': [{'date': '2026-01-01', 'versions': {'numpy': '2.0'}}]}
    >>> together([now, now]) == now
    True
    """
    parts: list[dict[str, Any]] = []
    for part in (part for each in how for part in _parts(each)):
        if part not in parts:
            parts.append(part)
    latest, *earlier = sorted(parts, key=lambda part: part["date"], reverse=True)
    return {**latest, EARLIER: earlier} if earlier else latest


def of_same_numerics(how: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Whether both were computed with one version of the numerics; steps of another are computed anew."""
    numbers = {each["versions"].get(_NUMERICS) for each in (how, kept)}
    return len(numbers) == 1


def provenance_line(how: Sequence[Mapping[str, Any]]) -> str:
    """Put what `provenance` said of several numbers on one line; where versions differ, with the dates of each.

    Examples
    --------
    >>> then, now = {"date": "2026-01-02", "versions": {"numpy": "2.1"}}, {"date": "2026-01-05", "versions": {"numpy": "2.2"}}
    >>> provenance_line([then])
    'numpy 2.1; 2026-01-02'
    >>> provenance_line([then, now])
    'numpy 2.1 (2026-01-02) and 2.2 (2026-01-05); 2026-01-02 to 2026-01-05'
    """
    parts = [part for each in how for part in _parts(each)]
    dates: dict[str, dict[str, list[str]]] = {}
    for part in parts:
        for name, number in part["versions"].items():
            dates.setdefault(name, {}).setdefault(number, []).append(part["date"])
    texts = []
    for name in sorted(dates):
        of_name = sorted(dates[name].items(), key=lambda each: min(each[1]))
        numbers = [number if len(of_name) == 1 else f"{number} ({_span(of)})" for number, of in of_name]
        texts.append(f"{name} {' and '.join(numbers)}")
    return f"{', '.join(texts)}; {_span([part['date'] for part in parts])}"


def _parts(how: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Take a date with its versions, and those of what was computed earlier."""
    return [{"date": each["date"], "versions": each["versions"]} for each in (how, *how.get(EARLIER, []))]


def _span(dates: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys([min(dates), max(dates)]))
