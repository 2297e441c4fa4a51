"""When and with which versions numbers were computed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from wegl_dask.version import NUMERICS_VERSION


def provenance(packages: Iterable[str]) -> dict[str, Any]:
    """Say today's date, and the versions of this package and others."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {
            "wegl-dask numerics": str(NUMERICS_VERSION),
            **{package: version(package) for package in packages},
        },
    }


def provenance_line(how: Sequence[Mapping[str, Any]]) -> str:
    """Put what `provenance` said of several numbers on one line.

    Examples
    --------
    >>> provenance_line([{"date": "2026-01-02", "versions": {"numpy": "2.1"}}])
    'numpy 2.1; 2026-01-02'
    """
    versions = sorted({f"{name} {number}" for each in how for name, number in each["versions"].items()})
    dates = sorted({each["date"] for each in how})
    return f"{', '.join(versions)}; {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}"
