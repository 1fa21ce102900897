"""The settings of a served application: the ``args`` of a Serve config file or KubeRay, and of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from idc.captioning.loading import CaptionerLoader, LoadConfig
from idc.captioning.sources import AUTO, REGISTRY, ModelSources
from idc.config import ConfigModel
from idc.training.config import missing_device
from idc.util.loopback import is_loopback
from serve.backend import ModelStatus
from serve.port import SharedPort


class AuthConfig(ConfigModel):
    """Who may send requests: by default this machine alone."""

    tokens: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field({})
    """Name of each client, for the logs -> SHA-256 of its bearer token, in hex (``printf %s TOKEN | sha256sum``); the
    token itself is stored nowhere. Without tokens only requests from localhost are accepted; a cluster needs some."""
    origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/*\s]+$")], ...] = ()
    """Origins of other web pages whose scripts may send requests: ``https://tools.example.org`` (CORS). By default only
    the served page may; programs other than browsers are not affected."""


BODY_COPIES = 4.5
"""Maximal memory of a body relative to its size, in the front: the bytes, their text, the parsed values and the image
files. ``tests/serve/test_command.py`` measures it."""


class LimitsConfig(ConfigModel):
    """Limits of each front; what exceeds them is refused before any work is done on it. The constants bound what one
    request or client may cost."""

    waiting_pairs: int = Field(256, ge=128)
    """Maximal number of accepted, unanswered pairs of all clients; more is answered by 503 with Retry-After. A client
    (a token, without tokens an address) may have half of them; more is answered by 429."""
    timeout_s: float = Field(60.0, gt=0)
    """Seconds until a request is answered by 504, until a body must have arrived, and that an ending replica may work
    on what it has accepted. Must exceed a cold start."""

    pairs: ClassVar[int] = 64  # of a request; always fit into the queue of an idle server
    connections: ClassVar[int] = 1024  # open ones; a further one closes the one idle longest; if none is, it gets 503
    connections_each: ClassVar[int] = 256  # of a client address (in IPv6 of a network of 64 bits)
    waiting_mib: ClassVar[float] = 512.0  # memory for the bodies of unanswered requests; more is answered by 503
    body_mib: ClassVar[float] = 32.0  # of a body; more is answered by 413
    head_kib: ClassVar[float] = 16.0  # of a request's first line and headers; more is answered by 431
    head_s: ClassVar[float] = 10.0  # from a request's first byte, or its connection's opening, to its last header; 408
    image_mib: ClassVar[float] = 16.0  # of an image file
    image_pixels: ClassVar[int] = 25_000_000  # width x height, read from the header before the image is decoded
    image_side: ClassVar[int] = 16_384  # longer side
    image_min_side: ClassVar[int] = 2  # minimum of the shorter side; a single pixel shows no change
    decode_s: ClassVar[float] = 10.0  # processor time of the decoding of an image; one that takes longer is given up
    text_chars: ClassVar[int] = 100_000  # of a conversation
    turns: ClassVar[int] = 100  # of a conversation; messages of one role in a row are one turn
    answer_tokens: ClassVar[int] = 1024  # of an answer to a question; a larger max_tokens counts as this

    @property
    def waiting_bytes(self) -> int:
        """Maximal bytes of unanswered bodies: :attr:`waiting_mib` divided by the copies."""
        return int(self.waiting_mib / BODY_COPIES * 2**20)

    @property
    def waiting_pairs_of_client(self) -> int:
        """Maximal number of unanswered pairs of a client."""
        return self.waiting_pairs // 2


class ScalingConfig(ConfigModel):
    """Replicas of the captioner, and of the front, which holds no model."""

    min_replicas: int = Field(0, ge=0)
    """Minimal number of captioner replicas. 0 frees the machine when idle; the next request waits for a cold start."""
    max_replicas: int = Field(2, gt=0)
    """Maximal number of captioner replicas."""
    cpus: float = Field(1.0, ge=0)
    """CPUs per captioner replica; also the number of torch threads (at least one)."""
    gpus: float = Field(0.0, ge=0)
    """GPUs per captioner replica; above 0 it runs on CUDA."""
    max_pairs: int = Field(16, gt=0)
    """Maximal batch size of a captioner replica, of pairs from several requests; a replica is added when more are in
    flight of each."""
    front_replicas: int = Field(1, gt=0)
    """Number of front replicas."""

    def errors(self) -> Iterator[str]:
        if self.min_replicas > self.max_replicas:
            yield f"min_replicas: {self.min_replicas} is more than max_replicas={self.max_replicas}; lower it"


class ServeConfig(ConfigModel):
    """An application: its models, its clients and its resources."""

    models: dict[str, str]
    """Model name -> its artifact, the first for requests that name none: a folder, ``models:/captioner@champion``,
    ``models:/captioner/7``, ``shipped`` or ``shipped-satellite`` for the captioners that come with the program,
    ``objects``, which needs no training, or ``auto``: for each pair the newest captioner below ``runs/`` with a
    familiarity (else ``shipped``) if it knows both images and ``objects`` does not contradict it, else ``objects``.
    Every replica holds all of them."""
    auth: AuthConfig = AuthConfig()
    """Authentication."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of requests."""
    scaling: ScalingConfig = ScalingConfig()
    """Replicas and their resources."""
    tracking_uri: str | None = None
    """The MLflow registry of ``models:/...`` sources; by default the environment variable MLFLOW_TRACKING_URI."""
    loading: LoadConfig = LoadConfig()
    """How captioners are loaded."""

    def errors(self) -> Iterator[str]:
        if not self.models:
            yield "models: empty; name at least one, as in models.demo=runs/demo/finetune-0/artifact"
        if self.loading.endpoint is not None and AUTO in self.models.values():
            yield "models: auto runs here; with loading.endpoint name an artifact, as in models.vlm=runs/qwen/artifact"

    @property
    def default_model(self) -> str:
        """Name of the model of requests that name none: the first."""
        return next(iter(self.models))

    def unknown_models(self) -> list[ModelStatus]:
        """The models, the default first, before any replica has reported them."""
        return [ModelStatus(name, "unknown") for name in self.models]


class CommandConfig(ServeConfig):
    """``python -m serve.app``: an application and its address on this machine."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all interfaces (with auth.tokens)."""
    port: int = Field(8000, gt=0, lt=65536)
    """Port to listen on."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if not self.auth.tokens and not is_loopback(self.host):
            yield f"host: {self.host!r} needs auth.tokens; without, only requests from localhost are accepted"

    def preflight(self) -> Iterator[str]:
        yield from missing_device("cuda" if self.scaling.gpus else None, "scaling.gpus")
        sources = ModelSources(self.tracking_uri, self.loading.objects)
        for name, source in self.models.items():
            try:
                sources.version(source)
                if not source.startswith(REGISTRY):
                    CaptionerLoader(source, self.loading)  # its base model is here, and the right one
            except ValueError as error:
                yield f"models.{name}: {error}"
        try:
            SharedPort(self.host, self.port).close()
        except ValueError as error:
            yield f"port: {error}"


def absolute_uri(uri: str | None) -> str | None:
    """A tracking URI (by default MLFLOW_TRACKING_URI) that is valid in other folders: SQLite by its absolute path."""
    uri, start = uri or os.environ.get("MLFLOW_TRACKING_URI"), "sqlite:///"
    return f"{start}{Path(uri.removeprefix(start)).resolve()}" if uri is not None and uri.startswith(start) else uri
