from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from idc.training.config import TrainConfig
from idc.training.data import EvalLoader, Loader, Mixture, sample_rng


class Numbers:
    """Sample i of epoch e is (i, e), and takes a random time."""

    def __init__(self, size: int, broken: int | None = None):
        self.size, self.broken = size, broken
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.size

    def get(self, index: int, epoch: int) -> tuple[int, int, float]:
        self.threads.add(threading.current_thread().name)
        time.sleep(float(sample_rng(0, epoch, index).uniform(0, 0.002)))
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        return index, epoch, float(sample_rng(5, epoch, index).random())


def collate(samples: list[tuple[int, int, float]]) -> dict[str, list[tuple[int, int, float]]]:
    return {"samples": samples}


def loader(
    data: Any, batch_size: int, seed: int = 0, world_size: int = 1, collate: Any = collate, **train: Any
) -> Loader:
    """The loader of rank 0."""
    return Loader(data, collate, TrainConfig(steps=1, batch_size=batch_size, seed=seed, **train), 0, world_size)


def take(loader: Loader, count: int, start: int = 0) -> list[tuple[int, int, float]]:
    batches = loader.batches(start)
    taken = [sample for batch in itertools.islice(batches, count) for sample in batch["samples"]]
    batches.close()
    return taken


class Sentences(Numbers):
    """Samples with lengths, which depend on the epoch too."""

    def get(self, index: int, epoch: int) -> Any:
        return index, epoch, self.length(index, epoch)

    def length(self, index: int, epoch: int) -> float:
        return float(sample_rng(9, epoch, index).integers(5, 500))


class Named(Numbers):
    """Samples that name their data set."""

    def __init__(self, size: int, name: str):
        super().__init__(size)
        self.name = name

    def get(self, index: int, epoch: int) -> Any:
        return self.name, index, epoch

    def length(self, index: int, epoch: int) -> float:
        return float((index * 7 + epoch) % 10)


class Tensors(Numbers):
    """Samples of 2 MiB, with the process that made them."""

    def get(self, index: int, epoch: int) -> Any:
        return os.getpid(), torch.from_numpy(sample_rng(3, epoch, index).normal(size=(8, 8))).repeat(64, 64)


def stack(samples: list[Any]) -> dict[str, Any]:
    return {"process": samples[0][0], "image": torch.stack([image for _, image in samples])}


def test_the_order_of_a_data_set_is_the_recorded_one() -> None:
    """Runs of earlier versions go on, and are repeated, with the same samples."""
    found = [loader(Numbers(10), 4, 0).samples(step) for step in range(3)]
    assert found == [
        [(4, 0), (6, 0), (2, 0), (7, 0)],
        [(3, 0), (5, 0), (9, 0), (0, 0)],
        [(8, 0), (1, 0), (9, 1), (1, 1)],
    ]
    second = loader(Numbers(5), 8, 3, 2)
    assert second.samples(1) == [(2, 1), (3, 1), (4, 2), (0, 2)]
    large = loader(Numbers(3692), 32, 0)
    row = np.array([large.samples(step) for step in range(400)], dtype=np.int64)
    recorded = "bae50ae6eed66ee70b46f56af6df110db241226fd98742097603c2cbe0bccf46"
    assert hashlib.sha256(row.tobytes()).hexdigest() == recorded


RECORDED_MIXTURE = "2ba9fe73de816eb6c13aaf6b5aa60a3bedc05703739ebe138632ad44b80e59a3"


def mixture() -> Mixture:
    return Mixture({"large": Named(50, "large"), "small": Named(3, "small"), "middle": Named(7, "middle")}, 4)


