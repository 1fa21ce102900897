"""The command to run next, printed at the end of a job, in the order of the docs: a table of templates, in which {0}
and {1} are the folders, URIs and names that the job was given, and a function where the choice depends on more."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from idc.captioning.sources import AUTO
from idc.config import ConfigModel, arguments
from idc.util.program import as_started

if TYPE_CHECKING:
    from idc.data.validation.run import ValidationFindings

_PAIRS = "data/mine/pairs"
_PROCEDURES = "data/mine/procedures"
_LOADING = ("base.source", "endpoint.url")
"""Settings of loading that say where something is."""
_BUILD = (
    "jobs/pretrain_procap.py --config jobs/configs/procap/procedures_demo.yaml only=procedures "
    f"procedures={_PROCEDURES} build.pairs={{0}} build.tokenizer={{1}}"
)
_CONFIGS = "--config jobs/configs"


def _command(template: str, *values: str, more: Mapping[str, Any] = {}) -> str:
    """The filled template, with ``more`` settings at its end; each word quoted for a shell."""
    words = (shlex.quote(word.format(*values)) for word in template.split())
    return as_started(" ".join(["python", *words, *arguments(more)]))


def _after(template: str) -> Callable[..., str]:
    return partial(_command, template)


after_import = _after("jobs/validate.py pairs={0}")
after_uncaptioned = _after("jobs/caption.py --input {0} --out captions --artifact objects")
after_pairs = _after(f"jobs/train_twincap.py {_CONFIGS}/twincap/demo.yaml name=mine pairs={{0}}")
after_procedures = _after(
    f"jobs/pretrain_procap.py {_CONFIGS}/procap/pretrain_demo.yaml name=mine-pretrain procedures={{0}}"
)
after_mining = _after(
    "jobs/describe_pairs.py pairs={0} out={0}-described endpoint.url=http://localhost:8000/v1 "
    "endpoint.model=Qwen/Qwen2-VL-7B-Instruct"
)
after_descriptions = _after(
    f"jobs/pretrain_namc.py {_CONFIGS}/namc/pretrain_small.yaml name=mine-namc-pretrain pairs={{0}} "
    f"caption_pairs={_PAIRS}"
)
after_changeimti = _after("jobs/finetune_sft.py name=mine-changeimti pairs={0} base.source=Qwen/Qwen2.5-VL-7B-Instruct")
after_notes = _after(
    "jobs/finetune_changevg.py pairs=data/changeimti guide={0} base.source=Qwen/Qwen2.5-VL-7B-Instruct"
)
after_corruption = _after("jobs/evaluate.py artifact=runs/mine/artifact pairs={0} out=runs/mine/corrupted")
after_registration = _after("jobs/promote.py name={0} tracking_uri={1}")


def after_validation(findings: ValidationFindings) -> str:
    """The import, if it is not a data set folder yet; else the use of the folder, or with errors another check."""
    from idc.data.config import ImportConfig
    from idc.data.validation.report import DATA_SET_FOLDER

    job, result = findings.job, findings.result
    if result.format != DATA_SET_FOLDER:
        settings = job.model_dump(exclude_defaults=True, include={"format", *ImportConfig.model_fields})
        return _command("jobs/import_dataset.py source={0}", job.pairs, more=settings | {"out": _PAIRS})
    if result.errors:
        return after_import(job.pairs)
    if not result.images:
        return _command("jobs/evaluate.py predictions=mine.jsonl pairs={0} out=runs/mine/evaluation", job.pairs)
    return (after_uncaptioned if result.without_captions == result.num_pairs else after_pairs)(job.pairs)


def after_training(entry: str, job: Any, artifact: str) -> str:
    """The next command for a trained artifact: the next part of its system, or of a captioner the evaluation.

    Args:
        entry: of the training, ``"module:function"``.
        job: its config.
    """
    pairs = getattr(job, "pairs", None) or _PAIRS
    carried = _carried(job, "runs", "train.tracking.uri")
    # An evaluation is written to a disk.
    beside = f"runs/{job.name}" if "://" in artifact else artifact.rpartition("/")[0]
    match entry.removeprefix("idc."):
        case "vision.tokenizer.task:train":
            return _command(_BUILD, pairs, artifact)
        case "vision.pair_encoder.task:train":
            tokenizer = f"{carried.get('runs', 'runs')}/mine-tokenizer/artifact"
            return _command(f"{_BUILD} build.strategy=visual_text build.pair_encoder={{2}}", pairs, tokenizer, artifact)
        case "systems.procap.task:pretrain":
            template = f"jobs/finetune_procap.py {_CONFIGS}/procap/finetune_demo.yaml name=mine-procap"
            return _command(f"{template} procedures={{0}} pretrained={{1}}", job.procedures, artifact, more=carried)
        case "systems.namc.task:pretrain":
            template = f"jobs/finetune_namc.py {_CONFIGS}/namc/finetune_small.yaml name=mine-namc"
            named = job.caption_pairs or pairs, artifact
            return _command(f"{template} pairs={{0}} pretrained={{1}}", *named, more=carried)
        case _ if _holds_questions(pairs):
            return _command("jobs/evaluate.py artifact={0} instructions={1} out={2}/answers", artifact, pairs, beside)
    if (procedures := getattr(job, "procedures", None)) is not None:
        from idc.data.store import read_manifest

        pairs = read_manifest(procedures).inputs["pairs"]
    return _command("jobs/evaluate.py artifact={0} pairs={1} out={2}/evaluation", artifact, pairs, beside)


def after_evaluation(
    artifact: str | None, pairs: str | None, calibrated: bool, job: ConfigModel | None = None
) -> str | None:
    """The calibration of the captioner, or its use; nothing for captions made elsewhere."""
    if artifact is None or pairs is None:
        return None
    if calibrated or "://" in artifact or artifact.startswith("hf:"):  # a calibration is written into a folder
        return after_calibration(artifact, job)
    return _command("jobs/calibrate.py artifact={0} pairs={1}", artifact, pairs, more=_carried(job, *_LOADING))


def after_calibration(artifact: str, job: ConfigModel | None = None) -> str:
    """The caption of a pair."""
    template = "jobs/caption.py --artifact {0} before.png after.png"
    return _command(template, artifact, more=_carried(job, *_LOADING))


def after_captions(artifact: str, job: ConfigModel | None = None) -> str:
    """The server."""
    carried = {f"loading.{name}": value for name, value in _carried(job, *_LOADING).items()}
    settings = {**({} if artifact == AUTO else {"models.mine": artifact}), **carried}
    return _command("-m serve.app", more=settings)


def after_conversion(kind: str, artifact: str) -> str:
    """The use of authors' weights, by their kind in ``jobs/convert.py``."""
    match kind:
        case "mci":
            return _command("jobs/evaluate.py artifact={0} pairs=data/levir-mci out={0}-evaluation", artifact)
        case "vqgan":
            return after_training("idc.vision.tokenizer.task:train", None, artifact)
        case "clip4idc":
            return after_training("idc.vision.pair_encoder.task:train", None, artifact)
        case "stage1":
            template = f"jobs/finetune_procap.py {_CONFIGS}/procap/finetune_official.yaml procedures={_PROCEDURES}"
            return _command(f"{template} pretrained={{0}}", artifact)
    return after_calibration(artifact)


def after_promotion(name: str, alias: str, tracking_uri: str | None) -> str:
    """The server of the champion."""
    carried = {} if tracking_uri is None else {"tracking_uri": tracking_uri}
    return _command("-m serve.app models.{1}=models:/{0}@{1}", name, alias, more=carried)


def _holds_questions(folder: str) -> bool:
    from idc.data.manifest import read_manifest

    try:
        return read_manifest(folder).kind == "instructions"
    except ValueError:  # it has been moved since
        return False


def _carried(job: ConfigModel | None, *settings: str) -> dict[str, Any]:
    """Those of the dotted settings that the job has and that differ from their defaults."""
    carried: dict[str, Any] = {}
    for setting in settings:
        value: Any = {} if job is None else job.model_dump(mode="json", exclude_defaults=True)
        for key in setting.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            carried[setting] = value
    return carried
