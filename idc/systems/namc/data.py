"""Described pairs and captioned pairs as training samples, images as tokens, and how well MIR and the image tokenizer
reconstruct them (table 9).

Every draw of a sample (caption, exchange, masks) depends on (seed, epoch, index) alone: a sample carries the uniform
numbers that NIM compares its probabilities with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.data.mapped_rows import MappedRows
from idc.data.text import BOS, EOS, PAD, Vocabulary, words
from idc.mining.descriptions.template import PairDescription, parse_description
from idc.nn.captioned_rows import CaptionedRows, ImageStore, of_validation, padded
from idc.systems.namc.config import ImageConfig
from idc.systems.namc.nim import Texts
from idc.training.data import sample_rng
from idc.training.task import Batch
from idc.vision.image_quality import psnr_ssim
from idc.vision.tokenizer.model import ImageTokenizer, to_frames

log = logging.getLogger(__name__)

_START, _LINK = (
    words("the difference between the two images is that the first image"),
    words(", while the second image"),
)
_IMAGES = ("before", "after")


class Tokens:
    """How the dual encoder reads a text: by a vocabulary of words, or by the tokenizer of a CLIP, which splits a
    word into pieces. Words beyond ``longest`` tokens are dropped."""

    def __init__(self, vocabulary: Vocabulary, longest: int, clip: Any = None):
        self.vocabulary, self.longest, self.clip = vocabulary, longest, clip

    def __call__(self, text_words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids, and the number of the word of each; -1 for begin and end."""
        if self.clip is None:
            begin, end = BOS, EOS
            pieces = [[self.vocabulary.encode(word)[1]] for word in text_words]
        else:
            begin, end = self.clip.bos_token_id, self.clip.eos_token_id
            pieces = [self.clip.encode(word, add_special_tokens=False) for word in text_words]
        ids, numbers = [begin], [-1]
        for number, piece in enumerate(pieces):
            if len(ids) + len(piece) >= self.longest:
                break
            ids += piece
            numbers += [number] * len(piece)
        return [*ids, end], [*numbers, -1]


class DescribedPairs:
    """The pairs of a split whose caption follows the structured template. ValueError: no pair is described.

    Args:
        free: also take pairs whose captions do not follow it, with their first caption as the whole text; they have no
            description per image, so that only generation can learn from them, and they are not exchanged.
        positions: n_I, of the masks.
        exchange: every other sample has images and descriptions exchanged.
        share: of the pairs that is used, the first in a fixed random order.
    """

    def __init__(
        self,
        pairs: str,
        split: str,
        *,
        images: ImageStore,
        vocabulary: Vocabulary,
        tokens: Tokens,
        positions: int,
        length: int,
        seed: int,
        free: bool = False,
        exchange: bool = False,
        share: float = 1.0,
    ):
        self.rows = MappedRows(pairs, ("pair_id", *_IMAGES, "captions"), split)
        self.images, self.vocabulary, self.tokens = images, vocabulary, tokens
        self.positions, self.length, self.seed, self.exchange = positions, length, seed, exchange
        self.described: list[tuple[int, PairDescription | str]] = []
        for index, texts in enumerate(self.rows.column("captions")):
            description = first_description(texts)
            if description is not None or (free and texts):
                self.described.append((index, description or texts[0]))
        if not self.described:
            raise ValueError(
                f"{pairs}: no pair of split {split!r} has a caption that follows the template; make descriptions with "
                "jobs/describe_pairs.py"
            )
        if missing := len(self.rows) - len(self.described):
            log.warning(
                "%s, %s: %d of %d pairs have no description and are left out", pairs, split, missing, len(self.rows)
            )
        if share < 1:
            order = np.random.default_rng(0).permutation(len(self.described))
            self.described = [self.described[i] for i in sorted(order[: max(1, round(share * len(order)))])]

    def __len__(self) -> int:
        return len(self.described)

    def get(self, index: int, epoch: int) -> dict[str, Any]:
        row_index, description = self.described[index]
        row = self.rows[row_index]
        rng = sample_rng(self.seed, epoch, index)
        texts: list[list[str]] = [[], []]
        if isinstance(description, str):
            order = [0, 1]
            sentence = words(description)
            indices = [(-1, -1)] * len(sentence)
        else:
            order = [1, 0] if self.exchange and rng.random() < 0.5 else [0, 1]
            slots = [(description.verb_before, description.before), (description.verb_after, description.after)]
            texts = [words(slots[side][1]) for side in order]
            sentence, indices = sentence_words([slots[side][0] for side in order], texts)
        pictures = [self.images(row[_IMAGES[side]]) for side in order]
        ids = self.vocabulary.encode(" ".join(sentence), self.length)
        most = max(map(len, texts))
        return {
            "images": np.stack([picture for picture, _ in pictures]),
            "keys": [key for _, key in pictures],
            "texts": [self.tokens(text) for text in texts],
            "ids": ids,
            "places": indices[: len(ids) - 2],
            "uniform_images": rng.random((2, self.positions), dtype=np.float32),
            "uniform_texts": rng.random((2, most), dtype=np.float32),
        }


