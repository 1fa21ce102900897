"""The sweeps that this repository ships: each plans, the small ones on what the commands of their system's README leave
behind, the others on the papers' data sets with the papers' epochs; and no pre-training is done twice."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import idc.evaluation.record as ev
from idc.config import ConfigError, load, missing_inputs
from idc.demo import DEFAULT, demo_steps
from idc.sweep.config import SweepJob
from idc.sweep.plan import TrialPlan, plan_table
from idc.systems.m3diff.mixture import MixtureConfig
from tests.sweep.shipped import CONFIGS, shipped_sweeps
from tests.systems.procap.world import World
from tests.vlm.models import tiny_folder

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = shipped_sweeps()
SMALL = sorted(name for name in SWEEPS if "_small" in name or name.endswith(("demo_mended", "ablation")))
FULL = sorted(SWEEPS.keys() - SMALL)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_a_sweep_is_named_by_its_system_its_file_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is its folder below runs/sweeps: tables of two papers, and two sizes, must not share one."""
    monkeypatch.chdir(ROOT)
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


# -- folders as commands leave them ------------------------------------------------------------------------------------


class Inputs:
    """Makes inputs of sweeps in a folder, the working directory; those of different names have different contents."""

    def __init__(self, world: World, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.world, self.folder = world, folder
        (folder / "jobs").symlink_to(ROOT / "jobs")
        patch.chdir(folder)

    def make(self, kind: str, path: str) -> None:
        """A folder of pairs or procedures, an artifact, a base model or an evaluation."""
        place = Path(path)
        if place.exists():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind in ("pairs", "procedures"):
            shutil.copytree(getattr(self.world, kind), place)
            manifest = json.loads((place / "manifest.json").read_text())
            (place / "manifest.json").write_text(json.dumps({**manifest, "fingerprint": path}))
        elif kind == "artifact":
            shutil.copytree(self.world.tokenizer, place)
            (place / "whose.txt").write_text(path)
        elif kind == "evaluation":
            place.mkdir()
            ev.save(place, ev.Evaluation(
                fingerprint=path, split="test", pairs=1, references=1, distinct_captions=1, empty_captions=0, scores={},
                subsets={}, baselines={}, protocol={},
            ), [])  # fmt: skip
        else:
            place.symlink_to(tiny_folder(kind))

    def leave_behind(self, script: str, arguments: list[str]) -> None:
        """What a job writes, if a sweep could read it."""
        trains = script.startswith(("train_", "pretrain_", "finetune_"))
        if not trains and script not in ("render", "describe_pairs", "robustness", "evaluate"):
            return
        notes = script == "finetune_changevg" and any(word.startswith("out=") for word in arguments)
        parts = ("instructions=", "evaluations=", "artifacts.")
        if notes or any(word.startswith(parts) for word in arguments):  # nothing is trained or evaluated
            return
        job = _config(script, arguments)
        if "only=procedures" in arguments:
            self.make("procedures", job.procedures)
        elif trains:
            self.make("artifact", f"{job.runs}/{job.name}/artifact")
        elif script == "evaluate":
            self.make("evaluation", job.out)
        else:
            self.make("procedures" if "procedures" in str(getattr(job, "pairs", "")) else "pairs", job.out)


def _config(script: str, arguments: list[str]) -> Any:
    """The config of a job's command line."""
    config = [word for option, word in pairwise(arguments) if option == "--config"]
    settings = (word.partition("=") for word in arguments if "=" in word)
    job = importlib.import_module(f"jobs.{script}")
    kind = any(word.startswith("kind=") for word in arguments)
    schema = job.SetJob if kind else job.ProceduresJob if "only=procedures" in arguments else job.Job
    return load(schema, config, {key: yaml.safe_load(value) for key, _, value in settings})


def readme_commands(system: str) -> Iterator[tuple[str, list[str]]]:
    """Script and arguments of every job in the code blocks of a system's README, those of `make demo` included."""
    text = (ROOT / f"idc/systems/{system}/README.md").read_text(encoding="utf-8")
    for language, block in _BLOCK.findall(text):
        for line in () if language else block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["make", "demo"]:
                options = shlex.split(words[2].removeprefix("DEMO=")) if len(words) > 2 else []
                systems = options[options.index("--systems") + 1 :] if options else DEFAULT
                for step in demo_steps("demo", [0], systems=systems, robustness=False):
                    yield Path(step.command[0]).stem, step.command[1:]
            elif words[:1] == ["python"] and words[1].startswith("jobs/"):
                yield Path(words[1]).stem, words[2:]


@pytest.fixture(scope="module")
def inputs(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inputs]:
    """With the papers' data sets as working directory; :meth:`Inputs.make` adds what is missing."""
    with pytest.MonkeyPatch.context() as patch:
        yield Inputs(world, tmp_path_factory.mktemp("full"), patch)


@pytest.fixture(scope="module")
def after_readme(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], None]]:
    """Changes to a folder in which the commands of a system's README were run."""
    folders: dict[str, Path] = {}

    def change(system: str) -> None:
        if system in folders:
            patch.chdir(folders[system])
            return
        folders[system] = tmp_path_factory.mktemp(system)
        inputs = Inputs(world, folders[system], patch)
        for script, arguments in readme_commands(system):
            inputs.leave_behind(script, arguments)

    with pytest.MonkeyPatch.context() as patch:
        yield change


