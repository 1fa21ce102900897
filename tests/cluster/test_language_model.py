"""Descriptions by ``ray.data.llm``: what is put to the engine and what is kept of its answers. The engine itself needs
GPUs."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster import language_model
from cluster.config import ClusterConfig
from idc.data.descriptions.asking import Questions, key_of
from idc.data.descriptions.config import DescribeJob
from idc.data.descriptions.instructions import NO_CAPTIONS
from idc.data.pipeline import FolderSource
from tests.data.descriptions.small_pairs import number_in, write_pairs


@pytest.fixture
def job(tmp_path: Path) -> DescribeJob:
    pairs = write_pairs(tmp_path / "pairs", 7, p05={"before": b"no image"})
    return DescribeJob(
        pairs=pairs, out=str(tmp_path / "out"), describer="ray_llm", ray_llm={"replicas": 3, "tensor_parallel": 2}
    )


def test_the_rows_of_a_chunk_are_its_open_questions(job: DescribeJob) -> None:
    source = FolderSource(job.pairs, chunk_size=4)
    questions = Questions(job, source, {}, 2, {1: frozenset({"p04", "p05"})})
    (row,) = language_model.question_rows(questions, {"item": 1})
    assert (row["pair_id"], row["chunk"]) == ("p04", 1)
    assert row["key"] == key_of(job, source, "p04", 2, NO_CAPTIONS)
    assert questions.read(1)[1].keys() == {"p05"}
    sent = language_model.message(job, row)
    assert sent["sampling_params"] == {"temperature": 0.7, "max_tokens": 300}
    (turn,) = sent["messages"]
    assert number_in(turn["content"]) == 4
    assert turn["content"][2]["text"] == row["text"]


def test_what_is_kept_of_an_answer() -> None:
    row = {"key": "k", "pair_id": "p", "chunk": 1, "before": "data:", "generated_text": "hello"}
    kept = language_model.answer_row({**row, "num_input_tokens": 5, "num_generated_tokens": 2})
    assert kept == {"key": "k", "pair_id": "p", "chunk": 1, "text": "hello", "prompt_tokens": 5, "completion_tokens": 2}


def test_the_installed_ray_takes_the_engines_settings(job: DescribeJob) -> None:
    found = language_model.engine(job.ray_llm)
    assert (found.model_source, found.concurrency) == ("Qwen/Qwen2-VL-7B-Instruct", 3)
    assert found.engine_kwargs["tensor_parallel_size"] == 2
    assert found.engine_kwargs["limit_mm_per_prompt"] == {"image": 2}
    assert found.should_continue_on_error


def test_without_vllm_the_job_names_what_it_needs(
    job: DescribeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_spec("vllm") is None, "vLLM is installed here: this test is of its absence"
    with pytest.raises(ValueError, match=r"describer=ray_llm needs vLLM: .*take describer=endpoint"):
        language_model.asking_on(ClusterConfig())
    main = importlib.import_module("jobs.describe_pairs").main
    monkeypatch.delenv("IDC_ROOT", raising=False)
    given = [f"pairs={job.pairs}", f"out={job.out}", "describer=ray_llm"]
    monkeypatch.setattr(sys, "argv", ["describe_pairs.py", *given])
    with pytest.raises(SystemExit, match="describe_pairs: describer=ray_llm needs vLLM"):
        main()
    monkeypatch.setattr(sys, "argv", ["describe_pairs.py", *given, "--local"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "--local: describer=ray_llm needs Ray" in capsys.readouterr().err
    assert not Path(job.out).exists()
