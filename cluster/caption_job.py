"""Settings of ``jobs/caption.py`` for a table: what is captioned, and where. Does not import Ray."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.caption_llm import CaptionLlmConfig
from cluster.config import ClusterConfig
from idc.captioning.table import CaptionJob


class CaptionTableJob(CaptionJob):
    """Caption the pairs of an input, and where to do it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""
    ray_llm: CaptionLlmConfig | None = None
    """The language model of a vision-language artifact in vLLM on the cluster's GPUs, as in `ray_llm.replicas=8`.
    Default: the model runs in this program's own actors, or at `endpoint.url`."""

    def loading_identity(self) -> dict[str, str]:
        return super().loading_identity() | ({} if self.ray_llm is None else {"ray_llm": self.ray_llm.model})

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.ray_llm is not None and self.endpoint is not None:
            yield "ray_llm: endpoint runs the language model already; leave one of them out"
        if self.ray_llm is not None and self.best_of is not None:
            yield "ray_llm: best_of needs the model in this program; leave one of them out"
