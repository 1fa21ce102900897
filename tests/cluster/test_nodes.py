"""The application on several nodes: data, training, sweeps and Serve, with the results of one machine."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.config import ClusterConfig
from cluster.tune import run_sweep
from idc.data.store import iter_rows
from tests.cluster.nodes import Host, Nodes, nodes
from tests.invariants.harness import Run, largest_difference
from tests.sweep.small import small_sweep, write_yaml
from tests.systems.procap.world import World

pytestmark = pytest.mark.slow

SHARDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
"""Without it ZeRO-3 keeps parameters as small as these whole."""
STAGES: dict[str, dict[str, Any]] = {
    "zero 1": {"train.engine": "deepspeed", "train.zero_stage": 1},
    "zero 3": {"train.engine": "deepspeed", "train.zero_stage": 3, "train.deepspeed_extra": SHARDED},
}
DONE_S = 400.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """One node with two CPUs, until :func:`trained` has replaced it by two with one each."""
    with nodes(1, cpus=2) as found:
        yield found


def train(cluster: Nodes, world: World, folder: Path) -> None:
    """Stage 1 of ProCap with every ZeRO stage, each on two workers of one CPU."""
    runs = []
    for name, stage in STAGES.items():
        job = world.pretrain({"train.steps": 6, "train.num_workers": 2, "train.eval_every": 3, **stage})
        payload = job.model_dump(mode="json")
        runs.append({"entry": "idc.systems.procap.task:pretrain", "folder": str(folder / name), "payload": payload})
    done(cluster, ["-m", "tests.cluster.drive", cluster.address, json.dumps(runs)], folder / "output")


def done(cluster: Nodes, command: list[str], output: Path) -> str:
    """Run Python on the head to its end, which must be good; its output."""
    output.parent.mkdir(exist_ok=True)
    process = cluster.python(command, log=output)
    code = process.wait(DONE_S)
    text = output.read_text(errors="replace")
    assert code == 0, text
    return text


@pytest.fixture(scope="module")
def trained(cluster: Nodes, world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs on one node of two CPUs, and on two nodes of one each, which are the cluster from then on."""
    folders = {name: tmp_path_factory.mktemp(name.replace(" ", "-")) for name in ("one node", "two nodes")}
    train(cluster, world, folders["one node"])
    cluster.kill(1)
    cluster.add()
    cluster.add()
    train(cluster, world, folders["two nodes"])
    return folders


@pytest.mark.parametrize("stage", STAGES)
def test_two_nodes_train_as_one_does(trained: dict[str, Path], stage: str) -> None:
    """To the last bit: gloo adds two numbers in either order, and two workers add nothing else."""
    one, two = (Run(trained[name] / stage) for name in ("one node", "two nodes"))
    assert len(one.losses) == 6
    assert two.losses == one.losses
    assert [line["grad_norm"] for line in two.log] == [line["grad_norm"] for line in one.log]
    assert largest_difference(one.state, two.state) == 0


def test_two_nodes_build_what_one_machine_does(
    cluster: Nodes, trained: dict[str, Path], world: World, tmp_path: Path
) -> None:
    """Two actors of a CPU each, so one on each node."""
    out = tmp_path / "procedures"
    build = {
        "procedures": out, "build.pairs": world.pairs, "build.tokenizer": world.tokenizer, "build.depth": 2,
        "build.num_keyframes": 2, "build.temperature": 0.001, "build.store_features": "true", "build.actors": 2,
        "build.cpus_per_actor": 0.6, "cluster.address": cluster.address,
    }  # fmt: skip
    settings = [f"{key}={value}" for key, value in build.items()]
    done(cluster, ["jobs/pretrain_procap.py", "only=procedures", *settings], tmp_path / "output")
    made, expected = (sorted(iter_rows(folder), key=lambda row: row["pair_id"]) for folder in (out, world.procedures))
    assert [row["pair_id"] for row in made] == [row["pair_id"] for row in expected]
    assert all(np.array_equal(row["tokens"], other["tokens"]) for row, other in zip(made, expected, strict=True))


def test_a_sweep_on_two_nodes_scores_as_one_without_ray(
    cluster: Nodes, trained: dict[str, Path], world: World, tmp_path: Path
) -> None:
    """Two trials at the same time, each of most of a node's CPU."""
    rows = [
        {"label": f"{n} layers", "settings": {"explicit_modeling": False, "finetune.decoder.layers": n}} for n in (1, 2)
    ]
    job = small_sweep(world, tmp_path / "nodes", rows=rows, trials={"concurrent": 2, "cpus": 0.75})
    command = ["jobs/sweep.py", "--config", write_yaml(tmp_path / "sweep.yaml", job)]
    text = done(cluster, [*command, f"cluster.address={cluster.address}"], tmp_path / "output")
    assert "2 trials, 0 of them done before" in text
    plain = run_sweep(small_sweep(world, tmp_path / "plain", rows=rows), ClusterConfig(), local=True)
    record = json.loads((tmp_path / "nodes" / "small" / "sweep.json").read_text())
    assert record["rows"] == plain.model_dump(mode="json")["rows"]


def test_every_node_with_replicas_answers(
    cluster: Nodes, trained: dict[str, Path], world: World, tmp_path: Path
) -> None:
    """The replicas fit on two nodes only; where nodes share an address, one proxy has the port."""
    token = "a token for the test"
    args = {
        "models": {"shipped": "shipped"},
        "auth": {"tokens": [{"name": "test", "sha256": hashlib.sha256(token.encode()).hexdigest()}]},
        "scaling": {"min_replicas": 1, "max_replicas": 1, "cpus": 0.6, "front_replicas": 2, "front_cpus": 0.4},
    }
    output = tmp_path / "output"
    process = cluster.python(["-m", "tests.cluster.serve_on", cluster.address, json.dumps(args)], log=output)
    end = time.monotonic() + DONE_S
    while "\nserving" not in "\n" + output.read_text():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < end, output.read_text()
        time.sleep(0.2)
    row = next(iter_rows(world.pairs))
    for name in ("before", "after"):
        (tmp_path / f"{name}.png").write_bytes(row[name])
    captions = set()
    for number in (2, 3):
        node = cluster.node(number)
        url = f"http://{node.address if isinstance(node, Host) else '127.0.0.1'}:8000/v1/captions"
        images = [part for name in ("before", "after") for part in ("-F", f"{name}=@{tmp_path / name}.png")]
        command = ["curl", "--silent", "--show-error", "--fail-with-body", "-H", f"Authorization: Bearer {token}"]
        asked = cluster.run([*command, *images, url], stdout=subprocess.PIPE)
        answer = asked.communicate(timeout=120)[0]
        assert asked.returncode == 0, answer
        captions.add(json.loads(answer)["results"][0]["caption"])
    assert len(captions) == 1
    process.kill()
