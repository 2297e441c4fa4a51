"""Labels that a source gives as numbers, as the column of the rows."""

import numpy as np
import pyarrow as pa

from wegl_dask.sources._text import Numbers, changed_since_scan
from wegl_dask.sources.base import LabelSchema


def label_column(labels: LabelSchema, values: Numbers, name: str) -> pa.Array:
    """Encode the labels of some graphs.

    Parameters
    ----------
    labels : LabelSchema
        For classes, `class_names` are whole numbers in ascending order.
    values : int64 or float64, (n_graphs, columns)
        As many columns as there are tasks, else one; no matter which if there are no labels. NaN is unknown.
    name : str
        What messages call the file that `values` are from.

    Returns
    -------
    pyarrow.Array
        Of `labels.arrow_type`.

    Raises
    ------
    SourceError
        If a value is none of the classes.
    """
    match labels.kind:
        case "none":
            return pa.nulls(len(values), labels.arrow_type)
        case "target":
            return pa.array(values[:, 0].astype(np.float64), from_pandas=True)
        case "tasks":
            offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
            return pa.ListArray.from_arrays(offsets, values.astype(np.float64).ravel())
        case "class":
            classes = np.array([int(text) for text in labels.class_names])
            unknown = np.isnan(values[:, 0])
            if unknown.all():
                return pa.nulls(len(values), labels.arrow_type)
            found = np.where(unknown, classes[0], values[:, 0])
            index = np.minimum(np.searchsorted(classes, found), len(classes) - 1)
            strange = np.flatnonzero(classes[index] != found)
            if len(strange):
                raise changed_since_scan(name, f"has a graph of class {found[strange[0]]:.17g}, which is new")
            return pa.array(index, pa.int64(), mask=unknown)
