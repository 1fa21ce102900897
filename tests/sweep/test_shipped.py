"""The sweeps that this repository ships: each plans, those of papers with the papers' epochs; and no pre-training is
done twice."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import idc.evaluation.record as ev
from idc.config import ConfigError, load, missing_inputs
from idc.sweep.config import SweepJob
from idc.sweep.plan import TrialPlan, plan_table
from idc.systems.m3diff.mixture import MixtureConfig
from tests.sweep.sweeps import CONFIGS, shipped_sweeps
from tests.systems.procap.world import World
from tests.vlm.models import tiny_folder

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = shipped_sweeps()
SMALL = sorted(name for name in SWEEPS if "_small" in name or name.endswith(("demo_mended", "ablation")))
FULL = sorted(SWEEPS.keys() - SMALL)


def test_a_sweep_is_named_by_its_system_its_file_and_its_size() -> None:
    """The name is its folder below runs/sweeps: tables of two papers, and two sizes, must not share one."""
    assert {name: read_sweep(name).name for name in SWEEPS} == {name: name.replace("/", "_") for name in SWEEPS}


def test_a_table_says_which_sizes_it_has(tmp_path: Path) -> None:
    table, small = f"{CONFIGS}/procap/sweeps/table02.yaml", f"{CONFIGS}/procap/sweeps/small.yaml"
    with pytest.raises(ValueError, match="size: this table has the sizes paper, small; give the file of one after it"):
        load(SweepJob, table)
    with pytest.raises(ValueError, match="size: this table is not made in size 'small'; it has the sizes paper"):
        load(SweepJob, [f"{CONFIGS}/m3diff/sweeps/table12.yaml", small])
    for size, fault in (("{name: smal}", "did you mean 'small'"), ("{nam: small}", "did you mean 'name'"),
                        ("small", "size: 'small' is not a mapping with a name")):  # fmt: skip
        (tmp_path / "size.yaml").write_text(f"size: {size}")
        with pytest.raises(ConfigError, match=fault):
            load(SweepJob, [table, str(tmp_path / "size.yaml")])


def test_a_size_is_laid_over_the_files_before_it_and_below_the_command_line(tmp_path: Path) -> None:
    table = {
        "name": "t", "system": "procap", "title": "T", "note": "Of the table.", "rows": [{"label": "a"}], "seeds": [7],
        "sizes": {"small": {"settings": {"pairs": "p", "procedures": "q"}, "seeds": [1, 2]}, "paper": {"seeds": [3]}},
    }  # fmt: skip
    size = {"size": {"name": "small", "suffix": "s", "note": "In small."}, "settings": {"pairs": "r"}, "runs": "there"}
    files = [str(tmp_path / name) for name in ("table.yaml", "size.yaml")]
    for path, values in zip(files, (table, size), strict=True):
        Path(path).write_text(yaml.safe_dump(values))
    job = load(SweepJob, files)
    assert (job.name, job.title, job.note, job.runs) == ("t_s", "T, s", "In small. Of the table.", "there")
    assert (job.settings, job.seeds) == ({"pairs": "p", "procedures": "q"}, (1, 2))
    job = load(SweepJob, files, {"seeds": [0], "name": "other", "settings": {"pairs": "z"}})
    assert (job.name, job.seeds, job.settings) == ("other", (0,), {"pairs": "z", "procedures": "q"})


def test_rows_are_filled_from_the_papers_table_and_the_others_of_it_are_quoted() -> None:
    named = [{"label": "without", "settings": {"until": "sft"}}, {"label": "all", "published": "ADPO"}]
    values = {"name": "t", "system": "adpo", "published": {"paper": "adpo", "table": "Table 1"}, "rows": named,
              "columns": [{"title": "CIDEr", "metric": "CIDEr"}]}  # fmt: skip
    rows = SweepJob.composed(values)["rows"]
    assert [row["label"] for row in rows[-5:]] == [
        "Qwen-2.5-VL", "without", "all", "ADPO w/o Preference Optimization", "ADPO w/o Retrieval Adversarial",
    ]  # fmt: skip
    assert rows[-4] == named[0]
    assert rows[-3]["published"] == {"CIDEr": 60.0}
    assert rows[0] == {
        "label": "DUDA (Park et al., 2019b)", "group": "", "quoted": True, "published": {"CIDEr": 22.8},
    }  # fmt: skip
    grouped = load(SweepJob, [f"{CONFIGS}/namc/sweeps/{name}.yaml" for name in ("table13", "paper")]).rows
    cider = {row.group: row.published["C"] for row in grouped if row.label == "MGM-7B (2024)"}
    assert cider == {"Spot-the-Diff": 46.3, "Image-Editing-Request": 66.8}
    for change, fault in (
        ({"published": {"paper": "adpo", "table": "Table 9"}}, "published: adpo has no Table 9"),
        ({"rows": [{"label": "a", "published": "ADPA"}]}, "'ADPA' is not in Table 1 of adpo; did you mean 'ADPO'"),
        ({"published": {"paper": "adpo", "tabel": "1"}}, "tabel: no such setting; did you mean 'table'"),
    ):
        with pytest.raises(ConfigError, match=fault):
            SweepJob.composed(values | change)


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory, which has the files of the repository's jobs and no data."""
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "jobs").symlink_to(ROOT / "jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def make_input(world: World, path: Path) -> None:
    """A folder of pairs or procedures, an evaluation or an artifact; those of different names have other contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parts[0] == "data":
        procedures = "procedures" in path.name or "robustness" in path.parts
        shutil.copytree(world.procedures if procedures else world.pairs, path)
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": str(path)}))
    elif path.name == "evaluation":
        record = ev.Evaluation(fingerprint=str(path), split="test", pairs=1, references=1, distinct_captions=1,
                               empty_captions=0, scores={}, subsets={}, baselines={}, protocol={})  # fmt: skip
        ev.save(path, record, [])
    else:
        shutil.copytree(world.tokenizer, path)
        (path / "whose.txt").write_text(str(path))


def read_sweep(name: str) -> SweepJob:
    """With its base files merged in, before which no relative path of the working directory counts."""
    return load(SweepJob, [f"jobs/configs/{file}" for file in SWEEPS[name]]).inlined()


def planned(name: str, world: World) -> tuple[SweepJob, list[TrialPlan]]:
    """A sweep whose inputs are there, its base models small ones, and the trials of its first seed."""
    job = read_sweep(name)
    text = json.dumps(job.model_dump(mode="json"))
    for path in sorted(set(re.findall(r'"(data/[^"]+|runs/[^"]+/(?:artifact|evaluation))"', text))):
        if not Path(path).exists():
            make_input(world, Path(path))
    for base in set(re.findall(r'source": "([^"]+/[^"]+)"', text)):
        text = text.replace(f'"{base}"', json.dumps(str(tiny_folder("internvl"))))
    job = SweepJob.model_validate_json(text)
    assert missing_inputs(job) == []
    plans = plan_table(job.model_copy(update={"seeds": job.seeds[:1]}), "steps")
    assert len(plans) == sum(not row.quoted for row in job.table)
    return job, plans


@pytest.mark.parametrize("name", SMALL)
def test_every_trial_of_a_small_sweep_has_its_steps(name: str, world: World, folder: Path) -> None:
    planned(name, world)


# -- at full size ------------------------------------------------------------------------------------------------------

TRAINING_PAIRS = {
    "clevr_change": 67_660, "clevr_dc": 40_800, "spot_the_diff": 8_566, "image_editing_request": 3_061,
}  # fmt: skip
"""Official counts; of Spot-the-Diff the pairs of the single-change protocol."""
EPOCHS = {
    "namc": {"clevr_change": 40, "clevr_dc": 40, "spot_the_diff": 10, "image_editing_request": 20},
    "procap": {"clevr_change": 40, "spot_the_diff": 40},
}
"""NAMC: appendix F. ProCap: appendix H."""
BATCH = {"namc": 128, "procap": 16}
PRETRAININGS = {
    "figure03": 16, "figure04": 5, "figure04_mixture": 5, "figure09": 7, "table01": 1, "table02": 1, "table03": 1,
    "table04": 1, "table05": 1, "table06": 3, "table07": 4, "table08": 4, "table10": 2, "table11": 2, "table12": 2,
    "table13": 1,
}  # fmt: skip
"""Table of NAMC -> number of its different pre-trainings, for each seed."""


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith(("namc", "procap"))])
def test_a_full_sweep_trains_as_long_as_its_paper(name: str, world: World, folder: Path) -> None:
    job, plans = planned(name, world)
    for plan in plans:
        last, payload = plan.steps.work[-1], plan.steps.evaluation.payload["job"]
        data = payload["pairs"].split("/")[1]
        assert (last.train.epochs, last.train.batch_size) == (EPOCHS[job.system][data], BATCH[job.system]), plan.label
        assert last.train.keep_best is not None
        assert 0 < 2 * last.train.eval_every <= last.train.total_steps(TRAINING_PAIRS[data]), f"{plan.label}: no choice"
        assert payload["protocol"] == ("spot_single" if data == "spot_the_diff" else "coco"), plan.label
        group = next(row.group for number, row in enumerate(job.table) if number == plan.row)
        assert bool(group) == bool(job.groups), f"{plan.label}: a row without its group has another data set"
        assert group in ("", {"clevr_change": "CLEVR-Change", "spot_the_diff": "Spot-the-Diff",
                              "image_editing_request": "Image-Editing-Request"}.get(data)), plan.label  # fmt: skip
    if job.system == "namc":
        first = {step.name: step.train for plan in plans for step in plan.steps.work if "pretrain" in step.name}
        assert len(first) == PRETRAININGS[Path(name).stem], "one for all folders that are fine-tuned on"
        assert {(train.epochs, train.batch_size) for train in first.values() if train is not None} == {(20, 512)}


def test_every_full_sweep_of_namc_is_counted() -> None:
    assert {f"namc/{name}" for name in PRETRAININGS} == {name for name in FULL if name.startswith("namc")}


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith("m3diff")])
def test_a_full_sweep_of_m3diff_trains_one_epoch_on_every_caption(name: str, world: World, folder: Path) -> None:
    """Section 5.2 and table 9: 896k samples are 896k captions; table 10: one epoch of 256."""
    for plan in planned(name, world)[1]:
        for step in plan.steps.work:
            if step.train is not None:
                assert (step.train.epochs, step.train.batch_size) == (1, 256)
                mixture = MixtureConfig.model_validate(step.payload["mixture"])
                assert {mixture.captions_of(name) for name in mixture.used} == {"each"}
        data = plan.steps.evaluation.payload["job"]["pairs"].split("/")[1]
        wanted = "spot_single" if data == "spot_the_diff" else "coco"
        assert plan.steps.evaluation.payload["job"]["protocol"] == wanted


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith("adpo")])
def test_a_full_sweep_of_adpo_shares_the_first_stage(name: str, world: World, folder: Path) -> None:
    """Section 5: 128 samples a step of captions, 24 to 32 of preferences; all rows start from one model."""
    works = [plan.steps.work for plan in planned(name, world)[1]]
    assert len({work[0].name for work in works if work[0].train is not None}) == 1
    batches = {step.name.partition("-")[0]: step.train.batch_size for work in works for step in work if step.train}
    assert batches == {"sft": 128, "adpo": 32}
    assert len({work[-1].name for work in works}) == len(works), "every row is another model"


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith("changevg")])
def test_a_full_sweep_of_changevg_tunes_one_epoch_with_one_guide(name: str, world: World, folder: Path) -> None:
    """The released settings: one epoch, 6 samples on each of 8 GPUs, 4 times accumulated; MCI: 250 epochs of 64."""
    works = [plan.steps.work for plan in planned(name, world)[1]]
    lengths = {(step.name.partition("-")[0], step.train.epochs, step.train.batch_size)
               for work in works for step in work if step.train}  # fmt: skip
    assert lengths == {("changevg", 1, 192), ("guide", 250, 64)}
    assert len({step.name for work in works for step in work if step.name.startswith("guide-")}) == 1
    assert len({work[-1].name for work in works}) == len(works), "every row is another model"
