"""Tokens a second: interleaving, counting, and the file of a measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from idc.captioning.throughput import ThroughputJob, measure_throughput, time_interleaved
from idc.config import load
from idc.data.store import iter_rows
from idc.data.text import words
from idc.training.artifact import num_parameters, read_artifact
from tests.captioning.toy import ToyCaptioner
from tests.systems.procap.world import World


def test_captioners_take_turns_and_the_first_round_is_not_counted() -> None:
    calls: list[str] = []

    def named(name: str) -> ToyCaptioner:
        def say(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
            calls.append(name)
            return ["no change"] * len(befores)

        return ToyCaptioner(say)

    image = np.zeros((4, 4, 3), np.uint8)
    seconds = time_interleaved([named("a"), named("b")], [image], [image], "cpu", 2)
    assert calls == ["a", "b"] * 3
    assert [len(own) for own in seconds] == [2, 2]
    assert all(second > 0 for own in seconds for second in own)


def test_a_measurement_is_counted_as_the_papers_do(world: World, captioner_artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "speed.json"
    settings = {"artifacts": {"one": str(captioner_artifact), "two": str(captioner_artifact)}, "pairs": world.pairs,
                "num_pairs": 3, "rounds": 1, "device": "cpu", "out": str(out)}  # fmt: skip
    table = measure_throughput(load(ThroughputJob, None, settings))
    rows = [row for _, row in zip(range(3), iter_rows(world.pairs, split="test"), strict=False)]
    tokens = 1 + max(len(words(text)) for row in rows for text in row["captions"])
    result = json.loads(out.read_text())
    assert (result["pairs"], result["tokens"]) == (3, tokens)
    (seconds,) = result["captioners"]["two"]["seconds"]
    assert f"{num_parameters(captioner_artifact):,} parameters  {3 * tokens / seconds:>9,.0f} tokens" in table
    with pytest.raises(ValueError, match=r"^out: .*speed.json' exists; .* --overwrite"):
        measure_throughput(load(ThroughputJob, None, settings))
    measure_throughput(load(ThroughputJob, None, {**settings, "rounds": 2}), overwrite=True)
    assert len(json.loads(out.read_text())["captioners"]["two"]["seconds"]) == 2


def test_parameters_are_those_of_all_weights_of_an_artifact(captioner_artifact: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    own = sum(tensor.numel() for tensor in read_artifact(captioner_artifact).state_dict().values())
    tokenizer = sum(
        tensor.numel() for tensor in load_file(captioner_artifact / "tokenizer" / "model.safetensors").values()
    )
    assert num_parameters(captioner_artifact) == own + tokenizer
