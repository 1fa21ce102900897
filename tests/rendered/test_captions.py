"""Captions of scenes: true, unambiguous, read back by a parser of their own."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from idc.rendered.captions import changed_object_of_pair, descriptions
from idc.rendered.draw import draw_scene
from idc.rendered.scene import PairScene, SceneObject
from idc.rendered.sentences import captions_of_meta, change_captions
from tests.rendered.conftest import CLEVR, SMALL

WORDS = {
    "size": {"large": "large", "big": "large", "small": "small", "tiny": "small"},
    "color": {c: c for c in ["gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"]},
    "material": {"rubber": "rubber", "matte": "rubber", "metal": "metal", "metallic": "metal", "shiny": "metal"},
    "shape": {"sphere": "sphere", "ball": "sphere", "cube": "cube", "block": "cube", "cylinder": "cylinder"},
}
NOUNS = "sphere|ball|cube|block|cylinder|object|thing"
ADJECTIVES = "|".join([*WORDS["size"], *WORDS["color"], *WORDS["material"]])
NOUN_PHRASE = rf"((?:(?:{ADJECTIVES}) )*(?:{NOUNS}))"
DESCRIPTION = re.compile(rf"\b{NOUN_PHRASE}(?: that is ([a-z ]+?) the {NOUN_PHRASE})?")


def fits(thing: SceneObject, phrase: str) -> bool:
    """Whether every word of a noun phrase is true of an object."""
    for word in phrase.split():
        kind = next((kind for kind, words in WORDS.items() if word in words), None)
        if kind is not None and getattr(thing, kind) != WORDS[kind][word]:
            return False
    return True


def stands(a: SceneObject, relation: str, b: SceneObject, view) -> bool:
    """A relation read in camera coordinates: to which side of b, or how much nearer, a is."""
    forward = np.subtract(view.target, view.origin)[:2]
    forward = forward / np.linalg.norm(forward)
    offset = np.array([a.x - b.x, a.y - b.y])
    depth, side = float(offset @ forward), float(offset[0] * forward[1] - offset[1] * forward[0])
    if "left" in relation:
        return side < 0
    if "right" in relation:
        return side > 0
    return depth < 0 if relation == "in front of" else depth > 0


def named(caption: str, things: tuple[SceneObject, ...], view) -> list[SceneObject]:
    """The objects that the description in a caption fits, read by a parser that knows nothing of how it was made."""
    match = DESCRIPTION.search(caption)
    assert match, caption
    phrase, relation, anchor_phrase = match.groups()
    found = [thing for thing in things if fits(thing, phrase)]
    if relation is None:
        return found
    anchors = [thing for thing in things if fits(thing, anchor_phrase)]
    assert len(anchors) == 1, f"{caption}: {len(anchors)} second objects"
    return [thing for thing in found if thing is not anchors[0] and stands(thing, relation, anchors[0], view)]


def check_names(caption: str, pair: PairScene) -> bool:
    """A caption names the changed object and no other, and the new look; returns whether it has a relation."""
    kind = pair.change_type
    gone = [thing for thing in pair.before if thing not in pair.after]
    new = [thing for thing in pair.after if thing not in pair.before]
    if gone:
        assert named(caption, pair.before, pair.views[0]) == gone, caption
    if kind in ("add", "move"):
        assert named(caption, pair.after, pair.views[1]) == new, caption
    if kind in ("color", "material"):
        assert WORDS[kind][caption.split()[-1]] == getattr(new[0], kind), caption
    return " that is " in caption


@pytest.mark.parametrize("jitter", ["moderate", "extreme"])
def test_captions_name_the_changed_object_and_no_other(jitter):
    config = CLEVR.model_copy(update={"jitter": jitter, "relation_share": 0.5, "min_objects": 5})
    relational = 0
    for index in range(60):
        scene, rng = draw_scene(config, index)
        captions = change_captions(scene, 8, config.relation_share, rng)
        assert len(set(captions)) == 8
        relational += sum(check_names(caption, scene.pair()) for caption in captions)
    assert relational > 60


def twin_scene(*others: SceneObject) -> PairScene:
    """A small red cube that turns blue, among other objects."""
    cube = SceneObject("cube", "red", "rubber", "small", 0.35, 0.0, 0.0, 0.0)
    blue = replace(cube, color="blue")
    views = draw_scene(SMALL, 0)[0].views[:2]
    return PairScene((cube, *others), (blue, *others), views, [{"kind": "color", "before": [0], "after": [0]}])


def test_a_scene_in_which_nothing_is_unique_is_not_describable():
    twins = [SceneObject("cube", "red", "rubber", "small", 0.35, float(x), 0.0, 0.0) for x in (-2, 2)]
    pair = twin_scene(*twins)
    assert descriptions(*changed_object_of_pair(pair)) == ([], [])
    meta = {"before": [asdict(thing) for thing in pair.before], "after": [asdict(thing) for thing in pair.after]}
    meta["views"] = [view.record() for view in pair.views]
    assert captions_of_meta(meta, "color", 6, 0.5, np.random.default_rng(0)) == []


def test_a_relation_that_the_other_view_denies_is_not_used():
    pair = twin_scene(SceneObject("sphere", "green", "metal", "large", 0.7, 1.5, 0.5, 0.0))
    first = pair.views[0]
    opposite = replace(first, origin=(-first.origin[0], -first.origin[1], first.origin[2]))
    assert descriptions(*changed_object_of_pair(pair._replace(views=(first, first))))[1]
    assert descriptions(*changed_object_of_pair(pair._replace(views=(first, opposite))))[1] == []
