"""Loading options: they reach the captioner, and are part of a fingerprint where captions depend on them."""

from __future__ import annotations

from pathlib import Path

from idc.captioning.loading import DEFAULTS, CaptionerLoader, LoadConfig
from idc.config import load
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import scoring_fingerprint
from idc.systems.procap.speed import Optimisations


def test_device_and_speed_reach_the_captioner(captioner_artifact: Path) -> None:
    artifact = str(captioner_artifact)
    assert CaptionerLoader(artifact, DEFAULTS).device == "cpu"
    assert CaptionerLoader(artifact, DEFAULTS, gpus=0.5).device == "cuda"
    assert CaptionerLoader(artifact, LoadConfig(device="cuda:1")).device == "cuda:1"
    found = {}
    for speed in ("auto", "exact", "fast", "bf16"):
        captioner = CaptionerLoader(artifact, LoadConfig(speed=speed))()
        found[speed] = captioner.speed  # type: ignore[attr-defined]  # ProCap's
    assert found["exact"] == Optimisations()
    assert {speed: chosen.bf16 for speed, chosen in found.items()} == {
        "auto": False, "exact": False, "fast": False, "bf16": True
    }  # fmt: skip
    assert found["auto"].channels_last
    assert found["fast"].channels_last


def test_fingerprints_change_with_the_number_format_alone(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")

    def mark(**settings: object) -> str:
        given = {"references": str(tmp_path / "r.json"), "predictions": "p", "out": "o", "split": "test"}
        return scoring_fingerprint(load(EvaluateJob, None, {**given, **settings}))

    assert mark() == mark(device="cuda") == mark(speed="fast") == mark(speed="exact") != mark(speed="bf16")
