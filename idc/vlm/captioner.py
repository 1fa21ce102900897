"""A vision-language model as a captioner: captions, candidates, scores, samples, answers in dialogues, change maps.

One vision pass serves everything that is asked about a batch of pairs. A system whose model does more with the images
than its base subclasses :class:`VlmCaptioner` and overrides :meth:`VlmCaptioner.encode`, where its change maps are its
own :meth:`VlmCaptioner.maps`, and where its questions depend on the images :meth:`VlmCaptioner.pair_prompts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idc.captioning.calibration import YES, Calibration
from idc.captioning.contract import (
    Answer,
    Candidate,
    Capability,
    Captioner,
    CaptionScore,
    Description,
    SearchOptions,
    Seen,
    Speed,
    beams_of,
    number_of_pairs,
)
from idc.captioning.familiarity import Familiarity
from idc.data.schema import Turn
from idc.vlm.batch import Sample, collate_encoded
from idc.vlm.chat import Chat
from idc.vlm.config import BaseConfig, GenerateConfig, PromptConfig
from idc.vlm.dialogue import YES_OR_NO, caption_turns, change_question, completed
from idc.vlm.family import Family
from idc.vlm.generate import Hypothesis, generate
from idc.vlm.logps import answer_log_probabilities
from idc.vlm.token_maps import change_map, peak_and_mean

PEAK, MEAN = "change_peak", "change_mean"
"""Names of the evidence of a change: of the change map."""


@dataclass(frozen=True)
class Pairs:
    """Pairs whose images are encoded; before and after take turns.

    Attributes:
        sizes: height and width of each image as the model is given it (:meth:`VlmCaptioner.prepare_images`).
        prompts: the question about each pair.
        pixels: of :meth:`idc.vlm.family.Family.pixels`, on the model's device.
        encoded, more: of :meth:`VlmCaptioner.encode`.
    """

    sizes: Sequence[tuple[int, int]]
    prompts: Sequence[PromptConfig]
    pixels: Mapping[str, Tensor]
    encoded: Any
    more: Any = None

    def of(self, pair: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The sizes of a pair's images."""
        return self.sizes[2 * pair], self.sizes[2 * pair + 1]


