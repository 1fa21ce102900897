"""The captioner of an artifact whose language model runs behind OpenAI's chat completions (vLLM, Ray Serve LLM).

The artifact gives the prompt, the processor and the calibration; its weights are not loaded. Images are resized here,
by the same code as for a model in this process (:meth:`idc.vlm.family.Family.fit`), and sent as PNG at the size at
which the model sees them, so that the endpoint has nothing to resize (but :attr:`idc.vlm.family.Family.in_vllm`).

A request has two halves, so that a server can await the endpoint in between: :meth:`RemoteCaptioner.prepare` and
:meth:`PreparedRequest.description` or :meth:`PreparedRequest.answer`.
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idc.captioning.calibration import YES, Calibration
from idc.captioning.contract import Answer, Candidate, Capability, Captioner, Description, SearchOptions, Seen
from idc.captioning.familiarity import Familiarity
from idc.data.images import encode_png
from idc.data.schema import IMAGE, Turn
from idc.endpoint.chat_endpoint import ChatEndpoint, EndpointConfig, Reply, image_part
from idc.training.artifact import ADAPTER, PROCESSOR, WEIGHTS, read_artifact
from idc.vlm.base import read_family
from idc.vlm.chat import Chat
from idc.vlm.config import BaseConfig, GenerateConfig, PromptConfig
from idc.vlm.dialogue import YES_OR_NO, caption_turns, change_question, completed
from idc.vlm.family import Family

log = logging.getLogger(__name__)


class RemoteParts(NamedTuple):
    """The parts of an artifact whose model runs elsewhere.

    Attributes:
        model: name of the model at an endpoint, unless the user gives another; None for a model that was tuned, which
            has no name but the one that the user gave it there.
        trained_on: as in :class:`idc.captioning.contract.Captioner`.
    """

    family: Family
    prompt: PromptConfig
    generate: GenerateConfig
    model: str | None
    trained_on: str | None


@dataclass(frozen=True)
class PreparedRequest:
    """The requests for one pair.

    Attributes:
        messages: of the conversation.
        options: of each request: the best text, then others.
        seen: at what size the images are sent.
        prompt_tokens: number of tokens of the prompt by the artifact's own tokenizer.
        familiarity: of the pair; None without one, and for a dialogue.
        question: messages that ask whether anything changed; None if that is not asked.
    """

    messages: list[dict[str, Any]]
    options: list[dict[str, Any]]
    seen: Seen
    prompt_tokens: int
    familiarity: float | None = None
    question: list[dict[str, Any]] | None = None

    @property
    def requests(self) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
        """Messages and options of each request; the question is the last one."""
        asked = [(self.messages, options) for options in self.options]
        return asked if self.question is None else [*asked, (self.question, {"max_tokens": 4})]

    def candidates(self, replies: Iterable[Sequence[Reply]], most: int) -> tuple[Candidate, ...]:
        """The best text first, then the others by their probability; no text twice.

        Args:
            replies: of each request for captions.
        """
        first, *others = [Candidate(reply.text.strip(), _mean(reply)) for several in replies for reply in several]
        by_caption = {first.caption: first}
        for candidate in sorted(others, key=lambda candidate: -candidate.log_probability):
            by_caption.setdefault(candidate.caption, candidate)
        return tuple(by_caption.values())[:most]

    def answer(self, reply: Reply) -> Answer:
        """The message of a dialogue."""
        return Answer(
            reply.text.strip(),
            _mean(reply),
            len(reply.log_probabilities),
            self.prompt_tokens if reply.prompt_tokens is None else reply.prompt_tokens,
            reply.cut_off,
            self.seen,
        )


class RemoteCaptioner(Captioner):
    """See the module's description. Captions are greedy; further candidates are sampled at temperature 1.

    Args:
        path: folder of the artifact; its calibration and familiarity are read if it has them. A calibration must have
            been fitted with the endpoint, because a model in this process has further evidence of a change.
    """

    capabilities: frozenset[Capability] = frozenset({"answer"})

    def __init__(self, path: Path | str, parts: RemoteParts, config: EndpointConfig):
        self.family, self.prompt, self.generate, model, self.trained_on = parts
        if not config.model and model is None:
            raise ValueError(
                "endpoint.model: the artifact's model was tuned, and its base would write other captions; give the "
                "name under which the merged model (jobs/merge_vlm.py) or the adapter runs at the endpoint"
            )
        self.model = config.model or str(model)
        if self.generate.beams > 1:
            log.warning("the artifact asks for %d beams; an endpoint searches greedily", self.generate.beams)
        if self.family.in_vllm is not None:
            log.warning("endpoint: %s; if vLLM runs there, take a model of another family", self.family.in_vllm)
        self.config, self.chat = config, Chat(self.family)
        self.endpoint = ChatEndpoint(
            config.url, self.model, config.api_key_variable, temperature=0.0,
            max_tokens=self.generate.max_new_tokens, attempts=config.attempts, timeout_s=config.timeout_s,
        )  # fmt: skip
        self.calibration, self.familiarity = Calibration.load(path), Familiarity.read(path)
        self.asks_change = self.calibration is not None and YES in self.calibration.inputs
        self._pool = ThreadPoolExecutor(config.concurrency, thread_name_prefix="endpoint")
        self._compared = False

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        """Errors as of :meth:`check`, and of the endpoint (:class:`idc.endpoint.chat_endpoint.EndpointError`)."""
        self.check(options.beams, options.change_map)

        def described(before: np.ndarray, after: np.ndarray) -> Description:
            prepared = self.prepare(before, after, candidates=options.candidates)
            return self.description(prepared, self._ask(prepared), options.candidates)

        return self._all(described, befores, afters)

    def answer(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        dialogues: Sequence[Sequence[Turn]],
        *,
        max_tokens: int | None = None,
        hear: Sequence[Callable[[str], None] | None] | None = None,
    ) -> list[Answer]:
        """See :meth:`idc.captioning.contract.Captioner.answer`; errors also of the endpoint."""

        def answered(
            before: np.ndarray, after: np.ndarray, turns: Sequence[Turn], hear: Callable[[str], None] | None
        ) -> Answer:
            prepared = self.prepare(before, after, turns, max_tokens=max_tokens)
            return prepared.answer(self._ask(prepared, hear)[0][0])

        return self._all(answered, befores, afters, dialogues, hear or [None] * len(befores))

    def check(self, beams: int | None, change_map: bool) -> None:
        """Refuse what an endpoint does not offer.

        Raises:
            ValueError: more than one beam, or a change map.
        """
        if beams is not None and beams > 1:
            raise ValueError(f"beams: the language model behind the endpoint searches greedily, not with {beams} beams")
        if change_map:
            raise ValueError("map: the language model behind the endpoint returns no change map; leave it out")

    def prepare(
        self,
        before: np.ndarray,
        after: np.ndarray,
        turns: Sequence[Turn] | None = None,
        *,
        candidates: int = 1,
        max_tokens: int | None = None,
    ) -> PreparedRequest:
        """The requests for a pair.

        Args:
            before, after: uint8 (H, W, 3).
            turns: of a dialogue; None for a caption.

        Raises:
            ValueError: the turns have control tokens of the model in them.
        """
        full = caption_turns(self.prompt) if turns is None else completed(turns, self.prompt)
        images = [self.family.fit(image) for image in (before, after)]
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        tokens = len(self.chat.prompt(full, sizes))
        greedy: dict[str, Any] = {"max_tokens": max_tokens or self.generate.max_new_tokens}
        options = [greedy]
        if candidates > 1:
            options.append({**greedy, "n": candidates, "temperature": 1.0, "seed": 0})
        familiarity = None
        if self.familiarity is not None and turns is None:
            familiarity = self.familiarity(before, after)
        first, second = (self.family.content(image.shape[:2])[2:] for image in (before, after))
        question = None
        if self.asks_change and turns is None:
            question = messages_of(change_question(self.prompt), images)
        return PreparedRequest(messages_of(full, images), options, Seen(first, second), tokens, familiarity, question)

    def description(self, prepared: PreparedRequest, replies: Sequence[Sequence[Reply]], most: int) -> Description:
        """The description of a pair from the replies to its requests; ``most`` candidates."""
        self.compare(prepared, replies[0][0])
        captions = replies[: len(prepared.options)]
        evidence = {} if prepared.question is None else {YES: _yes_odds(replies[-1][0])}
        description = Description(
            prepared.candidates(captions, most),
            tokens=(
                prepared.prompt_tokens,
                sum(len(reply.log_probabilities) for several in captions for reply in several),
            ),
            evidence=evidence,
            familiarity=prepared.familiarity,
            trained_on=self.trained_on,
            seen=prepared.seen,
        )
        return description if self.calibration is None else replace(description, changed=self.calibration(description))

    def compare(self, prepared: PreparedRequest, reply: Reply) -> None:
        """Warn, once, if the endpoint read a prompt of another length: then its chat template, its images' sizes or
        its model are others than the artifact's."""
        if self._compared or reply.prompt_tokens is None:
            return
        self._compared = True
        if reply.prompt_tokens != prepared.prompt_tokens:
            log.warning(
                "the endpoint read %d tokens for a pair, the artifact's own prompt has %d: its model, chat template or "
                "image processor differs, and so will its captions", reply.prompt_tokens, prepared.prompt_tokens,
            )  # fmt: skip

    def _ask(self, prepared: PreparedRequest, hear: Callable[[str], None] | None = None) -> list[list[Reply]]:
        return [
            self.endpoint.chat(messages, log_probabilities=True, hear=hear, **options)
            for messages, options in prepared.requests
        ]

    def _all(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """``function`` of each row, several at a time."""
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"{len(columns[0])} before and {len(columns[1])} after images: give as many of each")
        return list(self._pool.map(function, *columns))


