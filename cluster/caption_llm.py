"""Captions of a table by a language model in vLLM on the cluster's GPUs (``ray.data.llm``), for artifacts of
vision-language models: the artifact gives prompt, image sizes and calibration, the engine runs its base.

Rows go through Ray Data one by one, and a chunk is written when all of its rows are back, whatever their order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import Field

from cluster.config import ClusterConfig
from cluster.language_model import ERROR, engine
from cluster.session import session
from idc.captioning.apply import Fault, decode_pair
from idc.captioning.loading import artifact_folder
from idc.captioning.table import CaptionJob, table_batch
from idc.chat_endpoint import EndpointConfig, Reply
from idc.data.descriptions.config import RayLlmConfig
from idc.data.pipeline import Batch, ChunkResult, RunOptions, Source, ToRows, good_rows, run_pending, write_result
from idc.data.store import DatasetFolder, Manifest

if TYPE_CHECKING:
    from idc.vlm.remote import RemoteCaptioner


class CaptionLlmConfig(RayLlmConfig):
    """The language model of a vision-language artifact in vLLM on the cluster's GPUs (ray.data.llm)."""

    model: str = ""
    """Hub id or folder. Default: the base of the artifact. For a tuned artifact: the merged model
    (jobs/merge_vlm.py)."""
    max_model_len: int = Field(4096, ge=1)
    """Longest prompt with its images and answer, in tokens."""


def captioner_of(artifact: str, config: CaptionLlmConfig) -> RemoteCaptioner:
    """The captioner of an artifact, which is asked for requests and reads the engine's answers; nothing is sent.

    Raises:
        ValueError: its language model cannot run elsewhere, or has no name there.
    """
    from idc.systems import load_remote

    endpoint = EndpointConfig(url="http://ray.data.llm", model=config.model)
    return load_remote(artifact_folder(artifact), endpoint)  # type: ignore[return-value]


def captioning_on(cluster: ClusterConfig, job: CaptionJob, config: CaptionLlmConfig) -> Callable[..., Manifest]:
    """The runner of :func:`idc.captioning.table.caption_rows`, in a session of its own.

    Raises:
        ValueError: vLLM is not installed, or a setting asks for what the engine does not do.
    """
    if find_spec("vllm") is None:
        raise ValueError(
            "ray_llm needs vLLM: install `ray[llm]` of this version of Ray on machines with NVIDIA GPUs, or start "
            "`vllm serve MODEL` anywhere and set endpoint.url=http://host:8000/v1"
        )
    if job.candidates > 1 or (job.beams or 1) > 1:
        raise ValueError("ray_llm: the engine returns one greedy caption; leave candidates and beams out")
    if (tiled := captioner_of(job.artifact, config).family.in_vllm) is not None:
        raise ValueError(f"ray_llm: {tiled}; leave ray_llm out, or take a model of another family")

    def run(
        folder: DatasetFolder, source: Source, stages: Sequence[Any], to_rows: ToRows, **options: Unpack[RunOptions]
    ) -> Manifest:
        def results(pending: list[int]) -> Generator[ChunkResult, None, None]:
            with session(cluster):
                answered = _answers(job, config, source, pending)
                yield from write_replies(
                    answered, captioner_of(job.artifact, config), folder, source, to_rows, pending
                )

        return run_pending(folder, source, results, **options)

    return run


def _answers(job: CaptionJob, config: CaptionLlmConfig, source: Source, pending: list[int]) -> Iterator[dict[str, Any]]:
    import ray
    from ray.data.llm import build_processor

    chunks = ray.data.from_items(pending, override_num_blocks=len(pending))
    rows = chunks.flat_map(
        LlmQuestions,
        fn_constructor_kwargs={"job": job, "config": config, "source": source},
        concurrency=job.actors,
        num_cpus=job.cpus_per_actor,
    )
    model = config.model or captioner_of(job.artifact, config).model
    processor = build_processor(engine(config.model_copy(update={"model": model})), request, partial(reply_of_row))
    yield from processor(rows).iter_rows()


