"""Settings of an application: all faults at once, before Ray is started; the shipped files are right."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ray.serve.schema import ServeDeploySchema

from idc.config import ConfigError, load
from idc.data.text import Vocabulary
from idc.training.artifact import CONFIG, WEIGHTS, write_artifact
from serve.app import build, default_settings
from serve.config import CommandConfig, ServeConfig
from tests.serve.command import free_port

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "serve" / "configs"


def test_without_a_model_auto_is_served_on_this_machine_alone_and_else_the_models_that_are_named() -> None:
    def served(*argv: str) -> CommandConfig:
        config, *settings = [*default_settings(argv)[1:], *argv]
        pairs = [word.removeprefix("--").partition("=")[::2] for word in settings]
        return load(CommandConfig, config, {key: None if value == "null" else value for key, value in pairs})

    config = served("port=8001")
    assert (config.models, config.auth.tokens, config.host) == ({"auto": "auto"}, {}, "127.0.0.1")
    assert list(config.preflight()) == []
    assert served("--models.mine=runs/mine/artifact").models == {"mine": "runs/mine/artifact"}


def deployment(name: str) -> tuple[dict[str, Any], ServeDeploySchema]:
    """A file for ``serve deploy``, and as Serve reads it."""
    text = yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))
    return text, ServeDeploySchema.model_validate(text)


def test_the_production_file_is_one_that_serve_and_we_know_entirely() -> None:
    text, schema = deployment("production.yaml")
    (application,) = schema.applications
    assert application.import_path == "serve.app:build"
    assert set(text) <= set(ServeDeploySchema.model_fields)  # Serve itself takes keys that it does not know
    assert set(text["http_options"]) <= set(type(schema.http_options).model_fields)
    assert set(text["applications"][0]) <= set(type(application).model_fields)
    assert load(ServeConfig, overrides=application.args).auth.tokens


def test_the_file_for_a_language_model_has_the_keys_of_ray_serve_llm_and_ours() -> None:
    from ray.llm._internal.serve.core.configs.llm_config import LLMConfig

    text, schema = deployment("language_model.yaml")
    model, ours = schema.applications
    (settings,) = model.args["llm_configs"]
    assert set(settings) <= set(LLMConfig.model_fields)
    LLMConfig.model_validate(settings)
    config = load(ServeConfig, overrides=ours.args)
    assert config.loading.endpoint is not None
    assert config.loading.endpoint.url.endswith(f":{text['http_options']['port']}{model.route_prefix}/v1")


GOOD: dict[str, Any] = {"models": {"a": "runs/a"}}


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"auth": {"tokens": {"me": "secret"}}}, ["auth.tokens.me: "]),
        ({"auth": {"origins": ["https://*.example.org"]}}, ["auth.origins.0: "]),
        ({"models": {}}, ["models: empty; name at least one"]),
        ({"models": {"auto": "auto"}, "loading": {"endpoint": {"url": "http://x/v1"}}}, ["models: auto runs here"]),
        ({"limits": {"waiting_pairs": 127, "timeout_s": 0}}, ["limits.waiting_pairs: ", "limits.timeout_s: "]),
        ({"scaling": {"min_replicas": 3}}, ["scaling.min_replicas: 3"]),
        ({"scaling": {"max_pair": 4}}, ["scaling.max_pair: no such setting; did you mean 'max_pairs'?"]),
    ],
)
def test_every_fault_is_named_with_its_place(changes: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        build({**GOOD, **changes})
    assert len(refused.value.errors) == len(faults), refused.value.errors
    for fault in faults:
        assert any(line.startswith(f"args of serve.app:build: {fault}") for line in refused.value.errors), fault


def test_what_cannot_be_loaded_is_a_fault_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    models = {"champion": "models:/captioner@champion"}
    config = load(CommandConfig, overrides={**GOOD, "models": models, "port": free_port()})
    fault = "models.champion: models:/ sources need tracking_uri (or MLFLOW_TRACKING_URI)"
    assert list(config.preflight()) == [fault]
    with pytest.raises(ConfigError, match=re.escape(fault)):
        build({**GOOD, "models": models})
    weights, words = {"w": torch.zeros(2)}, Vocabulary(["red"])
    for name in ("good", "cut", "deep"):
        write_artifact(tmp_path / name, system="procap", config={}, state_dict=weights, vocabulary=words)
    (tmp_path / "cut" / WEIGHTS).write_bytes(b"{}")
    (tmp_path / "deep" / CONFIG).write_bytes(b"[" * 100_000)
    models = {name: str(tmp_path / name) for name in ("good", "cut", "deep")}
    models["registered"] = "models:/captioner@champion"
    cut, deep, registered = load(CommandConfig, overrides={**GOOD, "models": models, "port": free_port()}).preflight()
    assert re.match(rf"models\.cut: .*{WEIGHTS} is damaged", cut)
    assert re.match(r"models\.deep: .*nested too deep", deep)
    assert registered == "models.registered: models:/ sources need tracking_uri (or MLFLOW_TRACKING_URI)"


@pytest.mark.parametrize("auth", [{}, {"auth": {}}, {"auth": {"tokens": {}}}])
def test_a_cluster_serves_nobody_without_tokens(auth: dict[str, Any]) -> None:
    """There, a proxy, a sidecar or a forwarded port makes others seem to be on this machine."""
    with pytest.raises(ConfigError, match=r"auth\.tokens: empty.*openssl rand -hex 32.*sha256sum"):
        build({**GOOD, **auth})


def test_the_command_names_what_is_missing_and_what_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [sys.executable, "-m", "serve.app", f"port={port}", "models.mine=runs/mine/artifact"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert run.returncode == 2
    assert f"port: cannot listen on 127.0.0.1:{port} (Address already in use); try port={port + 1}" in run.stderr
    assert "models.mine: runs/mine/artifact is not an artifact (it has no config.json)" in run.stderr
    with pytest.raises(ConfigError, match=r"host: '0\.0\.0\.0' needs auth\.tokens"):
        load(CommandConfig, overrides={**GOOD, "host": "0.0.0.0"})
