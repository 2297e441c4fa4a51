"""Places that are no folder of this machine: the package each kind of URL needs, and URLs that carry a secret."""

import re
from urllib.parse import parse_qsl, urlsplit

from wegl_dask.errors import JobFileError, MissingDependencyError

STORES = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "az": ("adlfs", "az"),
    "abfs": ("adlfs", "az"),
    "abfss": ("adlfs", "az"),
}
"""For the beginning of an object store's URL, the package that reaches it and the extra that brings that package."""

_USER_AND_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/@:]*:(?!\d+/)[^@]*@", flags=re.IGNORECASE)
"""Keys of S3 hold slashes, so that a URL with one in it cannot be split as URLs are; a port is digits and a slash."""

_SECRET_PARAMETERS = frozenset(
    {
        *("x-amz-signature", "x-amz-security-token", "x-goog-signature", "signature", "sig"),
        *("access_token", "api_key", "apikey", "password", "secret", "token"),
    }
)


def missing_package(url: str, error: ImportError) -> MissingDependencyError:
    """Say what to install for a URL whose file system could not be imported."""
    protocol = url.partition("://")[0].lower().rpartition("::")[2]
    if protocol in STORES:
        return MissingDependencyError.for_extra(*STORES[protocol])
    return MissingDependencyError(f"{url} cannot be reached: {error}")


def refuse_secrets(url: str, where: str) -> None:
    """Refuse a URL with a password, a key or a signature in it, without repeating it.

    What a job reads and writes is written down in its job file, in its manifest and in every part, for all to read.

    Parameters
    ----------
    url : str
        A path or URL, also one of several parts that ``::`` joins.
    where : str
        What to call it in the message, such as the key of the job file.

    Raises
    ------
    JobFileError
    """
    found = secret_in(url)
    if found is not None:
        raise JobFileError(secret_refusal(found, where))


def secret_refusal(found: str, where: str) -> str:
    """Word what `secret_in` has found in the URL at `where`, and what to do."""
    return (
        f"{where} is a URL with {found}, and would be written down in the run folder: leave it out, and give credentials by "
        "the environment or the store's own files"
    )


def secret_in(url: str) -> str | None:
    """Name what is secret in a URL, without showing it; None where nothing is."""
    for part in url.split("::"):
        if "://" not in part:
            continue
        if _USER_AND_PASSWORD.match(part):
            return "a password or a key before the @"
        for name, _ in parse_qsl(urlsplit(part).query, keep_blank_values=True):
            if name.lower() in _SECRET_PARAMETERS:
                return f"the parameter {name}"
    return None
