"""Captions by ``ray.data.llm``: the requests for the engine, and the table that its answers become. The engine itself
needs GPUs; its answers are computed here by the endpoint of the tests, in the engine's form and in another order."""

from __future__ import annotations

import importlib
import random
import shutil
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cluster import caption_llm
from cluster.caption_llm import (
    CaptionLlmConfig,
    LlmQuestions,
    captioner_of,
    captioning_on,
    reply_of_row,
    request,
    write_replies,
)
from cluster.config import ClusterConfig
from cluster.language_model import ERROR, engine
from idc.captioning.calibration import YES, Calibration, fit_calibration
from idc.captioning.table import CaptionJob, caption_rows, open_output, to_rows
from idc.data.images import encode_png
from idc.data.pipeline import finish, run_local
from idc.data.rows import open_rows
from idc.data.store import iter_rows
from idc.training.artifact import CALIBRATION, add_file
from tests.vlm.artifacts import speaking_folder, wrapped
from tests.vlm.endpoint import Endpoint, endpoint
from tests.vlm.models import picture, tiny_folder


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> str:
    return wrapped(tmp_path_factory.mktemp("vlm") / "artifact")


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Seven rows in chunks of three: two bad ones, and a chunk of bad ones alone."""
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(encode_png(picture(number, 64 + 9 * number, 64)))
    rows = ["0.png,1.png", "0.png,gone.png", "2.png,3.png", "3.png,2.png", "1.png,1.png", "1.png,0.png",
            "gone.png,0.png"]  # fmt: skip
    (tmp_path / "t.csv").write_text("before,after\n" + "\n".join(rows) + "\n")
    return str(tmp_path / "t.csv")


def engine_row(one: Endpoint, row: dict[str, Any]) -> dict[str, Any]:
    """The row as the engine returns it, with the answer of the endpoint's model."""
    sent = request(row)
    found = one.answer({**sent, **sent["sampling_params"], "model": "tiny"})
    (choice,) = found["choices"]
    steps = [{int(token["token"]): {"logprob": token["logprob"]}} for token in choice["logprobs"]["content"]]
    return {
        **row, "generated_text": choice["message"]["content"], "logprobs": steps,
        "num_input_tokens": found["usage"]["prompt_tokens"], ERROR: "",
    }  # fmt: skip


