"""The command to run next, printed at the end of a job, in the order of the docs. It has the folders, URIs and URLs
that the job was given, where it has such settings."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from idc.captioning.loading import AUTO
from idc.config import ConfigModel, arguments

if TYPE_CHECKING:
    from idc.data.validation.run import ValidationFindings

_CLEANED = {"leak between splits", "contradiction"}
"""Errors whose pairs a clean variant leaves out."""
_PAIRS = "data/mine/pairs"
_PROCEDURES = "data/mine/procedures"
_CAPTIONER = "runs/mine/artifact"
_LOADING = {"base.source": "--base", "endpoint.url": "--endpoint"}
"""Settings of loading that say where something is, and their options in the command that captions a pair."""


def after_import(pairs: str) -> str:
    """The check of the imported folder."""
    return _command("validate", pairs=pairs)


def after_validation(findings: ValidationFindings) -> str:
    """The import, if it is not a data set folder yet; else a clean variant, or the use of the folder."""
    from idc.data.config import ImportConfig
    from idc.data.validation.clean import clean_path
    from idc.data.validation.report import DATA_SET_FOLDER

    job, result = findings.job, findings.result
    if result.format != DATA_SET_FOLDER:
        settings = job.model_dump(exclude_defaults=True, include={"format", *ImportConfig.model_fields})
        return _command("import_dataset", source=job.pairs, **settings, out=_PAIRS)
    if result.errors and job.clean:
        return _command("validate", pairs=clean_path(job))
    if result.errors:
        return _command("validate", pairs=job.pairs) + " --clean" * bool(_CLEANED & result.errors.keys())
    if not result.images:
        return _command("evaluate", predictions="mine.jsonl", pairs=job.pairs, out="runs/mine/evaluation")
    return after_pairs(job.pairs)


def after_pairs(pairs: str) -> str:
    """The training of the quickest captioner on a data set folder."""
    return _command("train_twincap", "twincap/demo", name="mine", pairs=pairs)


def after_training(entry: str, job: Any, artifact: str) -> str:
    """The next command for a trained artifact: the next part of its system, or of a captioner the evaluation.

    Args:
        entry: of the training, ``"module:function"``.
        job: its config.
    """
    pairs = getattr(job, "pairs", None) or _PAIRS
    carried = _carried(job, "runs", "train.tracking.uri")
    match entry.removeprefix("idc."):
        case "vision.tokenizer.task:train":
            return _procedures(pairs, tokenizer=artifact)
        case "vision.pair_encoder.task:train":
            tokenizer = f"{carried.get('runs', 'runs')}/mine-tokenizer/artifact"
            return _procedures(pairs, tokenizer=tokenizer, strategy="visual_text", pair_encoder=artifact)
        case "systems.procap.task:pretrain":
            names = {"name": "mine-procap", "procedures": job.procedures, "pretrained": artifact}
            return _command("finetune_procap", "procap/finetune_demo", **names, **carried)
        case "systems.namc.task:pretrain":
            names = {"name": "mine-namc", "pairs": job.caption_pairs or pairs, "pretrained": artifact}
            return _command("finetune_namc", "namc/finetune_small", **names, **carried)
        case _ if _holds_questions(pairs):
            return _answers(artifact, pairs)
    if (procedures := getattr(job, "procedures", None)) is not None:
        from idc.data.store import read_manifest

        pairs = read_manifest(procedures).inputs["pairs"]
    return _command("evaluate", artifact=artifact, pairs=pairs, out=str(PurePath(artifact).parent / "evaluation"))


def after_procedures(procedures: str) -> str:
    """Stage 1 of ProCap."""
    return _command("pretrain_procap", "procap/pretrain_demo", name="mine-pretrain", procedures=procedures)


def after_evaluation(
    artifact: str | None, pairs: str | None, calibrated: bool, job: ConfigModel | None = None
) -> str | None:
    """The calibration of the captioner, or its use; nothing for captions made elsewhere."""
    if artifact is None or pairs is None:
        return None
    if calibrated or artifact.startswith("hf:"):
        return after_calibration(artifact, job)
    return _command("calibrate", artifact=artifact, pairs=pairs, **_carried(job, *_LOADING))


def after_calibration(artifact: str, job: ConfigModel | None = None) -> str:
    """The caption of a pair."""
    carried = {_LOADING[name]: value for name, value in _carried(job, *_LOADING).items()}
    options = shlex.join(["--artifact", artifact, *(word for option in carried.items() for word in option)])
    return f"python jobs/caption.py {options} before.png after.png"


def after_captions(artifact: str, job: ConfigModel | None = None) -> str:
    """The server."""
    carried = {f"loading.{name}": value for name, value in _carried(job, *_LOADING).items()}
    settings = {**({} if artifact == AUTO else {"models.mine": artifact}), **carried}
    return f"make serve SERVE={shlex.quote(' '.join(arguments(settings)))}" if settings else "make serve"


def after_mining(pairs: str) -> str:
    """Descriptions of the mined pairs, by a model behind an endpoint."""
    endpoint = {"url": "http://localhost:8000/v1", "model": "Qwen/Qwen2-VL-7B-Instruct"}
    return _command("describe_pairs", pairs=pairs, out=f"{pairs}-described", endpoint=endpoint)


def after_descriptions(pairs: str) -> str:
    """NAMC's pre-training."""
    return _command(
        "pretrain_namc", "namc/pretrain_small", name="mine-namc-pretrain", pairs=pairs, caption_pairs=_PAIRS
    )


