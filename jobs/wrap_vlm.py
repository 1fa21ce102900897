"""Make an artifact of a vision-language model without training, or ask another question of one.

    python jobs/wrap_vlm.py base.source=Qwen/Qwen2.5-VL-3B-Instruct base.download=true out=runs/qwen/artifact
    python jobs/wrap_vlm.py base.source=/models/InternVL3-2B-hf out=runs/internvl/artifact generation.beams=4
    python jobs/wrap_vlm.py base.source=Qwen/Qwen2.5-VL-7B-Instruct out=runs/levir/artifact \\
        prompt.text="<image><image>Describe what was built between these two aerial images."
    python jobs/wrap_vlm.py artifact=runs/mixture/artifact ask=spot_the_diff out=runs/mixture/spot/artifact
    python jobs/wrap_vlm.py artifact=runs/sft/artifact max_new_tokens=128 out=runs/sft/long/artifact
    python jobs/wrap_vlm.py artifact= --help             the settings of the last two

The artifact names the base model and holds its processor, the prompt and how captions are generated, but no weights.
The model must be on this machine; base.download=true asks the hub for it, after a line with its size.

With artifact, a captioner asks another question, or answers at another length, without training. `ask` takes the
question of another set of the mixture that it was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from idc.config import ConfigModel, cli, missing, remote, setting
from idc.next_command import after_calibration
from idc.systems.zeroshot.config import WrapJob
from idc.vlm.config import PromptConfig


class RewordJob(ConfigModel):
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


def reword_command() -> None:
    args = cli(RewordJob, __doc__, local=False)
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
        raise SystemExit(f"wrap: {error}") from None
    print(f"{job.out}: answers of at most {generation.max_new_tokens} tokens to\n{prompt.text}")
    print(f"next: {after_calibration(job.out)}")


def base_command() -> None:
    args = cli(WrapJob, __doc__, local=False)
    from idc.systems.zeroshot.wrap import wrap

    try:
        print(wrap(args.config, args.overwrite))
        print(f"next: {after_calibration(args.config.out)}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"wrap: {error}") from None


def main() -> None:
    (base_command if setting("artifact") is None else reword_command)()


if __name__ == "__main__":
    main()
