"""A tuned model merged into its base: an ordinary hub folder that transformers and vLLM read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.training.artifact import Artifact, captioning_identity, read_artifact
from idc.training.base import DESCRIPTIONS
from idc.vlm.base import save_model, save_processor
from idc.vlm.chat import Chat, caption_turns
from idc.vlm.config import BaseConfig, GenerateConfig, PromptConfig, TuneConfig
from idc.vlm.family import Family
from idc.vlm.tuning import find_tuned, load_found

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

RECORD = "merged.json"
"""In a merged folder: what it was made of."""
_OF_THE_BASE = (*(name for name in DESCRIPTIONS if name != "config.json"), "video_preprocessor_config.json")
"""Files of the base that go along; those that the artifact has are written over them."""


def merge(
    artifact: Artifact, out: Path | str, source: str | None = None, dtype: str = "base", *, overwrite: bool = False
) -> str:
    """Write the merged model of an artifact; returns what was done, in one line. A complete folder of the same artifact
    is left as it is. ValueError: the artifact is no tuned model or has modules that its base lacks, the base is not
    here or another one, or the folder holds something else.

    Args:
        source: folder of the base, if it is not where the artifact was made.
        dtype: of the weights, by torch's name; ``base``: that of the base's files.
    """
    out = Path(out)
    base, tune = _sections(artifact)
    record = {"artifact": captioning_identity(artifact.path), "dtype": dtype, "max_pixels": base.max_pixels}
    if out.exists() and not overwrite:
        if not (out / RECORD).is_file() or json.loads((out / RECORD).read_text(encoding="utf-8")) != record:
            raise ValueError(f"{out} exists and is not this model; choose another folder, or pass --overwrite")
        return f"{out}: is complete already"
    folder, family = find_tuned(artifact, base, source)
    theirs = json.loads((folder / "config.json").read_text(encoding="utf-8"))  # older ones name the type otherwise
    wanted = dtype if dtype != "base" else str(theirs.get("dtype") or theirs.get("torch_dtype") or "float32")
    model = load_found(artifact, folder, family, base.model_copy(update={"dtype": wanted}), tune)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in _OF_THE_BASE):
            shutil.copyfile(path, partial / path.name)
    save_processor(family, partial)
    _set_limits(partial, family.limits)
    save_model(model, partial)
    (partial / "README.md").write_text(_card(artifact, family), encoding="utf-8")
    (partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)  # last, so that a folder of this name is complete
    return f"{out}: {artifact.path} merged into {artifact.base}, {model.num_parameters():,} parameters in {wanted}"


def _sections(artifact: Artifact) -> tuple[BaseConfig, TuneConfig]:
    job = artifact.config.get("job", {})
    if artifact.base is None or not {"base", "tune"} <= job.keys():
        raise ValueError(
            f"{artifact.path} is an artifact of {artifact.system!r}, not of a tuned vision-language model; give one of "
            "jobs/finetune_sft.py"
        )
    if own_modules := artifact.config.get("own_modules"):
        raise ValueError(
            f"{artifact.path} has a module of its own next to vision tower and language model "
            f"({', '.join(own_modules)}), for which a hub folder has no place: merged without it, it "
            "would be another model; use the artifact itself"
        )
    return BaseConfig.model_validate(job["base"]), TuneConfig.model_validate(job["tune"])


def _set_limits(folder: Path, limits: Mapping[str, Any]) -> None:
    images = folder / "preprocessor_config.json"
    images.write_text(json.dumps({**json.loads(images.read_text(encoding="utf-8")), **limits}, indent=2) + "\n")
    processor = folder / "processor_config.json"
    if processor.is_file():  # newer ones have the image processor in them, which is read in place of the other file
        settings = json.loads(processor.read_text(encoding="utf-8"))
        settings.pop("image_processor", None)
        processor.write_text(json.dumps(settings, indent=2) + "\n")


_USE = """from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor

folder = "."  # this folder, or its name on the hub
processor = AutoProcessor.from_pretrained(folder)
processor.image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")  # the one of tuning
model = AutoModelForImageTextToText.from_pretrained(folder)
pair = [Image.open(name).convert("RGB") for name in ("before.png", "after.png")]
messages = {messages}
prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
inputs = processor(text=prompt, images=[pair], return_tensors="pt")  # the list of one prompt's images
answer = model.generate(**inputs, {options})
print(processor.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def _card(artifact: Artifact, family: Family) -> str:
    assert artifact.base is not None
    seen = "" if artifact.trained_on is None else f" It has only seen {artifact.trained_on} in tuning."
    prompt = PromptConfig.model_validate(artifact.config["job"].get("prompt", {}))
    generation = GenerateConfig.model_validate(artifact.config["job"].get("generation", {}))
    options = f"do_sample=False, repetition_penalty=1.0, max_new_tokens={generation.max_new_tokens}"
    if generation.beams > 1:
        options += f", num_beams={generation.beams}, length_penalty={generation.length_penalty}"
    use = _USE.format(messages=repr(Chat(family).messages(caption_turns(prompt))), options=options)
    at = "" if "/" not in artifact.base.source or artifact.base.source.startswith("/") else artifact.base.source
    head = f"---\nbase_model: {at}\npipeline_tag: image-text-to-text\n---\n\n" if at else ""
    return (
        f"{head}# {artifact.base.source.rpartition('/')[2]}, tuned on differences of images\n\n"
        f"Merged from an adapter or tuned parts of {artifact.base}.{seen} The images are resized as in tuning by "
        "`preprocessor_config.json`; give the two of a prompt in a list of their own, as here, or some families cut "
        f"each into tiles that the model was not tuned on.\n\n```python\n{use}```\n"
    )


def merge_step(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """A step of a sweep (:class:`idc.sweep.chain.Step`): the model of ``artifact`` in ``folder``/merged."""
    return {"merged": merge(read_artifact(payload["artifact"]), Path(folder) / "merged")}
