"""The two deployments of an application: ``Front`` replicas answer HTTP, ``Model`` replicas hold the captioners.

Ray Serve ignores unknown deployment settings; all of ours are in :class:`~serve.config.ServeConfig`, which is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serve.config import ServeConfig
from serve.deployment.front import Front
from serve.deployment.model import Model

if TYPE_CHECKING:
    from ray.serve import Application

APPLICATION = "captions"
"""Name of the application in Serve, as `python -m serve.app` deploys it."""
_UPSCALE_S, _DOWNSCALE_S = 2.0, 300.0
"""Seconds above or below the target, a batch of in-flight pairs per replica, before one is added or removed."""
UNBOUNDED_CALLS = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": "-1"}
"""Environment of fronts and models. With RAY_SERVE_THROUGHPUT_OPTIMIZED fronts call models by gRPC, which refuses calls
and answers of more than 4 MiB, less than two photographs; the limits of requests bound them instead."""


def application(config: ServeConfig, port: str | None = None) -> Application:
    """The Serve application of a config.

    Args:
        port: path of the :class:`serve.port.SharedPort` at which the fronts listen themselves; by default Serve's
            proxies listen.
    """
    from ray import serve

    limits, scaling = config.limits, config.scaling
    # On a local Ray the command has set it, because a process with a runtime environment starts seconds later.
    environment = {} if port is not None else {"runtime_env": {"env_vars": UNBOUNDED_CALLS}}
    common: dict[str, Any] = {
        "graceful_shutdown_timeout_s": limits.timeout_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "max_surge_percent": 50,
        # The front writes its own log line per request.
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }
    model = serve.deployment(
        Model,
        name="Model",
        ray_actor_options={"num_cpus": scaling.cpus, "num_gpus": scaling.gpus, **environment},
        # One batch in the model, one that fills, and one in reserve so that the model never waits.
        max_ongoing_requests=3 * scaling.max_pairs,
        max_queued_requests=limits.waiting_pairs,
        autoscaling_config={
            "min_replicas": scaling.min_replicas,
            # At least one at the start: an artifact that cannot be loaded must fail the deployment, not a request.
            "initial_replicas": max(1, scaling.min_replicas),
            "max_replicas": scaling.max_replicas,
            "target_ongoing_requests": float(scaling.max_pairs),
            "policy": {"policy_function": "serve.deployment.scaling:by_pairs"},
            "upscale_delay_s": _UPSCALE_S,
            "downscale_delay_s": _DOWNSCALE_S,
            "metrics_interval_s": 1.0,
            "look_back_period_s": _UPSCALE_S,
        },
        **common,
    )
    most = 2 * limits.waiting_pairs + 64  # high enough that the front itself refuses excess requests, with a reason
    front = serve.deployment(
        serve.ingress()(Front) if port is None else Front,
        name="Front",
        num_replicas=scaling.front_replicas,
        ray_actor_options={"num_cpus": 1 if port is None else 0, **environment},
        max_ongoing_requests=most,
        max_queued_requests=most,
        backpressure_config={"status_code": 503, "retry_after_s": 1},
        # A front that is killed is noticed by its next check; if it listens itself, connections wait meanwhile.
        health_check_period_s=10.0 if port is None else 1.0,
        **common,
    )
    return front.bind(config, model.bind(config), port)  # type: ignore[attr-defined]  # Ray's decorators
