"""Rendered pairs as dialogues about one image, about two images of different scenes, and about a pair.

A pair's scene has three images (before, after, and the distractor's after); every ordered pair of them is a sample with
true captions. All draws of a sample depend on (seed, epoch, index) alone, its stage on the epoch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from idc.data.augmentation import mirror_caption
from idc.data.images import decode_image
from idc.data.mapped_rows import MappedRows
from idc.data.rendered.captions import captions_of_record, no_change_captions
from idc.data.rendered.config import ChangeType
from idc.data.rendered.differences import DIFFERENCES
from idc.data.rendered.scene import REVERSED
from idc.data.rendered.several import captions_of_differences, reversed_record
from idc.metrics.hallucination import truth_in
from idc.schema import IMAGE, NO_CHANGE, Turn
from idc.training.data import sample_rng
from idc.training.stratified import stratified_subset
from idc.vlm.config import PAIR_PROMPT
from idc.vlm.pretrain_config import TASKS, PretrainVlmJob
from idc.vlm.scene_sentences import (
    ABOUT_AN_IMAGE,
    SceneQuestion,
    SeenObject,
    list_one,
    moved,
    named_change,
    object_listing,
    seen_objects,
    which_image,
)

COLUMNS = ("pair_id", "before", "after", "captions", "change_type", "meta")
_TWO_IMAGES = PAIR_PROMPT[: PAIR_PROMPT.rindex(IMAGE) + len(IMAGE)] + "\n"
"""The start of a question about two images, as that of the prompt for pairs."""
_RELATION_SHARE = 0.25
_QUESTIONS = 1
"""Questions of a training sample after its first one."""
_SHIFT = 0.06
"""Largest shift of a training sample's images along each axis, as a share of the image."""
_MARGIN = 0.04
"""Least distance of an object's centre from the border of a shifted image, as a share of the image."""


@dataclass(frozen=True)
class SceneSample:
    """A dialogue about images of rendered scenes.

    Attributes:
        task: one of :data:`idc.vlm.pretrain_config.TASKS`.
        scene: of its first image; images of other samples of the same scene may be equal.
        images: uint8 (H, W, 3), one or two.
        turns: questions and answers in turn.
        listing: the answer of a sample whose only question is the list of an image's objects, if it is scored.
        scored: of a pair as it is stored: ``pair_id``, ``references``, ``truth`` (None if its change is not single).
    """

    task: str
    scene: int
    images: tuple[np.ndarray, ...]
    turns: tuple[Turn, ...]
    listing: str | None = None
    scored: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _View:
    """An image of a scene, and what is known of it; ``things`` and ``view`` as in ``meta``."""

    image: np.ndarray
    things: Sequence[Mapping[str, Any]]
    view: Mapping[str, Any]

    @property
    def objects(self) -> list[SeenObject]:
        height, width = self.image.shape[:2]
        return seen_objects(self.things, self.view, (height, width))


