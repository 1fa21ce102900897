"""A fine-tuned NAMC that keeps its dual encoder: the relevance in its descriptions and in the server's answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from idc.config import load
from idc.data.images import decode_image, resize_image
from idc.data.store import iter_rows
from idc.data.text import Vocabulary, words
from idc.systems.namc.captioner import NamcCaptioner
from idc.systems.namc.config import PretrainJob
from idc.systems.namc.data import Tokens, stack_texts
from idc.systems.namc.nim import DualEncoder
from idc.systems.namc.relevance import RelevanceReader
from idc.systems.namc.task import PretrainTask
from idc.training.artifact import read_artifact
from idc.vision.pair_encoder.config import PairEncoderConfig
from idc.vision.pair_encoder.text_tokens import clip_tokenizer
from serve.answers import pair_answer
from serve.backend import EncodedPair, Options
from serve.captioner import ServedCaptioner
from serve.schema import PairAnswer
from tests.systems.namc.tiny import described_pairs, finetune_job, pretrain_job, start
from tests.systems.procap.world import World
from tests.vision.tiny_models import save_tiny_clip


@pytest.fixture(scope="module")
def runs(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("relevance")
    described = described_pairs(world, folder / "described")
    start(pretrain_job(world, described, {"train.steps": 5}), folder / "first")
    given = {"pretrained": str(folder / "first" / "artifact"), "train.steps": 5}
    start(finetune_job(world, {**given, "keep_relevance": True}), folder / "kept")
    start(finetune_job(world, given), folder / "dropped")
    return folder


@pytest.fixture(scope="module")
def pairs(world: World) -> list[EncodedPair]:
    return [EncodedPair(row["before"], row["after"]) for _, row in zip(range(3), iter_rows(world.pairs), strict=False)]


def test_relevance_is_that_of_the_pretraining(runs: Path, pairs: list[EncodedPair]) -> None:
    befores, afters = ([decode_image(getattr(pair, side)) for pair in pairs] for side in ("before", "after"))
    first = read_artifact(runs / "first" / "artifact", system="namc")
    job = load(PretrainJob, None, first.config["job"])
    assert first.vocabulary is not None
    task = PretrainTask(job, None, first.vocabulary, None, len(first.state_dict()["heads.predict.weight"]))
    first.load_into(task)
    assert task.nim is not None
    captioner = NamcCaptioner(runs / "kept" / "artifact")
    told = captioner.describe(befores, afters, change_map=True)
    images = np.stack([resize_image(image, captioner.size) for image in (*befores, *afters)])
    tokens = Tokens(first.vocabulary, 96)
    for place, one in enumerate(told):
        assert one.relevance is not None
        said = words(one.best.caption)
        assert [word for word, _, _ in one.relevance.words] == said
        both = torch.from_numpy(images[[place, place + len(pairs)]])
        of_places, of_words = task.eval().nim.relevance(both, stack_texts([tokens(said)] * 2))  # type: ignore[union-attr]
        assert np.allclose([values for _, *values in one.relevance.words], of_words.T, atol=1e-5)
        assert np.allclose(np.stack([one.relevance.before, one.relevance.after]).reshape(2, -1), of_places, atol=1e-5)
    assert all(one.relevance is None for one in captioner.describe(befores, afters))
    assert all(
        one.relevance is None
        for one in NamcCaptioner(runs / "dropped" / "artifact").describe(befores, afters, change_map=True)
    )


def test_the_server_answers_with_it(runs: Path, pairs: list[EncodedPair]) -> None:
    served = ServedCaptioner(str(runs / "kept" / "artifact"))
    found = served.caption(pairs, [Options(change_map=True)] * len(pairs))
    for index, result in enumerate(found):
        answer = PairAnswer.model_validate(pair_answer(index, None, result))
        assert answer.caption is not None
        assert answer.relevance is not None
        assert [one.word for one in answer.relevance.words] == words(answer.caption)
        assert result.relevance is not None
        drawn = decode_image(result.relevance.before)
        assert drawn.shape == decode_image(pairs[index].before).shape
        assert drawn.max() - drawn.min() > 100
    assert pair_answer(0, None, served.caption(pairs[:1], [Options()])[0])["relevance"] is None


def test_a_reader_with_clips_word_pieces_needs_no_other_file(tmp_path: Path) -> None:
    shape = PairEncoderConfig(image_size=32, patch_size=16, text_positions=40)
    clip = save_tiny_clip(tmp_path / "clip", shape)
    tokenizer = clip_tokenizer(tmp_path / "clip")
    reader = RelevanceReader(DualEncoder(clip), Tokens(Vocabulary(["cube"]), 40, tokenizer))
    reader.save(tmp_path / "kept")
    shutil.rmtree(tmp_path / "clip")
    again = RelevanceReader.load(tmp_path / "kept", torch.device("cpu"))
    images = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    (one,), (other,) = reader(images, ["the cube vanished"]), again(images, ["the cube vanished"])
    assert [word for word, _, _ in one.words] == ["the", "cube", "vanished"]
    assert one.words == other.words
    assert np.array_equal(one.after, other.after)
    assert one.before.shape == (2, 2)


def test_what_cannot_be_kept_is_refused(world: World, runs: Path, tmp_path: Path) -> None:
    with pytest.raises((ValueError, ValidationError), match=r"keep_relevance: without pretrained there is no dual"):
        finetune_job(world, {"keep_relevance": True})
    described = described_pairs(world, tmp_path / "described")
    off = {"nim.enabled": False, "mir.enabled": False, "tokenizer": None, "train.steps": 1}
    start(pretrain_job(world, described, off), tmp_path / "off")
    job = finetune_job(world, {"pretrained": str(tmp_path / "off" / "artifact"), "keep_relevance": True})
    with pytest.raises(ValueError, match=r"keep_relevance: .*off/artifact was trained without NIM; set it to false"):
        start(job, tmp_path / "never")