def first_description(captions: Iterable[str]) -> PairDescription | None:
    """The first caption that follows the template, read."""
    for caption in captions:
        try:
            return parse_description(caption)
        except ValueError:
            continue
    return None


def sentence_words(verbs: Sequence[str], texts: Sequence[Sequence[str]]) -> tuple[list[str], list[tuple[int, int]]]:
    """The words of the whole description; and of each the image and the number of the word in that image's text, or
    (-1, -1) for the words of the template."""
    out, indices = list(_START), [(-1, -1)] * len(_START)
    for image, (verb, text) in enumerate(zip(verbs, texts, strict=True)):
        if image:
            out += _LINK
            indices += [(-1, -1)] * len(_LINK)
        out += [*words(verb), *text]
        indices += [(-1, -1)] * len(words(verb)) + [(image, number) for number in range(len(text))]
    return out, indices


def collate_described(samples: Sequence[dict[str, Any]]) -> Batch:
    """A batch of B described pairs; everything per image or text has all befores first, N = 2 * B.

    images (N, S, S, 3) uint8; keys: N; text: :class:`~idc.systems.namc.nim.Texts`; ids, targets (B, L); place (B, L):
    for each target the position of its word in the masks flattened to N * W, or -1; uniform_images (N, P),
    uniform_texts (N, W).
    """
    count = len(samples)
    texts = _by_side(samples, "texts")
    most = max(1, *(max(numbers) + 1 for _, numbers in texts))  # W
    uniform = np.ones((2 * count, most), np.float32)  # a word that does not exist is never masked
    for row, numbers in enumerate(_by_side(samples, "uniform_texts")):
        drawn = numbers[:most]
        uniform[row, : len(drawn)] = drawn
    ids = padded([sample["ids"] for sample in samples], PAD)
    mask_index = np.full((count, ids.shape[1] - 1), -1)
    for row, sample in enumerate(samples):
        for position, (side, number) in enumerate(sample["places"]):
            if 0 <= number < most:
                mask_index[row, position] = (side * count + row) * most + number
    return {
        "images": torch.from_numpy(np.stack(_by_side(samples, "images"))),
        "keys": _by_side(samples, "keys"),
        "text": {
            "ids": padded([ids for ids, _ in texts], PAD),
            "words": padded([numbers for _, numbers in texts], -1),
            "end": torch.tensor([len(ids) - 1 for ids, _ in texts]),
            "num_words": most,
        },
        "ids": ids[:, :-1],
        "targets": ids[:, 1:],
        "place": torch.from_numpy(mask_index),
        "uniform_images": torch.from_numpy(np.stack(_by_side(samples, "uniform_images"))),
        "uniform_texts": torch.from_numpy(uniform),
    }


def texts_of(batch: Batch) -> Texts:
    """The texts of a batch of described pairs."""
    return Texts(**batch["text"])


def _by_side(samples: Sequence[dict[str, Any]], name: str) -> list[Any]:
    """What samples have of each image, all befores first."""
    return [sample[name][side] for side in range(2) for sample in samples]


class CaptionedPairs(CaptionedRows):
    """The pairs of a split that have captions: of ``training`` one of each pair and epoch, drawn, or all
    (``references``); of validation the first, with what is compared."""

    def __init__(
        self,
        pairs: str,
        split: str,
        *,
        images: ImageStore,
        vocabulary: Vocabulary,
        length: int,
        seed: int,
        training: bool,
        references: str = "drawn",
    ):
        super().__init__(pairs, split, vocabulary, length, seed)
        self.images, self.training, self.references = images, training, references

    def get(self, index: int, epoch: int) -> dict[str, Any]:
        number = self.order[index]
        row, captions = self.rows[number], self.captions[number]
        pictures = [self.images(row[side]) for side in _IMAGES]
        sample = {"images": np.stack([picture for picture, _ in pictures]), "keys": [key for _, key in pictures]}
        if self.training:
            if self.references == "all":
                return {**sample, "captions": [self.vocabulary.encode(caption, self.length) for caption in captions]}
            caption = captions[int(sample_rng(self.seed, epoch, index).integers(len(captions)))]
            return {**sample, "ids": self.vocabulary.encode(caption, self.length)}
        return {**sample, "ids": self.vocabulary.encode(captions[0], self.length), **self.scored(row)}


