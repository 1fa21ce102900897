"""The contract between the HTTP front and the captioners behind it. Imports no torch and no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from idc.captioning.contract import Answer, Candidate, Description
from idc.captioning.counted import Box
from idc.data.schema import IMAGE, Turn
from serve.pieces import Hear

ObjectsOption = Literal["never", "unfamiliar", "always"]
"""For which pairs ``objects`` is asked too: none, those that the model is not familiar with, or all."""
PolygonsOption = Literal["never", "georeferenced", "always"]
"""For which pairs the changes are returned as polygons: those of two GeoTIFFs; always: others are refused."""


@dataclass(frozen=True)
class Options:
    """How to caption pairs; pairs with equal options share a batch."""

    beams: int | None = None
    """Beam width of the search; None for the width the artifact was validated with."""
    candidates: int = 1
    change_map: bool = False
    objects: ObjectsOption = "unfamiliar"
    polygons: PolygonsOption = "never"


def fault_of(turns: Sequence[Turn]) -> str | None:
    """Why a model that answers cannot read a conversation, or None."""
    spoken = [turn for turn in turns if turn.role != "system"]
    if sum(turn.text.count(IMAGE) for turn in turns) != 2:
        return f"the text has {IMAGE} in it, which stands for an image: leave it out, images are parts of their own"
    if spoken[0].role == "assistant":
        return "the conversation begins with a turn of the assistant; begin with the user's"
    if spoken[-1].role == "assistant":
        return "the last turn is the assistant's own; end with the user's"
    return None


@dataclass(frozen=True)
class RequestDialogue:
    """The text of a conversation about a pair, as :meth:`idc.captioning.contract.Captioner.answer` takes it."""

    turns: tuple[Turn, ...]
    max_tokens: int | None = None
    """Maximum length of the answer; None for the captioner's own."""


@dataclass(frozen=True)
class EncodedPair:
    """Two image files, as the client sent them.

    Attributes:
        dialogue: the text of the conversation; None for a caption.
        placed: both are GeoTIFFs, and polygons are wanted.
        pixels: of both images and of the masks together, as their headers declare.
        ignore, only: as of :func:`idc.captioning.counted.counted_part`, masks as image files.
    """

    before: bytes
    after: bytes
    dialogue: RequestDialogue | None = None
    placed: bool = False
    pixels: int = 0
    ignore: tuple[Box | bytes, ...] = ()
    only: tuple[Box | bytes, ...] = ()


@dataclass(frozen=True)
class ShownClasses:
    """:class:`idc.captioning.contract.ClassMap` as clients get it."""

    class_map: bytes
    """PNG, 8-bit grey, at the model's own resolution: 0, or the number of the class in ``counts``, from 1 on."""
    counts: tuple[Mapping[str, Any], ...]
    """Of every class, as :meth:`idc.captioning.class_counts.ClassCount.to_dict` has them."""


@dataclass(frozen=True)
class ShownScene:
    """A pair of GeoTIFFs as clients get it: :class:`idc.geo.georeferenced_pair.GeoreferencedChanges`, and PNGs of the
    images as the model got them, their longer side at most 1024."""

    sentence: str
    geojson: Mapping[str, Any]
    before: bytes
    after: bytes


@dataclass(frozen=True)
class PairResult:
    """The description of a pair, the answer in a dialogue about it, or the reason for having neither.

    Attributes:
        description: without its maps, which are drawn.
        change_map: PNG, 8-bit grey, of the size of the image after (its longer side at most 1024).
        error: reason for the user, which begins with the field: ``"before: ..."``, ``"messages: ..."``.
        status: of the response to a request for this pair alone, if there is an error: 400, or what failed here (500)
            or at the endpoint that runs the language model (502, 503, 504).
        model_ms, batch: model time of the batch that contained the pair, and its number of pairs.
        version: of the model, as in :class:`ModelStatus`.
    """

    description: Description | None = None
    answer: Answer | None = None
    change_map: bytes | None = None
    classes: ShownClasses | None = None
    scene: ShownScene | None = None
    error: str | None = None
    status: int = 400
    model_ms: float = 0.0
    batch: int = 0
    version: str = ""

    @property
    def captions(self) -> tuple[Candidate, ...]:
        """The candidates of the description, best first; empty without one."""
        return () if self.description is None else self.description.candidates


@dataclass(frozen=True)
class Capabilities:
    """Properties of a loaded model."""

    trained_on: str | None
    """As in :class:`idc.captioning.contract.Captioner`; None of ``auto``, which trusts the trained captioner with no
    pair unlike its training data."""
    can_map: bool = False
    can_answer: bool = False


@dataclass(frozen=True)
class ModelStatus:
    """A model name and the version behind it, as clients see them: without paths and addresses of this machine."""

    name: str
    version: str
    """``models:/captioner/7``, or ``sha256:1f2e3d4c5b6a`` for a folder."""
    error: str | None = None
    """Why the model cannot be served."""
    newer_error: str | None = None
    """Why a newer version is not served while ``version`` continues to serve."""
    capabilities: Capabilities | None = None
    """None until a replica has reported them."""


class Overloaded(Exception):
    """The replicas accept no requests at present (answered by 503 with Retry-After). Without a text: full queues."""


class Backend(Protocol):
    """Captioners behind the front: replicas on Ray Serve or, in tests, a captioner in this process."""

    async def models(self) -> list[ModelStatus]:
        """The models, the default first."""
        ...

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, on_text: Hear | None = None
    ) -> list[PairResult]:
        """One result per pair, in order.

        Args:
            model: its name in the config.
            on_text: of a single pair: called in the event loop with each piece of the answer in its dialogue, as
                soon as it is generated. The pieces are a beginning of the answer's text, but for white space around
                that.

        Raises:
            Overloaded: the queues are full.
            ValueError: the model does not support the options.
        """
        ...

    async def ready(self) -> str | None:
        """None if requests can be served, else the reason why not."""
        ...

    async def replicas(self) -> dict[str, int]:
        """Running replicas by deployment name."""
        ...
