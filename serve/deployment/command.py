"""``python -m serve.app`` after its parse: start Ray, deploy, serve until a signal, drain, end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import threading
import traceback
from functools import partial
from pathlib import Path

from idc.captioning.objects_config import OBJECTS, REGIONS
from idc.captioning.sources import AUTO, SHIPPED_FOLDERS, newest_or_shipped
from idc.config import refuse
from idc.util import logs
from idc.util.cores import usable_cores
from idc.util.loopback import collect_no_metrics, keep_ray_on_loopback, keep_ray_paths_short
from idc.util.redaction import secret_fault
from serve.config import CommandConfig, ServeConfig, absolute_uri
from serve.deployment.application import APPLICATION, UNBOUNDED_CALLS, application
from serve.deployment.ray_internals import forward_output, start_ray
from serve.log import forward, log
from serve.port import SharedPort

_CLOSE_S = 5.0
"""How long the listener may take to send the rest of the responses to slow clients, after all requests are answered."""
_LOCAL = UNBOUNDED_CALLS | {
    # Serve's threads call Ray after its end, which would start it again, with a dashboard, and keep the process alive.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "0",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # else one thread per replica has a second listener, for all addresses
}
"""Variables of Ray and Serve; the fronts listen themselves."""
_LOCAL_DEFAULTS = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # one thread and event loop per replica; our code does not block it
    "RAY_SERVE_LOG_TO_STDERR": "1",  # its warnings are part of our log, as soon as they are written
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",  # a tenth of the rounds in which the controller compares its state
}
"""Those that the environment may override."""


def run_server(config: CommandConfig) -> None:
    """Serve until SIGINT or SIGTERM, on a local Ray that ends with the command. Accepted requests are answered before
    the end; a second SIGINT does not wait for them."""
    try:
        port = SharedPort(config.host, config.port)
    except ValueError as error:  # taken since the config was checked
        refuse([f"port: {error}"])
    _set_environment()
    import ray
    from ray import serve

    _forward_logs()
    _report("starting Ray")
    # At least 4 CPUs in its accounting, because Ray's helper actors count too.
    cpus = max(4, usable_cores())
    try:
        start_ray(num_cpus=cpus, include_dashboard=False, logging_level=logging.WARNING)
    except ValueError as error:
        raise SystemExit(f"serve: {error}") from None
    ended = threading.Event()

    def end(number: int, _frame: object) -> None:
        if ended.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):  # after ray.init, which sets its own
        signal.signal(number, end)
    try:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        auto = f"auto (objects; for images like its training's {newest_or_shipped()})"  # whom it chooses from
        models = ", ".join(auto if source == AUTO else name for name, source in config.models.items())
        _report(f"loading the model{'s' * (len(config.models) > 1)}: {models}")
        try:
            serve.run(application(_of_replicas(config), port.path), name=APPLICATION)
        except RuntimeError as error:
            log(event="deploy_failed", failure=str(error))
            ours = re.search(r"ValueError: (models\..*)", str(error))  # in the midst of Serve's message
            raise SystemExit(f"serve: the application cannot start: {ours[1] if ours else error}") from None
        where = "localhost" if config.host in ("0.0.0.0", "::") else config.host
        where = f"[{where}]" if ":" in where else where
        _report(f"the page: http://{where}:{config.port}/  (API: /docs; stop with Ctrl-C)")
        asyncio.run(_until_drained(ended, config.limits.timeout_s, port))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        logging.getLogger("ray.serve").disabled = True  # its threads would report that Ray has ended
        ray.shutdown()
        port.close()


def _set_environment() -> None:
    """The variables that Ray and Serve read when they are imported."""
    os.environ.update(_LOCAL)
    for name, value in _LOCAL_DEFAULTS.items():
        os.environ.setdefault(name, value)
    collect_no_metrics()  # the application's own, at /metrics, are not Ray's
    keep_ray_on_loopback()
    keep_ray_paths_short()
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
        # A token for this Ray alone; Ray would write one to the home folder.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _of_replicas(config: CommandConfig) -> ServeConfig:
    """The config of the replicas, which run in other folders."""
    # Unset ones stay unset: a detector that nobody named may be missing.
    settings = config.model_dump(include=set(ServeConfig.model_fields), exclude_unset=True)
    settings["models"] = {name: absolute_folder(source) for name, source in config.models.items()}
    uri = absolute_uri(config.tracking_uri)
    if uri is not None and secret_fault(uri) is None:  # else replicas read it from their own environment
        settings["tracking_uri"] = uri
    return ServeConfig(**settings)


def absolute_folder(source: str) -> str:
    """A source of a model, by its absolute path if it is a folder."""
    named = source in (*SHIPPED_FOLDERS, AUTO, OBJECTS, REGIONS)
    return source if named or not Path(source).is_dir() else str(Path(source).resolve())


def _report(text: str) -> None:
    """Print the progress of the command, or log it."""
    if logs.as_json():
        log(event="command", message=text)
    else:
        print(text, flush=True)


def _forward_logs() -> None:
    """Print what replicas log as plain JSON lines, instead of Ray's own printing. Call it before ``ray.init``."""
    forward_output(partial(forward, verbose=logs.as_json()))

    def keeps(record: logging.LogRecord) -> bool:
        if logs.as_json():
            log(event="output", message=record.getMessage(), process=record.name)
        return not logs.as_json() and record.levelno >= logging.ERROR

    logging.getLogger("ray.serve").addFilter(keeps)  # Serve reports each step of a deployment there


async def _until_drained(ended: threading.Event, timeout_s: float, port: SharedPort) -> None:
    """Wait for the end of the command. Then make every front answer its accepted requests, but those that take longer
    than ``timeout_s``, and refuse new ones, while the ``Model`` replicas still run, and close the port."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    fronts = serve.get_app_handle(APPLICATION)
    # The first call of a handle looks for the replicas: at the end, that would let further requests in.
    await fronts.broadcast("check_health").results_async()
    await asyncio.to_thread(ended.wait)
    _report("stopping; accepted requests are answered first")
    try:
        # Serve's own shutdown stops all deployments at once: requests in the front would then find no model.
        left = sum(await fronts.broadcast("drain").results_async(timeout_s=timeout_s + 1))
        if left:
            log(event="requests_lost", requests=left, after_s=timeout_s)
        port.close()
        await fronts.broadcast("close", _CLOSE_S).results_async(timeout_s=_CLOSE_S + 1)
    except (RayError, RayServeException, TimeoutError, ValueError):
        log(event="drain_failed", failure=traceback.format_exc())
