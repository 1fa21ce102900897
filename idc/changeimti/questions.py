"""The questions of ChangeIMTI and their answers, word for word those of the notebook's second version, which table I
counts. (The paper prints them with other punctuation. The notebook also makes sentences that count and locate roads and
buildings at once, which it writes to no file; they are not made here.)

Of a changed pair there are as many samples of ``caption`` and ``dialogue`` as it has captions, of an unchanged one one
of each, and one of ``binary`` and two of ``count`` and ``location``: roads and buildings.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from idc.changeimti.config import CAPTION_QUESTION, CAPTION_REQUEST, BuildChangeImtiJob, ImtiTask
from idc.data.change_masks import BUILDING, CHANGED, ROAD, ChangeRegion, positions_of
from idc.data.schema import IMAGE, Turn

UNCHANGED = "the scene is the same as before"
"""The one caption of an unchanged pair, whatever its five sentences are."""
NOTHING = "No change"
"""The answer to a question about positions."""

_BINARY = (
    f"Please check if there have been any changes to the roads or buildings in these two images:{IMAGE} and {IMAGE}. "
    "Please answer yes or no."
)
_PAIR = f":{IMAGE} and {IMAGE}"
_HINT = ",if no change please output: No change."
_FIRST = f"Have there been any changes to the roads and buildings in these two images:{IMAGE} and {IMAGE}?"
_LAST = f"{CAPTION_REQUEST}."


@dataclass(frozen=True)
class LabelledPair:
    """A pair as its questions need it.

    Attributes:
        changed: its flag.
        captions: as they are in the data set; of an unchanged pair they are not used.
        regions: class -> regions; None without a mask.
    """

    pair_id: str
    changed: bool
    captions: Sequence[str]
    regions: Mapping[str, Sequence[ChangeRegion]] | None

    @property
    def texts(self) -> list[str]:
        """The captions to be learned."""
        if not self.changed:
            return [UNCHANGED]
        return [caption.replace(".", "").strip() for caption in self.captions]

    @property
    def contradiction(self) -> str | None:
        """How the flag contradicts the mask; None if it does not, or without a mask."""
        if self.regions is None:
            return None
        total = sum(map(len, self.regions.values()))
        counted = sum(len(positions_of(regions)) for regions in self.regions.values())
        if not self.changed and total:
            return "unchanged, but the mask has roads or buildings"
        if self.changed and not total:
            return "changed, but the mask is empty"
        if self.changed and not counted:
            return "changed, but no region of the mask has an area"
        return None


class SampleName(NamedTuple):
    """A sample of a pair; as text the end of its row's id.

    Attributes:
        about: class of a count or location.
        number: of the caption that a caption or dialogue ends with.
    """

    task: ImtiTask
    about: str | None = None
    number: int | None = None

    def __str__(self) -> str:
        return "-".join(str(part) for part in self if part is not None)


def sample_names(tasks: Sequence[ImtiTask], captions: int) -> Iterator[SampleName]:
    """The samples of a pair with this number of captions to be learned, in the order of its rows."""
    for task in tasks:
        if task in ("caption", "dialogue"):
            yield from (SampleName(task, number=number) for number in range(captions))
        elif task == "binary":
            yield SampleName(task)
        else:
            yield from (SampleName(task, about) for about in CHANGED)


def sample_turns(name: SampleName, pair: LabelledPair, job: BuildChangeImtiJob) -> list[Turn]:
    """The dialogue of a sample."""
    match name.task:
        case "caption":
            assert name.number is not None
            return _qa_turns(CAPTION_QUESTION, pair.texts[name.number], "caption")
        case "binary":
            return _qa_turns(_BINARY, _yes_or_no(pair), "binary")
        case "dialogue":
            assert name.number is not None
            return _dialogue(pair, name.number, job)
    assert name.about is not None
    positions = _positions(pair, name.about)
    if name.task == "count":
        return _qa_turns(_count(name.about) + _PAIR, str(len(positions)), "count")
    return _qa_turns(_location(name.about) + _PAIR + _HINT, _listed(positions), "location")


def _dialogue(pair: LabelledPair, number: int, job: BuildChangeImtiJob) -> list[Turn]:
    """Yes or no, roads, buildings, and the caption of this number."""
    draw = 0 if job.as_published else number
    rng = np.random.default_rng((job.seed, zlib.crc32(pair.pair_id.encode()), draw))
    turns = _qa_turns(_FIRST, _yes_or_no(pair), "binary")
    for about, counts in zip((ROAD, BUILDING), rng.integers(2, size=2).tolist(), strict=True):
        positions = _positions(pair, about)
        wrongly = about == BUILDING and not positions and job.as_published
        asked = ROAD if wrongly else about
        if counts:
            turns += _qa_turns(_count(asked) + "?", str(len(positions)), "count")
        else:
            turns += _qa_turns(_location(asked) + _HINT, _listed(positions), "location")
    return [*turns, *_qa_turns(_LAST, pair.texts[number], "caption")]


def _qa_turns(question: str, answer: str, task: ImtiTask) -> list[Turn]:
    return [Turn("user", question), Turn("assistant", answer, task)]


def _yes_or_no(pair: LabelledPair) -> str:
    return "Yes" if pair.changed else "No"


def _positions(pair: LabelledPair, about: str) -> list[str]:
    assert pair.regions is not None
    return positions_of(pair.regions[about])


def _count(about: str) -> str:
    return f"How many {about}s have been changed in these two images"


def _location(about: str) -> str:
    return f"Please tell me where the {about}s have changed in these two images"


def _listed(positions: Sequence[str]) -> str:
    """Each position once, in the order of the regions."""
    return ",".join(dict.fromkeys(positions)) or NOTHING
