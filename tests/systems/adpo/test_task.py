"""Runs: what is drawn, what is stored and loads again, what is logged, bad input."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from idc.config import ConfigError
from idc.systems import load_captioner
from idc.systems.adpo.data import CaptionBank, preference_parts
from idc.systems.adpo.task import train
from idc.training.artifact import ADAPTER, read_artifact
from idc.training.context import LocalContext
from idc.vision.pair_encoder.model import PairEncoder
from idc.vlm import system
from idc.vlm.chat import Chat
from tests.folders import read_log, write_rows
from tests.systems.adpo.small import KIND, SAME, encoder_folder, job_of, loaders_of, rows_of
from tests.vlm.models import found, picture


@pytest.fixture(scope="module")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "adpo"
    job = job_of(KIND, pairs, **{"train.steps": 4, "train.eval_every": 2, "retriever.baseline": 0.9})
    train(job.model_dump(mode="json"), LocalContext(folder))
    return folder


def test_no_sentence_of_no_change_is_a_negative_of_an_unchanged_pair(pairs: Path) -> None:
    bank = CaptionBank(
        ["There is no change.", "nothing has changed", "the same street", "a red cube was added.", "a cube moved"],
        Chat(found(KIND).family),
    )
    for references, unchanged, positives in (
        (["the same street"], True, {0, 1, 2}),
        (["There is no change."], False, {0, 1, 2}),
        (["a  cube moved"], True, {0, 1, 2, 4}),
        (["a cube moved"], False, {4}),
    ):
        assert bank.positives(references, unchanged) == positives
        drawn = bank.candidates(bank.positives(references, unchanged), 5 - len(positives), np.random.default_rng(0))
        assert set(drawn) == set(range(5)) - positives


def test_candidates_are_redrawn_at_every_visit_and_never_a_caption_of_the_pair(pairs: Path) -> None:
    part = preference_parts(loaders_of(job_of(KIND, pairs), KIND, pairs))[0]
    first, again, later = (part.get(5, epoch) for epoch in (0, 0, 1))
    assert (first.candidates, first.noise.tolist()) == (again.candidates, again.noise.tolist())
    assert first.candidates != later.candidates
    assert not np.array_equal(first.noise, later.noise)
    for epoch, index in product(range(3), range(len(part))):
        sample = part.get(index, epoch)
        references = set(part.captions[sample.row[1]])
        assert part.bank.texts[sample.chosen] in references
        negatives = {part.bank.texts[number] for number in sample.candidates}
        assert len(negatives) == 6
        assert not negatives & (references | set(SAME) if references <= set(SAME) else references)


def test_a_run_logs_its_margin_and_stores_the_policy_and_the_moved_retriever_apart(trained: Path) -> None:
    lines = read_log(trained / "log.jsonl")
    assert {"reward_accuracy", "log_p_chosen", "reward", "drawn_rank", "drawn_cosine", "grad_norm/retriever"} <= lines[
        0
    ].keys()
    assert lines[0]["margin"] == 0 != lines[-1]["margin"]
    assert 0 < lines[0]["q_entropy"] < np.log(6)
    assert read_artifact(trained / "artifact", system="adpo").state_dict() == {}
    adapter = load_file(trained / "artifact" / ADAPTER / "adapter_model.safetensors")
    assert adapter
    assert all("lora_" in name for name in adapter)
    start, end = (PairEncoder.load(path).state_dict() for path in (encoder_folder(), trained / "retriever"))
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert "clip.visual.proj" in changed
    assert all(name.startswith("clip.visual.") for name in changed)
    assert load_captioner(str(trained / "artifact")).score([picture(1)], [picture(2)], [["no change"]])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"retriever": None}, "objective: 'adpo' needs retriever.encoder"),
        ({"objective": "dpo", "retriever": {"encoder": "x"}}, "has no retriever; set retriever=null"),
        ({"tune.lora.dropout": 0.1}, "tune.lora.dropout: 0.1 makes log-probabilities noisy; set it to 0"),
        ({"retriever.learns": False, "retriever.baseline": 0.9}, "unused with retriever.learns=false"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(pairs: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        job_of(KIND, pairs, **settings)


def test_what_cannot_be_drawn_is_refused_before_a_model_is_loaded(
    tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "load_model", None)
    rows = rows_of(12)
    rows[2]["captions"] = sorted({text for row in rows for text in row["captions"] if text not in SAME})
    most = write_rows(tmp_path / "most", rows)
    for folder, settings, text in (
        (pairs, {"candidates": 300}, r"pair .pair-\d+.: \d+ of the bank.s \d+ captions are wrong for it, and 300"),
        (most, {"candidates": 4}, r"pair .pair-2.: 3 of the bank.s \d+ captions are wrong for it, and 4"),
        (pairs, {"cutoff": 60}, "above the cutoff of 60"),
    ):
        with pytest.raises(ValueError, match=text):
            train(job_of(KIND, folder, **settings).model_dump(mode="json"), LocalContext(tmp_path / "run"))
