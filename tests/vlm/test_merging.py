"""A merged model by plain transformers: the same pixels, the same tokens and the same caption as in this program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from idc.data.images import encode_png
from idc.systems.sft.captioner import load_captioner
from idc.training.artifact import read_artifact
from idc.vlm.base import find_base, load_model
from idc.vlm.chat import Chat, caption_turns
from idc.vlm.config import FAMILIES, PAIR_PROMPT, BaseConfig, PromptConfig
from idc.vlm.merging import merge
from idc.vlm.tuning import write_tuned
from tests.vlm.artifacts import TEXT, speaking_folder
from tests.vlm.models import picture
from tests.vlm.processors import without_videos

AUTO = "AutoProcessor.from_pretrained(folder)"


def processor_of(folder: str | Path) -> Any:
    """As AutoProcessor, without the part that reads videos."""
    settings = json.loads((Path(folder) / "processor_config.json").read_text())
    images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    settings.pop("image_processor", None)  # AutoImageProcessor has read it
    processor = without_videos(settings.pop("processor_class"))
    return processor(images, tokenizer, chat_template=tokenizer.chat_template, **settings)


def tuned(kind: str, folder: Path, prompt: str) -> Path:
    """An artifact whose projector was trained, at 3,136 pixels an image, of a base whose processor_config.json has the
    image processor in it."""
    source = Path(shutil.copytree(speaking_folder(kind), folder / "base"))
    images = json.loads((source / "preprocessor_config.json").read_text())
    settings = json.loads((source / "processor_config.json").read_text())
    (source / "processor_config.json").write_text(json.dumps({**settings, "image_processor": images}))
    base = find_base(BaseConfig(source=str(source), max_pixels=3136))
    model = load_model(source, BaseConfig(source=str(source)))
    state = {f"model.{name}": value for name, value in model.state_dict().items() if base.family.is_projector(name)}
    job = {
        "pairs": "-", "base": {"source": str(source), "max_pixels": 3136}, "prompt": {"text": prompt},
        "generation": {"max_new_tokens": 12}, "tune": {"language": "frozen", "projector": {}},
    }  # fmt: skip
    return write_tuned(
        folder / "artifact", system="sft", config={"job": job}, state=state, model=model, base=base, card=""
    )


@pytest.mark.parametrize(("kind", "prompt"), [*((kind, PAIR_PROMPT) for kind in FAMILIES), ("qwen2_5_vl", TEXT)])
def test_plain_transformers_sees_and_says_what_the_artifact_does(
    kind: str, prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the code in the model card, run as it is but for :func:`processor_of`."""
    artifact, merged = tuned(kind, tmp_path, prompt), tmp_path / "merged"
    merge(read_artifact(artifact), merged)
    images = [picture(1, 100, 100), picture(2, 90, 250)]
    captioner = load_captioner(artifact)
    family = captioner.family
    for name, image in zip(("before.png", "after.png"), images, strict=True):
        (merged / name).write_bytes(encode_png(image))
    _, _, code = (merged / "README.md").read_text().partition("```python\n")
    code = code.partition("```")[0]
    assert code.count(AUTO) == 1
    names: dict[str, Any] = {"processor_of": processor_of}
    monkeypatch.chdir(merged)
    exec(code.replace(AUTO, "processor_of(folder)"), names)
    chat, sizes = Chat(family), [(100, 100), (90, 250)]
    assert names["inputs"]["input_ids"][0].tolist() == chat.prompt(caption_turns(PromptConfig(text=prompt)), sizes)
    pixels = names["inputs"]["pixel_values"]
    assert torch.equal(pixels[:, 0] if kind == "llava_onevision" else pixels, family.pixels(images)["pixel_values"])
    assert capsys.readouterr().out.strip() == captioner([images[0]], [images[1]])[0] != ""
