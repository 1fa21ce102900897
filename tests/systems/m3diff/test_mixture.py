"""M3Diff's mixture: which samples it has, with which questions; what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from idc.config import ConfigError, load, missing_inputs
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.mixture import QUESTIONS, MixtureConfig, check_sets
from idc.systems.m3diff.task import make_loaders, training_parts, validation_samples
from idc.training.context import LocalContext
from idc.vlm.chat import Chat
from idc.vlm.config import PAIR_PROMPT
from tests.vlm.folders import write_pairs, write_rows
from tests.vlm.models import found, tiny_folder

TRAIN = {
    "epochs": None, "steps": 14, "batch_size": 4, "precision": "fp32", "group_by_length": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three sets: of 12, 9 and 6 training pairs, a third of which have no, one or two captions each."""
    root = tmp_path_factory.mktemp("data")
    sizes = {"clevr_change": 12, "spot_the_diff": 9, "mine": 6}
    return {name: str(write_pairs(root / name, train=size, val=3)) for name, size in sizes.items()}


def mixture_of(folders: dict[str, str], **settings: Any) -> MixtureConfig:
    return load(MixtureConfig, None, {"sets": {name: {"pairs": path} for name, path in folders.items()}, **settings})


def chat() -> Chat:
    return Chat(found("internvl").family)


def test_each_set_has_its_question_and_its_way_with_several_captions(folders: dict[str, str]) -> None:
    own = "<image> and <image>: what is different?"
    mixture = mixture_of(folders, **{"sets.mine.prompt.text": own})
    parts = training_parts(mixture, chat(), seed=0)
    questions = {name: part.dialogue(1, 0).turns[0].text for name, part in parts.items()}
    assert questions["clevr_change"].endswith(QUESTIONS["clevr_change"])
    assert questions["spot_the_diff"].endswith("Describe one change in one sentence.")
    assert questions["mine"] == own
    assert mixture.prompt_of("omnidiff").text.endswith(QUESTIONS["omnidiff"]), "also of a set that is not trained on"
    assert mixture.prompt_of("another").text == PAIR_PROMPT
    # of three pairs one has no caption, one has one and one has two
    assert {name: len(part) for name, part in parts.items()} == {"clevr_change": 12, "spot_the_diff": 9, "mine": 4}
    each = mixture_of(folders, **{"sets.mine.captions": "each", "sets.clevr_change.captions": "one"})
    assert [len(part) for part in training_parts(each, chat(), seed=0).values()] == [8, 9, 6]


def job_of(folders: dict[str, str], **settings: Any) -> M3DiffJob:
    sets = {name: {"pairs": path} for name, path in folders.items()}
    return load(M3DiffJob, None, {
        "mixture.sets": sets, "base.source": str(tiny_folder("internvl")), "generation.max_new_tokens": 4,
        "tune.lora.rank": 2, "mdp.heads": 2, "train": TRAIN, **settings,
    })  # fmt: skip


def test_training_has_every_sample_of_every_set_and_validation_pairs_only_if_asked(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = found("internvl").family
    job = job_of(folders, **{"mixture.validate_on": "spot_the_diff"})
    loaders = make_loaders(job, family, LocalContext(tmp_path))
    assert "clevr_change 12, spot_the_diff 9, mine 4" in capsys.readouterr().err
    assert len(loaders.train.dataset) == 25
    assert loaders.validation is not None
    validation = validation_samples(job.mixture, chat(), 0)
    assert validation is not None
    assert validation.folder == folders["spot_the_diff"]
    assert validation.dialogue(0, 0).turns[0].text.endswith(QUESTIONS["spot_the_diff"])
    settings = {"mixture.train_on_val": True, "train.keep_best": None}
    trained_on_all = make_loaders(job_of(folders, **settings), family, LocalContext(tmp_path))
    assert trained_on_all.validation is None
    assert len(trained_on_all.train.dataset) == 25 + 9


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"mixture.sets.a": {"pairs": "a", "prompt": {"text": "What?"}}}, r"sets\.a\.prompt\.text: <image>"),
        ({"mixture.sets.a": {"pairs": "/"}, "mixture.sets.b": {"pairs": "/"}}, "'/' is the folder of 'a' too"),
        ({"mixture.validate_on": "mine", "mixture.train_on_val": True}, "train_on_val=true trains on the"),
        ({"mixture.without": ["mine", "clevr_change", "spot_the_diff"]}, r"without: leaves out all sets \("),
        ({"mixture.without": ["main"]}, "without: 'main' is not one of the sets; did you mean 'mine'"),
        ({"mixture.without": ["mine"], "mixture.validate_on": "mine"}, "validate_on: 'mine' is not one of the sets"),
    ],
)  # fmt: skip
def test_faults_of_a_mixture_are_named(folders: dict[str, str], settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        job_of(folders, **settings)


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "it has no manifest.json; import it first"),
        ({"complete": False}, "is not complete; run "),
        ({"extra": {"images": False}}, "has annotations alone, no images"),
        ({"kind": "procedures"}, "not pairs"),
        ({}, "has the same rows as 'mine'"),
    ],
)
def test_a_set_that_cannot_be_trained_on_is_one_line_with_the_command_that_imports_it(
    manifest: dict[str, Any] | None, reason: str, folders: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "copy" / "manifest.json"
    if manifest is not None:
        shutil.copytree(folders["mine"], path.parent)
        path.write_text(json.dumps({**json.loads(path.read_text()), **manifest}))
    mixture = mixture_of({"mine": folders["mine"], "spot_the_diff_multi": str(path.parent)})
    with pytest.raises(ValueError, match=r"^mixture\.sets\.spot_the_diff_multi: ") as caught:
        check_sets(mixture)
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    if manifest == {}:
        assert "mixture.without=[spot_the_diff_multi]" in message
    else:
        command = f"format=spot_the_diff spot_the_diff.protocol=multi source=FOLDER out={path.parent}"
        assert f"python jobs/import_dataset.py {command}" in message
        assert missing_inputs(mixture) == [message.removeprefix("mixture.")], "the command line refuses it too"


def test_a_split_without_captions_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    row = {"pair_id": "1", "before": b"", "after": b"", "captions": [], "change_type": None, "mask": None,
           "source": "", "meta": "", "split": "train"}  # fmt: skip
    bare = write_rows(tmp_path / "bare", [row, {**row, "pair_id": "2", "split": "val", "captions": ["a"]}])
    with pytest.raises(ValueError, match=r"mixture\.sets\.mine: .* has no captions; import the data set with its "):
        check_sets(mixture_of({"mine": bare}))
    unvalidated = write_pairs(tmp_path / "none", train=3, val=0)
    mixture = mixture_of({"mine": str(unvalidated), "clevr_change": folders["clevr_change"]})
    with pytest.raises(ValueError, match=r"mixture\.validate_on: the validation split of 'mine' .*: clevr_change"):
        validation_samples(mixture, chat(), 0)