def collate_captioned(samples: Sequence[dict[str, Any]]) -> Batch:
    """images (N, S, S, 3) uint8 with all befores first, keys: N, ids and targets (R, T), of each pair as many rows as
    the one with most captions has, padding where it has less; pair_id, references and scene of a validation split."""
    captions = [sample["captions"] if "captions" in sample else [sample["ids"]] for sample in samples]
    most = max(map(len, captions))
    ids = padded([row for rows in captions for row in [*rows, *[[PAD]] * (most - len(rows))]], PAD)
    return {
        "images": torch.from_numpy(np.stack(_by_side(samples, "images"))),
        "keys": _by_side(samples, "keys"),
        "ids": ids[:, :-1],
        "targets": ids[:, 1:],
        **of_validation(samples),
    }


class FeatureCache:
    """``compute`` of images (N, H, W, 3) uint8 to (N, ...), with a memory of its results by the images' keys: on the
    CPU, in float16 where they are floating point."""

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor], megabytes: float):
        self.compute, self.room = compute, int(megabytes * 2**20)
        self.results: dict[bytes, torch.Tensor] = {}

    def __call__(self, images: torch.Tensor, keys: Sequence[bytes]) -> torch.Tensor:
        unknown = {key: row for row, key in enumerate(keys) if key not in self.results}
        fresh: dict[bytes, torch.Tensor] = {}
        if unknown:
            computed = self.compute(images[list(unknown.values())])
            computed = computed.half() if computed.is_floating_point() else computed
            for key, result in zip(unknown, computed.cpu(), strict=True):
                fresh[key] = result
                size = result.numel() * result.element_size()
                if self.room >= size:
                    self.results[key] = result.clone()
                    self.room -= size
        rows = [fresh[key] if key in fresh else self.results[key] for key in keys]
        out = torch.stack(rows).to(images.device)
        return out.float() if out.is_floating_point() else out


CPU_IMAGES = 8
"""Images that frozen parts read at once: what is between their layers then stays in the cache."""


def load_tokenizer(path: str, image: ImageConfig, device: torch.device) -> ImageTokenizer:
    """A frozen image tokenizer with the same grid."""
    tokenizer = ImageTokenizer.load(path).eval().requires_grad_(False).to(device)
    if tokenizer.config.grid[0] != image.grid:
        raise ValueError(
            f"tokenizer: {path} has {tokenizer.config.grid[0]} patches per side, image.grid is {image.grid}; train one "
            "with the same grid"
        )
    return tokenizer


def scaled(images: Tensor, size: int) -> Tensor:
    """uint8 images (N, S, S, 3) as floats (N, 3, size, size) in [0, 1]."""
    pixels = images.permute(0, 3, 1, 2).float() / 255
    if images.shape[1] == size:
        return pixels
    # Bicubic weights are partly negative, so edges overshoot.
    return F.interpolate(pixels, (size, size), mode="bicubic", antialias=True).clamp(0, 1)


def image_tokens(tokenizer: ImageTokenizer) -> Callable[[Tensor], Tensor]:
    """The tokens z_i (N, P) of uint8 images."""

    @torch.no_grad()
    def compute(images: Tensor) -> Tensor:
        out = []
        for part in images.split(CPU_IMAGES):
            out.append(tokenizer.encode(scaled(part, tokenizer.config.image_size)).flatten(1).to(torch.int32))
        return torch.cat(out)

    return compute


@torch.no_grad()
def reconstruction_quality(
    tokenizer: ImageTokenizer, images_NHWC: Tensor, tokens_NP: Tensor, guessed_NP: Tensor
) -> list[dict[str, float]]:
    """Of each image PSNR and SSIM between the image itself (raw), what its tokens show (vqgan), and what they show with
    the masked ones predicted (mir)."""
    out = []
    for images, tokens, guessed in zip(
        *(x.split(CPU_IMAGES) for x in (images_NHWC, tokens_NP, guessed_NP)), strict=True
    ):
        shown = scaled(images, tokenizer.config.image_size), tokenizer.decode(tokens), tokenizer.decode(guessed)
        for raw, vqgan, mir in zip(*map(to_frames, shown), strict=True):
            for_image = {}
            for name, pair in {"mir_vqgan": (vqgan, mir), "vqgan_raw": (raw, vqgan), "mir_raw": (raw, mir)}.items():
                for_image[f"psnr_{name}"], for_image[f"ssim_{name}"] = psnr_ssim(*pair)
            out.append(for_image)
    return out
