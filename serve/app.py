"""Captions over HTTP on Ray Serve: ``build(args)`` makes the application of a :class:`~serve.config.ServeConfig`.

    python -m serve.app                                          # the demo's model on http://127.0.0.1:8000
    python -m serve.app models.demo=runs/my-run/artifact port=8001
    serve deploy serve/configs/production.yaml                   # on a running cluster; KubeRay takes the same file

Two deployments: ``Front`` answers HTTP (``serve/api.py``) and holds no model; ``Model`` replicas hold captioners and
come and go with the load. Ray Serve ignores settings of a deployment that it does not know; ours are all in ``args``
and checked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.config import ConfigError, cli, enter_root, load, refuse
from serve.batching import Batcher
from serve.config import LISTENER_LIMITS, CommandConfig, ServeConfig
from serve.drain import Drain
from serve.log import Once, forward, log
from serve.memory import return_large_blocks
from serve.proxy import has_stopped, stop_listening
from serve.registry import NO_REGISTRY, SCHEME, Resolver, absolute_uri, public_name
from serve.schema import Abilities, Busy, Captioned, EncodedPair, Options, Served

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application
    from ray.serve.handle import DeploymentHandle

    from serve.captioner import Decoded, ServedCaptioner

APPLICATION = "captions"
"""Its name in Serve, as `python -m serve.app` deploys it."""
DEMO = Path(__file__).parent / "configs" / "demo.yaml"
_RETRY_POLLS = 10
"""A version that could not be loaded is tried again after so many polls."""
_CLOSE_S = 5.0
"""How long the listener may take to send the rest of the answers to slow clients, after all requests are answered."""
_PROXY = "SERVE_PROXY_ACTOR"
"""How the names of Serve's listeners begin."""
_SEE_LOG = "the server's log says why"
_STATUS_S = 1.0
"""How long what Serve's controller said about replicas is taken for true."""


def build(args: dict[str, Any]) -> Application:
    """The application of the settings ``args``, nested or dotted, as a Serve config file and ``serve run`` give them.

    Raises:
        ConfigError: with every fault of the settings.
    """
    try:
        config = load(ServeConfig, overrides=args)
    except ConfigError as error:
        raise ConfigError([f"args of serve.app:build: {fault}" for fault in error.faults]) from None
    for name, source in config.models.items():
        if source.startswith(SCHEME) and absolute_uri(config.registry.tracking_uri) is None:
            raise ConfigError([f"args of serve.app:build: models.{name}: {NO_REGISTRY}"])
    if config.auth.mode == "loopback" and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        # All connections would come from HAProxy, which is on this machine.
        raise ConfigError(
            ["args of serve.app:build: auth.mode=loopback cannot tell who asks behind HAProxy; use tokens"]
        )
    return application(config)


def application(config: ServeConfig) -> Application:
    """As :func:`build`, of settings that were checked."""
    from ray import serve

    limits, scaling = config.limits, config.scaling
    common: dict[str, Any] = {
        "graceful_shutdown_timeout_s": scaling.drain_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "max_surge_percent": scaling.surge_percent,
        # The front writes a line a request by itself.
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }
    model = serve.deployment(
        Model,
        name="Model",
        ray_actor_options={"num_cpus": scaling.cpus, "num_gpus": scaling.gpus},
        # One batch in the model, one that fills, and room so that the next is there in time.
        max_ongoing_requests=3 * config.batching.max_pairs,
        max_queued_requests=limits.waiting_pairs,
        autoscaling_config={
            "min_replicas": scaling.min_replicas,
            # One at the start in any case: an artifact that cannot be loaded is to fail the deployment, not a request.
            "initial_replicas": max(1, scaling.min_replicas),
            "max_replicas": scaling.max_replicas,
            "target_ongoing_requests": scaling.target_pairs,
            "upscale_delay_s": scaling.upscale_delay_s,
            "downscale_delay_s": scaling.downscale_delay_s,
            "metrics_interval_s": 1.0,
            "look_back_period_s": max(2.0, min(30.0, scaling.upscale_delay_s)),
        },
        **common,
    )
    most = 2 * limits.waiting_pairs + 64  # what is too much is to be refused by the front itself, with a reason
    front = serve.deployment(
        serve.ingress()(Front),
        name="Front",
        num_replicas=scaling.front_replicas,
        ray_actor_options={"num_cpus": scaling.front_cpus},
        max_ongoing_requests=most,
        max_queued_requests=most,
        backpressure_config={"status_code": 503, "retry_after_s": 1},
        **common,
    )
    return front.bind(config, model.bind(config))  # type: ignore[attr-defined]  # Ray's decorators


