"""The guide as a captioner: captions with confidences, where roads and buildings changed, the probability of given
captions, and samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch

from idc.captioning.contract import ClassMap, Speed
from idc.changeimti.class_masks import CLASSES
from idc.changeimti.config import RegionConfig
from idc.nn.decoding import Decoded
from idc.nn.word_captioner import DescriptionExtras, WordCaptioner
from idc.systems.changevg.config import GUIDE, GuideJob, is_guide
from idc.systems.changevg.guide import Guided, GuideNet
from idc.systems.changevg.notes import GuideNotes, positions_of_classes
from idc.training.artifact import Artifact, read_artifact

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

    def notes(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], regions: RegionConfig
    ) -> list[GuideNotes]:
        """The notes on a batch of pairs of uint8 RGB images (H, W, 3); ``regions`` of the class maps are counted."""
        return [notes for notes, _ in self.notes_and_maps(befores, afters, regions)]

    def notes_and_maps(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], regions: RegionConfig
    ) -> list[tuple[GuideNotes, DescriptionExtras]]:
        """The notes of :meth:`notes`, and the maps of a description, from one pass."""
        with self._running():
            guided = self._encode(befores, afters)
            decoded = self._search(guided.memory, self.beams)
            findings = self._findings(guided, decoded, change_map=True)
        results = []
        for ids, extras in zip(decoded.ids.tolist(), findings, strict=True):
            assert extras.class_map is not None
            classes = extras.class_map.classes
            results.append((GuideNotes(self._text(ids), positions_of_classes(classes, regions)), extras))
        return results

    def _encode(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> Guided:
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
