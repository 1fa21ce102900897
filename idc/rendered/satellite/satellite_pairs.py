"""The rows of rendered satellite pairs, each from its index: images, class mask, list of changes, captions."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import cv2
import numpy as np

from idc.data.change_masks import GREYS, POSITIONS, grid_position
from idc.data.images import encode_png
from idc.data.pipeline import Batch
from idc.data.schema import NO_CHANGE, ChangePair
from idc.rendered.config import RenderConfig
from idc.rendered.draw import UnplaceableScene, rows_of_scenes, split_of
from idc.rendered.satellite.aerial import CURBS, paint, photograph
from idc.rendered.satellite.canvas import Canvas, GroundNoise
from idc.rendered.satellite.levir_sentences import Words, levir_captions
from idc.rendered.satellite.site import ALWAYS, BUILT, REMOVED, Road, Site, UnusableSite
from idc.rendered.satellite.siting import draw_site

ROAD, BUILDING = GREYS.values()
"""Values of a class mask; 0 is what has not changed."""

MAX_SITES = 60
"""Most sites drawn for an index before it is given up."""


class RenderSatellitePairs:
    """The stage that converts the column ``index`` to the columns of pairs, one for each index. An index for which no
    site meets the settings becomes one row with the error ``"unplaceable scene: ..."``."""

    def __init__(self, config: RenderConfig):
        assert config.satellite is not None
        self.config, self.satellite = config, config.satellite
        self.canvas = Canvas.of(
            config.width, config.height, self.satellite.metres_per_pixel, self.satellite.supersampling
        )

    def __call__(self, batch: Batch) -> Batch:
        return rows_of_scenes(
            batch, lambda index: (self.pair(index),), lambda index: f"s{self.config.seed}-{index:06d}"
        )

    def pair(self, index: int) -> ChangePair:
        """Pair ``index``.

        Raises:
            UnplaceableScene: no site meets the settings.
        """
        config = self.config
        site, changes, mask = self.site(index)
        images = self.images(site, index)
        words = nameable_words(site, changes, self.visible_roads(site))
        rng = np.random.default_rng((config.seed, index, 2**20))
        counts = Counter(change["class"] for change in changes)
        cells = {(change["class"], change["place"]) for change in changes}
        meta = {
            "scene": index,
            "changeflag": int(bool(changes)),
            "changes": changes,
            "counts": {name: counts[name] for name in ("road", "building")},
            "places": {
                name: [cell for cell in POSITIONS if (name, cell) in cells] for name in ("road", "building")
            },
            "landscape": site.facts["setting"],
            "metres_per_pixel": self.satellite.metres_per_pixel,
            "words": asdict(words),
            "conditions": [asdict(conditions) for conditions in site.conditions],
        }  # fmt: skip
        return ChangePair(
            pair_id=f"s{config.seed}-{index:06d}",
            before=images[0],
            after=images[1],
            captions=levir_captions(words, rng),
            change_type=None if changes else NO_CHANGE,
            split=split_of(config, index),
            mask=encode_png(mask),
            source=f"rendered-satellite:seed={config.seed}:scene={index}",
            meta=meta,
        )

    def site(self, index: int) -> tuple[Site, list[dict[str, Any]], np.ndarray]:
        """A site that meets the settings, its changes and its class mask."""
        reasons: Counter[str] = Counter()
        for attempt in range(MAX_SITES):
            try:
                site = draw_site(self.config, self.satellite, index, attempt)
                return (site, *self.changes(site))
            except UnusableSite as error:
                reasons[str(error)] += 1
        raise UnplaceableScene(
            f"{MAX_SITES} sites of {self.satellite.metres_per_pixel * self.config.width:g} m were drawn and none fits "
            f"({reasons.most_common(1)[0][0]}); raise width, height or metres_per_pixel, or lower min_visible_pixels"
        )

    def images(self, site: Site, index: int) -> tuple[bytes, bytes]:
        """Encoded images of both dates."""
        noise = GroundNoise(self.canvas, site.texture)
        first, second = (
            encode_png(photograph(paint(site, epoch, self.canvas, noise), (self.config.seed, index, epoch)))
            for epoch in (0, 1)
        )
        return first, second

    def changes(self, site: Site) -> tuple[list[dict[str, Any]], np.ndarray]:
        """The list of changes and the class mask.

        Raises:
            UnusableSite: a change is too small in the image, in several pieces, or touches another one; or there is
                none although there should be.
        """
        changes: list[dict[str, Any]] = []
        mask = np.zeros((self.config.height, self.config.width), np.uint8)
        new = [road for road in site.roads if road.epochs == BUILT]
        if new:
            pixels = np.zeros((self.canvas.height, self.canvas.width), np.uint8)
            for wanted, roads, wider in ((1, new, 0.0), (0, [r for r in site.roads if r.epochs == ALWAYS], -CURBS)):
                for road in roads:
                    if (masked := self.canvas.road(road, wider)) is not None:
                        window, inside = masked
                        pixels[window][inside > 0] = wanted
            streets = max(sum(self._shows(road) for road in new), 1)
            entry = self._entry(pixels, "road", "built", "road")
            if entry is not None:
                change, inside = entry
                changes.append({**change, "streets": streets, "form": site.facts["form"]})
                mask[inside] = ROAD
        for building in site.buildings:
            if building.epochs != ALWAYS or building.added:
                kind = {BUILT: "built", REMOVED: "removed"}.get(building.epochs, "extended")
                pixels = self.canvas.building(building, 0) ^ self.canvas.building(building, 1)
                entry = self._entry(pixels, "building", kind, building.noun)
                if entry is not None:
                    change, inside = entry
                    changes.append(change)
                    mask[inside] = BUILDING
        for name, value in (("road", ROAD), ("building", BUILDING)):
            pieces = cv2.connectedComponents((mask == value).astype(np.uint8), connectivity=8)[0] - 1
            if pieces != sum(change["class"] == name for change in changes):
                raise UnusableSite(f"changed {name}s touch")
        if site.facts["works"] != bool(changes):
            raise UnusableSite("nothing of the change is in the image")
        return changes, mask

    def _entry(self, pixels: np.ndarray, name: str, kind: str, noun: str) -> tuple[dict[str, Any], np.ndarray] | None:
        """A change and its pixels in the image, (H, W); None if it is outside."""
        inside = self.canvas.reduce(pixels * 255) > 127
        count = int(np.count_nonzero(inside))
        if not count:
            return None
        if count < self.satellite.min_visible_pixels:
            raise UnusableSite(f"a changed {name} shows too few pixels")
        if cv2.connectedComponents(inside.astype(np.uint8), connectivity=8)[0] != 2:
            raise UnusableSite(f"a changed {name} is in pieces")
        rows, columns = np.nonzero(inside)
        contours, _ = cv2.findContours(inside.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        polygon = cv2.approxPolyDP(max(contours, key=cv2.contourArea), 0.7, True)[:, 0]
        change = {
            "class": name,
            "kind": kind,
            "noun": noun,
            "place": grid_position(columns.mean() + 0.5, rows.mean() + 0.5, *inside.shape),
            "polygon": polygon.tolist(),
            "pixels": count,
        }
        return change, inside

    def _shows(self, road: Road) -> bool:
        masked = self.canvas.road(road)
        if masked is None:
            return False
        window, inside = masked
        pixels = np.zeros((self.canvas.height, self.canvas.width), np.uint8)
        pixels[window] = inside
        return int(np.count_nonzero(self.canvas.reduce(pixels * 255) > 127)) >= self.satellite.min_visible_pixels

    def visible_roads(self, site: Site) -> int:
        """Streets in the image at the second date."""
        return sum(self._shows(road) for road in site.roads if road.epochs[1])


def nameable_words(site: Site, changes: list[dict[str, Any]], roads: int) -> Words:
    """What the captions of a site may name."""
    buildings = [change for change in changes if change["class"] == "building"]
    kinds = Counter(change["kind"] for change in buildings)
    street = next((change for change in changes if change["class"] == "road"), None)
    changed = [building for building in site.buildings if building.epochs != ALWAYS or building.added]
    return Words(
        built=kinds["built"],
        removed=kinds["removed"],
        extended=kinds["extended"],
        noun=buildings[0]["noun"] if buildings else "house",
        large=any((main := building.blocks[0]).roof == "flat" and main.eaves >= 6 for building in changed),
        streets=street["streets"] if street else 0,
        form=street["form"] if street else "straight",
        ground=site.facts["context"],
        trees=site.facts["trees_removed"],
        parking=bool(site.facts.get("parking_built")),
        roads=roads,
        rows=tuple(site.facts.get("rows", ())),
        first_row=bool(site.facts["first_row"]),
        places=tuple(dict.fromkeys(change["place"] for change in changes)),
    )
