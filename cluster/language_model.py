"""Questions about pairs to a vision-language model in vLLM on the cluster's GPUs, by ``ray.data.llm``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from typing import Any

from cluster.config import ClusterConfig
from cluster.session import session
from idc.chat_endpoint import NotAnswered, Reply, RequestRefused, image_part
from idc.data.descriptions.asking import Ask, Outcomes, Question, Questions
from idc.data.descriptions.config import DescribeJob, RayLlmConfig

ERROR = "__inference_error__"
"""Column of ``ray.data.llm`` with the reason why a row has no answer, or with empty text."""


def asking_on(cluster: ClusterConfig) -> Ask:
    """See :data:`idc.data.descriptions.asking.Ask`. Every round runs in its own session.

    Raises:
        ValueError: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise ValueError(
            "describer=ray_llm needs vLLM: install `ray[llm]` of this version of Ray on machines with NVIDIA GPUs, or "
            "start `vllm serve MODEL` anywhere and take describer=endpoint"
        )

    def ask(questions: Questions, record: Callable[[Question, Reply], None]) -> Outcomes:
        with session(cluster), closing(_answers(questions, record)) as outcomes:
            yield from outcomes

    return ask


def _answers(questions: Questions, record: Callable[[Question, Reply], None]) -> Outcomes:
    import ray
    from ray.data.llm import build_processor

    job = questions.job
    chunks = ray.data.from_items(list(questions.wanted), override_num_blocks=max(1, len(questions.wanted)))
    rows = chunks.flat_map(partial(question_rows, questions))
    processor = build_processor(engine(job.ray_llm), partial(message, job), answer_row)
    open_pairs = {chunk: set(pairs) for chunk, pairs in questions.wanted.items()}
    for row in processor(rows).iter_rows():
        open_pairs[row["chunk"]].discard(row["pair_id"])
        if row[ERROR]:
            yield row["pair_id"], RequestRefused(f"failed in the engine: {row[ERROR]}")
            continue
        cut_off = row["completion_tokens"] >= job.max_tokens
        reply = Reply(row["text"], job.ray_llm.model, cut_off, row["prompt_tokens"], row["completion_tokens"])
        record(Question(row["key"], row["pair_id"], "", "", ""), reply)
        yield row["pair_id"], None
    for chunk, pairs in open_pairs.items():  # those whose images cannot be read
        reasons = questions.read(chunk)[1] if pairs else {}
        for pair_id in sorted(pairs):
            reason = reasons.get(pair_id)
            yield pair_id, RequestRefused(reason) if reason else NotAnswered("the engine returned no row")


def engine(config: RayLlmConfig) -> Any:
    """The configuration of the engine. A row that fails is returned with its error instead of ending the run."""
    from ray.data.llm import vLLMEngineProcessorConfig

    return vLLMEngineProcessorConfig(
        model_source=config.model,
        engine_kwargs={
            "tensor_parallel_size": config.tensor_parallel,
            "max_model_len": config.max_model_len,
            "limit_mm_per_prompt": {"image": 2},
        },
        concurrency=config.replicas,
        batch_size=config.batch_size,
        prepare_multimodal_stage={"enabled": True, "chat_template_content_format": "openai"},
        should_continue_on_error=True,
    )


def question_rows(questions: Questions, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The questions of a chunk as rows."""
    chunk = int(row["item"])
    return [{**question._asdict(), "chunk": chunk} for question in questions.read(chunk)[0]]


def message(job: DescribeJob, row: dict[str, Any]) -> dict[str, Any]:
    """A row's message to the model, and the sampling."""
    content = [image_part(row["before"]), image_part(row["after"]), {"type": "text", "text": row["text"]}]
    return {
        "messages": [{"role": "user", "content": content}],
        "sampling_params": {"temperature": job.temperature, "max_tokens": job.max_tokens},
    }


def answer_row(row: dict[str, Any]) -> dict[str, Any]:
    """Columns that are kept of a row, with its answer."""
    return {
        **{name: row[name] for name in ("key", "pair_id", "chunk")},
        "text": row["generated_text"],
        "prompt_tokens": row["num_input_tokens"],
        "completion_tokens": row["num_generated_tokens"],
    }
