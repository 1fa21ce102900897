"""The guide's notes on a pair: summary, changed regions of each class, class map; and the questions that quote them.

Notes are stored once for each pair, under :data:`NOTES` in its ``meta``, by :mod:`idc.systems.changevg.notes_job`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from idc.changeimti.change_regions import CLASSES, POSITIONS, find_regions, positions_of
from idc.changeimti.class_masks import CLASSES as CLASS_NAMES
from idc.changeimti.config import CAPTION_REQUEST, RegionConfig
from idc.data.schema import IMAGE, Turn
from idc.systems.changevg.config import GuidedPromptConfig

NOTES = "guide"
"""Key of a pair's ``meta``."""
NOTHING = "No change"
"""ChangeIMTI's answer to the question where something changed, if nothing did."""

_FIGURE_3 = (
    "You are an assistant proficient in remote sensing change reasoning. Please answer the user's question based on "
    "the following auxiliary information."
)


@dataclass(frozen=True)
class GuideNotes:
    """What the guide saw in a pair.

    Attributes:
        summary: its caption.
        positions: class -> the position of each counted region, in OpenCV's order of the regions.
        class_map: PNG of the class map as a label (0, 128, 255), at the guide's resolution.
    """

    summary: str
    positions: Mapping[str, Sequence[str]]
    class_map: bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: ``caption``, ``map`` (base64), and of each class ``count`` and ``positions``."""
        regions = {
            name: {"count": len(positions), "positions": list(positions)} for name, positions in self.positions.items()
        }
        return {"caption": self.summary, **regions, "map": base64.b64encode(self.class_map).decode()}

    @classmethod
    def of_meta(cls, meta: Mapping[str, Any], pair_id: str) -> GuideNotes:
        """The notes in a pair's ``meta``.

        Raises:
            ValueError: naming the pair: it has none, or something else is in their place.
        """
        notes = meta.get(NOTES)
        if notes is None:
            raise ValueError(
                f"pair {pair_id!r} has no notes of a guide; add them first: jobs/finetune_changevg.py out= --help"
            )
        try:
            positions = {name: tuple(map(str, notes[name]["positions"])) for name in CLASSES}
            if strange := [text for texts in positions.values() for text in texts if text not in POSITIONS]:
                raise ValueError(f"unknown position {strange[0]!r}")
            return cls(str(notes["caption"]), positions, base64.b64decode(notes["map"], validate=True))
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise ValueError(f"pair {pair_id!r}: meta.{NOTES} is not a guide's notes ({error!r})") from None


def positions_of_classes(classes: np.ndarray, regions: RegionConfig) -> dict[str, list[str]]:
    """Class -> the position of each counted region of a class map (H, W)."""
    return {name: positions_of(find_regions(classes == CLASS_NAMES.index(name), regions)) for name in CLASSES}


def locations(positions: Sequence[str]) -> str:
    """Positions as ChangeIMTI's answer: each once, in order; :data:`NOTHING` if there are none."""
    return ", ".join(dict.fromkeys(positions)) or NOTHING


def guided_question(notes: GuideNotes, question: str, prompt: GuidedPromptConfig) -> str:
    """A question with the notes before it; the question itself if no branch is quoted.

    Args:
        question: with :data:`idc.data.schema.IMAGE` in the place of each image.
    """
    if prompt.style == "notebook":
        summary = _plain(notes.summary).replace(".", "").strip()
        hint = f"Please refer to this description:{summary}.Modify or correct it." if prompt.summary else ""
        return hint + question
    lines = []
    if prompt.summary:
        lines.append(f"Caption: {_plain(notes.summary)}")
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
    """A dialogue with the notes before its first question; later questions have none, as its history has them. With
    ``style=notebook`` before its questions for a caption. The same for the dialogues of the tuning and those that the
    captioner answers."""
    if prompt.style == "notebook":
        return [
            replace(turn, text=guided_question(notes, turn.text, prompt))
            if turn.role == "user" and CAPTION_REQUEST in turn.text
            else turn
            for turn in turns
        ]
    first = next((index for index, turn in enumerate(turns) if turn.role == "user"), None)
    if first is None:
        return list(turns)
    asked = replace(turns[first], text=guided_question(notes, turns[first].text, prompt))
    return [*turns[:first], asked, *turns[first + 1 :]]


def _plain(summary: str) -> str:
    """A summary cannot hold an image mark, whatever words its vocabulary has."""
    return summary.replace(IMAGE, "")
