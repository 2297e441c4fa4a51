"""Encryption between this process and a cluster: certificates from ``[cluster]``, and when a connection may do without."""

import ipaddress
import socket
import ssl
from pathlib import Path

from distributed.comm.addressing import parse_address, parse_host_port
from distributed.security import Security

from wegl_dask.errors import JobFileError
from wegl_dask.spec import ClusterTable

ENCRYPTED = frozenset({"tls", "wss"})
"""Schemes of addresses whose connections are encrypted, with certificates on both sides."""


def refuse_insecure(address: str, table: ClusterTable) -> None:
    """Refuse an address on another machine whose connections are not encrypted, unless the job allows it.

    Parameters
    ----------
    address : str
        Of a Dask scheduler.
    table : ClusterTable

    Raises
    ------
    JobFileError
        With what is at risk, and what to do.
    """
    scheme, _ = parse_address(address)
    if scheme in ENCRYPTED or table.insecure or is_loopback(address):
        return
    raise JobFileError(
        f"the scheduler at {address} is on another machine, and {scheme}:// is not encrypted: whoever is on the network can "
        "read what is sent, and run code on the workers. Use tls:// with cluster.tls_ca_file, tls_cert and tls_key, or allow "
        "it with --insecure or cluster.insecure = true"
    )


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's, to which nobody else connects; False where its host is not known."""
    _, location = parse_address(address)
    host, _ = parse_host_port(location, 0)
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)


def security(table: ClusterTable) -> Security:
    """Read the certificates that the table names; what it does not name is as Dask's own configuration has it.

    The same certificate serves in every role that this process or what it starts may have.

    Raises
    ------
    JobFileError
        If a file is not there, is no certificate or no key, or the key is not the certificate's.
    """
    if table.tls_ca_file is None:
        return Security()
    for key in ("tls_ca_file", "tls_cert", "tls_key"):
        _require_usable(key, getattr(table, key))
    found = Security(
        require_encryption=True,
        tls_ca_file=table.tls_ca_file,
        **{f"tls_{role}_cert": table.tls_cert for role in ("client", "scheduler", "worker")},
        **{f"tls_{role}_key": table.tls_key or table.tls_cert for role in ("client", "scheduler", "worker")},
    )
    try:
        found.get_connection_args("client")
    except ssl.SSLError as error:
        raise JobFileError(
            f'cluster.tls_ca_file = "{table.tls_ca_file}" and tls_cert = "{table.tls_cert}" cannot be used: '
            f"{error.reason or error}. They are PEM files, and tls_key is the key of tls_cert"
        ) from error
    return found


def _require_usable(key: str, path: str | None) -> None:
    if path is None:
        return
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise JobFileError(f'cluster.{key} = "{path}" cannot be read: {error.strerror}') from error
    # As `BEGIN ENCRYPTED PRIVATE KEY` or `Proc-Type: 4,ENCRYPTED`; OpenSSL would ask for the password on the terminal.
    if b"ENCRYPTED" in content:
        raise JobFileError(
            f'cluster.{key} = "{path}" holds a key with a password, for which nobody can be asked: write it without, by  '
            "openssl pkey -in KEY -out tls.key"
        )
