"""The contract between the HTTP front and the captioners behind it. Imports no torch and no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from idc.captioning.contract import Answer, Candidate, Description, SearchOptions
from idc.captioning.region_of_interest import Box
from idc.data.schema import IMAGE, Turn

Value = TypeVar("Value")
TextCallback = Callable[[str], None]
"""Called with each further piece of an answer's text."""
ObjectsOption = Literal["never", "unfamiliar", "always"]
"""For which pairs ``objects`` is asked too: none, those that the model is not familiar with, or all."""
PolygonsOption = Literal["never", "georeferenced", "always"]
"""For which pairs the changes are returned as polygons: those of two GeoTIFFs; always: others are refused."""


@dataclass(frozen=True)
class Options:
    """How to caption pairs; pairs with equal options share a batch."""

    search: SearchOptions = SearchOptions()
    """What is asked of the model."""
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
    """Two image files, as the client sent them."""

    before: bytes
    after: bytes
    dialogue: RequestDialogue | None = None
    """None for a caption."""
    georeferenced: bool = False
    """Both are GeoTIFFs, and polygons are wanted."""
    pixels: int = 0
    """Of both images and of the masks together, as their headers declare."""
    ignore: tuple[Box | bytes, ...] = ()
    """As ``only``: parts as of :func:`idc.captioning.region_of_interest.region_from`, masks as image files."""
    only: tuple[Box | bytes, ...] = ()


@dataclass(frozen=True)
class PairResult:
    """The description of a pair, the answer in a dialogue about it, or the reason for having neither."""

    description: Description | None = None
    """Without its maps, which are drawn."""
    answer: Answer | None = None
    change_map: bytes | None = None
    """PNG, 8-bit grey, of the size of the image after (its longer side at most 1024)."""
    classes: Mapping[str, Any] | None = None
    """The fields of :class:`serve.schema.ClassesAnswer`, images as PNG files."""
    scene: Mapping[str, Any] | None = None
    """The fields of :class:`serve.schema.SceneAnswer`, images as PNG files."""
    error: str | None = None
    """Reason for the user, which begins with the field: ``"before: ..."``, ``"messages: ..."``."""
    status: int = 400
    """Of the response to a request for this pair alone, if there is an error: 400, or what failed here (500) or at the
    endpoint that runs the language model (502, 503, 504)."""
    model_ms: float = 0.0
    """Model time of the batch that contained the pair; ``batch`` is its number of pairs."""
    batch: int = 0
    version: str = ""
    """Of the model, as in :class:`ModelStatus`."""

    @property
    def captions(self) -> tuple[Candidate, ...]:
        """The candidates of the description, best first; empty without one."""
        return () if self.description is None else self.description.candidates


@dataclass(frozen=True)
class ModelStatus:
    """A model name and the version behind it, as clients see them: without paths and addresses of this machine."""

    name: str
    version: str
    """``models:/captioner/7``, or ``sha256:1f2e3d4c5b6a`` for a folder."""
    error: str | None = None
    """Why the model cannot be served, or its newest version, while ``version`` continues to serve."""
    trained_on: str | None = None
    """As in :class:`idc.captioning.contract.Captioner`; None of ``auto``, which trusts the trained captioner with no
    pair unlike its training data, and like all below until a replica runs."""
    can_map: bool | None = None
    can_answer: bool | None = None


class Overloaded(Exception):
    """The replicas accept no requests at present (answered by 503 with Retry-After). Without a text: full queues."""


class Backend(Protocol):
    """Captioners behind the front: replicas on Ray Serve or, in tests, a captioner in this process."""

    async def models(self) -> list[ModelStatus]:
        """The models, the default first."""
        ...

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, on_text: TextCallback | None = None
    ) -> list[PairResult]:
        """One result per pair, in order.

        Args:
            on_text: of a single pair: called in the event loop with each piece of the answer in its dialogue. The
                pieces are a beginning of the answer's text, but for white space around that.

        Raises:
            Overloaded: the queues are full.
            ValueError: the model does not support the options.
        """
        ...

    async def ready(self) -> str | None:
        """None if requests can be served, else the reason why not."""
        ...


@dataclass(frozen=True)
class Done(Generic[Value]):
    """The last item of :func:`pieces`."""

    value: Value


async def pieces(
    run: Callable[[Callable[[Any], None]], Coroutine[Any, Any, Value]],
) -> AsyncGenerator[Any | Done[Value], None]:
    """The items with which ``run(put)`` calls ``put``, from any thread, each at once; then its result, or what it
    raises. It runs on while nobody asks for the next item. When the generator is closed, the coroutine is cancelled."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[Any] | None] = asyncio.Queue()

    def put(item: Any) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, (item,))

    task = loop.create_task(run(put))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (entry := await queue.get()) is not None:
            yield entry[0]
        yield Done(await task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
