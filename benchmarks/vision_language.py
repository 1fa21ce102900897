"""The vision-language stack at a small size, random weights: rates and memory of training and generation by family, one
vision pass where there could be two, and what a step of the loop costs besides the model.

Each family is measured in a process of its own, whose memory belongs to it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from benchmarks.measurement import Measurement, by_turns, peak_memory_mib, this_environment
from benchmarks.processes import apart, say, scratch
from idc.config import ConfigModel, load

_WORDINGS = (
    "the small red metal cube was added",
    "the large blue rubber sphere has moved to the left",
    "there is no difference between the two images",
)


class VlmBenchmarkConfig(ConfigModel):
    """A small vision-language model of each family."""

    families: tuple[Literal["qwen2_5_vl", "llava_onevision", "internvl", "qwen3_vl"], ...] = Field(
        ("qwen2_5_vl", "llava_onevision", "internvl", "qwen3_vl"), min_length=1
    )
    """Families to measure."""
    width: int = Field(192, ge=16, multiple_of=16)
    """Width of language model and tower."""
    layers: int = Field(4, ge=1)
    """Layers of language model and tower."""
    side: int = Field(64, ge=32, multiple_of=16)
    """Side of the images, in patches of 8 pixels."""
    num_pairs: int = Field(16, ge=1)
    """Pairs of a batch."""
    new_tokens: int = Field(16, ge=2)
    """Tokens of an answer in generation."""
    steps: int = Field(8, ge=1)
    """Training steps in a round of the loop, after two that do not count."""
    repeats: int = Field(5, ge=1)
    """Timed rounds."""
    threads: int = Field(2, ge=1)
    """Torch threads."""
    device: str = "cpu"
    """Torch device, e.g. cuda."""


def measure_vision_language(config: VlmBenchmarkConfig) -> Iterator[Measurement]:
    """Rows of each family; see :func:`measure_family`."""
    where = this_environment(config.threads, config.device)
    for kind in config.families:
        say(f"vlm: {kind}")
        rows = apart(measure_family, kind, config.model_dump(mode="json"))
        for row in rows:
            yield Measurement(part="vlm", environment=where, **row)


def measure_family(kind: str, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a family, as arguments of :class:`benchmarks.measurement.MeasuredRow`."""
    import torch

    config = load(VlmBenchmarkConfig, None, dict(settings))
    torch.set_num_threads(config.threads)
    with scratch() as folder:
        parts = _Parts(kind, config, folder)
        return [
            _rate(f"generation, {kind}", parts, parts.generate, lambda: parts.generated_tokens),
            _rate(f"training, {kind}", parts, parts.step, lambda: parts.trained_tokens),
            _two_captions(kind, parts),
            _loop(kind, parts, folder),
        ]


