"""The served page with two small captioners behind it, and browser sessions on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from playwright.sync_api import ConsoleMessage, Page, Request, expect

from idc.captioning.contract import Assessment, Captioner, Description
from idc.data.images import decode_image
from idc.systems import load_captioner
from serve.backend import Abilities, Busy, EncodedPair, ModelStatus, Options, PairResult
from serve.pieces import Hear
from tests.serve.local import LocalBackend

LIMITS = {"image_mib": 1, "body_mib": 4, "image_pixels": 1_000_000}
"""Limits of the tested server."""
SURE = Assessment(0.98, 0.4, True, "changed", None, None)
"""Of a familiar pair whose change is certain."""


@dataclass(frozen=True)
class _Judged(Description):
    """A description with another assessment than its own."""

    judged: Assessment = SURE

    @property
    def assessment(self) -> Assessment:
        return self.judged


@dataclass
class Backend:
    """Two captioners: ``calibrated``, and ``plain`` without a calibration."""

    artifacts: dict[str, str]
    full: bool = False
    """Whether it refuses requests because its queues are full."""
    stuck: bool = False
    """Whether it blocks all requests."""
    assessment: Assessment | None = None
    """Replaces the captioners' own assessments."""
    abilities: Abilities | None = None
    """Replaces those of ``calibrated``."""
    locals: dict[str, LocalBackend] = field(init=False)
    captioners: dict[str, Captioner] = field(init=False)
    """The same artifacts, loaded again for comparison."""

    def __post_init__(self) -> None:
        self.captioners = {name: load_captioner(path) for name, path in self.artifacts.items()}
        self.locals = {name: LocalBackend(path, (name,)) for name, path in self.artifacts.items()}

    def models(self) -> list[ModelStatus]:
        first, *others = (served for local in self.locals.values() for served in local.models())
        return [replace(first, abilities=self.abilities or first.abilities), *others]

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, hear: Hear | None = None
    ) -> list[PairResult]:
        if self.full:
            raise Busy
        while self.stuck:
            await asyncio.sleep(0.01)
        if self.assessment is not None and self.assessment.familiar is False and options.objects == "unfamiliar":
            options = replace(options, objects="always")
        found = await self.locals[model].caption(pairs, model, options, hear)
        if self.assessment is None:
            return found
        values = [vars(one.description) for one in found]
        return [
            replace(one, description=_Judged(**given, judged=self.assessment))
            for one, given in zip(found, values, strict=True)
        ]

    async def ready(self) -> str | None:
        return None

    async def replicas(self) -> dict[str, int]:
        return {"Model": 1}


@dataclass
class Seen:
    """A page, and a record of its errors and requests."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    """Errors and warnings of the browser's console."""
    elsewhere: list[str] = field(default_factory=list)
    """Requests to other addresses."""

    def open(self) -> Page:
        """Load the page and wait for its examples."""

        def record_error(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.errors.append(f"{message.text} {message.location.get('url')}")

        def record_request(request: Request) -> None:
            if not request.url.startswith((f"{self.url}/", "data:", f"blob:{self.url}/")):
                self.elsewhere.append(request.url)

        self.page.on("console", record_error)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", record_request)
        self.page.set_default_timeout(20_000)
        self.page.goto(f"{self.url}/")
        expect(self.page.locator("#examples button")).to_have_count(17)
        return self.page


Visit = Callable[..., AbstractContextManager[Seen]]
"""``visit(url=..., **settings of the browser's context)``."""


def described(backend: Backend, pair: tuple[Path, Path], model: str = "calibrated") -> Description:
    """The description by the artifact itself."""
    before, after = (decode_image(path.read_bytes()) for path in pair)
    return backend.captioners[model].describe([before], [after], candidates=3)[0]


def caption_of(backend: Backend, pair: tuple[Path, Path], model: str = "calibrated") -> str:
    """The caption by the artifact itself."""
    return described(backend, pair, model).best.caption
