"""The complete HTTP application over a captioner in this process, without Ray."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from starlette.types import ASGIApp

from idc.captioning.loading import DEFAULTS, LoadConfig
from serve.backend import EncodedPair, ModelStatus, Options, PairResult
from serve.captioner import ServedCaptioner
from serve.config import LimitsConfig, ServeConfig
from serve.decoding import DecodedPair, Decoders
from serve.listener import Connections, limited_server
from serve.pieces import Hear
from serve.versions import Resolver

TOKEN = "the-token-of-a-test"
HELD = 40


def tokens_of(**tokens: str) -> dict[str, str]:
    """``auth.tokens`` that accepts these tokens, each of the client that has its name."""
    return {name: hashlib.sha256(token.encode()).hexdigest() for name, token in tokens.items()}


def local_config(artifact: str, **sections: object) -> ServeConfig:
    """A config for this machine with one model, called ``demo``."""
    values = {"models": {"demo": artifact}, **sections}
    return ServeConfig.model_validate(values)


class LocalBackend:
    """One artifact under several model names; it captions in a thread, one request at a time."""

    def __init__(self, artifact: str, names: tuple[str, ...] = ("demo",), load: LoadConfig = DEFAULTS):
        self._artifact, self._names = artifact, names
        self._captioner = ServedCaptioner(artifact, load)
        self._version = Resolver().resolve(artifact)
        self._thread, self._decoders = ThreadPoolExecutor(1), Decoders(2, 60)

    async def models(self) -> list[ModelStatus]:
        capabilities = self._captioner.capabilities
        return [ModelStatus(name, self._version, capabilities=capabilities) for name in self._names]

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, on_text: Hear | None = None
    ) -> list[PairResult]:
        if reason := self._captioner.unsupported(options):
            raise ValueError(reason)
        loop = asyncio.get_running_loop()
        heard = None if on_text is None else partial(loop.call_soon_threadsafe, on_text)
        decoded = [(await self._decoders.pair(pair))._replace(on_text=heard) for pair in pairs]
        results = await loop.run_in_executor(self._thread, self._captioner.caption, decoded, options)
        return [replace(result, version=self._version) for result in results]

    async def ready(self) -> str | None:
        return None


class HeldBackend(LocalBackend):
    """Captions pairs whose image before is :data:`HELD` pixels wide only after a test has set ``go_on``.

    Attributes:
        asked: released for each such call.
        cancelled: set if one is cancelled.
    """

    def __init__(self, artifact: str):
        super().__init__(artifact)
        self.go_on, self.cancelled, self.asked = threading.Event(), threading.Event(), threading.Semaphore(0)

    async def caption(
        self, pairs: list[EncodedPair], model: str, options: Options, on_text: Hear | None = None
    ) -> list[PairResult]:
        if int.from_bytes(pairs[0].before[16:20], "big") == HELD:  # of a PNG
            self.asked.release()
            try:
                await asyncio.to_thread(self.go_on.wait, 60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return await super().caption(pairs, model, options, on_text)


def caption(captioner: ServedCaptioner, pairs: Sequence[EncodedPair], options: Sequence[Options]) -> list[PairResult]:
    """What a served captioner says of image files; those with equal options are one batch."""

    async def decoded() -> list[DecodedPair]:
        decoders = Decoders(2, 60)
        return [await decoders.pair(pair) for pair in pairs]

    images = asyncio.run(decoded())
    results: dict[int, PairResult] = {}
    for option in set(options):
        same = [index for index, other in enumerate(options) if other == option]
        results |= zip(same, captioner.caption([images[index] for index in same], option), strict=True)
    return [results[index] for index in range(len(pairs))]


@contextmanager
def serving(api: ASGIApp, connections: Connections | None = None) -> Iterator[str]:
    """The application behind :mod:`serve.listener` on a free port; yields its address, ``http://127.0.0.1:PORT``."""
    server = limited_server(api, connections or Connections(LimitsConfig()), host="127.0.0.1", port=0)
    started = threading.Event()
    startup = server.startup

    async def report_start(sockets: object = None) -> None:
        await startup()
        started.set()

    server.startup = report_start  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(60), "uvicorn did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