class LlmQuestions:
    """Actor: the requests of a chunk's readable rows, for the caption and, if the calibration reads it, for yes or no;
    the first has the chunk's other columns."""

    def __init__(self, job: CaptionJob, config: CaptionLlmConfig, source: Any):
        self._captioner, self._source = captioner_of(job.artifact, config), source
        self._max_pixels = job.max_pixels

    def __call__(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        chunk = int(row["item"])
        batch: Batch = self._source.read(chunk)
        faults, questions = list(batch["error"]), []
        for index in good_rows(batch):
            pixels = decode_pair(batch["before"][index], batch["after"][index], self._source.reader, self._max_pixels)
            if isinstance(pixels, Fault):
                faults[index] = pixels.named()
                continue
            prepared = self._captioner.prepare(*pixels.images)
            requests = prepared.requests
            questions += [
                {
                    "chunk": chunk,
                    "place": index,
                    "number": number,
                    "requests": len(requests),
                    "messages": json.dumps(messages),
                    "max_tokens": options["max_tokens"],
                    "seen": [*prepared.seen.before, *prepared.seen.after],
                    "prompt_tokens": prepared.prompt_tokens,
                    "familiarity": prepared.familiarity,
                    "head": None,
                }
                for number, (messages, options) in enumerate(requests)
            ]
        if questions:
            rows = [int(number) for number in batch["row"]]
            head = {"row": rows, "pair_id": list(batch["pair_id"]), "faults": faults, "open": faults.count(None)}
            questions[0]["head"] = json.dumps(head)
        return questions


def request(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's conversation and sampling. ``logprobs`` 0 is that of the generated token itself."""
    sampling = {"temperature": 0.0, "max_tokens": row["max_tokens"], "logprobs": 0, "repetition_penalty": 1.0}
    return {"messages": json.loads(row["messages"]), "sampling_params": sampling}


def reply_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that are kept of a row, with its answer."""
    kept = {name: row[name] for name in ("chunk", "place", "number", "requests", "seen", "prompt_tokens", "familiarity",
                                         "head", "max_tokens")}  # fmt: skip
    if row.get(ERROR):
        return {**kept, "error": str(row[ERROR]), "text": "", "logs": [], "read": 0}
    # A step is {id of the token: {"logprob": ...}}; as a column of a table it has the ids of all steps, mostly empty.
    logs = [next(token["logprob"] for token in step.values() if token is not None) for step in row["logprobs"]]
    return {**kept, "error": "", "text": row["generated_text"], "logs": logs, "read": row["num_input_tokens"]}


@dataclass
class _Chunk:
    """A chunk of which some rows are back.

    Attributes:
        replies: row -> number of the request -> its answer.
    """

    head: dict[str, Any] | None = None
    replies: dict[int, dict[int, Reply]] = field(default_factory=lambda: defaultdict(dict))
    described: dict[int, dict[str, Any]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return self.head is not None and len(self.described) + len(self.errors) == self.head["open"]


def write_replies(
    answers: Iterable[Mapping[str, Any]], captioner: RemoteCaptioner, folder: DatasetFolder, source: Any,
    to_rows: ToRows, pending: Sequence[int],
) -> Iterator[ChunkResult]:  # fmt: skip
    """Write every chunk as soon as all of its rows are answered. Chunks without a readable row come last.

    Raises:
        RuntimeError: the engine returned fewer rows than it got; what is written is kept, and the same command
            continues.
    """
    from idc.captioning.contract import Seen
    from idc.vlm.remote import PreparedRequest

    chunks = {chunk: _Chunk() for chunk in pending}
    for row in answers:
        chunk = chunks[int(row["chunk"])]
        if row["head"] is not None:
            chunk.head = json.loads(row["head"])
        index, seen = int(row["place"]), [int(length) for length in row["seen"]]
        if row["error"]:
            chunk.errors[index] = f"failed in the engine: {row['error']}"
        else:
            logs = tuple(float(value) for value in row["logs"])
            replies = chunk.replies[index]
            replies[int(row["number"])] = Reply(
                str(row["text"]), captioner.model, len(logs) >= row["max_tokens"], int(row["read"]), len(logs), logs
            )
            if len(replies) == row["requests"]:
                prepared = PreparedRequest(
                    [], [{}], Seen((seen[0], seen[1]), (seen[2], seen[3])), int(row["prompt_tokens"]),
                    row["familiarity"], [] if len(replies) > 1 else None,
                )  # fmt: skip
                ordered = [[replies[number]] for number in sorted(replies)]
                chunk.described[index] = captioner.description(prepared, ordered, 1).to_dict()
        if chunk.whole:
            yield _write(folder, int(row["chunk"]), chunks.pop(int(row["chunk"])), to_rows)
    for number, chunk in chunks.items():
        if chunk.head is None and not chunk.described and not chunk.errors:
            batch = source.read(number)
            faults = [decode_fault(batch, index, source) for index in range(len(batch["error"]))]
            if all(faults):
                chunk.head = {"row": batch["row"], "pair_id": batch["pair_id"], "faults": faults, "open": 0}
                yield _write(folder, number, chunk, to_rows)
                continue
        raise RuntimeError(f"chunk {number}: the engine lost rows; run the same command again")


def decode_fault(batch: Batch, index: int, source: Any) -> str | None:
    """Why a row has no pixels."""
    if batch["error"][index] is not None:
        return str(batch["error"][index])
    pixels = decode_pair(batch["before"][index], batch["after"][index], source.reader)
    return pixels.named() if isinstance(pixels, Fault) else None


def _write(folder: DatasetFolder, number: int, chunk: _Chunk, to_rows: ToRows) -> ChunkResult:
    assert chunk.head is not None
    faults = [chunk.errors.get(index, fault) for index, fault in enumerate(chunk.head["faults"])]
    rows = [chunk.described.get(index, {}) for index in range(len(faults))]
    batch = table_batch(chunk.head, rows, faults, [0.0] * len(faults))
    return write_result(folder, number, batch, to_rows)