@pytest.mark.parametrize("asked", [False, True])
def test_the_table_is_that_of_the_same_endpoint_whatever_the_order_of_the_answers(
    artifact: str, table: str, tmp_path: Path, asked: bool
) -> None:
    """With a calibration that reads the answer to yes or no, that is asked too."""
    if asked:
        artifact = str(shutil.copytree(artifact, tmp_path / "calibrated"))
        rows_of_fit = [{"says_change": 1.0, "log_probability": -1.0, "signed_log_probability": -1.0, YES: odds}
                       for odds in (1.0, 2.0, -2.0)]  # fmt: skip
        fitted = Calibration(fingerprint="", source={}, quality={}, **fit_calibration(rows_of_fit, [True, True, False]))
        add_file(artifact, CALIBRATION, fitted.model_dump_json())
    job = CaptionJob(artifact=artifact, input=table, out=str(tmp_path / "engine"), chunk_size=3)
    source = open_rows(job.input, job.format, chunk_size=job.chunk_size, access_config=job)
    folder = open_output(job, source)
    questions = LlmQuestions(job, CaptionLlmConfig(), source)
    rows = [row for chunk in folder.pending() for row in questions({"item": chunk})]
    places = [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [(row["chunk"], row["place"]) for row in rows] == [place for place in places for _ in range(1 + asked)]
    with endpoint(speaking_folder("qwen2_5_vl")) as one:
        answers = [reply_of_row(engine_row(one, row)) for row in rows]
        random.Random(1).shuffle(answers)
        captioner = captioner_of(artifact, CaptionLlmConfig())
        results = list(
            write_replies(answers, captioner, folder, source, partial(to_rows, captioner=artifact), folder.pending())
        )
        finish(folder, 1.0)
        direct = {"artifact": artifact, "input": table, "out": str(tmp_path / "direct"), "chunk_size": 3}
        remote = CaptionJob.model_validate({**direct, "endpoint": {"url": one.url}})
        caption_rows(remote, lambda *given, **more: run_local(*given, progress=False, **more))
    assert {result.chunk_id for result in results} == {0, 1, 2}
    found, expected = (list(iter_rows(str(tmp_path / name))) for name in ("engine", "direct"))
    assert [row["error"] is None for row in found] == [True, False, True, True, True, True, False]
    assert found == expected
    good = [row for row in found if row["error"] is None]
    assert all(row["caption"] for row in good)
    assert all((row["changed_probability"] is not None) == asked for row in good)


def test_what_the_engine_cannot_caption_is_a_row_with_its_reason_and_lost_rows_are_no_table(
    artifact: str, table: str, tmp_path: Path
) -> None:
    job = CaptionJob(artifact=artifact, input=table, out=str(tmp_path / "out"), chunk_size=3)
    source = open_rows(job.input, job.format, chunk_size=job.chunk_size, access_config=job)
    folder = open_output(job, source)
    rows = LlmQuestions(job, CaptionLlmConfig(), source)({"item": 0})
    failed = [reply_of_row({**row, ERROR: "out of memory"}) for row in rows]
    captioner = captioner_of(artifact, CaptionLlmConfig())
    (result,) = write_replies(failed, captioner, folder, source, partial(to_rows, captioner=artifact), [0])
    assert result.num_rows == 3
    assert len(folder.pending()) == 2
    with pytest.raises(RuntimeError, match="chunk 1: the engine lost rows; run the same command again"):
        list(write_replies([], captioner, folder, source, partial(to_rows, captioner=artifact), [1]))


def test_the_installed_ray_takes_the_engines_settings(artifact: str) -> None:
    config = CaptionLlmConfig(model=captioner_of(artifact, CaptionLlmConfig()).model, replicas=3)
    found = engine(config)
    assert (found.model_source, found.concurrency) == (str(speaking_folder("qwen2_5_vl")), 3)
    assert found.engine_kwargs["max_model_len"] == 4096


def test_without_vllm_the_job_names_what_it_needs(
    artifact: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_spec("vllm") is None, "vLLM is installed here: this test is of its absence"
    job = CaptionJob(artifact=artifact, input=table, out=str(tmp_path / "out"))
    with pytest.raises(ValueError, match=r"ray_llm needs vLLM: .*endpoint.url="):
        captioning_on(ClusterConfig(), job, CaptionLlmConfig())
    monkeypatch.setattr(caption_llm, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match="one greedy caption; leave candidates and beams out"):
        captioning_on(ClusterConfig(), job.model_copy(update={"candidates": 2}), CaptionLlmConfig())
    tiled = job.model_copy(update={"artifact": wrapped(tmp_path / "llava", folder=tiny_folder("llava_onevision"))})
    with pytest.raises(ValueError, match=r"ray_llm: vLLM cuts every image into tiles for LLaVA-OneVision"):
        captioning_on(ClusterConfig(), tiled, CaptionLlmConfig())
    monkeypatch.undo()
    main = importlib.import_module("jobs.caption").main
    monkeypatch.delenv("IDC_ROOT", raising=False)
    given = [f"artifact={artifact}", f"input={table}", f"out={tmp_path / 'out'}", "ray_llm.replicas=2"]
    for more, said in ((["--local"], "--local: ray_llm needs Ray"),
                       (["endpoint.url=http://localhost:1/v1"], "ray_llm: endpoint runs the language model already"),
                       (["ray_llm.replica=2"], "did you mean 'replicas'")):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["caption.py", *given, *more])
        with pytest.raises(SystemExit):
            main()
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
