"""What one GPU does, with random weights: ProCap's stage 1 and captioning at the paper's size, and steps of SFT and DPO
with adapters on a vision-language model of 3 billion weights: tokens per second, share of the peak, peak memory.

    python -m benchmarks.gpu
    python -m benchmarks.gpu peak_tflops=989          # the published peak of an H100 in bf16
    python -m benchmarks.gpu device=cpu tiny=true     # as the tests run it

Within eight minutes on one card. Writes the random model into a temporary folder, 7.5 GB.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from benchmarks.captioning import CaptioningConfig, measure_captioning
from benchmarks.measurement import OnDevice, Row, by_turns, markdown, sync_of
from benchmarks.training import TrainingConfig, count_flops, matrix_tflops, measure_training
from idc.config import cli, load

if TYPE_CHECKING:
    import torch

_WORDINGS = (
    "the small red metal cube was added",
    "the large blue rubber sphere has moved to the left",
    "there is no difference between the two images",
)
_TINY: dict[str, dict[str, Any]] = {
    "training": {
        "encoder": {"width": 32, "layers": 2, "heads": 4, "text_length": 6, "init": "normal"}, "grid": (3, 4),
        "feature_dim": 10, "codebook_size": 16, "vocabulary_size": 30, "batch_size": 4,
    },
    "captioning": {
        "tokenizer": {"image_size": 32, "channels": 8, "channel_mult": (1, 1, 2), "res_blocks": 1, "norm_groups": 4,
                      "codebook_size": 16, "latent_dim": 12},
        "encoder": {"width": 32, "layers": 2, "heads": 4, "text_length": 6, "init": "normal"},
        "decoder": {"width": 32, "layers": 2, "heads": 4, "feedforward": 64},
        "vocabulary_size": 30, "images_at_once": 4, "steps": 9,
    },
}  # fmt: skip
_TEXT = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
    "layer_types": ["full_attention"] * 36, "num_attention_heads": 16, "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}  # fmt: skip
"""Language model of Qwen2.5-VL-3B (its config.json on the hub)."""
_TOWER = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048,
    "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
"""Its tower."""


class GpuConfig(OnDevice):
    """One GPU."""

    batch_size: int = Field(32, ge=1)
    """Pairs of ProCap's steps and captions."""
    pairs: int = Field(8, ge=1)
    """Pairs of a step of the vision-language model."""
    repeats: int = Field(3, ge=1)
    """Timed rounds."""
    peak_tflops: float | None = Field(None, gt=0)
    """The device's published peak in bf16. Default: its fastest matrix product."""
    tiny: bool = False
    """Small sizes in float32, to try the command without a GPU."""
    device: str = "cuda"


def measure_gpu(config: GpuConfig) -> Iterator[Row]:
    """All rows."""
    common = {
        "device": config.device, "repeats": config.repeats, "precision": "fp32" if config.tiny else "bf16",
        "batch_size": config.batch_size,
    }  # fmt: skip
    tiny = {name: values if config.tiny else {} for name, values in _TINY.items()}
    training = load(
        TrainingConfig, None, {**common, "peak_tflops": config.peak_tflops, "threads": 1, **tiny["training"]}
    )
    yield from measure_training(training)
    yield from measure_captioning(load(CaptioningConfig, None, {**common, "threads": 1, **tiny["captioning"]}))
    peak = config.peak_tflops or matrix_tflops(training)
    with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder:
        yield from _tuning(config, Path(folder), peak)


