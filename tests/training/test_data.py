from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch

from idc.training.data import EvalLoader, Loader, OnDevice, sample_rng, to_device


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


def take(loader: Loader, count: int, start: int = 0) -> list[tuple[int, int, float]]:
    batches = loader.batches(start)
    taken = [sample for batch in itertools.islice(batches, count) for sample in batch["samples"]]
    batches.close()  # type: ignore[attr-defined]
    return taken


def test_every_epoch_is_another_order_of_all_samples() -> None:
    samples = take(Loader(Numbers(10), 4, 0, 0, 1, collate), 5)
    first, second = samples[:10], samples[10:]
    assert sorted(index for index, _, _ in first) == sorted(index for index, _, _ in second) == list(range(10))
    assert {epoch for _, epoch, _ in first} == {0}
    assert {epoch for _, epoch, _ in second} == {1}
    assert [index for index, _, _ in first] != [index for index, _, _ in second]
    assert [index for index, _, _ in first] != list(range(10))


def test_micro_batches_and_ranks_cut_the_same_row() -> None:
    whole = take(Loader(Numbers(10), 8, 3, 0, 1, collate), 6)
    assert take(Loader(Numbers(10), 2, 3, 0, 1, collate), 24) == whole
    ranks = [take(Loader(Numbers(10), 8, 3, rank, 2, collate), 6) for rank in range(2)]
    joined = [sample for step in range(6) for rank in range(2) for sample in ranks[rank][4 * step : 4 * step + 4]]
    assert joined == whole
    assert take(Loader(Numbers(10), 8, 4, 0, 1, collate), 6) != whole


def test_going_on_from_a_step_gives_the_same_batches() -> None:
    whole = take(Loader(Numbers(10), 4, 0, 0, 1, collate), 9)
    assert take(Loader(Numbers(10), 4, 0, 0, 1, collate), 4, start=5) == whole[20:]


def test_background_threads_change_nothing_and_stop() -> None:
    plain = take(Loader(Numbers(10), 4, 0, 0, 1, collate, prefetch=0), 9)
    dataset = Numbers(10)
    before = threading.active_count()
    assert take(Loader(dataset, 4, 0, 0, 1, collate, prefetch=6, threads=3), 9) == plain
    assert len(dataset.threads) > 1
    assert threading.active_count() == before


def test_an_error_of_a_sample_reaches_the_loop() -> None:
    with pytest.raises(ValueError, match="sample 3 is broken"):
        take(Loader(Numbers(10, broken=3), 4, 0, 0, 1, collate), 5)


def test_empty_and_indivisible_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Loader(Numbers(0), 4, 0, 0, 1, collate)
    with pytest.raises(ValueError, match="5 samples cannot be cut into 2"):
        Loader(Numbers(3), 5, 0, 0, 2, collate)
    with pytest.raises(ValueError, match="no samples"):
        EvalLoader(Numbers(0), 4, 0, 1, collate)


def test_validation_sees_every_sample_once() -> None:
    seen = []
    for rank in range(3):
        loader = EvalLoader(Numbers(11), 2, rank, 3, collate)
        batches = list(loader)
        assert len(batches) == len(loader)
        seen += [sample[0] for batch in batches for sample in batch["samples"]]
    assert sorted(seen) == list(range(11))
    assert EvalLoader(Numbers(100), 8, 0, 1, collate, limit=4).indices == [0, 25, 50, 75]


def test_batches_move_to_the_device() -> None:
    batch = {"x": torch.zeros(2), "deep": [{"y": torch.ones(1)}], "names": ["a", "b"], "n": 3}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == moved["deep"][0]["y"].device.type == "meta"
    assert moved["names"] == ["a", "b"]
    assert moved["n"] == 3
    on_device = OnDevice(EvalLoader(Numbers(3), 2, 0, 1, collate), torch.device("cpu"))
    assert len(list(on_device)) == len(on_device) == 2