def load_remote(path: Path | str, endpoint: EndpointConfig) -> RemoteCaptioner:
    """The captioner of an artifact whose model runs behind an endpoint, under the name ``endpoint.model``
    (:func:`idc.systems.load_captioner`). Its config has the sections ``base``, ``prompt`` and ``generation`` in
    ``job``, and its model is a base with nothing added but adapters; the base need not be on this machine.

    Raises:
        ValueError: it is damaged, or the model was tuned, and ``endpoint.model`` is missing.
    """
    from safetensors import safe_open

    artifact = read_artifact(path)
    assert artifact.base is not None, f"{path} names no base"
    job, folder = artifact.config["job"], artifact.folder(PROCESSOR)
    with safe_open(artifact.path / WEIGHTS, "np") as weights:
        tuned = bool(weights.keys()) or (artifact.path / ADAPTER).exists()
    parts = RemoteParts(
        read_family(folder, folder, BaseConfig.model_validate(job["base"]).max_pixels),
        PromptConfig.model_validate(job["prompt"]),
        GenerateConfig.model_validate(job["generation"]),
        None if tuned else artifact.base.source,
        artifact.trained_on,
    )
    return RemoteCaptioner(path, parts, endpoint)


def messages_of(turns: Sequence[Turn], images: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Turns as messages of OpenAI's chat completions, with the images where their marks are, as
    :class:`idc.vlm.chat.Chat` hands them to the chat template."""
    urls = iter("data:image/png;base64," + base64.b64encode(encode_png(image)).decode("ascii") for image in images)
    messages = []
    for turn in turns:
        text = turn.text.strip()
        parts: list[dict[str, Any]] = []
        while text.startswith(IMAGE):
            text = text.removeprefix(IMAGE).lstrip()
            parts.append(image_part(next(urls)))
        for number, piece in enumerate(text.split(IMAGE)):
            if number:
                parts.append(image_part(next(urls)))
            if piece:
                parts.append({"type": "text", "text": piece})
        only_text = all(part["type"] == "text" for part in parts)
        messages.append({"role": turn.role, "content": text if only_text else parts})
    return messages


def _yes_odds(reply: Reply) -> float:
    """The log-odds of "yes" by the probability p of an answer's first token, log p - log(1 - p), negative for "no";
    0 for any other answer. 1 - p is at least 1e-6: rounded to 0, it would make the odds infinite."""
    word = reply.text.strip().lower()
    sign = next((sign for text, sign in zip(YES_OR_NO, (1, -1), strict=True) if word.startswith(text)), 0)
    first = reply.log_probabilities[0]
    return sign * (first - math.log(max(-math.expm1(first), 1e-6)))


def _mean(reply: Reply) -> float:
    """Mean log-probability of the tokens; an endpoint that reports the end token has it among them, as vLLM does."""
    return math.fsum(reply.log_probabilities) / len(reply.log_probabilities)