def _tuning(config: GpuConfig, folder: Path, peak: float) -> Iterator[Row]:
    """A step of SFT and one of DPO, with adapters of rank 16 on the language model."""
    import torch

    from benchmarks.tiny_vlm import TinyConfig, make_tiny
    from idc.systems.adpo.config import AdpoJob
    from idc.systems.adpo.data import collate_preferences, samples_of
    from idc.systems.adpo.task import SYSTEM as ADPO
    from idc.systems.adpo.task import PreferenceTask
    from idc.systems.sft.config import SftJob
    from idc.systems.sft.task import SYSTEM as SFT
    from idc.training.data import to_device
    from idc.vlm.base import find_base, load_model
    from idc.vlm.chat import Chat
    from idc.vlm.samples import DialogueSamples, collate_samples

    size = {"side": 64, "patch": 16} if config.tiny else {"side": 448, "patch": 14}
    base = make_tiny(TinyConfig("qwen2_5_vl", **size), _WORDINGS * 4, folder / "base")
    device = torch.device(config.device)
    if not config.tiny:
        _enlarge(base, device)
    pairs = _write_pairs(folder / "pairs", config.pairs, size["side"])
    settings: dict[str, Any] = {
        "pairs": pairs, "captions": "one", "tune": {"lora": {"rank": 16, "dropout": 0}},
        "base": {"source": str(base), "dtype": "float32" if config.tiny else "bfloat16"},
    }  # fmt: skip
    tunings: list[tuple[str, Any, Any]] = [
        ("SFT", SFT, load(SftJob, None, settings)),
        ("DPO", ADPO, load(AdpoJob, None, {**settings, "objective": "dpo"})),
    ]
    for objective, system, job in tunings:
        model = find_base(job.base)
        chat = Chat(model.family, job.cutoff)
        task = system.task(job, load_model(model.folder, job.base, device), model.family, {})
        if isinstance(task, PreferenceTask):
            (part,) = samples_of(job, chat, None).values()
            task.set_caption_bank([part])
            samples = [part.get(index, 0) for index in range(config.pairs)]
            batch, answers = collate_preferences(samples, model.family), 2
        else:
            dialogues = DialogueSamples(job.pairs, "train", chat, job.prompt, 0)
            batch = collate_samples([dialogues.get(index, 0) for index in range(config.pairs)], model.family)
            answers = 1
        batch, task = to_device({**batch, "num_samples": config.pairs}, device), task.to(device).train()
        optimizer = torch.optim.AdamW([weight for weight in task.parameters() if weight.requires_grad], lr=1e-4)

        def step(task: Any = task, batch: Any = batch, optimizer: Any = optimizer) -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=not config.tiny):
                loss = task.training_step(batch)[0]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = by_turns({"step": step}, config.repeats, sync_of(config.device))["step"]
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
        work = count_flops(step)
        weights = sum(parameter.numel() for parameter in task.parameters()) / 1e9
        title = f"{objective} with adapters, {weights:.2f} B weights, {answers * config.pairs} captions"
        yield Row(f"{title}: captions", "captions/s", [answers * config.pairs / second for second in seconds])
        done = [work / second / 1e12 for second in seconds]
        yield Row(f"{title}: FLOP/s over the peak", "TFLOP/s", done, [peak] * len(done), more={"peak_GiB": memory})


def _enlarge(base: Path, device: torch.device) -> None:
    """Give a small model the widths and depths of the published one, with random weights in bfloat16."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    sizes = AutoConfig.from_pretrained(base, trust_remote_code=False)
    for part, values in ((sizes.text_config, _TEXT), (sizes.vision_config, _TOWER)):
        for name, value in values.items():
            setattr(part, name, value)
    with device:
        AutoModelForImageTextToText.from_config(sizes, dtype=torch.bfloat16).save_pretrained(base)


def _write_pairs(folder: Path, count: int, side: int) -> str:
    import numpy as np

    from idc.data.images import encode_png
    from idc.data.schema import ChangePair, pair_arrow_schema
    from idc.data.store import DatasetFolder

    rng = np.random.default_rng(0)
    rows = []
    for split in ("train", "val"):
        for number in range(count):
            before, after = (encode_png(rng.integers(0, 256, (side, side, 3), np.uint8)) for _ in range(2))
            captions = (_WORDINGS[number % len(_WORDINGS)],)
            rows.append(ChangePair(f"{split}-{number}", before, after, captions=captions, split=split).to_row())
    pairs = DatasetFolder.open_for_build(
        folder, kind="pairs", schema=pair_arrow_schema(), fingerprint="noise", config={}, num_chunks=1
    )
    pairs.write_chunk(0, rows)
    pairs.finish()
    return str(folder)


def main() -> None:
    config = cli(GpuConfig, __doc__, local=False, overwrite=False).config
    print(markdown(measure_gpu(config), config.device))


if __name__ == "__main__":
    main()
