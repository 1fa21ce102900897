"""The chains of the systems for sweeps: a step is named by what it reads and not by where that is stored, rows share
what they have in common, and tables of all kinds of rows run."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig
from cluster.tune import run_sweep
from idc.config import ConfigError, load
from idc.data.pipeline import run_local
from idc.data.store import read_manifest
from idc.sweep.chain import TrialSteps
from idc.sweep.config import SweepJob
from idc.systems import load_captioner
from idc.systems.m3diff.sweep import ask_step
from idc.systems.procap.procedures.build import identity
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.zeroshot.wrap import wrap_step
from idc.training.artifact import WEIGHTS, read_artifact
from idc.vlm.config import GenerateConfig, PromptConfig
from tests.systems.adpo.small import encoder_folder
from tests.systems.changevg.tiny import MODEL, SIDE, TUNING, write_scenes
from tests.systems.changevg.tiny import TRAIN as GUIDE_TRAIN
from tests.systems.namc.tiny import MODEL as NAMC
from tests.systems.procap.world import DECODER, ENCODER, World, build_procedures
from tests.systems.twincap.tiny import MODEL as TWINCAP
from tests.vision.interpolation.test_vfiformer import save_tiny as save_tiny_vfiformer
from tests.vision.pair_encoder.test_pair_encoder import tiny as tiny_pair_encoder
from tests.vlm.models import tiny_folder

BUILD = {"depth": 2, "num_keyframes": 2, "temperature": 0.001, "tokenizer": "{tokenizer}"}
EVALUATE = {
    "metrics": ["CIDEr"], "spice": False, "constant_candidates": 0, "nearest_train_pairs": 0, "allow_empty": True,
    "resamples": 0,
}  # fmt: skip
SETS = {"one": {"pairs": "{pairs}"}, "omnidiff": {"pairs": "{other}"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "procap": {
        "pairs": "{pairs}", "build": BUILD, "pretrain": {"encoder": ENCODER}, "finetune": {"decoder": DECODER},
    },
    "namc": {"pairs": "{pairs}", "described": "{described}", "tokenizer": "{tokenizer}", "pretrain.model": NAMC},
    "twincap": {"pairs": "{pairs}", "twincap": {"model": TWINCAP}},
    "sft": {"pairs": "{pairs}", "sft.base.source": "{base}"},
    "adpo": {
        "pairs": "{pairs}", "sft.base.source": "{base}", "adpo.tune.lora.dropout": 0,
        "adpo.retriever.encoder": "{encoder}",
    },
    "changevg": {
        "pairs": "{scenes}", "until": "tuning", "guide": {"model": MODEL, "train": GUIDE_TRAIN, "min_count": 1},
        "changevg": {**TUNING, "base": {"source": "{small_base}"}}, "evaluate": EVALUATE,
    },
    "m3diff": {
        "pairs": "{pairs}", "m3diff.mixture.sets": SETS, "m3diff.base.source": "{base}", "m3diff.mdp.heads": 2,
        "m3diff.tune": {"language": "full", "language_optim": {"lr": 1e-3}}, "m3diff.validation_samples": 2,
        "m3diff.train": {
            "epochs": None, "steps": 2, "batch_size": 4, "precision": "fp32", "group_by_length": 0,
            "tracking": {"enabled": False},
        },
        "m3diff.generation.max_new_tokens": 4, "evaluate": EVALUATE,
    },
}  # fmt: skip
"""System -> settings of a trial; "{name}" is one of :func:`folders`."""
Folders = dict[str, str]


@pytest.fixture(scope="module")
def folders(world: World, described: str, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("sweeps")
    paths = {
        "pairs": world.pairs, "tokenizer": world.tokenizer, "described": described, "base": tiny_folder("internvl"),
        "other_base": tiny_folder("qwen2_5_vl"), "small_base": tiny_folder("internvl", SIDE),
        "scenes": write_scenes(root / "scenes", train=5, test=3, masked=True), "encoder": encoder_folder(),
        "other": shutil.copytree(world.pairs, root / "other"),
    }  # fmt: skip
    manifest = root / "other" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "fingerprint": "other"}))
    copies = {f"{name}_copy": shutil.copytree(paths[name], root / name) for name in ("pairs", "described", "base")}
    return {name: str(path) for name, path in (paths | copies).items()}


def settings_of(system: str, folders: Folders, more: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps({**SETTINGS[system], **more})
    for name, path in folders.items():
        text = text.replace(f"{{{name}}}", path)
    settings: dict[str, Any] = json.loads(text)
    return settings


def trial(system: str, folders: Folders, more: dict[str, Any]) -> Any:
    module = importlib.import_module(f"idc.systems.{system}.sweep")
    return load(module.Trial, None, settings_of(system, folders, more))


def chain(system: str, folders: Folders, more: dict[str, Any] | None = None) -> TrialSteps:
    steps: TrialSteps = trial(system, folders, more or {}).steps("store")
    return steps


def work(system: str, folders: Folders, more: dict[str, Any] | None = None) -> dict[str, str]:
    """Step -> its name in the store."""
    return {step.name.rsplit("-", 1)[0]: step.name for step in chain(system, folders, more).work}


@pytest.mark.parametrize(("system", "steps"), [
    ("procap", "procedures pretrain finetune"), ("namc", "namc-pretrain namc-finetune"), ("twincap", "twincap"),
    ("sft", "sft"), ("adpo", "sft merged adpo"), ("changevg", "questions guide changevg"), ("m3diff", "m3diff asked"),
])  # fmt: skip
def test_a_chain_has_its_steps_in_order(system: str, steps: str, folders: Folders) -> None:
    assert list(work(system, folders)) == steps.split()
    answers = chain(system, folders).answers
    assert (answers is not None) == (system == "changevg")


NAMC_BOTH = "namc-pretrain namc-finetune"
WORDS = "pretrain.caption_pairs"
OFF = {"pretrain.mir.enabled": False}
ZERO = {"zero_shot": True}


@pytest.mark.parametrize(("system", "row", "other", "new"), [
    ("procap", {}, {"build.actors": 3, "build.frames_per_batch": 7}, ""),
    ("namc", {}, {"described": "{described_copy}"}, ""),
    ("namc", {}, {"finetune.optim.lr": 1e-5}, "namc-finetune"),
    ("namc", {}, {"pairs": "{described}"}, "namc-finetune"),
    ("namc", {}, {"described": None}, "namc-finetune"),
    ("namc", {}, {"more_described": ["{described_copy}"]}, NAMC_BOTH),
    ("namc", {}, {WORDS: "{pairs}"}, NAMC_BOTH),
    ("namc", {WORDS: "{pairs}"}, {WORDS: "{described}"}, NAMC_BOTH),
    ("namc", {WORDS: "{described}"}, {WORDS: "{described_copy}"}, ""),
    ("namc", OFF, {**OFF, "tokenizer": None}, ""),
    ("twincap", {}, {"pairs": "{pairs_copy}"}, ""),
    ("twincap", {}, {"more_pairs": ["{pairs_copy}"]}, "twincap"),
    ("twincap", {}, {"twincap.ema": 0.5}, "twincap"),
    ("sft", {}, {"sft.base.source": "{base_copy}"}, ""),
    ("sft", {}, {"sft.base.source": "{other_base}"}, "sft"),
    ("sft", {}, {"sft.tune.language": "full"}, "sft"),
    ("adpo", {}, {"until": "sft"}, ""),
    ("adpo", {}, {"adpo.beta": 0.5}, "adpo"),
    ("changevg", {}, {"changevg.quote.summary": False}, "changevg"),
    ("changevg", {}, {"changevg.tasks": ["caption"]}, "changevg"),
    ("changevg", {}, {"guide.train.seed": 4}, "guide changevg"),
    ("changevg", {}, {"questions.regions.as_published": False}, "questions changevg"),
    ("changevg", {}, {"guided": False}, "changevg"),
    ("changevg", {}, {"until": "guide"}, ""),
    ("m3diff", {}, {"ask": "omnidiff", "max_new_tokens": 192}, "asked"),
    ("m3diff", {}, {"m3diff.mixture.sets": {**SETS, "one": {"pairs": "{pairs_copy}"}}}, ""),
    ("m3diff", {}, {"m3diff.mixture.without": ["omnidiff"]}, "m3diff asked"),
    ("m3diff", {}, {"m3diff.mdp": None}, "m3diff asked"),
    ("m3diff", {}, {"m3diff.mixture.sets.one.prompt.text": "<image> <image>?"}, "m3diff asked"),
    ("m3diff", {}, {"m3diff.mixture.sets": dict(reversed(SETS.items()))}, "m3diff asked"),
    ("m3diff", ZERO, {**ZERO, "m3diff.mdp": None}, ""),
    ("m3diff", ZERO, {**ZERO, "ask": "omnidiff"}, "zeroshot"),
])  # fmt: skip
def test_rows_share_what_they_have_in_common(
    system: str, row: dict[str, Any], other: dict[str, Any], new: str, folders: Folders
) -> None:
    ours, theirs = work(system, folders, row), work(system, folders, other)
    assert [step for step, name in theirs.items() if name not in ours.values()] == new.split()


def save_folder(path: Path, version: int) -> None:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(f'{{"version": {version}}}')


READ: dict[str, tuple[Callable[[Path, int], Any], dict[str, Any]]] = {
    "build.pair_encoder": (lambda path, seed: tiny_pair_encoder(seed).save(path), {"build.strategy": "visual_text"}),
    "build.interpolation_weights": (save_tiny_vfiformer, {"build.interpolation": "vfiformer"}),
    "build.dinov2": (save_folder, {"build.similarity": "dinov2"}),
    "pretrain.clip": (save_folder, {}),
}
"""Setting of ProCap that names a folder or file -> how a version of it is made, and the settings it needs."""


@pytest.mark.parametrize("setting", READ)
def test_steps_follow_the_content_of_what_they_read_and_not_its_path(
    setting: str, folders: Folders, tmp_path: Path
) -> None:
    save, settings = READ[setting]

    def named(path: Path) -> dict[str, str]:
        steps = chain("procap", folders, {**settings, setting: str(path)})
        assert steps.baselines is not None
        every = (*steps.work, steps.evaluation, steps.baselines, steps.speed)
        return {step.name.split("-")[0]: step.name for step in every}

    save(tmp_path / "here", 1)
    first = named(tmp_path / "here")
    copied = shutil.copy if (tmp_path / "here").is_file() else shutil.copytree
    assert named(Path(copied(tmp_path / "here", tmp_path / "moved"))) == first
    save(tmp_path / "here", 2)
    other = named(tmp_path / "here")
    anew = {"pretrain", "finetune", "evaluation", "speed"} | ({"procedures"} if setting.startswith("build") else set())
    assert {kind for kind in first if first[kind] != other[kind]} == anew, "baselines are of the pairs alone"


def test_the_step_and_the_folder_of_procedures_have_one_identity(folders: Folders, tmp_path: Path) -> None:
    settings = {**BUILD, "pairs": folders["pairs"], "tokenizer": folders["tokenizer"]}
    mark = identity(ProceduresConfig.model_validate(settings))
    assert read_manifest(build_procedures(tmp_path / "built", settings)).fingerprint == mark
    assert work("procap", folders)["procedures"] == f"procedures-{mark[:12]}"


@pytest.mark.parametrize(("system", "more", "fault"), [
    ("namc", {"tokenizer": None}, "tokenizer: required; MIR reconstructs"),
    ("namc", {"described": None, "more_described": ["{described}"]}, "more_described: given without described"),
    ("changevg", {"guided": False, "until": "guide"}, "guided: until=guide scores the guide"),
    ("changevg", {"guided": False, "changevg.quote.summary": False}, r"changevg\.quote: guided=false has no notes to"),
    ("changevg", {"more_pairs": ["x"]}, "more_pairs: the questions are of `pairs` alone"),
    ("m3diff", {"ask": "omni"}, "ask: 'omni' has no question of its own; there are: one, omnidiff, image_"),
    ("adpo", {"adpo.base": {"source": "x"}}, r"adpo\.base: the sweep sets it"),
])  # fmt: skip
def test_faults_of_a_trial_are_named(system: str, more: dict[str, Any], fault: str, folders: Folders) -> None:
    with pytest.raises(ConfigError, match=fault):
        trial(system, folders, more)


def test_what_is_not_there_is_named_where_it_is_read(folders: Folders, tmp_path: Path) -> None:
    gone = {WORDS: "gone"}
    assert not list(trial("namc", folders, {**gone, "described": None}).preflight()), "without pre-training: not read"
    (fault,) = trial("namc", folders, gone).preflight()
    assert fault.startswith("pretrain.caption_pairs:")
    with pytest.raises(ValueError, match=r"mixture\.sets\.clevr_dc: .*import it first: python jobs/import_dataset.py"):
        chain("m3diff", folders, {"m3diff.mixture.sets": {"clevr_dc": {"pairs": str(tmp_path / "no")}}})


def test_changevg_hands_on_its_folders(folders: Folders) -> None:
    steps = chain("changevg", folders, {"questions.regions.as_published": False})
    questions, guide, tuning = steps.work
    asked, artifact = f"store/{questions.name}", f"store/{guide.name}/artifact"
    assert tuning.payload.items() >= {"pairs": asked, "guide": artifact, "regions": None}.items()
    assert questions.payload["regions"] == {"as_published": False}
    assert questions.payload["splits"] == ["train", "val", "test"]
    expected = {"instructions": asked, "artifact": f"store/{tuning.name}/artifact"}
    assert steps.answers.payload.items() >= expected.items()


def test_a_trained_m3diff_asks_the_question_of_the_scored_set(folders: Folders, tmp_path: Path) -> None:
    (wrap,) = chain("m3diff", folders, ZERO).work
    wrap_step(wrap.payload, str(tmp_path / "trained"), run_local)
    trained = read_artifact(tmp_path / "trained" / "artifact")
    question = PromptConfig(text="<image><image> And?").model_dump(mode="json")
    generation = GenerateConfig(max_new_tokens=3).model_dump(mode="json")
    payload = {"artifact": str(trained.path), "prompt": question, "generation": generation}
    for _ in range(2):  # also again, over what a killed step left
        ask_step(payload, str(tmp_path / "asking"), run_local)
    asking = read_artifact(tmp_path / "asking" / "artifact")
    assert asking.config["job"] == {**trained.config["job"], "prompt": question, "generation": generation}
    assert (asking.base, asking.system) == (trained.base, trained.system)
    assert read_artifact(trained.path).config == trained.config, "what was trained stays as it was"
    assert (asking.path / WEIGHTS).samefile(trained.path / WEIGHTS), "weights are not copied"


COLUMNS = [
    {"title": "C", "metric": "CIDEr"}, {"title": "F1", "metric": "binary/F1"},
    {"title": "MAE", "metric": "count/MAE", "subset": "building"},
]  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {
    "changevg": [
        {"label": "no guide", "settings": {"guided": False}, "published": {"F1": 92.28}},
        {"label": "all", "published": {"F1": 94.74}},
        {"label": "the guide", "settings": {"until": "guide"}},
    ],
    "m3diff": [
        {"label": "zero-shot", "settings": {"zero_shot": True}},
        {"label": "w/o MDP", "settings": {"m3diff.mdp": None}},
        {"label": "w/o OmniDiff", "settings": {"m3diff.mixture.without": ["omnidiff"]}},
        {"label": "M3Diff"},
        {"label": "M3Diff, OmniDiff's question", "settings": {"ask": "omnidiff", "max_new_tokens": 6}},
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("system", ROWS)
def test_a_table_of_all_kinds_of_rows_runs(system: str, folders: Folders, tmp_path: Path) -> None:
    job = load(SweepJob, None, {
        "name": "table", "system": system, "runs": str(tmp_path), "settings": settings_of(system, folders, {}),
        "rows": ROWS[system], "columns": COLUMNS[: 3 if system == "changevg" else 1], "tracking": {"enabled": False},
    })  # fmt: skip
    result = run_sweep(job, ClusterConfig(), local=True)
    assert result.failed == {}
    paths = list(tmp_path.glob(f"steps/{system}-*/artifact"))
    records = [read_artifact(path).config for path in paths]
    module_lists = [record.get("own_modules", []) for record in records]
    if system == "changevg":
        for row in result.rows:
            answered = [row.values[title] is not None for title in ("C", "F1", "MAE")]
            assert answered == [True, *[row.label != "the guide"] * 2]
        assert sorted(module_lists) == [[], ["guide"]]
    else:
        kinds = [(record["job"]["mdp"] is not None, len(record["job"]["mixture"]["without"])) for record in records]
        modules = dict(zip(kinds, module_lists, strict=True))
        assert modules == {(True, 0): ["mdp"], (True, 1): ["mdp"], (False, 0): []}
        assert [load_captioner(str(path)).mdp is not None for path in paths] == [bool(names) for names in module_lists]
