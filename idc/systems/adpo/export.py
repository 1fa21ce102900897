"""The negatives of a run as a file of TRL's or LLaMA-Factory's columns: for their trainers, or to be looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from idc.atomic import replacing, write_bytes
from idc.captioning.contract import ScoringCaptioner, require
from idc.data.images import decode_image, open_image
from idc.data.ranked_captions import columns_of
from idc.schema import Preference
from idc.systems import load_captioner
from idc.systems.adpo.caption_bank import is_true
from idc.systems.adpo.config import ExportPreferencesJob
from idc.systems.adpo.data import PreferenceSample, PreferenceSamples, collate_preferences, samples_of
from idc.systems.adpo.preference_losses import draw
from idc.systems.adpo.retriever import Retriever, frame_size
from idc.vlm.base import find_base
from idc.vlm.chat import Chat
from idc.vlm.dialogue import caption_turns

ROWS, IMAGES = "preferences.jsonl", "images"
"""Names in the folder."""


@dataclass(frozen=True)
class ExportedNegatives:
    """Attributes: ``written``, ``left_out`` (by the scorer): numbers of negatives; ``true_written``,
    ``true_left_out``: how many of them are true of their pair, None where no scene is known."""

    written: int
    left_out: int
    true_written: int | None
    true_left_out: int | None

    def text(self) -> str:
        """For the terminal."""
        parts = [f"{self.written} negatives" + _share(self.true_written, self.written)]
        if self.left_out:
            parts.append(f"left out as too probable: {self.left_out}" + _share(self.true_left_out, self.left_out))
        return "; ".join(parts)


def _share(true: int | None, number: int) -> str:
    return "" if true is None or not number else f" ({true / number:.1%} true of their pair)"


def export_preferences(job: ExportPreferencesJob, overwrite: bool = False) -> ExportedNegatives:
    """Write the file.

    Raises:
        ValueError: the pairs, the encoder or the scorer cannot be used, or the folder has a file and ``overwrite`` is
            off.
    """
    out = Path(job.out)
    if (out / ROWS).exists() and not overwrite:
        raise ValueError(f"out: {out / ROWS} exists; choose another folder, or replace it with --overwrite")
    scorer = None if job.scorer is None else require(load_captioner(job.scorer, job.device), "score")
    chat = Chat(find_base(job.base).family, job.cutoff)
    parts = samples_of(job, chat, frame_size(job.retriever) if job.retriever else None)
    bank = next(iter(parts.values())).bank
    retriever = None
    if job.retriever is not None:
        retriever = Retriever(job.retriever).to(job.device).eval()
        retriever.read(bank.texts)
    counts = {"written": [0, 0], "left_out": [0, 0]}
    (out / IMAGES).mkdir(parents=True, exist_ok=True)
    with replacing(out / ROWS) as partial, partial.open("w", encoding="utf-8") as file:
        for part in parts.values():
            part.check()
            for samples in _batches(part, job.train.batch_size):
                drawn = _drawn(samples, retriever, chat, job)
                chosen = [bank.texts[sample.chosen] for sample in samples]
                texts = [[bank.texts[number] for number in numbers] for numbers in drawn]
                for sample, positive, negatives, kept in zip(
                    samples, chosen, texts, _kept(part, samples, texts, scorer), strict=True
                ):
                    for negative, keep in zip(negatives, kept, strict=True):
                        count = counts["written" if keep else "left_out"]
                        count[0] += 1
                        count[1] += sample.truth is not None and is_true(negative, sample.truth)
                        if keep:
                            row = Preference(
                                row_id=f"{sample.name}-{counts['written'][0]}", images=_images(part, sample, out),
                                prompt=_question(job), chosen=positive, rejected=negative, of_pair=sample.name,
                            )  # fmt: skip
                            file.write(json.dumps(columns_of(row, job.columns), ensure_ascii=False) + "\n")
    truths = all(part.has_truths() for part in parts.values())
    (written, true_written), (left_out, true_left_out) = counts["written"], counts["left_out"]
    return ExportedNegatives(written, left_out, true_written if truths else None, true_left_out if truths else None)


def _question(job: ExportPreferencesJob) -> str:
    """The prompt as one text: a preference has no system turn of its own."""
    return "\n".join(turn.text for turn in caption_turns(job.prompt))


def _batches(part: PreferenceSamples, size: int) -> Iterator[list[PreferenceSample]]:
    for start in range(0, len(part), size):
        yield [part.get(index, 0) for index in range(start, min(start + size, len(part)))]


@torch.no_grad()
def _drawn(
    samples: Sequence[PreferenceSample], retriever: Retriever | None, chat: Chat, job: ExportPreferencesJob
) -> list[list[int]]:
    """Numbers of the drawn captions, as in a step of the training."""
    batch = collate_preferences(samples, chat.family)
    candidates_BN, log_q_BN = batch["candidates"], torch.zeros_like(batch["noise"])
    if retriever is not None:
        log_q_BN = retriever(batch["frames"].to(job.device), candidates_BN.to(job.device))[0].cpu()
    drawn: list[list[int]] = candidates_BN.gather(1, draw(log_q_BN, batch["noise"], job.negatives)).tolist()
    return drawn


def _kept(
    part: PreferenceSamples, samples: Sequence[PreferenceSample], texts: Sequence[Sequence[str]],
    scorer: ScoringCaptioner | None,
) -> list[list[bool]]:  # fmt: skip
    """Whether each negative is less probable than all captions of its pair."""
    if scorer is None:
        return [[True] * len(negatives) for negatives in texts]
    pairs = [[decode_image(image) for image in part.images(sample.row[1])] for sample in samples]
    references = [list(part.captions[sample.row[1]]) for sample in samples]
    scores = scorer.score(
        [before for before, _ in pairs], [after for _, after in pairs],
        [[*captions, *negatives] for captions, negatives in zip(references, texts, strict=True)],
    )  # fmt: skip
    kept = []
    for of_pair, captions in zip(scores, references, strict=True):
        means = [score.mean for score in of_pair]
        least = min(means[: len(captions)])
        kept.append([mean < least for mean in means[len(captions) :]])
    return kept


def _images(part: PreferenceSamples, sample: PreferenceSample, out: Path) -> tuple[str, str]:
    """Names of the pair's images, which are written as they are stored; pair ids need not be names of files."""
    names = []
    for side, data in zip(("before", "after"), part.images(sample.row[1]), strict=True):
        with open_image(data) as image:
            suffix = str(image.format).lower()
        name = f"{IMAGES}/{sample.row[0]}-{sample.row[1]}-{side}.{suffix}"
        write_bytes(out / name, data)
        names.append(name)
    before, after = names
    return before, after
