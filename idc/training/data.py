"""Batches for training and validation, whose content does not depend on workers, threads, processes, accumulation or
restarts."""

from __future__ import annotations

import multiprocessing.util
import os
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from idc.training.config import TrainConfig
from idc.training.task import SAMPLES, Batch

Collate = Callable[[list[Any]], Batch]
"""Makes a batch of a list of samples; the loader adds how many they are."""

Sample = tuple[int, int]
"""(index, epoch): arguments of :meth:`Dataset.get`."""

_WINDOW, _MIXTURE = 1, 2
"""Last words of the seeds of two kinds of shuffles, so that neither repeats the other or a sample's own generator.
Not 0: numpy pads seeds with zeros."""
_SUBSET = 20
"""Seed of :func:`stratified_subset`."""


class Dataset(Protocol):
    """Random access to samples. All random draws of a sample come from :func:`sample_rng`.

    ``train.group_by_length`` also needs a method ``length(index, epoch) -> float``, e.g. the number of tokens. It is
    called in the training process once per sample and epoch, so it must not open images.

    A data set whose samples are of known kinds, e.g. change types, has a method ``strata() -> Sequence[str | None]``:
    the kind of each sample. A part of it for validation then has its share of each (:func:`stratified_subset`).
    """

    def __len__(self) -> int: ...

    def get(self, index: int, epoch: int) -> Any:
        """The sample ``index`` as it is in ``epoch``; a pure function, called from several threads or processes."""
        ...


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of one sample in one epoch."""
    return np.random.default_rng((seed, epoch, index))


class Mixture:
    """Several data sets as one: an epoch is one pass over every part, each in an order of its own by (seed, part,
    epoch).

    Args:
        parts: by name, for errors. Their order is part of the seed.
        seed: of the order within the parts; the loader shuffles the parts together.

    Raises:
        ValueError: a part without samples.
    """

    def __init__(self, parts: Mapping[str, Dataset], seed: int):
        self.names = list(parts)
        self.parts = list(parts.values())
        self.seed = seed
        if empty := [name for name, part in parts.items() if not len(part)]:
            raise ValueError(f"the mixture's data set {empty[0]!r} has no samples; leave it out")
        self._ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, index: int, epoch: int) -> tuple[int, int]:
        """(number of the part, index in it) of a sample of the mixture."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        size = len(self.parts[part])
        return part, int(_part_order(self.seed, epoch, part, size)[index - (int(self._ends[part]) - size)])

    def get(self, index: int, epoch: int) -> Any:
        part, inner = self.locate(index, epoch)
        return self.parts[part].get(inner, epoch)

    def length(self, index: int, epoch: int) -> float:
        """The length of the sample in its part."""
        part, inner = self.locate(index, epoch)
        return _length_of(self.parts[part], self.names[part])(inner, epoch)


def mixture_of(parts: Mapping[str, Dataset], seed: int) -> Dataset:
    """The one data set as it is, or a :class:`Mixture` of several."""
    return Mixture(parts, seed) if len(parts) > 1 else next(iter(parts.values()))


@lru_cache(maxsize=32)
def _part_order(seed: int, epoch: int, part: int, size: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch, part, _MIXTURE)).permutation(size)


def _length_of(dataset: Dataset, name: str) -> Callable[[int, int], float]:
    length: Callable[[int, int], float] | None = getattr(dataset, "length", None)
    if length is None:
        raise ValueError(
            f"train.group_by_length needs the lengths of samples, {name} has none (no method `length`); set it to 0"
        )
    return length