class Model:
    """A replica that captions: the models last asked for, one batch at a time."""

    async def __init__(self, config: ServeConfig):  # type: ignore[misc]  # Ray awaits it
        from ray import serve

        enter_root()
        _listen_on_the_nodes_address()
        self._config = config
        self._resolver = Resolver(config.registry.tracking_uri)
        self._threads = ThreadPoolExecutor(max(2, round(config.scaling.cpus)), thread_name_prefix="decode")
        self._batcher: Batcher[tuple[ServedCaptioner, Options], Decoded, Captioned] = Batcher(
            _run, config.batching.max_pairs, config.batching.wait_ms / 1000
        )

        # Multiplexing keeps the models last used, and tells the fronts which replica has which.
        @serve.multiplexed(max_num_models_per_replica=config.scaling.models_each)
        async def load_captioner(version: str) -> ServedCaptioner:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._load, version)

        self._captioner = load_captioner
        await self._preload()

    async def _preload(self) -> None:
        """Load what the config names, so that the fronts know this replica as one that has it.

        Raises:
            ValueError: nothing of it can be loaded.
        """
        faults = []
        sources = list(self._config.models.items())[: self._config.scaling.models_each]
        for name, source in sources:
            try:
                await self._captioner(await asyncio.to_thread(self._resolver.resolve, source))
            except ValueError as error:
                faults.append(f"models.{name}: {error}")
                log(event="model_failed", model=name, error=str(error))
        if len(faults) == len(sources):
            raise ValueError("\n".join(faults))

    def _load(self, version: str) -> ServedCaptioner:
        from serve.captioner import ServedCaptioner

        scaling = self._config.scaling
        folder = self._resolver.fetch(version, self._config.registry.cache)
        threads = max(1, int(scaling.cpus))
        return ServedCaptioner(str(folder), self._config.loading, scaling.gpus, threads)

    async def warm(self, version: str) -> Abilities | str:
        """Load a version. Returns what it can do, or why it cannot be loaded."""
        try:
            return (await self._captioner(version)).abilities  # type: ignore[no-any-return]  # Ray's decorator
        except Exception as error:  # whatever is wrong with a new version, the old one goes on serving
            return f"{type(error).__name__}: {error}"

    async def caption(self, version: str, pairs: list[EncodedPair], options: Options) -> list[Captioned] | str:
        """The pairs' captions, at most ``batching.max_pairs`` of them; a text if the model cannot do that.

        Raises:
            Busy: the version cannot be loaded.
        """
        if isinstance(reason := await self.warm(version), str):
            log(event="model_failed", version=version, error=reason)
            raise Busy(f"{public_name(version)} cannot be loaded; {_SEE_LOG}")
        captioner = await self._captioner(version)
        if reason := captioner.unsupported(options):
            return str(reason)
        loop = asyncio.get_running_loop()
        decoded = await loop.run_in_executor(self._threads, lambda: [captioner.decode(pair) for pair in pairs])
        return await self._batcher.submit((captioner, options), decoded)

    async def check_health(self) -> None:
        """A batch that never ends makes Serve replace this replica."""
        since, most = self._batcher.running_since, 2 * self._config.limits.timeout_s
        if since is not None and asyncio.get_running_loop().time() - since > most:
            raise RuntimeError(f"a batch has been running for more than {most:g} s")


def _run(key: tuple[ServedCaptioner, Options], pairs: list[Decoded]) -> list[Captioned]:
    captioner, options = key
    return captioner.caption(pairs, [options] * len(pairs))


class Front:
    """A replica that answers HTTP; see :func:`serve.api.create_api`."""

    async def __init__(self, config: ServeConfig, model: DeploymentHandle):  # type: ignore[misc]  # Ray awaits it
        enter_root()
        return_large_blocks()
        _listen_on_the_nodes_address()
        logging.getLogger("ray.serve").addFilter(Once())
        self._config = config
        self._drain = Drain()
        self._replicas = Replicas(config, model)
        await self._replicas.refresh()
        self._watching = asyncio.create_task(self._replicas.watch())

    def __serve_build_asgi_app__(self) -> FastAPI:
        from serve.api import create_api

        return create_api(self._config, self._replicas, self._drain)

    async def drain(self) -> int:
        """Refuse new requests and answer those under way; returns how many are left after ``scaling.drain_s``."""
        return await self._drain.finish(self._config.scaling.drain_s)


