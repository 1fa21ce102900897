"""The artifact of a model without training: its name, its processor, the prompt; no weights. Also of a model of the
hub, ``hf:ORG/NAME[@REVISION]`` in the place of an artifact, with the default prompt."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.data.schema import IMAGE, Turn
from idc.systems.zeroshot.config import WrapJob, ZeroShotConfig
from idc.training.artifact import CONFIG, read_artifact
from idc.training.base import hub_id
from idc.util.cache import cache_root, make_once
from idc.vlm.base import FoundBase, find_base
from idc.vlm.chat import Chat, caption_turns
from idc.vlm.config import BaseConfig
from idc.vlm.tuning import write_tuned

if TYPE_CHECKING:
    from idc.data.pipeline import Runner


SYSTEM = "zeroshot"
_CARD = "A vision-language model as its makers published it: it was not trained on pairs of this project."


def wrap(job: WrapJob, overwrite: bool = False) -> str:
    """Write the artifact of a job; one line about what was done. The model's weights are not loaded. ValueError: the
    base cannot be used (:func:`idc.vlm.base.find_base`), it has no chat template, the prompt has control tokens in it,
    or there is something else at ``out``."""
    base = find_base(job.base, job.weights)
    if Path(job.out).exists() and any(Path(job.out).iterdir()) and not overwrite:
        if (Path(job.out) / CONFIG).is_file():
            existing = read_artifact(job.out)
            if (existing.system, existing.config, existing.base) == (SYSTEM, saved_config(job), base.name):
                return f"done before: {job.out}"
        raise ValueError(f"out: {job.out} holds something else; choose another folder, or give --overwrite")
    write_wrapped(Path(job.out), job, base)
    return f"{job.out}: {base.name}, a model of family {base.family.name} in {base.folder}"


def wrap_step(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """A step of a sweep (:class:`idc.sweep.chain.Step`): the artifact in ``folder``; ``payload`` is a
    :class:`WrapJob` without ``out``."""
    return {"made": wrap(WrapJob.model_validate({**payload, "out": f"{folder}/artifact"}), overwrite=True)}


def write_wrapped(path: Path, config: ZeroShotConfig, base: FoundBase) -> Path:
    """Write the artifact of a base that was found, and return its path. ValueError: the base has no chat template, or
    one without images, or the prompt has control tokens in it."""
    chat = Chat(base.family)
    for turns in (caption_turns(config.prompt), [Turn("user", f"{IMAGE}{IMAGE}What changed?")]):  # and of a dialogue
        chat.prompt(turns, [(32, 32)] * 2)
    return write_tuned(
        path,
        system=SYSTEM,
        config=saved_config(config),
        state={},
        model=None,
        base=base,
        card=_CARD,
        trained_on=config.trained_on,
    )


def saved_config(config: ZeroShotConfig) -> dict[str, object]:
    """The settings that an artifact records: those that captions depend on, not where its files were."""
    saved = config.model_dump(mode="json", include=set(ZeroShotConfig.model_fields))
    return {"job": {**saved, "base": {**saved["base"], "download": False}}}


def artifact_of(name: str) -> str:
    """The folder of the artifact, made in the cache at the first use. If the model is not on this machine, all of it
    is downloaded but its weights, which are needed unless it runs behind an endpoint; if it is, the hub is not
    asked. ValueError: the name is malformed, or the model is not here and the hub does not give it, or it is of no
    known family."""
    source, revision = hub_id(name)
    config = ZeroShotConfig(base=BaseConfig(source=source, revision=revision, download=True))
    try:
        base = find_base(config.base, weights=False)
    except ValueError as error:  # nobody has set base.source here
        fault = re.sub(r"^base\.\w+: |, or give its folder with base\.source=/path", "", str(error))
        raise ValueError(f"{name}: {fault}") from None
    settings = json.dumps([base.name.to_dict(), saved_config(config)], sort_keys=True)
    version = f"{(base.name.revision or '')[:12]}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"
    target = cache_root() / f"hf-{source.replace('/', '--')}-{version}"
    return str(make_once(target, lambda partial: write_wrapped(partial, config, base)))
