"""The benchmarks measure what they say, on tiny sizes; how fast anything is, is not asked here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.job import BenchmarkJob
from benchmarks.machine import FLAGS
from benchmarks.measurement import Stamp, by_turns, steady_rate, this_environment
from benchmarks.train_overhead import TrainOverheadConfig
from idc.config import ConfigError, load
from idc.provenance import UNKNOWN_COMMIT, commit
from tests.conftest import Command
from tests.serve.command import free_port
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[2]


def stamps(worker: int, times: list[float], rows: int = 4) -> list[Stamp]:
    return [Stamp(worker=worker, seconds=second, rows=rows) for second in times]


def test_the_steady_rate_leaves_out_the_start_and_the_idle_end() -> None:
    assert steady_rate(stamps(1, [9.0, 10.0, 11.0, 12.0]), 1) == pytest.approx(4.0)
    # the second worker starts 20 seconds later and goes on alone for 5 seconds at the end
    late = stamps(1, [float(t) for t in range(1, 31)]) + stamps(2, [20.5 + t for t in range(16)])
    assert steady_rate(late, 2) == pytest.approx(8.0, rel=0.06)


def test_a_build_too_short_to_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="1 workers took part in the build, not 2"):
        steady_rate(stamps(1, [1.0, 2.0]), 2)
    with pytest.raises(ValueError, match="too few"):
        steady_rate(stamps(1, [1.0]), 1)


def test_actions_take_turns_and_every_second_round_is_backwards() -> None:
    called: list[str] = []
    seconds = by_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 3, lambda: None)
    assert called == ["a", "b", "b", "a", "a", "b"]
    assert [len(values) for values in seconds.values()] == [3, 3]
    assert all(value > 0 for values in seconds.values() for value in values)


def test_the_commit_is_gits_or_given_where_there_is_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IDC_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert commit() == UNKNOWN_COMMIT
    monkeypatch.setenv("IDC_COMMIT", "abc1234")
    assert commit() == "abc1234"


def test_the_environment_names_machine_commit_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    where = this_environment(3)
    assert "cores" in where.machine.text()
    assert where.machine.cores >= 1
    assert set(where.machine.flags) <= set(FLAGS)
    assert where.machine.gpu is None
    assert where.torch is not None
    assert where.torch.version == torch.__version__
    assert where.torch.capability == torch.backends.cpu.get_cpu_capability()
    assert where.variables["OMP_WAIT_POLICY"] == "passive"
    assert where.threads == 3
    assert where.commit
    assert where.command.startswith("python ")
    assert where.versions["torch"]
    assert where.versions["ray"]


def test_only_the_inputs_of_the_chosen_parts_must_be_there(tmp_path: Path) -> None:
    nothing = {"pairs": str(tmp_path / "a"), "tokenizer": str(tmp_path / "b"), "procedures": str(tmp_path / "c")}
    faults = {part: len(list(load(BenchmarkJob, overrides={**nothing, "parts": [part]}).preflight()))
              for part in ("train_overhead", "build_actors", "build_memory", "decoding")}  # fmt: skip
    assert faults == {"train_overhead": 1, "build_actors": 2, "build_memory": 2, "decoding": 0}
    assert list(load(BenchmarkJob, overrides={**nothing, "skip_missing": True}).preflight()) == []
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        load(BenchmarkJob, overrides={"train_overhead.steps": 0})


def test_decoding_is_measured_on_the_real_decoder() -> None:
    import torch

    from benchmarks.decoding import DecodingConfig, measure_decoding
    from idc.systems.procap.config import DecoderConfig
    from idc.systems.procap.text_decoder import TextDecoder

    threads = torch.get_num_threads()
    torch.manual_seed(0)
    shape = DecoderConfig(width=16, heads=2, feedforward=32, layers=1)
    decoder = TextDecoder(shape, encoder_width=12, vocabulary_size=9).eval()
    once = TextDecoder(shape, encoder_width=12, vocabulary_size=9).eval()
    once.load_state_dict(decoder.state_dict())
    project, once.project = once.project, torch.nn.Sequential()
    passes: list[int] = []
    config = DecodingConfig(
        batch_size=3, steps=5, vocabulary_size=9, repeats=2, beams=2, beam_repeats=1, encoder_batch=2, threads=threads
    )
    try:
        greedy, projected, wide = measure_decoding(
            config, decoder, (once, project), torch.randn(3, 7, 12), lambda: passes.append(1)
        )
    finally:
        torch.set_num_threads(threads)
    assert [len(one.ratios) for one in (greedy, projected, wide)] == [2, 2, 1]
    for one in (greedy, projected, wide):
        assert all(ratio > 0 for ratio in one.ratios)
        assert one.above == [15 / second for second in one.more["seconds_cached"]]
        assert one.below == [15 / second for second in one.more["seconds_uncached"]]
    assert projected.above == greedy.above  # the same cached searches
    assert projected.below != greedy.below
    assert greedy.more["share_of_equal_tokens"] == 1.0
    assert greedy.more["encoder_seconds_a_pair"] > 0
    assert len(passes) == 3


@pytest.fixture
def ray_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _count(path: str) -> None:
    """Appends a byte to a file every few milliseconds, in a process of its own and in a child of it."""
    code = f"import time\nwhile True:\n    open({path!r}, 'ab').write(b'c')\n    time.sleep(0.005)"
    child = subprocess.Popen([sys.executable, "-c", code])
    while child.poll() is None:
        with open(path, "ab") as file:
            file.write(b"p")
        time.sleep(0.005)


def test_a_paused_run_and_its_children_stand_still_between_its_turns(tmp_path: Path) -> None:
    from benchmarks.processes import PausedRun, turns

    path = tmp_path / "count"
    run = PausedRun(_count, str(path))
    try:
        run.turn(lambda: path.exists() and {*b"pc"} == set(path.read_bytes()))
        processes = run.processes()
        size = path.stat().st_size
        assert [process.status() for process in processes] == ["stopped", "stopped"]
        assert path.stat().st_size == size
        run.turn(lambda: path.stat().st_size > size)
        assert all(seconds >= 0 for seconds in run.cpu_seconds().values())
    finally:
        run.close()
    assert not any(process.is_running() for process in processes)
    assert list(turns(("a", "b"), 3)) == ["a", "b", "b", "a", "a", "b"]


def test_a_run_that_ends_before_its_turns_are_over_is_an_error() -> None:
    from benchmarks.processes import PausedRun

    run = PausedRun(time.sleep, 0)
    with pytest.raises(RuntimeError, match="status 0 before its turns were over"):
        run.turn(lambda: False)
    run.close()


@pytest.mark.ray
@pytest.mark.slow
def test_a_training_step_is_timed_with_and_without_deepspeed_and_ray(ray_folder: str) -> None:
    from benchmarks.train_overhead import train_overhead
    from cluster.config import ClusterConfig
    from idc.training.config import TrainConfig

    cluster = ClusterConfig(num_cpus=2, num_gpus=0, object_store_mb=100, temp_dir=ray_folder, worker_logs=False)
    config = TrainOverheadConfig(steps=5, warmup=2, rounds=2, threads=1)
    train = TrainConfig(epochs=3, batch_size=8)
    found = list(train_overhead(config, "tests.training.toy:entry", {"size": 40}, train, cluster))
    assert [sorted(one.more["step_seconds"]) for one in found] == [
        ["deepspeed", "torch"], ["deepspeed", "ray"], ["ray", "torch"],
    ]  # fmt: skip
    for one in found:
        assert len(one.above) == len(one.below) == 2
        assert all(len(steps) >= 5 for turns in one.more["step_seconds"].values() for steps in turns)
        assert one.ratio > 0
    shares = found[1].more["cpu_percent_of_a_core"]
    assert next(iter(shares)) == "ray::RayTrainWorker"


@pytest.mark.ray
@pytest.mark.slow
def test_builds_are_timed_and_weighed(ray_folder: str, tmp_path: Path) -> None:
    from benchmarks.procedures import build_memory, build_speed
    from cluster.config import ClusterConfig
    from idc.systems.procap.procedures.config import ProceduresConfig
    from idc.vision.tokenizer.model import ImageTokenizer
    from tests.vision.scenes import TINY, pair_row, write_pairs

    pairs = write_pairs(tmp_path / "pairs", [pair_row(index, "train") for index in range(96)])
    ImageTokenizer(TINY).save(tmp_path / "tokenizer")
    build = ProceduresConfig(pairs=pairs, tokenizer=str(tmp_path / "tokenizer"), depth=1, num_keyframes=1,
                             pairs_per_chunk=2, actors=2)  # fmt: skip
    cluster = ClusterConfig(num_cpus=4, num_gpus=0, object_store_mb=100, temp_dir=ray_folder, worker_logs=False)
    speed = build_speed(build, num_pairs=96, actors=2, rounds=1, cluster=cluster)
    assert speed.ratios[0] > 0
    memory = build_memory(build, num_pairs=8, times=4, rounds=1, cluster=cluster)
    large = memory.more["processes"]["large"][0]
    assert memory.above == [large["driver_mib"] + sum(large["actors_mib"])]
    assert memory.below[0] > 100
    with pytest.raises(ValueError, match="has 96 pairs, 400 are needed"):
        build_memory(build, num_pairs=100, times=4, rounds=1, cluster=cluster)


@pytest.mark.ray
@pytest.mark.slow
def test_captioning_is_timed_and_a_long_one_is_killed_and_checked(artifact: str, world: World, ray_folder: str) -> None:
    from benchmarks.batch import BatchConfig, measure_batch
    from cluster.config import ClusterConfig

    config = BatchConfig(artifact=artifact, pairs=world.pairs, num_pairs=1200, rounds=1, count=6000, chunk_size=20,
                         batch_size=20, sample_s=0.2)  # fmt: skip
    cluster = ClusterConfig(num_cpus=2, num_gpus=0, object_store_mb=100, temp_dir=ray_folder, worker_logs=False)
    ratio, ends, whole, memory = measure_batch(config, cluster, [sys.executable, str(ROOT / "jobs" / "caption.py")])
    assert ratio.ratios[0] > 0
    assert whole.more["parts"] == 300
    assert 150 <= whole.more["parts_before_the_kill"] < 300
    assert ends.ratios[0] > 0
    assert whole.below == ratio.below
    assert len(memory.ratios) == 2, "of the run that was killed and of the one after it"
    assert min(memory.below) > 100


def test_ray_is_not_loaded_before_its_session_sets_its_environment() -> None:
    code = "import sys, benchmarks.job, cluster.train, idc.systems.procap.procedures.build; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


def test_the_job_refuses_what_it_cannot_measure(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    local = command("benchmark", f"out={tmp_path}", "--local", "procedures=.", "pairs=.", "tokenizer=.")
    assert local.returncode == 2
    assert "without Ray only these parts can be measured: captioning, decoding" in local.stderr
    absent = command("benchmark", f"out={tmp_path}", "parts=[train_overhead, build_speed]", "procedures=nowhere")
    assert absent.returncode == 2
    assert "did you mean" in absent.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.ray
@pytest.mark.slow
def test_the_command_that_serves_is_measured_beside_the_captioner_alone(world: World) -> None:
    from benchmarks.serve_command import ServeCommandConfig, serve_command
    from idc.captioning.loading import DEFAULTS, CaptionerLoader

    config = ServeCommandConfig(pairs=world.pairs, connections=(1, 2), requests=2, rounds=1, port=free_port())
    *levels, latency, memory = serve_command(config, CaptionerLoader(config.artifact, DEFAULTS))
    assert [level.title.rpartition(", ")[2] for level in levels] == ["1 connection", "2 connections"]
    assert all(0 < level.ratios[0] < 1 for level in levels), "the command captions, and does more"
    assert latency.above[0] > 0
    assert memory.above[0] > 300, "torch and Ray"


@pytest.mark.slow
def test_scoring_is_measured_beside_pycocoevalcap_and_agrees_with_it() -> None:
    from benchmarks.scoring import ScoringConfig, measure_scoring

    alone, whole, again, two = measure_scoring(ScoringConfig(pairs=40, references=3))
    assert again.below == whole.above
    assert len(two.above) == len(two.below) == 3
    assert alone.more["largest_difference_of_a_score"] < 1e-9
    assert {"tokenising", "ROUGE-L", "CIDEr"} <= alone.more["parts"][0].keys()
    assert "METEOR" in alone.more["official_parts"][0]
    assert whole.below == alone.above
    assert "2 baselines" in whole.title
