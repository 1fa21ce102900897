"""A model without training as an artifact: made, read, refused, found elsewhere."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from idc.captioning.loading import BaseAt, CaptionerLoader, LoadConfig
from idc.config import load
from idc.systems import is_captioner, load_captioner
from idc.systems.zeroshot.config import WrapJob
from idc.systems.zeroshot.wrap import wrap
from idc.training.artifact import num_parameters, read_artifact
from idc.vlm.captioner import VlmCaptioner
from tests.serve.command import free_port
from tests.vlm.models import every_family, tiny_folder
from tests.vlm.speaking import CAPTIONS, pairs, speaking_folder

BEFORES, AFTERS = (list(images) for images in zip(*pairs(), strict=True))
KIND = "internvl"


def job(base: Path, out: Path, **settings: object) -> WrapJob:
    return load(WrapJob, None, {"base.source": str(base), "out": str(out), **settings})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A copy of a small model's folder, to be changed."""
    return Path(shutil.copytree(speaking_folder(KIND), tmp_path / "base"))


@every_family
def test_a_wrapped_model_captions_as_the_model_does(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    text = wrap(job(speaking_folder(kind), out))
    assert text == f"{out}: {speaking_folder(kind)}, a model of family {kind} in {speaking_folder(kind)}"
    captioner = load_captioner(str(out))
    assert isinstance(captioner, VlmCaptioner)
    assert captioner(BEFORES, AFTERS) == list(CAPTIONS)
    assert is_captioner(str(out))
    assert num_parameters(out) == 0
    assert sum(file.stat().st_size for file in out.rglob("*")) < 200_000, "the base is named, not copied"


def test_prompt_and_generation_are_those_of_the_job(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    given = {"prompt.text": "<image>, then <image>: any change?", "prompt.system": "Be short.",
             "generation.max_new_tokens": 3, "generation.beams": 2, "base.max_pixels": 4096}  # fmt: skip
    wrap(job(base, out, **given))
    found = load_captioner(str(out))
    assert isinstance(found, VlmCaptioner)
    assert found.prompt.model_dump() == {"text": given["prompt.text"], "system": "Be short."}
    assert (found.settings.max_new_tokens, found.settings.beams, found.family.max_pixels) == (3, 2, 4096)
    assert found.trained_on is None


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


def test_a_base_elsewhere_is_found_by_its_setting_and_another_model_refused(base: Path, tmp_path: Path) -> None:
    out, moved = tmp_path / "artifact", tmp_path / "moved"
    wrap(job(base, out))
    base.rename(moved)
    with pytest.raises(ValueError, match=f"there is no folder {base}; give the folder"):
        CaptionerLoader(str(out), LoadConfig())
    captioner = CaptionerLoader(str(out), LoadConfig(base=BaseAt(source=str(moved))))()
    assert captioner(BEFORES, AFTERS) == list(CAPTIONS)
    with pytest.raises(ValueError, match=r"is not the base model that the artifact was trained on, .* expected"):
        CaptionerLoader(str(out), LoadConfig(base=BaseAt(source=str(tiny_folder(KIND)))))
    with pytest.raises(ValueError, match=r"base.source: shipped has no base model; leave it out"):
        CaptionerLoader("shipped", LoadConfig(base=BaseAt(source=str(moved))))


@every_family
def test_bfloat16_is_a_setting_of_the_command(kind: str, tmp_path: Path) -> None:
    import torch

    wrap(job(speaking_folder(kind), tmp_path / "artifact"))
    found = {}
    for speed, dtype in (("auto", torch.float32), ("exact", torch.float32), ("bf16", torch.bfloat16)):
        captioner = load_captioner(str(tmp_path / "artifact"), speed=speed)  # type: ignore[arg-type]
        assert isinstance(captioner, VlmCaptioner)
        assert captioner.model.dtype == dtype
        (found[speed],) = captioner.describe(BEFORES[:1], AFTERS[:1], beams=2, candidates=2, change_map=True)
        (scores,) = captioner.score(BEFORES[:1], AFTERS[:1], [[CAPTIONS[0]]])
        assert scores[0].mean == pytest.approx(found[speed].best.log_probability, abs=0.05)
    assert found["auto"].candidates == found["exact"].candidates
    assert {one.best.caption for one in found.values()} == {CAPTIONS[0]}
    assert found["bf16"].best.log_probability == pytest.approx(found["auto"].best.log_probability, abs=0.05)
    assert found["bf16"].change_map is not None
    assert found["auto"].change_map is not None
    assert np.abs(found["bf16"].change_map - found["auto"].change_map).max() < 0.01


def test_a_server_and_a_calibration_refuse_at_once_what_they_cannot_use(base: Path, tmp_path: Path) -> None:
    from idc.captioning.calibration_job import CalibrateJob
    from serve.config import CommandConfig

    out = tmp_path / "artifact"
    wrap(job(base, out))
    base.rename(tmp_path / "moved")
    config = CommandConfig.model_validate(
        {"models": {"mine": str(out)}, "port": free_port(), "auth": {"mode": "loopback"}}
    )
    assert [f for f in config.preflight() if f.startswith("models.mine: base.source: there is no folder")]
    moved = {
        "models": {"mine": str(out)},
        "port": free_port(),
        "auth": {"mode": "loopback"},
        "loading": {"base": {"source": str(tmp_path / "moved")}},
    }
    assert not list(CommandConfig.model_validate(moved).preflight())
    (fault,) = CalibrateJob(artifact="hf:org/tiny@v1", pairs=str(tmp_path)).preflight()
    assert fault.endswith("python jobs/wrap_vlm.py base.source=org/tiny out=FOLDER")


def test_wrong_settings_of_the_job_are_named_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jobs import wrap_vlm

    monkeypatch.chdir(tmp_path)
    given = ["base.sources=org/model", "base.dtype=float16", "prompt.text=What changed?", "out=s3://bucket/artifact"]
    monkeypatch.setattr(sys, "argv", ["wrap_vlm.py", *given])
    with pytest.raises(SystemExit) as left:
        wrap_vlm.main()
    assert left.value.code == 2
    err = capsys.readouterr().err
    for fault in (
        "base.source: required, and not given",
        "base.sources: no such setting; did you mean 'source'?",
        "base.dtype: 'float16' is not one of auto, float32, bfloat16",
    ):
        assert f"\n  {fault}" in err
    monkeypatch.setattr(sys, "argv", ["wrap_vlm.py", "base.source=/nowhere", *given[2:]])
    with pytest.raises(SystemExit):
        wrap_vlm.main()
    err = capsys.readouterr().err
    assert "prompt.text: <image> is in it 0 times; it must stand for the image before and the image after" in err
    assert "out: 's3://bucket/artifact' is a URI" in err
    assert not list(tmp_path.iterdir())
