"""The oracle: what it says is true of the scene, and its noise is where and what it reports."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from idc.data.pipeline import TooManyRejects, run_local
from idc.data.schema import ChangePair
from idc.data.store import Manifest, iter_rows
from idc.metrics.claim_words import WORDS
from idc.metrics.hallucination import truth_of
from idc.mining.descriptions.config import NOISE_KINDS, DescribeJob, OracleConfig
from idc.mining.descriptions.describing import describe_pairs
from idc.mining.descriptions.description_statistics import summarise_descriptions
from idc.mining.descriptions.oracle import EMPTY, Noise, describe_by_oracle
from idc.mining.descriptions.template import PairDescription, parse_description
from idc.rendered.captions import CLEAR_OFFSET, RELATIONS, holds
from idc.rendered.config import RenderConfig
from idc.rendered.draw import draw_scene
from idc.rendered.scene import ORDERED_PAIRS, SceneObject, View
from tests.mining.descriptions.small_pairs import write_pairs

PHRASE = re.compile(r"\ba ((?:\w+ )*?(?:sphere|ball|cube|block|cylinder))\b")
"""An object, as descriptions name it."""
Look = frozenset[tuple[str, str]]


@cache
def records() -> dict[str, tuple[str, dict[str, Any]]]:
    drawn: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, objects, jitter in (("small", (2, 3), "slight"), ("large", (3, 8), "extreme")):
        config = RenderConfig(
            num_scenes=14, min_objects=objects[0], max_objects=objects[1], jitter=jitter, width=96, height=64,
            min_visible_pixels=5, ordered_pairs=True,
        )  # fmt: skip
        for index in range(config.num_scenes):
            scene, _ = draw_scene(config, index)
            for end, order in ORDERED_PAIRS.items():
                change = scene.change_of(order)
                kind = "none" if change is None else change.kind
                drawn[f"{name}-{index}-{end}"] = (kind, scene.record(order))
    return drawn


def look(thing: dict[str, Any]) -> Look:
    return frozenset((name, str(thing[name])) for name in ("size", "color", "material", "shape"))


def looks(text: str) -> list[Look]:
    return [frozenset(WORDS[word] for word in phrase.split()) for phrase in PHRASE.findall(text)]


def sides(description: PairDescription, meta: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]], View]]:
    return [
        (text, meta[name], View.of_record(view))
        for text, name, view in zip(
            (description.before, description.after), ("before", "after"), meta["views"], strict=True
        )
    ]


def test_without_noise_every_object_and_relation_is_true() -> None:
    relations = {text: name for name, texts in RELATIONS.items() for text in texts}
    checked: Counter[str] = Counter()
    for pair_id, (_, meta) in records().items():
        description, noise = describe_by_oracle(pair_id, meta, OracleConfig(others=3))
        assert noise == []
        parse_description(describe_by_oracle(pair_id, meta, OracleConfig(noise=1.0))[0].sentence())  # no denial
        assert parse_description(description.sentence()) == description
        for text, things, view in sides(description, meta):
            named = looks(text)
            assert named
            assert PHRASE.sub("a", text).count("a") >= len(named)
            for words in named:
                assert words in [look(thing) for thing in things], text
            pieces = PHRASE.split(text)
            if (relation := relations.get(pieces[2].strip())) is not None:
                pairs = [
                    (SceneObject(**a), SceneObject(**b))
                    for a in things for b in things if look(a) == named[0] and look(b) == named[1] and a is not b
                ]  # fmt: skip
                assert any(holds(relation, a, b, view, CLEAR_OFFSET) for a, b in pairs), text
                checked[relation] += 1
    assert set(checked) == set(RELATIONS)


def test_the_changed_object_comes_first_and_the_change_can_be_read_off() -> None:
    for pair_id, (kind, meta) in records().items():
        description, _ = describe_by_oracle(pair_id, meta, OracleConfig())
        if kind == "none":
            assert description.before == description.after
            continue
        assert description.before != description.after
        true = truth_of(kind, meta["before"], meta["after"])
        before, after = looks(description.before), looks(description.after)
        if kind != "add":
            assert before[0] == true.described
        if kind != "drop":
            assert after[0] == (true.described if kind == "add" else true.after)
        if kind in ("color", "material"):
            assert before[1:] == after[1:]
        if kind == "add":
            assert after[1:] == before
            lonely = {**meta, "before": [], "after": [meta["after"][-1]]}
            assert describe_by_oracle("lonely", lonely, OracleConfig())[0].before == EMPTY
        if kind == "drop":
            assert before[1:] == after


def clean_and_noisy(
    kind: str, pair_id: str, meta: dict[str, Any]
) -> tuple[PairDescription, PairDescription, list[Noise]]:
    clean, _ = describe_by_oracle(pair_id, meta, OracleConfig())
    noisy, noise = describe_by_oracle(pair_id, meta, OracleConfig(noise=1.0, noise_kinds=(kind,)))
    assert {mistake.kind for mistake in noise} == {kind}
    return clean, noisy, noise


@pytest.mark.parametrize("kind", ["wrong_object", "wrong_attribute"])
def test_wrong_words_are_exactly_those_at_the_offsets(kind: str) -> None:
    for pair_id, (_, meta) in records().items():
        clean, noisy, noise = clean_and_noisy(kind, pair_id, meta)
        for image in ("before", "after"):
            text, right = getattr(noisy, image), getattr(clean, image)
            at = {match.start(): match.group() for match in re.finditer(r"\w+", text)}
            wrong = set()
            for _, start, end, _ in (mistake for mistake in noise if mistake.image == image):
                wrong |= {position for position in at if start <= position < end}
                assert len(text[start:end].split()) == (4 if kind == "wrong_object" else 1)
            pairs = zip(at.items(), re.findall(r"\w+", right), strict=True)
            assert {position for (position, word), other in pairs if word != other} == wrong
            present = {look(thing) for thing in meta[image]}
            assert not present & set(looks(text))


def test_extra_objects_are_not_in_the_image_and_a_missing_detail_is_a_place_between_words() -> None:
    for pair_id, (_, meta) in records().items():
        clean, noisy, noise = clean_and_noisy("extra_object", pair_id, meta)
        _, bare, missing = clean_and_noisy("missing_detail", pair_id, meta)
        for image in ("before", "after"):
            text, right = getattr(noisy, image), getattr(clean, image)
            extra = [text[mistake.start : mistake.end] for mistake in noise if mistake.image == image]
            named = [one for phrase in extra for one in looks(f"a {phrase}")]
            assert looks(text) == looks(right) + named
            assert len(named) == len(extra)
            assert not {look(thing) for thing in meta[image]} & set(named)
            text = getattr(bare, image)
            for mistake in sorted((one for one in missing if one.image == image), key=lambda one: -one.start):
                assert mistake.start == mistake.end
                text = text[: mistake.start] + "MISSING " + text[mistake.start :]
            pairs = list(zip(re.findall(r"\w+", text), re.findall(r"\w+", right), strict=True))
            left_out = [other for word, other in pairs if word == "MISSING"]
            assert len(left_out) == len(looks(right))
            assert all(WORDS[other][0] != "shape" for other in left_out)
            assert all(word == other for word, other in pairs if word != "MISSING")


def test_the_share_is_as_set_and_the_kinds_are_equally_likely() -> None:
    share = 0.3
    kinds: Counter[str] = Counter()
    mentions = 0
    for pair_id, (_, meta) in records().items():
        clean, _ = describe_by_oracle(pair_id, meta, OracleConfig())
        mentions += len(looks(clean.before)) + len(looks(clean.after))
        kinds.update(mistake.kind for mistake in describe_by_oracle(pair_id, meta, OracleConfig(noise=share))[1])
    assert mentions > 1000
    count, error = sum(kinds.values()), (mentions * share * (1 - share)) ** 0.5
    assert abs(count - share * mentions) < 4 * error
    for kind in NOISE_KINDS:
        assert abs(kinds[kind] - count / 4) < 4 * (count * 3 / 16) ** 0.5


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    changed = {f"p{n:02}": {"meta": meta} for n, (_, meta) in zip(range(16), records().values(), strict=False)}
    return write_pairs(tmp_path_factory.mktemp("scenes") / "pairs", len(changed), **changed)


def job(pairs: str, out: Path, **more: Any) -> DescribeJob:
    return DescribeJob(pairs=pairs, out=str(out), describer="oracle", chunk_size=6, **more)


def run_job(one: DescribeJob) -> Manifest:
    return describe_pairs(one, run_local)


def test_captions_and_noise_are_those_of_the_oracle_and_a_pair_without_a_scene_is_a_reject(
    pairs: str, tmp_path: Path
) -> None:
    one = job(pairs, tmp_path / "out", oracle={"noise": 0.5, "others": 1, "seed": 3})
    assert run_job(one).num_rows == 16
    wrong = 0
    for row, given in zip(iter_rows(one.out), iter_rows(pairs), strict=True):
        pair, meta = ChangePair.from_row(row), json.loads(given["meta"])
        found, noise = describe_by_oracle(pair.pair_id, meta, one.oracle)
        assert pair.captions == (found.sentence(),)
        assert pair.meta.pop("description_noise") == [one._asdict() for one in noise]
        assert pair.meta == meta
        assert pair.caption_origins[0] is not None
        assert pair.caption_origins[0].source == "oracle of rendered scenes, noise 0.5 (seed 3)"
        assert parse_description(pair.captions[0]) == found
        wrong += len(noise)
    summary = summarise_descriptions(one)
    assert summary.noise is not None
    assert sum(summary.noise.kinds.values()) == wrong > 0
    assert 0 < summary.noise.wrong_words < summary.noise.words
    assert summary.repetition["rendered"].total == 16
    with pytest.raises(TooManyRejects, match="3 x no scene"):
        run_job(job(write_pairs(tmp_path / "pairs", 3), tmp_path / "none"))
