"""The application on Ray Serve, seen from outside by HTTP: versions, replicas that die, a redeployment under requests.

One deployment for all tests; the order of the tests is the order of its life.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from idc.training.artifact import artifact_identity
from serve.backend import EncodedPair, Options
from serve.captioner import ServedCaptioner
from tests.serve.bodies import picture, upload
from tests.serve.command import free_port
from tests.serve.load import load
from tests.serve.local import TOKEN, caption, tokens_of
from tests.serve.waiting import until

pytestmark = pytest.mark.ray
PAIRS = [EncodedPair(picture(shade=40 * n), picture(shade=40 * n + 20)) for n in range(5)]
FORMS = {model: [upload(pair, model=model) for pair in PAIRS] for model in ("champion", "folder")}


@dataclass
class Deployed:
    """The application and its inputs."""

    url: str
    args: dict[str, Any]
    folders: dict[str, Path]
    """Version in the registry -> the artifact it was made from."""
    mlflow: Any

    def post(self, pairs: list[EncodedPair], **options: Any) -> httpx2.Response:
        return self.client().post("/v1/captions", **upload(*pairs, **options))

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120)

    def promote(self, version: str) -> None:
        self.mlflow.set_registered_model_alias("captioner", "champion", version)

    def version(self) -> str:
        """The current version of the champion."""
        answer = self.post(PAIRS[:1], model="champion").raise_for_status().json()
        return str(answer["version"])


def perturbed(artifact: Path, target: Path, factor: float) -> Path:
    """The same captioner with other weights, so that its confidences differ."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(artifact, target)
    weights = target / "model.safetensors"
    save_file({name: tensor * factor for name, tensor in load_file(weights).items()}, weights)
    return target


@pytest.fixture(scope="module")
def app(
    ray_session: None, artifact: str, mlflow_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    """Two models, one of them the champion of a registry with three versions, of which the third is broken."""
    from mlflow import MlflowClient
    from ray import serve

    from serve.app import build
    from serve.deployment.application import APPLICATION

    folder = tmp_path_factory.mktemp("app")
    uri = f"sqlite:///{shutil.copyfile(mlflow_database, folder / 'mlflow.db')}"
    mlflow = MlflowClient(tracking_uri=uri)
    run_id = mlflow.create_run(mlflow.create_experiment("idc", (folder / "mlartifacts").as_uri())).info.run_id
    mlflow.create_registered_model("captioner")
    folders = {f"models:/captioner/{n}": perturbed(Path(artifact), folder / f"made-{n}", 1 + n / 50) for n in (1, 2, 3)}
    (folders["models:/captioner/3"] / "model.safetensors").write_bytes(b"broken")
    for version, made in folders.items():
        mlflow.log_artifacts(run_id, str(made), version[-1])
        mlflow.create_model_version("captioner", f"runs:/{run_id}/{version[-1]}", run_id)
    mlflow.set_registered_model_alias("captioner", "champion", "1")
    port = free_port()
    args = {
        "models": {"champion": "models:/captioner@champion", "folder": artifact},
        "auth": {"tokens": tokens_of(tester=TOKEN)},
        "scaling": {"min_replicas": 2, "max_replicas": 2, "cpus": 0.5, "max_pairs": 4},
        "tracking_uri": uri,
    }
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "WARNING"})
    serve.run(build(args), name=APPLICATION)
    yield Deployed(f"http://127.0.0.1:{port}", args, folders, mlflow)
    serve.shutdown()


@pytest.mark.parametrize("model", ["champion", "folder"])
def test_captions_are_those_of_the_model_that_was_asked(app: Deployed, artifact: str, model: str) -> None:
    answer = app.post(PAIRS, model=model).raise_for_status().json()
    version = {"champion": "models:/captioner/1", "folder": f"sha256:{artifact_identity(artifact)[:12]}"}[model]
    assert answer["version"] == version
    own = caption(ServedCaptioner(str(app.folders.get(version, artifact))), PAIRS, [Options()] * len(PAIRS))
    found = [[(one["caption"], one["log_probability"]) for one in result["candidates"]] for result in answer["results"]]
    for one, expected in zip(found, own, strict=True):
        assert [text for text, _ in one] == [text for text, _ in expected.captions]
        assert [value for _, value in one] == pytest.approx([value for _, value in expected.captions], abs=1e-4)
    assert answer["timing"]["largest_batch"] <= 4  # the request was cut into pieces


def test_a_new_champion_takes_over_without_a_failed_request(app: Deployed) -> None:
    with load(app.client, FORMS["champion"]) as results:
        app.promote("2")
        until(lambda: results.versions[-1] == "models:/captioner/2" or not results.all_answered(), "version 2 answers")
    assert results.all_answered(), (results.faults, set(results.statuses), results.versions[-1])
    assert set(results.versions) == {"models:/captioner/1", "models:/captioner/2"}
    expected = caption(ServedCaptioner(str(app.folders["models:/captioner/2"])), PAIRS[:1], [Options()])[0]
    answer = app.post(PAIRS[:1], model="champion").json()["results"][0]
    assert answer["log_probability"] == pytest.approx(expected.captions[0][1], abs=1e-4)


def test_a_champion_that_cannot_be_loaded_leaves_the_one_before_in_place(app: Deployed) -> None:
    app.promote("3")
    with app.client() as client:
        until(lambda: "models:/captioner/3 cannot be served" in client.get("/v1/models").text, "3 is refused")
    assert app.version() == "models:/captioner/2"
    app.promote("1")  # a rollback
    with app.client() as client:

        def healed() -> bool:
            served = client.get("/v1/models").text
            return "cannot be served" not in served and app.version() == "models:/captioner/1"

        until(healed, "version 1 answers")


def test_requests_of_a_replica_that_is_killed_are_answered_by_another(app: Deployed) -> None:
    import ray
    from ray.util import list_named_actors

    with load(app.client, FORMS["folder"]) as results:
        names = [entry["name"] for entry in list_named_actors(all_namespaces=True) if "#Model#" in entry["name"]]
        assert len(names) == 2
        ray.kill(ray.get_actor(names[0], namespace="serve"))
        results.wait_for(30)
    assert results.all_answered(), (results.faults, set(results.statuses), results.versions[-1])
