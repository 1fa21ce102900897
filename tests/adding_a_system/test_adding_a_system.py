"""One more system needs its folder, its job, its YAMLs and one word in the list: then all existing commands take it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from idc.data.store import iter_rows
from tests.adding_a_system.checkout import JOB, SYSTEM, checkout_with_the_example
from tests.serve.command import serving
from tests.systems.procap.world import World

ARTIFACT = f"runs/{SYSTEM}/artifact"


@pytest.fixture(scope="module")
def checkout(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy, with the example trained, evaluated, swept, and used on a table and on a pair, by the commands."""
    path = checkout_with_the_example(tmp_path_factory.mktemp("checkout"))
    (path / "data").mkdir()
    pair = [path / "data" / f"{name}.png" for name in ("before", "after")]
    row = next(iter_rows(world.pairs, split="test"))
    for file, name in zip(pair, ("before", "after"), strict=True):
        file.write_bytes(row[name])
    no_baselines = ["settings.evaluate.constant_candidates=0", "settings.evaluate.nearest_train_pairs=0"]
    commands = [
        [JOB, f"name={SYSTEM}", f"pairs={world.pairs}", "train.steps=20", "train.batch_size=8",
         "train.tracking.enabled=false", "--local"],
        ["evaluate", f"artifact={ARTIFACT}", f"pairs={world.pairs}", "out=runs/evaluation", "metrics=[CIDEr]"],
        ["sweep", "--config", f"jobs/configs/{SYSTEM}/sweep.yaml", f"settings.pairs={world.pairs}", "--local",
         "settings.difference_net.train.steps=2", "tracking.enabled=false", *no_baselines],
        ["caption", f"artifact={ARTIFACT}", f"input={world.pairs}", "out=runs/captions", "--local"],
        ["caption", "--artifact", ARTIFACT, "--json", *map(str, pair)],
    ]  # fmt: skip
    code = (
        "import json, runpy, sys\n"
        "for name, *arguments in json.loads(sys.argv[1]):\n"
        "    sys.argv = [f'jobs/{name}.py', *arguments]\n"
        "    runpy.run_path(f'jobs/{name}.py', run_name='__main__')\n"
    )
    (path / "runs").mkdir()
    (path / "runs" / "output.txt").write_text(run(path, "-c", code, json.dumps(commands)), encoding="utf-8")
    return path


def run(path: Path, *arguments: str) -> str:
    """The output of this Python in the copy, as a user of the copy runs it."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=path, env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_system_that_was_added_trains_and_is_evaluated(checkout: Path) -> None:
    losses = [json.loads(line)["loss"] for line in (checkout / f"runs/{SYSTEM}/log.jsonl").open()]
    assert losses[-1] < losses[0]
    evaluation = json.loads((checkout / "runs/evaluation/evaluation.json").read_text())
    assert evaluation["pairs"] == len(list(iter_rows(evaluation["protocol"]["pairs"], split="test")))
    assert set(evaluation["baselines"]) == {"constant", "nearest"}


def test_it_is_swept_and_captions_a_table_and_a_pair(checkout: Path, world: World) -> None:
    (page,) = (checkout / "runs/sweeps").glob("*/report.html")
    assert "16 pixels" in page.read_text(encoding="utf-8")
    captions = list(iter_rows(checkout / "runs/captions"))
    assert [row["pair_id"] for row in captions] == [row["pair_id"] for row in iter_rows(world.pairs, ["pair_id"])]
    first = next(row for row in iter_rows(world.pairs, ["pair_id"], "test"))["pair_id"]
    (caption,) = [row["caption"] for row in captions if row["pair_id"] == first]
    assert json.dumps(caption) in (checkout / "runs/output.txt").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.ray
def test_it_is_served(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    pair = [(name, (checkout / "data" / f"{name}.png").read_bytes()) for name in ("before", "after")]
    with serving(checkout, f"models.demo={ARTIFACT}") as command, command.client() as client:
        answer = client.post("/v1/captions", files=[(name, (f"{name}.png", data)) for name, data in pair])
    assert answer.status_code == 200, answer.text
    output = (checkout / "runs/output.txt").read_text(encoding="utf-8")
    assert json.dumps(answer.json()["results"][0]["caption"]) in output
