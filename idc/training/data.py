"""Batches for training and validation, whose content does not depend on workers, threads, accumulation or restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from idc.training.config import TrainConfig
from idc.training.task import SAMPLES, Batch

Collate = Callable[[list[Any]], Batch]
"""Makes a batch of a list of samples; the loader adds how many they are."""


class Dataset(Protocol):
    """Random access to samples. All random draws of a sample come from :func:`sample_rng`."""

    def __len__(self) -> int: ...

    def get(self, index: int, epoch: int) -> Any:
        """The sample ``index`` as it is in ``epoch``; a pure function, called from several threads."""
        ...


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of one sample in one epoch."""
    return np.random.default_rng((seed, epoch, index))


class Loader:
    """An endless stream of training micro-batches of this rank.

    The samples stand in one global row: epoch after epoch, each a permutation by (seed, epoch). Micro-batch n of the
    run is the n-th piece of ``batch_size`` samples of that row (it may reach over the end of an epoch, nothing is
    dropped), and this rank's batch is the rank-th slice of it.

    Args:
        dataset: the training split.
        batch_size: samples of one micro-batch over all ranks; divisible by ``world_size``.
        collate: makes a batch of a list of samples.
        prefetch: batches prepared ahead in the background; 0 prepares them in the caller.
        threads: how many of them at the same time.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        collate: Collate,
        prefetch: int = 2,
        threads: int = 1,
    ):
        if len(dataset) == 0:
            raise ValueError("the training split has no samples")
        if batch_size % world_size:
            raise ValueError(f"a micro-batch of {batch_size} samples cannot be cut into {world_size} equal parts")
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.collate = collate
        self.prefetch = prefetch
        self.threads = threads
        self._order: dict[int, np.ndarray] = {}

    @classmethod
    def from_config(cls, dataset: Dataset, collate: Collate, train: TrainConfig, rank: int, world_size: int) -> Loader:
        return cls(
            dataset,
            train.micro_batch_size,
            train.seed,
            rank,
            world_size,
            collate,
            prefetch=train.prefetch,
            threads=train.loader_threads,
        )

    def samples(self, micro_step: int) -> list[tuple[int, int]]:
        """(index, epoch) of this rank's samples in micro-batch ``micro_step`` of the run."""
        size = self.batch_size // self.world_size
        start = micro_step * self.batch_size + self.rank * size
        return [self._sample(position) for position in range(start, start + size)]

    def _sample(self, position: int) -> tuple[int, int]:
        epoch, offset = divmod(position, len(self.dataset))
        if epoch not in self._order:
            for old in [e for e in self._order if e < epoch - 1]:
                del self._order[old]
            self._order[epoch] = np.random.default_rng((self.seed, epoch)).permutation(len(self.dataset))
        return int(self._order[epoch][offset]), epoch

    def _load(self, samples: Sequence[tuple[int, int]]) -> Batch:
        return _batch(self.dataset, self.collate, samples)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batches from micro-step ``start`` on, without end. Close the iterator to stop the background threads."""
        if self.prefetch == 0:
            while True:
                yield self._load(self.samples(start))
                start += 1
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="batches")
        waiting: deque[Future[Batch]] = deque()
        try:
            while True:
                while len(waiting) < self.prefetch:
                    waiting.append(pool.submit(self._load, self.samples(start)))
                    start += 1
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class EvalLoader:
    """One pass over a split in its own order (epoch 0); every rank gets each ``world_size``-th sample.

    Args:
        batch_size: samples of one batch of one rank; the last may be smaller.
        limit: take only so many samples of the split, evenly spread.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int, rank: int, world_size: int, collate: Collate, limit: int | None = None
    ):
        count = len(dataset)
        if count == 0:
            raise ValueError("the validation split has no samples")
        taken = count if limit is None else min(limit, count)
        self.indices = [(i * count) // taken for i in range(taken)][rank::world_size]
        self.dataset = dataset
        self.batch_size = batch_size
        self.collate = collate

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.indices), self.batch_size):
            yield _batch(self.dataset, self.collate, [(i, 0) for i in self.indices[start : start + self.batch_size]])


def _batch(dataset: Dataset, collate: Collate, samples: Sequence[tuple[int, int]]) -> Batch:
    """The batch of these samples, (index, epoch) each."""
    return {**collate([dataset.get(index, epoch) for index, epoch in samples]), SAMPLES: len(samples)}


@dataclass(frozen=True)
class Loaders:
    """What a run reads."""

    train: Loader
    validation: EvalLoader | None = None


class OnDevice:
    """Iterates over a loader's batches on ``device``."""

    def __init__(self, loader: EvalLoader, device: torch.device):
        self.loader = loader
        self.device = device

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            yield to_device(batch, self.device)


def to_device(value: Any, device: torch.device) -> Any:
    """``value`` with all tensors in its mappings, lists and tuples on ``device``."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (str, bytes, int, float)):
        return type(value)(to_device(item, device) for item in value)
    return value