STREAMS = {
    "one data set": (lambda: Sentences(50), {}),
    "mixture": (mixture, {}),
    "by length": (lambda: Sentences(50), {"group_by_length": 2}),
    "mixture by length": (mixture, {"group_by_length": 2}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_step_has_the_same_samples_however_it_is_cut(name: str) -> None:
    """Accumulated 8x1 as 1x8, one worker as two, and from any step on; 50 or 60 samples are no multiple of 8."""
    make, options = STREAMS[name]

    def steps(accumulation: int = 1, workers: int = 1, start: int = 0) -> list[list[Any]]:
        """The samples of each of the first 20 steps, sorted within a micro-batch."""
        train = TrainConfig(steps=20, batch_size=8, grad_accumulation=accumulation, num_workers=workers, **options)
        size = train.micro_batch_size // workers
        count = (20 - start) * accumulation
        loaders = [Loader(make(), collate, train, rank, workers) for rank in range(workers)]
        ranks = [take(each, count, start * accumulation) for each in loaders]
        micro = [[sample for rank in ranks for sample in rank[step * size :][:size]] for step in range(count)]
        return [list(itertools.chain(*micro[i : i + accumulation])) for i in range(0, len(micro), accumulation)]

    whole = steps()
    assert steps(accumulation=8) == whole
    assert steps(accumulation=2) == whole
    assert steps(start=7) == whole[7:]
    assert steps(accumulation=4, start=7) == whole[7:]
    assert [sorted(step) for step in steps(workers=2)] == [sorted(step) for step in whole]
    pairs = steps(accumulation=2, workers=2, start=3)
    assert [sorted(step[:4]) for step in pairs] == [sorted(step[:4]) for step in whole[3:]]
    assert [sorted(step) for step in pairs] == [sorted(step) for step in whole[3:]]
    assert len({tuple(step) for step in whole}) == 20


def test_updates_in_a_row_get_the_micro_batches_of_one_step() -> None:
    """Of two ranks, each of two micro-batches of a step; resumed in the middle too."""
    train = TrainConfig(steps=1, batch_size=8, grad_accumulation=2)
    for rank in range(2):
        once, twice = (Loader(Numbers(20), collate, train, rank, 2, updates) for updates in (1, 2))
        expected = [once.samples(number) for step in (0, 0, 1, 1, 2, 2) for number in (2 * step, 2 * step + 1)]
        assert [twice.samples(number) for number in range(12)] == expected
        assert [sample[:2] for sample in take(twice, 2, start=4)] == [*expected[4], *expected[5]]


def test_grouping_orders_the_windows_of_an_epoch_by_length() -> None:
    """1000 samples in steps of 16: every epoch has all of them, and a step's lengths are close together."""
    data = Sentences(1000)
    plain, grouped = (take(loader(data, 16, 1, group_by_length=window), 250) for window in (0, 8))  # four epochs
    small = take(loader(Sentences(5), 8, 3, group_by_length=4), 10)
    assert sorted((epoch, index) for index, epoch, _ in small) == [(e, i) for e in range(16) for i in range(5)]
    for epoch in range(4):
        rows = [row[1000 * epoch : 1000 * epoch + 1000] for row in (plain, grouped)]
        assert sorted(rows[0]) == sorted(rows[1])
        assert {sample[1] for sample in rows[1]} == {epoch}
        head = -epoch * 1000 % 16
        for start in range(head + 128, 1000, 128):  # a window holds the samples that the permutation has there
            assert sorted(rows[0][start : start + 128]) == sorted(rows[1][start : start + 128])

    def spread(row: list[Any]) -> float:
        steps = [[length for _, _, length in row[i : i + 16]] for i in range(0, 4000, 16)]
        return float(np.mean([max(step) - min(step) for step in steps]))

    assert spread(grouped) < 0.2 * spread(plain)
    order = [np.mean([length for *_, length in grouped[i : i + 16]]) for i in range(0, 128, 16)]
    assert order != sorted(order), "the steps of a window are shuffled"


def test_an_epoch_of_a_mixture_is_all_of_its_parts_in_the_recorded_order() -> None:
    mixed = Mixture({"a": Named(4, "a"), "b": Named(9, "b")}, 0)
    row = np.array([mixture().locate(index, epoch) for epoch in range(3) for index in range(60)], dtype=np.int64)
    assert hashlib.sha256(row.tobytes()).hexdigest() == RECORDED_MIXTURE
    for epoch in range(3):
        seen = [mixed.get(index, epoch) for index in range(13)]
        assert sorted(seen) == [("a", i, epoch) for i in range(4)] + [("b", i, epoch) for i in range(9)]
    orders = {tuple(mixed.get(index, epoch)[1] for index in range(4, 13)) for epoch in range(10)}
    assert len(orders) > 5, "a part has another order in every epoch"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixture({"a": Named(3, "a"), "b": Named(0, "b")}, 0), "data set 'b' has no samples; leave it out"),
        (lambda: loader(Numbers(3), 4, 0, group_by_length=2), "data set has none .no method `length`"),
        (lambda: take(loader(Mixture({"a": Numbers(9)}, 0), 4, 0, group_by_length=2), 1), "a has none"),
        (lambda: loader(Numbers(0), 4, 0), "no samples"),
        (lambda: loader(Numbers(3), 5, 0, 2), "5 samples cannot be cut into 2"),
        (lambda: EvalLoader(Numbers(0), 4, 0, 1, collate), "no samples"),
        (lambda: take(loader(Numbers(10, broken=3), 4, 0), 5), "sample 3 is broken"),
    ],
)
def test_what_cannot_be_loaded_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_processes_make_the_same_batches_and_end(capfd: pytest.CaptureFixture[str]) -> None:
    """Also while they are still at work, without a word."""

    def batches(processes: int, start: int) -> list[Any]:
        stream = loader(Tensors(10), 4, 6, collate=stack, prefetch=8, loader_processes=processes).batches(start)
        found = list(itertools.islice(stream, 7))
        stream.close()
        return found

    state = torch.get_rng_state()
    here, there = batches(0, 5), batches(2, 5)
    assert torch.equal(torch.get_rng_state(), state), "torch's generator was used"
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one["image"], other["image"])
        assert one["num_samples"] == other["num_samples"] == 4
    assert {batch["process"] for batch in here} == {os.getpid()}
    assert len({batch["process"] for batch in there} - {os.getpid()}) == 2
    assert not multiprocessing.active_children()
    assert capfd.readouterr().err == ""


