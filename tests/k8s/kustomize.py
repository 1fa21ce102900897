"""Builds kustomizations: by ``kubectl kustomize`` where it is installed, and always by :func:`build`, which knows the
part of kustomize that ``k8s/`` uses and refuses all else. So the built manifests are checked on every machine."""

from __future__ import annotations

import base64
import copy
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
Doc = dict[str, Any]

_KEYS = {
    "apiVersion", "kind", "namespace", "resources", "components", "images", "patches", "configMapGenerator",
    "secretGenerator", "generatorOptions", "replacements",
}  # fmt: skip
TEMPLATES = ("jobs/cpu", "jobs/gpu", "jobs/gpu8")
"""Folders that are only parts of others."""
_CLUSTER_WIDE = {"Namespace", "ResourceFlavor", "ClusterQueue", "ClusterRole", "ClusterRoleBinding"}


def kustomizations() -> list[str]:
    """The folders of ``k8s/`` that a user may apply, relative to it."""
    found = [
        str(path.parent.relative_to(K8S))
        for path in K8S.rglob("kustomization.yaml")
        if yaml.safe_load(path.read_text(encoding="utf-8"))["kind"] == "Kustomization"
    ]
    return sorted(set(found) - set(TEMPLATES))


def builders() -> dict[str, Callable[[Path], list[Doc]]]:
    """Name -> builder, of those on this machine."""
    return {"tests.k8s.kustomize": build} | ({"kubectl": build_by_kubectl} if shutil.which("kubectl") else {})


@cache
def built(name: str) -> list[Doc]:
    """The documents of a folder of ``k8s/``, by :func:`build`; not to be changed."""
    return build(K8S / name)


def build_by_kubectl(folder: Path) -> list[Doc]:
    """The documents that ``kubectl kustomize`` makes of a folder."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"kubectl kustomize {folder}: {done.stderr}")
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def build(folder: Path) -> list[Doc]:
    """The documents of a kustomization.

    Raises:
        ValueError: it uses something that this builder does not know.
    """
    return _apply(folder, [])


def read(path: Path) -> list[Doc]:
    """The documents of a YAML file."""
    # Without anchors: a patch of one place must not change another.
    return [
        copy.deepcopy(doc)
        for doc in map(_plain, yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader))
        if doc
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _apply(folder: Path, docs: list[Doc]) -> list[Doc]:
    """``docs`` and those of a folder's kustomization, after all its changes."""
    (spec,) = read(folder / "kustomization.yaml")
    if unknown := spec.keys() - _KEYS:
        raise ValueError(f"{folder}: {sorted(unknown)} is not known to tests/k8s/kustomize.py")
    for name in spec.get("resources", []):
        docs += build(folder / name) if (folder / name).is_dir() else read(folder / name)
    for one in spec.get("configMapGenerator", []):
        _generate(docs, one, "ConfigMap", {Path(file).name: (folder / file).read_text() for file in one["files"]})
    for one in spec.get("secretGenerator", []):
        lines = [line for file in one.get("envs", []) for line in (folder / file).read_text().splitlines()]
        values = {name: value for name, _, value in (x.partition("=") for x in lines)}
        values |= {file: (folder / file).read_text() for file in one.get("files", [])}
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
        _generate(docs, {"options": spec["generatorOptions"], **one}, "Secret", encoded)
    for name in spec.get("components", []):
        docs = _apply(folder / name, docs)
    for patch in spec.get("patches", []):
        docs = _patched(docs, patch)
    for doc in docs:
        if "namespace" in spec and doc["kind"] not in _CLUSTER_WIDE:
            doc["metadata"]["namespace"] = spec["namespace"]
            for subject in doc.get("subjects", []):
                subject["namespace"] = spec["namespace"]
        _rename_images(doc, spec.get("images", []))
    for one in spec.get("replacements", []):
        _replace(docs, one)
    return docs


def _generate(docs: list[Doc], one: Doc, kind: str, data: dict[str, str]) -> None:
    if one.get("behavior") == "replace":
        (old,) = [doc for doc in docs if (doc["kind"], doc["metadata"]["name"]) == (kind, one["name"])]
        old["data"] = data
        return
    if not one["options"]["disableNameSuffixHash"]:
        raise ValueError(f"{one['name']}: names with a hash are not known to tests/k8s/kustomize.py")
    metadata = {"name": one["name"]} | ({"labels": found} if (found := one["options"].get("labels")) else {})
    docs.append({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data} | (
        {"type": one.get("type", "Opaque")} if kind == "Secret" else {}
    ))  # fmt: skip


def _patched(docs: list[Doc], patch: Doc) -> list[Doc]:
    target, change = patch["target"], yaml.load(patch["patch"], yaml.CSafeLoader)
    names = target.get("name", "").split("|")
    hit = [
        doc for doc in docs
        if doc["kind"] in target["kind"].split("|") and ("" in names or doc["metadata"]["name"] in names)
    ]  # fmt: skip
    if not hit:
        raise ValueError(f"patch of {target}: there is nothing of that kind and name")
    if isinstance(change, dict):
        if change.get("$patch") != "delete":
            raise ValueError(f"patch of {target}: only lists of operations, and $patch: delete, are known")
        return [doc for doc in docs if not any(doc is one for one in hit)]
    for doc in hit:
        for operation in change:
            _operate(doc, operation["op"], operation["path"], copy.deepcopy(operation.get("value")))
    return docs


def _operate(doc: Doc, op: str, path: str, value: Any) -> None:
    """One operation of a JSON patch (RFC 6902)."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    place: Any = doc
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    key: Any = int(last) if isinstance(place, list) and last != "-" else last
    if op == "add" and isinstance(place, list):
        place.insert(len(place) if key == "-" else key, value)
    elif op == "remove":
        del place[key]
    elif op in ("add", "replace"):
        if op == "replace":
            place[key]  # an error if it is not there
        place[key] = value
    else:
        raise ValueError(f"{op} {path}: not known to tests/k8s/kustomize.py")


def _rename_images(value: Any, images: list[Doc]) -> None:
    if isinstance(value, dict):
        if isinstance(value.get("image"), str):
            name = value["image"].rpartition(":")[0] if ":" in value["image"].rpartition("/")[2] else value["image"]
            for image in images:
                if image["name"] == name:
                    digest = f"@{image['digest']}" if "digest" in image else ""
                    value["image"] = f"{image.get('newName', name)}:{image['newTag']}{digest}"
                    break
        for one in value.values():
            _rename_images(one, images)
    elif isinstance(value, list):
        for one in value:
            _rename_images(one, images)


def _replace(docs: list[Doc], one: Doc) -> None:
    source = one["source"]
    (text,) = [
        doc["data"][source["fieldPath"].removeprefix("data.[").removesuffix("]")]
        for doc in docs
        if (doc["kind"], doc["metadata"]["name"]) == (source["kind"], source["name"])
    ]
    for target in one["targets"]:
        select = target["select"]
        (doc,) = [doc for doc in docs if (doc["kind"], doc["metadata"]["name"]) == (select["kind"], select["name"])]
        for path in target["fieldPaths"]:
            _operate(doc, "replace", "/" + path.replace(".", "/"), text)
