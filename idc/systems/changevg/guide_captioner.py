"""The guide as a captioner: captions with confidences, where roads and buildings changed, the probability of given
captions, and samples; and its notes on a pair, with the questions that quote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from idc.captioning.contract import ClassMap, Images, Speed
from idc.changeimti.config import RegionConfig
from idc.data.change_masks import CHANGED, CLASSES, find_regions, positions_of
from idc.data.schema import IMAGE, Turn
from idc.nn.decoding import Decoded
from idc.nn.word_captioner import DescriptionExtras, WordCaptioner
from idc.systems.changevg.config import GUIDE, GuidedPromptConfig, GuideJob, is_guide
from idc.systems.changevg.guide import Guided, GuideNet
from idc.training.artifact import Artifact, read_artifact

NOTHING = "No change"
"""ChangeIMTI's answer to the question where something changed, if nothing did."""

_FIGURE_3 = (
    "You are an assistant proficient in remote sensing change reasoning. Please answer the user's question based on "
    "the following auxiliary information."
)


@dataclass(frozen=True)
class GuideNotes:
    """What the guide saw in a pair: its caption, and of each class the positions of the counted regions."""

    summary: str
    positions: Mapping[str, Sequence[str]]


def positions_of_classes(classes: np.ndarray, regions: RegionConfig) -> dict[str, list[str]]:
    """Class -> the position of each counted region of a class map (H, W)."""
    return {name: positions_of(find_regions(classes == CLASSES.index(name), regions.as_published)) for name in CHANGED}


def locations(positions: Sequence[str]) -> str:
    """Positions as ChangeIMTI's answer: each once, in order; :data:`NOTHING` if there are none."""
    return ", ".join(dict.fromkeys(positions)) or NOTHING


def guided_question(notes: GuideNotes, question: str, prompt: GuidedPromptConfig) -> str:
    """A question, with :data:`idc.data.schema.IMAGE` in the place of each image, with the notes before it; the
    question itself if no branch is quoted."""
    lines = []
    if prompt.summary:
        # A summary cannot hold an image mark, whatever words its vocabulary has.
        lines.append(f"Caption: {notes.summary.replace(IMAGE, '')}")
    if prompt.regions:
        counts, places_of = [], []
        for name in CHANGED:
            counts.append(f"{name}: {len(notes.positions[name])}")
            places_of.append(f"{name}: {{{locations(notes.positions[name])}}}")
        lines += [f"Count: {{ {', '.join(counts)} }}", f"Location: {{ {', '.join(places_of)} }}"]
    if not lines:
        return question
    return "\n".join([_FIGURE_3, "Visual auxiliary information:", *lines, "Query:", question])


def guided_turns(notes: GuideNotes, turns: Sequence[Turn], prompt: GuidedPromptConfig) -> list[Turn]:
    """A dialogue with the notes before its first question; later questions have none, as its history has them. The same
    for the dialogues of the tuning and those that the captioner answers."""
    first = next((index for index, turn in enumerate(turns) if turn.role == "user"), None)
    if first is None:
        return list(turns)
    asked = replace(turns[first], text=guided_question(notes, turns[first].text, prompt))
    return [*turns[:first], asked, *turns[first + 1 :]]


CHANGED_SHARE, CHANGE_ODDS = "changed_share", "log_odds_of_change"
"""Names of the captioner's evidence: the mean probability of a pixel that it changed, and the largest log-odds of
one."""


def read_guide(path: Path | str) -> Artifact:
    """The artifact of a guide; ValueError if it is none, or that of a tuned model."""
    artifact = read_artifact(path, system="changevg")
    if not is_guide(artifact.config):
        raise ValueError(f"{path} is a tuned language model, not a guide; its guide, if it has one, is {path}/{GUIDE}")
    return artifact


class GuideCaptioner(WordCaptioner[Guided]):
    """A loaded artifact of the guide; "bf16" computes layers in bfloat16, all other speeds in float32."""

    def __init__(self, path: Path | str, device: str = "cpu", speed: Speed = "auto"):
        artifact = read_guide(path)
        assert artifact.vocabulary is not None
        job = artifact.settings(GuideJob)
        self.net = GuideNet(job.model, len(artifact.vocabulary))
        artifact.load_into(self.net)
        self.net.to(device).eval()
        super().__init__(
            artifact,
            device,
            self.net.decoder,
            job,
            evidence=[CHANGED_SHARE, CHANGE_ODDS],
            image_size=job.model.image_size,
            speed=speed,
        )

    def notes(self, befores: Images, afters: Images, regions: RegionConfig) -> list[GuideNotes]:
        """The notes on a batch of pairs of uint8 RGB images (H, W, 3); ``regions`` of the class maps are counted."""
        return [notes for notes, _ in self.notes_and_maps(befores, afters, regions)]

    def notes_and_maps(
        self, befores: Images, afters: Images, regions: RegionConfig
    ) -> list[tuple[GuideNotes, DescriptionExtras]]:
        """The notes of :meth:`notes`, and the maps of a description, from one pass."""
        with self._running():
            guided = self._encode(befores, afters)
            decoded = self._search(guided.memory, beams=self.beams)
            findings = self._findings(guided, decoded, change_map=True)
        results = []
        for ids, extras in zip(decoded.ids.tolist(), findings, strict=True):
            assert extras.class_map is not None
            classes = extras.class_map.classes
            results.append((GuideNotes(self.text(ids), positions_of_classes(classes, regions)), extras))
        return results

    def _encode(self, befores: Images, afters: Images) -> Guided:
        return cast(Guided, self.net(self._images(befores, afters)))

    def _findings(self, encoded: Guided, decoded: Decoded, change_map: bool) -> Sequence[DescriptionExtras]:
        """The change map is the probability of each pixel that it is no background."""
        logits = encoded.classes.float()
        odds = logits[:, 1:].logsumexp(dim=1) - logits[:, 0]
        if self.net.config.map == "paper":  # one sigmoid per class: the larger one
            odds = logits[:, 1:].amax(dim=1)
        changed = odds.sigmoid()
        shares, peaks = changed.mean(dim=(1, 2)).tolist(), odds.amax(dim=(1, 2)).tolist()
        evidence = [{CHANGED_SHARE: share, CHANGE_ODDS: peak} for share, peak in zip(shares, peaks, strict=True)]
        if not change_map:
            return [DescriptionExtras(named) for named in evidence]
        classes = logits.argmax(dim=1).to(torch.uint8)
        return [
            DescriptionExtras(named, drawn, class_map=ClassMap(of_pixels, CLASSES))
            for named, drawn, of_pixels in zip(evidence, changed.cpu().numpy(), classes.cpu().numpy(), strict=True)
        ]
