import os
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from wegl_dask.errors import JobFileError
from wegl_dask.spec import ClusterTable
from wegl_dask.tls import is_loopback, refuse_insecure, security

CERTIFICATES = Path(__file__).parents[1] / "deploy" / "make-certificates"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "other"):
        subprocess.run([CERTIFICATES, folder / name], check=True)
    return folder


def table(folder=None, **keys):
    if folder is not None:
        files = {"tls_ca_file": "ours/ca.crt", "tls_cert": "ours/tls.crt", "tls_key": "ours/tls.key"} | keys
        keys = {key: str(folder / name) for key, name in files.items() if name is not None}
    return ClusterTable(kind="scheduler", address="tls://host:8786", **keys)


def test_certificates_of_the_table_serve_in_every_role(certificates):
    found = security(table(certificates))
    assert found.require_encryption
    for role in ("client", "scheduler", "worker"):
        files = found.get_tls_config_for_role(role)
        assert files["cert"] == str(certificates / "ours" / "tls.crt")
        assert files["key"] == str(certificates / "ours" / "tls.key")


def validity(certificate):
    said = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", "-startdate", "-enddate"],
        capture_output=True,
        text=True,
        check=True,
    )
    start, end = (ssl.cert_time_to_seconds(line.partition("=")[2]) for line in said.stdout.splitlines())
    return round((end - start) / 86400)


def test_certificates_are_valid_for_a_year_or_as_many_days_as_are_named(certificates, tmp_path):
    subprocess.run([CERTIFICATES, tmp_path / "short"], env={**os.environ, "DAYS": "30"}, check=True)
    for folder, days in ((certificates / "ours", 365), (tmp_path / "short", 30)):
        assert [validity(folder / name) for name in ("ca.crt", "tls.crt")] == [days, days]


def test_what_hinders_openssl_is_shown(tmp_path):
    environment = {**os.environ, "DAYS": "never"}
    done = subprocess.run(
        [CERTIFICATES, tmp_path / "none"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "never" in done.stderr


def test_a_key_may_be_in_the_file_of_its_certificate(certificates, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text((certificates / "ours" / "tls.crt").read_text() + (certificates / "ours" / "tls.key").read_text())
    assert security(table(certificates, tls_cert=str(both), tls_key=None)).get_connection_args("client")["ssl_context"]


def test_without_keys_dasks_own_settings_count(certificates):
    import dask

    with dask.config.set({"distributed.comm.tls.ca-file": str(certificates / "ours" / "ca.crt")}):
        assert security(table()).tls_ca_file == str(certificates / "ours" / "ca.crt")


@pytest.mark.parametrize("sign", ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"])
def test_a_key_with_a_password_is_refused_without_asking_for_it(certificates, tmp_path, sign):
    key = tmp_path / "tls.key"
    key.write_text(f"-----{sign}-----\n")
    with pytest.raises(JobFileError, match=r'cluster\.tls_key = ".*tls\.key" holds a key with a password'):
        security(table(certificates, tls_key=str(key)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tls_key": "missing"}, r'cluster\.tls_key = ".*missing" cannot be read: No such file'),
        ({"tls_key": "other/tls.key"}, r"tls\.crt\" cannot be used: KEY_VALUES_MISMATCH"),
        ({"tls_cert": "ours/tls.key", "tls_key": None}, r"tls\.key\" cannot be used"),
    ],
)
def test_files_that_are_no_certificates_are_named(certificates, keys, message):
    with pytest.raises(JobFileError, match=message):
        security(table(certificates, **keys))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("tcp://127.0.0.1:8786", True),
        ("127.9.8.7:8786", True),
        ("tcp://[::1]:8786", True),
        ("tcp://localhost", True),
        ("tcp://192.0.2.1:8786", False),
        ("tcp://0.0.0.0:8786", False),
        ("tcp://[2001:db8::1]:8786", False),
    ],
)
def test_the_loopback_is_this_machine_alone(address, local):
    assert is_loopback(address) is local


def test_a_host_is_local_where_all_its_addresses_are(monkeypatch):
    def known(host, _):
        entries = {"here": ["127.0.0.1", "::1"], "both": ["127.0.0.1", "192.0.2.1"]}
        if host not in entries:
            raise socket.gaierror
        return [(None, None, None, None, (address, 0)) for address in entries[host]]

    monkeypatch.setattr(socket, "getaddrinfo", known)
    assert is_loopback("tcp://here:1")
    assert not is_loopback("tcp://both:1")
    assert not is_loopback("tcp://nowhere:1")


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:8786", "192.0.2.1:8786", "ws://192.0.2.1:8786"])
def test_a_connection_to_another_machine_without_encryption_must_be_allowed(address):
    with pytest.raises(JobFileError, match=r"is on another machine.*--insecure or cluster\.insecure = true"):
        refuse_insecure(address, table())
    refuse_insecure(address, table(insecure=True))


@pytest.mark.parametrize("address", ["tls://192.0.2.1:8786", "wss://192.0.2.1:8786", "tcp://127.0.0.1:8786"])
def test_what_is_encrypted_or_stays_on_this_machine_is_allowed(address):
    refuse_insecure(address, table())
