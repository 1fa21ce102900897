"""The settings of a served application: what ``build(args)`` takes, from the command line, a Serve file or KubeRay."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from idc.captioning.loading import LoadConfig
from idc.config import ConfigModel
from serve.registry import SCHEME, Resolver

LISTENER_LIMITS = "IDC_SERVE_LIMITS"
"""Environment variable with the :class:`LimitsConfig` of a node's HTTP listener, as JSON; what it leaves out has its
default. Listeners start before applications and do not see their settings."""


class TokenConfig(ConfigModel):
    """Somebody who may ask."""

    name: str
    """Who it is; stands in the logs."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the token, in hex: ``printf %s TOKEN | sha256sum``. The token itself is stored nowhere."""


class AuthConfig(ConfigModel):
    """Who may ask."""

    mode: Literal["token", "loopback"] = "token"
    """``token``: whoever sends a bearer token of the list. ``loopback``: anybody on this machine and nobody else."""
    tokens: tuple[TokenConfig, ...] = ()
    """Those who may ask."""
    origins: tuple[Annotated[str, Field(pattern=r"^https?://[^/*\s]+$")], ...] = ()
    """Origins of other web pages whose scripts may ask, too: ``https://tools.example.org`` (CORS). By default browsers
    may ask from the served page alone; programs are not concerned."""

    def faults(self) -> Iterator[str]:
        if self.mode == "token" and not self.tokens:
            yield "tokens: give at least one, or mode=loopback to serve this machine alone"
        if self.mode == "loopback" and self.tokens:
            yield "tokens: mode=loopback asks for none; leave them out, or take mode=token"


_BODY_COPIES = 3.0
"""Memory of a body over its size, at most: on its way from the proxy to the front, and in the front as text, as parsed
values and as image files. ``tests/serve/attacks.py`` measures it."""


class LimitsConfig(ConfigModel):
    """What is refused before any work is done on it."""

    head_kib: float = Field(16.0, gt=0)
    """Size of a request's first line and headers; more is answered by 431."""
    head_lines: int = Field(100, gt=0)
    """Number of a request's headers; more is answered by 431."""
    head_s: float = Field(10.0, gt=0)
    """Seconds from the first byte of a request, or from the opening of a connection, until all headers must have
    arrived; then 408."""
    connections: int = Field(1024, gt=0)
    """Open connections of everybody. For one more, the one that has been idle longest is closed; if all have a request
    under way, the new one is answered by 503."""
    connections_each: int = Field(256, gt=0)
    """The same of one address (of an IPv6 network of 64 bits). Not applied behind HAProxy."""
    body_mib: float = Field(32.0, gt=0)
    """A request's size; more is answered by 413."""
    image_mib: float = Field(16.0, gt=0)
    """An encoded image's size."""
    image_pixels: int = Field(25_000_000, gt=0)
    """Width x height of an image, read from its header before it is decoded."""
    image_side: int = Field(16_384, gt=0)
    """Longer side of an image."""
    image_min_side: int = Field(2, gt=0)
    """Shorter side of an image; a picture of one pixel shows no change."""
    pairs: int = Field(64, gt=0)
    """Pairs in a request."""
    json_depth: int = Field(32, gt=0)
    """Nested brackets of a JSON body."""
    candidates: int = Field(8, gt=0)
    """Candidates a pair."""
    beams: int = Field(8, gt=0)
    """Beams of a search."""
    waiting_pairs: int = Field(256, gt=0)
    """Pairs taken and not answered yet, of everybody; above it 503 with Retry-After."""
    waiting_pairs_each: int = Field(128, gt=0)
    """The same of one token (or, without tokens, of one address); above it 429 with Retry-After."""
    waiting_mib: float = Field(512.0, gt=0)
    """Memory for the bodies of requests not answered yet, of everybody, in the HTTP proxy and the front together; above
    it 503 with Retry-After. A body takes up to 3 times its size there (measured: BENCHMARKS.md, attacks)."""
    timeout_s: float = Field(60.0, gt=0)
    """Until a request is answered by 504, and until a body must have come. Must be longer than a cold start."""
    fetch_hosts: tuple[str, ...] = ()
    """Hosts (``images.example.org``) from which images named by https URL are fetched; by default none."""
    fetch_timeout_s: float = Field(10.0, gt=0)
    """Until a fetch is given up."""

    def faults(self) -> Iterator[str]:
        if self.waiting_mib < (least := _BODY_COPIES * self.body_mib):
            found = f"{self.waiting_mib:g} holds no body of body_mib={self.body_mib:g}"
            yield f"waiting_mib: {found}; give at least {least:g}"

    @property
    def waiting_bytes(self) -> int:
        """Bytes of bodies that may wait: :attr:`waiting_mib` without the copies."""
        return int(self.waiting_mib / _BODY_COPIES * 2**20)


class BatchingConfig(ConfigModel):
    """Pairs of several requests that go through the model together."""

    max_pairs: int = Field(16, gt=0)
    """Pairs of a batch."""
    wait_ms: float = Field(5.0, ge=0)
    """How long a pair waits for others."""


