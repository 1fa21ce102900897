"""A zero-shot and a tuned model by the real commands: calibrated, evaluated, registered, promoted; a table and a
pair captioned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from idc.data.images import decode_image
from idc.data.store import iter_rows
from tests.systems.procap.world import World
from tests.vlm.artifacts import teach
from tests.vlm.hub import serving_hub
from tests.vlm.models import tiny_folder

ROOT = Path(__file__).resolve().parents[2]
KIND = "internvl"
SYSTEMS = {
    "zeroshot": ["wrap_vlm", "out=runs/zeroshot-0/artifact"],
    "sft": [
        "finetune_sft", "runs=runs", "name=sft-0", "train.epochs=null", "train.steps=4",
        "train.batch_size=4", "train.precision=fp32", "train.tracking.enabled=false", "validation_samples=2",
        "tune.lora.rank=4", "--local",
    ],
}  # fmt: skip
"""System -> the command that makes its artifact in runs/SYSTEM-0/artifact."""
TAUGHT = 4
"""Test pairs that the base was shown."""
TRACKING = "sqlite:///mlflow.db"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Place:
    """A folder in which the commands of a user were run, with the JSON that was printed of a test pair: by a system's
    artifact, and by the base's name on the hub."""

    folder: Path
    output: str
    answers: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def place(world: World, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """All commands, one after another in one process, on a small model whose makers showed it some of the test pairs:
    it says their captions."""
    folder, rows = tmp_path_factory.mktemp("place"), list(iter_rows(world.pairs, split="test"))
    shown = [(decode_image(row["before"]), decode_image(row["after"])) for row in rows[:TAUGHT]]
    captions = [row["captions"][0] for row in rows[:TAUGHT]]
    base = teach(tiny_folder(KIND), shown, captions, tmp_path_factory.mktemp("base"))
    pair = (folder / "before.png", folder / "after.png")
    for file in pair:
        file.write_bytes(rows[0][file.stem])
    commands: list[list[str]] = []
    for system, make in SYSTEMS.items():
        run, of_pairs = f"runs/{system}-0", f"pairs={world.pairs}"
        commands += [
            [*make, f"base.source={base}", *([of_pairs] if system == "sft" else [])],
            ["calibrate", f"artifact={run}/artifact", of_pairs, "familiarity=false", "report_split=test"],
            ["evaluate", f"artifact={run}/artifact", of_pairs, f"out={run}/evaluation", "nearest_train_pairs=0",
             "allow_empty=true"],
            ["caption", f"artifact={run}/artifact", f"input={world.pairs}", f"out={run}/captions", "--local"],
            ["caption", "--artifact", f"{run}/artifact", "--json", "--map", f"{run}/map.png", *map(str, pair)],
            ["register", f"artifact={run}/artifact", f"evaluation={run}/evaluation", f"tracking_uri={TRACKING}"],
            ["promote", f"tracking_uri={TRACKING}", "force=true"],
        ]  # fmt: skip
    commands += [["caption", "--artifact", "hf:org/tiny", "--json", *map(str, pair)]]
    code = (
        "import json, runpy, sys\n"
        "root, given = sys.argv[1:]\n"
        "for name, *arguments in json.loads(given):\n"
        "    sys.argv = [f'{root}/jobs/{name}.py', *arguments]\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    with serving_hub(base) as (endpoint, _):
        done = subprocess.run(
            [sys.executable, "-c", code, str(ROOT), json.dumps(commands)], cwd=folder, capture_output=True, text=True,
            env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hub"), "IDC_CACHE": str(folder / "c")},
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"before"')]
    return Place(folder, done.stdout, dict(zip((*SYSTEMS, "hub"), printed, strict=True)))


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_is_evaluated_and_calibrated_and_a_table_and_a_pair_have_the_same_caption(
    system: str, place: Place, world: World
) -> None:
    run = place.folder / f"runs/{system}-0"
    evaluation = json.loads((run / "evaluation/evaluation.json").read_text())
    assert evaluation["scores"]["CIDEr"] > evaluation["baselines"]["constant"]["scores"]["CIDEr"]
    calibration = json.loads((run / "artifact/calibration.json").read_text())
    assert {"change_peak", "change_mean", "yes"} < set(calibration["inputs"])
    rows = {row["pair_id"]: row for row in iter_rows(run / "captions")}
    tested = list(iter_rows(world.pairs, ["pair_id"], "test"))
    assert (len(rows), evaluation["pairs"]) == (len(list(iter_rows(world.pairs, ["pair_id"]))), len(tested))
    assert all(0 < row["changed_probability"] < 1 for row in rows.values())
    assert (
        f"runs/{system}-0/artifact registered as version {1 + list(SYSTEMS).index(system)} of captioner" in place.output
    )
    answer, row = place.answers[system], rows[tested[0]["pair_id"]]
    assert answer["caption"] == row["caption"] != ""
    assert answer["changed_probability"] == pytest.approx(row["changed_probability"], abs=1e-3)
    assert answer["input_size"] == row["input_size"] == {"before": [64, 64], "after": [64, 64]}
    assert decode_image((run / "map.png").read_bytes()).ndim == 3


def test_the_zero_shot_model_says_what_its_makers_taught_it_also_by_its_name_on_the_hub(
    place: Place, world: World
) -> None:
    captions = {row["pair_id"]: row["caption"] for row in iter_rows(place.folder / "runs/zeroshot-0/captions")}
    taught = list(iter_rows(world.pairs, ["pair_id", "captions"], "test"))[:TAUGHT]
    assert sum(captions[row["pair_id"]] == row["captions"][0] for row in taught) > TAUGHT / 2
    assert place.answers["hub"]["artifact"].startswith(str(place.folder / "c" / "hf-org--tiny-"))
    assert place.answers["hub"]["caption"] == place.answers["zeroshot"]["caption"]
