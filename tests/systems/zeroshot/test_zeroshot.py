"""A model without training as an artifact: made, read, refused, found elsewhere; and ``hf:ORG/NAME`` in its place, with
a real local server that speaks the hub's API."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from idc.captioning.contract import SearchOptions
from idc.captioning.loading import BaseAt, CaptionerLoader, LoadConfig
from idc.captioning.sources import artifact_folder, is_captioner
from idc.config import load
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.systems import load_captioner
from idc.systems.zeroshot.config import WrapJob
from idc.systems.zeroshot.wrap import wrap
from idc.training.artifact import read_artifact
from idc.vlm.captioner import VlmCaptioner
from idc.vlm.config import BaseConfig
from serve.config import CommandConfig
from tests.vlm.artifacts import CAPTIONS, pairs, taught_folder
from tests.vlm.endpoint import endpoint
from tests.vlm.hub import COMMIT, point_to, serving_hub
from tests.vlm.models import tiny_folder

BEFORES, AFTERS = (list(images) for images in zip(*pairs(), strict=True))
KIND = "internvl"


def job(base: Path, out: Path, **settings: object) -> WrapJob:
    return load(WrapJob, None, {"base.source": str(base), "out": str(out), **settings})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught_folder(KIND), tmp_path / "base"))


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
        (described[speed],) = captioner.describe(BEFORES[:1], AFTERS[:1], SearchOptions(beams=2, candidates=2))
    assert described["bf16"].best.caption == CAPTIONS[0]
    assert described["bf16"].best.log_probability == pytest.approx(described["auto"].best.log_probability, abs=0.05)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "artifacts"))
    return tmp_path


@pytest.fixture
def asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a hub with the model org/tiny was asked for."""
    with serving_hub(taught_folder(KIND)) as (url, paths):
        point_to(url, monkeypatch)
        yield paths


def test_a_model_of_the_hub_captions_and_its_size_is_named_first(
    asked: list[str], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captioner = CaptionerLoader("hf:org/tiny", LoadConfig())()
    assert captioner(BEFORES, AFTERS) == list(CAPTIONS)
    size = (taught_folder(KIND) / "model.safetensors").stat().st_size
    line = f"downloading org/tiny at revision {COMMIT} from the hub: {size / 1e6:.1f} MB, into {cache / 'hub'}"
    assert capsys.readouterr().err.splitlines().count(line) == 1
    (config, weights) = (f"GET /org/tiny/resolve/{COMMIT}/{name}" for name in ("config.json", "model.safetensors"))
    assert asked.index(config) < asked.index(weights)

    asked.clear()
    folder = artifact_folder("hf:org/tiny")
    assert not asked, "what is here is not asked for"
    artifact = read_artifact(folder)
    assert (artifact.base.source, artifact.base.revision) == ("org/tiny", COMMIT)
    assert artifact_folder(f"hf:org/tiny@{COMMIT}") != folder, "the revision is a setting"


def test_a_model_behind_an_endpoint_needs_no_weights_here(asked: list[str], cache: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "artifact"
    base = BaseConfig(source="org/tiny", download=True)
    with endpoint(taught_folder(KIND)) as server:
        there = LoadConfig(endpoint=EndpointConfig(url=server.url))
        assert CaptionerLoader("hf:org/tiny", there)()(BEFORES, AFTERS) == list(CAPTIONS)
        wrap(WrapJob(base=base, weights=False, out=str(artifact)))
        assert CaptionerLoader(str(artifact), there)()(BEFORES, AFTERS) == list(CAPTIONS)
    assert [path for path in asked if "resolve" in path]
    assert not [path for path in asked if path.endswith(".safetensors")]
    with pytest.raises(ValueError, match=r"org/tiny at revision \w+ is only partly on this machine: download it once"):
        CaptionerLoader(str(artifact), LoadConfig())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:org/tiny@v9", "hf:org/tiny@v9: the hub has no revision 'v9' of org/tiny; take a commit, branch or tag"),
        ("hf:org/other", "hf:org/other: the hub has no model org/other, or it is private: check the name, or `hf auth"),
        ("hf:tiny", "'hf:tiny' does not have the form hf:ORG/NAME or hf:ORG/NAME@REVISION"),
        ("hf:../../etc", "does not have the form|neither a folder here nor a hub id|has no model"),
    ],
)
def test_a_name_that_the_hub_does_not_have_is_one_line(name: str, message: str, asked: list[str]) -> None:
    with pytest.raises(ValueError, match=message) as error:
        CaptionerLoader(name, LoadConfig())
    assert "\n" not in str(error.value)
    assert not [path for path in asked if "resolve" in path]


def test_a_model_of_an_unknown_family_is_refused_before_its_weights_are_downloaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mllama"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    with serving_hub(tmp_path) as (url, asked):
        point_to(url, monkeypatch)
        with pytest.raises(ValueError, match="org/tiny is a model of type 'mllama', which is none of"):
            artifact_folder("hf:org/tiny")
    assert not [path for path in asked if path.startswith("GET") and path.endswith(".safetensors")]
