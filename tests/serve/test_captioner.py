"""An artifact as the captioner of a server: pairs of one call have the same results as alone."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

import serve
from idc.captioning.loading import AUTO, SHIPPED, LoadConfig, artifact_folder
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image, encode_png
from idc.data.schema import IMAGE, Turn
from idc.data.store import iter_rows
from idc.systems import OBJECTS, REGIONS, load_captioner, untrained_captioner
from serve.api import create_api
from serve.backend import EncodedPair, Options, PairResult, RequestDialogue
from serve.captioner import ServedCaptioner
from tests.serve.bodies import picture, upload
from tests.serve.local import LocalBackend, caption, local_config, serving
from tests.systems.objects.test_regions import BLUE, RED, ground, with_disk
from tests.systems.procap.world import World
from tests.vlm.artifacts import wrapped

EXAMPLES = Path(serve.__file__).parent / "web" / "examples"
RENDERED = EncodedPair(*((EXAMPLES / f"color-{name}.png").read_bytes() for name in ("before", "after")))
BOTTLES = EncodedPair(*((EXAMPLES / "photographs" / f"bottle_{n}.jpg").read_bytes() for n in ("00100", "00260")))
DISKS = EncodedPair(encode_png(ground()), encode_png(with_disk(with_disk(ground(), 60, 60, RED), 260, 60, BLUE)))
"""A disk is new on the left, and one on the right."""


@pytest.fixture(scope="module")
def captioner(captioner_artifact: Path) -> ServedCaptioner:
    return ServedCaptioner(str(captioner_artifact))


@pytest.fixture(scope="module")
def pairs(world: World) -> list[EncodedPair]:
    """Five rendered pairs, in several sizes and formats."""
    found = []
    for number, row in zip(range(5), iter_rows(world.pairs), strict=False):
        files = []
        for name, size, kind in (("before", (32 + 7 * number, 30), "PNG"), ("after", (24, 40 + number), "BMP")):
            out = io.BytesIO()
            Image.fromarray(decode_image(row[name])).resize(size).save(out, kind)
            files.append(out.getvalue())
        found.append(EncodedPair(*files))
    return found


def without_timing(one: PairResult) -> tuple[object, ...]:
    texts = [text for text, _ in one.captions]
    return texts, one.description and one.description.assessment, one.error


def test_mixed_sizes_options_and_faults_are_answered_as_if_alone_by_the_artifact(
    captioner: ServedCaptioner, captioner_artifact: Path, pairs: list[EncodedPair]
) -> None:
    """Among the pairs: a truncated file, a file that is not an image, an invalid option."""
    cut, text = EncodedPair(pairs[0].before[:200], pairs[0].after), EncodedPair(pairs[0].before, b"<svg/>")
    mixed = [
        (pairs[0], Options()), (cut, Options()), (pairs[1], Options(change_map=True)),
        (text, Options(change_map=True)), (pairs[3], Options(candidates=3, change_map=True)),
        (pairs[4], Options(beams=1, candidates=2)), (pairs[4], Options(change_map=True)), (pairs[1], Options()),
    ]  # fmt: skip
    together = caption(captioner, [pair for pair, _ in mixed], [options for _, options in mixed])
    for (pair, options), one in zip(mixed, together, strict=True):
        [alone] = caption(captioner, [pair], [options])
        assert without_timing(one) == without_timing(alone)
        values, expected = ([value for _, value in each.captions] for each in (one, alone))
        assert values == pytest.approx(expected, abs=1e-4)
        assert (one.change_map is not None) == (options.change_map and one.error is None)
        if one.change_map is not None and alone.change_map is not None:
            maps = [decode_image(each).astype(int) for each in (one.change_map, alone.change_map)]
            assert np.abs(maps[0] - maps[1]).max() <= 1
            assert maps[0].shape == decode_image(pair.after).shape
            assert maps[0].max() > 0
    assert [one.batch for one in together] == [2, 0, 2, 0, 1, 0, 2, 2]
    assert (together[1].error or "").startswith("before: truncated image")
    assert (together[3].error or "").startswith("after: not an image")
    assert "candidates=2 need as many beams, got beams=1" in (together[5].error or "")
    assert len(together[4].captions) == 3
    first = [[decode_image(data)] for data in (pairs[0].before, pairs[0].after)]
    assert [together[0].captions[0][0]] == load_captioner(str(captioner_artifact))(*first)
    assert together[0].model_ms > 0


def test_the_map_of_a_large_image_has_1024_pixels_at_most(captioner: ServedCaptioner) -> None:
    random = np.random.default_rng(0)
    before, after = (encode_png(random.integers(0, 255, (70, 3000, 3), dtype=np.uint8)) for _ in range(2))
    [one] = caption(captioner, [EncodedPair(before, after)], [Options(change_map=True)])
    assert one.change_map is not None
    with Image.open(io.BytesIO(one.change_map)) as drawn:
        assert (drawn.mode, drawn.size) == ("L", (1024, 24))


def test_objects_is_asked_about_unfamiliar_pairs_or_about_all() -> None:
    options = [Options(objects=objects) for objects in ("never", "unfamiliar", "always")]
    shipped = ServedCaptioner(SHIPPED)
    for pair, familiar, asked in ((RENDERED, True, [0, 0, 1]), (BOTTLES, False, [0, 1, 1])):
        results = [result.description for result in caption(shipped, [pair] * 3, options)]
        assert [one and (one.familiar, one.captioner) for one in results] == [(familiar, None)] * 3
        assert {one and one.verdict for one in results} == {"changed" if familiar else "unsure"}
        for field in ("claims", "regions", "objects_text"):
            assert [one is not None and getattr(one, field) is not None for one in results] == asked


def test_after_its_warm_up_nothing_is_loaded_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedCaptioner(AUTO, LoadConfig(objects=ObjectsConfig(text=False)))
    served.warm_up()
    for loader in ("idc.captioning.loading.load_captioner", "idc.systems.objects.captioner.load_detector"):
        monkeypatch.setattr(loader, None)
    results = caption(served, [RENDERED, BOTTLES], [Options()] * 2)
    assert [result.description and result.description.captioner for result in results] == [SHIPPED, OBJECTS]


def test_a_model_that_fails_when_it_is_warmed_up_is_served_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint may be down for a moment."""
    served = ServedCaptioner(artifact_folder(SHIPPED))

    def down(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the endpoint is down")

    with monkeypatch.context() as patch:
        patch.setattr(served.captioner, "describe", down)
        served.warm_up()
    (result,) = caption(served, [RENDERED], [Options()])
    assert result.captions


def test_what_does_not_count_is_each_pairs_own_in_one_batch() -> None:
    """With a mask, and with boxes in pixels and in shares, of equal options."""
    images = decode_image(DISKS.before), decode_image(DISKS.after)
    height, width = images[1].shape[:2]
    left = np.zeros((height, width), bool)
    left[:, : width // 2] = True
    mask = encode_png(np.repeat(left[..., None] * np.uint8(255), 3, 2))
    parts: list[dict[str, Any]] = [
        {}, {"ignore": ((0, 0, width // 2, height),)}, {"ignore": ((0.5, 0, 1, 1),)}, {"only": (mask,)},
        {"ignore": ((0, 0, 1, 1),)},
    ]  # fmt: skip
    pairs = [replace(DISKS, **part) for part in parts]
    served = ServedCaptioner(artifact_folder(REGIONS))
    *results, nothing = caption(served, pairs, [Options()] * len(pairs))
    expected = untrained_captioner(ObjectsConfig(detector="none")).describe(
        [images[0]] * 4, [images[1]] * 4, counted=[None, ~left, left, left]
    )
    assert [result.description and result.description.objects_text for result in results] == [
        one.objects_text for one in expected
    ]
    assert len({one.objects_text for one in expected}) == 3
    assert {result.batch for result in results} == {4}
    assert nothing.error is not None
    assert "leave nothing of the image to compare" in nothing.error


@pytest.mark.parametrize("dialogue", [None, RequestDialogue((Turn("user", f"{IMAGE * 2}What changed?"),))])
def test_a_pair_that_the_model_refuses_fails_alone(tmp_path: Path, dialogue: RequestDialogue | None) -> None:
    """Qwen's processor takes images of aspect ratios up to 200."""
    served = ServedCaptioner(wrapped(tmp_path / "artifact"))
    good = EncodedPair(picture(90, 60), picture(90, 60, shade=140), dialogue)
    thin = replace(good, after=picture(900, 3))
    results = caption(served, [good, thin, good], [Options()] * 3)
    [alone] = caption(served, [good], [Options()])
    assert [one.error is None for one in results] == [True, False, True]
    assert "aspect ratio" in (results[1].error or "")
    for result in (results[0], results[2]):
        assert without_timing(result) == without_timing(alone)
        assert result.answer == alone.answer


def test_a_crash_is_that_of_its_pair_and_is_only_in_the_log(
    captioner_artifact: Path,
    pairs: list[EncodedPair],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = LocalBackend(str(captioner_artifact))
    captioner = backend._captioner.captioner
    describe = captioner.describe

    def crash(befores: Any, afters: Any, **options: Any) -> Any:
        if any(image.shape[1] == 39 for image in befores):  # pairs[1]
            raise RuntimeError("a fault of the program")
        return describe(befores, afters, **options)

    monkeypatch.setattr(captioner, "describe", crash)
    with serving(create_api(local_config(str(captioner_artifact)), backend)) as url:
        together = httpx2.post(f"{url}/v1/captions", **upload(*pairs), timeout=120)
        alone = httpx2.post(f"{url}/v1/captions", **upload(pairs[1]), timeout=120)
    assert [result["error"] is None for result in together.json()["results"]] == [True, False, True, True, True]
    assert (alone.status_code, alone.json()["error"]["code"]) == (500, "internal_error")
    assert "a fault of the program" not in together.text + alone.text
    assert capsys.readouterr().out.count("RuntimeError: a fault of the program") == 2


def test_an_artifact_that_cannot_caption_is_refused(captioner_artifact: Path) -> None:
    with pytest.raises(ValueError, match=r"art[ei]fact of ProCap's stage 1, which cannot caption"):
        ServedCaptioner(str(captioner_artifact.parents[1] / "pretrain" / "artifact"))
