"""An artifact of a vision-language model that asks another question, or answers at another length: the same weights.

A model that was tuned on several data sets with a question for each is asked about a data set as it was trained on it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.training.artifact import CALIBRATION, CONFIG, Artifact, put_in_place, read_artifact
from idc.vlm.config import GenerateConfig, PromptConfig

if TYPE_CHECKING:
    from idc.data.pipeline import Runner


def said_of(artifact: Artifact) -> tuple[PromptConfig, GenerateConfig]:
    """The question that an artifact asks, and how it generates the answer.

    Raises:
        ValueError: it asks none.
    """
    job = artifact.config.get("job", {})
    if not {"prompt", "generation"} <= job.keys():
        raise ValueError(f"{artifact.path} is of {artifact.system}, which asks no question")
    return PromptConfig.model_validate(job["prompt"]), GenerateConfig.model_validate(job["generation"])


def reword(
    artifact: str, out: str, prompt: PromptConfig, generation: GenerateConfig, *, overwrite: bool = False
) -> None:
    """Write an artifact at ``out``: ``artifact`` with another question and another generation of the answers. Its files
    are hard links where the file system has them.

    Args:
        overwrite: replace an artifact at ``out``.

    Raises:
        ValueError: it cannot be read, asks no question, or is calibrated, which holds for its own question only; or
            ``out`` exists.
    """
    said_of(read_artifact(artifact))
    if (Path(artifact) / CALIBRATION).exists():
        raise ValueError(f"{artifact} is calibrated for its own question; take the artifact as its training wrote it")
    target = Path(out)
    if target.exists():
        if not overwrite:
            raise ValueError(f"{out} exists; choose another folder, or pass --overwrite")
        if target.resolve() == Path(artifact).resolve() or not (target / CONFIG).is_file():
            raise ValueError(f"{out} is not another artifact; choose another folder")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(artifact, partial, copy_function=_linked)
    record = json.loads((partial / CONFIG).read_text(encoding="utf-8"))
    changed = {"prompt": prompt.model_dump(mode="json"), "generation": generation.model_dump(mode="json")}
    record["config"]["job"] = {**record["config"]["job"], **changed}
    (partial / CONFIG).unlink()  # a link would be written through to the other artifact
    (partial / CONFIG).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    put_in_place(partial, target)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def reword_step(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """A step of a sweep (:class:`idc.sweep.chain.Step`): the artifact in ``folder``; ``payload`` has ``artifact``,
    ``prompt`` and ``generation``."""
    out = Path(folder) / "artifact"
    prompt, generation = PromptConfig(**payload["prompt"]), GenerateConfig(**payload["generation"])
    reword(payload["artifact"], str(out), prompt, generation, overwrite=True)
    return {"question": prompt.text}
