"""The benchmark of the vision-language stack at a tiny size, and what the presets take on paper."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

import pytest
import yaml

from benchmarks.vision_language import VlmBenchmarkConfig, measure_vision_language
from idc.config import load
from idc.systems.sft.config import SftJob
from idc.vlm.estimate import GIB, ModelSize, memory
from jobs import finetune_sft
from tests.docs.checks import ROOT
from tests.vlm.on_paper import PRESETS, Preset, models_table, needs, presets_table, tuning
from tests.vlm.published_models import PUBLISHED


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_a_family_is_measured(kind: str) -> None:
    small = {"families": [kind], "width": 32, "layers": 1, "num_pairs": 2, "new_tokens": 3, "steps": 2, "repeats": 2}
    rows = {row.title: row for row in measure_vision_language(load(VlmBenchmarkConfig, None, {**small, "threads": 1}))}
    generation, training, captions, loop = rows.values()
    assert [row.title.split(",")[0] for row in rows.values()] == [
        "generation",
        "training",
        "two captions of a pair",
        "a training step in the loop over the model's own",
    ]
    for row in rows.values():
        assert len(row.above) == 2
        assert min(row.above + row.below) > 0
        assert kind in row.title
    assert training.more["vision_passes"] == generation.more["vision_passes"] == 1
    assert captions.more["vision_passes"] == "2 and 1"
    assert training.more["tokens"] > generation.more["tokens"] == 2 * 3
    assert training.more["MiB_above_the_loaded_model"] > 0.1
    assert loop.more["percent_outside_the_model"] < 100


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.file)
def test_a_preset_fits_on_its_gpu(preset: Preset) -> None:
    """With a tenth for the allocator, and 4 GiB for DeepSpeed's buckets where it is used."""
    job, model, how, sample = needs(preset)
    buckets = 4 * GIB if job.train.engine == "deepspeed" else 0
    assert memory(model, how, sample).total * 1.1 + buckets < preset.gib * GIB
    assert sample.tokens <= (job.cutoff or 0)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.file)
def test_the_command_of_a_preset(
    preset: Preset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--print-config` of the command on the page has the settings that the estimate is made from."""
    command = f"python jobs/finetune_sft.py --config jobs/configs/sft/{preset.file} pairs=data/mine/pairs"
    assert command in (ROOT / "docs" / "vlm.md").read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [*shlex.split(command)[1:], "--print-config"])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        finetune_sft.main()
    assert end.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed.pop("cluster")
    assert SftJob.model_validate(printed) == needs(preset)[0].model_copy(update={"pairs": "data/mine/pairs"})


def test_an_estimate_follows_the_settings() -> None:
    job = needs(PRESETS[2])[0]
    how = tuning(job)
    assert (how.language, how.tower, how.projector, how.checkpointing) == ("full", True, True, True)
    assert (how.micro_batch, how.gpus, how.zero_stage) == (8, 8, 3)
    assert tuning(needs(PRESETS[0])[0]).rank == 64


@pytest.mark.parametrize("table", [presets_table, models_table])
def test_the_page_has_the_tables(table: Callable[[], str]) -> None:
    assert table() in (ROOT / "docs" / "vlm.md").read_text(encoding="utf-8"), "see tests/vlm/on_paper.py"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_complete(name: str) -> None:
    """The sizes here give what transformers' own config with all its defaults gives."""
    from transformers import AutoConfig

    config = PUBLISHED[name].config
    assert ModelSize.of(config) == ModelSize.of(AutoConfig.for_model(**config).to_dict())
