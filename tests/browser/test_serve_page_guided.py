"""Four questions about a pair to a model with a guide (ChangeVG), on the served page and by OpenAI's client."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from playwright.sync_api import expect

from idc.captioning.class_counts import count_classes
from idc.data.images import decode_image
from idc.data.stored_rows import iter_rows
from idc.schema import IMAGE, Turn
from idc.systems import load_captioner
from idc.systems.changevg.guided_captioner import GuidedCaptioner
from idc.systems.changevg.tuning import train
from idc.training.context import LocalContext
from serve.api import create_api
from tests.browser.driving import drop, too_wide, unnamed
from tests.browser.served import LIMITS, Visit
from tests.serve.local import LocalBackend, local_config, serving
from tests.systems.changevg.guided import tuning_job, write_masked, write_questions
from tests.systems.changevg.tiny import start, tiny_job

pytestmark = pytest.mark.slow

QUESTIONS = ("Has anything changed?", "How many buildings have changed?", "Where have they changed?", "Describe it.")


@dataclass
class Served:
    """A served ChangeVG, the files of a changed pair, and what its guide looked at."""

    url: str
    artifact: str
    files: tuple[Path, Path]
    looks: list[int] = field(default_factory=list)
    """Numbers of pairs that the guide saw, a run each."""

    @property
    def images(self) -> tuple[np.ndarray, np.ndarray]:
        before, after = (decode_image(path.read_bytes()) for path in self.files)
        return before, after

    def answers(self, caption: str | None = None, empty: str = "") -> list[str]:
        """Those of the artifact itself, each after the ones before it; after its caption, if one is given.

        Args:
            empty: the turn of an empty answer.
        """
        captioner = load_captioner(self.artifact)
        assert isinstance(captioner, GuidedCaptioner)
        before, after = self.images
        dialogue: list[Turn] = []
        if caption is not None:
            dialogue += [Turn("user", IMAGE * 2), Turn("assistant", caption)]
        answers = []
        for question in QUESTIONS:
            dialogue.append(Turn("user", question if dialogue else IMAGE * 2 + question))
            [answer] = captioner.answer([before], [after], [dialogue])
            answers.append(answer.text)
            dialogue.append(Turn("assistant", answer.text or empty))
        return answers


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A guide that has learned to see the pair, and a language model that has learned next to nothing."""
    folder = tmp_path_factory.mktemp("guided")
    pairs = write_masked(folder / "pairs")
    questions = write_questions(pairs, folder / "questions")
    start(tiny_job(pairs, {"train.steps": 40, "train.batch_size": 4}), folder / "guide")
    job = tuning_job(questions, folder / "guide" / "artifact")
    train(job.model_dump(mode="json"), LocalContext(folder / "tuned"))
    artifact = str(folder / "tuned" / "artifact")
    row = next(row for row in iter_rows(pairs, ["change_type", "before", "after"]) if row["change_type"] != "none")
    files = folder / "before.png", folder / "after.png"
    for path in files:
        path.write_bytes(row[path.stem])
    backend = LocalBackend(artifact)
    looks: list[int] = []
    captioner = backend._captioner.captioner
    assert isinstance(captioner, GuidedCaptioner)
    guide = captioner.guide
    look = guide.look

    def counted(befores: Any, *arguments: Any) -> Any:
        looks.append(len(befores))
        return look(befores, *arguments)

    guide.look = counted  # type: ignore[method-assign]
    with serving(create_api(local_config(artifact, limits=LIMITS), backend)) as address:
        yield Served(address, artifact, files, looks)


def test_four_questions_on_the_page(served: Served, visit: Visit) -> None:
    before, after = served.images
    [described] = load_captioner(served.artifact).describe([before], [after], change_map=True)
    assert described.class_map is not None
    counts = count_classes(described.class_map)
    answers = served.answers(described.best.caption)
    served.looks.clear()
    with visit(url=served.url, viewport={"width": 420, "height": 900}) as seen:
        page = seen.open()
        drop(page, page.locator("main"), *served.files)
        expect(page.locator("#caption")).to_have_text(described.best.caption)
        for number, question in enumerate(QUESTIONS):
            page.get_by_label("Question").fill(question)
            page.keyboard.press("Enter")
            expect(page.locator("#turns li")).to_have_count(2 * number + 2)
        turns = page.locator("#turns li")
        assert [turns.nth(2 * number).inner_text() for number in range(4)] == [f"You: {text}" for text in QUESTIONS]
        assert [turns.nth(2 * number + 1).locator("span").inner_text() for number in range(4)] == answers
        items = page.locator("#classes li").all_inner_texts()
        assert [item.split(",")[0] for item in items] == [f"{each.name}: {each.count}" for each in counts]
        page.locator("#map[data-drawn]").wait_for()
        assert unnamed(page) == []
        assert too_wide(page) == []
        assert seen.elsewhere == []
        assert [error for error in seen.errors if "422" not in error] == [], "the page asks any model for a map first"
    assert served.looks == [1], "the guide runs once for the caption and all turns"


def test_four_questions_by_the_client_of_openai(served: Served) -> None:
    images = []
    for path in served.files:
        encoded = base64.b64encode(path.read_bytes()).decode()
        images.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}})
    turns: list[Any] = []
    said: list[str] = []
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        for number, question in enumerate(QUESTIONS):
            text = {"type": "text", "text": question}
            turns.append({"role": "user", "content": [text] if number else [*images, text]})
            answer = client.chat.completions.create(model="demo", messages=turns).choices[0].message.content
            assert answer is not None
            said.append(answer)
            turns.append({"role": "assistant", "content": answer or "-"})  # the interface drops empty turns
    assert said == served.answers(empty="-")
