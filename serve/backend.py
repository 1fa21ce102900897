"""The contract between the HTTP front and the captioners behind it. Imports no torch and no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from idc.captioning.contract import Answer, Candidate, Description
from idc.captioning.counted import Box
from idc.data.schema import Turn
from serve.pieces import Hear

ObjectsOption = Literal["never", "unfamiliar", "always"]
"""For which pairs ``objects`` is asked too: none, those that the model is not familiar with, or all."""
PolygonsOption = Literal["never", "georeferenced", "always"]
"""For which pairs the changes are returned as polygons: those of two GeoTIFFs; always: others are refused."""


@dataclass(frozen=True)
class Options:
    """How to caption pairs; pairs with equal options share a batch.

    Attributes:
        beams: beam width of the search; None for the width the artifact was validated with.
        candidates: captions per pair.
        change_map: whether to return a change map.
        objects: whether to say, beside the caption, what ``objects`` says.
        polygons: whether to return the changes of GeoTIFFs as polygons.
    """

    beams: int | None = None
    candidates: int = 1
    change_map: bool = False
    objects: ObjectsOption = "unfamiliar"
    polygons: PolygonsOption = "never"


@dataclass(frozen=True)
class RequestDialogue:
    """The text of a conversation about a pair. A model that cannot answer writes a caption, unless it is a question
    (:mod:`serve.conversation`).

    Attributes:
        turns: as :meth:`idc.captioning.contract.Captioner.answer` takes them.
        max_tokens: maximum length of the answer; None for the captioner's own.
    """

    turns: tuple[Turn, ...]
    max_tokens: int | None = None


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
    """:class:`idc.captioning.contract.ClassMap` as clients get it.

    Attributes:
        class_map: PNG, 8-bit grey, at the model's own resolution: 0, or the number of the class in ``counts``, from 1
            on.
        counts: of every class, as :meth:`idc.captioning.class_counts.ClassCount.to_dict` has them.
    """

    class_map: bytes
    counts: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class ShownScene:
    """A pair of GeoTIFFs as clients get it.

    Attributes:
        sentence, geojson: as in :class:`idc.geo.placed_pair.PlacedChanges`.
        before, after: PNGs of the images as the model got them, their longer side at most 1024.
    """

    sentence: str
    geojson: Mapping[str, Any]
    before: bytes
    after: bytes


@dataclass(frozen=True)
class PairResult:
    """The description of a pair, the answer in a dialogue about it, or the reason for having neither.

    Attributes:
        description: of a captioned pair, without its maps, which are drawn; None if there is an
            ``answer`` or an ``error``.
        answer: of a model that can answer, to a pair with a dialogue.
        change_map: PNG, 8-bit grey, of the size of the image after (its longer side at most 1024), or None.
        classes: if a change map is requested and the model has classes.
        scene: of two GeoTIFFs, if polygons are requested.
        error: reason for the user, ``"before: ..."``, ``"after: ..."``, ``"pair: ..."``, ``"ignore, only: ..."``, or of
            a dialogue ``"messages: ..."`` or ``"n: ..."``; None if the pair was captioned or answered.
        status: of the response to a request for this pair alone, if there is an error: 400, or what failed here (500)
            or at the endpoint that runs the language model (502, 503, 504).
        model_ms: model time of the batch that contained the pair.
        batch: number of pairs in that batch.
        version: of the model that captioned or answered, as in :class:`ModelStatus`.
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
class Abilities:
    """Properties of a loaded model.

    Attributes:
        trained_on: as in :class:`idc.captioning.contract.Captioner`; None of ``auto``, which trusts the trained
            captioner with no pair unlike its training data.
        can_map, can_answer: its capabilities.
    """

    trained_on: str | None
    can_map: bool = False
    can_answer: bool = False


@dataclass(frozen=True)
class ModelStatus:
    """A model name and the version behind it, as clients see them: without paths and addresses of this machine.

    Attributes:
        name: model name in requests.
        version: current version: ``models:/captioner/7``, or ``sha256:1f2e3d4c5b6a`` for a folder.
        error: why the model cannot be served, or None.
        newer_error: why a newer version is not served while ``version`` continues to serve, or None.
        abilities: properties of the version; None until a replica has reported them.
    """

    name: str
    version: str
    error: str | None = None
    newer_error: str | None = None
    abilities: Abilities | None = None


class Busy(Exception):
    """The replicas accept no requests at present (answered by 503 with Retry-After). Without a text: full queues."""


class Backend(Protocol):
    """Captioners behind the front: replicas on Ray Serve or, in tests, a captioner in this process."""

    async def models(self) -> list[ModelStatus]:
        """The models, the default first."""
        ...

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, hear: Hear | None = None
    ) -> list[PairResult]:
        """One result per pair, in order.

        Args:
            model: its name in the config.
            hear: of a single pair: called in the event loop with each piece of the answer in its dialogue, as soon as
                it is generated. The pieces are a beginning of the answer's text, but for white space around that.

        Raises:
            Busy: the queues are full.
            ValueError: the model does not support the options.
        """
        ...

    async def ready(self) -> str | None:
        """None if requests can be served, else the reason why not."""
        ...

    async def replicas(self) -> dict[str, int]:
        """Running replicas by deployment name."""
        ...
