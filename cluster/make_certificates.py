"""Make the certificates of a Ray cluster with TLS between its nodes: an authority, and a certificate for each host.

    python cluster/make_certificates.py certificates 10.0.0.10 10.0.0.11 node-3.example.org

Writes ca.crt and ca.key into the folder, and for each host a folder of its name with tls.crt, tls.key and ca.crt, which
is what this host gets. A second call adds hosts, signed by the same authority; a host that has one gets a new
certificate.
ca.key stays on the machine where it was made: with it anybody can join the cluster.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365
"""Validity of a host's certificate; the authority's is ten times as long."""


def make_certificates(folder: Path, hosts: list[str], days: int = DAYS) -> None:
    """Write an authority into ``folder``, if it has none, and a certificate of each host below it.

    Args:
        hosts: addresses or names, as other nodes and clients connect to them.
        days: validity.

    Raises:
        ValueError: a host is no address or name, or the folder has only one of ca.crt and ca.key.
    """
    subjects = {host: _subjects(host) for host in hosts}
    authority, key = _authority(folder, days)
    for host, names in subjects.items():
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(host, authority.subject, own.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .add_extension(_usage(digital_signature=True), critical=True)
            # Every node of Ray is a server and a client of all others.
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False
            )
            .sign(key, hashes.SHA256())
        )
        (folder / host).mkdir(exist_ok=True)
        _write_key(folder / host / "tls.key", own)
        (folder / host / "tls.crt").write_bytes(_pem(certificate))
        (folder / host / "ca.crt").write_bytes(_pem(authority))


def _subjects(host: str) -> list[x509.GeneralName]:
    """What a host is called, and loopback: a node's own processes connect to each other there."""
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        if not host.isascii() or not host.replace("-", "").replace(".", "").isalnum():
            raise ValueError(f"{host!r} is neither an IP address nor a host name") from None
        names.append(x509.DNSName(host))
    return names


def _authority(folder: Path, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_file, key_file = folder / "ca.crt", folder / "ca.key"
    if certificate_file.exists() != key_file.exists():
        raise ValueError(f"{str(folder)!r} has only one of ca.crt and ca.key; give another folder")
    if key_file.exists():
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{str(key_file)!r} is not a key that this script made; give another folder")
        return x509.load_pem_x509_certificate(certificate_file.read_bytes()), key
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idc Ray cluster")])
    certificate = (
        _builder("idc Ray cluster", name, key.public_key(), 10 * days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_file, key)
    certificate_file.write_bytes(_pem(certificate))
    return certificate, key


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of nodes differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=False, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key to a file that only its user can read, from its first moment on."""
    path.unlink(missing_ok=True)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the authority and the hosts' folders")
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="addresses or names, as other nodes reach them")
    parser.add_argument("--days", type=int, default=DAYS, help=f"validity (default: {DAYS})")
    args = parser.parse_args()
    try:
        make_certificates(args.folder, args.hosts, args.days)
    except ValueError as error:
        parser.error(str(error))
    print(
        f"written to {args.folder}: ca.crt, ca.key (keep it here), and for each of {len(args.hosts)} hosts its folder"
    )


if __name__ == "__main__":
    main()
