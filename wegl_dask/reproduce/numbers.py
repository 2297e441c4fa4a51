"""How the tables write numbers."""

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

DEVIATION = "mean ± sample standard deviation"
"""What `mean_and_deviation` writes, in words."""


def mean_and_deviation(values: Values, form: str = ".1f") -> str:
    """Write the mean and the standard deviation of a sample, or the number if there is one, or nothing if there is none.

    Examples
    --------
    >>> mean_and_deviation(np.array([1.0, 3.0])), mean_and_deviation(np.array([0.5]), ".0%"), mean_and_deviation(np.empty(0))
    ('2.0 ± 1.4', '50%', '')
    """
    if len(values) < 2:
        return "".join(format(value, form) for value in values)
    return f"{values.mean():{form}} ± {deviation(values):{form}}"


def deviation(values: Values) -> float:
    """Compute the standard deviation of a sample; NaN of fewer than two."""
    return float(values.std(ddof=1)) if len(values) > 1 else np.nan
