"""Loading: its options reach the captioner and, where captions depend on them, fingerprints; with ``auto`` each pair
goes to a captioner that knows such images, in every interface to the same one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idc
import serve
from benchmarks.captioning import CaptioningConfig
from benchmarks.gpu import GpuConfig
from benchmarks.training import TrainingConfig
from idc.captioning.calibration_job import CalibrateJob
from idc.captioning.contract import SearchOptions
from idc.captioning.familiarity import Familiarity
from idc.captioning.loading import DEFAULTS, CaptionerLoader, LoadConfig, captioner_identity
from idc.captioning.objects_config import OBJECTS, ObjectsConfig
from idc.captioning.pair import PairJob
from idc.captioning.sources import AUTO, SHIPPED, artifact_folder
from idc.captioning.table import CaptionJob, caption_rows
from idc.config import ConfigModel, load, missing_inputs
from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.evaluation.config import AskJob, EvaluateJob
from idc.evaluation.job import scoring_fingerprint
from idc.geo.config import SceneJob
from idc.report.gallery import write_gallery
from idc.systems import untrained_captioner
from idc.systems.changevg.config import ScoreGuideJob
from idc.systems.procap.speed import Optimisations
from tests.captioning.disturbed_weights import disturbed_copy
from tests.conftest import Command
from tests.report.html_page import HtmlPage


def test_device_and_speed_reach_the_captioner(captioner_artifact: Path) -> None:
    artifact = str(captioner_artifact)
    assert CaptionerLoader(artifact, DEFAULTS).device == "cpu"
    assert CaptionerLoader(artifact, DEFAULTS, gpus=0.5).device == "cuda"
    assert CaptionerLoader(artifact, LoadConfig(device="cuda:1")).device == "cuda:1"
    for name in (artifact, "auto"):  # refused before anything is loaded
        with pytest.raises(ValueError, match="device: torch has no 'cuda:99' here"):
            CaptionerLoader(name, LoadConfig(device="cuda:99"), gpus=None)()
    found = {}
    for speed in ("auto", "exact", "fast", "bf16"):
        captioner = CaptionerLoader(artifact, LoadConfig(speed=speed))()
        found[speed] = captioner.speed  # type: ignore[attr-defined]  # ProCap's
    assert found["exact"] == Optimisations()
    assert {speed: chosen.bf16 for speed, chosen in found.items()} == {
        "auto": False, "exact": False, "fast": False, "bf16": True
    }  # fmt: skip
    assert found["auto"].channels_last
    assert found["fast"].channels_last


@pytest.mark.parametrize(("job", "settings"), [
    (PairJob, {"before": "a", "after": "b"}), (CaptionJob, {"input": "a", "out": "b"}),
    (SceneJob, {"before": "a", "after": "b", "out": "c"}),
    (EvaluateJob, {"artifact": "shipped", "out": "a", "pairs": "b"}),
    (AskJob, {"artifact": "shipped", "instructions": "a", "out": "b"}), (CalibrateJob, {"artifact": "a", "pairs": "b"}),
    (ScoreGuideJob, {"pairs": "a", "guide": "b", "out": "c"}), (TrainingConfig, {}), (CaptioningConfig, {}),
    (GpuConfig, {}),
])  # fmt: skip
def test_every_command_refuses_a_device_that_is_not_there(job: type[ConfigModel], settings: Fields) -> None:
    for device in ("cuda:99", "gpu"):
        faults = missing_inputs(job(**settings, device=device))
        assert [fault for fault in faults if fault.startswith(f"device: torch has no '{device}' here")]
    assert not [fault for fault in missing_inputs(job(**settings, device="cpu:0")) if fault.startswith("device")]


def test_fingerprints_change_with_the_number_format_alone(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")

    def mark(**settings: object) -> str:
        given = {"references": str(tmp_path / "r.json"), "predictions": "p", "out": "o", "split": "test"}
        return scoring_fingerprint(load(EvaluateJob, None, {**given, **settings}))

    assert mark() == mark(device="cuda") == mark(speed="fast") == mark(speed="exact") != mark(speed="bf16")


ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(serve.__file__).parent / "web" / "examples"
BOTTLES = EXAMPLES / "photographs" / "bottle_00100.jpg", EXAMPLES / "photographs" / "bottle_00260.jpg"
RENDERED = EXAMPLES / "color-before.png", EXAMPLES / "color-after.png"
GONE = "A bottle on the left is gone."
LEFT = "0,0,0.3,1"
"""The part of the image with the bottle that goes."""

Fields = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without ``runs/``."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pixels(*paths: Path) -> list[np.ndarray]:
    return [decode_image(path.read_bytes()) for path in paths]


def rows_of(table: str, out: str, **settings: Any) -> list[Fields]:
    job = load(CaptionJob, None, {"input": table, "out": out, **settings})
    caption_rows(job, lambda *args, **options: run_local(*args, progress=False, **options))
    write_gallery(job)
    return list(iter_rows(out))


def write_table(path: Path, *pairs: tuple[Path, Path]) -> str:
    lines = [f"{before},{after}" for before, after in pairs]
    path.write_text("\n".join(["before,after", *lines]))
    return str(path)


def test_each_pair_of_a_batch_goes_to_the_captioner_that_knows_it() -> None:
    captioner = CaptionerLoader(AUTO, LoadConfig())()
    befores, afters = pixels(RENDERED[0], BOTTLES[0], RENDERED[1]), pixels(RENDERED[1], BOTTLES[1], RENDERED[0])
    described = captioner.describe(befores, afters, SearchOptions(candidates=2, change_map=True))
    assert [each.captioner for each in described] == [SHIPPED, OBJECTS, SHIPPED]
    familiar, unfamiliar = (
        "both images are like the training of shipped",
        "not both images are like the training of shipped",
    )
    assert [each.chosen for each in described] == [
        f"{familiar}, and objects does not object",
        unfamiliar,
        described[0].chosen,
    ]
    shipped = CaptionerLoader(SHIPPED, LoadConfig())()
    for index, alone in enumerate((shipped, untrained_captioner(), shipped)):
        [expected] = alone.describe(befores[index : index + 1], afters[index : index + 1], SearchOptions(candidates=2))
        assert described[index].best.caption == expected.best.caption
        assert len(described[index].candidates) == len(expected.candidates)
        assert (described[index].claims, described[index].verdict) == (expected.claims, expected.verdict)
        assert described[index].change_map is not None
    assert (described[1].best.caption, described[1].verdict) == (GONE, "changed")
    assert captioner.capabilities == {"map"}, "the trained one scores and samples, which says nothing of a photograph"
    assert not captioner.can("score")


COMMAND = f"import runpy; runpy.run_path({str(ROOT / 'jobs' / 'caption.py')!r}, run_name='__main__')"
PYTHON = "import idc; print(idc.load()(*sys.argv[1:]))"


@pytest.mark.parametrize(
    ("code", "pair", "loaded"), [(COMMAND, BOTTLES, []), (PYTHON, BOTTLES, []), (COMMAND, RENDERED, ["torch"])]
)
def test_a_photograph_loads_neither_torch_nor_what_tables_need(
    code: str, pair: tuple[Path, Path], loaded: list[str], folder: Path
) -> None:
    code = f"import sys; {code}; print([name for name in ('torch', 'idc.data.pipeline') if name in sys.modules])"
    # TMPDIR: with an empty cache, as at the first call.
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, pair)], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.stdout.split("\n")[1] == str(loaded)
    assert done.stderr == "", "nothing names a captioner beforehand"


def test_of_a_trained_captioner_too_objects_leaves_out_what_does_not_count(command: Command) -> None:
    done = command("caption", *BOTTLES, "--json", "--artifact", SHIPPED, "--ignore", LEFT)
    beside = json.loads(done.stdout)
    assert (beside["objects_text"], beside["verdict"], beside["captioner"]) == (
        "Nothing clearly changed.", "unsure", SHIPPED,
    )  # fmt: skip
    assert idc.load()(*BOTTLES, only=[tuple(map(float, LEFT.split(",")))]).caption == GONE


def test_a_trained_captioner_sees_no_difference_in_a_part_that_does_not_count() -> None:
    captioner, (first, after) = idc.load(SHIPPED, device="cpu"), pixels(*RENDERED)
    rows, columns = np.nonzero(np.abs(first.astype(int) - after).max(axis=2) > 60)
    left, top, right, bottom = box = [int(value) for value in (columns.min(), rows.min(), columns.max(), rows.max())]
    before, mask = after.copy(), np.full(after.shape[:2], 255, np.uint8)
    before[top:bottom, left:right] = first[top:bottom, left:right]
    mask[top:bottom, left:right] = 0
    same = captioner(after, after).to_dict()
    assert (captioner(before, after).verdict, same["verdict"]) == ("changed", "unchanged")
    for parts in ({"ignore": [box]}, {"only": [Image.fromarray(mask)]}):
        assert captioner(before, after, **parts).to_dict() == same


def test_a_box_outside_of_one_image_is_the_fault_of_its_row_alone(folder: Path) -> None:
    table = write_table(folder / "pairs.csv", BOTTLES, RENDERED)
    photograph, rendered = rows_of(table, "captions", ignore="200,0,400,270")
    assert (photograph["caption"], photograph["error"]) == (GONE, None)
    assert rendered["error"].startswith("pair: not captioned: the box 200,0,400,270 is outside of the image after")


def test_the_page_of_a_table_says_who_captioned_and_draws_the_names(folder: Path) -> None:
    rows = rows_of(write_table(folder / "pairs.csv", BOTTLES, RENDERED), "captions")
    page = HtmlPage((folder / "captions" / "page.html").read_text())
    text = " ".join(page.text.split())
    assert [row["captioner"] for row in rows] == [OBJECTS, SHIPPED]
    assert GONE in text
    assert "captioner objects" in text
    assert "objects: 1 pairs" in text
    assert "names drop" not in text, "objects does not speak in change types"
    assert "shipped: 1 pairs" in text
    before, after, *_ = (image.astype(int) for image in page.images)
    marked = [(image[..., 0] - image[..., 1] > 120).sum() for image in (before, after)]
    assert marked[0] > 500 > 50 > marked[1], "the bottle that is gone is boxed on the image before alone"


def test_the_identity_of_captions_follows_the_captioner_its_familiarity_and_the_settings_of_objects(
    folder: Path,
) -> None:
    def identity(artifact: str = AUTO, **objects: Any) -> str:
        settings = ObjectsConfig(**objects)
        return captioner_identity(artifact, artifact_folder(artifact, settings), settings)

    first = identity()
    assert first == identity()
    other = disturbed_copy(Path(artifact_folder(SHIPPED)), folder / "runs" / "mine" / "artifact")
    newer = identity()
    familiarity = Familiarity.read(other)
    Familiarity(familiarity.mean + 1, familiarity.whitening, familiarity.distances).save(other)
    identities = [
        first, newer, identity(), identity(names="bottle"), identity(mode="exact"), identity(detector="none"),
        identity("runs/mine/artifact"), identity(SHIPPED), identity(SHIPPED, names="bottle"), identity(OBJECTS),
    ]  # fmt: skip
    assert len(set(identities)) == len(identities)
