"""A vision-language model as a captioner: captions, candidates, scores, samples, answers in dialogues, change maps.

One vision pass serves everything that is asked about a batch of pairs. A system whose model does more with the images
than its base subclasses :class:`VlmCaptioner` and overrides :meth:`VlmCaptioner.encode`, for change maps of its own
:meth:`VlmCaptioner.maps`, and for questions that depend on the images :meth:`VlmCaptioner.pair_prompts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idc.captioning.calibration import YES, AssessedCaptioner
from idc.captioning.contract import (
    Answer,
    Candidate,
    Capability,
    CaptionScore,
    Description,
    Images,
    InputSize,
    SearchOptions,
    Speed,
    number_of_pairs,
)
from idc.data.schema import Turn
from idc.vlm.batch import collate_encoded, prompt_sample
from idc.vlm.chat import YES_OR_NO, Chat, Size, caption_turns, change_question, with_default_turns
from idc.vlm.config import BaseConfig, GenerateConfig, PromptConfig
from idc.vlm.family import Family
from idc.vlm.generate import Hypothesis, generate
from idc.vlm.logps import answer_log_probabilities, sums_of_answers

PEAK, MEAN = "change_peak", "change_mean"
"""Names of the evidence of a change: of the change map."""


@dataclass(frozen=True)
class Pairs:
    """Pairs whose images are encoded, before and after alternating.

    Attributes:
        sizes: height and width of each image as the model is given it (:meth:`VlmCaptioner.prepare_images`).
        prompts: the question about each pair.
        pixels: see :meth:`idc.vlm.family.Family.pixels`, on the model's device.
        encoded, more: see :meth:`VlmCaptioner.encode`.
    """

    sizes: Sequence[Size]
    prompts: Sequence[PromptConfig]
    pixels: Mapping[str, Tensor]
    encoded: Any
    more: Any = None

    def of(self, pair: int) -> tuple[Size, Size]:
        """The sizes of a pair's images."""
        return self.sizes[2 * pair], self.sizes[2 * pair + 1]


class DialogueCaptioner(AssessedCaptioner):
    """What a captioner whose model runs here shares with one behind an endpoint (:mod:`idc.vlm.remote`). ValueError:
    the model's tokenizer has no chat template or no end token, or the prompt contains control tokens.

    Args:
        settings: how captions are generated, by default.
        path, trained_on, evidence: as in :class:`idc.captioning.calibration.AssessedCaptioner`.
    """

    reads_counts: bool = True
    reads_criteria: bool = True

    def __init__(
        self,
        family: Family,
        prompt: PromptConfig,
        settings: GenerateConfig,
        *,
        path: Path | None = None,
        trained_on: str | None = None,
        evidence: Sequence[str] = (),
    ):
        super().__init__(path, trained_on, evidence)
        self.family, self.prompt, self.settings = family, prompt, settings
        self.chat = Chat(family)
        self.chat.prompt(caption_turns(prompt), [(32, 32)] * 2)  # refuses control tokens before anything is captioned
        self.asks_change = self.calibration is not None and YES in self.calibration.inputs

    def _input_size(self, sizes: Sequence[Size]) -> InputSize:
        before, after = (self.family.content(size)[2:] for size in sizes)
        return InputSize(before, after)


