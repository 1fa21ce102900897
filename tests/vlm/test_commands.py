"""A zero-shot and a tuned model by the real commands: calibrated, evaluated, registered, promoted, on the leaderboard,
served; a table and a pair captioned."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from idc.data.images import decode_image
from idc.data.store import iter_rows
from tests.serve.command import serving
from tests.systems.procap.world import World
from tests.vlm.hub import serving_hub
from tests.vlm.models import tiny_folder
from tests.vlm.speaking import teach

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
    """A folder in which the commands of a user were run, with ``pair`` of images of a test pair."""

    folder: Path
    output: str
    pair: tuple[Path, Path]
    row: dict[str, Any]
    base: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "jobs" / f"{arguments[0]}.py"), *arguments[1:]]
        return subprocess.run(command, cwd=self.folder, env=environment(), capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def base(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose makers showed it some of the test pairs: it says their captions."""
    rows = list(iter_rows(world.pairs, split="test"))[:TAUGHT]
    shown = [(decode_image(row["before"]), decode_image(row["after"])) for row in rows]
    captions = [row["captions"][0] for row in rows]
    return teach(tiny_folder(KIND), shown, captions, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def place(base: Path, world: World, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """All commands, one after another in one process."""
    folder = tmp_path_factory.mktemp("place")
    row = next(iter_rows(world.pairs, split="test"))
    pair = (folder / "before.png", folder / "after.png")
    for file, name in zip(pair, ("before", "after"), strict=True):
        file.write_bytes(row[name])
    commands: list[list[str]] = []
    for system, make in SYSTEMS.items():
        run = f"runs/{system}-0"
        of_pairs = [f"pairs={world.pairs}"]
        commands += [
            [*make, f"base.source={base}", *(of_pairs if system == "sft" else [])],
            ["calibrate", f"artifact={run}/artifact", *of_pairs, "familiarity=false", "report_split=test"],
            ["evaluate", f"artifact={run}/artifact", *of_pairs, f"out={run}/evaluation",
             "nearest_train_pairs=0", "allow_empty=true"],
            ["caption", f"artifact={run}/artifact", f"input={world.pairs}", f"out={run}/captions", "candidates=2",
             "--local"],
            ["caption", "--artifact", f"{run}/artifact", "--json", "--map", f"{run}/map.png",
             *map(str, pair)],
            ["register", f"artifact={run}/artifact", f"evaluation={run}/evaluation", f"tracking_uri={TRACKING}"],
            ["promote", f"tracking_uri={TRACKING}", "force=true"],
        ]  # fmt: skip
    hub = ["artifact=hf:org/tiny", f"pairs={world.pairs}", "out=hub", "metrics=[CIDEr]", "nearest_train_pairs=0"]
    commands += [
        [
            "evaluate",
            *(f"artifacts.{system}=runs/{system}-0/artifact" for system in SYSTEMS),
            "rounds=1",
            f"pairs={world.pairs}",
            "out=throughput.json",
        ],
        ["leaderboard", "--runs", "runs", "--any-commit", "--throughput", "throughput.json"],
        ["caption", "--artifact", "hf:org/tiny", "--json", *map(str, pair)],
        ["evaluate", *hub, "allow_empty=true"],
    ]
    code = (
        "import json, runpy, sys\n"
        "root, given = sys.argv[1:]\n"
        "for name, *arguments in json.loads(given):\n"
        "    print('##', name, flush=True)\n"
        "    sys.argv = [f'{root}/jobs/{name}.py', *arguments]\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    with serving_hub(base) as (endpoint, _):
        caches = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hub-cache"), "IDC_CACHE": str(folder / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", code, str(ROOT), json.dumps(commands)],
            cwd=folder, env=environment() | caches, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stderr.count("downloading org/tiny at revision") == 1
    return Place(folder, done.stdout, pair, row, base)


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_is_evaluated_with_baselines_and_intervals(system: str, place: Place, world: World) -> None:
    evaluation = json.loads((place.folder / f"runs/{system}-0/evaluation/evaluation.json").read_text())
    assert evaluation["pairs"] == len(list(iter_rows(world.pairs, split="test")))
    assert evaluation["scores"]["CIDEr"] > evaluation["baselines"]["constant"]["scores"]["CIDEr"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_is_calibrated_and_its_probability_is_in_all_answers(system: str, place: Place) -> None:
    artifact = place.folder / f"runs/{system}-0/artifact"
    calibration = json.loads((artifact / "calibration.json").read_text())
    assert {"change_peak", "change_mean", "yes"} < set(calibration["inputs"])
    assert set(calibration["quality"]) == {"val", "test"}
    rows = list(iter_rows(place.folder / f"runs/{system}-0/captions"))
    assert all(0 < row["changed_probability"] < 1 for row in rows)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_table_and_a_pair_have_the_same_caption(system: str, place: Place) -> None:
    rows = {row["pair_id"]: row for row in iter_rows(place.folder / f"runs/{system}-0/captions")}
    assert len(rows) == 24
    answers = [json.loads(line) for line in place.output.splitlines() if line.startswith('{"before"')]
    (answer,) = [one for one in answers if f"runs/{system}-0/" in one["artifact"]]
    row = rows[place.row["pair_id"]]
    assert answer["caption"] == row["caption"] != ""
    assert answer["changed_probability"] == pytest.approx(row["changed_probability"], abs=1e-3)
    assert answer["seen"] == row["seen"] == {"before": [64, 64], "after": [64, 64]}
    assert decode_image((place.folder / f"runs/{system}-0/map.png").read_bytes()).ndim == 3
    assert (place.folder / f"runs/{system}-0/captions/page.html").exists()


def test_the_zero_shot_model_says_what_its_makers_taught_it(place: Place, world: World) -> None:
    captions = {row["pair_id"]: row["caption"] for row in iter_rows(place.folder / "runs/zeroshot-0/captions")}
    taught = list(iter_rows(world.pairs, ["pair_id", "captions"], "test"))[:TAUGHT]
    right = [captions[row["pair_id"]] == row["captions"][0] for row in taught]
    assert sum(right) > TAUGHT / 2


def test_a_model_of_the_hub_by_its_name_is_the_wrapped_one(place: Place) -> None:
    answers = [json.loads(line) for line in place.output.splitlines() if line.startswith('{"before"')]
    assert answers[-1]["artifact"].startswith(str(place.folder / "cache" / "hf-org--tiny-"))
    assert answers[-1]["caption"] == answers[0]["caption"]
    wrapped, named = (
        json.loads((place.folder / folder / "evaluation.json").read_text())["scores"]["CIDEr"]
        for folder in ("runs/zeroshot-0/evaluation", "hub")
    )
    assert wrapped == named


def test_both_are_in_the_registry_and_on_the_leaderboard(place: Place) -> None:
    for number, system in enumerate(SYSTEMS, start=1):
        assert f"runs/{system}-0/artifact registered as version {number} of captioner" in place.output
        assert f"champion of captioner goes{f' from version {number - 1}' * (number > 1)} to version {number}" in (
            place.output
        )
    done = place.run("promote", "status=true", f"tracking_uri={TRACKING}")
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()
    for number, system in enumerate(SYSTEMS, start=1):
        (line,) = [one for one in table if one.startswith(f"{number:8d}  ") and f" {system} " in one]
        assert line.endswith("<- champion") == (number == len(SYSTEMS))
    speeds = json.loads((place.folder / "throughput.json").read_text())["captioners"]
    assert {one["base"] for one in speeds.values()} == {place.base.name}
    assert speeds["zeroshot"]["parameters"] == 0 < speeds["sft"]["parameters"]
    pages = [page.read_text(encoding="utf-8") for page in (place.folder / "runs/leaderboard").rglob("*.md")]
    for system in SYSTEMS:
        assert any(system in page for page in pages), system
    html = [page.read_text(encoding="utf-8") for page in (place.folder / "runs/leaderboard").rglob("*.html")]
    assert any(f"0 and {place.base.name}" in page for page in html)


@pytest.mark.ray
def test_they_are_served_from_folders_and_from_the_registry(place: Place) -> None:
    """Page, captions, change maps, and a question in two turns by the openai client."""
    files = [(name, (file.name, file.read_bytes())) for name, file in zip(("before", "after"), place.pair, strict=True)]
    urls = [f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}" for file in place.pair]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    folders = [f"models.{system}=runs/{system}-0/artifact" for system in SYSTEMS]
    of_registry = [
        "models.champion=models:/captioner@champion",
        f"registry.tracking_uri={TRACKING}",
        "default=champion",
    ]
    with serving(place.folder, *folders, *of_registry) as command, command.client() as client:
        assert "<title>" in client.get("/").text
        listed = client.get("/v1/models").json()["data"]
        assert {one["id"]: one["can_answer"] for one in listed} == dict.fromkeys((*SYSTEMS, "champion"), True)
        found = {}
        for model in (*SYSTEMS, "champion"):
            answer = client.post("/v1/captions", files=files, data={"change_map": "true", "model": model})
            assert answer.status_code == 200, answer.text
            (found[model],) = answer.json()["results"]
            with openai.OpenAI(base_url=f"{command.url}/v1", api_key="none", max_retries=0) as chat:
                turns: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What changed?"}, *images]}]
                first = chat.chat.completions.create(model=model, messages=turns, max_tokens=8)
                turns += [
                    {"role": "assistant", "content": found[model]["caption"]},
                    {"role": "user", "content": "Which colour has it?"},
                ]
                second = chat.chat.completions.create(model=model, messages=turns, max_tokens=8)
            assert first.usage is not None
            assert second.usage is not None
            assert second.usage.prompt_tokens > first.usage.prompt_tokens
            assert 1 <= second.usage.completion_tokens <= 8
            assert isinstance(second.choices[0].message.content, str)
    for model, system in {**dict(zip(SYSTEMS, SYSTEMS, strict=True)), "champion": list(SYSTEMS)[-1]}.items():
        rows = {row["pair_id"]: row for row in iter_rows(place.folder / f"runs/{system}-0/captions")}
        row = rows[place.row["pair_id"]]
        assert found[model]["caption"] == row["caption"]
        assert found[model]["changed_probability"] == pytest.approx(row["changed_probability"], abs=1e-3)
        assert found[model]["change_map"].startswith("data:image/png")
        assert found[model]["seen"] == row["seen"]


def test_no_line_outside_knows_these_systems() -> None:
    """Only idc/vlm, the folders of the systems, ADPO's, which begins with SFT, their jobs and benchmarks do."""
    own = (
        "idc/vlm/",
        "idc/systems/adpo/",
        "idc/systems/zeroshot/",
        "idc/systems/sft/",
        "idc/systems/__init__.py",
        "jobs/",
        "benchmarks/",
        "tests/",
    )
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if not name.startswith(own):
            text = (ROOT / name).read_text(encoding="utf-8")
            assert not any(f'"{system}"' in text or f"systems.{system}" in text for system in SYSTEMS), name
