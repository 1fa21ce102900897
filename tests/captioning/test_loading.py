"""Loading options: checked against the artifact's system, part of a fingerprint where captions depend on them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from idc.captioning.calibration import CalibrateJob
from idc.captioning.loading import DEFAULTS, CaptionerLoader, LoadConfig, add_options, given_options
from idc.captioning.table import CaptionJob
from idc.config import ConfigError, load, missing_inputs
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import scoring_fingerprint
from idc.systems import load_captioner
from serve.config import ServeConfig


def test_an_optimisation_that_the_system_lacks_is_refused_before_anything_is_loaded(captioner_artifact: Path) -> None:
    artifact = str(captioner_artifact)
    wrong = LoadConfig(speed={"compiled": True})
    message = "speed.compiled: procap has no such optimisation; did you mean 'compile'"
    with pytest.raises(ValueError, match=message):
        CaptionerLoader(artifact, wrong)
    with pytest.raises(ValueError, match=message):
        load_captioner(artifact, speed={"compiled": True})
    given = {"artifact": artifact, "speed.compiled": True}
    jobs = [
        load(EvaluateJob, None, {**given, "pairs": artifact, "out": "o"}),
        load(CaptionJob, None, {**given, "input": artifact, "out": "o"}),
        load(CalibrateJob, None, {**given, "pairs": artifact}),
    ]
    for job in jobs:
        assert [message in fault for fault in missing_inputs(job)] == [True]
    with pytest.raises(ConfigError, match="dtype"):
        load(CaptionJob, None, {"artifact": artifact, "input": "i", "out": "o", "dtype": "float16"})


def test_the_device_follows_the_gpus_unless_it_is_given(captioner_artifact: Path) -> None:
    artifact = str(captioner_artifact)
    assert CaptionerLoader(artifact, DEFAULTS).device == "cpu"
    assert CaptionerLoader(artifact, DEFAULTS, gpus=0.5).device == "cuda"
    assert CaptionerLoader(artifact, LoadConfig(device="cuda:1")).device == "cuda:1"
    loaded = CaptionerLoader(artifact, LoadConfig(dtype="bfloat16", speed={"cached": False}))()
    assert (loaded.dtype, loaded.speed.cached, loaded.speed.fused_attention) == ("bfloat16", False, True)  # type: ignore[attr-defined]  # ProCap's


def test_fingerprints_change_with_the_number_format_alone(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")

    def mark(**settings: object) -> str:
        given = {"references": str(tmp_path / "r.json"), "predictions": "p", "out": "o", "split": "test"}
        return scoring_fingerprint(load(EvaluateJob, None, {**given, **settings}))

    assert mark() == mark(device="cuda") == mark(**{"speed.compile": True}) != mark(dtype="bfloat16")


def test_commands_with_options_instead_of_settings() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert given_options(parser.parse_args([])) == DEFAULTS
    argv = ["--device", "cuda", "--dtype", "bfloat16", "--speed", "compile=true", "--speed", "cached=false"]
    found = given_options(parser.parse_args(argv))
    assert found == LoadConfig(device="cuda", dtype="bfloat16", speed={"compile": True, "cached": False})
    with pytest.raises(ValueError, match="--speed compile: expected NAME=true or NAME=false"):
        given_options(parser.parse_args(["--speed", "compile"]))


def test_a_server_has_the_same_settings() -> None:
    config = ServeConfig.model_validate(
        {"models": {"m": "a"}, "auth": {"mode": "loopback"}, "loading": {"dtype": "bfloat16"}}
    )
    assert config.loading == LoadConfig(dtype="bfloat16")