class VlmCaptioner(DialogueCaptioner):
    """Also computes change maps, scores, samples and answers. ``model``: the transformers model, in evaluation mode on
    its device (of a PEFT model, ``get_base_model()``, whose layers contain the adapters)."""

    capabilities: frozenset[Capability] = frozenset(("map", "score", "sample", "answer"))

    def __init__(self, model: Any, *arguments: Any, **options: Any):
        super().__init__(*arguments, evidence=(PEAK, MEAN), **options)
        self.model = model

    # -- what a system overrides ---------------------------------------------------------------------------------------

    def encode(self, pixels: Mapping[str, Tensor]) -> tuple[Any, Any]:
        """Features of the images of pairs, before and after alternating (:meth:`idc.vlm.family.Family.encode`), and
        what :meth:`maps` needs besides, here None."""
        return self.family.encode(self.model, pixels), None

    def prepare_images(self, before: np.ndarray, after: np.ndarray) -> Sequence[np.ndarray]:
        """A pair's images as the model is given them, uint8 RGB (H, W, 3); here unchanged."""
        return before, after

    def pair_prompts(self, befores: Images, afters: Images) -> Sequence[PromptConfig]:
        """The question about each pair of uint8 RGB images (H, W, 3), for captions and dialogues; here one for all."""
        return [self.prompt] * len(befores)

    def maps(self, pairs: Pairs) -> list[np.ndarray]:
        """A change map for each pair (:attr:`idc.captioning.contract.Description.change_map`); here the cosine distance
        of the projected tokens."""
        tokens = self.family.tokens_of(pairs.encoded)
        return [
            change_map(self.family, tokens[2 * pair], tokens[2 * pair + 1], pairs.of(pair))
            for pair in range(len(tokens) // 2)
        ]

    # -- the contract --------------------------------------------------------------------------------------------------

    def __call__(self, befores: Images, afters: Images) -> list[str]:
        if not number_of_pairs(befores, afters):
            return []
        with torch.inference_mode():
            pairs = self._encoded(befores, afters)
            return [self.chat.decode(best.ids) for best, *_ in self._generate(pairs, self._prompts(pairs))]

    def _describe(self, befores: Images, afters: Images, options: SearchOptions) -> list[Description]:
        """The candidates are the final beams."""
        beams = options.beams_of(self.settings.beams)
        settings = self.settings.model_copy(update={"beams": beams})
        with torch.inference_mode():
            pairs = self._encoded(befores, afters)
            prompts = self._prompts(pairs, partial(caption_turns, paragraph=options.paragraph))
            # Two hypotheses may have the same text: all beams are taken, so that enough texts remain.
            generated = self._generate(pairs, prompts, settings, hypotheses=beams if options.candidates > 1 else 1)
            maps = self.maps(pairs)
            odds = [{YES: odds} for odds in self._yes_odds(pairs)] if self.asks_change else [{}] * len(maps)
        return [
            self._description(
                befores[pair],
                afters[pair],
                map(self._candidate, hypotheses),
                options.candidates,
                tokens=(len(prompts[pair]), sum(len(hypothesis.ids) for hypothesis in hypotheses)),
                change_map=maps[pair] if options.change_map else None,
                evidence={PEAK: float(maps[pair].max()), MEAN: float(maps[pair].mean()), **odds[pair]},
                input_size=self._input_size(pairs.of(pair)),
            )
            for pair, hypotheses in enumerate(generated)
        ]

    def score(self, befores: Images, afters: Images, captions: Sequence[Sequence[str]]) -> list[list[CaptionScore]]:
        """See :meth:`idc.captioning.contract.Captioner.score`. A caption is cut to the maximum length of a generated
        one; if it fills that, it is scored without an end token, as when it is generated. A caption is tokenized anew:
        a model may have generated the same text in other tokens. Control tokens in a caption are a ValueError."""
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
        self, befores: Images, afters: Images, n: int, *, temperature: float = 1.0, seed: int = 0
    ) -> list[list[Candidate]]:
        if n < 1 or temperature <= 0:
            raise ValueError(f"n must be at least 1 and temperature positive, got n={n}, temperature={temperature}")
        if not number_of_pairs(befores, afters):
            return []
        with torch.inference_mode():
            pairs = self._encoded(befores, afters)
            shape = (len(befores), n, self.settings.max_new_tokens)
            draws = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
            prompts = self._prompts(pairs)
            sampled = self._generate(pairs, prompts, hypotheses=n, temperature=temperature, draws=draws)
        return [[self._candidate(hypothesis) for hypothesis in samples] for samples in sampled]

    def answer(
        self,
        befores: Images,
        afters: Images,
        dialogues: Sequence[Sequence[Turn]],
        *,
        max_tokens: int | None = None,
        on_text: Sequence[Callable[[str], None] | None] | None = None,
    ) -> list[Answer]:
        """See :meth:`idc.captioning.contract.Captioner.answer` and :func:`idc.vlm.chat.with_default_turns`."""
        count = number_of_pairs(befores, afters)
        if len(dialogues) != count:
            raise ValueError(f"{len(dialogues)} dialogues about {count} pairs; give one per pair")
        if not count:
            return []
        most = self.settings.max_new_tokens if max_tokens is None else max_tokens
        prepared = [self.prepare_images(before, after) for before, after in zip(befores, afters, strict=True)]
        questions = self.pair_prompts(befores, afters)
        prompts = [
            self.chat.prompt(with_default_turns(dialogue, question), [image.shape[:2] for image in pair])
            for dialogue, question, pair in zip(dialogues, questions, prepared, strict=True)
        ]
        limit, longest = self.family.config.get_text_config().max_position_embeddings, max(map(len, prompts))
        if longest + most > limit:  # before the images are encoded
            raise ValueError(
                f"the dialogue has {longest} tokens, those of the images included, and the answer up to {most}; the "
                f"model reads at most {limit}: shorten the dialogue or the answer, or lower base.max_pixels"
            )
        with torch.inference_mode():
            pairs = self._encoded(befores, afters, questions)
            progress = None if on_text is None else self._progress(on_text)
            generated = self._generate(pairs, prompts, GenerateConfig(max_new_tokens=most), progress=progress)
        return [
            Answer(
                self.chat.decode(best.ids),
                best.mean,
                tokens=len(best.ids),
                prompt_tokens=len(prompt),
                cut_off=not best.ended,
                input_size=self._input_size(pairs.of(pair)),
            )
            for pair, ((best, *_), prompt) in enumerate(zip(generated, prompts, strict=True))
        ]

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _encoded(self, befores: Images, afters: Images, prompts: Sequence[PromptConfig] | None = None) -> Pairs:
        images = [image for pair in zip(befores, afters, strict=True) for image in self.prepare_images(*pair)]
        pixels = self._to_device(self.family.pixels(images))
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        return Pairs(sizes, prompts or self.pair_prompts(befores, afters), pixels, *self.encode(pixels))

    def _prompts(
        self, pairs: Pairs, turns_of: Callable[[PromptConfig], Sequence[Turn]] = caption_turns
    ) -> list[list[int]]:
        return [self.chat.prompt(turns_of(prompt), pairs.of(pair)) for pair, prompt in enumerate(pairs.prompts)]

    def _generate(
        self, pairs: Pairs, prompts: Sequence[Sequence[int]], settings: GenerateConfig | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        batch = collate_encoded([prompt_sample(ids) for ids in prompts], self.family, side="left")
        inputs = self._to_device(batch) | dict(pairs.pixels)
        return generate(self.model, inputs, pairs.encoded, self.family, settings or self.settings, **options)

    def _scores(
        self, pairs: Pairs, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[CaptionScore]]:
        images = [(2 * pair, 2 * pair + 1) for pair in range(len(prompts))]
        logs_K = answer_log_probabilities(
            self.model, prompts, answers, pairs.encoded, pairs.pixels, images, self.family
        )
        totals, counts = sums_of_answers(logs_K, answers)
        scores = iter([CaptionScore(*score) for score in zip(totals.tolist(), counts.tolist(), strict=True)])
        return [[next(scores) for _ in rows] for rows in answers]

    def _yes_odds(self, pairs: Pairs) -> list[float]:
        prompts = self._prompts(pairs, change_question)
        answers = [self.chat.answer_ids(text) for text in YES_OR_NO]
        return [yes.total - no.total for yes, no in self._scores(pairs, prompts, [answers] * len(prompts))]

    def _progress(self, on_text: Sequence[Callable[[str], None] | None]) -> Callable[[int, Sequence[int]], None]:
        """``progress`` of :func:`idc.vlm.generate.generate` that passes on the new text of each answer."""
        heard = [""] * len(on_text)

        def progress(row: int, ids: Sequence[int]) -> None:
            if (to := on_text[row]) is None:
                return
            text = self.chat.decode(ids).rstrip("\ufffd")  # the first bytes of a character whose others may follow
            if len(text) > len(heard[row]) and text.startswith(heard[row]):
                to(text[len(heard[row]) :])
                heard[row] = text

        return progress

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        return Candidate(self.chat.decode(hypothesis.ids), hypothesis.mean)

    def _to_device(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {key: tensor.to(self.model.device) for key, tensor in tensors.items()}


def dtype_of(base: BaseConfig, speed: Speed) -> BaseConfig:
    return base.model_copy(update={"dtype": "bfloat16"}) if speed == "bf16" else base


def change_map(family: Family, before: Tensor, after: Tensor, sizes: tuple[Size, Size]) -> np.ndarray:
    """The change map over the image after, float32 (Y, X) in [0, 1], without padding: 1 minus the cosine similarity of
    the tokens (T, D) in the same position, as the language model reads them, cut at 1. Features of a grid of another
    shape than the image after's are resized to it first. ``sizes``: height and width of the images as given."""
    grids = [family.grid(size) for size in sizes]
    first, second = (
        tokens[: rows * columns].float().view(rows, columns, -1).permute(2, 0, 1)[None]
        for tokens, (rows, columns) in zip((before, after), grids, strict=True)
    )
    if grids[0] != grids[1]:
        first = F.interpolate(first, size=grids[1], mode="bilinear", align_corners=False)
    distance_YX = 1 - F.cosine_similarity(first[0].permute(1, 2, 0), second[0].permute(1, 2, 0), dim=-1)
    return _without_padding(family, distance_YX.clamp(0, 1).cpu().numpy(), sizes[1])


def token_distance_map(family: Family, distances: Tensor, positions: Tensor, size: Size) -> np.ndarray:
    """The change map, float32 (Y, X) without padding, of distances in [0, 1] (T,) between tokens of the tower, whose
    rows and columns (T, 2) fill a grid. ``size``: height and width of the image after as given."""
    rows, columns = (int(count) for count in positions.max(dim=0).values + 1)
    distance_YX = distances.new_zeros(rows, columns)
    distance_YX[positions[:, 0], positions[:, 1]] = distances
    return _without_padding(family, distance_YX.float().cpu().numpy(), size)


def _without_padding(family: Family, distances: np.ndarray, size: Size) -> np.ndarray:
    """The part of a map over a padded image that is over the image itself; its edges need not be those of tokens."""
    top, left, height, width = family.content(size)
    seen = family.seen_size(size)
    if (height, width) == seen:
        return distances
    rows, columns = (count / length for count, length in zip(distances.shape, seen, strict=True))
    box = (left * columns, top * rows, (left + width) * columns, (top + height) * rows)
    shape = (max(1, round(width * columns)), max(1, round(height * rows)))
    cut = Image.fromarray(distances).resize(shape, Image.Resampling.BILINEAR, box=box)
    return np.asarray(cut, np.float32)
