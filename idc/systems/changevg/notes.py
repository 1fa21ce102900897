"""The guide's notes on a pair, summary and changed regions of each class; and the questions that quote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from idc.changeimti.change_regions import CLASSES, find_regions, positions_of
from idc.changeimti.class_masks import CLASSES as CLASS_NAMES
from idc.changeimti.config import RegionConfig
from idc.data.schema import IMAGE, Turn
from idc.systems.changevg.config import GuidedPromptConfig

NOTHING = "No change"
"""ChangeIMTI's answer to the question where something changed, if nothing did."""

_FIGURE_3 = (
    "You are an assistant proficient in remote sensing change reasoning. Please answer the user's question based on "
    "the following auxiliary information."
)


@dataclass(frozen=True)
class GuideNotes:
    """What the guide saw in a pair: its caption, and of each class the positions of the counted regions."""

    summary: str
    positions: Mapping[str, Sequence[str]]


def positions_of_classes(classes: np.ndarray, regions: RegionConfig) -> dict[str, list[str]]:
    """Class -> the position of each counted region of a class map (H, W)."""
    return {name: positions_of(find_regions(classes == CLASS_NAMES.index(name), regions)) for name in CLASSES}


def locations(positions: Sequence[str]) -> str:
    """Positions as ChangeIMTI's answer: each once, in order; :data:`NOTHING` if there are none."""
    return ", ".join(dict.fromkeys(positions)) or NOTHING


def guided_question(notes: GuideNotes, question: str, prompt: GuidedPromptConfig) -> str:
    """A question, with :data:`idc.data.schema.IMAGE` in the place of each image, with the notes before it; the
    question itself if no branch is quoted."""
    lines = []
    if prompt.summary:
        # A summary cannot hold an image mark, whatever words its vocabulary has.
        lines.append(f"Caption: {notes.summary.replace(IMAGE, '')}")
    if prompt.regions:
        counts, places_of = [], []
        for name in CLASSES:
            counts.append(f"{name}: {len(notes.positions[name])}")
            places_of.append(f"{name}: {{{locations(notes.positions[name])}}}")
        lines += [f"Count: {{ {', '.join(counts)} }}", f"Location: {{ {', '.join(places_of)} }}"]
    if not lines:
        return question
    return "\n".join([_FIGURE_3, "Visual auxiliary information:", *lines, "Query:", question])


def guided_turns(notes: GuideNotes, turns: Sequence[Turn], prompt: GuidedPromptConfig) -> list[Turn]:
    """A dialogue with the notes before its first question; later questions have none, as its history has them. The same
    for the dialogues of the tuning and those that the captioner answers."""
    first = next((index for index, turn in enumerate(turns) if turn.role == "user"), None)
    if first is None:
        return list(turns)
    asked = replace(turns[first], text=guided_question(notes, turns[first].text, prompt))
    return [*turns[:first], asked, *turns[first + 1 :]]
