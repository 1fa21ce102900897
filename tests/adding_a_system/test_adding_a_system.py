"""A sixth system needs its folder, its job, its YAML and one word in the list: then all existing commands take it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from idc.data.store import iter_rows
from tests.adding_a_system.checkout import ADDED, HERE, LIST, ROOT, changed_files, with_difference_net
from tests.serve.command import serving
from tests.systems.procap.world import World

MAX_LINES = 165
ARTIFACT = "runs/difference-net/artifact"


@pytest.fixture(scope="module")
def checkout(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy, with DifferenceNet trained, evaluated, swept, and used on a table and on a pair, by the commands."""
    path = with_difference_net(tmp_path_factory.mktemp("checkout"))
    (path / "data").mkdir()
    pair = [path / "data" / f"{name}.png" for name in ("before", "after")]
    row = next(iter_rows(world.pairs, split="test"))
    for file, name in zip(pair, ("before", "after"), strict=True):
        file.write_bytes(row[name])
    without_baselines = ["constant_candidates=0", "nearest_train_pairs=0"]
    commands = [
        ["train_difference_net", f"pairs={world.pairs}", "train.steps=20", "train.batch_size=8",
         "train.tracking.enabled=false", "--local"],
        ["evaluate", f"artifact={ARTIFACT}", f"pairs={world.pairs}", "out=runs/evaluation", "metrics=[CIDEr]"],
        ["sweep", "--config", ADDED[2], f"settings.pairs={world.pairs}", "--local",
         "settings.train.train.steps=2", "settings.train.train.tracking.enabled=false", "tracking.enabled=false",
         *[f"settings.evaluate.{setting}" for setting in without_baselines]],
        ["caption", f"artifact={ARTIFACT}", f"input={world.pairs}", "out=runs/captions", "--local"],
        ["caption", "--artifact", ARTIFACT, "--json", *map(str, pair)],
    ]  # fmt: skip
    code = (
        "import json, runpy, sys\n"
        "for name, *arguments in json.loads(sys.argv[1]):\n"
        "    sys.argv = [f'jobs/{name}.py', *arguments]\n"
        "    runpy.run_path(f'jobs/{name}.py', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        cwd=path, env=environment(path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path / "runs" / "output.txt").write_text(done.stdout, encoding="utf-8")
    return path


def environment(path: Path) -> dict[str, str]:
    """That of a user of the copy."""
    return {**os.environ, "PYTHONPATH": str(path)}


def test_nothing_but_the_list_and_new_files_was_touched(checkout: Path) -> None:
    assert changed_files(checkout) == {*ADDED, LIST}


def test_ruff_has_nothing_against_the_example_in_its_place(checkout: Path) -> None:
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), *ADDED[:2]]
        done = subprocess.run(ruff, cwd=checkout, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_folder_is_short() -> None:
    lines = [line for file in (HERE / "difference_net").glob("*.py") for line in file.read_text().splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= MAX_LINES


def test_it_trains_and_is_evaluated(checkout: Path) -> None:
    losses = [json.loads(line)["loss"] for line in (checkout / "runs/difference-net/log.jsonl").open()]
    assert losses[-1] < losses[0]
    evaluation = json.loads((checkout / "runs/evaluation/evaluation.json").read_text())
    assert evaluation["pairs"] == len(list(iter_rows(evaluation["protocol"]["pairs"], split="test")))
    assert set(evaluation["baselines"]) == {"constant", "nearest"}


def test_it_is_swept(checkout: Path) -> None:
    (page,) = (checkout / "runs/sweeps").glob("*/report.html")
    assert "16 pixels" in page.read_text(encoding="utf-8")


def test_it_captions_a_table_and_a_pair(checkout: Path, world: World) -> None:
    captions = list(iter_rows(checkout / "runs/captions"))
    learned = {text for row in iter_rows(world.pairs, ["captions"], "train") for text in row["captions"]}
    assert [row["pair_id"] for row in captions] == [row["pair_id"] for row in iter_rows(world.pairs, ["pair_id"])]
    assert {row["caption"] for row in captions} <= learned
    first = next(row for row in iter_rows(world.pairs, ["pair_id"], "test"))["pair_id"]
    (told,) = [row["caption"] for row in captions if row["pair_id"] == first]
    assert told in (checkout / "runs/output.txt").read_text(encoding="utf-8")


def test_it_joins_the_demo(checkout: Path) -> None:
    """Its steps next to another system's, each accepted by its job."""
    code = (
        "import runpy, sys\n"
        "from idc.demo import demo_steps as steps\n"
        "for step in steps('mine', [0], systems=['twincap', 'difference_net']):\n"
        "    if step.queue == 2:\n"
        "        sys.argv = [*step.command, '--print-config']\n"
        "        print(step.title)\n"
        "        try:\n"
        "            runpy.run_path(step.command[0], run_name='__main__')\n"
        "        except SystemExit as end:\n"
        "            assert not end.code, end.code\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, env=environment(checkout), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    titles = ["DifferenceNet", "calibrate DifferenceNet", "evaluate DifferenceNet on the test split"]
    assert [line for line in done.stdout.splitlines() if line in titles] == titles


@pytest.mark.slow
@pytest.mark.ray
def test_it_is_served(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    pair = [(name, (checkout / "data" / f"{name}.png").read_bytes()) for name in ("before", "after")]
    with serving(checkout, f"models.demo={ARTIFACT}") as command, command.client() as client:
        answer = client.post("/v1/captions", files=[(name, (f"{name}.png", data)) for name, data in pair])
    assert answer.status_code == 200, answer.text
    output = (checkout / "runs/output.txt").read_text(encoding="utf-8")
    assert answer.json()["results"][0]["caption"] in output
