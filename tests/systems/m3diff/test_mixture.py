"""M3Diff's mixture: which samples it has, with which questions, in which order; what is refused, before anything large
is read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from idc.config import ConfigError, load, missing_inputs
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.m3diff.data import counts, make_loaders, training_parts, validation_samples
from idc.systems.m3diff.mixture import QUESTIONS, TABLE_9, MixtureConfig, check_sets, mixture_table
from idc.training.context import LocalContext
from idc.training.data import Mixture
from idc.vlm.chat import Chat
from idc.vlm.config import PAIR_PROMPT
from tests.vlm.folders import write_pairs, write_rows
from tests.vlm.models import found, tiny_folder

TRAIN = {
    "epochs": None, "steps": 14, "batch_size": 4, "seed": 5, "log_every": 1, "precision": "fp32", "group_by_length": 0,
    "tracking": {"enabled": False},
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


# -- which samples ------------------------------------------------------------------------------------------------


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
    assert set(TABLE_9) < set(QUESTIONS)
    assert len(set(QUESTIONS.values())) == len(QUESTIONS)
    # of three pairs one has no caption, one has one and one has two
    assert {name: len(part) for name, part in parts.items()} == {"clevr_change": 12, "spot_the_diff": 9, "mine": 4}
    each = mixture_of(folders, **{"sets.mine.captions": "each", "sets.clevr_change.captions": "one"})
    assert [len(part) for part in training_parts(each, chat(), seed=0).values()] == [8, 9, 6]


def test_the_validation_pairs_are_trained_on_only_if_that_is_asked_for(folders: dict[str, str]) -> None:
    mixture = mixture_of(folders, train_on_val=True)
    parts = training_parts(mixture, chat(), seed=0)
    assert list(parts) == [name for one in folders for name in (one, f"{one} (val)")]
    assert [one.samples for one in counts(mixture, parts)] == [12 + 3, 9 + 3, 4 + 3]
    assert validation_samples(mixture, chat(), 0) is None
    alone = mixture_of(folders)
    assert (alone.validated, mixture_of(folders, validate_on="mine").validated) == ("clevr_change", "mine")
    validation = validation_samples(mixture_of(folders, validate_on="spot_the_diff"), chat(), 0)
    assert validation is not None
    assert validation.folder == folders["spot_the_diff"]
    assert validation.dialogue(0, 0).turns[0].text.endswith(QUESTIONS["spot_the_diff"])


def job_of(folders: dict[str, str], **settings: Any) -> M3DiffJob:
    sets = {name: {"pairs": path} for name, path in folders.items()}
    return load(M3DiffJob, None, {
        "mixture.sets": sets, "base.source": str(tiny_folder("internvl")), "generation.max_new_tokens": 4,
        "tune.lora.rank": 2, "mdp.heads": 2, "train": TRAIN, **settings,
    })  # fmt: skip


def test_an_epoch_has_every_sample_of_every_set_once(folders: dict[str, str], tmp_path: Path) -> None:
    loaders = make_loaders(job_of(folders), found("internvl").family, LocalContext(tmp_path))
    samples = loaders.train.dataset
    assert isinstance(samples, Mixture)
    for epoch in (0, 3):
        located = [samples.locate(index, epoch) for index in range(len(samples))]
        assert Counter(part for part, _ in located) == {0: 12, 1: 9, 2: 4}
        assert len(set(located)) == len(samples) == 25
    assert loaders.validation is not None
    alone = make_loaders(
        job_of(folders, **{"mixture.train_on_val": True, "train.keep_best": None}), found("internvl").family,
        LocalContext(tmp_path),
    )  # fmt: skip
    assert alone.validation is None
    assert len(alone.train.dataset) == 25 + 9


# -- the order ----------------------------------------------------------------------------------------------------


def test_the_order_is_the_same_for_one_and_two_workers_accumulated_and_from_any_step_on(
    folders: dict[str, str], tmp_path: Path
) -> None:
    """A step's samples, each by its tokens and pixels, as the real loader gives them to the ranks."""
    family = found("internvl").family

    def steps(workers: int = 1, accumulation: int = 1, start: int = 0, group: int = 0) -> list[list[Any]]:
        layout = {"num_workers": workers, "grad_accumulation": accumulation, "group_by_length": group, "prefetch": 0}
        job = job_of(folders, **{f"train.{name}": value for name, value in layout.items()})
        taken: list[list[Any]] = [[] for _ in range(14 - start)]
        for rank in range(workers):
            loader = make_loaders(job, family, context(tmp_path, rank, workers)).train
            batches = loader.batches(start * accumulation)
            for step in taken:
                for _ in range(accumulation):
                    batch = next(batches)
                    images = [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in batch["pixel_values"]]
                    for row, ids in enumerate(batch["input_ids"].tolist()):
                        tokens = [token for token, kept in zip(ids, batch["attention_mask"][row], strict=True) if kept]
                        step.append((*images[2 * row : 2 * row + 2], *tokens))
        return [sorted(step) for step in taken]

    for group in (0, 2):
        whole = steps(group=group)
        assert len({tuple(step) for step in whole}) == 14
        assert steps(workers=2, group=group) == whole
        assert steps(workers=2, accumulation=2, group=group) == whole
        assert steps(start=6, group=group) == whole[6:]
        assert steps(workers=2, start=9, group=group) == whole[9:]


