"""All checks of a folder of manifests; ``python -m tests.k8s.checks`` prints what is wrong with ``k8s/``."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.k8s.gateways import gateway_faults
from tests.k8s.kustomize import K8S, build, read
from tests.k8s.ourselves import entrypoint_faults, environment, serve_faults, version_faults
from tests.k8s.references import reference_faults
from tests.k8s.rules import operator_faults, queue_faults, security_faults
from tests.k8s.schemas import schema_faults
from tests.k8s.sizes import size_faults

Doc = dict[str, Any]

NOT_MANIFESTS = ("kustomization.yaml", "serve-config.yaml", "prometheus.yaml", "datasource.yaml", "dashboards.yaml")
"""Files that are no documents for Kubernetes: the builder's, and the texts of ConfigMaps."""


def source_faults(folder: Path) -> Iterator[str]:
    """Wrong fields in the files of a copy of ``k8s/``, one by one: ``file: kind/name: path: what is wrong``."""
    for path in sorted(folder.rglob("*.yaml")):
        if path.name not in NOT_MANIFESTS:
            for doc in read(path):
                yield from (f"{path.relative_to(folder)}: {fault}" for fault in _named(doc, schema_faults(doc)))


def built_faults(folder: Path, name: str) -> Iterator[str]:
    """What is wrong with what is applied from a folder of a copy of ``k8s/``."""
    docs = _secrets(folder) if name == "secrets" else build(folder / name)
    whole = name.startswith(("base", "overlays")) and name != "overlays/kueue"
    # Policies of the base are also for the pods of jobs.
    base = build(folder / "jobs" / "gpu") if whole else _base(folder)
    secrets = [] if name == "secrets" else _secrets(folder)
    yield from (f"{name}: {fault}" for fault in faults(docs, [*base, *secrets]))


def faults(docs: Sequence[Doc], around: Sequence[Doc]) -> Iterator[str]:
    """What is wrong with documents that are applied together, after those of ``around``."""
    wrong = [fault for doc in docs for fault in _named(doc, schema_faults(doc))]
    yield from wrong
    if wrong:  # the other checks read fields that may not be there
        return
    for doc in docs:
        for check in (operator_faults, queue_faults, size_faults, security_faults, version_faults, serve_faults):
            yield from _named(doc, check(doc))
    for doc, fault in [*reference_faults(docs, around), *gateway_faults(docs, around)]:
        yield from _named(doc, [fault])
    jobs = [doc for doc in docs if doc["kind"] == "RayJob"]
    for doc in jobs:
        yield from _named(doc, entrypoint_faults(doc, environment([*docs, *around])))


def _named(doc: Doc, found: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield from (f"{doc.get('kind')}/{doc.get('metadata', {}).get('name')}: {fault}" for fault in found)


@cache
def _base(folder: Path) -> list[Doc]:
    return build(folder / "base")


@cache
def _secrets(folder: Path) -> list[Doc]:
    """Of values that ``make.sh`` writes elsewhere: those of a user are left alone."""
    with tempfile.TemporaryDirectory() as copied:
        for name in ("kustomization.yaml", "make.sh"):
            shutil.copy(folder / "secrets" / name, copied)
        subprocess.run(["sh", f"{copied}/make.sh"], check=True)
        return build(Path(copied))


def main() -> None:
    from tests.k8s.kustomize import kustomizations

    found = [*source_faults(K8S), *(fault for name in kustomizations() for fault in built_faults(K8S, name))]
    print("\n".join(found) or "nothing is wrong")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
