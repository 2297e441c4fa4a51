"""Fingerprints of what things are made from, and JSON objects that tell when they were altered, by a checksum in them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"


def fingerprint(*parts: bytes | str) -> str:
    """Hash `parts`, and where each of them ends, to 32 hexadecimal digits (BLAKE2b)."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the checksum, as the last key; ValueError where there is one, or a value is not JSON."""
    if CHECKSUM in values:
        raise ValueError(f'the key "{CHECKSUM}" is filled in here; leave it out')
    return {**values, CHECKSUM: _checksum(values)}


def unsealed(content: bytes) -> dict[str, Any]:
    """Parse what was `sealed`, and take the checksum out; ValueError where it is something else or was altered."""
    try:
        values = json.loads(content)
        if not isinstance(values, dict):
            raise ValueError(f"it is a {type(values).__name__}, not an object")  # noqa: TRY004  whatever is wrong with it
        found = values.pop(CHECKSUM, None)
        is_whole = found == _checksum(values)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not is_whole:
        raise ValueError("its checksum is not that of its content, so it was altered")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    """Hash values, whatever the order of their keys: 32 hexadecimal digits (BLAKE2b)."""
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