class RenderedScenes:
    """The pairs of a split with their scenes, images decoded once.

    Raises:
        ValueError: the folder's pairs have no scenes.
    """

    def __init__(self, pairs: str, split: str):
        self.rows = MappedRows(pairs, COLUMNS, split)
        if not len(self.rows):
            raise ValueError(f"pairs: {pairs} has no pairs of the split {split!r}; render more scenes")
        self.metas: list[dict[str, Any]] = [json.loads(text) if text else {} for text in self.rows.column("meta")]
        if any(not {"scene", "before", "after", "views"} <= meta.keys() for meta in self.metas):
            raise ValueError(
                f"pairs: {pairs} has pairs without a scene in their meta; give a folder made by jobs/render.py"
            )
        self.kinds: list[str] = self.rows.column("change_type")
        self.scenes: list[int] = [meta["scene"] for meta in self.metas]
        self._rows_of: dict[int, list[int]] = {}
        for row, scene in enumerate(self.scenes):
            self._rows_of.setdefault(scene, []).append(row)
        self._decoded: dict[bytes, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.metas)

    def views(self, row: int) -> tuple[_View, _View]:
        """Of the images before and after of a pair."""
        columns, meta = self.rows[row], self.metas[row]
        before, after = (
            _View(self._image(columns[name]), meta[name], view)
            for name, view in zip(("before", "after"), meta["views"], strict=True)
        )
        return before, after

    def _image(self, data: bytes) -> np.ndarray:
        key = hashlib.blake2b(data, digest_size=16).digest()
        if key not in self._decoded:
            self._decoded[key] = decode_image(data)
        return self._decoded[key]

    def ordered(self, row: int, rng: np.random.Generator) -> tuple[tuple[_View, _View], str, SceneQuestion | None]:
        """Two images of a pair's scene in any order, a caption, and the change by name, unless there may be several.

        Every other draw shows a change, if one of the scene's can be described."""
        views = [view for pair in self._rows_of[self.scenes[row]] for view in self.views(pair)]
        if rng.random() < 0.5:
            wanted = [(a, b) for a in views for b in views if a.things != b.things]
            for choice in rng.permutation(len(wanted)):
                first, second = wanted[int(choice)]
                if DIFFERENCES in (meta := self.metas[row]):
                    record = meta if first.things == meta["before"] else reversed_record(meta)
                    if captions := captions_of_differences(record, 1, rng):
                        return (first, second), captions[0], None
                    continue
                kind = self._kind(row, first)
                captions = captions_of_record(
                    kind,
                    {"before": first.things, "after": second.things, "views": [first.view, second.view]},
                    1, _RELATION_SHARE, rng,
                )  # fmt: skip
                if captions:
                    return (first, second), captions[0], named_change(kind, first.things, second.things)
        first = views[int(rng.integers(len(views)))]
        same = [view for view in views if view.things == first.things]
        second = same[int(rng.integers(len(same)))]
        return (first, second), no_change_captions(1, rng)[0], named_change(NO_CHANGE, first.things, second.things)

    def _kind(self, row: int, first: _View) -> ChangeType:
        """The type of the scene's change, from an image of one of its two states."""
        changed = next(pair for pair in self._rows_of[self.scenes[row]] if self.kinds[pair] != NO_CHANGE)
        kind: ChangeType = self.kinds[changed]  # type: ignore[assignment]  # not NO_CHANGE
        return kind if first.things == self.metas[changed]["before"] else REVERSED.get(kind, kind)


class SceneDialogues:
    """Training samples: as many in an epoch as the split has pairs.

    Args:
        epochs: of the whole training, for the stages.
    """

    def __init__(self, scenes: RenderedScenes, job: PretrainVlmJob, epochs: float):
        self.scenes, self.job, self.epochs = scenes, job, epochs

    def __len__(self) -> int:
        return len(self.scenes)

    def get(self, index: int, epoch: int) -> SceneSample:
        rng = sample_rng(self.job.train.seed, epoch, index)
        weights = np.array(self.job.stage_at(epoch / self.epochs).weights)
        task = TASKS[int(rng.choice(len(TASKS), p=weights / weights.sum()))]
        views: tuple[_View, ...]
        caption, named = "", None
        if task == "compare":
            views, caption, named = self.scenes.ordered(index, rng)
        else:
            views = (self.scenes.views(index)[int(rng.integers(2))],)
            if task == "choose":
                other = self.scenes.views(int(rng.integers(len(self.scenes))))
                views = (*views, other[int(rng.integers(2))])
        images, objects, caption = self._varied(views, caption, rng)
        turns = dialogue(task, objects, rng, caption, named, _QUESTIONS)
        return SceneSample(task, self.scenes.scenes[index], images, turns)

    def _varied(
        self, views: Sequence[_View], caption: str, rng: np.random.Generator
    ) -> tuple[tuple[np.ndarray, ...], list[list[SeenObject]], str]:
        """Images, objects and caption, all of them mirrored or not and shifted by the same shares."""
        mirrored = rng.random() < 0.5
        objects = [moved(view.objects, mirrored) for view in views]
        shift = self._shift(objects, rng)
        images = tuple(_shifted(view.image[:, ::-1] if mirrored else view.image, shift) for view in views)
        sizes = [image.shape for image in images]
        done = [(round(shift[0] * width) / width, round(shift[1] * height) / height) for height, width, _ in sizes]
        placed = [moved(view_objects, False, by) for view_objects, by in zip(objects, done, strict=True)]
        return images, placed, mirror_caption(caption) if mirrored else caption

    def _shift(self, objects: Sequence[Sequence[SeenObject]], rng: np.random.Generator) -> tuple[float, float]:
        """A shift along x and y that keeps the centres of all objects in their images."""
        drawn = rng.uniform(-_SHIFT, _SHIFT, 2)
        centres = np.array([(seen.x, seen.y) for each in objects for seen in each]).reshape(-1, 2)
        if len(centres):
            least, most = _MARGIN - centres.min(axis=0), 1 - _MARGIN - centres.max(axis=0)
            drawn = np.clip(drawn, np.minimum(least, 0), np.maximum(most, 0))
        return float(drawn[0]), float(drawn[1])


