"""The real command with a vision-language model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
import torch

from idc.vlm.base import find_base, load_model
from idc.vlm.config import BaseConfig
from tests.serve.bodies import picture, url
from tests.serve.command import serving
from tests.vlm.artifacts import speaking_folder, wrapped

pytestmark = [pytest.mark.slow, pytest.mark.ray]
PARTS = [{"type": "image_url", "image_url": {"url": url(picture(90, shade=shade))}} for shade in (80, 140)]


def test_an_answer_whose_replica_dies_ends_with_an_error(tmp_path: Path) -> None:
    """A thousand tokens take seconds; a replica that is killed after the first has not generated the last."""
    artifact = wrapped(tmp_path / "artifact", folder=endless(tmp_path / "model"))
    with (
        serving(tmp_path, f"models.vlm={artifact}", "limits.timeout_s=300") as command,
        openai.OpenAI(base_url=f"{command.url}/v1", api_key="none", max_retries=0) as chat,
    ):
        asked: list[Any] = [{"role": "user", "content": [*PARTS, {"type": "text", "text": "What changed?"}]}]
        few = list(chat.chat.completions.create(model="vlm", messages=asked, max_tokens=5, stream=True))
        assert len([one for one in few if one.choices[0].delta.content]) > 2
        chunks = chat.chat.completions.create(model="vlm", messages=asked, max_tokens=1000, stream=True)
        while not next(chunks).choices[0].delta.content:
            pass
        for process in psutil.Process(command.process.pid).children(recursive=True):
            if "ServeReplica:captions:Model" in " ".join(process.cmdline()):
                process.kill()
        with pytest.raises(openai.APIError, match="the replica died during this request"):
            list(chunks)


def endless(folder: Path) -> Path:
    """The speaking model, but that it never comes to an end: its end token is as improbable as it was probable."""
    shutil.copytree(speaking_folder("qwen2_5_vl"), folder)
    base = BaseConfig(source=str(folder))
    model = load_model(folder, base)
    with torch.no_grad():
        model.get_output_embeddings().weight[find_base(base).family.tokenizer.eos_token_id] *= -1
    model.save_pretrained(folder)
    return folder
