"""Have a vision-language captioner ask another question, or answer at another length: the same weights, no training.

    python jobs/reword_vlm.py artifact=runs/mixture/artifact ask=spot_the_diff out=runs/mixture/spot/artifact
    python jobs/reword_vlm.py artifact=runs/sft/artifact max_new_tokens=128 out=runs/sft/long/artifact \\
        "prompt.text=<image><image>What was repaired?"

The artifact of a mixture asks the question of the set it was validated on; `ask` takes that of another of its sets, as
it was trained on it. The new artifact shares the files of the old one where the file system allows it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel, cli, missing, remote
from idc.next_command import after_calibration
from idc.vlm.config import PromptConfig


class Job(ConfigModel):
    """Another question for one artifact."""

    artifact: str = Field(min_length=1)
    """Artifact of a vision-language captioner, not calibrated."""
    out: str = Field(min_length=1)
    """Folder of the new artifact, which must not exist."""
    ask: str | None = Field(None, min_length=1)
    """Name of a data set whose question is asked: of a set of the artifact's mixture, or of M3Diff's table 9. This or
    `prompt`; default: the question stays."""
    prompt: PromptConfig | None = None
    """The question itself."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest answer in tokens. Default: as it was."""

    def faults(self) -> Iterator[str]:
        yield from remote(self.out, "out", "an artifact")
        if self.ask is not None and self.prompt is not None:
            yield "ask, prompt: give one of the two"
        if self.ask is None and self.prompt is None and self.max_new_tokens is None:
            yield "nothing is changed; give ask, prompt or max_new_tokens"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.artifact, "artifact")


def main() -> None:
    args = cli(Job, __doc__, local=False)
    from idc.systems.m3diff.mixture import question_of
    from idc.training.artifact import read_artifact
    from idc.vlm.rewording import reword, said_of

    job = args.config
    try:
        artifact = read_artifact(job.artifact)
        prompt, generation = said_of(artifact)
        if job.ask is not None:
            prompt = question_of(artifact.config["job"].get("mixture"), job.ask)
        if job.prompt is not None:
            prompt = job.prompt
        if job.max_new_tokens is not None:
            generation = generation.model_copy(update={"max_new_tokens": job.max_new_tokens})
        reword(job.artifact, job.out, prompt, generation, overwrite=args.overwrite)
    except (OSError, ValueError) as error:
        raise SystemExit(f"reword: {error}") from None
    print(f"{job.out}: answers of at most {generation.max_new_tokens} tokens to\n{prompt.text}")
    print(f"next: {after_calibration(job.out)}")


if __name__ == "__main__":
    main()
