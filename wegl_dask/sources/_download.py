"""Fetching a published zip to where a source looks for it."""

import http.client
import shutil
import urllib.request
import uuid
import zipfile

from wegl_dask.errors import SourceError
from wegl_dask.sources._files import filesystem_at

_TIMEOUT_SECONDS = 60


def download_zip(address: str, target: str) -> None:
    """Fetch a zip from the web.

    It appears under its final name only when it is whole.

    Parameters
    ----------
    address : str
        http or https.
    target : str
        Where to put it: a path or an fsspec URL. Folders that are missing are made.

    Raises
    ------
    SourceError
        If the address does not answer with a zip, or the target cannot be written.
    """
    fs, path = filesystem_at(target)
    parent, _, file_name = path.rpartition("/")
    partial = f"{parent}/.{uuid.uuid4().hex}-{file_name}"
    try:
        fs.makedirs(parent, exist_ok=True)
        try:
            with (
                urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as answer,  # noqa: S310 - ours, and https
                fs.open(partial, "wb") as file,
            ):
                shutil.copyfileobj(answer, file, 1 << 20)
            with fs.open(partial, "rb") as file:
                # The table of contents is at the end of a zip, so a download that was cut short is no zip.
                is_whole = zipfile.is_zipfile(file)
            if not is_whole:
                raise SourceError(f"what {address} sent is not a zip, or was cut short")
            fs.mv(partial, path)
        finally:
            if fs.exists(partial):
                fs.rm(partial)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{address} could not be fetched to {target}: {error}") from error
