"""Tuning by rewards of a captioner with a decoder of its own: a step against one caption and one word at a time, and a
training from an artifact to an artifact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idc.config import load
from idc.nn.word_captioner import WordCaptioner
from idc.rewards.rewards import Rewards, Row, distinct_share, training_rows
from idc.systems import artifact_of_objects, load_captioner
from idc.systems.grpo.config import WordsJob
from idc.systems.grpo.words import DrawnPairs, RewardedWords, collate
from idc.training.artifact import read_artifact
from tests.systems.grpo.small import assert_equal_steps
from tests.systems.procap.world import TRAIN, Images, World, start

GROUP, TEMPERATURE = 4, 1.4


def overlap(captions: Sequence[str], row: Row) -> list[float]:
    """The words that a caption has of the pair's first one; of another pair it is another number."""
    words = {*row["captions"][0].split()}
    return [float(len(words & {*caption.split()})) for caption in captions]


def words_job(artifact: Path | str, pairs: str, **settings: Any) -> WordsJob:
    values: dict[str, Any] = {
        "artifact": str(artifact), "pairs": pairs, "train": TRAIN, "group": GROUP, "temperature": TEMPERATURE,
        "rewards": {f"{__name__}:overlap": 1.0}, "validation_pairs": 2,
    }  # fmt: skip
    return load(WordsJob, None, values | settings)


def naive_loss(captioner: WordCaptioner[Any], batch: dict[str, Any]) -> Tensor:
    """Each word drawn from its own pass over the words before it; Dr. GRPO's loss, whose ratio is 1."""
    memory, total = captioner.memory(batch["before"], batch["after"]), torch.zeros(())
    special, longest = captioner.vocabulary.special, captioner.max_length
    for pair, row in enumerate(batch["row"]):
        logs, rewards = [], []
        for numbers in batch["draws"][pair]:
            ids, log = [special.bos], torch.zeros(())
            while ids[-1] != special.eos and len(ids) <= longest:
                logits = captioner._decoder(torch.tensor([ids]), memory[pair : pair + 1])[0, -1] / TEMPERATURE
                logits[list(captioner._rules["banned"])] = -torch.inf
                probabilities = logits.softmax(-1)
                word = int((probabilities.double().cumsum(-1) <= numbers[len(ids) - 1]).sum())
                log = log + probabilities[word].log() - probabilities[word].log().detach()
                ids.append(word)
            text = captioner.text(ids[1:])
            rewards.append(overlap([text], row)[0] * distinct_share(text) * (ids[-1] == special.eos))
            logs.append((log, len(ids) - 1))
        for (log, count), reward in zip(logs, rewards, strict=True):
            advantage = reward - sum(rewards) / len(rewards)
            total = total - advantage * (count + log) / longest / (len(batch["row"]) * GROUP)
    return total


def test_a_step_is_that_of_one_word_at_a_time(captioner_artifact: Path, world: World) -> None:
    job = words_job(captioner_artifact, world.pairs)
    captioner = load_captioner(str(captioner_artifact), speed="exact")
    assert isinstance(captioner, WordCaptioner)
    task = RewardedWords(job, captioner, Rewards(job.rewards, training_rows([world.pairs])))
    samples = DrawnPairs(job, world.pairs, "train", 0, captioner)
    batch = collate([samples.get(index, 0) for index in range(3)])
    assert len({row["captions"][0] for row in batch["row"]}) > 1, "or a reward could be of another pair"
    loss, expected = task.training_step(batch)[0], naive_loss(captioner, batch)
    assert_equal_steps((task.net, loss), (task.net, expected))


def test_a_training_earns_more_and_leaves_an_artifact_of_the_same_system(
    captioner_artifact: Path, world: World, images: Images, tmp_path: Path
) -> None:
    settings = {"steps": 24, "batch_size": 8}
    job = words_job(captioner_artifact, world.pairs, train=TRAIN | settings, optim={"lr": 3e-3, "final_lr": 1e-3})
    start(job, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    earned = [line["reward"] for line in lines if "reward" in line]
    assert len(earned) == 24
    assert sum(earned[-6:]) > 1.3 * sum(earned[:6])
    tuned, before = read_artifact(tmp_path / "run" / "artifact"), read_artifact(captioner_artifact)
    assert (tuned.system, tuned.config["rewards"]["group"]) == (before.system, GROUP)
    captions = load_captioner(str(tuned.path))(*images)
    assert captions != load_captioner(str(captioner_artifact))(*images)


def test_an_artifact_without_a_decoder_of_its_own_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is of objects, which has no text decoder of its own"):
        start(words_job(artifact_of_objects("regions"), world.pairs), tmp_path / "run")
