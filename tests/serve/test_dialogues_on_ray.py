"""The real command with a vision-language model: in its own replicas, and with the language model behind an endpoint,
where no replica of the captioner runs."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from tests.serve.bodies import picture, url
from tests.serve.command import serving, until
from tests.vlm.artifacts import QUESTION, speaking_folder, wrapped
from tests.vlm.endpoint import endpoint

pytestmark = [pytest.mark.slow, pytest.mark.ray]
PARTS = [{"type": "image_url", "image_url": {"url": url(picture(90, shade=shade))}} for shade in (80, 140)]


def test_a_dialogue_is_the_same_here_and_behind_an_endpoint(tmp_path: Path) -> None:
    artifact = wrapped(tmp_path / "artifact")
    said = []
    with endpoint(speaking_folder("qwen2_5_vl")) as behind:
        for settings in ([], [f"loading.endpoint.url={behind.url}"]):
            with (
                serving(
                    tmp_path, f"models.vlm={artifact}", "limits.timeout_s=300", "scaling.drain_s=300", *settings
                ) as (command),
                command.client() as client,
                openai.OpenAI(base_url=f"{command.url}/v1", api_key="none", max_retries=0) as chat,
            ):
                until(lambda: client.get("/v1/models").json()["data"][0]["can_answer"] is True, "it is known to answer")
                turns: list[dict[str, object]] = [{"role": "user", "content": PARTS}]
                for text in (QUESTION, None):
                    answer = chat.chat.completions.create(model="vlm", messages=turns)  # type: ignore[arg-type]
                    content = answer.choices[0].message.content
                    said.append((content, answer.usage))
                    turns += [{"role": "assistant", "content": content}, {"role": "user", "content": text}]
                replicas = [
                    line for line in client.get("/metrics").text.splitlines() if line.startswith("idc_replicas")
                ]
                assert any('"Model"' in line for line in replicas) == (not settings)
    assert said[:2] == said[2:]
    assert all(content for content, _ in said)
    assert len(behind.requests) == 2
