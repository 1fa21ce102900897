"""Supervised tuning: samples, trained parts, losses, adapters, the artifact, also merged and by plain transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from benchmarks.tiny_vlm import TinyConfig, make_tiny, without_videos
from idc.config import load
from idc.data.images import encode_png
from idc.systems.sft.captioner import load_captioner
from idc.systems.sft.config import SftJob
from idc.systems.sft.task import train
from idc.training.artifact import ADAPTER, read_artifact
from idc.training.context import LocalContext
from idc.training.data import EvalLoader
from idc.vlm.base import find_base, load_model
from idc.vlm.chat import Chat, caption_turns
from idc.vlm.config import FAMILIES, PAIR_PROMPT, BaseConfig, GenerateConfig, PromptConfig, TuneConfig
from idc.vlm.merging import merge
from idc.vlm.samples import DialogueSamples, collate_samples
from idc.vlm.system import SftTask
from idc.vlm.tuning import find_tuned, group_of, load_adapter, load_found, merge_adapter, write_tuned
from tests.vlm.artifacts import TEXT, speaking_folder
from tests.vlm.folders import samples, write_pairs
from tests.vlm.models import TEXTS, found, model, picture, tiny_folder

PARTS = {"tower": {"lr": 1e-3}, "projector": {"lr": 1e-3}}
TUNES: dict[str, dict[str, Any]] = {
    "lora": {"lora": {"rank": 4}},
    "lora and parts": {"lora": {"rank": 4}, **PARTS},
    "all linears": {"lora": {"rank": 4, "targets": "all"}},
    "full": {"language": "full", **PARTS},
    "projector": {"language": "frozen", "projector": {"lr": 1e-3}},
}
SMALL = {
    "captions": "one", "generation": {"max_new_tokens": 8},
    "train": {"epochs": None, "steps": 2, "batch_size": 4, "log_every": 1, "precision": "fp32", "group_by_length": 2},
}  # fmt: skip


def job_of(kind: str, folder: Path, settings: Mapping[str, Any], runs: Path | str = "runs") -> SftJob:
    given = {"pairs": str(folder), "base": {"source": str(tiny_folder(kind))}, "runs": str(runs), **SMALL}
    return load(SftJob, None, {**given, **settings})


@cache
def tuned(kind: str, name: str, folder: Path, runs: Path) -> Path:
    """The run of a small tuning."""
    job = job_of(kind, folder, {"tune": {**TUNES[name], "language_optim": {"lr": 3e-2}}, "train.clip_norm": 0})
    run = runs / f"{kind} {name}".replace(" ", "-")
    train(job.model_dump(mode="json"), LocalContext(run))
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def task_of(kind: str, tune: Mapping[str, Any]) -> SftTask:
    base = found(kind)
    torch.manual_seed(0)
    net = load_model(base.folder, BaseConfig(source=str(base.folder)))
    return SftTask(net, base.family, load(TuneConfig, None, tune), GenerateConfig(max_new_tokens=24))


def test_each_group_has_its_rate_and_the_matrices_b_of_lora_plus_theirs() -> None:
    task = task_of("internvl", {"lora": {"rank": 4, "plus": 16}, "language_optim": {"lr": 1e-4, "weight_decay": 0.1},
                                "tower": {"lr": 2e-6}, "projector": {"lr": 1e-5, "schedule": "constant",
                                "warmup_share": 0, "weight_decay": 0.1}})  # fmt: skip
    groups = {group["name"]: group for group in task.param_groups()}
    rates = {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()}
    assert rates == {
        "lora_a": (1e-4, 0.1), "lora_b": (pytest.approx(16e-4), 0.1), "tower": (2e-6, 0.0),
        "projector": (1e-5, 0.1), "projector_vectors": (1e-5, 0.0),
    }  # fmt: skip
    assert all(p.ndim == 1 for p in groups["projector_vectors"]["params"])
    assert groups["projector"]["schedule"] == "constant"
    assert groups["tower"]["schedule"] == "linear_warmup_cosine"


def test_the_adapter_of_another_model_is_refused(folders: dict[str, Path], runs: Path) -> None:
    """By its name, as the two language models have equal shapes, and by its shapes."""
    artifact = read_artifact(tuned("internvl", "lora", folders["pairs"], runs) / "artifact")
    other = make_tiny(TinyConfig(family="internvl", width=48), TEXTS, runs / "other")
    net = load_model(tiny_folder("qwen2_5_vl"), BaseConfig(source="-"))
    refused = r"does not fit this base model .* it was trained on .*base\.source=/path"
    with pytest.raises(ValueError, match=refused):
        load_adapter(artifact.path / ADAPTER, net, found("qwen2_5_vl").name)
    assert artifact.base is not None
    with pytest.raises(ValueError, match=refused):
        load_adapter(artifact.path / ADAPTER, load_model(other, BaseConfig(source="-")), artifact.base)


def batch_of(task: SftTask, dataset: DialogueSamples, count: int) -> dict[str, Any]:
    return {**collate_samples([dataset.get(index, 0) for index in range(count)], task.family), "num_samples": count}


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("internvl", "full", {"language", "tower", "projector"}),
        ("qwen3_vl", "full", {"language", "tower", "projector"}),
        ("llava_onevision", "lora", set()),
        ("llava_onevision", "projector", {"projector"}),
        ("qwen2_5_vl", "lora and parts", {"tower", "projector"}),
        ("qwen2_5_vl", "all linears", set()),
    ],
)
def test_exactly_the_wanted_parts_are_trained_and_all_of_them_get_a_gradient(
    kind: str, name: str, expected: set[str], folders: dict[str, Path]
) -> None:
    task = task_of(kind, TUNES[name])
    with torch.no_grad():
        for key, parameter in task.model.named_parameters():
            if ".lora_B." in key:
                parameter.normal_(std=0.02)  # at 0 it hides the gradient of A
    task.training_step(batch_of(task, samples(kind, folders["pairs"]), 4))[0].backward()
    for key, parameter in task.model.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert reached == parameter.requires_grad, key
    trained = {key for key, parameter in task.model.named_parameters() if parameter.requires_grad}
    adapted = {key.partition(".lora_")[0] for key in trained if ".lora_" in key}
    assert {group_of(key, task.family, task.tune) for key in trained if ".lora_" not in key} == expected
    in_language = {key for key in adapted if "language_model" in key}
    assert len(in_language) == (2 * 7 if "lora" in TUNES[name] else 0)
    assert (adapted > in_language) == (name == "all linears")
    shared = task.model.named_parameters(remove_duplicate=False)
    assert task.checkpoint_keys() == {f"model.{key}" for key, parameter in shared if parameter.requires_grad}


@pytest.mark.parametrize(
    "tune", [TUNES["lora and parts"], TUNES["projector"], {"lora": {"rank": 4}, "tower": {"lr": 1e-3}}]
)
def test_trained_parts_of_a_bfloat16_base_are_float32(tune: dict[str, Any], folders: dict[str, Path]) -> None:
    """Whichever parts are trained: under autocast they meet frozen ones in bfloat16."""
    net = load_model(tiny_folder("qwen2_5_vl"), BaseConfig(source="-", dtype="bfloat16"))
    task = SftTask(net, found("qwen2_5_vl").family, load(TuneConfig, None, tune), GenerateConfig(max_new_tokens=2))
    norms = {id(p) for module in net.modules() if isinstance(module, nn.LayerNorm) for p in module.parameters()}
    for key, parameter in net.named_parameters():
        assert (parameter.dtype == torch.float32) == (parameter.requires_grad or id(parameter) in norms), key
    with torch.autocast("cpu", torch.bfloat16):
        loss = task.training_step(batch_of(task, samples("qwen2_5_vl", folders["pairs"]), 2))[0]
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p.requires_grad)


def test_adapters_under_autocast_take_their_input_as_it_is_and_compute_the_same(folders: dict[str, Path]) -> None:
    """Not a float32 copy of it, which autocast casts back; the loss and the gradients are those with the copy."""
    net = load_model(tiny_folder("qwen2_5_vl"), BaseConfig(source="-", dtype="bfloat16"))
    torch.manual_seed(0)
    task = SftTask(
        net, found("qwen2_5_vl").family, load(TuneConfig, None, {"lora": {"rank": 4, "dropout": 0}}), GenerateConfig()
    )
    batch = batch_of(task, samples("qwen2_5_vl", folders["pairs"]), 2)
    inputs: list[torch.dtype] = []
    for name, module in net.named_modules():
        if ".lora_A." in name:
            module.register_forward_pre_hook(lambda _, args: inputs.append(args[0].dtype))

    def step() -> tuple[float, list[torch.Tensor]]:
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.training_step(batch)[0]
        loss.backward()
        gradients = [parameter.grad for parameter in task.parameters() if parameter.grad is not None]
        task.zero_grad()
        return loss.item(), gradients

    loss, gradients = step()
    assert set(inputs) == {torch.bfloat16}
    for module in net.modules():
        if isinstance(module, BaseTunerLayer):
            module.cast_input_dtype_enabled = True
    loss_with_copies, gradients_with_copies = step()
    assert set(inputs) == {torch.bfloat16, torch.float32}
    assert loss == loss_with_copies
    torch.testing.assert_close(gradients, gradients_with_copies, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_the_loss_is_the_mean_over_a_samples_tokens_then_over_samples(kind: str, folders: dict[str, Path]) -> None:
    """Against the logits of the untouched model, sample by sample."""
    task = task_of(kind, TUNES["lora"]).eval()
    dataset = samples(kind, folders["instructions"])
    alone = []
    for index in range(4):
        batch = collate_samples([dataset.get(index, 0)], task.family)
        ids, learned = batch["input_ids"], batch["learned"]
        inputs = {key: batch[key] for key in (*task.family.pixel_keys, *task.family.language_keys, "attention_mask")}
        with torch.no_grad():
            logits = model(kind)(input_ids=ids, **inputs).logits
        each = F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")
        alone.append(float(each[learned[0, 1:]].mean()))
    with torch.no_grad():
        assert float(task.training_step(batch_of(task, dataset, 4))[0]) == pytest.approx(sum(alone) / 4, abs=2e-6)


def test_validation_scores_what_a_model_that_sees_says(tmp_path: Path) -> None:
    """Overfitted on eight pairs whose captions only the images tell apart, and validated on these."""
    write_pairs(tmp_path / "pairs", train=0, val=8, sizes=((64, 64),))
    family = found("internvl").family
    dataset = DialogueSamples(str(tmp_path / "pairs"), "val", Chat(family), PromptConfig(), 0, validation=True)
    task = task_of("internvl", {"language": "full", **PARTS})
    loader = EvalLoader(dataset, 4, 0, 1, lambda chosen: collate_samples(chosen, family))
    optimizer = torch.optim.AdamW([p for p in task.train().parameters() if p.requires_grad], lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = task.training_step(batch_of(task, dataset, 8))[0]
        loss.backward()
        optimizer.step()
        if loss < 0.02:
            break
    scores = task.eval().validate(loader, LocalContext(tmp_path / "run"))
    assert scores["loss"] == pytest.approx(float(loss.detach()), abs=0.02)
    assert (scores["distinct_captions"], scores["CIDEr"] > 9) == (3, True)


@pytest.mark.parametrize(
    ("kind", "name"), [("internvl", "lora"), ("internvl", "full"), ("qwen2_5_vl", "lora and parts")]
)
def test_an_artifact_loaded_and_merged_captions_as_the_trained_model(
    kind: str, name: str, folders: dict[str, Path], runs: Path, tmp_path: Path
) -> None:
    artifact, merged = read_artifact(tuned(kind, name, folders["pairs"], runs) / "artifact"), tmp_path / "merged"
    assert f"{artifact.path} merged into {tiny_folder(kind)}" in merge(artifact, merged)
    assert "is complete already" in merge(artifact, merged)
    captioner = load_captioner(artifact.path)
    plain = load_model(merged, BaseConfig(source=str(merged)))
    ours, theirs, before = captioner.model.state_dict(), plain.state_dict(), model(kind).state_dict()
    assert ours.keys() == theirs.keys() == before.keys(), "nothing of the adapters is left"
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    moved = {key for key in ours if not torch.equal(ours[key], before[key])}
    assert all("language_model" in key or "lm_head" in key for key in moved) == (name == "lora")
    assert len(moved) >= 14


def test_peft_reads_the_adapter_and_merges_it_to_the_same_weights(folders: dict[str, Path], runs: Path) -> None:
    """And what is stored of an adapter is the adapter alone."""
    run, source = tuned("internvl", "lora", folders["pairs"], runs), str(tiny_folder("internvl"))
    artifact = read_artifact(run / "artifact")
    assert (
        json.loads((artifact.path / ADAPTER / "adapter_config.json").read_text())["base_model_name_or_path"] == source
    )
    base = load_model(tiny_folder("internvl"), BaseConfig(source="-"))
    theirs = PeftModel.from_pretrained(base, str(artifact.path / ADAPTER)).merge_and_unload().state_dict()
    found_base, settings = find_tuned(artifact, BaseConfig(source=source)), load(TuneConfig, None, TUNES["lora"])
    ours = load_found(artifact, *found_base, BaseConfig(source=source), settings).state_dict()
    assert theirs.keys() == ours.keys()
    for key, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[key], rtol=0, atol=1e-7)
    (checkpoint,) = run.glob("checkpoints/step_*/torch.pt")
    stored = sum(tensor.numel() for tensor in torch.load(checkpoint, weights_only=True)["task"].values())
    assert stored == 2 * 4 * sum((32 + 32, 32 + 16, 32 + 16, 32 + 32, 32 + 64, 32 + 64, 64 + 32))
    assert (artifact.path / "model.safetensors").stat().st_size < 100


def test_merging_into_bfloat16_rounds_once(folders: dict[str, Path], runs: Path) -> None:
    artifact = read_artifact(tuned("internvl", "lora", folders["pairs"], runs) / "artifact")
    assert artifact.base is not None
    nets = [
        load_model(tiny_folder("internvl"), BaseConfig(source="-", dtype=dtype)) for dtype in ("bfloat16", "float32")
    ]
    nets[1].load_state_dict({name: tensor.float() for name, tensor in nets[0].state_dict().items()})
    for net in nets:
        load_adapter(artifact.path / ADAPTER, net, artifact.base)
        merge_adapter(net)
    rounded, exact = (net.state_dict() for net in nets)
    assert all(torch.equal(rounded[name], exact[name].to(torch.bfloat16)) for name in exact)


def test_a_folder_of_something_else_is_not_overwritten(folders: dict[str, Path], runs: Path, tmp_path: Path) -> None:
    artifact = read_artifact(tuned("internvl", "lora", folders["pairs"], runs) / "artifact")
    merge(artifact, tmp_path / "merged")
    with pytest.raises(ValueError, match="exists and is not this model; choose another folder, or pass --overwrite"):
        merge(artifact, tmp_path / "merged", dtype="bfloat16")
    merge(artifact, tmp_path / "merged", dtype="bfloat16", overwrite=True)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"


AUTO = "AutoProcessor.from_pretrained(folder)"


def auto_processor(folder: str | Path) -> Any:
    """As AutoProcessor, without the part that reads videos."""
    settings = json.loads((Path(folder) / "processor_config.json").read_text())
    images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    settings.pop("image_processor", None)  # AutoImageProcessor has read it
    processor = without_videos(settings.pop("processor_class"))
    return processor(images, tokenizer, chat_template=tokenizer.chat_template, **settings)


def trained_projector(kind: str, folder: Path, prompt: str) -> Path:
    """An artifact whose projector was trained, at 3,136 pixels an image, of a base whose processor_config.json has the
    image processor in it."""
    source = Path(shutil.copytree(speaking_folder(kind), folder / "base"))
    images = json.loads((source / "preprocessor_config.json").read_text())
    settings = json.loads((source / "processor_config.json").read_text())
    (source / "processor_config.json").write_text(json.dumps({**settings, "image_processor": images}))
    base = find_base(BaseConfig(source=str(source), max_pixels=3136))
    model = load_model(source, BaseConfig(source=str(source)))
    state = {f"model.{name}": value for name, value in model.state_dict().items() if base.family.is_projector(name)}
    job = {
        "pairs": "-", "base": {"source": str(source), "max_pixels": 3136}, "prompt": {"text": prompt},
        "generation": {"max_new_tokens": 12}, "tune": {"language": "frozen", "projector": {}},
    }  # fmt: skip
    return write_tuned(
        folder / "artifact", system="sft", config={"job": job}, state=state, model=model, base=base, card=""
    )


@pytest.mark.parametrize(("kind", "prompt"), [*((kind, PAIR_PROMPT) for kind in FAMILIES), ("qwen2_5_vl", TEXT)])
def test_plain_transformers_sees_and_says_what_the_artifact_does(
    kind: str, prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the code in the model card, run as it is but for :func:`auto_processor`."""
    artifact, merged = trained_projector(kind, tmp_path, prompt), tmp_path / "merged"
    merge(read_artifact(artifact), merged)
    images = [picture(1, 100, 100), picture(2, 90, 250)]
    captioner = load_captioner(artifact)
    family = captioner.family
    for name, image in zip(("before.png", "after.png"), images, strict=True):
        (merged / name).write_bytes(encode_png(image))
    _, _, code = (merged / "README.md").read_text().partition("```python\n")
    code = code.partition("```")[0]
    assert code.count(AUTO) == 1
    names: dict[str, Any] = {"auto_processor": auto_processor}
    monkeypatch.chdir(merged)
    exec(code.replace(AUTO, "auto_processor(folder)"), names)
    chat, sizes = Chat(family), [(100, 100), (90, 250)]
    assert names["inputs"]["input_ids"][0].tolist() == chat.prompt(caption_turns(PromptConfig(text=prompt)), sizes)
    pixels = names["inputs"]["pixel_values"]
    assert torch.equal(pixels[:, 0] if kind == "llava_onevision" else pixels, family.pixels(images)["pixel_values"])
    assert capsys.readouterr().out.strip() == captioner([images[0]], [images[1]])[0] != ""
