"""The caption bank: all captions of the training pairs, and which of them may be a negative of a pair."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from idc.metrics.difference_claims import read_claims
from idc.metrics.difference_lists import TrueDifferences, match_caption
from idc.metrics.no_change import states_no_change
from idc.vlm.chat import Chat


class CaptionBank:
    """Different captions by number. Two captions are the same if they differ in white space alone.

    Args:
        captions: of the training pairs; in this order they get their numbers.

    Attributes:
        texts: of the captions.
        answers: their ids, with end tokens.
        unchanged: numbers of those that say that nothing changed.

    Raises:
        ValueError: a caption has control tokens of the model in it.
    """

    def __init__(self, captions: Iterable[str], chat: Chat) -> None:
        self.texts = list(dict.fromkeys(_plain(text) for text in captions))
        self._number = {text: number for number, text in enumerate(self.texts)}
        self.answers = [chat.answer_ids(text) for text in self.texts]
        self.unchanged = frozenset(number for number, text in enumerate(self.texts) if states_no_change(text))

    def __len__(self) -> int:
        return len(self.texts)

    def __contains__(self, caption: str) -> bool:
        return _plain(caption) in self._number

    def number(self, caption: str) -> int:
        return self._number[_plain(caption)]

    def positives(self, references: Sequence[str], unchanged: bool) -> frozenset[int]:
        """Captions that are right for a pair, as far as its references show: these, and if it is unchanged all that say
        so."""
        same = frozenset(self.number(text) for text in references)
        return same | self.unchanged if unchanged or same & self.unchanged else same

    def candidates(
        self, positives: Collection[int], count: int, rng: np.random.Generator, truth: TrueDifferences | None = None
    ) -> list[int]:
        """``count`` captions by number that are no positives; with a truth none that are true.

        Raises:
            ValueError: there are not so many.
        """
        taken: list[int] = []
        order = rng.permutation(len(self))
        # Piece by piece: of a bank of 100,000 captions a list of all numbers would take longer than the draw.
        for number in (
            number for start in range(0, len(order), 4 * count) for number in order[start:][: 4 * count].tolist()
        ):
            if number not in positives and not (truth is not None and is_true(self.texts[number], truth)):
                taken.append(number)
                if len(taken) == count:
                    return taken
        raise ValueError(self.too_few(len(taken), count))

    def too_few(self, left: int, count: int) -> str:
        return (
            f"of the bank's {len(self)} captions {left} are not right for it too, and {count} candidates are drawn; "
            + ("draw fewer, or leave the pair out" if left else "leave the pair out")
        )


def _plain(caption: str) -> str:
    return " ".join(caption.split())


def is_true(caption: str, truth: TrueDifferences) -> bool:
    """Whether a caption says nothing false of a rendered pair: it has claims and all are right (or say a right one
    again), or the pair is unchanged and it says so."""
    if not truth.differences or not read_claims(caption).claims:
        return not truth.differences and read_claims(caption).no_change
    return all(verdict in ("right", "surplus") for verdict in match_caption(caption, truth).verdicts)