class Loader:
    """An endless stream of training micro-batches of this rank.

    All samples form one sequence: epoch after epoch, each a permutation by (seed, epoch). Micro-batch n of the run is
    the n-th piece of ``batch_size`` samples of that sequence (it may reach over the end of an epoch, nothing is
    dropped), and this rank's batch is the rank-th slice of it.

    With ``group_by_length`` the permutation of each epoch is cut into windows of that many optimizer steps. A window
    is sorted by the samples' length and cut into steps, which are shuffled by (seed, epoch, window). Where an epoch
    begins within a step, that step gets the longest samples of both windows. A rank's batch is every
    ``world_size``-th sample of its micro-batch, so that the work of all ranks is about equal.

    Batches are prepared ahead, by threads or processes (``train.loader_*``).

    Args:
        dataset: the training split; with ``loader_processes`` it and ``collate`` are pickled.
        collate: makes a batch of a list of samples.
        updates: optimizer steps in a row that get the same samples.
    """

    def __init__(
        self, dataset: Dataset, collate: Collate, train: TrainConfig, rank: int = 0, world_size: int = 1,
        updates: int = 1,
    ):  # fmt: skip
        if len(dataset) == 0:
            raise ValueError("the training split has no samples")
        self.dataset, self.collate, self.train = dataset, collate, train
        self.rank, self.world_size, self.updates = rank, world_size, updates
        self.batch_size, self.step_size = train.micro_batch_size, train.batch_size
        self.group_by_length = train.group_by_length
        if self.batch_size % world_size:
            raise ValueError(f"a micro-batch of {self.batch_size} samples cannot be cut into {world_size} equal parts")
        if self.group_by_length:
            _length_of(dataset, "the training data set")
        self._order: dict[int, np.ndarray] = {}
        self._windows: dict[tuple[int, int], np.ndarray] = {}

    def samples(self, micro_step: int) -> list[Sample]:
        """(index, epoch) of this rank's samples in micro-batch ``micro_step`` of the run."""
        step, part = divmod(micro_step, self.train.grad_accumulation)
        start = step // self.updates * self.step_size + part * self.batch_size
        size = self.batch_size // self.world_size
        if self.group_by_length:
            positions = range(start + self.rank, start + self.batch_size, self.world_size)
        else:
            positions = range(start + self.rank * size, start + (self.rank + 1) * size)
        return [self._sample(position) for position in positions]

    def _sample(self, position: int) -> Sample:
        epoch, offset = divmod(position, len(self.dataset))
        if epoch not in self._order:
            for old in [e for e in self._order if e < epoch - 1]:
                del self._order[old]
            self._order[epoch] = np.random.default_rng((self.train.seed, epoch)).permutation(len(self.dataset))
        if not self.group_by_length:
            return int(self._order[epoch][offset]), epoch
        head = -epoch * len(self.dataset) % self.step_size  # samples that complete a step of the epoch before
        span = self.group_by_length * self.step_size
        number = max(0, offset - head) // span
        start = head + number * span if number else 0
        if (epoch, number) not in self._windows:
            for key in list(self._windows)[:-1]:  # only the last one: the sequence is read in order
                del self._windows[key]
            indices = self._order[epoch][start : head + (number + 1) * span]
            self._windows[epoch, number] = self._grouped(indices, epoch, number, 0 if number else head)
        return int(self._windows[epoch, number][offset - start]), epoch

    def _grouped(self, indices: np.ndarray, epoch: int, number: int, head: int) -> np.ndarray:
        """The samples of a window: the ``head`` longest, then whole steps of one length each, then what is left."""
        length = _length_of(self.dataset, "the training data set")
        indices = indices[np.argsort([length(int(index), epoch) for index in indices], kind="stable")]
        end = max(0, len(indices) - head)
        whole = end - end % self.step_size
        rng = np.random.default_rng((self.train.seed, epoch, number, _WINDOW))
        steps = rng.permutation(indices[:whole].reshape(-1, self.step_size))
        return np.concatenate([indices[end:], steps.ravel(), indices[whole:end]])

    def batches(self, start: int = 0) -> Generator[Batch]:
        """Batches from micro-step ``start`` on, without end. Close the iterator to stop threads and processes."""
        if self.train.loader_processes:
            yield from self._batches_of_processes(start)  # without end
        load = _Load(self.dataset, self.collate)
        if self.train.prefetch == 0:
            while True:
                yield load(self.samples(start))
                start += 1
        pool = ThreadPoolExecutor(self.train.loader_threads, thread_name_prefix="batches")
        waiting: deque[Future[Batch]] = deque()
        try:
            while True:
                while len(waiting) < self.train.prefetch:
                    waiting.append(pool.submit(load, self.samples(start)))
                    start += 1
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _batches_of_processes(self, start: int) -> Generator[Batch]:
        """As :meth:`batches`; errors of a sample keep their type and contain the traceback of the process. They end
        with this one, within seconds even if it is killed."""
        from torch.utils.data import DataLoader

        def positions() -> Iterator[list[Sample]]:
            step = start
            while True:
                yield self.samples(step)
                step += 1

        loader: DataLoader[Batch] = DataLoader(
            _Load(self.dataset, self.collate),  # type: ignore[arg-type]
            batch_sampler=positions(),  # type: ignore[arg-type]
            collate_fn=_same,
            num_workers=self.train.loader_processes,
            prefetch_factor=max(1, -(-self.train.prefetch // self.train.loader_processes)),
            # a forked process would inherit locks that this one's other threads hold
            multiprocessing_context="spawn",
            worker_init_fn=_end_at_once,
            generator=torch.Generator(),  # by default it draws from the global one
        )
        try:
            batches = iter(loader)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(
                f"train.loader_processes: {type(self.dataset).__name__} or its collate function cannot be pickled "
                f"({error}); set it to 0 and raise train.loader_threads"
            ) from error
        try:
            while True:
                yield next(batches)
        finally:
            del batches  # stops and joins the processes


class _Load:
    """Loads a batch; picklable. Called by threads with the samples' (index, epoch), by torch's fetcher as below."""

    def __init__(self, dataset: Dataset, collate: Collate):
        self.dataset = dataset
        self.collate = collate

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        return {
            **self.collate([self.dataset.get(index, epoch) for index, epoch in samples]),
            SAMPLES: len(samples),
        }

    __getitems__ = __call__


def _same(batch: Any) -> Any:
    return batch


def _end_at_once(_number: int) -> None:
    """In a loader's process: let it end without the interpreter's clean-up, in which torch's C++ code aborts if the
    thread that sends batches is still at work."""
    multiprocessing.util.Finalize(None, os._exit, args=(0,), exitpriority=-100)


class EvalLoader:
    """One pass over a split in its own order (epoch 0); each rank gets every ``world_size``-th sample.

    Args:
        batch_size: samples of one batch of one rank; the last may be smaller.
        limit: take only so many samples of the split, by :func:`stratified_subset`.
    """

    def __init__(
        self, dataset: Dataset, batch_size: int, rank: int, world_size: int, collate: Collate, limit: int | None = None
    ):
        count = len(dataset)
        if count == 0:
            raise ValueError(
                "the validation split has no samples: give some pairs with captions split=val, and import them again"
            )
        taken = list(range(count))
        if limit is not None and limit < count:
            strata: Callable[[], Sequence[str | None]] | None = getattr(dataset, "strata", None)
            taken = stratified_subset([None] * count if strata is None else strata(), limit)
        self.indices = taken[rank::world_size]
        self.dataset = dataset
        self.batch_size = batch_size
        self._load = _Load(dataset, collate)

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.indices), self.batch_size):
            yield self._load([(i, 0) for i in self.indices[start : start + self.batch_size]])