def after_changeimti(instructions: str) -> str:
    """The tuning of the paper's language model on them."""
    base = {"source": "Qwen/Qwen2.5-VL-7B-Instruct"}
    return _command("finetune_sft", name="mine-changeimti", pairs=instructions, base=base)


def after_notes(guide: str) -> str:
    """The tuning of the paper's language model with the guide's notes."""
    base = {"source": "Qwen/Qwen2.5-VL-7B-Instruct"}
    return _command("finetune_changevg", pairs="data/changeimti", guide=guide, base=base)


def after_corruption(pairs: str) -> str:
    """The evaluation of a captioner on corrupted pairs."""
    return _command("evaluate", artifact=_CAPTIONER, pairs=pairs, out=str(PurePath(_CAPTIONER).parent / "corrupted"))


def after_conversion(kind: str, artifact: str) -> str:
    """The use of authors' weights, by their kind in ``jobs/convert.py``."""
    match kind:
        case "mci":
            return _command("evaluate", artifact=artifact, pairs="data/levir-mci", out=f"{artifact}-evaluation")
        case "vqgan":
            return after_training("idc.vision.tokenizer.task:train", None, artifact)
        case "clip4idc":
            return after_training("idc.vision.pair_encoder.task:train", None, artifact)
        case "stage1":
            return _command("finetune_procap", "procap/finetune_official", procedures=_PROCEDURES, pretrained=artifact)
    return after_calibration(artifact)


def after_registration(name: str, tracking_uri: str) -> str:
    """The promotion of the newest version."""
    return _command("promote", name=name, tracking_uri=tracking_uri)


def after_promotion(name: str, alias: str, tracking_uri: str | None) -> str:
    """The server of the champion."""
    carried = {} if tracking_uri is None else {"registry.tracking_uri": tracking_uri}
    return " ".join(["python -m serve.app", *arguments({f"models.{alias}": f"models:/{name}@{alias}", **carried})])


def tracked_runs(tracking_uri: str, experiment_id: str) -> str:
    """Where a browser shows the runs of an MLflow experiment. By default MLflow's pages are those for language models,
    whose traces a training has none of."""
    page = f"/#/experiments/{experiment_id}/runs?workflowType=machine_learning"
    if tracking_uri.startswith("http"):
        return tracking_uri.rstrip("/") + page
    return f"mlflow ui --backend-store-uri {shlex.quote(tracking_uri)}, then http://127.0.0.1:5000{page}"


def _holds_questions(folder: str) -> bool:
    from idc.data.manifest import read_manifest

    try:
        return read_manifest(folder).kind == "instructions"
    except ValueError:  # it has been moved since
        return False


def _answers(artifact: str, instructions: str) -> str:
    out = str(PurePath(artifact).parent / "answers")
    return _command("evaluate", artifact=artifact, instructions=instructions, out=out)


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


def _procedures(pairs: str, **build: str) -> str:
    names = {"only": "procedures", "procedures": _PROCEDURES, "build": {"pairs": pairs, **build}}
    return _command("pretrain_procap", "procap/procedures_demo", **names)


def _command(job: str, preset: str | None = None, /, **settings: object) -> str:
    config = [] if preset is None else [f"--config jobs/configs/{preset}.yaml"]
    return " ".join(["python", f"jobs/{job}.py", *config, *arguments(settings)])
