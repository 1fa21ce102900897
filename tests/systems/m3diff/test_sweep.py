"""M3Diff's chain for sweeps: what its steps are named by and share, what they ask, and that every kind of row runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig
from cluster.tune import run_sweep
from idc.config import ConfigError, load
from idc.data.pipeline import run_local
from idc.sweep.config import SweepJob
from idc.systems import load_captioner
from idc.systems.m3diff.mixture import QUESTIONS
from idc.systems.m3diff.sweep import Trial, ask_step
from idc.systems.zeroshot.wrap import wrap_step
from idc.training.artifact import WEIGHTS, read_artifact
from idc.vlm.config import PAIR_PROMPT, GenerateConfig, PromptConfig
from tests.systems.procap.world import World
from tests.vlm.models import tiny_folder

TINY: dict[str, Any] = {
    "m3diff.base.source": "", "m3diff.tune": {"language": "full", "language_optim": {"lr": 1e-3}},
    "m3diff.mdp.heads": 2, "m3diff.generation.max_new_tokens": 4, "m3diff.validation_samples": 2,
    "m3diff.train": {
        "epochs": None, "steps": 2, "batch_size": 4, "precision": "fp32", "group_by_length": 0,
        "tracking": {"enabled": False},
    },
    "evaluate": {
        "metrics": ["CIDEr"], "spice": False, "constant_candidates": 0, "nearest_train_pairs": 0, "allow_empty": True,
        "resamples": 0,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def sets(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    other = Path(shutil.copytree(world.pairs, tmp_path_factory.mktemp("other") / "pairs"))
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": "other"}))
    return {"one": {"pairs": world.pairs}, "omnidiff": {"pairs": str(other)}}


def settings_of(world: World, sets: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {"m3diff.base.source": str(tiny_folder("internvl"))}
    return {**TINY, **base, "pairs": world.pairs, "m3diff.mixture.sets": sets, **more}


def names(world: World, sets: dict[str, Any], **more: Any) -> list[str]:
    return [step.name for step in load(Trial, None, settings_of(world, sets, **more)).steps("store").work]


def test_rows_share_what_they_have_in_common(world: World, sets: dict[str, Any], tmp_path: Path) -> None:
    first = names(world, sets)
    assert [name.rsplit("-", 1)[0] for name in first] == ["m3diff", "asked"]
    asked = names(world, sets, ask="omnidiff", max_new_tokens=192)
    assert asked[0] == first[0], "another question to the same model is no training"
    assert asked[1] != first[1]
    copied = {**sets, "one": {"pairs": str(shutil.copytree(sets["one"]["pairs"], tmp_path / "copy"))}}
    assert names(world, copied) == first, "folders count by content"
    others = [
        names(world, sets, **{"m3diff.mixture.without": ["omnidiff"]}),
        names(world, sets, **{"m3diff.mdp": None}),
        names(world, {**sets, "one": {**sets["one"], "prompt": {"text": "<image> <image>?"}}}),
        names(world, dict(reversed(sets.items()))),
    ]
    assert len({row[0] for row in [first, *others]}) == 1 + len(others)
    zero = names(world, sets, zero_shot=True)
    assert [name.rsplit("-", 1)[0] for name in zero] == ["zeroshot"]
    assert names(world, sets, zero_shot=True, **{"m3diff.mdp": None}) == zero, "nothing of the training counts"
    assert names(world, sets, zero_shot=True, ask="omnidiff") != zero


def test_each_data_set_is_asked_its_own_question(world: World, sets: dict[str, Any]) -> None:
    def question(**more: Any) -> str:
        text: str = load(Trial, None, settings_of(world, sets, **more)).steps("s").work[-1].payload["prompt"]["text"]
        return text

    own = "<image> <image> Which?"
    assert question() == PAIR_PROMPT
    assert question(ask="omnidiff", **{"m3diff.mixture.without": ["omnidiff"]}).endswith(QUESTIONS["omnidiff"])
    assert question(ask="one", **{"m3diff.mixture.sets.one.prompt.text": own}) == own
    assert question(ask="clevr_dc", zero_shot=True).endswith(QUESTIONS["clevr_dc"])


def test_faults_are_named(world: World, sets: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ask: 'omni' has no question of its own; there are: one, omnidiff, image_"):
        load(Trial, None, settings_of(world, sets, ask="omni"))
    missing = load(Trial, None, settings_of(world, {"clevr_dc": {"pairs": str(tmp_path / "no")}}))
    with pytest.raises(ValueError, match=r"mixture\.sets\.clevr_dc: .*import it first: python jobs/import_dataset.py"):
        missing.steps("store")


def test_a_trained_model_asks_the_question_of_the_scored_set(tmp_path: Path, world: World) -> None:
    trial = load(Trial, None, settings_of(world, {}, **{"m3diff.mixture": None, "zero_shot": True}))
    (wrap,) = trial.steps(str(tmp_path)).work
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


@pytest.mark.slow
def test_a_table_of_all_kinds_of_rows_runs(world: World, sets: dict[str, Any], tmp_path: Path) -> None:
    rows = [
        {"label": "zero-shot", "settings": {"zero_shot": True}},
        {"label": "w/o MDP", "settings": {"m3diff.mdp": None}},
        {"label": "w/o OmniDiff", "settings": {"m3diff.mixture.without": ["omnidiff"]}},
        {"label": "M3Diff"},
        {"label": "M3Diff, OmniDiff's question", "settings": {"ask": "omnidiff", "max_new_tokens": 6}},
    ]
    job = load(SweepJob, None, {
        "name": "table", "system": "m3diff", "runs": str(tmp_path), "settings": settings_of(world, sets), "rows": rows,
        "columns": [{"title": "C", "metric": "CIDEr"}], "tracking": {"enabled": False},
    })  # fmt: skip
    assert run_sweep(job, ClusterConfig(), local=True).failed == {}
    modules = {}
    for path in tmp_path.glob("steps/m3diff-*/artifact"):
        config = read_artifact(path).config
        modules[config["job"]["mdp"] is not None, len(config["job"]["mixture"]["without"])] = config.get("own_modules")
        assert (load_captioner(str(path)).mdp is not None) == ("own_modules" in config)
    assert modules == {(True, 0): ["mdp"], (True, 1): ["mdp"], (False, 0): None}
