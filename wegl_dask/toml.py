"""Job files as nested values, whatever somebody has written into one."""

import tomllib
from typing import Any

DEEPEST = 100
"""Tables and lists in one another; a job file has three. What walks through them does so by recursion."""


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises
    ------
    ValueError
        If it is not TOML, or holds an integer of thousands of digits or values that are nested too deeply.

    Examples
    --------
    >>> read_toml("seed = 3")
    {'seed': 3}
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise ValueError("it holds an integer of too many digits") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
    if level:
        raise ValueError("it is nested too deeply")
    return values
