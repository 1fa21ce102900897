"""The complete HTTP application over captioners in this process, without Ray."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import httpx2
from starlette.types import ASGIApp

import idc
from idc.captioning.loading import DEFAULTS, LoadConfig
from idc.captioning.sources import ModelSources
from idc.data.images import decode_image
from serve.api import create_api
from serve.backend import EncodedPair, ModelStatus, Options, PairResult, TextCallback
from serve.captioner import ServedCaptioner
from serve.config import LimitsConfig, ServeConfig
from serve.decoding import DecodedPair, Decoders
from serve.gate import Drain
from serve.listener import Connections, limited_server
from tests.serve.bodies import Pair
from tests.serve.waiting import PATIENCE_S

TOKEN = "the-token-of-a-test"
HELD = 41


def tokens_of(**tokens: str) -> dict[str, str]:
    """``auth.tokens`` that accepts these tokens, each of the client that has its name."""
    return {name: hashlib.sha256(token.encode()).hexdigest() for name, token in tokens.items()}


def local_config(models: Mapping[str, str], **sections: object) -> ServeConfig:
    """A config for this machine alone."""
    return ServeConfig.model_validate({"models": dict(models), **sections})


@cache
def loaded(source: str) -> idc.LoadedCaptioner:
    return idc.load(source)


def described(source: str, *pairs: Pair, **options: Any) -> list[idc.Caption]:
    """What the interface of Python says of pairs, in one batch."""
    before, after = ([decode_image(file) for file in files] for files in zip(*pairs, strict=True))
    return loaded(source)(before, after, **options)


class LocalBackend:
    """Captioners, each loaded when it is first asked (the first model at once); they caption in a thread, one request
    at a time. A pair whose image before is :data:`HELD` pixels wide waits until a test has set ``go_on``.

    Attributes:
        asked: released for each call that is held.
        cancelled: set if one is cancelled.
    """

    def __init__(self, models: Mapping[str, str], load: LoadConfig = DEFAULTS):
        self.sources, self._load, self.captioners = models, load, dict[str, ServedCaptioner]()
        self._versions = {name: ModelSources().version(source) for name, source in models.items()}
        self._thread, self._decoders = ThreadPoolExecutor(1), Decoders(2, 60)
        self.go_on, self.cancelled, self.asked = threading.Event(), threading.Event(), threading.Semaphore(0)
        self.captioner(next(iter(models)))

    def captioner(self, model: str) -> ServedCaptioner:
        if model not in self.captioners:
            self.captioners[model] = ServedCaptioner(self.sources[model], self._load)
        return self.captioners[model]

    async def models(self) -> list[ModelStatus]:
        return [
            loaded.status(name, version) if loaded else ModelStatus(name, version)
            for name, version in self._versions.items()
            for loaded in [self.captioners.get(name)]
        ]

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, on_text: TextCallback | None = None
    ) -> list[PairResult]:
        captioner, loop = self.captioner(model), asyncio.get_running_loop()
        if reason := captioner.unsupported(options):
            raise ValueError(reason)
        if int.from_bytes(pairs[0].before[16:20], "big") == HELD:  # of a PNG
            self.asked.release()
            try:
                await asyncio.to_thread(self.go_on.wait, 60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        heard = None if on_text is None else partial(loop.call_soon_threadsafe, on_text)
        decoded = [(await self._decoders.pair(pair))._replace(on_text=heard) for pair in pairs]
        results = await loop.run_in_executor(self._thread, captions_of, captioner, decoded, options)
        return [replace(result, version=self._versions[model]) for result in results]

    async def ready(self) -> str | None:
        return None


def captions_of(captioner: ServedCaptioner, pairs: Sequence[DecodedPair], options: Options) -> list[PairResult]:
    """The results of a captioner, with what ``objects`` says of them."""
    return [
        captioner.add_objects([item], options)[0] if captioner.lacks_objects(item[1], options) else item[1]
        for item in zip(pairs, captioner.caption(pairs, options), strict=True)
    ]


@contextmanager
def serving(api: ASGIApp, connections: Connections | None = None) -> Iterator[str]:
    """The application behind :mod:`serve.listener` on a free port; yields its address, ``http://127.0.0.1:PORT``."""
    server = limited_server(api, connections or Connections(LimitsConfig()), host="127.0.0.1", port=0)
    started, startup = threading.Event(), server.startup

    async def report_start(sockets: object = None) -> None:
        await startup()
        started.set()

    server.startup = report_start  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)  # one that hangs does not keep the process
    thread.start()
    try:
        assert started.wait(60), "uvicorn did not start"
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        server.force_exit = True  # without the requests that do not end
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def client_of(
    backend: LocalBackend, drain: Drain | None = None, token: str | None = None, **sections: object
) -> Iterator[httpx2.Client]:
    """A client of the application over a backend."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with (
        serving(create_api(local_config(backend.sources, **sections), backend, drain)) as address,
        httpx2.Client(base_url=address, timeout=60, headers=headers) as client,
    ):
        yield client
