"""Settings of the server for agents."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pydantic import Field

from idc.captioning.loading import LoadConfig
from idc.captioning.sources import AUTO
from idc.util.option_values import Texts


class AgentJob(LoadConfig):
    """Serve an agent: it may compare images, documents and folders below some folders."""

    root: Texts = Field(min_length=1)
    """Folder of the images that may be compared; links are followed, but not out of it. As an option `--root`, it may
    be repeated."""
    artifact: str = AUTO
    """The captioner, as of `caption`: `auto`, `objects`, `regions`, `shipped`, an artifact's folder or a model."""

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        for folder in self.root:
            if not Path(folder).is_dir():
                yield f"root: {folder} is not a folder"
        if find_spec("mcp") is None:
            yield "the official SDK of the protocol is not installed; pip install 'idc[mcp]'"
