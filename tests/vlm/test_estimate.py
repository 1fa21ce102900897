"""Operations, activations and memory on paper are those that torch counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from idc.schema import IMAGE, Turn
from idc.vlm.base import find_base, load_model
from idc.vlm.batch import Sample as Dialogue
from idc.vlm.batch import collate_encoded, encode_images
from idc.vlm.chat import Chat
from idc.vlm.config import BaseConfig, LoraConfig, TinyConfig, TuneConfig
from idc.vlm.estimate import GIB, ModelSize, SampleSize, Tuning, generation_operations, hours, memory, step_operations
from idc.vlm.family import Family
from idc.vlm.logps import token_log_probabilities
from idc.vlm.tiny import make_tiny
from idc.vlm.tuning import prepare
from tests.vlm.models import TEXTS, every_family, picture, tiny_folder
from tests.vlm.published_models import PUBLISHED

SIDE = 128
"""Of the images: four windows of Qwen2.5-VL's tower."""


@cache
def counted(kind: str) -> tuple[Any, Any, dict[str, Any], ModelSize, SampleSize]:
    """A small model with plain attention (whose products torch counts), a batch of one pair, and both on paper."""
    config = BaseConfig(source=str(tiny_folder(kind, SIDE)), attention="eager", max_pixels=None)
    family = find_base(config).family
    model = load_model(tiny_folder(kind, SIDE), config)
    batch = dialogue(family)
    tokens, length = family.num_tokens((SIDE, SIDE)), batch["input_ids"].shape[1]
    sample = SampleSize(tokens, 2, length - 2 * tokens, int(batch["learned"].sum()))
    paper = ModelSize.of(family.config.to_dict())
    # Plain attention computes also what the mask hides.
    return model, family, batch, replace(paper, language=replace(paper.language, causal=False)), sample


def dialogue(family: Family) -> dict[str, Any]:
    """A batch of one pair with its caption."""
    images = [picture(seed, SIDE, SIDE) for seed in (1, 2)]
    turns = [Turn("user", f"{IMAGE}{IMAGE} What changed?"), Turn("assistant", "the small cube was added", "caption")]
    encoded = Chat(family).encode(turns, [(SIDE, SIDE)] * 2)
    return collate_encoded([Dialogue(encoded.ids, encoded.learned, family.pixels(images))], family)


def loss(kind: str) -> Tensor:
    model, family, batch, _, _ = counted(kind)
    return -token_log_probabilities(model, batch, encode_images(model, batch, family), family)[0].sum()


def operations(kind: str, backward: bool) -> float:
    with FlopCounterMode(display=False) as counter:
        found = loss(kind)
        if backward:
            found.backward()
    return float(counter.get_total_flops())


@contextmanager
def trained(kind: str, tuning: Tuning) -> Iterator[None]:
    model, family = counted(kind)[:2]
    for name, parameter in model.named_parameters():
        part = "tower" if family.is_tower(name) else "projector" if family.is_projector(name) else "language"
        parameter.requires_grad_(getattr(tuning, part) in (True, "full"))
    if tuning.checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    yield
    model.activation_checkpointing_disable()
    model.eval()
    model.zero_grad(set_to_none=True)


@every_family
@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(language="frozen", projector=True, checkpointing=False),
        Tuning(language="full", checkpointing=False),
        Tuning(language="full", tower=True, projector=True, checkpointing=False),
        Tuning(language="full", tower=True, projector=True, checkpointing=True),
    ],
    ids=["projector", "language", "all", "checkpointed"],
)
def test_operations_of_a_step(kind: str, tuning: Tuning) -> None:
    """Exact, but that LLaVA-OneVision's newline is in no product, and that torch stops a second forward pass when it
    has what it needs."""
    _, _, _, paper, sample = counted(kind)
    with trained(kind, tuning):
        found = operations(kind, backward=True)
    close = 0.03 if tuning.checkpointing else 0.01 if kind == "llava_onevision" else 1e-9
    assert step_operations(paper, tuning, sample) == pytest.approx(found, rel=close)


@every_family
def test_operations_of_reading_a_prompt(kind: str) -> None:
    _, _, _, paper, sample = counted(kind)
    with torch.no_grad():
        assert generation_operations(paper, sample) == pytest.approx(operations(kind, backward=False), rel=1e-9)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
