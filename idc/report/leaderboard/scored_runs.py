"""The evaluations of a leaderboard: finding them, what each was scored on, and which of them share a setting.

An evaluation (``evaluation.json``) names its artifact. Two evaluations are seeds of one setting if they have the same
pairs, split and protocol, and their artifacts' configs are equal but for seeds, names and folders. A folder in a config
is compared by its content: an artifact by its own config, a data set by its fingerprint.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idc.data.store import MANIFEST, fingerprint, read_manifest
from idc.evaluation.answers import RESULT as ANSWERS
from idc.evaluation.provenance import ORIGIN
from idc.evaluation.record import EVALUATION, Evaluation, load_evaluation
from idc.report.leaderboard.published_rows import load_published
from idc.training.config import OPERATIONAL

CLEAN, ROBUSTNESS = "clean", "robustness.json"
"""In the folder of a robustness table: the evaluation on the pairs as they are, and the table."""
_WANTED = (EVALUATION, ANSWERS)

_NOT_A_SETTING = frozenset({"seed", "name", "runs", *OPERATIONAL})
"""Keys of a config, at any depth, in which runs of one setting may differ."""


@dataclass(frozen=True)
class Data:
    """The data of an evaluation.

    Attributes:
        key: names the page: an official data set, or a folder's name with its fingerprint.
        title: the page's heading.
        variant: how the official data were altered, if they were.
        fingerprint: of the pairs.
    """

    key: str
    title: str
    variant: str = ""
    fingerprint: str = ""


@dataclass(frozen=True)
class ScoredRuns:
    """An evaluation with its origin.

    Attributes:
        folder: where it was found.
        evaluation: its record.
        data: its data set.
        setting: fingerprint of everything but the seed.
        settings: the artifact's config, flat, without keys in which runs of one setting may differ.
        name: of the system and run.
        seed: of the training, if there is one.
        training: the command and commit of the training, if they were recorded.
    """

    folder: Path
    evaluation: Evaluation
    data: Data
    setting: str
    settings: dict[str, Any]
    name: str
    seed: int | None
    training: str


def find(runs: Sequence[str]) -> list[Path]:
    """Folders with evaluations or scored answers below the given ones, without the clean rows of robustness tables,
    which repeat an evaluation on fewer pairs or metrics.

    Raises:
        ValueError: a folder is missing or holds none of these.
    """
    folders: dict[Path, None] = {}
    for pattern in runs:
        starts = sorted(glob.glob(pattern))
        if not starts:
            raise ValueError(f"--runs: no such folder: {pattern!r}")
        files = {path for start in starts for name in _WANTED for path in Path(start).rglob(name)}
        below = [up for up in sorted({path.parent for path in files})
                 if up.name != CLEAN or not (up.parent / ROBUSTNESS).exists()]  # fmt: skip
        if not below:
            raise ValueError(f"--runs: {pattern!r} holds no evaluation ({EVALUATION}) and no answers ({ANSWERS})")
        folders.update(dict.fromkeys(below))
    return list(folders)


def read_scored_runs(folder: Path) -> ScoredRuns:
    """Read an evaluation and find its origin."""
    evaluation = load_evaluation(folder)
    captioner = str(evaluation.protocol.get("captioner", ""))
    home = _home(folder, captioner)
    config, seed, name = _artifact(home, captioner, folder)
    data = _data(evaluation, folder)
    same = (data.key, data.variant, data.fingerprint, evaluation.split, evaluation.pairs, evaluation.references)
    protocol = [evaluation.protocol.get(key) for key in ("name", "selection")]
    return ScoredRuns(
        folder=folder,
        evaluation=evaluation,
        data=data,
        setting=fingerprint(same, protocol, sorted(evaluation.scores), config if config is not None else captioner),
        settings=_flat(config) if config is not None else {},
        name=name,
        seed=seed,
        training=_training(home, captioner, folder),
    )


def _home(folder: Path, captioner: str) -> Path:
    """The folder that an evaluation's relative paths start from: the nearest one above it that has the captioner, else
    the current one."""
    return next((above for above in folder.absolute().parents if captioner and (above / captioner).exists()), Path())


def _artifact(home: Path, captioner: str, folder: Path) -> tuple[dict[str, Any] | None, int | None, str]:
    """(Config without the keys in which runs of one setting may differ, seed, name)."""
    for path in (home / captioner, folder.parent / "artifact"):
        record = _json(path / "config.json") if captioner else {}
        if "system" in record:
            config = record["config"]
            job = config.get("job", config)
            system = str(record["system"])
            name = str(job.get("name", "")) if isinstance(job, dict) else ""
            plain = {"system": system, **_setting(config, home)}
            seed = job.get("train", {}).get("seed") if isinstance(job, dict) else None
            run = name.removesuffix(str(seed)).rstrip("-_ ") if seed is not None else name
            return plain, seed, system if run in ("", system) else f"{system} {run}"
    return None, None, Path(captioner).stem if captioner else folder.name


def _training(home: Path, captioner: str, folder: Path) -> str:
    """Command and commit from ``origin.json``, which a training writes next to its artifact."""
    for path in (home / captioner, folder.parent / "artifact"):
        if captioner and (origin := _json(path.parent / ORIGIN)):
            return f"{origin.get('command', '')} ({origin.get('commit', '')})"
    return ""


def _setting(value: Any, home: Path) -> Any:
    """A config without the keys in which runs of one setting may differ; folders are replaced by their content's."""
    if isinstance(value, dict):
        return {key: _setting(item, home) for key, item in value.items() if key not in _NOT_A_SETTING}
    if isinstance(value, list):
        return [_setting(item, home) for item in value]
    if isinstance(value, str) and "/" in value:
        inner = _json(home / value / "config.json")
        if "system" in inner:
            return {"system": inner["system"], **_setting(inner["config"], home)}
        if (home / value / MANIFEST).exists():
            return read_manifest(str(home / value)).fingerprint
    return value


def _data(evaluation: Evaluation, folder: Path) -> Data:
    """The data set that the evaluation records."""
    about, pairs = evaluation.protocol.get("data"), evaluation.protocol.get("pairs", "")
    if not isinstance(about, dict):
        raise ValueError(f"{folder} does not record its data set; score it with pairs=, the folder of its pairs")
    name = str(about.get("data_set", ""))
    digest = str(about.get("fingerprint", ""))
    variant = str(about.get("variant", ""))
    official = load_published().data_sets
    if name in official:
        return Data(name, official[name].title, variant, digest)
    title = f"{name.replace('_', ' ').capitalize()} pairs ({pairs})"
    return Data("-".join(filter(None, [name.replace("/", "-"), digest[:8]])), title, variant, digest)


def _json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value if isinstance(value, dict) else {}


def _flat(config: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(config, dict):
        return {path: config}
    return {
        key: value for name, inner in config.items() for key, value in _flat(inner, f"{path}.{name}".strip(".")).items()
    }