class VlmCaptioner(Captioner):
    """Also computes change maps, scores, samples and answers.

    Args:
        model: the transformers model, in evaluation mode on its device (of a PEFT model, ``get_base_model()``, whose
            layers have the adapters in them).
        family: of the model.
        prompt: what it is asked about a pair.
        settings: how captions are generated, by default.
        path: folder of the artifact; its calibration and familiarity are read if it has them.
        trained_on: as in :class:`idc.captioning.contract.Captioner`.

    Raises:
        ValueError: the model's tokenizer has no chat template or no end token, or the prompt has control tokens in it.
    """

    capabilities: frozenset[Capability] = frozenset(("map", "score", "sample", "answer"))

    def __init__(
        self,
        model: Any,
        family: Family,
        prompt: PromptConfig,
        settings: GenerateConfig,
        *,
        path: Path | None = None,
        trained_on: str | None = None,
    ):
        self.model, self.family, self.prompt, self.settings = model, family, prompt, settings
        self.path, self.trained_on = path, trained_on
        self.chat = Chat(family)
        self.chat.prompt(caption_turns(prompt), [(32, 32)] * 2)  # refuses control tokens before anything is captioned
        self.calibration = None if path is None else Calibration.load(path, evidence=(PEAK, MEAN))
        self.asks_change = self.calibration is not None and YES in self.calibration.inputs
        self.familiarity = None if path is None else Familiarity.read(path)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def encode(self, pixels: Mapping[str, Tensor]) -> tuple[Any, Any]:
        """Features of the images of pairs, before and after in turn, as the language model reads them.

        Args:
            pixels: of :meth:`idc.vlm.family.Family.pixels`, on the model's device.

        Returns:
            As :meth:`idc.vlm.family.Family.encode`; and what :meth:`maps` needs besides, here None.
        """
        return self.family.encode(self.model, pixels), None

    def prepare_images(self, before: np.ndarray, after: np.ndarray) -> Sequence[np.ndarray]:
        """A pair's images as the model is given them, uint8 RGB (H, W, 3); here as they are."""
        return before, after

    def pair_prompts(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> Sequence[PromptConfig]:
        """The question about each pair of uint8 RGB images (H, W, 3), for captions and dialogues; here the same for
        all."""
        return [self.prompt] * len(befores)

    def maps(self, pairs: Pairs) -> list[np.ndarray]:
        """A change map for each pair, as of :attr:`idc.captioning.contract.Description.change_map`; here the cosine
        distance of the projected tokens."""
        tokens = self.family.tokens_of(pairs.encoded)
        return [
            change_map(self.family, tokens[2 * pair], tokens[2 * pair + 1], pairs.of(pair))
            for pair in range(len(tokens) // 2)
        ]

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        """Captions of pairs of uint8 RGB images (H, W, 3) of any sizes; one batch."""
        if not number_of_pairs(befores, afters):
            return []
        with torch.inference_mode():
            pairs = self._encoded(befores, afters)
            return [self._text(best) for best, *_ in self._generate(pairs, self._prompts(pairs))]

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        """The candidates are the final beams."""
        beams = beams_of(options.beams, options.candidates, self.settings.beams)
        settings = self.settings.model_copy(update={"beams": beams})
        with torch.inference_mode():
            pairs = self._encoded(befores, afters)
            prompts = self._prompts(pairs)
            # Two hypotheses may have the same text: all beams are taken, so that enough texts remain.
            generated = self._generate(pairs, prompts, settings, hypotheses=beams if options.candidates > 1 else 1)
            maps = self.maps(pairs)
            evidence = [dict(zip((PEAK, MEAN), peak_and_mean(pair_map), strict=True)) for pair_map in maps]
            if self.asks_change:
                for values, odds in zip(evidence, self._yes_odds(pairs), strict=True):
                    values[YES] = odds
        familiar = [None] * len(generated) if self.familiarity is None else map(self.familiarity, befores, afters)
        descriptions = []
        for pair, (hypotheses, pair_map, familiarity) in enumerate(zip(generated, maps, familiar, strict=True)):
            texts: dict[str, Candidate] = {}
            for hypothesis in hypotheses:
                text = self._text(hypothesis)
                texts.setdefault(text, Candidate(text, hypothesis.mean))
            described = Description(
                tuple(texts.values())[: options.candidates],
                tokens=(len(prompts[pair]), sum(len(hypothesis.ids) for hypothesis in hypotheses)),
                change_map=pair_map if options.change_map else None,
                evidence=evidence[pair],
                familiarity=familiarity,
                trained_on=self.trained_on,
                seen=self._seen(pairs, pair),
            )
            descriptions.append(self._calibrated(described))
        return descriptions

    def score(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], captions: Sequence[Sequence[str]]
    ) -> list[list[CaptionScore]]:
        """See :meth:`idc.captioning.contract.Captioner.score`. A caption is cut to the maximum length of a generated
        one; if it fills that, it has no room for the end token and is scored without it, as when it is generated. Its
        tokens are those of the tokenizer: a model may have generated the same text in other pieces.

        Raises:
            ValueError: not one list of captions per pair, or a caption has the model's control tokens in it.
        """
        count = number_of_pairs(befores, afters)
        if len(captions) != count:
            raise ValueError(f"{len(captions)} lists of captions for {count} pairs; give one list per pair")
        most = self.settings.max_new_tokens
        answers = [[self.chat.answer_ids(text)[:most] for text in texts] for texts in captions]
        if not any(answers):
            return [[] for _ in captions]
        with torch.inference_mode():
            pairs = self._encoded(befores, afters)
            return self._scores(pairs, self._prompts(pairs), answers)

    def sample(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        n: int,
        *,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[list[Candidate]]:
        """See :meth:`idc.captioning.contract.Captioner.sample`.

        Raises:
            ValueError: ``n`` is below 1, or the temperature is not positive.
        """
        if n < 1 or temperature <= 0:
            raise ValueError(f"n must be at least 1 and temperature positive, got n={n}, temperature={temperature}")
        if not number_of_pairs(befores, afters):
            return []
        with torch.inference_mode():
            pairs = self._encoded(befores, afters)
            sampled = self._generate(pairs, self._prompts(pairs), hypotheses=n, temperature=temperature, seed=seed)
        return [[Candidate(self._text(hypothesis), hypothesis.mean) for hypothesis in samples] for samples in sampled]

    def answer(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        dialogues: Sequence[Sequence[Turn]],
        *,
        max_tokens: int | None = None,
        hear: Sequence[Callable[[str], None] | None] | None = None,
    ) -> list[Answer]:
        """See :meth:`idc.captioning.contract.Captioner.answer`. A dialogue without marks has both images before its
        first user turn; one without a system turn has that of the prompt."""
        count = number_of_pairs(befores, afters)
        if len(dialogues) != count:
            raise ValueError(f"{len(dialogues)} dialogues about {count} pairs; give one per pair")
        if not count:
            return []
        most = self.settings.max_new_tokens if max_tokens is None else max_tokens
        settings = GenerateConfig(max_new_tokens=most)
        prepared = [self.prepare_images(before, after) for before, after in zip(befores, afters, strict=True)]
        sizes = [(before.shape[:2], after.shape[:2]) for before, after in prepared]
        questions = self.pair_prompts(befores, afters)
        prompts = [
            self.chat.prompt(completed(dialogue, question), pair)
            for dialogue, question, pair in zip(dialogues, questions, sizes, strict=True)
        ]
        self._refuse_long(prompts, most)
        with torch.inference_mode():
            pairs = self._encoded(befores, afters, questions)
            progress = None if hear is None else self._progress(hear)
            generated = self._generate(pairs, prompts, settings, progress=progress)
        return [
            Answer(
                self._text(best),
                best.mean,
                tokens=len(best.ids),
                prompt_tokens=len(prompt),
                cut_off=not best.ended,
                seen=self._seen(pairs, pair),
            )
            for pair, ((best, *_), prompt) in enumerate(zip(generated, prompts, strict=True))
        ]

    def _encoded(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        prompts: Sequence[PromptConfig] | None = None,
    ) -> Pairs:
        images = [image for pair in zip(befores, afters, strict=True) for image in self.prepare_images(*pair)]
        pixels = self._moved(self.family.pixels(images))
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        return Pairs(sizes, prompts or self.pair_prompts(befores, afters), pixels, *self.encode(pixels))

    def _prompts(
        self, pairs: Pairs, turns_of: Callable[[PromptConfig], Sequence[Turn]] = caption_turns
    ) -> list[list[int]]:
        return [self.chat.prompt(turns_of(prompt), pairs.of(pair)) for pair, prompt in enumerate(pairs.prompts)]

    def _generate(
        self, pairs: Pairs, prompts: Sequence[Sequence[int]], settings: GenerateConfig | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        samples = [Sample(ids, [False] * len(ids), {}) for ids in prompts]
        batch = self._moved(collate_encoded(samples, self.family, side="left")) | dict(pairs.pixels)
        return generate(self.model, batch, pairs.encoded, self.family, settings or self.settings, **options)

    def _scores(
        self, pairs: Pairs, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[CaptionScore]]:
        """Of each pair the scores of its answers (ids with end tokens) to its prompt."""
        images = [(2 * pair, 2 * pair + 1) for pair in range(len(prompts))]
        totals, counts = answer_log_probabilities(
            self.model, prompts, answers, pairs.encoded, pairs.pixels, images, self.family
        )
        scores = iter([CaptionScore(*score) for score in zip(totals.tolist(), counts.tolist(), strict=True)])
        return [[next(scores) for _ in rows] for rows in answers]

    def _yes_odds(self, pairs: Pairs) -> list[float]:
        """Of each pair log p(yes) - log p(no), asked whether anything changed."""
        prompts = self._prompts(pairs, change_question)
        answers = [self.chat.answer_ids(text) for text in YES_OR_NO]
        return [yes.total - no.total for yes, no in self._scores(pairs, prompts, [answers] * len(prompts))]

    def _refuse_long(self, prompts: Sequence[Sequence[int]], most: int) -> None:
        limit = self.family.config.get_text_config().max_position_embeddings
        longest = max(map(len, prompts))
        if longest + most > limit:
            raise ValueError(
                f"the dialogue has {longest} tokens, those of the images included, and the answer up to {most}; the "
                f"model reads at most {limit}: shorten the dialogue or the answer, or lower base.max_pixels"
            )

    def _progress(self, hear: Sequence[Callable[[str], None] | None]) -> Callable[[int, Sequence[int]], None]:
        """``progress`` of :func:`idc.vlm.generate.generate` that passes on the new text of each answer."""
        heard = [""] * len(hear)

        def progress(row: int, ids: Sequence[int]) -> None:
            if (to := hear[row]) is None:
                return
            text = self.chat.decode(ids).rstrip("\ufffd")  # the end of a character whose other bytes may follow
            if len(text) > len(heard[row]) and text.startswith(heard[row]):
                to(text[len(heard[row]) :])
                heard[row] = text

        return progress

    def _seen(self, pairs: Pairs, pair: int) -> Seen:
        before, after = (self.family.content(size)[2:] for size in pairs.of(pair))
        return Seen(before, after)

    def _text(self, hypothesis: Hypothesis) -> str:
        return self.chat.decode(hypothesis.ids)

    def _calibrated(self, description: Description) -> Description:
        if self.calibration is None:
            return description
        return replace(description, changed=self.calibration(description))

    def _moved(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {key: tensor.to(self.device) for key, tensor in tensors.items()}


def dtype_of(base: BaseConfig, speed: Speed) -> BaseConfig:
    """How a base is loaded for a captioner: in bfloat16 at ``speed="bf16"``, else as it says."""
    return base.model_copy(update={"dtype": "bfloat16"}) if speed == "bf16" else base
