"""The autoscaling policy of the captioner's replicas: by pairs, because one call may have many.

Serve's controller runs it without this package's other modules: Ray pickles this module's contents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

PAIRS = "pairs"
"""The metric of a replica: accepted pairs without a result."""


def by_pairs(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """The wanted number of replicas; Serve applies its bounds and delays, and starts the first one itself."""
    assert context.config is not None
    pairs = sum((context.aggregated_metrics or {}).get(PAIRS, {}).values())
    waiting = context.total_queued_requests or 0.0  # calls that no replica has accepted: at least one pair each
    return (pairs + waiting) / context.config.get_target_ongoing_requests(), {}
