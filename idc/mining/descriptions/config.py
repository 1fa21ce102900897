"""Settings of the descriptions of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.config import Split
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.util.option_values import DiskPath

Instruction = Literal["cc3m", "instruct_pix2pix", "spot_the_diff"]
"""The structured instructions of appendix D.2, by their sources."""


class OracleConfig(ConfigModel):
    """The describer of rendered pairs, which reads their scene graphs and disturbs a known share of what it writes."""

    noise: float = Field(default=0.0, ge=0, le=1)
    """Share of the objects named in a description that are disturbed, drawn for each object of each image on its own.
    With 3 objects in a description, 0.2 leaves half of the descriptions true, 0.4 a fifth."""
    seed: int = Field(default=0, ge=0)
    """Seed of all draws."""


_OF_MODELS = (
    "prompt", "instruction", "image_captions", "asks", "temperature", "max_tokens", "max_side", "log",
)  # fmt: skip
"""Settings that the oracle does not use."""


class DescribeJob(ConfigModel):
    """Describe pairs: a folder of pairs whose captions are a describer's, one per pair."""

    pairs: str = Field(min_length=1)
    """Folder of pairs to describe. Path or URI."""
    out: str = Field(min_length=1)
    """Folder of pairs to write, with descriptions.json and a page of examples. Path or URI."""
    describer: Literal["endpoint", "oracle"] = "endpoint"
    """endpoint: a model behind OpenAI's chat completions. oracle: rendered pairs from their scene graphs, with known
    noise."""
    prompt: Literal["structured", "conventional"] = "structured"
    """structured: NAMC's instruction and template; an answer that does not follow the template, or only says what is
    not there, is refused and asked for again. The template is sent as the paper prints it, without the list of verbs.
    conventional: the free question of NAMC's table 11, whose answers are taken as they are."""
    instruction: Literal["auto", Instruction] = "auto"
    """Which structured instruction: the one of the pair's source, and cc3m for other sources. The image captions that
    it quotes are those of `image_captions`; without them, those that InstructPix2Pix has itself (the paper takes
    paragraphs by LLaVA for all sources), or the sentences that quote them are left out."""
    image_captions: str | None = None
    """JSON lines with descriptions of single images to quote: `pair_id`, `before`, `after` (paper: LLaVA-ReCap)."""
    asks: int = Field(default=3, ge=1, le=100)
    """Most times that a pair is asked for until an answer is not refused (the paper gives 0.2 % refused answers, and no
    number of tries)."""
    temperature: float = Field(default=0.7, ge=0)
    """Sampling temperature (not given in the paper). At 0 a refused question would get the same answer again."""
    max_tokens: int = Field(default=300, ge=1)
    """Longest answer; one that is cut off there is refused."""
    max_side: int | None = Field(default=1024, ge=16)
    """Longer side of the images sent, in pixels; larger images are downscaled, because they are paid by their size.
    null: as they are."""
    log: DiskPath | None = None
    """File of all answers, also the refused ones (JSON lines, local); it is never deleted, not even by --overwrite.
    Default: answers.jsonl in `out`."""
    splits: tuple[Split, ...] | None = None
    """Describe only pairs of these splits. Default: all."""
    max_pairs: int | None = Field(default=None, ge=1)
    """Describe only the first pairs of the folder, for example to estimate the cost."""
    chunk_size: int = Field(default=64, ge=1, le=10_000)
    """Pairs per Parquet part."""
    workers: int = Field(default=2, ge=1)
    """oracle: parallel processes on Ray."""
    max_reject_share: float = Field(default=0.05, ge=0, le=1)
    """The job fails if more than this share of the pairs gets no description."""
    show: int = Field(default=24, ge=0, le=200)
    """Pairs with pictures on the page; 0: no page."""
    endpoint: EndpointConfig = EndpointConfig()
    """Settings of describer=endpoint."""
    oracle: OracleConfig = OracleConfig()
    """Settings of describer=oracle."""

    def errors(self) -> Iterator[str]:
        for name in ("endpoint", "oracle"):
            if name != self.describer and getattr(self, name) != type(self).model_fields[name].default:
                yield f"{name}: not used with describer={self.describer}; leave it out"
        if self.describer == "oracle":
            for name in _OF_MODELS:
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield f"{name}: not used with describer=oracle; leave it out"
        if self.describer == "endpoint":
            for name, example in (("url", "http://localhost:8000/v1"), ("model", "Qwen/Qwen2-VL-7B-Instruct")):
                if not getattr(self.endpoint, name):
                    yield f"endpoint.{name}: required with describer=endpoint, for example {example}"
        if self.prompt == "conventional":
            for name in ("instruction", "image_captions"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield f"{name}: not used with prompt=conventional; leave it out"
        if self.describer != "oracle" and self.log is None and "://" in self.out:
            yield f"log: required if out is a URI ({self.out}); give a local file"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        yield from missing(self.image_captions, "image_captions")