class ScalingConfig(ConfigModel):
    """Replicas of the captioner; the front, which holds no model, has its own."""

    min_replicas: int = Field(0, ge=0)
    """0 frees the machine when nobody asks; the first request then waits for a cold start."""
    max_replicas: int = Field(2, gt=0)
    """As many as there may be."""
    target_pairs: float = Field(16.0, gt=0)
    """Pairs under way a replica that are aimed at: above it replicas are added, below it removed. Pairs that one
    request brings count as one, up to batching.max_pairs of them."""
    upscale_delay_s: float = Field(2.0, ge=0)
    """How long it must be so before one is added."""
    downscale_delay_s: float = Field(60.0, ge=0)
    """How long it must be so before one is removed."""
    cpus: float = Field(1.0, ge=0)
    """CPUs of a replica; torch takes as many threads (at least one)."""
    gpus: float = Field(0.0, ge=0)
    """GPUs of a replica; above 0 it runs on CUDA."""
    models_each: int = Field(3, gt=0)
    """Models that a replica holds at once; the one not asked for longest gives way."""
    front_replicas: int = Field(1, gt=0)
    """Replicas of the front."""
    front_cpus: float = Field(0.0, ge=0)
    """CPUs of a front replica, for Ray's bookkeeping."""
    surge_percent: int = Field(50, ge=0, le=100)
    """Replicas that a redeployment may start beside those that run, so that none ends before another takes over; it
    then waits for room. 0, where there never is any, ends one first, and its requests wait for the next."""
    drain_s: float = Field(60.0, gt=0)
    """How long a replica that is to end may work on the requests it has accepted; at least limits.timeout_s."""

    def faults(self) -> Iterator[str]:
        if self.min_replicas > self.max_replicas:
            yield f"min_replicas: {self.min_replicas} is more than max_replicas={self.max_replicas}"


class RegistryConfig(ConfigModel):
    """Where ``models:/...`` sources are looked up."""

    tracking_uri: str | None = None
    """MLflow's; by default MLFLOW_TRACKING_URI."""
    poll_s: float = Field(10.0, gt=0)
    """How often an alias is looked up again; a new champion serves at most that much later, once it is loaded."""
    cache: str | None = None
    """Folder for downloaded artifacts; by default one in the system's folder for temporary files."""


class ServeConfig(ConfigModel):
    """An application: its models, who may ask, and what it may cost."""

    models: dict[str, str]
    """Name -> where the artifact is: a folder, ``models:/captioner@champion`` or ``models:/captioner/7``."""
    default: str | None = None
    """The model of requests that name none; by default the first."""
    auth: AuthConfig
    """Who may ask; there is no default, so that nothing is open by accident."""
    limits: LimitsConfig = LimitsConfig()
    """What is refused."""
    batching: BatchingConfig = BatchingConfig()
    """What goes through the model together."""
    scaling: ScalingConfig = ScalingConfig()
    """Replicas."""
    registry: RegistryConfig = RegistryConfig()
    """The MLflow registry."""
    loading: LoadConfig = LoadConfig()
    """How captioners are loaded."""

    def faults(self) -> Iterator[str]:
        if not self.models:
            yield "models: name at least one, as in models.demo=runs/demo/finetune-0/artifact"
        if self.default is not None and self.default not in self.models:
            yield f"default: {self.default!r} is none of the models ({', '.join(self.models)})"
        drain_s, timeout_s = self.scaling.drain_s, self.limits.timeout_s
        if drain_s < timeout_s:
            yield (
                f"scaling.drain_s: {drain_s:g} is less than limits.timeout_s={timeout_s:g}: a replica that is to end "
                f"would drop requests that it has accepted; set scaling.drain_s={timeout_s:g} or more"
            )

    @property
    def default_model(self) -> str:
        """The name of the model of requests that name none."""
        return self.default or next(iter(self.models))


def is_loopback(address: str | None) -> bool:
    """Whether an address is of this machine itself: 127.0.0.0/8, ::1, and the former written as IPv6."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return address == "localhost"
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


class CommandConfig(ServeConfig):
    """``python -m serve.app``: an application, and where this machine serves it."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all (with auth.mode=token)."""
    port: int = Field(8000, gt=0, lt=65536)
    """Port to listen on."""
    haproxy: bool = False
    """Let HAProxy, which comes with Ray, take the connections instead of Ray's own proxy: several times faster."""
    verbose: bool = False
    """Print the log, too: JSON lines, one a request and one for each line that Ray's processes write. Without it only
    failures are printed, on the standard error."""
    num_cpus: int | None = Field(None, ge=1)
    """CPUs a local Ray counts with. Default: the machine's, but at least 4, because Ray's small helpers count too."""

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.auth.mode == "loopback" and not is_loopback(self.host):
            yield (
                f"host: auth.mode=loopback serves this machine alone, not {self.host!r}; take host=127.0.0.1, or "
                "auth.mode=token with tokens"
            )

    def preflight(self) -> Iterator[str]:
        resolver = Resolver(self.registry.tracking_uri)
        for name, source in self.models.items():
            if not source.startswith(SCHEME) and not (Path(source) / "config.json").exists():
                yield f"models.{name}: no artifact at {source!r}; run `make demo` first, or name another folder"
                continue
            try:
                resolver.resolve(source)
            except ValueError as error:
                yield f"models.{name}: {error}"
        if self.auth.mode == "loopback" and os.environ.get("RAY_ADDRESS"):
            yield "auth.mode: others reach the cluster at RAY_ADDRESS; unset it, or take mode=token with tokens"
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                where = f"{self.host}:{self.port}"
                yield f"port: cannot listen on {where} ({error.strerror}); try port={self.port + 1}"
