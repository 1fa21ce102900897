"""The oracle: what it says is true of the scene but for its noise, of the set share and in four ways."""

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
from idc.metrics.scene_scores import truth_of
from idc.mining.descriptions.config import DescribeJob, OracleConfig
from idc.mining.descriptions.describing import describe_pairs
from idc.mining.descriptions.description_statistics import summarise_descriptions
from idc.mining.descriptions.oracle import EMPTY, describe_by_oracle
from idc.mining.descriptions.template import PairDescription, parse_description
from idc.rendered.captions import CLEAR_OFFSET, RELATIONS, relation_holds
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
                kind = str(scene.pair(order).change_type)
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
        description = describe_by_oracle(pair_id, meta, OracleConfig())
        parse_description(describe_by_oracle(pair_id, meta, OracleConfig(noise=1.0)).sentence())  # no denial
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
                assert any(relation_holds(relation, a, b, view, CLEAR_OFFSET) for a, b in pairs), text
                checked[relation] += 1
    assert set(checked) == set(RELATIONS)


def test_the_changed_object_comes_first_and_the_change_can_be_read_off() -> None:
    for pair_id, (kind, meta) in records().items():
        description = describe_by_oracle(pair_id, meta, OracleConfig())
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
            assert describe_by_oracle("lonely", lonely, OracleConfig()).before == EMPTY
        if kind == "drop":
            assert before[1:] == after


def noise_of(right: Look, said: Look) -> str | None:
    """The kind of noise in an object's words."""
    if len(said) == 3:
        assert said < right
        assert ("shape", dict(right)["shape"]) in said
        return "missing_detail"
    return {4: None, 3: "wrong_attribute", 0: "wrong_object"}[len(right & said)]


def test_noise_has_the_set_share_and_four_equally_likely_kinds() -> None:
    share, mentions = 0.3, 0
    kinds: Counter[str] = Counter()
    for pair_id, (_, meta) in records().items():
        clean, noisy = (describe_by_oracle(pair_id, meta, OracleConfig(noise=noise)) for noise in (0, share))
        for image in ("before", "after"):
            right, said = looks(getattr(clean, image)), looks(getattr(noisy, image))
            present = {look(thing) for thing in meta[image]}
            named, extra = said[: len(right)], said[len(right) :]
            noise = [noise_of(*pair) for pair in zip(right, named, strict=True)]
            wrong = [
                words for words, kind in zip(named, noise, strict=True) if kind in ("wrong_object", "wrong_attribute")
            ]
            assert not present & {*wrong, *extra}, "no object of the image fits wrong words"
            kinds.update(kind for kind in noise if kind is not None)
            kinds["extra_object"] += len(extra)
            mentions += len(right)
    assert mentions > 1000
    count, error = sum(kinds.values()), (mentions * share * (1 - share)) ** 0.5
    assert abs(count - share * mentions) < 4 * error
    assert len(kinds) == 4
    for number in kinds.values():
        assert abs(number - count / 4) < 4 * (count * 3 / 16) ** 0.5


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    changed = {f"p{n:02}": {"meta": meta} for n, (_, meta) in zip(range(16), records().values(), strict=False)}
    return write_pairs(tmp_path_factory.mktemp("scenes") / "pairs", len(changed), **changed)


def job(pairs: str, out: Path, **more: Any) -> DescribeJob:
    return DescribeJob(pairs=pairs, out=str(out), describer="oracle", chunk_size=6, **more)


def run_job(one: DescribeJob) -> Manifest:
    return describe_pairs(one, run_local)


def test_captions_are_those_of_the_oracle_and_a_pair_without_a_scene_is_a_reject(pairs: str, tmp_path: Path) -> None:
    described = job(pairs, tmp_path / "out", oracle={"noise": 0.5, "seed": 3})
    assert run_job(described).num_rows == 16
    for row, pair_row in zip(iter_rows(described.out), iter_rows(pairs), strict=True):
        pair, meta = ChangePair.from_row(row), json.loads(pair_row["meta"])
        description = describe_by_oracle(pair.pair_id, meta, described.oracle)
        assert pair.captions == (description.sentence(),)
        assert pair.meta == meta
        assert pair.caption_origins[0].source == "oracle of rendered scenes, noise 0.5 (seed 3)"
        assert parse_description(pair.captions[0]) == description
    assert summarise_descriptions(described).repetition["rendered"].total == 16
    with pytest.raises(TooManyRejects, match="3 x no scene"):
        run_job(job(write_pairs(tmp_path / "pairs", 3), tmp_path / "none"))