class Replicas:
    """The ``Model`` replicas as a :class:`~serve.schema.Backend`, and which version each name stands for."""

    def __init__(self, config: ServeConfig, handle: DeploymentHandle):
        self._config, self._handle = config, handle
        self._resolver = Resolver(config.registry.tracking_uri)
        self._served = {
            name: Served(name, "unknown", error="not looked up yet")
            for name in sorted(config.models, key=lambda name: name != config.default_model)
        }
        self._versions: dict[str, str] = {}
        """Name -> the version that serves, as :meth:`Resolver.resolve` gives it."""
        self._handles: dict[str, DeploymentHandle] = {}
        self._not_before: dict[str, float] = {}
        """Version -> when it may be tried again."""
        self._asked: dict[str, asyncio.Task[None]] = {}
        """Name -> the question what its version can do."""
        self._status: tuple[float, dict[str, Any]] = (0.0, {})

    def models(self) -> list[Served]:
        return list(self._served.values())

    async def caption(self, pairs: list[EncodedPair], model: str, options: Options) -> list[Captioned]:
        version, size = self._versions[model], self._config.batching.max_pairs
        if len(pairs) <= size:
            return await self._piece(version, pairs, options)
        pieces = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        tasks = [asyncio.ensure_future(self._piece(version, piece, options)) for piece in pieces]
        try:
            return [one for piece in await asyncio.gather(*tasks) for one in piece]
        finally:
            for task in tasks:  # of those that are left, if one of them failed or the caller went away
                task.cancel()

    async def _piece(self, version: str, pairs: list[EncodedPair], options: Options) -> list[Captioned]:
        from ray.exceptions import RayActorError, RayTaskError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        again = True
        while True:
            response = self._handle_for(version).caption.remote(version, pairs, options)
            try:
                found: list[Captioned] | str = await response
            except RayActorError as error:  # the replica died or cannot be reached; another one does it as well, once
                if not again:
                    raise Busy("the replicas that were asked died; ask again") from error
                again = False
                continue
            except BackPressureError as error:
                raise Busy from error
            except DeploymentUnavailableError as error:
                raise Busy("the captioner's replicas cannot be started; Serve's status and log say why") from error
            except RayTaskError as error:
                if isinstance(error.cause, Busy):
                    raise error.cause from None
                raise
            except asyncio.CancelledError:
                response.cancel()
                raise
            if isinstance(found, str):
                raise ValueError(found)
            return found

    def _handle_for(self, version: str) -> DeploymentHandle:
        """A handle whose calls go to replicas that have the version already, if there are such."""
        if version not in self._handles:
            self._handles[version] = self._handle.options(multiplexed_model_id=version)
        return self._handles[version]

    async def watch(self) -> None:
        """Look up all names again and again, for ever."""
        while True:
            await asyncio.sleep(self._config.registry.poll_s)
            try:
                await self.refresh()
            except Exception:  # whatever it is, what serves now goes on, and the next look may work
                log(event="refresh_failed", failure=traceback.format_exc())

    async def refresh(self) -> None:
        """Look up what every name stands for now. A new version is loaded by the replicas before it serves."""
        for name, source in self._config.models.items():
            serving = self._versions.get(name)
            try:
                version = await asyncio.to_thread(self._resolver.resolve, source)
            except ValueError as error:
                # What served until now still can.
                field = "error" if serving is None else "newer_error"
                self._note(name, str(error), **{field: f"{name} cannot be looked up; {_SEE_LOG}"})
                continue
            shown = public_name(version)
            if serving is None:  # the first time: replicas load by themselves what the config names
                self._versions[name] = version
                self._note(name, version=shown, error=None)
            elif version == serving:
                self._note(name, newer_error=None)
            elif self._not_before.get(version, 0.0) <= time.monotonic():
                try:
                    abilities = await self._warm(version)
                    self._versions[name] = version
                    self._note(name, version=shown, newer_error=None, abilities=abilities)
                except ValueError as error:
                    self._not_before[version] = time.monotonic() + _RETRY_POLLS * self._config.registry.poll_s
                    self._note(name, str(error), newer_error=f"{shown} cannot be served; {_SEE_LOG}")
                except Busy as error:  # the next look tries again
                    self._note(name, str(error), newer_error=f"{shown} is not served yet; {_SEE_LOG}")
        for name, version in self._versions.items():
            if self._served[name].abilities is None and name not in self._asked:
                self._asked[name] = asyncio.create_task(self._learn(name, version))
        current = set(self._versions.values())
        self._handles = {version: handle for version, handle in self._handles.items() if version in current}

    async def _learn(self, name: str, version: str) -> None:
        """Ask a replica what a version can do; not awaited by :meth:`refresh`, as the replica may still be starting."""
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            found = await self._handle_for(version).warm.remote(version)
            if isinstance(found, Abilities) and self._versions[name] == version:
                self._served[name] = replace(self._served[name], abilities=found)
        except (RayError, RayServeException):
            pass  # the next refresh asks again
        finally:
            del self._asked[name]

    def _note(self, name: str, why: str | None = None, **changes: Any) -> None:
        """Change what clients see of a model; the log, and only the log, also has ``why``."""
        before, after = self._served[name], replace(self._served[name], **changes)
        if after != before:
            self._served[name] = after
            log(event="model", model=name, version=after.version, error=why)

    async def _warm(self, version: str) -> Abilities:
        """Have every replica load a version; one is started if there is none. Returns what it can do.

        Raises:
            ValueError: it cannot be loaded.
            Busy: a replica went away while it loaded.
        """
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            try:
                found = await self._handle.broadcast("warm", version).results_async()
            except RayServeException:  # there is no replica
                found = [await self._handle_for(version).warm.remote(version)]
        except (RayError, RayServeException) as error:
            raise Busy(f"{type(error).__name__} while it was loaded") from error
        if reason := next((one for one in found if isinstance(one, str)), None):
            raise ValueError(reason)
        return found[0]  # type: ignore[no-any-return]

    async def ready(self) -> str | None:
        served = self.models()
        if all(model.error is not None for model in served):
            return "; ".join(f"{model.name}: {model.error}" for model in served)
        status = (await self._deployments()).get("Model")
        if status is not None and status.status in ("UNHEALTHY", "DEPLOY_FAILED"):
            return "the captioner's replicas fail; Serve's status and log say why"
        if self._config.scaling.min_replicas > 0 and not (await self.replicas()).get("Model"):
            return "no replica of the captioner runs yet"
        return None

    async def replicas(self) -> dict[str, int]:
        deployments = await self._deployments()
        return {name: status.replica_states.get("RUNNING", 0) for name, status in deployments.items()}

    async def _deployments(self) -> dict[str, Any]:
        """What Serve's controller says of our deployments, by name."""
        from ray import serve

        at, deployments = self._status
        if time.monotonic() - at > _STATUS_S:
            name = serve.get_replica_context().app_name
            applications = (await asyncio.to_thread(serve.status)).applications
            deployments = dict(applications[name].deployments) if name in applications else {}
            self._status = (time.monotonic(), deployments)
        return deployments


