"""Captions as words and as numbers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from idc.data.textfiles import decode_text, parse_json
from idc.util.atomic import write_text

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
PROCAP_SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]", "[MASK]")
"""The first eight ids of the official ProCap vocabularies; four of them are never used."""


class SpecialIds(NamedTuple):
    """Ids of padding, beginning, end and the unknown word."""

    pad: int = PAD
    bos: int = BOS
    eos: int = EOS
    unk: int = UNK


OWN_IDS = SpecialIds()


_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*|[;,]")
_MARKS = (";", ",")


def words(caption: str) -> list[str]:
    """Lower-case words of a caption: letters and digits with inner ``-`` and ``'``; ``;`` and ``,`` are words.

    Other punctuation is dropped, as in CLEVR-Change's preprocessing (DUDA ``preprocess_captions.py``).
    """
    return _WORD.findall(caption.lower().replace("\u2019", "'"))


def map_words(caption: str, change: Callable[[str], str]) -> str:
    """The caption in lower case with every word replaced by ``change(word)``; text between the words is kept, and ``;``
    and ``,`` are not words here."""
    text = caption.lower().replace("\u2019", "'")
    return _WORD.sub(lambda match: match[0] if match[0] in _MARKS else change(match[0]), text)


class Vocabulary:
    """A fixed list of words; the first ids are those of the special marks, then ``words`` in order.

    Attributes:
        words: the words without the special marks.
        layout: ``own``: ids 0 to 3 are padding, beginning, end and unknown. ``procap``: the eight special ids of the
            official ProCap checkpoints, see :data:`PROCAP_SPECIALS`.
        special: ids of the marks.
    """

    def __init__(self, words: Sequence[str], layout: Literal["own", "procap"] = "own") -> None:
        self.words = list(words)
        self.layout = layout
        self._marks = SPECIALS if layout == "own" else PROCAP_SPECIALS
        self.special = OWN_IDS if layout == "own" else SpecialIds(pad=0, bos=4, eos=5, unk=6)
        self._ids = {word: index + len(self._marks) for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            double = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"the vocabulary has the word {double!r} more than once")

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 1) -> Vocabulary:
        """The words that occur at least ``min_count`` times, the most frequent first, equal counts alphabetically."""
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(words(caption))
        kept = [(word, count) for word, count in counts.items() if count >= min_count]
        return cls([word for word, _ in sorted(kept, key=lambda item: (-item[1], item[0]))])

    def __len__(self) -> int:
        return len(self.words) + len(self._marks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self.words, self.layout) == (other.words, other.layout)

    __hash__ = None  # type: ignore[assignment]

    def encode(self, caption: str, max_len: int | None = None) -> list[int]:
        """``[bos, ..., eos]``; with ``max_len``, words at the end are dropped to keep that number of ids."""
        if max_len is not None and max_len < 2:
            raise ValueError(f"max_len is {max_len}; a caption needs at least 2 ids (beginning and end)")
        ids = [self._ids.get(word, self.special.unk) for word in words(caption)]
        if max_len is not None:
            ids = ids[: max_len - 2]
        return [self.special.bos, *ids, self.special.eos]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end mark; padding and beginning marks are dropped.

        In the layout ``procap`` as in the official code: words joined by blanks, also before ``;`` and ``,``, only the
        first beginning mark dropped, other marks kept as words, characters outside ASCII dropped.
        """
        out: list[str] = []
        begun = False
        for index in ids:
            index = int(index)
            if index == self.special.eos:
                break
            if not 0 <= index < len(self):
                raise ValueError(f"id {index} is outside the vocabulary of {len(self)} ids")
            if index == self.special.pad:
                continue
            if index == self.special.bos and not (begun and self.layout == "procap"):
                begun = True
                continue
            begun = True
            out.append(self._marks[index] if index < len(self._marks) else self.words[index - len(self._marks)])
        text = " ".join(out)
        if self.layout == "procap":
            return text.encode("ascii", "ignore").decode("ascii")
        return re.sub(r" ([;,])", r"\1", text)

    def save(self, path: str | Path) -> None:
        """Write ``{"words": [...]}`` as JSON, with the layout if it is not our own."""
        content = {"words": self.words} if self.layout == "own" else {"layout": self.layout, "words": self.words}
        write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file of :meth:`save`. Raises ``ValueError`` if the file is something else."""
        try:
            content = parse_json(decode_text(Path(path).read_bytes()))
            layout = content.get("layout", "own")
            if layout not in ("own", "procap"):
                raise KeyError(f"layout {layout!r}")
            return cls(content["words"], layout)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ValueError(f"{path} is not a vocabulary file ({exc!r})") from exc

    @classmethod
    def from_word_ids(cls, path: str | Path, marks: Sequence[str], layout: Literal["own", "procap"]) -> Vocabulary:
        """Read the word list of a paper's authors: ``{word: id}``, ids from 0 without a gap, ``marks`` first.

        Raises:
            ValueError: if the file is something else.
        """
        try:
            ids = dict(parse_json(decode_text(Path(path).read_bytes())))
            listed = sorted(ids, key=ids.__getitem__)
            whole = [ids[word] for word in listed] == list(range(len(ids)))
        except (OSError, ValueError, TypeError, AttributeError) as exc:
            raise ValueError(
                f"{path} is not the authors' word list ({exc!r}); give their JSON file of words and ids"
            ) from exc
        if not whole or listed[: len(marks)] != [*marks]:
            raise ValueError(
                f"{path} is not the authors' word list: it should give the ids 0 to {len(marks) - 1} to "
                f"{', '.join(marks)} and one id after the other to the words"
            )
        return cls(listed[len(marks) :], layout)
