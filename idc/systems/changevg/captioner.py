"""ChangeVG as a captioner: the guide runs first, once for each pair, then the language model answers a question that
quotes its notes as those of the tuning did. A guide alone is a captioner too."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from idc.captioning.contract import Answer, Captioner, Description, Images, SearchOptions, Speed
from idc.changeimti.config import RegionConfig
from idc.data.schema import Turn
from idc.nn.word_captioner import DescriptionExtras
from idc.systems.changevg.config import GUIDE, GuidedPromptConfig, is_guide
from idc.systems.changevg.guide_captioner import GuideCaptioner, GuideNotes, guided_question, guided_turns
from idc.systems.changevg.tuning import SYSTEM
from idc.training.artifact import read_artifact
from idc.vlm.captioner import Pairs, VlmCaptioner
from idc.vlm.chat import with_default_turns
from idc.vlm.config import PromptConfig

CACHED_PAIRS = 64
"""Number of pairs whose notes and maps are kept: a dialogue comes back with every turn."""
NotesAndMaps = tuple[GuideNotes, DescriptionExtras]
"""The guide's notes on a pair, and its maps."""


class GuidedCaptioner(VlmCaptioner):
    """As :class:`idc.vlm.captioner.VlmCaptioner`, with a guide that runs before the language model; map and class
    map are the guide's. ``quote``: how questions quote its notes; ``regions``: which regions of its class map they
    count."""

    def __init__(
        self, guide: GuideCaptioner, quote: GuidedPromptConfig, regions: RegionConfig, *arguments: Any, **options: Any
    ):
        super().__init__(*arguments, **options)
        self.guide, self.quote, self.regions = guide, quote, regions
        self._cache: OrderedDict[bytes, NotesAndMaps] = OrderedDict()

    def notes_and_maps(self, befores: Images, afters: Images) -> list[NotesAndMaps]:
        """Of pairs of uint8 RGB images (H, W, 3); the guide runs, in one batch, on those that are not cached."""
        keys = [_content(before, after) for before, after in zip(befores, afters, strict=True)]
        new = {key: index for index, key in enumerate(keys) if key not in self._cache}
        if new:
            images = [[side[index] for index in new.values()] for side in (befores, afters)]
            self._cache.update(zip(new, self.guide.notes_and_maps(images[0], images[1], self.regions), strict=True))
        for key in keys:
            self._cache.move_to_end(key)
        results = [self._cache[key] for key in keys]
        while len(self._cache) > max(CACHED_PAIRS, len(keys)):
            self._cache.popitem(last=False)
        return results

    def pair_prompts(self, befores: Images, afters: Images) -> list[PromptConfig]:
        return [
            self.prompt.model_copy(update={"text": guided_question(notes, self.prompt.text, self.quote)})
            for notes, _ in self.notes_and_maps(befores, afters)
        ]

    def answer(
        self,
        befores: Images,
        afters: Images,
        dialogues: Sequence[Sequence[Turn]],
        *,
        max_tokens: int | None = None,
        on_text: Sequence[Callable[[str], None] | None] | None = None,
    ) -> list[Answer]:
        """The notes are before the first question of each dialogue, as in the tuning."""
        if len(befores) == len(afters) == len(dialogues):  # else the base class refuses them
            dialogues = [
                guided_turns(notes, with_default_turns(dialogue, self.prompt), self.quote)
                for (notes, _), dialogue in zip(self.notes_and_maps(befores, afters), dialogues, strict=True)
            ]
        return super().answer(befores, afters, dialogues, max_tokens=max_tokens, on_text=on_text)

    def maps(self, pairs: Pairs) -> list[np.ndarray]:
        return [extras.change_map for _, extras in pairs.more]

    def _encoded(self, befores: Images, afters: Images, prompts: Sequence[PromptConfig] | None = None) -> Pairs:
        return replace(super()._encoded(befores, afters, prompts), more=self.notes_and_maps(befores, afters))

    def _describe(self, befores: Images, afters: Images, options: SearchOptions) -> list[Description]:
        descriptions = super()._describe(befores, afters, options)
        if not options.change_map:
            return descriptions
        return [
            replace(description, class_map=extras.class_map)
            for description, (_, extras) in zip(descriptions, self.notes_and_maps(befores, afters), strict=True)
        ]


def _content(before: np.ndarray, after: np.ndarray) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for image in (before, after):
        digest.update(repr(image.shape).encode())
        digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


def load_captioner(path: Path | str, device: str = "cpu", speed: Speed = "auto", base: str | None = None) -> Captioner:
    """The captioner of an artifact: of a guide, or of a language model tuned with its notes or without; arguments and
    errors as of :meth:`idc.vlm.system.TunedSystem.load`. A guide has no base; it computes at the same speed."""
    if is_guide(read_artifact(path, system="changevg").config):
        return GuideCaptioner(path, device, speed)
    job, model, family, _, options = SYSTEM.load(path, device, speed, base)
    if job.guide is None:
        return VlmCaptioner(model, family, job.prompt, job.generation, **options)
    assert job.regions is not None, "the artifact records them"
    guide = GuideCaptioner(options["path"] / GUIDE, device, speed)
    return GuidedCaptioner(guide, job.quote, job.regions, model, family, job.prompt, job.generation, **options)