class ValidationDialogues:
    """Every pair of a split three times, as it is stored: its image before, its two images with those of another scene,
    and the pair. Samples of one task are neighbours."""

    def __init__(self, scenes: RenderedScenes, job: PretrainVlmJob):
        self.scenes, self.job = scenes, job
        count = len(scenes) if job.validation_pairs is None else min(len(scenes), job.validation_pairs)
        self.taken = stratified_subset(scenes.kinds, count)

    def __len__(self) -> int:
        return len(TASKS) * len(self.taken)

    def get(self, index: int, epoch: int) -> SceneSample:
        rng = sample_rng(self.job.train.seed, epoch, index)
        task, row = TASKS[index // len(self.taken)], self.taken[index % len(self.taken)]
        before, after = self.scenes.views(row)
        caption, scored = "", None
        views: tuple[_View, ...] = (before,)
        if task == "choose":
            views = (before, self.scenes.views(self.taken[(index + len(self.taken) // 2) % len(self.taken)])[1])
        elif task == "compare":
            stored, meta = self.scenes.rows[row], self.scenes.metas[row]
            views, caption = (before, after), stored["captions"][0]
            truth = truth_in(stored["change_type"], meta)
            scored = {"pair_id": stored["pair_id"], "references": stored["captions"], "truth": truth}
        turns = dialogue(task, [view.objects for view in views], rng, caption)
        listing = turns[1].text if task == "describe" else None
        return SceneSample(task, self.scenes.scenes[row], tuple(view.image for view in views), turns, listing, scored)


def dialogue(
    task: str,
    objects: Sequence[Sequence[SeenObject]],
    rng: np.random.Generator,
    caption: str = "",
    named: SceneQuestion | None = None,
    questions: int = 0,
) -> tuple[Turn, ...]:
    """The turns of a task about images with these objects.

    Args:
        caption: of a pair.
        named: the change of a pair by name; if it is given, three of five pairs are asked for it, or which of
            their images shows an object, instead of a caption.
        questions: after the first one, where the task is not to compare.
    """
    if task == "describe":
        (seen,) = objects
        asked = [object_listing(seen)]
        asked += [ABOUT_AN_IMAGE[int(rng.integers(len(ABOUT_AN_IMAGE)))](seen, rng) for _ in range(questions)]
        asked = [asked[int(number)] for number in rng.permutation(len(asked))]
        head = IMAGE + "\n"
    else:
        first, second = objects
        head = _TWO_IMAGES
        if task == "choose":
            about = (which_image, list_one)
            begin = int(rng.integers(2))
            asked = [about[(begin + number) % 2](first, second, rng) for number in range(questions + 1)]
        else:
            asked = [SceneQuestion(PAIR_PROMPT.removeprefix(_TWO_IMAGES), caption)]
            if named is not None:
                draw = rng.random()
                asked = asked if draw < 0.4 else [named] if draw < 0.8 else [which_image(first, second, rng)]
    asked[0] = SceneQuestion(head + asked[0].question, asked[0].answer)
    return tuple(
        turn
        for exchange in asked
        for turn in (Turn("user", exchange.question), Turn("assistant", exchange.answer, task))
    )


def _shifted(image: np.ndarray, shift: tuple[float, float]) -> np.ndarray:
    """The image shifted to the right and down by shares of its width and height, its border repeated."""
    height, width = image.shape[:2]
    across = np.clip(np.arange(width) - round(shift[0] * width), 0, width - 1)
    down = np.clip(np.arange(height) - round(shift[1] * height), 0, height - 1)
    return np.ascontiguousarray(image[down[:, None], across])
