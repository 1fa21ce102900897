"""Dialogues as token ids, with images anywhere in the text, and which of the tokens are learned.

The model's chat template writes the roles. A dialogue is split at its answers, and the pieces are tokenized one by one.
So a training prompt is, token for token, the prompt of generation, and the learned tokens are exactly the answers with
their end tokens. Every image becomes the tokens that its size needs (:meth:`idc.vlm.family.Family.token_ids`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from idc.data.schema import IMAGE, Turn
from idc.vlm.config import PromptConfig
from idc.vlm.family import Family

CHANGE_QUESTION = (
    "Did anything change from the first image to the second, other than the light and the camera? Answer yes or no."
)
YES_OR_NO = ("yes", "no")
"""Answers to :data:`CHANGE_QUESTION`."""
_REWRITES = "the model's chat template rewrites earlier turns; it can only be asked one question, and not be tuned"

Size = tuple[int, int]
"""Height and width of an image in pixels."""


def caption_turns(prompt: PromptConfig, paragraph: str = "") -> tuple[Turn, ...]:
    """``paragraph``: what counts as a change; a ValueError if it has the mark of an image."""
    if IMAGE in paragraph:
        raise ValueError(f"criteria: {IMAGE} is in it, which stands for an image; leave it out")
    return with_default_turns([Turn("user", "\n".join(filter(None, [prompt.text, paragraph])))], prompt)


def change_question(prompt: PromptConfig) -> tuple[Turn, ...]:
    return with_default_turns([Turn("user", CHANGE_QUESTION)], prompt)


def with_default_turns(turns: Sequence[Turn], prompt: PromptConfig) -> tuple[Turn, ...]:
    """The turns of :meth:`idc.captioning.contract.Captioner.answer`, completed for the chat template: images that no
    turn marks are put before the first user turn, the prompt's question takes the place of a user turn that is two
    images alone, and a dialogue without a system turn gets the prompt's, if there is one."""
    dialogue = list(turns)
    if not any(IMAGE in turn.text for turn in dialogue):
        first = next((index for index, turn in enumerate(dialogue) if turn.role == "user"), None)
        if first is not None:
            dialogue[first] = Turn("user", IMAGE * 2 + dialogue[first].text)
    for index, turn in enumerate(dialogue):
        if turn.role == "user" and turn.text.count(IMAGE) == 2 and not turn.text.replace(IMAGE, "").strip():
            dialogue[index] = Turn("user", prompt.text)
    if prompt.system is not None and all(turn.role != "system" for turn in dialogue):
        dialogue.insert(0, Turn("system", prompt.system))
    return tuple(dialogue)


@dataclass(frozen=True)
class EncodedDialogue:
    """Token ids, and for each whether it belongs to an answer or is the end token of one."""

    ids: list[int]
    learned: list[bool]


