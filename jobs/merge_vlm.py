"""Merge a tuned vision-language model into its base: a plain hub folder.

python jobs/merge_vlm.py artifact=runs/sft/artifact out=merged
hf upload me/my-captioner merged
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.captioning.loading import BaseAt
from idc.config import ConfigModel, cli, command, missing
from idc.util.option_values import DiskPath


class Job(ConfigModel):
    """The merge of one artifact."""

    artifact: str = Field(min_length=1)
    """Artifact of a tuned vision-language model."""
    out: DiskPath = Field(min_length=1)
    """Folder of the merged model."""
    base: BaseAt = BaseAt()
    """The model that was tuned."""
    dtype: Literal["base", "float32", "bfloat16"] = "base"
    """Type of the merged weights; base: that of the base's files. The sums are computed in float32 in any case."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.artifact, "artifact")


@command
def main() -> None:
    args = cli(Job, __doc__, local=False)
    from idc.training.artifact import read_artifact
    from idc.vlm.merging import merge

    job = args.config
    print(merge(read_artifact(job.artifact), job.out, job.base.source, job.dtype, overwrite=args.overwrite))


if __name__ == "__main__":
    main()
