"""Named protocols: how captions are prepared before they are scored. The scorers are the same for all.

=========== ==================================================================================================
coco        PTB tokens, all references of a pair (DUDA, CLIP4IDC, ProCap and most others)
spot_single the same; a pair of Spot-the-Diff has all sentences of all its annotators as references
spot_multi  the same; a pair's references are joined to one, as in CARD's ``change_multi_captions.json``; in both an
            empty sentence is a reference without words, as the published code counts it
levir_ids   no PTB: strings of token ids, as RSICC, Chg2Cap and Change-Agent score them (``get_eval_score``)
levir_words the same tokens as words, so that METEOR matches stems and synonyms and no two words are one <UNK>
characters  no PTB: each character of a script without spaces between words (Chinese, Japanese, Thai, Lao, Burmese,
            Khmer) is a token, of other scripts each word
=========== ==================================================================================================
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from idc.data.textfiles import decode_text, parse_json
from idc.metrics.java import tokenize

ProtocolName = Literal["coco", "levir_ids", "levir_words", "spot_single", "spot_multi", "characters"]

LEVIR = ("levir_ids", "levir_words")
SPOT = ("spot_single", "spot_multi")
"""Protocols in which an empty reference counts. 7 of the 1,270 test pairs have an empty sentence and no other,
and the published scores come from pycocoevalcap, for which that is a reference without words: such a pair scores 0, its
caption adds to the lengths in BLEU and METEOR, and it is one of CIDEr's documents."""
EXTRA_PROTOCOLS: dict[str, tuple[ProtocolName, ...]] = {
    "levir_ids": ("levir_words", "coco"),
    "levir_words": ("levir_ids", "coco"),
}
"""Protocol -> further ones whose scores are also printed, because papers mix them."""

_SPECIALS = ("<NULL>", "<UNK>", "<START>", "<END>")
_STRIPPED = frozenset({"<null>", "<start>", "<end>"})
_RARE = 5
"""Words counted so often or less are unknown (Change-Agent, ``preprocess_data.py``)."""

_SPOT_WORDS = 60
"""Maximum length of the joined sentences in CARD's file: with ". " between them it yields all its 11,329 captions."""

_PTB = "PTB (Stanford CoreNLP 3.4.1), lower-cased, punctuation dropped"
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""A character of a script without spaces between words; the other protocols take a run of them as one word."""
_CHARACTERS = re.compile(rf"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\w)+")

_LEVIR_WORDS = "none: split at spaces, ';' and ',' are words, '?' and '.' are dropped, lower-cased"


@dataclass(frozen=True)
class Protocol:
    """A protocol ready for use: captions to strings of tokens, the description of the numbers for the record, and
    whether ``tokens`` runs Java (METEOR does in any case)."""

    name: ProtocolName
    tokens: Callable[[Sequence[str]], list[str]]
    text: Mapping[str, str]
    needs_java: bool = True


def get_protocol(name: ProtocolName, vocabulary: LevirVocabulary | None = None) -> Protocol:
    """The protocol of that name; ``levir_ids`` needs a vocabulary."""
    if name == "levir_ids":
        assert vocabulary is not None
        text = {
            "tokenizer": f"{_LEVIR_WORDS}; then each word's id as text. Words outside the vocabulary are all <UNK>, "
            "and <UNK> matches <UNK>; METEOR sees numbers: no stems, synonyms or function words of English",
            "vocabulary": vocabulary.text,
            "references": "all references of a pair, <START>, <END> and <NULL> stripped",
        }
        return Protocol(name, vocabulary.id_strings, text, needs_java=False)
    if name == "levir_words":
        text = {
            "tokenizer": f"{_LEVIR_WORDS}; the words themselves, none is <UNK>",
            "references": "all references of a pair",
        }
        return Protocol(name, lambda captions: [" ".join(levir_words(text)) for text in captions], text, False)
    if name == "characters":
        text = {
            "tokenizer": "none: each character of a script without spaces, each word of other scripts, lower-cased; "
            "punctuation dropped",
            "references": "all references of a pair",
        }
        return Protocol(
            name, lambda captions: [" ".join(_CHARACTERS.findall(text.lower())) for text in captions], text, False
        )
    references = {
        "coco": "all references of a pair",
        "spot_single": "all sentences of all annotators of a pair",
        "spot_multi": f'one: the sentences of a pair joined by ". " and cut after {_SPOT_WORDS} words (CARD)',
    }[name]
    return Protocol(name, tokenize, {"tokenizer": _PTB, "references": references})


def references_of(name: ProtocolName, captions: Sequence[str]) -> list[str]:
    """The references of a pair as the protocol has them."""
    if name == "spot_multi" and len(captions) > 1:
        return [" ".join(". ".join(captions).split()[:_SPOT_WORDS])]
    return list(captions)


def levir_words(caption: str) -> list[str]:
    """The tokens of a caption as Change-Agent's ``tokenize`` makes them.

    It does not lower-case, but the official captions are lower-case already; captions made elsewhere may not be.
    """
    text = caption.lower()
    for mark in (";", ","):
        text = text.replace(mark, f" {mark}")
    for mark in ("?", "."):
        text = text.replace(mark, "")
    return [word for word in text.split() if word not in _STRIPPED]


class LevirVocabulary:
    """The ids of words: 0 to 3 are ``<NULL> <UNK> <START> <END>``, then words in alphabetical order.

    Attributes:
        text: how it came about, for the record.
    """

    def __init__(self, ids: Mapping[str, int], text: str) -> None:
        self._ids = dict(ids)
        self.text = f"{len(self._ids)} ids, {text}"

    @classmethod
    def build(cls, captions: Iterable[str], of: str) -> LevirVocabulary:
        """The words that are counted more than five times in all captions of all splits.

        Args:
            of: what the captions are, in words.
        """
        texts = list(captions)
        counts = Counter(word for caption in texts for word in levir_words(caption))
        kept = sorted(word for word, count in counts.items() if count > _RARE)
        ids = {word: index for index, word in enumerate((*_SPECIALS, *kept))}
        return cls(ids, f"words counted more than {_RARE} times in the {len(texts)} captions of {of}")

    @classmethod
    def read(cls, path: str) -> LevirVocabulary:
        """The official ``vocab.json``: ``{word: id}`` with the four special marks first.

        Raises:
            ValueError: the file is something else.
        """
        try:
            ids = parse_json(decode_text(Path(path).read_bytes()))
            right = [ids[mark] for mark in _SPECIALS] == [0, 1, 2, 3] and all(isinstance(i, int) for i in ids.values())
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"vocabulary: {path} is not an official vocab.json ({error!r})") from None
        if not right or len(set(ids.values())) != len(ids):
            raise ValueError(f"vocabulary: {path} should give 0 to 3 to {', '.join(_SPECIALS)}, and an id to each word")
        return cls(ids, f"those of {Path(path).name}")

    def id_strings(self, captions: Sequence[str]) -> list[str]:
        """Every caption as ids separated by spaces."""
        unknown = self._ids["<UNK>"]
        return [" ".join(str(self._ids.get(word, unknown)) for word in levir_words(caption)) for caption in captions]
