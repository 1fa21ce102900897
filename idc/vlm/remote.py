"""The captioner of an artifact whose language model runs behind OpenAI's chat completions (vLLM, Ray Serve LLM).

The artifact gives the prompt, the processor and the calibration; its weights are not loaded. Images are resized here by
the code that serves a model in this process too (:meth:`idc.vlm.family.Family.fit`), and sent as PNG at the size at
which the model sees them, so that the endpoint has nothing to resize (except :attr:`idc.vlm.family.Family.in_vllm`).
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idc.captioning.calibration import YES
from idc.captioning.contract import Answer, Candidate, Capability, Description, Images, InputSize, SearchOptions
from idc.data.images import encode_png
from idc.data.schema import IMAGE, Turn
from idc.endpoint.chat_endpoint import ChatEndpoint, EndpointConfig, Reply, image_part
from idc.training.artifact import ADAPTER, PROCESSOR, WEIGHTS, read_artifact
from idc.vlm.base import read_family
from idc.vlm.captioner import DialogueCaptioner
from idc.vlm.chat import YES_OR_NO, caption_turns, change_question, with_default_turns
from idc.vlm.config import BaseConfig, GenerateConfig, PromptConfig

log = logging.getLogger(__name__)


class PairRequest(NamedTuple):
    """A conversation about a pair; ``prompt_tokens`` are counted by the artifact's own tokenizer."""

    messages: list[dict[str, Any]]
    prompt_tokens: int
    input_size: InputSize