@dataclass(frozen=True)
class Loaders:
    """The data of a run."""

    train: Loader
    validation: EvalLoader | None = None


def to_device(value: Any, device: torch.device) -> Any:
    """``value`` with all tensors in its mappings, lists and tuples on ``device``."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (str, bytes, int, float)):
        return type(value)(to_device(item, device) for item in value)
    return value


def stratified_subset(strata: Sequence[str | None], number: int) -> list[int]:
    """Indices of ``number`` samples in rising order, drawn at random, of each stratum in proportion to its size.

    The draw is the same in every run, whatever its seed, so that runs are selected by the same samples. Evenly spaced
    ones would follow any period in the order of the rows: of pairs that alternate between changed and unchanged, every
    second one holds only one kind.

    Args:
        strata: the stratum of each sample; None, unknown, is one too.
    """
    members: dict[str | None, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    names = sorted(members, key=str)
    shares = [number * len(members[name]) / len(strata) for name in names]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(names)), key=lambda i: counts[i] - shares[i])
    for i in by_remainder[: number - sum(counts)]:  # the largest remainders
        counts[i] += 1
    rng = np.random.default_rng(_SUBSET)
    chosen: list[int] = []
    for name, count in zip(names, counts, strict=True):
        chosen += rng.permutation(members[name])[:count].tolist()
    return sorted(chosen)
