"""The served page with two small captioners behind it, and a browser's visits to it."""

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
from serve.schema import Abilities, Busy, Captioned, EncodedPair, Options, Served
from tests.serve.local import LocalBackend

LIMITS = {"image_mib": 1, "body_mib": 4, "image_pixels": 1_000_000}
"""Of the server that is visited."""


@dataclass
class Backend:
    """Two captioners side by side: ``imagining`` and, of weights without that part, ``plain``."""

    artifacts: dict[str, str]
    full: bool = False
    """Whether it takes no more."""
    stuck: bool = False
    """Whether it does not answer."""
    assessment: Assessment | None = None
    """In place of the captioners' own."""
    abilities: Abilities | None = None
    """In place of those of ``imagining``."""
    locals: dict[str, LocalBackend] = field(init=False)
    captioners: dict[str, Captioner] = field(init=False)
    """The same artifacts again, to hold the answers against."""

    def __post_init__(self) -> None:
        self.captioners = {name: load_captioner(path) for name, path in self.artifacts.items()}
        self.locals = {name: LocalBackend(path, (name,)) for name, path in self.artifacts.items()}

    def models(self) -> list[Served]:
        first, *others = (served for local in self.locals.values() for served in local.models())
        return [replace(first, abilities=self.abilities or first.abilities), *others]

    async def caption(self, pairs: list[EncodedPair], model: str, options: Options) -> list[Captioned]:
        if self.full:
            raise Busy
        while self.stuck:
            await asyncio.sleep(0.01)
        found = await self.locals[model].caption(pairs, model, options)
        return [replace(one, assessment=self.assessment or one.assessment) for one in found]

    async def ready(self) -> str | None:
        return None

    async def replicas(self) -> dict[str, int]:
        return {"Model": 1}


@dataclass
class Seen:
    """A page, and what it did."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    """What the browser's console complains of."""
    elsewhere: list[str] = field(default_factory=list)
    """Requests to anywhere else."""

    def open(self) -> Page:
        """The page, its examples drawn."""

        def told(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.errors.append(f"{message.text} {message.location.get('url')}")

        def asked(request: Request) -> None:
            if not request.url.startswith((f"{self.url}/", "data:", f"blob:{self.url}/")):
                self.elsewhere.append(request.url)

        self.page.on("console", told)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", asked)
        self.page.set_default_timeout(20_000)
        self.page.goto(f"{self.url}/")
        expect(self.page.locator("#examples button")).to_have_count(5)
        return self.page


Visit = Callable[..., AbstractContextManager[Seen]]
"""``visit(url=..., **settings of the browser's context)``."""


def described(backend: Backend, pair: tuple[Path, Path], model: str = "imagining") -> Description:
    """What the artifact itself tells."""
    before, after = (decode_image(path.read_bytes()) for path in pair)
    return backend.captioners[model].describe([before], [after], candidates=3)[0]


def told(backend: Backend, pair: tuple[Path, Path], model: str = "imagining") -> str:
    """Its caption."""
    return described(backend, pair, model).best.caption
