"""A model without training as an artifact: made, read, refused, found elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from idc.captioning.loading import BaseAt, CaptionerLoader, LoadConfig
from idc.config import load
from idc.systems import is_captioner, load_captioner
from idc.systems.zeroshot.config import WrapJob
from idc.systems.zeroshot.wrap import wrap
from idc.training.artifact import read_artifact
from idc.vlm.captioner import VlmCaptioner
from serve.config import CommandConfig
from tests.vlm.models import tiny_folder
from tests.vlm.speaking import CAPTIONS, pairs, speaking_folder

BEFORES, AFTERS = (list(images) for images in zip(*pairs(), strict=True))
KIND = "internvl"


def job(base: Path, out: Path, **settings: object) -> WrapJob:
    return load(WrapJob, None, {"base.source": str(base), "out": str(out), **settings})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(speaking_folder(KIND), tmp_path / "base"))


def test_the_same_job_again_does_nothing_and_another_one_is_refused(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    wrap(job(base, out))
    written = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    assert wrap(job(base, out)) == f"done before: {out}"
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == written
    other = job(base, out, **{"generation.beams": 2})
    with pytest.raises(ValueError, match=r"holds something else; choose another folder, or give --overwrite"):
        wrap(other)
    wrap(other, overwrite=True)
    assert read_artifact(out).config["job"]["generation"]["beams"] == 2
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else"):
        wrap(job(base, notes))


def test_a_wrapped_model_captions_as_the_model_does_with_prompt_and_generation_of_the_job(
    base: Path, tmp_path: Path
) -> None:
    out, settings = (
        tmp_path / "artifact",
        {"prompt.system": "Be short.", "generation.beams": 2, "base.max_pixels": 4096},
    )
    wrap(job(base, out))
    assert load_captioner(str(out))(BEFORES, AFTERS) == list(CAPTIONS)
    assert is_captioner(str(out))
    assert sum(file.stat().st_size for file in out.rglob("*")) < 200_000, "the base is named, not copied"
    wrap(job(base, out, **settings), overwrite=True)
    captioner = load_captioner(str(out))
    assert isinstance(captioner, VlmCaptioner)
    assert (captioner.prompt.system, captioner.settings.beams, captioner.family.max_pixels) == ("Be short.", 2, 4096)
    assert captioner.trained_on is None


def test_a_base_elsewhere_is_found_by_its_setting_and_another_model_refused(base: Path, tmp_path: Path) -> None:
    out, moved = tmp_path / "artifact", tmp_path / "moved"
    wrap(job(base, out))
    base.rename(moved)
    with pytest.raises(ValueError, match=f"there is no folder {base}; give the folder"):
        CaptionerLoader(str(out), LoadConfig())
    config = CommandConfig.model_validate({"models": {"mine": str(out)}})
    assert [fault for fault in config.preflight() if fault.startswith("models.mine: base.source: there is no folder")]
    captioner = CaptionerLoader(str(out), LoadConfig(base=BaseAt(source=str(moved))))()
    assert captioner(BEFORES, AFTERS) == list(CAPTIONS)
    with pytest.raises(ValueError, match=r"is not the base model that the artifact was trained on, .* expected"):
        CaptionerLoader(str(out), LoadConfig(base=BaseAt(source=str(tiny_folder(KIND)))))
    with pytest.raises(ValueError, match=r"base.source: shipped has no base model; leave it out"):
        CaptionerLoader("shipped", LoadConfig(base=BaseAt(source=str(moved))))


def test_bfloat16_is_a_setting_of_the_command(base: Path, tmp_path: Path) -> None:
    wrap(job(base, tmp_path / "artifact"))
    described = {}
    for speed, dtype in (("auto", torch.float32), ("bf16", torch.bfloat16)):
        captioner = load_captioner(str(tmp_path / "artifact"), speed=speed)  # type: ignore[arg-type]
        assert isinstance(captioner, VlmCaptioner)
        assert captioner.model.dtype == dtype
        (described[speed],) = captioner.describe(BEFORES[:1], AFTERS[:1], beams=2, candidates=2)
    assert described["bf16"].best.caption == CAPTIONS[0]
    assert described["bf16"].best.log_probability == pytest.approx(described["auto"].best.log_probability, abs=0.05)