class Chat:
    """Encodes the dialogues of one model, with at most ``cutoff`` tokens each. A tokenizer without a chat template or
    an end token is a ValueError."""

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

    def prompt(self, turns: Sequence[Turn], sizes: Sequence[Size]) -> list[int]:
        """Ids of a dialogue up to the start of the next answer; the last turn is the user's. Errors as in
        :meth:`encode`."""
        return self._encoded(turns, sizes, ask=True).ids

    def encode(self, turns: Sequence[Turn], sizes: Sequence[Size]) -> EncodedDialogue:
        """Ids of a dialogue that ends with an answer; all answers are learned. A ValueError: the number of images
        differs from that of the marks in the text; the text contains control tokens of the model; the dialogue is
        longer than the cutoff."""
        return self._encoded(turns, sizes, ask=False)

    def answer_ids(self, text: str) -> list[int]:
        """Ids of an answer with its end token; control tokens in it are a ValueError."""
        self._refuse_controls(text, "the answer")
        ids: list[int] = self.tokenizer.encode(text.strip() + self.end, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        return [{"role": turn.role, "content": self._content(turn)} for turn in turns]

    def _encoded(self, turns: Sequence[Turn], sizes: Sequence[Size], ask: bool) -> EncodedDialogue:
        self._check(turns, sizes)
        ids: list[int] = []
        learned: list[bool] = []
        images = iter(sizes)
        for text, of_answer in self._segments(turns, ask):
            for number, part in enumerate(text.split(self.family.image_token)):
                piece = self.family.token_ids(next(images)) if number else []
                piece = piece + (self.tokenizer.encode(part, add_special_tokens=False) if part else [])
                ids += piece
                learned += [of_answer] * len(piece)
        if self.cutoff is not None and len(ids) > self.cutoff:
            pictures = sum(len(self.family.token_ids(size)) for size in sizes)
            raise ValueError(
                f"{len(ids)} tokens ({pictures} of them those of {len(sizes)} images) are above the cutoff of "
                f"{self.cutoff}, which would cut an image or an answer; raise cutoff, lower base.max_pixels, or leave "
                "the sample out"
            )
        return EncodedDialogue(ids, learned)

    def _check(self, turns: Sequence[Turn], sizes: Sequence[Size]) -> None:
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

    def _render(self, turns: Sequence[Turn], ask: bool) -> str:
        try:
            messages = self.messages(turns)
            text: str = self.tokenizer.apply_chat_template(messages, add_generation_prompt=ask, tokenize=False)
        except Exception as error:  # a template is a program: Jinja's errors, those of its own and Python's
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"the model's chat template does not take these turns ({reason})") from error
        images = sum(turn.text.count(IMAGE) for turn in turns)
        if (marks := text.count(self.family.image_token)) != images:
            raise ValueError(
                f"the model's chat template writes {self.family.image_token} {marks} times for {images} images; take "
                "the template of the vision-language model"
            )
        return text

    def _content(self, turn: Turn) -> list[dict[str, Any]]:
        """The parts of a turn. Images before all text are parts of their own, written by the template; others are
        written into the text, because some templates move all images to the start."""
        text = turn.text.strip()
        parts: list[dict[str, Any]] = []
        while text.startswith(IMAGE):
            text = text.removeprefix(IMAGE).lstrip()
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text.replace(IMAGE, self.family.inline)})
        return parts

    def _segments(self, turns: Sequence[Turn], ask: bool) -> Iterator[tuple[str, bool]]:
        """The rendered text in pieces, each with whether it is an answer; with ``ask``, the last one asks for the next.

        The template renders the dialogue once with a placeholder for each answer, because an answer may also occur
        elsewhere in the text. Before every answer stands the template's prompt for an answer, also where the template
        writes a given answer differently (LLaVA-OneVision: "assistant \\n" instead of "assistant\\n"): else one of two
        learned answers would follow a text that generation never shows.
        """
        mark = "answer"
        while any(mark in turn.text for turn in turns):
            mark += "x"
        full = self._render([Turn(turn.role, mark) if turn.role == "assistant" else turn for turn in turns], ask)
        pieces = full.split(mark + self.end)
        answers = [turn.text.strip() + self.end for turn in turns if turn.role == "assistant"]
        if len(pieces) != len(answers) + 1:
            raise ValueError(self._not_written())
        for piece, answer in zip(pieces, answers, strict=False):
            written, asked = self._openings
            if not piece.endswith(written):
                raise ValueError(_REWRITES)
            yield piece.removesuffix(written) + asked, False
            yield answer, True
        if ask:
            yield pieces[-1], False
        else:
            assert turns[-1].role == "assistant", "a dialogue that is learned ends with an answer"

    @cached_property
    def _openings(self) -> tuple[str, str]:
        """What the template writes before a given answer, and what it asks for an answer with, as far as they differ. A
        ValueError: it changes the beginning of a dialogue as the dialogue goes on, or does not write answers as it asks
        for them."""
        turns = [Turn("user", "1?"), Turn("assistant", "2"), Turn("user", "3?"), Turn("assistant", "4")]
        done = written = opening = ""
        for number in (1, 3):
            asked, full = self._render(turns[:number], ask=True), self._render(turns[: number + 1], ask=False)
            before = asked if full.startswith(asked) else self._render(turns[:number], ask=False)
            if not (before.startswith(done) and asked.startswith(before) and full.startswith(before)):
                raise ValueError(_REWRITES)
            answer = turns[number].text + self.end
            start = full.find(answer, len(before))
            if start < 0:
                raise ValueError(self._not_written())
            written, opening = full[len(before) : start], asked[len(before) :]
            if written.split() != opening.split():
                raise ValueError(
                    f"the model's chat template asks for an answer with {opening!r}, and writes one after {written!r}; "
                    "it cannot be trained on answers"
                )
            done = full[: start + len(answer)]
        return written, opening

    def _not_written(self) -> str:
        return f"the model's chat template does not write an answer and {self.end!r} after it"