class RemoteCaptioner(DialogueCaptioner):
    """See the module's description. Captions are greedy; further candidates are sampled at temperature 1. ValueError:
    the artifact is damaged, or its model was tuned and ``config.model`` is missing.

    Args:
        path: folder of the artifact, whose config has the sections ``base``, ``prompt`` and ``generation`` in ``job``,
            and whose model is a base with nothing but adapters added; the base need not be on this machine. A
            calibration must have been fitted with the endpoint, because a model in this process has further evidence of
            a change.
        config: its ``model`` is needed for a model that was tuned, which has no name but the one given to it there.
    """

    capabilities: frozenset[Capability] = frozenset({"answer"})

    def __init__(self, path: Path | str, config: EndpointConfig):
        from safetensors import safe_open

        artifact = read_artifact(path)
        assert artifact.base is not None, f"{path} names no base"
        job, folder = artifact.config["job"], artifact.folder(PROCESSOR)
        with safe_open(artifact.path / WEIGHTS, "np") as weights:
            tuned = bool(weights.keys()) or (artifact.path / ADAPTER).exists()
        if tuned and not config.model:
            raise ValueError(
                "endpoint.model: the artifact's model was tuned, and its base would write other captions; give the "
                "name under which the merged model (jobs/merge_vlm.py) or the adapter runs at the endpoint"
            )
        super().__init__(
            read_family(folder, folder, BaseConfig.model_validate(job["base"]).max_pixels),
            PromptConfig.model_validate(job["prompt"]),
            GenerateConfig.model_validate(job["generation"]),
            path=artifact.path,
            trained_on=artifact.trained_on,
        )
        if self.settings.beams > 1:
            log.warning("the artifact asks for %d beams; an endpoint searches greedily", self.settings.beams)
        if self.family.in_vllm is not None:
            log.warning("endpoint: %s; if vLLM runs there, take a model of another family", self.family.in_vllm)
        model = config.model or artifact.base.source
        self.endpoint = ChatEndpoint(config, model, temperature=0.0, max_tokens=self.settings.max_new_tokens)
        self._pool = ThreadPoolExecutor(config.concurrency, thread_name_prefix="endpoint")
        self._compared = False

    def _describe(self, befores: Images, afters: Images, options: SearchOptions) -> list[Description]:
        """Errors also of the endpoint (:class:`idc.endpoint.chat_endpoint.EndpointError`)."""
        if options.beams is not None and options.beams > 1:
            raise ValueError(
                f"beams: the language model behind the endpoint searches greedily, not with {options.beams} beams"
            )
        if options.change_map:
            raise ValueError("map: the language model behind the endpoint returns no change map; leave it out")
        return self._map(self._describe_pair, befores, afters, [options] * len(befores))

    def _describe_pair(self, before: np.ndarray, after: np.ndarray, options: SearchOptions) -> Description:
        """The best caption first, then the others by their probability; no text twice."""
        candidates = options.candidates
        request = self.request(before, after, caption_turns(self.prompt, options.paragraph))
        replies = self._ask(request.messages)
        self._compare_prompts(request, replies[0])
        if candidates > 1:
            replies += self._ask(request.messages, n=candidates, temperature=1.0, seed=0)
        evidence = {}
        if self.asks_change:
            question = self.request(before, after, change_question(self.prompt))
            evidence[YES] = _yes_odds(self._ask(question.messages, max_tokens=4)[0])
        first, *others = [Candidate(reply.text.strip(), _mean(reply)) for reply in replies]
        return self._description(
            before,
            after,
            [first, *sorted(others, key=lambda candidate: -candidate.log_probability)],
            candidates,
            tokens=(request.prompt_tokens, sum(len(reply.log_probabilities) for reply in replies)),
            evidence=evidence,
            input_size=request.input_size,
        )

    def answer(
        self,
        befores: Images,
        afters: Images,
        dialogues: Sequence[Sequence[Turn]],
        *,
        max_tokens: int | None = None,
        on_text: Sequence[Callable[[str], None] | None] | None = None,
    ) -> list[Answer]:
        """See :meth:`idc.captioning.contract.Captioner.answer`; errors also of the endpoint."""

        def answered(
            before: np.ndarray, after: np.ndarray, turns: Sequence[Turn], on_text: Callable[[str], None] | None
        ) -> Answer:
            request = self.request(before, after, with_default_turns(turns, self.prompt))
            options = {} if max_tokens is None else {"max_tokens": max_tokens}
            (reply,) = self._ask(request.messages, on_text, **options)
            prompt_tokens = request.prompt_tokens if reply.prompt_tokens is None else reply.prompt_tokens
            tokens = len(reply.log_probabilities)
            return Answer(reply.text.strip(), _mean(reply), tokens, prompt_tokens, reply.cut_off, request.input_size)

        return self._map(answered, befores, afters, dialogues, on_text or [None] * len(befores))

    def request(self, before: np.ndarray, after: np.ndarray, turns: Sequence[Turn]) -> PairRequest:
        """The request for the next answer of a dialogue about a pair, uint8 (H, W, 3) each. ValueError: the turns have
        control tokens of the model in them."""
        images = [self.family.fit(image) for image in (before, after)]
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        input_size = self._input_size([before.shape[:2], after.shape[:2]])
        return PairRequest(messages_of(turns, images), len(self.chat.prompt(turns, sizes)), input_size)

    def _compare_prompts(self, request: PairRequest, reply: Reply) -> None:
        """Warn, once, if the endpoint read a prompt of another length: then its chat template, its images' sizes or
        its model are others than the artifact's."""
        if self._compared or reply.prompt_tokens is None:
            return
        self._compared = True
        if reply.prompt_tokens != request.prompt_tokens:
            log.warning(
                "the endpoint read %d tokens for a pair, the artifact's own prompt has %d: its model, chat template or "
                "image processor differs, and so will its captions", reply.prompt_tokens, request.prompt_tokens,
            )  # fmt: skip

    def _ask(
        self, messages: list[dict[str, Any]], on_text: Callable[[str], None] | None = None, **options: Any
    ) -> list[Reply]:
        return self.endpoint.chat(messages, log_probabilities=True, on_text=on_text, **options)

    def _map(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"{len(columns[0])} before and {len(columns[1])} after images: give as many of each")
        return list(self._pool.map(function, *columns))


def messages_of(turns: Sequence[Turn], images: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Turns as messages of OpenAI's chat completions, with the images where their marks are, as
    :class:`idc.vlm.chat.Chat` hands them to the chat template."""
    urls = iter("data:image/png;base64," + base64.b64encode(encode_png(image)).decode("ascii") for image in images)
    messages = []
    for turn in turns:
        text = turn.text.strip()
        parts: list[dict[str, Any]] = []
        for number, piece in enumerate(text.split(IMAGE)):
            if number:
                parts.append(image_part(next(urls)))
            if len(parts) == number:  # before all text
                piece = piece.lstrip()
            if piece:
                parts.append({"type": "text", "text": piece})
        messages.append({"role": turn.role, "content": parts if IMAGE in text else text})
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
