"""The software bill of materials: every package of the lock file, with its version and licence, as CycloneDX JSON.

The licences are those that the installed packages declare. CycloneDX 1.6: https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import Field

from idc.atomic import write_json
from idc.config import ConfigModel, missing

UNKNOWN = "unknown"

_PERMISSIVE = re.compile(
    r"\b(?:MIT|BSD|FreeBSD|[0-9]-Clause|0BSD|Apache|ISC|PSF|Python|HPND|Zlib|Unlicense|CC0|Public Domain|CNRI)\b",
    re.I,
)
_OTHER = re.compile(
    r"\b(?:[AL]?GPL|Affero|Lesser|General Public|MPL|Mozilla|EPL|CDDL|EUPL|SSPL|Proprietary|NVIDIA)", re.I
)
_TROVE = "License :: "
_TEXTS = {
    "Apache License": "Apache-2.0",
    "Permission is hereby granted, free of charge": "MIT",
    "Redistribution and use in source and binary forms": "BSD",
}
"""Wording of a licence file -> the licence."""


class SbomJob(ConfigModel):
    """Write the software bill of materials of the locked dependencies."""

    lock: str = "requirements.lock"
    """File with the exact version of every package."""
    out: str = Field("sbom.json", min_length=1)
    """File to write, CycloneDX 1.6 as JSON."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.lock, "lock")


def locked(path: Path | str) -> dict[str, str]:
    """Package -> version of a lock file.

    Raises:
        ValueError: a line is no exact version.
    """
    found = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].partition(";")[0].strip()
        if not text or text.startswith("-"):
            continue
        name, equals, version = text.partition("==")
        if not equals:
            raise ValueError(f"{path}: {line!r} is not of the form package==version")
        found[_normal(name.partition("[")[0])] = version.strip(" \\")
    return found


def bill(lock: Path | str) -> dict[str, Any]:
    """The bill as a CycloneDX document. It depends on the lock file and the installed packages alone.

    Raises:
        ValueError: a locked package is not installed, or another version of it is.
    """
    components = [_component(name, version) for name, version in sorted(locked(lock).items())]
    name = "idc"
    serial = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(one["purl"] for one in components))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": name,
                "name": name,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": name, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def not_permissive(document: dict[str, Any]) -> list[str]:
    """One line for each package whose licence is copyleft, proprietary or not stated."""
    lines = []
    for one in document["components"]:
        text = "; ".join(each["license"]["name"] for each in one.get("licenses", [])) or UNKNOWN
        if not _PERMISSIVE.search(text) or _OTHER.search(text):
            lines.append(f"{one['name']} {one['version']}: {text}")
    return lines


def write_sbom(job: SbomJob) -> str:
    """Write the bill. Returns a summary for the user."""
    document = bill(job.lock)
    write_json(Path(job.out), document)
    left = not_permissive(document)
    lines = [f"{len(document['components'])} packages of {job.lock} in {job.out}"]
    if left:
        lines.append(f"{len(left)} of them have a licence that is not permissive, or state none:")
        lines += [f"  {line}" for line in left]
    return "\n".join(lines)


def _component(name: str, version: str) -> dict[str, Any]:
    try:
        installed = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        raise ValueError(f"{name}=={version} is locked and not installed; run make setup") from None
    if (there := installed["Version"]).partition("+")[0] != version.partition("+")[0]:
        raise ValueError(f"{name}=={version} is locked, and {there} is installed; run make setup")
    purl = f"pkg:pypi/{name}@{version}"
    found: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence := _licence(name, installed):
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def _licence(name: str, installed: Any) -> str | None:
    """The declared licence: the expression, else the classifiers, else the first line of the free text, else the
    licence file."""
    if expression := installed.get("License-Expression"):
        return str(expression)
    classifiers = [each.rpartition(" :: ")[2] for each in installed.get_all("Classifier", []) if _TROVE in each]
    named = [each for each in classifiers if each != "OSI Approved"]
    text = (installed.get("License") or "").strip().splitlines()
    if named or (text and text[0] != "UNKNOWN"):
        return "; ".join(named) or text[0][:200]
    return next(filter(None, map(_of_text, _licence_files(name))), None)


def _licence_files(name: str) -> Iterator[str]:
    for file in metadata.files(name) or []:
        if ".dist-info" in str(file) and file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
            yield Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")


def _of_text(text: str) -> str | None:
    words = " ".join(text.split())
    return next((licence for wording, licence in _TEXTS.items() if wording in words), None)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
