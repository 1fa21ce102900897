"""A real endpoint of OpenAI's chat completions on this machine, as vLLM is one: a small model of transformers behind
HTTP, which renders messages by the model's own chat template and reports the log-probability of every token, the end
token among them. A test can make it fail."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idc.data.images import decode_image
from idc.vlm.base import find_base, load_model
from idc.vlm.batch import Sample, collate_encoded, encode_images, model_inputs
from idc.vlm.config import BaseConfig
from tests.chat_server import running


class Endpoint(ThreadingHTTPServer):
    """Answers by the model in ``folder``, or by ``fault(handler)`` if a test sets it.

    Attributes:
        sizes: of all images that it got, and whether the model would resize one.
        requests: the bodies.
        between: called after each token of a streamed answer but the last, with its number.
        left: set when a client left before its answer.
    """

    daemon_threads = True

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        # Without a limit of pixels: whatever would be resized here counts.
        self.family = find_base(BaseConfig(source=str(folder), max_pixels=None)).family
        self.model = load_model(folder, BaseConfig(source=str(folder)))
        self.sizes: list[tuple[tuple[int, ...], bool]] = []
        self.requests: list[dict[str, Any]] = []
        self.fault: Callable[[BaseHTTPRequestHandler], bool] | None = None
        self.between: Callable[[int], object] = lambda token: None
        self.left = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.left.set()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The chat completion of a request."""
        images, messages = [], []
        for message in body["messages"]:
            content = message["content"]
            for part in [] if isinstance(content, str) else content:
                if part["type"] == "image_url":
                    images.append(decode_image(base64.b64decode(part["image_url"]["url"].partition(",")[2])))
            if not isinstance(content, str):
                content = [{"type": "image"} if part["type"] == "image_url" else part for part in content]
            messages.append({**message, "content": content})
        self.sizes += [(image.shape[:2], self.family.seen_size(image.shape[:2]) != image.shape[:2]) for image in images]
        tokenizer = self.family.tokenizer
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids: list[int] = []
        sizes = iter(image.shape[:2] for image in images)
        for number, piece in enumerate(text.split(self.family.image_token)):
            ids += self.family.token_ids(next(sizes)) if number else []
            ids += tokenizer.encode(piece, add_special_tokens=False)
        choices = [self._choice(index, ids, images, body) for index in range(body.get("n", 1))]
        return {"model": body["model"], "choices": choices, "usage": {
            "prompt_tokens": len(ids), "completion_tokens": len(choices[0]["logprobs"]["content"])}}  # fmt: skip

    def _choice(self, index: int, ids: list[int], images: list[np.ndarray], body: dict[str, Any]) -> dict[str, Any]:
        batch = collate_encoded([Sample(ids, [False] * len(ids), self.family.pixels(images))], self.family, "left")
        end = self.family.tokenizer.eos_token_id
        sampled = body["temperature"] > 0
        torch.manual_seed(body.get("seed", 0) + index)
        with torch.inference_mode():
            found = self.model.generate(
                **model_inputs(batch, encode_images(self.model, batch, self.family), self.family),
                max_new_tokens=body["max_tokens"], do_sample=sampled, top_k=0 if sampled else None, eos_token_id=end,
                pad_token_id=end, return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        new = found.sequences[0, len(ids) :]
        logs = [step[0].float().log_softmax(-1)[token].item() for step, token in zip(found.logits, new, strict=True)]
        said = self.family.tokenizer.decode(new, skip_special_tokens=True)
        return {
            "message": {"role": "assistant", "content": said},
            "finish_reason": "stop" if new[-1] == end else "length",
            "logprobs": {"content": [{"token": str(int(token)), "logprob": value, "top_logprobs": []}
                                     for token, value in zip(new, logs, strict=True)]},
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_GET(self) -> None:
        if self.server.fault is None or not self.server.fault(self):
            self.reply(200, json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        if self.server.fault is not None and self.server.fault(self):
            return
        with self.server.lock:
            answer = self.server.answer(body)
        if body.get("stream"):
            self._stream(answer)
        else:
            self.reply(200, json.dumps(answer))

    def _stream(self, answer: dict[str, Any]) -> None:
        """The answer as vLLM streams it: a chunk for each token, the end token's with the reason, then the usage."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        (choice,) = answer["choices"]
        tokens, said = choice["logprobs"]["content"], ""
        for number, token in enumerate(tokens):
            ids = [int(told["token"]) for told in tokens[: number + 1]]
            text = self.server.family.tokenizer.decode(ids, skip_special_tokens=True).rstrip("\ufffd")
            last = token is tokens[-1]
            delta = {"delta": {"content": text.removeprefix(said)}, "logprobs": {"content": [token]}}
            reason = {"finish_reason": choice["finish_reason"] if last else None}
            self._event({"model": answer["model"], "choices": [delta | reason]})
            said = text
            if not last:
                self.server.between(number)
        self._event({"model": answer["model"], "choices": [], "usage": answer["usage"]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def reply(self, status: int, text: str, **headers: str) -> None:
        """Send a response as JSON."""
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def endpoint(folder: Path) -> Iterator[Endpoint]:
    server = Endpoint(folder)
    with running(server):
        yield server