class _Parts:
    """A small model of a family, its task and a batch."""

    def __init__(self, kind: str, config: VlmBenchmarkConfig, folder: Path):
        import torch

        from idc.systems.sft.config import SftJob
        from idc.training.task import SAMPLES
        from idc.vlm.base import find_base, load_model
        from idc.vlm.chat import Chat
        from idc.vlm.config import TinyConfig
        from idc.vlm.samples import DialogueSamples, collate_samples
        from idc.vlm.sft import SftTask
        from idc.vlm.tiny import make_tiny

        size = {"width": config.width, "layers": config.layers, "side": config.side}
        tower = {"tower_width": config.width, "tower_layers": config.layers, "patch": 8}
        base = make_tiny(load(TinyConfig, None, {"family": kind, **size, **tower}), _WORDINGS * 4, folder / "base")
        self.config, self.device = config, torch.device(config.device)
        group = {"lr": 1e-4}
        self.job = load(
            SftJob,
            None,
            {
                "pairs": str(_write_pairs(folder / "pairs", 4 * config.num_pairs, config.side)),
                "base.source": str(base),
                "base.dtype": "float32",
                "base.max_pixels": config.side**2 if config.side >= 56 else 3136,
                "tune": {"language": "full", "language_optim": group, "tower": group, "projector": group},
                "generation.max_new_tokens": config.new_tokens,
                "validation_samples": 1,
                "train": {
                    "epochs": None,
                    "steps": config.steps + 2,
                    "batch_size": config.num_pairs,
                    "precision": "fp32",
                    "group_by_length": 0,
                    "keep_best": None,
                    "log_every": 1,
                    "checkpoint_every": 10**6,
                    "cpus_per_worker": config.threads,
                    "tracking": {"enabled": False},
                },
            },
        )
        base_model = find_base(self.job.base)
        self.family, chat = base_model.family, Chat(base_model.family)
        model = load_model(base_model.folder, self.job.base, self.device)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.task = SftTask(model, self.family, self.job.tune, self.job.generation).to(self.device)
        data = DialogueSamples(self.job.pairs, "train", chat, self.job.prompt, 0)
        batch = collate_samples([data.get(index, 0) for index in range(config.num_pairs)], self.family)
        checked = DialogueSamples(self.job.pairs, "val", chat, self.job.prompt, 0, validation=True)
        asked = collate_samples([checked.get(index, 0) for index in range(config.num_pairs)], self.family)
        count = {SAMPLES: config.num_pairs}  # which the loop's loader adds
        self.batch, self.asked = (_moved({**collated, **count}, self.device) for collated in (batch, asked))
        self.trained_tokens = int(batch["attention_mask"].sum())
        self.optimizer = torch.optim.AdamW(self.task.param_groups(), lr=1e-4)
        self.passes = self.generated_tokens = 0
        tower_module = model.model.visual if hasattr(model.model, "visual") else model.model.vision_tower
        tower_module.register_forward_hook(self._count)
        self.loaded = self.forget()

    def _count(self, *_: Any) -> None:
        self.passes += 1

    def step(self) -> None:
        """A training step without the loop: forward, backward, clip, optimizer."""
        import torch

        self.task.train()
        loss, _ = self.task.training_step(self.batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.task.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def generate(self) -> None:
        from idc.vlm.generate import generate

        self.task.eval()
        pixels = {key: self.asked[key] for key in self.family.pixel_keys}
        prompt = {**self.asked["prompt"], **pixels}
        beams = generate(self.task.model, prompt, self.task.encode(self.asked), self.family, self.job.generation)
        self.generated_tokens = sum(len(best.ids) for best, *_ in beams)

    def sync(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def memory(self) -> float:
        """MiB at the highest since :meth:`forget`."""
        import torch

        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return peak_memory_mib()

    def forget(self) -> float:
        """Start the peak anew; MiB that are in use."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: the peak becomes what is used now
        return self.memory()


def _rate(title: str, parts: _Parts, action: Callable[[], None], tokens: Callable[[], int]) -> dict[str, Any]:
    parts.forget()
    parts.passes = 0
    action()
    passes = parts.passes
    seconds = by_turns({"": action}, parts.config.repeats, parts.sync)[""]
    return {
        "title": title,
        "unit": "tokens/s",
        "above": [tokens() / second for second in seconds],
        "more": {
            "tokens": tokens(),
            "parameters": f"{parts.parameters / 1e6:.2f} M",
            "vision_passes": passes,
            "MiB_above_the_loaded_model": round(parts.memory() - parts.loaded, 1),
        },
    }


def _two_captions(kind: str, parts: _Parts) -> dict[str, Any]:
    """Log-probabilities of two captions of each pair, as preference tuning needs them: the images are encoded and the
    prompt is read for each, or once."""
    import torch

    from idc.vlm.logps import answer_log_probabilities

    batch = {key: value for key, value in parts.batch.items() if key not in ("prompt", "shuffled")}
    model, family = parts.task.model.eval(), parts.family
    prompts, answers = [], []
    for ids, seen, learned in zip(batch["input_ids"], batch["attention_mask"].bool(), batch["learned"], strict=True):
        prompts.append(ids[seen & ~learned].tolist())
        answers.append(ids[learned].tolist())
    images = [(2 * pair, 2 * pair + 1) for pair in range(len(prompts))]

    @torch.no_grad()
    def score(shared: bool) -> None:
        for count in (2,) if shared else (1, 1):
            encoded, each = parts.task.encode(batch), [[answer] * count for answer in answers]
            answer_log_probabilities(model, prompts, each, encoded, batch, images, family)

    passes = {}
    for shared in (True, False):
        parts.passes = 0
        score(shared)
        passes[shared] = parts.passes
    seconds = by_turns({"two": lambda: score(False), "one": lambda: score(True)}, parts.config.repeats, parts.sync)
    return {
        "title": f"two captions of a pair, images encoded and prompt read for each over once for both, {kind}",
        "unit": "s",
        "above": seconds["two"],
        "below": seconds["one"],
        "better": "neither",
        "more": {"vision_passes": f"{passes[False]} and {passes[True]}"},
    }


def _loop(kind: str, parts: _Parts, folder: Path) -> dict[str, Any]:
    """A step of the real loop, with its data, logging and checks, over the same step without it."""
    from idc.systems.sft.task import train
    from idc.training.context import LocalContext

    above, below, waits = [], [], []
    for number in range(parts.config.repeats):
        run = folder / f"run-{number}"
        train(parts.job.model_dump(mode="json"), LocalContext(run, use_gpu=parts.device.type == "cuda"))
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        above.append(statistics.median(line["seconds_per_step"] for line in lines[2:]))
        waits.append(statistics.median(line["data_wait_share"] for line in lines[2:]))
        bare = []
        for _ in range(parts.config.steps):
            parts.sync()
            began = time.perf_counter()
            parts.step()
            parts.sync()
            bare.append(time.perf_counter() - began)
        below.append(statistics.median(bare))
    outside = 1 - 1 / statistics.median(long / short for long, short in zip(above, below, strict=True))
    return {
        "title": f"a training step in the loop over the model's own, {kind}",
        "unit": "s/step",
        "above": above,
        "below": below,
        "more": {"percent_outside_the_model": 100 * outside, "percent_waited_for_data": 100 * statistics.median(waits)},
    }


def _moved(batch: Mapping[str, Any], device: Any) -> dict[str, Any]:
    import torch

    return {
        key: value.to(device)
        if isinstance(value, torch.Tensor)
        else _moved(value, device)
        if isinstance(value, dict)
        else value
        for key, value in batch.items()
    }


def _write_pairs(folder: Path, count: int, side: int) -> Path:
    """A folder of pairs of noise with captions, as many of each split, stored as PNG."""
    import numpy as np

    from idc.data.images import encode_png
    from idc.data.store import DatasetFolder
    from idc.schema import ChangePair, pair_arrow_schema

    rng = np.random.default_rng(0)
    rows = []
    for split in ("train", "val"):
        for number in range(count):
            before, after = (encode_png(rng.integers(0, 256, (side, side, 3), np.uint8)) for _ in range(2))
            captions = (_WORDINGS[number % len(_WORDINGS)],)
            pair = ChangePair(f"{split}-{number}", before, after, captions=captions, split=split)
            rows.append(pair.to_row())
    pairs_folder = DatasetFolder.open_for_build(
        folder, kind="pairs", schema=pair_arrow_schema(), fingerprint="noise", config={}, num_chunks=1
    )
    pairs_folder.write_chunk(0, rows)
    pairs_folder.finish()
    return folder
