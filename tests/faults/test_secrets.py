"""A secret goes through settings, trainings, endpoints, registry and server, and is found in no file and no output."""

from __future__ import annotations

import logging
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.registry import Registry
from cluster.train import TrainingRun, launch
from idc.captioning.sources import ModelSources
from idc.config import ConfigError, ConfigModel, cli, load
from idc.endpoint.chat_endpoint import ChatEndpoint, EndpointError, NotAnswered, RequestConfig, RequestRefused
from idc.evaluation.provenance import command_line
from idc.mining.descriptions.config import DescribeJob
from idc.systems.twincap.config import TwinCapJob
from idc.training.config import TrainConfig
from idc.util.redaction import redacted, secret_fault
from serve.config import CommandConfig
from tests.chat_server import serving
from tests.training.test_loop import TRAIN

SECRET = "c4nary-s3cret-of-the-test"
URI = f"https://me:{SECRET}@127.0.0.1:1/x"


def files_with_the_secret(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


# -- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"failed: https://me:{SECRET}@host:80/x?a=1 (500)", "failed: https://me:***@host:80/x?a=1 (500)"),
        (f"postgresql+psycopg://idc:{SECRET}@db/mlflow", "postgresql+psycopg://idc:***@db/mlflow"),
        (f"https://{SECRET}@host/x", "https://***@host/x"),
        (f"s3://KEY:{SECRET}@bucket/a", "s3://KEY:***@bucket/a"),
        (f"https://h/x?sig={SECRET}&b=2", "https://h/x?sig=***&b=2"),
        (f"https://h/x?api_key={SECRET}", "https://h/x?api_key=***"),
        ("models:/captioner@champion, ssh://git@host/x", "models:/captioner@champion, ssh://git@host/x"),
        ("sqlite:////runs/mlflow.db and 12:30 me@example.org", "sqlite:////runs/mlflow.db and 12:30 me@example.org"),
    ],
)
def test_what_is_replaced(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert (secret_fault(text) is not None) == (SECRET in text)


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "OPENAI_API_KEY", "MLFLOW_TRACKING_PASSWORD"])
def test_values_of_secret_variables_are_replaced_wherever_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "disabled")
    assert redacted(f"the server said: {SECRET}! disabled") == "the server said: ***! disabled"


# -- settings -------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, tuple[type[ConfigModel], list[str]]] = {
    "train": (TwinCapJob, ["name=x", "pairs=p", "train.steps=1", f"train.tracking.uri={URI}"]),
    "describe, a key for its name": (DescribeJob, ["pairs=p", "out=o", f"endpoint.api_key_variable={SECRET}"]),
    "serve": (CommandConfig, ["models.a=models:/a@b", f"tracking_uri={URI}"]),
    "data on S3": (DescribeJob, [f"pairs=s3://key:{SECRET}@bucket/pairs", "out=o"]),
}


@pytest.mark.parametrize("job", SETTINGS)
def test_a_secret_as_a_setting_is_refused_and_not_shown(
    job: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IDC_ROOT", raising=False)
    schema, arguments = SETTINGS[job]
    with pytest.raises(SystemExit) as left:
        cli(schema, None, [*arguments, "--print-config"])
    assert left.value.code == 2
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert re.search(
        r"has a password or a key, and settings are written|not the name of an environment variable", said.err
    )


def test_a_secret_in_a_file_of_settings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(yaml.safe_dump({"tracking": {"uri": URI}, "steps": 1}))
    with pytest.raises(
        ConfigError, match=r"tracking\.uri: 'https://me:[*]{3}@127\.0\.0\.1:1/x' has a password"
    ) as refused:
        load(TrainConfig, str(tmp_path / "train.yaml"))
    assert SECRET not in str(refused.value)
    with pytest.raises(ValueError, match="has a password") as made:
        TrainConfig(steps=1, tracking={"uri": URI})  # type: ignore[arg-type]
    assert SECRET not in str(made.value)


def test_the_recorded_command_line_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    monkeypatch.setattr(sys, "argv", ["jobs/evaluate.py", f"url={URI}", f"prompt={SECRET}", "out=o"])
    assert command_line() == "python jobs/evaluate.py 'url=https://me:***@127.0.0.1:1/x' 'prompt=***' out=o"


# -- what runs ------------------------------------------------------------------------------------------------------


def test_a_training_leaves_no_secret_in_its_folder_and_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its environment is full of them."""
    for name in ("MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    monkeypatch.setattr(sys, "argv", ["jobs/train_twincap.py", "name=run", f"note={SECRET}"])
    train = TrainConfig.model_validate({**TRAIN, "steps": 2, "tracking": {"enabled": True}})
    with caplog.at_level(logging.INFO):
        with pytest.raises(ValueError, match=r"server at https://me:\*{3}@127\.0\.0\.1:1/x cannot be used") as refused:
            launch(TrainingRun.in_folder("tests.training.toy:entry", {}, train, tmp_path / "run"), local=True)
        assert SECRET not in str(refused.value)
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        launch(TrainingRun.in_folder("tests.training.toy:entry", {}, train, tmp_path / "run"), local=True)
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"config.json", "origin.json", "log.jsonl", "result.json", "mlflow.db"} <= written
    assert "***" in (tmp_path / "run" / "origin.json").read_text()
    assert files_with_the_secret(tmp_path) == []
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err + caplog.text


def refusing(status: int, number: int, prompt: Any) -> tuple[int, str]:
    return status, f"wrong key {SECRET}"


def endpoint(url: str) -> ChatEndpoint:
    config = RequestConfig(url=url, api_key_variable="SOME_VARIABLE", attempts=1, timeout_s=5.0)
    return ChatEndpoint(config, "judge", temperature=0.0, max_tokens=5)


def test_an_endpoint_that_returns_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an error, in what is no answer, and in an answer, which is stored."""
    monkeypatch.setenv("SOME_VARIABLE", SECRET)
    with serving() as server:
        for status, error in ((401, EndpointError), (500, NotAnswered), (400, RequestRefused)):
            server.answer = partial(refusing, status)
            with pytest.raises(error, match=r"wrong key \*\*\*") as refused:
                endpoint(server.url).ask("x")
            assert SECRET not in str(refused.value)
        server.answer = lambda number, prompt: (200, f"You sent {SECRET}.")
        assert endpoint(server.url).ask("x").text == "You sent ***."
        assert server.keys[0] == f"Bearer {SECRET}"


def test_the_registry_of_the_environment_is_shown_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's own client puts the address into its errors."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    with pytest.raises(
        ValueError, match=r"MLflow registry https://me:\*{3}@127\.0\.0\.1:1/x: request failed"
    ) as refused:
        Registry(URI, "captioner").versions()
    assert SECRET not in str(refused.value)
    with pytest.raises(ValueError, match="cannot be looked up") as other:
        ModelSources().version("models:/captioner@champion")
    assert SECRET not in str(other.value)
