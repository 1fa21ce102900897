"""ProCap's captioning at every `speed` against the authors' own forward pass (``official.py``), with equal weights.

Two models: the paper's size with random weights, loaded into both; and a trained artifact, which the official modules
cannot express (``memory_norm: batch``, beams), so that it is compared with itself run as the official code runs: the
whole prefix at every step, scores of attention in memory, nothing packed.

Torch decides about huge pages once per process. So there are two processes that take turns batch by batch: the authors'
without, ours with. Tokens are counted as in the official code, see ``captioning.py``.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from benchmarks.measurement import Environment, Measurement, environment
from benchmarks.processes import variable
from idc.config import ConfigModel

if TYPE_CHECKING:
    import numpy as np

    from benchmarks.official import Sizes
    from idc.systems.procap.speed import Optimisations

Caption = Callable[["Sequence[np.ndarray]", "Sequence[np.ndarray]"], list[Any]]
OFFICIAL, HUGE_PAGES = "official", "THP_MEM_ALLOC_ENABLE"
AIMS = {"fast": "at least 2.2", "bf16": "at least 3.3 where the processor has bfloat16"}
_BEGIN, _END, _UNKNOWN = 4, 5, 6


class OfficialConfig(ConfigModel):
    """The authors' forward pass and ours, from decoded images to words."""

    sizes: dict[str, Any] = Field(default_factory=dict)
    """Sizes of the official modules that differ from the paper's for CLEVR-Change, by the names of `Sizes` in
    benchmarks/official.py."""
    num_pairs: int = Field(32, ge=0)
    """Pairs at the paper's size; all captions are compared. 0 leaves this size out."""
    batch_size: int = Field(4, ge=1)
    """Pairs in a batch at the paper's size; every batch is one timed run of each way."""
    step_batches: int = Field(1, ge=0)
    """Batches in which each optimisation is also measured by itself, at the paper's size."""
    artifact: str | None = None
    """Trained captioner to compare too, e.g. runs/demo/finetune-0/artifact."""
    pairs: str = "data/demo/pairs"
    """Folder of pairs for the artifact."""
    split: str = "test"
    """Their split."""
    max_pairs: int = Field(256, ge=1)
    """Number of these pairs."""
    artifact_batch_size: int = Field(32, ge=1)
    """Pairs in a batch of the artifact."""
    threads: int = Field(2, ge=1)
    """Torch threads per process; one process computes at a time."""
    device: str = "cpu"
    """Torch device, e.g. cuda."""


def steps(device: str) -> dict[str, Optimisations]:
    """From exact to fast; each adds one optimisation to the one before."""
    from idc.systems.procap.speed import Optimisations

    if device != "cpu":
        return {"exact": Optimisations(), "fast": Optimisations(channels_last=True)}
    changes: dict[str, dict[str, bool]] = {
        "exact": {},
        "few images at once": {"few_images": True},
        "channels-last": {"channels_last": True},
        "packed convolutions": {"packed_tokenizer": True},
        "fast": {"packed_encoder": True},
    }
    merged: dict[str, bool] = {}
    return {name: Optimisations(**(merged := {**merged, **change})) for name, change in changes.items()}


# -- the ways to caption, in a process of their own --------------------------------------------------------------


