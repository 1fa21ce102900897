"""A tuned model merged into its base: an ordinary hub folder that transformers and vLLM read."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

from idc.training.artifact import Artifact, captioning_identity
from idc.training.base import DESCRIPTIONS
from idc.vlm.artifact import find_tuned, load_tuned
from idc.vlm.base import save_model, save_processor
from idc.vlm.config import BaseConfig, TuneConfig

RECORD = "merged.json"
"""In a merged folder: what it was made of."""
_OF_THE_BASE = (*(name for name in DESCRIPTIONS if name != "config.json"), "video_preprocessor_config.json")
"""Files of the base that go along; those that the artifact has are written over them."""


def merge(
    artifact: Artifact, out: Path | str, source: str | None = None, dtype: str = "base", *, overwrite: bool = False
) -> str:
    """Write the merged model of an artifact. A complete folder of the same artifact is left as it is.

    Args:
        out: its folder.
        source: folder of the base, if it is not where the artifact was made.
        dtype: of the weights, by torch's name; ``base``: that of the base's files.

    Returns:
        What was done, in one line.

    Raises:
        ValueError: the artifact is no tuned model or has modules that its base lacks, the base is not here or another
            one, or the folder holds something else.
    """
    out = Path(out)
    base, tune = _sections(artifact)
    record = {"artifact": captioning_identity(artifact.path), "dtype": dtype}
    if _there(out, record, overwrite):
        return f"{out}: is complete already"
    folder, _ = find_tuned(artifact, base, source)
    wanted = _type_of(folder) if dtype == "base" else dtype
    model, family = load_tuned(artifact, base.model_copy(update={"dtype": wanted}), tune, source=source)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in _OF_THE_BASE):
            shutil.copyfile(path, partial / path.name)
    save_processor(family, partial)
    save_model(model, partial)
    (partial / "README.md").write_text(_card(artifact), encoding="utf-8")
    (partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    return f"{out}: {artifact.path} merged into {artifact.base}, {model.num_parameters():,} parameters in {wanted}"


def _sections(artifact: Artifact) -> tuple[BaseConfig, TuneConfig]:
    job = artifact.config.get("job", {})
    if artifact.base is None or not {"base", "tune"} <= job.keys():
        raise ValueError(
            f"{artifact.path} is an artifact of {artifact.system!r}, not of a tuned vision-language model; give one of "
            "jobs/finetune_vlm.py"
        )
    if own := artifact.config.get("own_modules"):
        raise ValueError(
            f"{artifact.path} has a module of its own between vision tower and language model ({', '.join(own)}), for "
            "which a hub folder has no place: merged without it, it would be another model; use the artifact itself"
        )
    return BaseConfig.model_validate(job["base"]), TuneConfig.model_validate(job["tune"])


def _there(out: Path, record: dict[str, str], overwrite: bool) -> bool:
    if not out.exists() or overwrite:
        return False
    if (out / RECORD).is_file() and json.loads((out / RECORD).read_text(encoding="utf-8")) == record:
        return True
    raise ValueError(f"{out} exists and is not this model; choose another folder, or pass --overwrite")


def _type_of(folder: Path) -> str:
    """The type of a model's weights, from its config.json, where older ones have it by another name."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _card(artifact: Artifact) -> str:
    assert artifact.base is not None
    seen = "" if artifact.trained_on is None else f" It has only seen {artifact.trained_on} in tuning."
    prompt = artifact.config["job"].get("prompt", {}).get("text", "")
    at = "" if "/" not in artifact.base.source or artifact.base.source.startswith("/") else artifact.base.source
    head = f"---\nbase_model: {at}\npipeline_tag: image-text-to-text\n---\n\n" if at else ""
    return (
        f"{head}# {artifact.base.source.rpartition('/')[2]}, tuned on differences of images\n\n"
        f"Merged from an adapter or tuned parts of {artifact.base}.{seen} The question it was tuned on, with the two "
        f"images in the places of `<image>`:\n\n```\n{prompt}\n```\n"
    )


def push(folder: Path | str, repository: str) -> None:
    """Upload a merged model to the hub.

    Raises:
        ValueError: the hub refuses it, or does not answer.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(repository, private=True, exist_ok=True)
        HfApi().upload_folder(folder_path=str(folder), repo_id=repository, ignore_patterns=[RECORD])
    except Exception as error:  # of the hub, of HTTP, of proxies: the types differ between versions
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"push: the hub refused the upload of {folder} to {repository} ({reason}); the folder itself is complete"
        ) from error
