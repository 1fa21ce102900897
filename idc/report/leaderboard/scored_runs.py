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
from idc.evaluation.published_rows import load_published
from idc.evaluation.record import EVALUATION, Evaluation, load_evaluation
from idc.training.config import OPERATIONAL

CLEAN, ROBUSTNESS = "clean", "robustness.json"
"""In the folder of a robustness table: the evaluation on the pairs as they are, and the table."""
_WANTED = (EVALUATION, ANSWERS)

_NOT_A_SETTING = frozenset({"seed", "name", "runs", *OPERATIONAL})
"""Keys of a config, at any depth, in which runs of one setting may differ."""


@dataclass(frozen=True)
class ScoredRuns:
    """An evaluation with its origin.

    Attributes:
        folder: where it was found.
        key, title: of the page: an official data set, or a folder's name with its fingerprint.
        variant: how the official data were altered, if they were.
        data: fingerprint of the pairs.
        setting: fingerprint of everything but the seed.
        settings: the artifact's config, flat, without keys in which runs of one setting may differ.
        name: of the system and run.
        seed: of the training, if there is one.
        training: the command and commit of the training, if they were recorded.
    """

    folder: Path
    evaluation: Evaluation
    key: str
    title: str
    variant: str
    data: str
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
    """Read an evaluation and find its origin.

    Raises:
        ValueError: it does not record its data set.
    """
    evaluation = load_evaluation(folder)
    protocol, official = evaluation.protocol, load_published().data_sets
    about, captioner = protocol.get("data"), str(protocol.get("captioner", ""))
    if not isinstance(about, dict):
        raise ValueError(f"{folder} does not record its data set; jobs/evaluate.py does, with pairs=, their folder")
    key, data, variant = (str(about.get(name, "")) for name in ("data_set", "fingerprint", "variant"))
    title = f"{key.replace('_', ' ').capitalize()} pairs ({protocol.get('pairs', '')})"
    if key in official:
        title = official[key].title
    else:
        key = "-".join(filter(None, [key.replace("/", "-"), data[:8]]))
    # Relative paths start from the nearest folder above that has the captioner, else from the current one.
    above = folder.absolute().parents
    home = next((up for up in above if captioner and (up / captioner).exists()), Path())
    artifacts = [home / captioner, folder.parent / "artifact"] if captioner else []
    record = next((r for path in artifacts if "system" in (r := _json(path / "config.json"))), None)
    origin = next((o for path in artifacts if (o := _json(path.parent / ORIGIN))), None)
    config: dict[str, Any] = {}
    name, seed = Path(captioner).stem if captioner else folder.name, None
    if record is not None:
        system, job = str(record["system"]), record["config"].get("job", record["config"])
        config = {"system": system, **_setting(record["config"], home)}
        seed = job.get("train", {}).get("seed") if isinstance(job, dict) else None
        name = str(job.get("name", "")) if isinstance(job, dict) else ""
        run = name.removesuffix(str(seed)).rstrip("-_ ") if seed is not None else name
        name = system if run in ("", system) else f"{system} {run}"
    same = (key, variant, data, evaluation.split, evaluation.pairs, evaluation.references)
    rules = [protocol.get(rule) for rule in ("name", "selection")]
    return ScoredRuns(
        folder=folder,
        evaluation=evaluation,
        key=key,
        title=title,
        variant=variant,
        data=data,
        setting=fingerprint(same, rules, sorted(evaluation.scores), config or captioner),
        settings=_flat(config) if config else {},
        name=name,
        seed=seed,
        training="" if origin is None else f"{origin.get('command', '')} ({origin.get('commit', '')})",
    )


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


def _json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value if isinstance(value, dict) else {}


def _flat(config: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(config, dict):
        return {path: config}
    return {
        key: value for name, inner in config.items() for key, value in _flat(inner, f"{path}.{name}".strip(".")).items()
    }