def _paper_ways(config: OfficialConfig, official: bool) -> dict[str, Caption]:
    import torch

    from benchmarks.captioning import twin
    from benchmarks.official import Sizes, random_state, stage_2_greedy, stage_2_layout, stage_2_procedure
    from idc.decoding import decode
    from idc.systems.procap.convert import convert_stage_2
    from idc.systems.procap.speed import accelerate, running
    from idc.training.foreign import Ledger
    from idc.vision.tokenizer.model import to_images

    sizes, device = Sizes(**config.sizes), torch.device(config.device)
    state = random_state(stage_2_layout(sizes), sizes)
    _enliven(state, sizes)
    if official:
        state = {name: tensor.to(device) for name, tensor in state.items() if ".loss." not in name}

        def authors(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[list[int]]:
            with torch.no_grad(), device:
                before, after = (to_images(_stack(images)).to(device) for images in (befores, afters))
                ids = stage_2_greedy(state, stage_2_procedure(state, before, after, sizes), sizes)
            return [_words(row) for row in ids[:, 1:].tolist()]

        return {OFFICIAL: authors}

    shared, shared_tokenizer = convert_stage_2(Ledger(state, "random"), sizes.heads, sizes.decoder_heads, 24)
    shared, shared_tokenizer = shared.to(device).eval(), shared_tokenizer.to(device).eval()

    def ours(chosen: Optimisations) -> Caption:
        model, tokenizer = twin(shared), twin(shared_tokenizer)
        accelerate(tokenizer, model.encoder, chosen, device)

        def caption(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[list[int]]:
            with running(chosen, device):
                images = to_images(_stack([*befores, *afters])).to(device)
                features = tokenizer.features(images).float()
                ends = torch.stack([features[: len(befores)], features[len(befores) :]], dim=1)
                found = decode(
                    model.decoder,
                    model.procedure(ends),
                    bos=_BEGIN,
                    eos=_END,
                    pad=0,
                    max_length=23,  # the authors throw their 24th word away
                    banned=(_UNKNOWN,),
                    stop_early=False,
                )
            return [_words(row) for row in found.ids.tolist()]

        return caption

    return {name: ours(chosen) for name, chosen in _all(config).items()}


def _artifact_ways(config: OfficialConfig, official: bool) -> dict[str, Caption]:
    from idc.systems.procap.captioner import PairCaptioner
    from idc.systems.procap.speed import Optimisations

    assert config.artifact is not None
    if official:
        naive = Optimisations(cached=False, fused_attention=False)
        return {OFFICIAL: PairCaptioner(config.artifact, config.device, naive)}
    return {name: PairCaptioner(config.artifact, config.device, it) for name, it in _all(config).items()}


def _all(config: OfficialConfig) -> dict[str, Optimisations]:
    """The steps, if they are measured, and bf16 where the processor has it."""
    import dataclasses

    from idc.nn.packed import bfloat16_is_native, packing_works

    ways = steps(config.device)
    if not config.step_batches:
        ways = {name: ways[name] for name in ("exact", "fast")}
    if config.device == "cpu" and not packing_works():
        plain = {"packed_tokenizer": False, "packed_encoder": False}
        ways = {name: dataclasses.replace(way, **plain) for name, way in ways.items()}
    if config.device != "cpu" or bfloat16_is_native():
        ways["bf16"] = dataclasses.replace(ways["fast"], bf16=True)
    return ways


def _enliven(state: dict[str, Any], sizes: Sizes) -> None:
    """Let the images decide about the words, as ``make_captioner`` does: captions must differ between pairs, else
    comparing them says nothing. Cross-attention is sharpened and amplified, and the mean of the memory subtracted."""
    import torch

    from benchmarks.captioning import make_pairs
    from benchmarks.official import stage_2_memory, stage_2_procedure
    from idc.vision.tokenizer.model import to_images

    state["intermediate_generator.conv_to_embedding.1.weight"] *= 10
    for layer in range(sizes.decoder_layers):
        state[f"text_decoder.decoder.layers.{layer}.attention.layer.wq.weight"] *= 10
        state[f"text_decoder.decoder.layers.{layer}.attention.layer.wo.weight"] *= 50
    with torch.no_grad():
        before, after = map(to_images, make_pairs(1, sizes.image))
        state["mlp.3.bias"] -= stage_2_memory(state, stage_2_procedure(state, before, after, sizes)).mean((0, 1))


def _words(ids: list[int]) -> list[int]:
    """The ids before the end mark."""
    return ids[: ids.index(_END)] if _END in ids else ids


def _stack(images: Sequence[np.ndarray]) -> np.ndarray:
    import numpy as np

    return np.stack(images)


class _Process:
    """A process that captions batches in several ways and times itself."""

    def __init__(self, config: OfficialConfig, trained: bool, official: bool) -> None:
        here, there = multiprocessing.Pipe()
        with variable(HUGE_PAGES, "0" if official else "1"):
            self._process = multiprocessing.get_context("spawn").Process(
                target=_serve, args=(there, config.model_dump(), trained, official), daemon=True
            )
            self._process.start()
        there.close()
        self._pipe = here
        self.ways: list[str] = self._receive()

    def __call__(
        self, way: str, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]
    ) -> tuple[float, list[Any]]:
        """Seconds and captions of a batch."""
        self._pipe.send((way, list(befores), list(afters)))
        seconds, captions = self._receive()
        return seconds, captions

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            raise ValueError(f"official: its process ended with status {self._process.exitcode}") from None


def _serve(pipe: Connection, settings: dict[str, Any], trained: bool, official: bool) -> None:
    import torch

    config = OfficialConfig.model_validate(settings)
    torch.set_num_threads(config.threads)
    ways = (_artifact_ways if trained else _paper_ways)(config, official)
    pipe.send(list(ways))
    while True:
        try:
            way, befores, afters = pipe.recv()
        except EOFError:
            return
        _synchronise(config.device)
        began = time.perf_counter()
        captions = ways[way](befores, afters)
        _synchronise(config.device)
        pipe.send((time.perf_counter() - began, captions))


def _synchronise(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


# -- measuring ---------------------------------------------------------------------------------------------------


class _Runs(NamedTuple):
    """Seconds and captions of a way, batch by batch."""

    seconds: dict[int, float]
    captions: list[Any]


def measure_official(config: OfficialConfig) -> Iterator[Measurement]:
    """Each speed over the authors' forward pass, and each optimisation over the one before."""
    where = environment(config.threads, config.device)
    if config.num_pairs:
        befores, afters = _random_pairs(config)
        runs = _turns(config, False, _cut(befores, afters, config.batch_size), config.step_batches)
        size = f"the paper's size, random weights, {config.num_pairs} pairs in batches of {config.batch_size}"
        yield from _rows(runs, config.batch_size * 24, size, where, None)
    if config.artifact is None:
        return
    befores, afters, references = _stored_pairs(config)
    batches = _cut(befores, afters, config.artifact_batch_size)
    runs = _turns(config, True, batches, 0)
    size = f"{len(befores)} {config.split} pairs in batches of {config.artifact_batch_size}, trained"
    yield from _rows(runs, config.artifact_batch_size * 24, size, where, references)


def _random_pairs(config: OfficialConfig) -> tuple[Any, Any]:
    from benchmarks.captioning import make_pairs
    from benchmarks.official import Sizes

    return make_pairs(config.num_pairs, Sizes(**config.sizes).image)


def _stored_pairs(config: OfficialConfig) -> tuple[list[Any], list[Any], list[list[str]]]:
    from idc.data.images import decode_image
    from idc.data.store import iter_rows

    split = None if config.split == "all" else config.split
    rows = list(itertools.islice(iter_rows(config.pairs, ["before", "after", "captions"], split), config.max_pairs))
    befores, afters = ([decode_image(row[name]) for row in rows] for name in ("before", "after"))
    return befores, afters, [row["captions"] for row in rows]


def _cut(befores: Any, afters: Any, size: int) -> list[tuple[Any, Any]]:
    """Whole batches."""
    if len(befores) < size:
        raise ValueError(f"official: {len(befores)} pairs are less than a batch of {size}; take a smaller batch")
    starts = range(0, len(befores) - size + 1, size)
    return [(befores[start : start + size], afters[start : start + size]) for start in starts]


def _turns(config: OfficialConfig, trained: bool, batches: list[tuple[Any, Any]], steps_in: int) -> dict[str, _Runs]:
    """Every batch in each way, the order turned round at each batch; the steps between exact and fast only in the first
    ``steps_in`` batches. One pair per way warms up."""
    processes = [_Process(config, trained, official) for official in (True, False)]
    try:
        of = {way: process for process in processes for way in process.ways}
        for way, process in of.items():
            process(way, *(images[:1] for images in batches[0]))
        runs = {way: _Runs({}, []) for way in of}
        for index, batch in enumerate(batches):
            ways = [way for way in of if index < steps_in or way in (OFFICIAL, "exact", "fast", "bf16")]
            for way in ways[:: 1 if index % 2 == 0 else -1]:
                seconds, captions = of[way](way, *batch)
                runs[way].seconds[index] = seconds
                runs[way].captions.extend(captions)
        return runs
    finally:
        for process in processes:
            process.close()


def _rows(
    runs: dict[str, _Runs], tokens: int, size: str, where: Environment, references: list[list[str]] | None
) -> Iterator[Measurement]:
    def row(title: str, above: str, below: str, aim: str = "", **more: Any) -> Measurement:
        common = sorted(runs[above].seconds.keys() & runs[below].seconds.keys())
        rates = [[tokens / runs[way].seconds[index] for index in common] for way in (above, below)]
        return Measurement(
            part="official", title=title, unit="tokens/s", aim=aim, above=rates[0], below=rates[1], more=more,
            environment=where,
        )  # fmt: skip

    expected = runs[OFFICIAL].captions
    authors = "the authors' forward pass" if references is None else "the naive forward pass"
    distinct = len({str(caption) for caption in expected})
    for way in ("exact", "fast", "bf16"):
        if way not in runs:
            continue
        equal = sum(one == other for one, other in zip(runs[way].captions, expected, strict=True))
        more: dict[str, Any] = {"equal_captions": equal, "captions": len(expected), "distinct_captions": distinct}
        if references is not None:
            more["cider"], more["cider_official"] = (_cider(runs[it].captions, references) for it in (way, OFFICIAL))
        told = f"{equal} of {len(expected)} captions equal"
        yield row(f"captioning, {way} over {authors} ({size}; {told})", way, OFFICIAL, AIMS.get(way, ""), **more)
    named = [way for way in runs if way not in (OFFICIAL, "bf16") and runs[way].seconds]
    if references is None:
        for before, way in itertools.pairwise(named):
            what = (
                f"{way} over exact" if len(named) == 2 else f"{'packed linear' if way == 'fast' else way} over without"
            )
            yield row(f"captioning, {what} ({size})", way, before)
        if "bf16" in runs:
            yield row(f"captioning, bf16 over fast ({size})", "bf16", "fast")


def _cider(captions: list[str], references: list[list[str]]) -> float:
    """CIDEr of the captions, x100."""
    from idc.metrics.coco import cider

    return 100 * cider(
        {str(index): texts for index, texts in enumerate(references[: len(captions)])},
        {str(index): caption for index, caption in enumerate(captions)},
    )
