"""Dialogues as token ids: any number of turns, images anywhere in the text; of each token, whether it is learned.

The chat template of the model writes the roles. A dialogue is cut at its answers, and the pieces are tokenized one by
one: so the prompt of training is, token for token, the prompt of generation, and the learned tokens are exactly the
answers with their end tokens. Every image becomes the tokens that its size needs (:meth:`Family.token_ids`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from idc.schema import IMAGE
from idc.vlm.families import Family

Size = tuple[int, int]
"""Height and width of an image in pixels."""


class Said(Protocol):
    """A turn: :class:`idc.schema.Turn`, or whatever has its fields."""

    @property
    def role(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class Encoded:
    """A dialogue as ids.

    Attributes:
        ids: of all tokens.
        learned: of each token, whether it is part of an answer; its end token is.
    """

    ids: list[int]
    learned: list[bool]


class Chat:
    """Encodes the dialogues of one model.

    Args:
        family: with the model's tokenizer.
        cutoff: largest number of tokens of a dialogue; a longer one is refused.

    Raises:
        ValueError: the tokenizer has no chat template or no end token.
    """

    def __init__(self, family: Family, cutoff: int | None = None):
        self.family, self.tokenizer, self.cutoff = family, family.tokenizer, cutoff
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError("the model's tokenizer has no chat template; take its chat or instruct version")
        if self.tokenizer.eos_token is None:
            raise ValueError("the model's tokenizer has no end token (eos_token); its answers would not end")
        self.end: str = self.tokenizer.eos_token
        self._controls = sorted(
            {str(token) for token in self.tokenizer.all_special_tokens}
            | {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
            | {family.image_token}
        )

    def prompt(self, turns: Sequence[Said], sizes: Sequence[Size]) -> list[int]:
        """Ids of a dialogue up to the start of the next answer; the last turn is the user's.

        Args:
            sizes: of its images, in order.

        Raises:
            ValueError: as :meth:`encode`.
        """
        self._check(turns, sizes)
        ids = self._tokens(self._render(turns, ask=True), iter(sizes))
        self._refuse_long(ids, sizes)
        return ids

    def encode(self, turns: Sequence[Said], sizes: Sequence[Size]) -> Encoded:
        """Ids of a whole dialogue, which ends with an answer; all answers are learned.

        Raises:
            ValueError: the images are not as many as the marks in the text; the text has control tokens of the model in
                it; the dialogue is longer than the cutoff.
        """
        self._check(turns, sizes)
        ids: list[int] = []
        learned: list[bool] = []
        images = iter(sizes)
        for text, said in self._segments(turns):
            piece = self._tokens(text, images)
            ids += piece
            learned += [said] * len(piece)
        self._refuse_long(ids, sizes)
        return Encoded(ids, learned)

    def length(self, turns: Sequence[Said], sizes: Sequence[Size]) -> int:
        """Number of tokens of :meth:`encode`, from the images' sizes alone."""
        return len(self.encode(turns, sizes).ids)

    def answer_ids(self, text: str) -> list[int]:
        """Ids of an answer with its end token.

        Raises:
            ValueError: it has control tokens in it.
        """
        self._refuse_controls(text, "the answer")
        found: list[int] = self.tokenizer.encode(text.strip() + self.end, add_special_tokens=False)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer's ids, up to its end."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()

    def _check(self, turns: Sequence[Said], sizes: Sequence[Size]) -> None:
        marks = sum(turn.text.count(IMAGE) for turn in turns)
        if marks != len(sizes):
            raise ValueError(f"the text has {marks} times {IMAGE}, and there are {len(sizes)} images; give as many")
        for number, turn in enumerate(turns):
            self._refuse_controls(turn.text.replace(IMAGE, " "), f"turn {number} ({turn.role})")
            if turn.role == "assistant" and IMAGE in turn.text:
                raise ValueError(f"turn {number}: an answer has {IMAGE} in it; only system and user turns show images")

    def _refuse_controls(self, text: str, what: str) -> None:
        for token in self._controls:
            if token in text:
                raise ValueError(f"{what} has the model's control token {token!r} in it; leave it out of the text")

    def _refuse_long(self, ids: Sequence[int], sizes: Sequence[Size]) -> None:
        if self.cutoff is not None and len(ids) > self.cutoff:
            pictures = sum(len(self.family.token_ids(size)) for size in sizes)
            raise ValueError(
                f"{len(ids)} tokens ({pictures} of {len(sizes)} images) are above the cutoff of {self.cutoff}, which "
                "would cut an image or an answer; raise cutoff, lower base.max_pixels, or leave the sample out"
            )

    def _render(self, turns: Sequence[Said], ask: bool) -> str:
        messages = [{"role": turn.role, "content": self._content(turn)} for turn in turns]
        text: str = self.tokenizer.apply_chat_template(messages, add_generation_prompt=ask, tokenize=False)
        return text

    def _content(self, turn: Said) -> list[dict[str, Any]]:
        """The parts of a turn. Images before all text are parts of their own, which the template writes in its own
        way; some templates move all images to the start, so that others are written into the text."""
        text = turn.text.strip()
        parts: list[dict[str, Any]] = []
        while text.startswith(IMAGE):
            text = text.removeprefix(IMAGE).lstrip()
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text.replace(IMAGE, self.family.inline)})
        return parts

    def _segments(self, turns: Sequence[Said]) -> Iterator[tuple[str, bool]]:
        """The rendered text in pieces: what is read, and what is said."""
        done = ""
        for number, turn in enumerate(turns):
            if turn.role != "assistant":
                continue
            ask = self._render(turns[:number], ask=True)
            full = self._render(turns[: number + 1], ask=False)
            if not (ask.startswith(done) and full.startswith(ask)):
                raise ValueError("the model's chat template rewrites earlier turns; it cannot be trained on dialogues")
            said = full[len(ask) :]
            if self.end not in said:
                raise ValueError(f"the model's chat template writes no {self.end!r} after an answer")
            said = said[: said.index(self.end) + len(self.end)]
            yield ask[len(done) :], False
            yield said, True
            done = ask + said
        assert turns[-1].role == "assistant", "a dialogue that is learned ends with an answer"

    def _tokens(self, text: str, sizes: Iterator[Size]) -> list[int]:
        ids: list[int] = []
        for number, piece in enumerate(text.split(self.family.image_token)):
            if number:
                ids += self.family.token_ids(next(sizes))
            if piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return ids
