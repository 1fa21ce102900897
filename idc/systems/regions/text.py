"""Words on the images: which are gone after the change, and which are new. Read by rapidocr, where it is installed (the
extra ``text``; its models are inside its wheel)."""

from __future__ import annotations

import string
from collections import Counter
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import cv2
import numpy as np

from idc.cores import usable_cores

_SURE = 0.97
"""Smallest confidence of a word. Of 150 real pairs without legible text two gave words, at most at 0.96 (a car from
above as a single sign, the small print of a board as tall letters); drawn signs are read at 0.997 and more."""
_SHORTEST = 3
"""Smallest number of letters and digits of a line."""
_NAMED = 5
"""Number of words of each kind that a sentence names."""
_ALIKE = str.maketrans("0125|", "oizsl")
"""Characters that the reader takes for others of the same shape (after lower case)."""


class ReadWord(NamedTuple):
    """A word on an image; ``box`` is (left, top, right, bottom) as shares of the image's width and height."""

    text: str
    box: tuple[float, float, float, float]

    @property
    def key(self) -> str:
        """Equal for two readings of the same word."""
        return self.text.lower().strip(string.punctuation).translate(_ALIKE)


def reads_text() -> bool:
    """Whether the extra is installed."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def text_sentence(before: np.ndarray, after: np.ndarray, difference: np.ndarray, threshold: float) -> str:
    """A sentence about the words that came and went; empty if there are none.

    Args:
        before, after: uint8 RGB (H, W, 3), of any sizes, of the same view.
        difference: (Y, X) over the image after. A word counts only where it exceeds ``threshold``: the pixels differ,
            not the reading alone.
    """
    first, second = (
        [word for word in read_words(image) if _largest(difference, word.box) > threshold] for image in (before, after)
    )
    gone, new = _without(first, second), _without(second, first)
    parts = [f"{_quoted(words)} {verb}" for words, verb in ((gone, "gone"), (new, "new")) if words]
    return f"Text: {', '.join(parts)}." if parts else ""


def read_words(image: np.ndarray) -> list[ReadWord]:
    """The words that are read with confidence, in reading order."""
    height, width = image.shape[:2]
    result = _reader()(cv2.cvtColor(image, cv2.COLOR_RGB2BGR), use_cls=False, return_word_box=True)
    words = []
    for line in result.word_results:
        # Without any text the reader returns one empty word, not in a line.
        if not isinstance(line[0], tuple) or sum(map(str.isalnum, "".join(text for text, *_ in line))) < _SHORTEST:
            continue
        for text, confidence, corners in line:
            if confidence >= _SURE and any(map(str.isalnum, text)):
                x, y = np.array(corners, float).T
                words.append(ReadWord(text, (x.min() / width, y.min() / height, x.max() / width, y.max() / height)))
    return words


@lru_cache(maxsize=1)
def _reader() -> Any:
    """The reader, loaded once: half a second."""
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "EngineConfig.onnxruntime.intra_op_num_threads": usable_cores(),
        }
    )


def _largest(difference: np.ndarray, box: tuple[float, float, float, float]) -> float:
    rows, columns = difference.shape
    left, right = int(box[0] * columns), int(np.ceil(box[2] * columns))
    top, bottom = int(box[1] * rows), int(np.ceil(box[3] * rows))
    part = difference[max(0, top) : bottom, max(0, left) : right]
    return float(part.max()) if part.size else 0.0


def _without(words: list[ReadWord], others: list[ReadWord]) -> list[str]:
    """The words that the others do not have, or have less often."""
    left = Counter(word.key for word in others)
    remaining = []
    for word in words:
        if left[word.key]:
            left[word.key] -= 1
        else:
            remaining.append(word.text)
    return remaining


def _quoted(words: list[str]) -> str:
    named = " ".join(words[:_NAMED]) + (" ..." if len(words) > _NAMED else "")
    return f'"{named}" {"is" if len(words) == 1 else "are"}'
