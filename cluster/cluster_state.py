"""The jobs and nodes of a Ray cluster, asked from its dashboard; nothing joins the cluster."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any


def cluster_state(dashboard: str) -> dict[str, Any]:
    """``jobs`` (id, status, entrypoint, started, node) that have not ended, and ``nodes`` (address, state, CPUs, GPUs,
    MEMORY in GiB, whether it is the head).

    Args:
        dashboard: its URL.

    Raises:
        ValueError: there is no dashboard at the URL, or it does not accept the token.
    """
    from ray.job_submission import JobSubmissionClient
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
    try:
        jobs = JobSubmissionClient(dashboard).list_jobs()
        nodes = list_nodes(address=dashboard, limit=1000)
    except (ConnectionError, RuntimeError, RayStateApiException) as error:
        raise ValueError(f"dashboard={dashboard}: {error}") from None
    return {
        "jobs": [
            {
                "id": job.submission_id or job.job_id,
                "status": str(getattr(job.status, "value", job.status)),
                "entrypoint": job.entrypoint,
                "started": _time(job.start_time),
                "node": job.driver_info.node_ip_address if job.driver_info else None,
            }
            for job in jobs
            if job.end_time in (None, 0)
        ],
        "nodes": [
            {
                "address": node.node_ip,
                "state": node.state,
                "head": node.is_head_node,
                "cpus": node.resources_total.get("CPU", 0.0),
                "gpus": node.resources_total.get("GPU", 0.0),
                "memory_gib": round(node.resources_total.get("memory", 0.0) / 2**30, 1),
            }
            for node in nodes
        ],
    }


def state_text(state: dict[str, Any]) -> str:
    """The state as lines."""
    alive = [node for node in state["nodes"] if node["state"] == "ALIVE"]
    cpus, gpus = sum(node["cpus"] for node in alive), sum(node["gpus"] for node in alive)
    lines = [f"cluster: {len(alive)} nodes, {cpus:g} CPUs, {gpus:g} GPUs"]
    lines += [f"  node {node['address']}: {node['state']}" for node in state["nodes"] if node["state"] != "ALIVE"]
    lines += [
        f"  job {job['id']}: {job['status']}, since {job['started']}, {job['node']}: {job['entrypoint']}"
        for job in state["jobs"]
    ]
    return "\n".join(lines)


def _time(milliseconds: int | None) -> str | None:
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
