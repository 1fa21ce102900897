"""Wrong models and wrong data, through the commands: one line that says what to do, before any weights are read."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.vlm.artifacts import wrapped
from tests.vlm.folders import image
from tests.vlm.models import tiny_folder

KIND = "internvl"
Command = Callable[..., str]


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs a command that must end with an error; returns its line. Weights are not there to be read."""
    from huggingface_hub import constants
    from transformers import AutoModelForImageTextToText

    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", loaded)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)

    def run(main: Callable[[], None], *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [main.__module__, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        written = capsys.readouterr().err
        assert end.value.code not in (0, None)
        text = end.value.code if isinstance(end.value.code, str) else written
        lines = [line for line in text.splitlines() if line.strip() and "\x1b" not in line]
        assert "Traceback" not in text
        assert len(lines) <= 2, text
        return " ".join(lines)

    return run


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model's folder that may be damaged."""
    return Path(shutil.copytree(tiny_folder(KIND), tmp_path / "base"))


def wrap(refusal: Command, *arguments: str) -> str:
    from jobs import wrap_vlm

    return refusal(wrap_vlm.main, "out=artifact", *arguments)


def without(name: str) -> Callable[[Path], None]:
    return lambda base: (base / name).unlink()


def changed(name: str, **values: Any) -> Callable[[Path], None]:
    """Let a file of settings have other values."""

    def change(base: Path) -> None:
        (base / name).write_text(json.dumps({**json.loads((base / name).read_text()), **values}))

    return change


def cut(base: Path) -> None:
    """Let the weights be two files, the second of them cut off."""
    weights = load_file(base / "model.safetensors")
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(weights)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in weights if files[name] == file}, base / file, {"format": "pt"})
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (base / "model.safetensors").unlink()
    last = base / "model-00002-of-00002.safetensors"
    last.write_bytes(last.read_bytes()[:-100])


def of_another(pattern: str, kind: str) -> Callable[[Path], None]:
    """Replace files of a model by those of one of another family."""

    def replace(base: Path) -> None:
        for path in tiny_folder(kind).glob(pattern):
            shutil.copyfile(path, base / path.name)

    return replace


def template(text: str) -> Callable[[Path], None]:
    def write(base: Path) -> None:
        (base / "chat_template.jinja").write_text(text)

    return write


NO_IMAGES = template("{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}")
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (without("config.json"), "is no transformers model: it has no config.json; give the folder that has"),
    "no processor": (without("preprocessor_config.json"), "has no usable tokenizer or image processor"),
    "no template": (without("chat_template.jinja"), "has no chat template; take its chat or instruct version"),
    "another family": (changed("config.json", model_type="mllama"), "is a model of type 'mllama', which is none of"),
    "weights cut off": (cut, "model-00002-of-00002.safetensors is damaged ("),
    "tokenizer": (of_another("tokenizer*", "qwen3_vl"), "another model: the tokenizer has <IMG_CONTEXT> as None, the"),
    "image processor": (
        of_another("preprocessor_config.json", "llava_onevision"),
        "another model: the image processor is a LlavaOnevisionImageProcessorPil, the model's a GotOcr2ImageProcessor",
    ),
    "image size": (
        changed("preprocessor_config.json", size={"height": 32, "width": 32}),
        "the image processor is set to (32, 32) pixels, the model to (64, 64)",
    ),
    "template that is none": (template("{% if %}"), "the model's chat template does not take these turns (Expected an"),
    "template without images": (NO_IMAGES, "the model's chat template writes <IMG_CONTEXT> 0 times for 2 images; take"),
    "named code": (
        changed("tokenizer_config.json", auto_map={"AutoTokenizer": "evil.T"}),
        "tokenizer_config.json names code (auto_map), which this program never runs",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_folder_that_is_no_whole_model(name: str, refusal: Command, base: Path) -> None:
    damage, message = DAMAGES[name]
    damage(base)
    assert message in wrap(refusal, f"base.source={base}")


def test_a_plain_model_as_an_artifact_names_the_command_that_makes_one(
    refusal: Command, base: Path, tmp_path: Path
) -> None:
    from jobs import caption

    (tmp_path / "a.png").write_bytes(image(1, (64, 64)))
    line = refusal(caption.main, "--artifact", str(base), "a.png", "a.png")
    assert f"python jobs/wrap_vlm.py base.source={base} out=FOLDER" in line


def stranger(folder: Path, mark: Path) -> None:
    """Let a folder's image processor be a class of its own, whose file makes the folder ``mark`` on its import."""
    path = folder / "preprocessor_config.json"
    own = {"image_processor_type": "Images", "auto_map": {"AutoImageProcessor": "evil.Images"}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    (folder / "processor_config.json").unlink(missing_ok=True)
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass Images: pass\n")


@pytest.mark.parametrize("checked", [True, False])
def test_code_of_a_strangers_model_is_not_run_whatever_is_answered(
    checked: bool, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by our check of the folder nor, without it, by transformers, which asks if it is not told."""
    from transformers import AutoImageProcessor

    from idc.vlm import base as bases

    mark, answers = tmp_path / "executed", "y\n" * 9
    stranger(base, mark)
    if not checked:
        monkeypatch.setattr(bases, "refuse_code", lambda folder: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
    with pytest.raises(ValueError, match="evil.py is code, which this program never" if checked else "custom code"):
        bases.read_family(base, base, None)
    assert not mark.exists()
    with contextlib.suppress(Exception):
        AutoImageProcessor.from_pretrained(base, backend="pil")
    assert mark.exists(), "transformers ran it when it was asked to: this test could have failed"


def test_an_artifact_with_code_in_its_processor_is_refused(refusal: Command, base: Path, tmp_path: Path) -> None:
    from jobs import caption

    artifact = Path(wrapped(tmp_path / "artifact", KIND, base))
    stranger(artifact / "processor", tmp_path / "executed")
    config = json.loads((artifact / "config.json").read_text())
    config["files"].append("processor/evil.py")
    (artifact / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.png").write_bytes(image(1, (64, 64)))
    for more in ([], ["--endpoint", "http://127.0.0.1:9/v1"]):
        line = refusal(caption.main, "--artifact", str(artifact), "a.png", "a.png", *more)
        assert "evil.py is code, which this program never runs" in line
    assert not (tmp_path / "executed").exists()
