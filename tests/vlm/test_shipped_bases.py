"""The small bases that come with the program: by name, whole, and as good as their card states."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from idc import shipped_weights
from idc.config import load
from idc.data.pipeline import run_local
from idc.data.rendered.config import RenderJob
from idc.data.rendered.render import open_rendering
from idc.shipped_weights import BASES
from idc.training.base import BaseName, full_hash
from idc.vlm.base import find_base, load_model
from idc.vlm.batch import encode_images
from idc.vlm.config import BaseConfig
from idc.vlm.pretrain import SceneCollate, SceneTask
from idc.vlm.pretrain_card import RECIPE
from idc.vlm.pretrain_config import PretrainVlmJob
from idc.vlm.scene_samples import RenderedScenes, ValidationDialogues
from idc.vlm.scene_sentences import listing_hits

ROOT = Path(__file__).parents[2]
every_base = pytest.mark.parametrize("name", BASES)


@every_base
def test_a_base_is_found_by_its_name_from_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an artifact, which names it without a path of this machine; a folder of that name is not taken for it."""
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    base = find_base(BaseConfig(source=name))
    assert base.name.source == name
    assert BaseName.from_dict(base.name.to_dict()).folder() == base.folder == ROOT / "idc/weights" / BASES[name]


@every_base
def test_its_weights_are_those_of_its_recipe(name: str) -> None:
    folder = find_base(BaseConfig(source=name)).folder
    recipe = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    assert full_hash(folder) == recipe["sha256"]
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6e6
    stages = [stage for made in recipe["trainings"] for stage in made["settings"]["stages"]]
    assert any(stage.get("compare", 0) for stage in stages) == (name == "shipped")


def test_where_an_upload_left_the_weights_out_the_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_weights, "_HERE", tmp_path / "none")
    monkeypatch.delenv(shipped_weights.WEIGHTS, raising=False)
    with pytest.raises(ValueError, match=r"the base model that comes with .* set IDC_WEIGHTS .* base\.source"):
        find_base(BaseConfig(source="shipped"))
    monkeypatch.setenv(shipped_weights.WEIGHTS, str(ROOT / "idc/weights"))
    assert find_base(BaseConfig(source="shipped")).folder.parent == ROOT / "idc/weights"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """48 scenes of the demo's kind that no training has seen."""
    folder = str(tmp_path_factory.mktemp("new") / "pairs")
    settings = {"out": folder, "render.num_scenes": 48, "render.seed": 99, "render.val_share": 0.98}
    job = load(RenderJob, str(ROOT / "jobs/configs/render/demo.yaml"), {**settings, "render.test_share": 0.01})
    run_local(*open_rendering(job), progress=False)
    return folder


@every_base
def test_it_lists_objects_of_new_scenes_nearly_as_its_card_states(name: str, scenes: str) -> None:
    base = find_base(BaseConfig(source=name))
    made = json.loads((base.folder / RECIPE).read_text(encoding="utf-8"))["trainings"][-1]
    job = PretrainVlmJob(pairs=scenes)
    task = SceneTask(job, load_model(base.folder, BaseConfig(source=name)), base.family).eval()
    validation = ValidationDialogues(RenderedScenes(scenes, "val"), job)
    samples = [validation.get(index, 0) for index in range(len(validation.taken))]
    batch, hits = SceneCollate(base.family)(samples), Counter[str]()
    with torch.no_grad():
        answers = task._answers(batch, encode_images(task.model, batch, base.family))
    for sample, answer in zip(samples, answers, strict=True):
        assert sample.listing is not None
        hits.update(listing_hits(sample.listing, answer))
    assert hits["objects"] >= 80
    assert hits["object"] / hits["objects"] > made["validation"]["listed_object"] - 0.15