@pytest.mark.parametrize("language", ["lora", "full"])
def test_activations_of_a_layer(kind: Any, language: Any, tmp_path: Path) -> None:
    """Within 10 % of what autograd keeps, the bfloat16 copies of the weights not counted."""
    tune = TuneConfig(language=language, lora=LoraConfig(dropout=0) if language == "lora" else LoraConfig())
    (few, paper, tokens), (many, _, _) = (kept(kind, tune, layers, tmp_path / str(layers)) for layers in (2, 4))
    layer = paper.language
    weights = layer.matrices if language == "full" else paper.lora(64) // layer.count
    found = ((many - few) / 2 - 2 * weights) / tokens
    rank = 64 if language == "lora" else 0
    assert layer.kept(rank, dropout=False, trained=language == "full") == pytest.approx(found, rel=0.1)


def kept(kind: Any, tune: TuneConfig, layers: int, folder: Path) -> tuple[int, ModelSize, int]:
    """Bytes that autograd keeps of one pair, other than parameters, in a small model with a bfloat16 base; the model on
    paper; tokens."""
    make_tiny(TinyConfig(family=kind, side=SIDE, width=64, layers=layers), TEXTS * 4, folder)
    config = BaseConfig(source=str(folder), dtype="bfloat16", max_pixels=None)
    family, model = find_base(config).family, load_model(folder, config)
    prepare(model, family, tune)
    batch = dialogue(family)
    found: dict[int, int] = {}
    alive = []  # so that no storage is used twice

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    saved = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with saved, torch.autocast("cpu", torch.bfloat16):
        token_log_probabilities(model, batch, encode_images(model, batch, family), family)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    total = sum(size for pointer, size in found.items() if pointer not in own)
    return total, ModelSize.of(family.config.to_dict()), batch["input_ids"].shape[1]


# -- memory and hours of the published models ----------------------------------------------------------------------

SEVEN, THREE = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct"
PAIR = SampleSize(81, text=80, learned=20)


def test_memory_of_full_tuning() -> None:
    """ADPO, table 4: 3.75 billion parameters with 16 bytes each, on two GPUs with everything sharded 30 GB each."""
    model = published(THREE)
    all_parts = Tuning(language="full", tower=True, projector=True)
    alone = memory(model, all_parts, PAIR)
    states = model.parameters * 16
    assert alone.weights + alone.gradients + alone.optimizer == pytest.approx(states + 2 * model.parameters)
    for stage, kept_whole in ((1, 10), (2, 6)):
        shared = memory(model, replace(all_parts, gpus=8, zero_stage=stage), PAIR)
        expected = model.parameters * (kept_whole + (18 - kept_whole) / 8)
        assert shared.total - shared.activations - shared.cuda == pytest.approx(expected)
    third = memory(model, replace(all_parts, gpus=8, zero_stage=3), PAIR)
    assert states / 8 < third.total - third.activations - third.cuda < states / 8 + 3 * GIB


def test_adapters_leave_the_base_in_two_bytes() -> None:
    model = published(SEVEN)
    taken = memory(model, Tuning(rank=128), PAIR)
    assert taken.weights == pytest.approx(model.parameters * 2 + model.lora(128) * 6)
    assert (taken.gradients, taken.optimizer) == (model.lora(128) * 4, model.lora(128) * 8)


def test_checkpointing_takes_less_memory_and_more_operations() -> None:
    model, plain = published(SEVEN), Tuning(checkpointing=False, micro_batch=8)
    again = replace(plain, checkpointing=True)
    assert memory(model, again, PAIR).activations < memory(model, plain, PAIR).activations / 4
    assert 1.3 < step_operations(model, again, PAIR) / step_operations(model, plain, PAIR) < 1.5


def test_hours() -> None:
    assert hours(1e12, 3600, peak=100e12, gpus=2, utilisation=0.5) == pytest.approx(0.01)


def test_a_model_of_an_unknown_kind() -> None:
    with pytest.raises(ValueError, match="no estimate for models of type 'bert'; there are qwen2_5_vl"):
        ModelSize.of({"model_type": "bert"})


def published(name: str) -> ModelSize:
    from transformers import AutoConfig

    return ModelSize.of(AutoConfig.for_model(**PUBLISHED[name].config).to_dict())
