"""The interpolators' table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.vision.image_quality import psnr_ssim
from idc.vision.interpolation.comparison import compare, table
from idc.vision.interpolation.config import CompareInterpolatorsJob
from idc.vision.interpolation.middle_frames import DISFlow, LinearBlend
from idc.vision.interpolation.model import VFIformer
from tests.vision.interpolation.test_interpolator_task import moving
from tests.vision.interpolation.test_vfiformer import TINY


@pytest.fixture(scope="module")
def triplets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two sources of other sizes."""
    folders = {}
    for name, size, shifts in (("fast", (96, 128), (6.0, 8.0, 5.0)), ("slow", (64, 80), (2.0, 3.0))):
        folder = tmp_path_factory.mktemp(name)
        for n, shift in enumerate(shifts):
            for k, frame in enumerate(moving(shift, size)[1:]):
                (folder / f"{n}_frame{k}.png").write_bytes(encode_png(frame))
        folders[name] = str(folder)
    return folders


def test_interpolators_are_measured_on_known_middle_frames(triplets: dict[str, str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    VFIformer(TINY).save(tmp_path / "untrained")
    job = CompareInterpolatorsJob(
        triplets=triplets, vfiformer={"untrained": str(tmp_path / "untrained")}, out=str(tmp_path / "out")
    )
    result = compare(job)
    rows = result["rows"]
    assert list(rows) == ["blend", "dis", "untrained"]
    assert result["sources"] == {"fast": 3, "slow": 2}
    for source in triplets:
        assert rows["dis"][source]["PSNR"] > rows["blend"][source]["PSNR"] + 3
        assert rows["dis"][source]["SSIM"] > rows["blend"][source]["SSIM"]
    for name, middle in (("blend", LinearBlend()), ("dis", DISFlow())):
        scores = [psnr_ssim(t.middle, middle(t.first, t.last)) for t in (moving(2.0, (64, 80)), moving(3.0, (64, 80)))]
        assert rows[name]["slow"]["PSNR"] == pytest.approx(sum(score[0] for score in scores) / 2)
        assert rows[name]["slow"]["SSIM"] == pytest.approx(sum(score[1] for score in scores) / 2)
        assert result["triplets"]["slow"]["0"][name] == pytest.approx(scores[0][0])

    assert json.loads((tmp_path / "out" / "interpolators.json").read_text()) == result
    text = (tmp_path / "out" / "interpolators.md").read_text()
    assert text == table(result) + "\n"
    head, _, blend, dis, untrained = text.splitlines()[:5]
    assert head.startswith("| interpolator | fast (3): PSNR | SSIM | s | slow (2): PSNR | SSIM | s |")
    assert dis.startswith(f"| dis | **{rows['dis']['fast']['PSNR']:.2f}** | **")
    assert "**" not in blend + untrained
    assert len({line.count("|") for line in text.splitlines()[:5]}) == 1


def test_fewer_triplets_and_other_splits(triplets: dict[str, str], tmp_path: Path) -> None:
    job = CompareInterpolatorsJob(triplets=triplets, max_triplets=1, interpolators=("blend",), out=str(tmp_path))
    assert compare(job)["sources"] == {"fast": 1, "slow": 1}
    with pytest.raises(ValueError, match=r"triplets\.fast: .* has no triplets of split=val"):
        compare(job.model_copy(update={"split": "val"}))


def test_faults() -> None:
    with pytest.raises(ConfigError, match="vfiformer: 'dis' is the name of another interpolator"):
        load(CompareInterpolatorsJob, None, {"triplets.a": "b", "out": "c", "vfiformer.dis": "d"})
    with pytest.raises(ConfigError, match="there is nothing to compare"):
        load(CompareInterpolatorsJob, None, {"triplets.a": "b", "out": "c", "interpolators": []})
