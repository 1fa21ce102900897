"""Captions as words and as numbers."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*|[;,]")


def words(caption: str) -> list[str]:
    """Lower-case words of a caption: letters and digits with inner ``-`` and ``'``; ``;`` and ``,`` are words.

    Other punctuation is dropped, as in CLEVR-Change's preprocessing (DUDA ``preprocess_captions.py``).
    """
    return _WORD.findall(caption.lower().replace("\u2019", "'"))


class Vocabulary:
    """A fixed list of words; ids 0 to 3 are padding, beginning, end and unknown, then ``words`` in order.

    Attributes:
        words: the known words without the four special ones.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._ids = {word: index + len(SPECIALS) for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            double = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"the vocabulary has the word {double!r} more than once")

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 1) -> Vocabulary:
        """The words that occur at least ``min_count`` times, the most frequent first, equal counts by alphabet."""
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(words(caption))
        kept = [(word, count) for word, count in counts.items() if count >= min_count]
        return cls([word for word, _ in sorted(kept, key=lambda item: (-item[1], item[0]))])

    def __len__(self) -> int:
        """Number of ids, the four special ones included."""
        return len(self.words) + len(SPECIALS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    __hash__ = None  # type: ignore[assignment]

    def encode(self, caption: str, max_len: int | None = None) -> list[int]:
        """``[BOS, ..., EOS]``; with ``max_len``, words at the end are left out so that no more ids than that remain."""
        if max_len is not None and max_len < 2:
            raise ValueError(f"max_len is {max_len}; a caption needs at least 2 ids (beginning and end)")
        ids = [self._ids.get(word, UNK) for word in words(caption)]
        if max_len is not None:
            ids = ids[: max_len - 2]
        return [BOS, *ids, EOS]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first end mark; padding and beginning marks are left out."""
        out: list[str] = []
        for index in ids:
            index = int(index)
            if index == EOS:
                break
            if index in (PAD, BOS):
                continue
            if not 0 <= index < len(self):
                raise ValueError(f"id {index} is outside the vocabulary of {len(self)} ids")
            out.append(SPECIALS[UNK] if index == UNK else self.words[index - len(SPECIALS)])
        return re.sub(r" ([;,])", r"\1", " ".join(out))

    def save(self, path: str | Path) -> None:
        """Write ``{"words": [...]}`` as JSON."""
        Path(path).write_text(json.dumps({"words": self.words}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what :meth:`save` wrote. Raises ``ValueError`` if the file is something else."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(content["words"])
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as exc:
            raise ValueError(f"{path} is not a vocabulary file ({exc!r})") from exc
