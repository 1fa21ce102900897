"""NAMC's chain for sweeps: steps are named by what they read, and share what they have in common; every row of every
small sweep trains."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.train import launch
from idc.config import ConfigError, load
from idc.report.leaderboard.published_rows import published_rows
from idc.sweep.config import SweepJob
from idc.sweep.plan import plan_table
from idc.systems.namc.sweep import Trial, steps
from tests.sweep.shipped import shipped_sweeps
from tests.systems.namc.tiny import MODEL, described_pairs
from tests.systems.procap.world import World


@pytest.fixture(scope="module")
def described(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    return described_pairs(world, tmp_path_factory.mktemp("described") / "pairs")


def names(world: World, settings: dict[str, Any]) -> list[str]:
    base = {"pairs": world.pairs, "tokenizer": world.tokenizer, "pretrain.model": MODEL}
    return [step.name for step in steps(load(Trial, None, {**base, **settings}), "store").work]


def test_a_chain_pretrains_and_finetunes_on_the_contents_of_its_folders(
    world: World, described: str, tmp_path: Path
) -> None:
    first = names(world, {"described": described})
    assert [name.rsplit("-", 1)[0] for name in first] == ["namc-pretrain", "namc-finetune"]
    shutil.copytree(described, tmp_path / "copy")
    assert names(world, {"described": str(tmp_path / "copy")}) == first
    other_tuning = names(world, {"described": described, "finetune.optim.lr": 1e-5})
    assert other_tuning[0] == first[0]
    assert other_tuning[1] != first[1]
    for settings in ({"pretrain.nim.text_ratio": 0.3}, {"more_described": [str(tmp_path / "copy")]}):
        assert not set(names(world, {"described": described, **settings})) & set(first)
    (scratch,) = names(world, {})
    assert scratch not in first


def test_rows_tuned_on_other_pairs_share_their_pretraining(world: World, described: str, tmp_path: Path) -> None:
    first = names(world, {"described": described})
    other = names(world, {"described": described, "pairs": described})
    assert (other[0] == first[0], other[1] == first[1]) == (True, False)
    words = names(world, {"described": described, "pretrain.caption_pairs": world.pairs})
    shutil.copytree(world.pairs, tmp_path / "copy")
    again = names(world, {"described": described, "pairs": described, "pretrain.caption_pairs": str(tmp_path / "copy")})
    assert (words[0] == again[0], words[0] == first[0]) == (True, False), "its words count by content"
    assert words[0] != names(world, {"described": described, "more_described": [world.pairs]})[0]
    gone = load(Trial, None, {"pairs": world.pairs, "pretrain.caption_pairs": "gone"})
    assert not list(gone.preflight()), "without pre-training it is not read"
    described_too = load(Trial, None, {"pairs": world.pairs, "described": described, "tokenizer": world.tokenizer,
                                       "pretrain.caption_pairs": "gone"})  # fmt: skip
    assert [fault.partition(":")[0] for fault in described_too.preflight()] == ["pretrain.caption_pairs"]


def test_settings_that_the_chain_fills_in_and_a_missing_tokenizer_are_refused(world: World, described: str) -> None:
    with pytest.raises(ConfigError, match=r"pretrain\.tokenizer: the sweep sets it"):
        load(Trial, None, {"pairs": world.pairs, "described": described, "pretrain.tokenizer": "x"})
    with pytest.raises(ConfigError, match=r"tokenizer: required; MIR reconstructs"):
        load(Trial, None, {"pairs": world.pairs, "described": described})
    with pytest.raises(ConfigError, match=r"more_described: given without described"):
        load(Trial, None, {"pairs": world.pairs, "more_described": [described]})


def test_without_mir_the_tokenizer_does_not_count(world: World, described: str, tmp_path: Path) -> None:
    off = {"described": described, "pretrain.mir.enabled": False}
    assert names(world, off) == names(world, {**off, "tokenizer": None})


TABLES = {"01": "clevr_dc", "02": "clevr_change", "03": "image_editing_request", "04": "spot_the_diff"}


@pytest.mark.parametrize("table", TABLES)
def test_a_headline_table_has_every_row_of_the_paper(table: str) -> None:
    """By the leaderboard's transcription."""
    short = {"BLEU-4": "B", "METEOR": "M", "ROUGE-L": "R", "CIDEr": "C", "SPICE": "S"}
    printed = {
        row.method: {short[metric]: value for metric, value in row.values.items()}
        for row in published_rows(TABLES[table])
        if (row.table.paper, row.table.table) == ("namc", f"Table {int(table)}")
    }
    sweep = yaml.safe_load(Path(f"jobs/configs/namc/sweeps/table{table}.yaml").read_text(encoding="utf-8"))
    assert {row["label"]: row["published"] for row in sweep["rows"]} == printed
    assert [row["label"] for row in sweep["rows"] if not row.get("quoted")] == ["NAMC"]


SWEEPS = {name: files for name, files in shipped_sweeps().items() if name.startswith("namc/") and "_small" in name}
TINY: dict[str, Any] = {
    **{f"{stage}.train.{name}": value for stage in ("pretrain", "finetune") for name, value in
       {"steps": 1, "batch_size": 4, "eval_every": 1, "checkpoint_every": 1, "tracking.enabled": False}.items()},
    "pretrain.model.image.grid": 4,
    "pretrain.model.image.stem_channels": [8, 8, 8, 16],
    "pretrain.model.encoder.width": 32,
    "pretrain.model.encoder.heads": 2,
    "pretrain.model.decoder.width": 32,
    "pretrain.model.decoder.heads": 2,
    "pretrain.nim.encoder.width": 32,
    "pretrain.nim.encoder.heads": 2,
    "finetune.beams": 1,
    "finetune.validation_pairs": 2,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_every_row_of_a_small_sweep_trains(
    name: str, world: World, described: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").symlink_to(Path("jobs").absolute())
    (tmp_path / "data/demo").mkdir(parents=True)
    for folder in ("pairs", *(f"pairs-{kind}" for kind in ("fog-5", "gaussian_noise-5")),
                   *(f"pairs-words-{share}" for share in (20, 40, 60, 80))):  # fmt: skip
        (tmp_path / "data/demo" / folder).symlink_to(world.pairs)
    for folder in ("described", "described-0", "described-40"):
        (tmp_path / "data/demo" / folder).symlink_to(described)
    (tmp_path / "runs/demo/namc-tokenizer").mkdir(parents=True)
    (tmp_path / "runs/demo/namc-tokenizer/artifact").symlink_to(world.tokenizer)
    monkeypatch.chdir(tmp_path)
    job = load(SweepJob, [f"jobs/configs/{file}" for file in SWEEPS[name]]).inlined()
    small = job.model_copy(update={"settings": {**job.settings, **TINY}, "seeds": job.seeds[:1]})
    plans = plan_table(small, "steps")
    assert len(plans) == sum(not row.quoted for row in job.table)
    for plan in plans:
        for step in plan.steps.work:
            assert step.train is not None
            folder = Path("steps") / step.name
            if not folder.exists():  # rows share steps: here all folders of pairs have the same contents
                launch(step.entry, step.payload, step.train, folder, local=True)
            assert (folder / "artifact").exists(), plan.label
