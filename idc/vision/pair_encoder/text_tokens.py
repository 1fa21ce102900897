"""Captions to ids for the pair encoder: the words of a data set's own captions, or CLIP's byte pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from idc.data.text import Vocabulary
from idc.vision.pretrained import load_pretrained


class TextTokens(Protocol):
    """A callable that maps texts to ids."""

    def __len__(self) -> int:
        """Number of ids."""
        ...

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns (ids int64 (C, T) padded with 0, position of each text's end token int64 (C,))."""
        ...


class WordTokens:
    """Ids of the words of a data set's own captions."""

    def __init__(self, vocabulary: Vocabulary, max_words: int) -> None:
        self.vocabulary = vocabulary
        self.max_words = max_words

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        return _padded([self.vocabulary.encode(text, self.max_words) for text in texts])


def clip_tokenizer(source: str | Path) -> Any:
    """Load CLIP's tokenizer (of transformers) from a local folder or a hub id; ValueError if there is none."""
    from transformers import CLIPTokenizer

    return load_pretrained(CLIPTokenizer, source, "clip_tokenizer")


class BpeTokens:
    """Ids of CLIP's byte pairs, by the tokenizer of a local folder or a hub id."""

    def __init__(self, source: str | Path, max_words: int) -> None:
        self.tokenizer = clip_tokenizer(source)
        self.max_words = max_words

    def __len__(self) -> int:
        return len(self.tokenizer)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        inner = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return _padded([[first, *ids[: self.max_words - 2], last] for ids in inner])


def _padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(len(rows), max((len(row) for row in rows), default=1), dtype=torch.int64)
    for n, row in enumerate(rows):
        ids[n, : len(row)] = torch.tensor(row)
    return ids, torch.tensor([len(row) - 1 for row in rows], dtype=torch.int64)