def _listen_on_the_nodes_address() -> None:
    """Bind the port on which this replica takes calls of other deployments to its node's address, which is 127.0.0.1 in
    a local Ray. Serve binds it to all addresses, after the replica's constructor; it asks for no token and unpickles
    what it receives, so that whoever reaches it can run code here."""
    import ray.util
    from ray._common import tls_utils
    from ray._common.network_utils import build_address
    from ray.serve._private import replica

    bind = tls_utils.add_port_to_grpc_server
    own = build_address(ray.util.get_node_ip_address(), 0)
    replica.add_port_to_grpc_server = lambda server, address: bind(server, own if address == "[::]:0" else address)


def main() -> None:
    """The command line of this module."""
    argv = sys.argv[1:]
    if not any(word == "--config" or word.startswith("--config=") for word in argv):
        argv = ["--config", str(DEMO), *argv]
    run(cli(CommandConfig, __doc__, argv, local=False, overwrite=False).config)


def run(config: CommandConfig) -> None:
    """Serve until SIGINT or SIGTERM, on the cluster at RAY_ADDRESS or on a Ray of this machine that ends with it.

    Accepted requests are then answered first; a second SIGINT does not wait for them.
    """
    claim = _claim(config.host, config.port)
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "serve.proxy:middlewares")
    os.environ[LISTENER_LIMITS] = config.limits.model_dump_json()
    if config.haproxy:
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
        # Fewer threads and event loops on a request's way; nothing of ours blocks the one that is left.
        os.environ.setdefault("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1")
    if address is None:
        # All of Ray's own ports on 127.0.0.1, whatever the name of the variable says.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            # A token for this Ray alone; Ray would write one to the home folder.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray
    from ray import serve

    # Not this module's own: run as a program it is called __main__, which replicas cannot import.
    from serve.app import application

    _forward_logs(config.verbose)
    _say("starting Ray", config.verbose)
    quiet: dict[str, Any] = {"logging_level": logging.WARNING}
    if address is None:
        ray.init("local", num_cpus=config.num_cpus or max(4, os.cpu_count() or 1), include_dashboard=False, **quiet)
    else:
        ray.init(address, **quiet)
    ended = threading.Event()

    def end(number: int, _frame: object) -> None:
        if ended.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):  # after ray.init, which sets its own
        signal.signal(number, end)
    try:
        serve.start(http_options={"host": config.host, "port": config.port}, logging_config={"log_level": "WARNING"})
        settings = config.model_dump(include=set(ServeConfig.model_fields))
        settings["models"] = {name: _absolute(source) for name, source in config.models.items()}
        settings["registry"]["tracking_uri"] = absolute_uri(config.registry.tracking_uri)
        _say(f"loading the model{'s' * (len(config.models) > 1)}: {', '.join(config.models)}", config.verbose)
        try:
            serve.run(application(ServeConfig(**settings)), name=APPLICATION)
        except RuntimeError as error:
            log(event="deploy_failed", failure=str(error))
            raise SystemExit(f"serve: the application cannot start: {_reason(str(error))}") from None
        where = "localhost" if config.host in ("0.0.0.0", "::") else config.host
        _say(f"the page: http://{where}:{config.port}/  (programs: /docs; Ctrl-C ends it)", config.verbose)
        ended.wait()
        _say("ending; accepted requests are answered first", config.verbose)
        asyncio.run(_drain(config.scaling.drain_s, own_listener=address is None))
        if address is not None:
            serve.delete(APPLICATION)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        ray.shutdown()
        claim.close()