def test_background_threads_change_nothing_and_stop() -> None:
    plain = take(loader(Numbers(10), 4, 0, prefetch=0), 9)
    dataset = Numbers(10)
    before = threading.active_count()
    assert take(loader(dataset, 4, 0, prefetch=6, loader_threads=3), 9) == plain
    assert len(dataset.threads) > 1
    assert threading.active_count() == before


def test_validation_sees_every_sample_once() -> None:
    seen = []
    for rank in range(3):
        split = EvalLoader(Numbers(11), 2, rank, 3, collate)
        batches = list(split)
        assert len(batches) == len(split)
        seen += [sample[0] for batch in batches for sample in batch["samples"]]
    assert sorted(seen) == list(range(11))
    assert EvalLoader(Numbers(11), 2, 0, 1, collate, limit=20).indices == list(range(11))


class Alternating(Numbers):
    """Every second sample is unchanged, the others are of three kinds in turn; the last ten are of an unknown one."""

    def strata(self) -> list[str | None]:
        kinds = [("add", "none", "color", "none", "move", "none")[index % 6] for index in range(self.size - 10)]
        return [*kinds, *[None] * 10]


def test_a_part_of_the_validation_split_holds_every_kind_of_sample_in_proportion() -> None:
    data = Alternating(110)
    strata = data.strata()
    for limit in (11, 22, 55, 109):
        indices = EvalLoader(data, 8, 0, 1, collate, limit=limit).indices
        assert len(set(indices)) == limit
        assert indices == sorted(indices)
        chosen = [strata[index] for index in indices]
        for kind in set(strata):
            assert abs(chosen.count(kind) - limit * strata.count(kind) / len(strata)) < 1, (limit, kind)


def test_every_run_and_any_number_of_ranks_validate_on_the_same_part() -> None:
    whole = EvalLoader(Alternating(110), 8, 0, 1, collate, limit=31).indices
    shares = [EvalLoader(Alternating(110), 3, rank, 4, collate, limit=31).indices for rank in range(4)]
    assert sorted(itertools.chain(*shares)) == whole
    drawn = EvalLoader(Numbers(110), 8, 0, 1, collate, limit=31).indices
    assert drawn == sorted(set(drawn))
    assert len({b - a for a, b in itertools.pairwise(drawn)}) > 2, "a regular distance follows periods of the rows"
