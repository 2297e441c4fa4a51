"""Arrays as deterministic .npz files, and a model as the pair model.json and arrays.npz."""

import hashlib
import io
import json
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from wegl_dask.checksums import sealed, unsealed
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder

MODEL_JSON = "model/model.json"
MODEL_ARRAYS = "model/arrays.npz"

Arrays = Mapping[str, np.ndarray]


def npz_bytes(arrays: Arrays) -> bytes:
    """Encode arrays as an .npz file that is the same, byte for byte, whenever the arrays are.

    `numpy.savez` leaves the dates in the file to the `zipfile` module; here they are fixed, and so is the order.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system = 3
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, _portable(arrays[name]), allow_pickle=False)
    return buffer.getvalue()


def npz_arrays(content: bytes, location: str) -> dict[str, np.ndarray]:
    """Read the content of an .npz file; nothing in it is ever executed.

    Raises
    ------
    WeglError
        If it is damaged or holds Python objects, with its `location`.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return dict(archive)
    # What holds no arrays fails in the readers of zip files and of NumPy in any of these ways.
    except (
        *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError, EOFError, OSError, MemoryError),
        *(ValueError, TypeError, LookupError, ArithmeticError, RuntimeError),
    ) as error:
        raise WeglError(f"{location} is damaged: {error}. Run the job again, it is remade") from error


def encode_model(model: Mapping[str, Any], arrays: Arrays) -> dict[str, bytes]:
    """Encode a model: the content of its two files by name, in the order they are to be written.

    Parameters
    ----------
    model : mapping
        JSON values; the key ``arrays`` is added and holds the shape, the dtype and a SHA-256 of each array, and the key
        ``checksum``, by which a file that was altered is told.
    arrays : mapping of str to ndarray

    Raises
    ------
    ValueError
        If a value is not JSON, or `model` has one of these keys.
    """
    if "arrays" in model:
        raise ValueError('the key "arrays" of model.json is filled in here; leave it out')
    described = sealed({**model, "arrays": {name: _describe(arrays[name]) for name in sorted(arrays)}})
    text = json.dumps(described, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {MODEL_ARRAYS: npz_bytes(arrays), MODEL_JSON: text.encode()}


def read_model(folder: Folder, subfolder: str = "model") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the model of a run folder, or one that is in another subfolder, or in the folder itself ("").

    Returns
    -------
    model : dict
        What model.json holds, ``arrays`` included, without its checksum.
    arrays : dict of str to ndarray

    Raises
    ------
    WeglError
        If a file is not there or damaged, or the two do not belong together.
    """
    json_name, arrays_name = (
        f"{subfolder}/{PurePosixPath(name).name}".lstrip("/") for name in (MODEL_JSON, MODEL_ARRAYS)
    )
    content = folder.read(json_name)
    where = folder.location(json_name)
    try:
        model = unsealed(content)
        expected = dict(model["arrays"])
    except (ValueError, KeyError, TypeError) as error:
        raise WeglError(f"{where} is no model of this package, or damaged: {error!r}. Run the job again") from error
    arrays = npz_arrays(folder.read(arrays_name), folder.location(arrays_name))
    for name in sorted({*expected, *arrays}):
        found = _describe(arrays[name]) if name in arrays else None
        if found != expected.get(name):
            raise WeglError(
                f"{where} and {folder.location(arrays_name)} do not belong together: the array {name!r} is {found}, and "
                f"the former says {expected.get(name)}. Run the job again, or copy both files anew"
            )
    return model, arrays


def find_model(folder: Folder) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the model in a run folder, or in a folder that holds its two files; see `read_model`."""
    is_run = PurePosixPath(MODEL_JSON).name not in folder.listing()
    return read_model(folder, PurePosixPath(MODEL_JSON).parent.name if is_run else "")


def has_model(folder: Folder) -> bool:
    """Whether `find_model` would find a model, whole or not."""
    path = PurePosixPath(MODEL_JSON)
    return path.name in folder.listing() or path.name in folder.listing(path.parent.name)


def _describe(array: np.ndarray) -> dict[str, Any]:
    array = _portable(array)
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
    }


def _portable(array: np.ndarray) -> np.ndarray:
    """Return the array in row-major order and with little-endian numbers."""
    array = np.asarray(array)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
