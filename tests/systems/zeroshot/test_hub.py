"""``hf:ORG/NAME`` in the place of an artifact, with a real local server that speaks the hub's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from idc.captioning.loading import CaptionerLoader, LoadConfig, artifact_folder
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.systems.zeroshot.config import WrapJob
from idc.systems.zeroshot.wrap import wrap
from idc.training.artifact import read_artifact
from idc.vlm.config import BaseConfig
from tests.vlm.endpoint import endpoint
from tests.vlm.hub import COMMIT, point_to, serving_hub
from tests.vlm.speaking import CAPTIONS, pairs, speaking_folder

KIND = "qwen3_vl"
BEFORES, AFTERS = (list(images) for images in zip(*pairs(), strict=True))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("IDC_CACHE", str(tmp_path / "artifacts"))
    return tmp_path


@pytest.fixture
def asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a hub with the model org/tiny was asked for."""
    with serving_hub(speaking_folder(KIND)) as (url, paths):
        point_to(url, monkeypatch)
        yield paths


def test_a_model_of_the_hub_captions_and_its_size_is_named_first(
    asked: list[str], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captioner = CaptionerLoader("hf:org/tiny", LoadConfig())()
    assert captioner(BEFORES, AFTERS) == list(CAPTIONS)
    size = (speaking_folder(KIND) / "model.safetensors").stat().st_size
    line = f"downloading org/tiny at revision {COMMIT} from the hub: {size / 1e6:.1f} MB, into {cache / 'hub'}"
    assert capsys.readouterr().err.splitlines().count(line) == 1
    (config, weights) = (f"GET /org/tiny/resolve/{COMMIT}/{name}" for name in ("config.json", "model.safetensors"))
    assert asked.index(config) < asked.index(weights)

    asked.clear()
    folder = artifact_folder("hf:org/tiny")
    assert not asked, "what is here is not asked for"
    artifact = read_artifact(folder)
    assert artifact.base is not None
    assert (artifact.base.source, artifact.base.revision) == ("org/tiny", COMMIT)
    assert artifact_folder(f"hf:org/tiny@{COMMIT}") != folder, "the revision is a setting"


def test_a_model_behind_an_endpoint_needs_no_weights_here(asked: list[str], cache: Path, tmp_path: Path) -> None:
    made = tmp_path / "artifact"
    base = BaseConfig(source="org/tiny", download=True)
    with endpoint(speaking_folder(KIND)) as server:
        there = LoadConfig(endpoint=EndpointConfig(url=server.url))
        assert CaptionerLoader("hf:org/tiny", there)()(BEFORES, AFTERS) == list(CAPTIONS)
        wrap(WrapJob(base=base, weights=False, out=str(made)))
        assert CaptionerLoader(str(made), there)()(BEFORES, AFTERS) == list(CAPTIONS)
    assert [path for path in asked if "resolve" in path]
    assert not [path for path in asked if path.endswith(".safetensors")]
    with pytest.raises(ValueError, match=r"org/tiny at revision \w+ is only partly on this machine: download it once"):
        CaptionerLoader(str(made), LoadConfig())


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
