"""TLS between nodes with the certificates of ``make certificates``."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.heads import clean_environment, running_head

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "7" * 64
TASK = """
import ray, sys
ray.init(address=sys.argv[1], logging_level="ERROR")
print("sum", ray.get(ray.remote(lambda: 20 + 22).remote()))
"""


def make_certificates(folder: Path, *hosts: str) -> None:
    command = ["make", "certificates", f"CERTIFICATES={folder}", f"HOSTS={' '.join(hosts)}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_keys_are_for_their_user_alone_and_hosts_are_added_to_the_same_authority(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    make_certificates(folder, "10.0.0.10")
    authority, first = (folder / "ca.crt").read_bytes(), (folder / "10.0.0.10" / "tls.crt").read_bytes()
    make_certificates(folder, "10.0.0.10", "node-2.example.org")
    assert (folder / "ca.crt").read_bytes() == authority
    assert (folder / "10.0.0.10" / "tls.crt").read_bytes() == first
    keys = sorted(folder.rglob("*.key"))
    assert len(keys) == 3
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert not list((folder / "node-2.example.org").glob("ca.key"))
    for host in ("10.0.0.10", "node-2.example.org"):
        name = "ip" if host[0].isdigit() else "hostname"
        checked = subprocess.run(
            ["openssl", "verify", "-x509_strict", f"-verify_{name}", host, "-CAfile", folder / "ca.crt",
             folder / host / "tls.crt"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr


def tls(folder: Path, host: str = "127.0.0.1") -> dict[str, str]:
    """The variables of docs/cluster.md for a node or a client."""
    own = folder / host
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(own / "tls.crt"),
        "RAY_TLS_SERVER_KEY": str(own / "tls.key"),
        "RAY_TLS_CA_CERT": str(own / "ca.crt"),
    }


@pytest.mark.ray
@pytest.mark.slow
def test_a_driver_needs_a_certificate_of_the_clusters_authority(tmp_path: Path) -> None:
    make_certificates(tmp_path / "ours", "127.0.0.1")
    make_certificates(tmp_path / "foreign", "127.0.0.1")
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

    def run(head: str, security: dict[str, str]) -> tuple[int, str]:
        # A refused client tries again, 20 times by default.
        soon = {"RAY_gcs_server_port_wait_time_s": "1", "RAY_gcs_rpc_server_connect_timeout_s": "10"}
        done = subprocess.run(
            [sys.executable, "-c", TASK, head], env=clean_environment(tmp_path, **soon, **auth, **security),
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    with running_head(
        clean_environment(tmp_path, **auth, **tls(tmp_path / "ours")), "--include-dashboard=false"
    ) as head:
        status, output = run(head.address, tls(tmp_path / "ours"))
        assert status == 0, output
        assert "sum 42" in output
        for other in ({}, tls(tmp_path / "foreign")):
            status, output = run(head.address, other)
            assert status != 0, output
            assert "sum 42" not in output