def read_sweep(name: str) -> SweepJob:
    """With its base files merged in, before which no relative path of the working directory counts."""
    return load(SweepJob, [f"jobs/configs/{file}" for file in SWEEPS[name]]).inlined()


def planned(job: SweepJob) -> list[TrialPlan]:
    """The trials of the first seed; the others are the same with other seeds."""
    assert missing_inputs(job) == []
    plans = plan_table(job.model_copy(update={"seeds": job.seeds[:1]}), "steps")
    assert len(plans) == sum(not row.quoted for row in job.table)
    return plans


# -- the small ones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_small_sweep_runs_on_what_the_commands_of_its_readme_leave_behind(
    name: str, after_readme: Callable[[str], None]
) -> None:
    after_readme(name.partition("/")[0])
    planned(read_sweep(name))


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


def full_size(name: str, inputs: Inputs) -> SweepJob:
    """A sweep whose folders are there; the base models of M3Diff, ADPO and ChangeVG are small ones."""
    os.chdir(inputs.folder)
    job = read_sweep(name)
    text = json.dumps(job.model_dump(mode="json"))
    for path in sorted(set(re.findall(r'"(data/[^"]+)"', text))):
        inputs.make("pairs", path)
    for path in sorted(set(re.findall(r'"(runs/[^"]+/artifact)"', text))):
        inputs.make("artifact", path)
    if job.system not in ("m3diff", "adpo", "changevg"):
        return job
    for base in set(re.findall(r'source": "([^"]+)"', text)):
        text = text.replace(f'"{base}"', json.dumps(str(tiny_folder("internvl"))))
    return SweepJob.model_validate_json(text)


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith(("namc", "procap"))])
def test_a_full_sweep_trains_as_long_as_its_paper(name: str, inputs: Inputs) -> None:
    job = full_size(name, inputs)
    plans = planned(job)
    for plan in plans:
        last, payload = plan.steps.work[-1], plan.steps.evaluation.payload["job"]
        data = payload["pairs"].split("/")[1]
        assert last.train is not None
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
def test_a_full_sweep_of_m3diff_trains_one_epoch_on_every_caption(name: str, inputs: Inputs) -> None:
    """Section 5.2 and table 9: 896k samples are 896k captions; table 10: one epoch of 256."""
    job = full_size(name, inputs)
    for plan in planned(job):
        for step in plan.steps.work:
            if step.train is not None:
                assert (step.train.epochs, step.train.batch_size) == (1, 256)
                mixture = MixtureConfig.model_validate(step.payload["mixture"])
                assert {mixture.captions_of(name) for name in mixture.used} == {"each"}
        data = plan.steps.evaluation.payload["job"]["pairs"].split("/")[1]
        wanted = "spot_single" if data == "spot_the_diff" else "coco"
        assert plan.steps.evaluation.payload["job"]["protocol"] == wanted


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith("adpo")])
def test_a_full_sweep_of_adpo_shares_the_first_stage(name: str, inputs: Inputs) -> None:
    """Section 5: 128 samples a step of captions, 24 to 32 of preferences; all rows start from one model."""
    job = full_size(name, inputs)
    works = [plan.steps.work for plan in planned(job)]
    assert len({work[0].name for work in works if work[0].train is not None}) == 1
    batches = {step.name.partition("-")[0]: step.train.batch_size for work in works for step in work if step.train}
    assert batches == {"sft": 128, "adpo": 32}
    assert len({work[-1].name for work in works}) == len(works), "every row is another model"


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith("changevg")])
def test_a_full_sweep_of_changevg_tunes_one_epoch_with_one_guide(name: str, inputs: Inputs) -> None:
    """The released settings: one epoch, 6 samples on each of 8 GPUs, 4 times accumulated; MCI: 250 epochs of 64."""
    job = full_size(name, inputs)
    works = [plan.steps.work for plan in planned(job)]
    lengths = {(step.name.partition("-")[0], step.train.epochs, step.train.batch_size)
               for work in works for step in work if step.train}  # fmt: skip
    assert lengths == {("changevg", 1, 192), ("guide", 250, 64)}
    assert len({step.name for work in works for step in work if step.name.startswith("guide-")}) == 1
    assert len({work[-1].name for work in works}) == len(works), "every row is another model"