def _reason(failure: str) -> str:
    """The line of Serve's message that names a fault of ours; all of it if there is none."""
    ours = re.search(r"ValueError: (models\..*)", failure)
    return ours[1] if ours else failure


def _claim(host: str, port: int) -> socket.socket:
    """Keep other servers from starting on the same address until the result is closed or the process ends.

    It is taken before Ray starts, which takes seconds until something listens. And Serve's listeners share a port
    (SO_REUSEPORT): two servers would both start, and each would get a part of the requests.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0idc-serve:{host}:{port}")  # an abstract name: it leaves no file
    except OSError:
        refuse([f"port: another server starts or runs on {host}:{port}; end it, or try port={port + 1}"])
    return claim


def _say(text: str, verbose: bool) -> None:
    """Print how far the command is; as an entry of the log, where that is printed."""
    if verbose:
        log(event="command", text=text)
    else:
        print(text, flush=True)


def _forward_logs(verbose: bool) -> None:
    """Print what replicas log as plain JSON lines, in place of Ray's own printing; before ``ray.init``.

    Ray has no setting for it: it prints what workers write, and its own reports of workers that died, by this function.
    """
    from ray._private import worker

    def print_line(data: Any, ignore_prefix: bool) -> None:
        forward(data, verbose)

    worker.print_to_stdstream = print_line

    def keeps(record: logging.LogRecord) -> bool:
        if verbose:
            log(event="output", process=record.name, text=record.getMessage())
        return not verbose and record.levelno >= logging.ERROR

    logging.getLogger("ray.serve").addFilter(keeps)  # Serve reports there each step of a deployment


async def _drain(timeout_s: float, own_listener: bool) -> None:
    """Have every front answer what it has accepted and refuse the rest, while the model's replicas still run.

    Then close the listener, if it serves no other application.

    Args:
        timeout_s: requests that take longer are lost, and the log says how many.
    """
    import ray
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException
    from ray.util import list_named_actors

    last = time.monotonic() + timeout_s + _CLOSE_S
    try:
        # Serve's own end stops all deployments at once, and requests in the front then find no model.
        left = sum(await serve.get_app_handle(APPLICATION).broadcast("drain").results_async(timeout_s=timeout_s + 1))
        if left:
            log(event="requests_lost", requests=left, after_s=timeout_s)
        if not own_listener:
            return
        named = [entry for entry in list_named_actors(all_namespaces=True) if entry["name"].startswith(_PROXY)]
        proxies = [ray.get_actor(**entry) for entry in named]
        await asyncio.gather(*[one.__ray_call__.remote(stop_listening) for one in proxies])
        while time.monotonic() < last:
            if all(await asyncio.gather(*[one.__ray_call__.remote(has_stopped) for one in proxies])):
                return
            await asyncio.sleep(0.05)
    except (RayError, RayServeException, TimeoutError, ValueError):
        log(event="drain_failed", failure=traceback.format_exc())


def _absolute(source: str) -> str:
    """A folder as the replicas see it, whose own folder is another; a ``models:/`` source as it is."""
    return source if source.startswith(SCHEME) else str(Path(source).resolve())


if __name__ == "__main__":
    main()
