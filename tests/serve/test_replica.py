"""What HTTP does not show of replicas and fronts: what a captioner loads, how requests share calls, decoders that
are given up in time, and what Ray is told: metrics, the pairs by which it scales, log lines. Long because all of it
shares one replica and one front."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import psutil
import pytest
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from idc.captioning import familiarity
from idc.captioning.apply import Pixels
from idc.captioning.contract import Candidate, Description
from idc.captioning.familiarity import statistics
from idc.captioning.loading import LoadConfig
from idc.captioning.objects_config import OBJECTS, REGIONS, ObjectsConfig
from idc.captioning.sources import AUTO, SHIPPED
from idc.data.images import decode_image, encode_png
from serve.backend import EncodedPair, ModelStatus, Options, PairResult
from serve.batching import Batcher
from serve.captioner import ServedCaptioner
from serve.decoding import Decoders, PixelRoom
from serve.deployment.model import Model
from serve.deployment.scaling import PAIRS, by_pairs
from serve.log import RequestContext, forward, log
from serve.prometheus import ServingMetrics
from serve.streaming import Events, respond_events
from tests.processes import descendants
from tests.serve.bodies import BOTTLES, RENDERED, Pair, picture
from tests.serve.local import captions_of, described, local_config
from tests.serve.test_captions import DISKS
from tests.serve.waiting import happens, in_loop

SMALL, LARGE = picture(), picture(1200, 1000)
_HEAD = struct.pack("<IHHIIiiHHIIiiII", 0, 0, 0, 54 + 1024, 40, 5000, 5000, 1, 8, 1, 0, 0, 0, 256, 0)
SLOW = EncodedPair(b"BM" + _HEAD + bytes(1024) + b"\1\5" * 2**23, SMALL)
"""A BMP of runs of one pixel each, which Pillow decodes in Python: seconds for these 16 MiB."""
LONG_S = 3600.0
"""Longer than any test: what is sent was not sent by the end of the wait."""
REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


# -- the captioner


def caption(captioner: ServedCaptioner, *pairs: EncodedPair) -> list[PairResult]:
    async def decoded() -> list[Any]:
        decoders = Decoders(2, 60)
        return [await decoders.pair(pair) for pair in pairs]

    return captions_of(captioner, asyncio.run(decoded()), Options())


def test_after_its_warm_up_nothing_is_loaded_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedCaptioner(AUTO, LoadConfig(objects=ObjectsConfig(text=False)))
    served.warm_up()
    for loader in ("idc.captioning.loading.load_captioner", "idc.systems.objects.captioner.load_detector"):
        monkeypatch.setattr(loader, None)
    results = caption(served, EncodedPair(*RENDERED), EncodedPair(*BOTTLES))
    assert [result.description and result.description.captioner for result in results] == [SHIPPED, OBJECTS]


def test_a_model_that_fails_when_it_is_warmed_up_is_served_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint may be down for a moment."""
    served = ServedCaptioner(SHIPPED)

    def down(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the endpoint is down")

    with monkeypatch.context() as patch:
        patch.setattr(served.captioner, "describe", down)
        served.warm_up()
    assert caption(served, EncodedPair(*RENDERED))[0].captions


def test_what_does_not_count_is_each_pairs_own_in_one_batch() -> None:
    """Of requests with equal options, which share it: with a mask, and with boxes in pixels and in shares."""
    height, width = decode_image(DISKS.after).shape[:2]
    left = np.zeros((height, width, 3), np.uint8)
    left[:, : width // 2] = 255
    mask = encode_png(left)
    parts: list[dict[str, Any]] = [
        {}, {"ignore": ((0, 0, width // 2, height),)}, {"ignore": ((0.5, 0, 1, 1),)}, {"only": (mask,)},
    ]  # fmt: skip
    results = caption(ServedCaptioner(REGIONS), *(EncodedPair(*DISKS, **part) for part in parts))
    only_left: list[dict[str, Any]] = [{}, {"ignore": [(0, 0, 0.5, 1)]}, {"only": [(0, 0, 0.5, 1)]}]
    whole, right, of_left = (described(REGIONS, DISKS, **part)[0].objects_text for part in only_left)
    assert [result.description and result.description.objects_text for result in results] == [
        whole, right, of_left, of_left,
    ]  # fmt: skip
    assert len({whole, right, of_left}) == 3
    assert {result.batch for result in results} == {4}


# -- calls and batches


class Squares:
    """The calls, which a test holds back; 13 fails."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.contexts: list[str] = []
        self.cancelled: list[list[int]] = []
        self.go_on, self.batch_goes_on = asyncio.Semaphore(0), threading.Semaphore(0)

    async def call(self, key: str, items: list[int]) -> AsyncIterator[tuple[int, int]]:
        self.calls.append((key, items))
        self.contexts.append(REQUEST.get())
        try:
            await self.go_on.acquire()
        except asyncio.CancelledError:
            self.cancelled.append(items)
            raise
        for each in enumerate(self._squares(items)):
            yield each

    def batch(self, key: str, items: list[int]) -> list[int]:
        self.calls.append((key, items))
        assert self.batch_goes_on.acquire(timeout=60)
        return self._squares(items)

    def _squares(self, items: list[int]) -> list[int]:
        if 13 in items:
            raise ValueError("13 has no square here")
        return [item * item for item in items]

    def release(self, calls: int) -> None:
        for _ in range(calls):
            self.go_on.release()
            self.batch_goes_on.release()


async def asked(together: Any, *requests: list[int], key: str = "a") -> list[asyncio.Task[list[int]]]:
    """Requests that are all submitted, in this order."""
    tasks = [asyncio.create_task(together.submit(key, items)) for items in requests]
    await asyncio.sleep(0)
    return tasks


@in_loop
async def test_items_that_arrive_while_the_function_is_busy_form_the_next_batches() -> None:
    squares = Squares()
    batcher = Batcher(squares.batch, max_items=4, threads=1)
    tasks = await asked(batcher, [1])
    await happens(lambda: len(squares.calls) == 1)
    for key, items in (("a", [2, 3, 4]), ("b", [5]), ("a", [6, 7]), ("c", [])):
        tasks += await asked(batcher, items, key=key)
    squares.release(4)
    assert await asyncio.gather(*tasks) == [[1], [4, 9, 16], [25], [36, 49], []]
    assert squares.calls == [("a", [1]), ("a", [2, 3, 4, 6]), ("b", [5]), ("a", [7])]


@pytest.mark.parametrize("kind", ["batches", "calls"])
@in_loop
async def test_a_fault_affects_its_batch_only_and_items_of_callers_that_left_are_dropped(kind: str) -> None:
    squares = Squares()
    batches, calls = Batcher(squares.batch, 2, threads=1), Batcher(squares.call, 2, wait_s=LONG_S)
    together = batches if kind == "batches" else calls
    first = await asked(together, [0])
    await happens(lambda: len(squares.calls) == 1)
    leaving, *others = await asked(together, [2], [13], [1], [3], [4])
    if kind == "batches":
        leaving.cancel()
    squares.release(4)
    results = await asyncio.gather(*first, *others, return_exceptions=True)
    fault, good = "13 has no square here", ["[1]", "[9]", "[16]"]
    # The joiner had sent 2 and 13 when 2 left, and 4 alone follows.
    expected = [fault, fault, *good[1:]] if kind == "batches" else [fault, *good]
    assert [str(result) for result in results] == ["[0]", *expected]


@in_loop
async def test_a_request_alone_is_sent_at_once_and_later_ones_share_a_call_when_it_is_full() -> None:
    squares = Squares()
    joiner = Batcher(squares.call, max_items=4, wait_s=LONG_S)
    first = await asked(joiner, [1])
    await happens(lambda: squares.calls == [("a", [1])])
    others = await asked(joiner, [2], [3, 4], [5], list(range(6)))
    await happens(lambda: len(squares.calls) == 3)
    squares.release(9)
    assert await asyncio.gather(*first, *others) == [[1], [4], [9, 16], [25], [0, 1, 4, 9, 16, 25]]
    assert squares.calls == [("a", [1]), ("a", [2, 3, 4, 5]), ("a", [0, 1, 2, 3]), ("a", [4, 5])]


@in_loop
async def test_other_keys_do_not_wait_and_a_call_that_is_not_full_is_sent_after_the_wait() -> None:
    squares = Squares()
    joiner = Batcher(squares.call, max_items=4, wait_s=0.01)
    tasks = await asked(joiner, [1])
    await happens(lambda: len(squares.calls) == 1)
    tasks += await asked(joiner, [2], key="b")
    await happens(lambda: len(squares.calls) == 2)
    tasks += await asked(joiner, [3], [4])
    await happens(lambda: len(squares.calls) == 3)
    squares.release(3)
    assert await asyncio.gather(*tasks) == [[1], [4], [9], [16]]
    assert squares.calls == [("a", [1]), ("b", [2]), ("a", [3, 4])]


@in_loop
async def test_a_caller_that_leaves_takes_its_items_along_and_the_last_one_the_call() -> None:
    squares = Squares()
    joiner = Batcher(squares.call, max_items=3, wait_s=LONG_S)
    first = await asked(joiner, [1])
    await happens(lambda: len(squares.calls) == 1)
    leaving, *others = await asked(joiner, [2], [3], [4])
    await happens(lambda: len(squares.calls) == 2)
    leaving.cancel()  # its call has been sent, for the others too
    squares.release(2)
    assert await asyncio.gather(*first, *others) == [[1], [9], [16]]

    alone = await asked(joiner, [5])
    await happens(lambda: len(squares.calls) == 3)
    for task in (*await asked(joiner, [6]), *alone):
        task.cancel()
    await happens(lambda: squares.cancelled == [[5]])
    squares.release(1)
    assert await joiner.submit("a", [7, 8, 9]) == [49, 64, 81]  # [6], which nobody awaits, was never sent
    assert squares.calls[3:] == [("a", [7, 8, 9])]


@in_loop
async def test_a_shared_call_does_not_belong_to_the_request_that_began_it() -> None:
    """Serve cancels the calls made in a request's context when its client leaves."""
    squares = Squares()
    squares.release(1)
    joiner = Batcher(squares.call, max_items=2, wait_s=LONG_S)
    REQUEST.set("mine")
    await joiner.submit("a", [1])
    assert squares.contexts == ["none"]


@in_loop
async def test_what_a_call_yields_is_answered_before_its_end_also_if_it_fails_later() -> None:
    go_on = asyncio.Event()

    async def halves(key: str, items: list[int]) -> AsyncIterator[tuple[int, int]]:
        yield 1, items[1] // 2
        await go_on.wait()
        raise ValueError(f"{items[0]} is not divided")

    joiner = Batcher(halves, max_items=2, wait_s=LONG_S)
    slow, quick = await asked(joiner, [3], [4])
    assert await quick == [2]
    go_on.set()
    with pytest.raises(ValueError, match="3 is not divided"):
        await slow


@in_loop
async def test_a_stream_that_nobody_reads_gives_its_places_back_and_keeps_its_events() -> None:
    context, freed = RequestContext("one"), asyncio.Event()
    context.cleanup.callback(freed.set)

    async def events() -> Events:
        for _ in range(100):
            yield b"x"

    response = await respond_events(context, events())
    await happens(freed.is_set)
    assert [piece async for piece in response.body_iterator] == [b"x"] * 100
    await context.cleanup.aclose()


# -- the replica


def replica_of(captioner: ServedCaptioner, **others: ServedCaptioner) -> Model:
    """Without Ray; ``captioner`` is that of the model ``demo``."""
    replica = Model.__new__(Model)
    replica._captioners = {"demo": captioner, **others}
    replica._statuses = {name: ModelStatus(name, "1") for name in replica._captioners}
    replica._decoders, replica._room, replica._pairs = Decoders(2, 60), PixelRoom(10**8), 0
    replica._batcher, replica._alone = (
        Batcher(lambda key, items: key[0](items, key[1]), most, threads=1) for most in (16, 1)
    )
    return replica


@pytest.mark.parametrize(("source", "batches"), [(REGIONS, [1, 1, 1]), (SHIPPED, [3, 3, 3]), (AUTO, [1, 1, 1])])
@in_loop
async def test_a_pair_that_gains_nothing_from_a_batch_is_alone_in_it(source: str, batches: list[int]) -> None:
    """Of ``auto`` each, as the untrained captioner describes all."""
    replica = replica_of(ServedCaptioner(source, LoadConfig(objects=ObjectsConfig(text=False, detector="none"))))
    pairs = [EncodedPair(*RENDERED), EncodedPair(*DISKS), EncodedPair(*RENDERED)]
    options = Options(objects="never")
    results = [each async for part in replica.caption("demo", pairs, options) for each in part]
    assert [result.batch for _, result in sorted(results, key=lambda each: each[0])] == batches
    assert await replica.caption_pair("demo", pairs[0], Options(objects="always")) != ""
    assert replica._pairs == 0


@in_loop
async def test_each_pair_is_answered_when_it_is_done() -> None:
    captioner = ServedCaptioner(REGIONS)
    begun, go_on, describe = threading.Semaphore(0), threading.Semaphore(1), captioner.caption

    def held_back(pairs: Any, options: Options) -> list[PairResult]:
        begun.release()
        assert go_on.acquire(timeout=60)
        return describe(pairs, options)

    captioner.caption = held_back  # type: ignore[method-assign]
    results = replica_of(captioner).caption("demo", [EncodedPair(*DISKS)] * 3, Options())
    [(first, _)] = await anext(results)
    await asyncio.to_thread(begun.acquire, timeout=60)
    await asyncio.to_thread(begun.acquire, timeout=60)  # the next one has begun, and is held back
    go_on.release(2)
    assert {first} | {index async for part in results for index, _ in part} == {0, 1, 2}


@in_loop
async def test_callers_of_a_quick_model_do_not_wait_for_a_pair_that_takes_long() -> None:
    """Of ``objects``, which is also asked of pairs that a trained model is not familiar with."""
    slow, quick = ServedCaptioner(REGIONS), ServedCaptioner(SHIPPED, LoadConfig(objects=ObjectsConfig(detector="none")))
    begun, go_on = threading.Semaphore(0), threading.Event()

    def hostile(pairs: Any, options: Options) -> list[PairResult]:
        begun.release()
        assert go_on.wait(60)
        return [PairResult(error="pair: it took long")]

    slow.caption = hostile  # type: ignore[method-assign]
    replica = replica_of(slow, quick=quick)
    hung = asyncio.create_task(replica.caption_pair("demo", EncodedPair(*DISKS), Options()))
    await asyncio.to_thread(begun.acquire, timeout=60)
    described = await replica.caption_pair("quick", EncodedPair(*RENDERED), Options())
    assert isinstance(described, PairResult)
    assert described.captions
    assert not hung.done()
    unfamiliar = asyncio.create_task(replica.caption_pair("quick", EncodedPair(*BOTTLES), Options()))
    await happens(lambda: any(call.__name__ == "add_objects" for call, _ in replica._alone._queues))
    go_on.set()
    assert (await hung).error == "pair: it took long"  # type: ignore[union-attr]
    assert (await unfamiliar).description.claims is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("pair", [BOTTLES, RENDERED])
@in_loop
async def test_the_statistics_of_each_image_are_computed_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cost more than the network."""
    replica = replica_of(ServedCaptioner(SHIPPED, LoadConfig(objects=ObjectsConfig(detector="none"))))
    looked: list[np.ndarray] = []

    def counted(image: np.ndarray) -> np.ndarray:
        looked.append(image)
        return statistics(image)

    monkeypatch.setattr(familiarity, "statistics", counted)
    result = await replica.caption_pair("demo", EncodedPair(*pair), Options())
    assert isinstance(result, PairResult)
    assert result.description
    assert len(looked) == 2
    assert (result.description.claims is None) == (pair == RENDERED)


# -- decoders

EARLIER: set[psutil.Process] = set()


def decoders() -> list[psutil.Process]:
    """The decoder processes of this test."""
    return [child for child in descendants(psutil.Process(), "idc.data.decoder_process") if child not in EARLIER]


@pytest.fixture(autouse=True)
def decoders_end_with_their_pool() -> Iterator[None]:
    EARLIER.update(psutil.Process().children(recursive=True))  # of the servers and jobs of other tests
    yield
    gc.collect()
    _, alive = psutil.wait_procs(decoders(), timeout=60)
    assert not alive


@in_loop
async def test_pixels_are_those_of_decode_image_of_large_ones_in_another_process() -> None:
    pool = Decoders(1, 60)
    for processes, data in enumerate((SMALL, LARGE)):
        pixels = (await pool.pair(EncodedPair(SMALL, data))).pixels
        assert isinstance(pixels, Pixels)
        assert np.array_equal(pixels.after, decode_image(data))
        assert pixels.after.flags.writeable
        assert len(decoders()) == processes


@in_loop
async def test_an_image_that_takes_too_long_is_given_up() -> None:
    pool = Decoders(1, 1)
    assert str((await pool.pair(SLOW)).pixels).startswith("before: takes too long: more than 1 s")
    assert isinstance((await pool.pair(EncodedPair(LARGE, LARGE))).pixels, Pixels)
    assert pool.running_since is None


@pytest.mark.parametrize("end", ["given up", "crash"])
@in_loop
async def test_an_image_that_is_given_up_or_crashes_its_decoder_leaves_room_for_the_next(end: str) -> None:
    pool = Decoders(1, 1000)
    hung = asyncio.create_task(pool.pair(SLOW))
    waiting = asyncio.create_task(pool.pair(EncodedPair(LARGE, LARGE)))
    await happens(lambda: pool.running_since is not None)
    (decoder,) = decoders()
    if end == "crash":
        decoder.kill()
        assert str((await hung).pixels) == "before: damaged image: it ended its decoder"
    else:
        hung.cancel()
        await happens(lambda: not decoder.is_running())
    assert isinstance((await waiting).pixels, Pixels)


@in_loop
async def test_health_watches_decoding() -> None:
    replica = Model.__new__(Model)  # without Ray
    replica._config = local_config({"demo": "artifact"}, limits={"timeout_s": 0.01})
    replica._decoders = Decoders(1, 1000)
    replica._batcher = replica._alone = Batcher(lambda key, items: [], 1)
    await replica.check_health()
    there = {*psutil.Process().children()}
    hung = asyncio.create_task(replica._decoders.pair(SLOW))
    await happens(lambda: {*psutil.Process().children()} - there)
    [decoder] = {*psutil.Process().children()} - there
    decoder.suspend()
    latest = asyncio.get_running_loop().time() + 2 * replica._config.limits.timeout_s
    await happens(lambda: asyncio.get_running_loop().time() > latest)
    with pytest.raises(RuntimeError, match="decoding has been running"):
        await replica.check_health()
    hung.cancel()
    await happens(lambda: replica._decoders.running_since is None)


@in_loop
async def test_pairs_wait_for_room_for_their_pixels_in_their_order() -> None:
    large = 2**22
    room = PixelRoom(8 * large)
    begun: list[int] = []
    sizes = [4 * large, large, 9 * large, 4 * large]
    doors = [asyncio.Event() for _ in sizes]

    async def enter(index: int) -> None:
        async with room.taken(EncodedPair(b"", b"", pixels=sizes[index])):
            begun.append(index)
            await doors[index].wait()

    tasks = [asyncio.create_task(enter(index)) for index in range(4)]
    await happens(lambda: begun == [0, 1])
    doors[0].set()
    await tasks[0]
    async with room.taken(EncodedPair(b"", b"", pixels=large // 2)):  # small images
        assert begun == [0, 1]  # the last one, for which there is room, waits behind the one with 9
    doors[1].set()
    await happens(lambda: begun == [0, 1, 2])  # more than the room, but alone
    tasks[2].cancel()
    await happens(lambda: begun == [0, 1, 2, 3])
    doors[3].set()
    await tasks[3]


# -- what Ray is told


def test_ray_gets_the_numbers_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they reach the port of a node is Ray's part."""
    from ray.serve import metrics as serve_metrics
    from ray.util import metrics

    in_ray: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for kind, method in ((metrics.Counter, "inc"), (metrics.Gauge, "set"), (metrics.Histogram, "observe")):
        plain = getattr(kind, method)

        def both(metric, value, tags, plain=plain):  # type: ignore[no-untyped-def]  # as Ray's own
            plain(metric, value, tags)  # which refuses unknown tags
            key = metric.info["name"], tuple(tags.values())
            in_ray[key] = value if isinstance(metric, metrics.Gauge) else in_ray[key] + value

        monkeypatch.setattr(kind, method, both)
    served = ServingMetrics(serve_metrics)
    context = RequestContext("one")
    context.route, context.status = "/v1/captions", 200
    captioned = PairResult(Description((Candidate("the red cube moved", -0.1),)))
    served.wait(3)
    served.pairs([captioned, captioned, PairResult(error="after: not an image")])
    served.pairs([])
    served.wait(1)
    served.request(context)
    assert 0 < in_ray.pop(("idc_request_seconds", ("/v1/captions",))) < 60
    assert in_ray == {
        ("idc_requests", ("/v1/captions", "200")): 1,
        ("idc_pairs", ("captioned",)): 2,
        ("idc_pairs", ("refused",)): 1,
        ("idc_pairs_waiting", ()): 1,
    }


@pytest.mark.parametrize(
    ("pairs", "queued", "replicas"),
    [({"one": 32.0, "other": 16.0}, 0, 3), ({"one": 8.0, "other": 0.0}, 8, 1), (None, 0, 0)],
)
def test_pairs_of_all_replicas_and_calls_that_wait_decide_how_many_there_are(
    pairs: dict[str, float] | None, queued: float, replicas: float
) -> None:
    """With a target of 16 pairs for each."""
    parameters = inspect.signature(AutoscalingContext).parameters.values()
    values: dict[str, Any] = {each.name: None for each in parameters if each.default is each.empty}
    values |= {"total_queued_requests": queued, "aggregated_metrics": pairs and {PAIRS: pairs}}
    values |= {"config": AutoscalingConfig(target_ongoing_requests=16)}
    assert by_pairs(AutoscalingContext(**values))[0] == pytest.approx(replicas)


def test_log_lines_of_replicas_stay_as_they_are_and_others_become_entries(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``verbose`` only failures are printed, a line that was cut off among them."""
    log(event="request", status=200)
    log(event="request", status=422, error="not_an_image")
    log(event="request", status=500, failure="Traceback ...")
    log(event="model_failed", model="demo", error="damaged")
    lines = capsys.readouterr().out.splitlines()
    cut = lines[0][:40]
    others = ["\x1b[33mWARNING\x1b[0m 2026 a replica died", "", '{"time": 3']
    batch = {"lines": [*lines, *others], "actor_name": "Front", "pid": 7}
    forward(batch)
    forward({"lines": ["======== Autoscaler status"], "pid": "autoscaler"})
    forward({**batch, "lines": [*lines, "noise of a worker", cut]}, verbose=False)
    printed = capsys.readouterr()
    same, added = printed.out.splitlines()[: len(lines)], map(json.loads, printed.out.splitlines()[len(lines) :])
    assert (same, printed.err.splitlines()) == (lines, [*lines[2:], cut])
    fields = [(entry["event"], entry["process"], entry["message"]) for entry in added]
    assert fields == [("output", "Front", "WARNING 2026 a replica died"), ("output", "Front", '{"time": 3')]