class _Rank(LocalContext):
    """One of several ranks, none of which waits for the others."""

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]


def context(folder: Path, rank: int = 0, world_size: int = 1) -> LocalContext:
    made = _Rank(folder)
    made.rank, made.world_size = rank, world_size
    return made


RECORDED = """
import json, os, signal, sys
from idc.systems.m3diff.task import train
from idc.training.context import LocalContext
from idc.vlm.samples import DialogueSamples

payload, run, log, last = json.loads(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
get = DialogueSamples.get
seen = 0

def recorded(self, index, epoch):
    global seen
    if self.other is None:  # of the training
        row, number = self._visit(index, epoch)
        with open(log, "a") as file:
            file.write(f"{self.folder} {row} {number}\\n")
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
    return get(self, index, epoch)

DialogueSamples.get = recorded
train(payload, LocalContext(run))
"""
"""A training whose samples are written down as they are read, ended by SIGKILL at the sample of that number."""


def recorded(job: M3DiffJob, run: Path, last: int = 0) -> tuple[int, list[str]]:
    """How the process ended, and the samples that it read."""
    log = run.with_suffix(f".{last}.txt")
    code = [sys.executable, "-c", RECORDED, json.dumps(job.model_dump(mode="json")), str(run), str(log), str(last)]
    done = subprocess.run(code, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode in (0, -9), done.stderr
    return done.returncode, log.read_text().splitlines()


@pytest.mark.slow
def test_a_killed_training_goes_on_with_the_samples_of_an_undisturbed_one(
    folders: dict[str, str], tmp_path: Path
) -> None:
    """SIGKILL in step 6 of 9, over the end of an epoch of 22 samples; the last checkpoint is that of step 4."""
    settings = {"train.steps": 9, "train.checkpoint_every": 4, "train.prefetch": 0, "train.keep_best": None}
    job = job_of(folders, **settings)
    assert recorded(job, tmp_path / "whole")[0] == 0
    whole = recorded(job, tmp_path / "again")[1]
    assert len(whole) == 9 * 4
    status, before = recorded(job, tmp_path / "killed", last=5 * 4 + 2)
    assert (status, before) == (-9, whole[: 5 * 4 + 2])
    status, after = recorded(job, tmp_path / "killed")
    assert (status, after) == (0, whole[4 * 4 :])
    lines = [json.loads(line) for line in (tmp_path / "killed/log.jsonl").read_text().splitlines()]
    undisturbed = [json.loads(line) for line in (tmp_path / "again/log.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [line["loss"] for line in undisturbed]
    weights = [(tmp_path / run / "artifact/model.safetensors").read_bytes() for run in ("killed", "again")]
    assert weights[0] == weights[1]


# -- the table ----------------------------------------------------------------------------------------------------


def test_the_table_at_the_start_has_the_published_counts(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = found("internvl").family
    make_loaders(job_of(folders), family, LocalContext(tmp_path))
    lines = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert lines[1:5] == [
        ["clevr_change", "8", "12", "12", "48.0%", "71k", "444k"],
        ["spot_the_diff", "6", "9", "9", "36.0%", "11k", "21k"],
        ["mine", "4", "6", "4", "16.0%"],
        ["all", "18", "27", "25", "100.0%"],
    ]
    make_loaders(job_of(folders), family, context(tmp_path, 1, 2))
    assert capsys.readouterr().err == "", "only rank 0 writes it"
    alone = mixture_of({"mine": folders["mine"]})
    assert "all" not in mixture_table(counts(alone, training_parts(alone, chat(), 0)))


# -- what is refused ----------------------------------------------------------------------------------------------


def test_captions_together_are_refused_where_they_would_see_each_other(folders: dict[str, str]) -> None:
    job = job_of(folders).model_dump(mode="json", exclude_defaults=True)
    job["base"]["attention"] = "flash_attention_2"
    job["mixture"]["sets"]["mine"]["captions"] = "together"
    with pytest.raises(ConfigError, match=r"mixture\.sets\.mine\.captions: together needs base\.attention=sdpa"):
        load(M3DiffJob, None, job)


def test_faults_of_a_config_are_all_named(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(MixtureConfig, None, {
            "sets": {"omnidiff": {"pairs": "a", "prompt": {"text": "What changed?"}}, "again": {"pairs": "a/"}},
            "validate_on": "omnidif", "train_on_val": True,
        })  # fmt: skip
    assert [line.partition(";")[0] for line in caught.value.faults] == [
        "sets.omnidiff.prompt.text: <image> is in it 0 times",
        "sets.again.pairs: 'a/' is the folder of 'omnidiff' too",
        "validate_on: 'omnidif' is not one of the sets",
        "validate_on: train_on_val=true trains on the validation pairs",
    ]
    with pytest.raises(ConfigError, match=r"^sets: "):
        load(MixtureConfig, None, {"sets": {}})
    with pytest.raises(ConfigError, match=r"without: leaves out all sets \(mine\)"):
        mixture_of({"mine": "a"}, without=["mine"])
    with pytest.raises(ConfigError, match="without: 'main' is not one of the sets; did you mean 'mine'"):
        mixture_of(folders, without=["main"])
    with pytest.raises(ConfigError, match="validate_on: 'mine' is not one of the sets"):
        mixture_of(folders, without=["mine"], validate_on="mine")
    less = mixture_of(folders, without=["mine"])
    assert list(less.used) == ["clevr_change", "spot_the_diff"]


def damaged(folder: Path, **manifest: Any) -> str:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **manifest}))
    return str(folder)


def bare(folder: Path) -> str:
    """Pairs without any caption in the training split."""
    row = {"pair_id": "1", "before": b"", "after": b"", "captions": [], "change_type": None, "mask": None,
           "source": "", "meta": ""}  # fmt: skip
    rows = [{**row, "split": "train"}, {**row, "pair_id": "2", "split": "val", "captions": ["a"]}]
    return write_rows(folder, rows, fingerprint=folder.name)


FAULTS = {
    "missing": (lambda root, good: str(root / "no"), "it has no manifest.json; import it first"),
    "incomplete": (
        lambda root, good: damaged(Path(shutil.copytree(good, root / "part")), complete=False), "is not complete; run ",
    ),
    "annotations": (
        lambda root, good: damaged(Path(shutil.copytree(good, root / "annotations")), extra={"images": False}),
        "has annotations alone, no images",
    ),
    "procedures": (
        lambda root, good: damaged(Path(shutil.copytree(good, root / "other")), kind="procedures"), "not pairs",
    ),
    "without captions": (lambda root, good: bare(root / "bare"), "has no captions; import the data set with its "),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_set_that_cannot_be_trained_on_is_one_line_with_the_command_that_imports_it(
    name: str, folders: dict[str, str], tmp_path: Path
) -> None:
    make, text = FAULTS[name]
    folder = make(tmp_path, folders["mine"])
    mixture = mixture_of({"clevr_change": folders["clevr_change"], "omnidiff": folder})
    with pytest.raises(ValueError, match=r"^mixture\.sets\.omnidiff: ") as caught:
        check_sets(mixture)
    message = str(caught.value)
    assert text in message
    assert f"python jobs/import_dataset.py format=omnidiff source=FOLDER out={folder}" in message
    assert message.count("import_dataset.py") == 1
    assert "\n" not in message
    assert missing_inputs(mixture) == [message.removeprefix("mixture.")], "the command line refuses it too"
    assert not (Path(folder) / "_rows").exists() or name != "without captions", "no image was read"


def test_the_command_names_the_protocol_and_the_format_of_ones_own_set(tmp_path: Path) -> None:
    multi, mine = (missing_inputs(mixture_of({name: "no"}))[0] for name in ("spot_the_diff_multi", "mine"))
    assert "format=spot_the_diff spot_the_diff.protocol=multi source=FOLDER out=no" in multi
    assert "format=FORMAT source=FOLDER out=no" in mine


def test_two_sets_of_the_same_rows_are_refused(folders: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(folders["mine"], tmp_path / "copy")
    mixture = mixture_of({"mine": folders["mine"], "omnidiff": str(tmp_path / "copy")})
    with pytest.raises(ValueError, match=r"mixture\.sets\.omnidiff: .* has the same rows as 'mine'") as caught:
        check_sets(mixture)
    assert "mixture.without=[omnidiff]" in str(caught.value)


def test_a_validation_split_without_captions_names_the_other_sets(folders: dict[str, str], tmp_path: Path) -> None:
    none = write_pairs(tmp_path / "none", train=3, val=0)
    mixture = mixture_of({"mine": str(none), "clevr_change": folders["clevr_change"]})
    with pytest.raises(ValueError, match=r"mixture\.validate_on: the validation split of 'mine' .*: clevr_change"):
        validation_samples(mixture, chat(), 0)
