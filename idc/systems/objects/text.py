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
from idc.systems.objects.alignment import warped_to

_SURE = 0.97
"""Smallest confidence of a word. Of 150 real pairs without legible text two gave words, at most at 0.96 (a car from
above as a single sign, the small print of a board as tall letters); drawn signs are read at 0.997 and more."""
_SHORTEST = 3
"""Smallest number of letters and digits of a line."""
_NAMED = 5
"""Number of words of each kind that a sentence names."""
_ALIKE = str.maketrans("0125|", "oizsl")
"""Characters that the reader takes for others of the same shape (after lower case)."""
_MOST_OBLONG = 8
"""Longer images are padded: the reader enlarges the shorter side to some 700 pixels, at any length of the other."""
_LETTER = 24
"""Height at which the pixels of a word are compared."""
_SHIFT = 3
"""Displacements of a word that do not count, at that height."""
_OTHER_LETTER = 0.3
"""Share of a word's contrast from which a window as large as a letter differs: equal words in noise, blur and
compression stay below it, other letters do not."""


class ReadWord(NamedTuple):
    """A word on an image; ``box`` is (left, top, right, bottom) in pixels, ``confidence`` in [0, 1]."""

    text: str
    box: tuple[float, float, float, float]
    confidence: float = 1.0

    @property
    def key(self) -> str:
        """Equal for two readings of the same word."""
        return self.text.lower().strip(string.punctuation).translate(_ALIKE)


def reads_text() -> bool:
    """Whether the extra is installed."""
    return find_spec("rapidocr") is not None and find_spec("onnxruntime") is not None


def text_sentence(before: np.ndarray, after: np.ndarray, warp: np.ndarray | None = None) -> str:
    """A sentence about the words that came and went; empty if there are none.

    A word counts if it is read with confidence on one image, with no confidence at all on the other, and the pixels
    differ there, not the reading alone.

    Args:
        before, after: uint8 RGB (H, W, 3), of any sizes, of the same view.
        warp: homography from pixels of the image after to those of the image before; by default none moved.
    """
    aligned = warped_to(before, np.eye(3) if warp is None else warp, after.shape[:2])[0]
    first, second = read_words(aligned), read_words(after)
    gone, new = (
        [word.text for word in _without(words, others) if words_differ(aligned, after, word.box)]
        for words, others in ((first, second), (second, first))
    )
    parts = [f"{_quoted(words)} {verb}" for words, verb in ((gone, "gone"), (new, "new")) if words]
    return f"Text: {', '.join(parts)}." if parts else ""


def words_differ(before: np.ndarray, after: np.ndarray, box: tuple[float, float, float, float]) -> bool:
    """Whether an image has other letters than another one in a box, whatever their light and sharpness: a window of a
    letter's size differs, at the displacement at which the two agree best."""
    return difference_of_words(before, after, box) > _OTHER_LETTER


def difference_of_words(before: np.ndarray, after: np.ndarray, box: tuple[float, float, float, float]) -> float:
    """The largest difference of a window, as a share of the contrast, of :func:`words_differ`."""
    left, top, right, bottom = box
    scale = _LETTER / max(bottom - top, 1.0)
    height, width = _LETTER, max(_LETTER, round(scale * (right - left)))
    margin = _SHIFT / scale
    wide = (left - margin, top - margin, right + margin, bottom + margin)
    first = _patch(before, wide, (height + 2 * _SHIFT, width + 2 * _SHIFT))[_SHIFT:-_SHIFT, _SHIFT:-_SHIFT]
    second = _patch(after, wide, (height + 2 * _SHIFT, width + 2 * _SHIFT))
    contrast = max(first.std(), second.std(), 1.0)
    best = np.inf
    for y in range(2 * _SHIFT + 1):
        for x in range(2 * _SHIFT + 1):
            pair = [
                (patch - patch.mean()) / max(patch.std(), contrast / 3)
                for patch in (first, second[y : y + height, x : x + width])
            ]
            windows = cv2.blur((pair[0] - pair[1]) ** 2 / 2, (_LETTER // 2, _LETTER))
            best = min(best, float(windows[_LETTER // 2, _LETTER // 4 : -_LETTER // 4 + 1].max()))
    return best


def _patch(image: np.ndarray, box: tuple[float, float, float, float], size: tuple[int, int]) -> np.ndarray:
    """The brightness in a box, float32 of a size (height, width)."""
    left, top, right, bottom = box
    warp = np.array([[(right - left) / size[1], 0, left], [0, (bottom - top) / size[0], top], [0, 0, 1]])
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    blur = max(0.1, 0.5 * warp[1, 1])  # a smaller patch has not the detail of the image
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpPerspective(
        cv2.GaussianBlur(grey, (0, 0), blur), warp, size[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE
    )


def read_words(image: np.ndarray) -> list[ReadWord]:
    """The words that are read, in reading order."""
    height, width = image.shape[:2]
    shape = [max(height, -(-width // _MOST_OBLONG)), max(width, -(-height // _MOST_OBLONG))]
    padded = np.pad(image, ((0, shape[0] - height), (0, shape[1] - width), (0, 0)), mode="edge")
    result = _reader()(cv2.cvtColor(padded, cv2.COLOR_RGB2BGR), use_cls=False, return_word_box=True)
    words = []
    for line in result.word_results:
        # Without any text the reader returns one empty word, not in a line.
        if not isinstance(line[0], tuple) or sum(map(str.isalnum, "".join(text for text, *_ in line))) < _SHORTEST:
            continue
        for text, confidence, corners in line:
            if any(map(str.isalnum, text)):
                x, y = np.array(corners, float).T
                words.append(ReadWord(text, (x.min(), y.min(), x.max(), y.max()), confidence))
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


def _without(words: list[ReadWord], others: list[ReadWord]) -> list[ReadWord]:
    """The words read with confidence that the others do not have, or have less often."""
    left = Counter(word.key for word in others)
    remaining = []
    for word in words:
        if left[word.key]:
            left[word.key] -= 1
        elif word.confidence >= _SURE:
            remaining.append(word)
    return remaining


def _quoted(words: list[str]) -> str:
    named = " ".join(words[:_NAMED]) + (" ..." if len(words) > _NAMED else "")
    return f'"{named}" {"is" if len(words) == 1 else "are"}'
