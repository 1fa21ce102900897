"""Settings of the rendered pairs: how hard they are, how large, how many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from idc.config import ConfigModel
from idc.rendered.differences import DifferenceKind

Shape = Literal["cube", "sphere", "cylinder"]
Color = Literal["gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"]
Material = Literal["rubber", "metal"]
ChangeType = Literal["color", "material", "add", "drop", "move"]
JitterName = Literal["none", "slight", "mild", "moderate", "extreme"]
Work = Literal["houses", "houses_and_road", "road", "large_building", "demolition", "extension"]
"""What is built or removed between the two dates."""
Setting = Literal["suburb", "woods", "fields", "village", "commercial"]
"""The kind of landscape."""


@dataclass(frozen=True)
class Jitter:
    """Largest deviations of camera and lamps from their base positions; every draw is uniform in its range.

    Attributes:
        azimuth: largest turn of the camera about the vertical axis through its target, degrees to either side.
        elevation: largest change of the camera's height angle, degrees.
        distance: largest relative change of the camera's distance.
        target: largest shift of the point looked at, in scene units along each ground axis.
        lamp: largest shift of each lamp along each axis, in scene units.
        brightness: largest relative change of each lamp's power.
    """

    azimuth: float
    elevation: float
    distance: float
    target: float
    lamp: float
    brightness: float


JITTERS: dict[JitterName, Jitter] = {
    "none": Jitter(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "slight": Jitter(1.0, 0.7, 0.01, 0.03, 0.2, 0.05),
    "mild": Jitter(3.0, 2.0, 0.03, 0.08, 0.5, 0.10),
    "moderate": Jitter(10.0, 4.0, 0.10, 0.30, 1.0, 0.20),
    "extreme": Jitter(50.0, 8.0, 0.20, 0.50, 2.0, 0.30),
}
"""The named viewpoint and light changes between the images of a scene."""


class VariationConfig(ConfigModel):
    """How much scenes and pictures vary beyond the differences that `jitter` makes within a scene. 0, the default of
    all, means no variation: one place, one kind of light, one ideal camera.

    What belongs to the place, the objects and the kind of camera is drawn once per scene and shared by its three
    images; what a camera sets anew for each picture is drawn per image. Draws are uniform in their range. A *stop* is a
    factor of two: 1 means half to double."""

    elevation: float = Field(default=0, ge=0, le=20)
    """Largest deviation of the camera's height angle from 27 degrees. Per scene."""
    distance: float = Field(default=0, ge=0, le=0.5)
    """Largest relative deviation of the camera's distance: how large objects show. Per scene."""
    lens: float = Field(default=0, ge=0, le=0.5)
    """Largest relative deviation of the focal length from CLEVR's 35 mm; the camera is as much farther or nearer, so
    that perspective changes and framing stays. Per scene."""
    lamp_turn: float = Field(default=0, ge=0, le=180)
    """Largest turn of the three lamps about the vertical axis, degrees: the direction of shadows. Per scene."""
    lamp_height: float = Field(default=0, ge=0, le=0.7)
    """Largest relative deviation of each lamp's height: the length of shadows. Per scene."""
    lamp_power: float = Field(default=0, ge=0, le=3)
    """Largest deviation of each lamp's power, stops. Per scene."""
    lamp_size: float = Field(default=0, ge=0, le=3)
    """Largest deviation of the lamps' edge length at the same power, stops: the softness of shadows. Per scene."""
    sky: float = Field(default=0, ge=0, le=3)
    """Largest deviation of the light from all sides, stops: the depth of shadows. Per scene."""
    ground: float = Field(default=0, ge=0, le=1.5)
    """Largest deviation of the ground's reflectance, stops. Per scene."""
    ground_tint: float = Field(default=0, ge=0, le=0.5)
    """Largest relative deviation of each channel of the ground's reflectance. Per scene."""
    object_size: float = Field(default=0, ge=0, le=0.3)
    """Largest relative deviation of an object's radius from `large_radius` or `small_radius`. Per object."""
    object_tint: float = Field(default=0, ge=0, le=0.5)
    """Largest relative deviation of each channel of each of the eight colours. Per scene."""
    roughness: float = Field(default=0, ge=0, le=2)
    """Largest deviation of the roughness of metal, stops: from mirrors to brushed metal. Per scene."""
    rubber_gloss: float = Field(default=0, ge=0, le=0.3)
    """Largest share of mirror-like reflection of rubber. Per scene."""
    exposure: float = Field(default=0, ge=0, le=2)
    """Largest deviation of the exposure, stops. Per image."""
    contrast: float = Field(default=0, ge=0, le=0.5)
    """Largest relative deviation of the contrast. Per image."""
    blur: float = Field(default=0, ge=0, le=5)
    """Largest standard deviation of the blur, pixels. Per image."""
    noise: float = Field(default=0, ge=0, le=0.3)
    """Largest standard deviation of the sensor's noise as a share of white. The level is per scene."""
    jpeg_share: float = Field(default=0, ge=0, le=1)
    """Share of scenes whose images are JPEG files of a quality from 60 to 95; the others are PNG. Per scene."""


class SeveralConfig(ConfigModel):
    """Scenes that give one pair each, with none to several changes."""

    min_changes: int = Field(default=0, ge=0, le=5)
    """Fewest changes of a pair. Scene n has `min_changes + n % (max_changes - min_changes + 1)`, so the numbers are
    balanced."""
    max_changes: int = Field(default=5, ge=0, le=5)
    """Most changes of a pair."""
    kinds: tuple[DifferenceKind, ...] = Field(default=get_args(DifferenceKind), min_length=1)
    """Kinds of change to draw from, balanced over the scenes."""
    max_group: int = Field(default=4, ge=2, le=6)
    """Most objects of one look if their number changes (kind `count`)."""
    letter_share: float = Field(default=0.4, ge=0, le=1)
    """Share of large cubes with a letter on them, if kinds has `text`; those whose letter changes come on top."""
    camera_share: float = Field(default=0.75, ge=0, le=1)
    """Share of the pairs between whose images the camera moves, by `jitter`: a distractor, no change."""
    lamp_share: float = Field(default=0.75, ge=0, le=1)
    """Share of the pairs between whose images the lamps move and change their power, by `jitter`."""

    @property
    def num_counts(self) -> int:
        """How many numbers of changes there are."""
        return self.max_changes - self.min_changes + 1

    def errors(self) -> Iterator[str]:
        if self.min_changes > self.max_changes:
            yield f"min_changes {self.min_changes} is above max_changes {self.max_changes}"
        if len(set(self.kinds)) < len(self.kinds):
            yield "kinds names a value twice"


class DistractorConfig(ConfigModel):
    """Differences between the two dates that do not change roads or buildings: each a share of the pairs, changed or
    not. With all at 0, only the changed objects and their shadows differ."""

    surroundings: float = Field(default=0.95, ge=0, le=1)
    """Share of the changed pairs where lots are cleared and laid out with what is built: trees, lawns, driveways,
    parking lots, bare soil. Otherwise the land is the same at both dates."""
    season: float = Field(default=0.7, ge=0, le=1)
    """Share with another season: colours of grass and fields, leaves of trees."""
    light: float = Field(default=0.9, ge=0, le=1)
    """Share with another position of the sun: direction and length of shadows."""
    exposure: float = Field(default=0.95, ge=0, le=1)
    """Share with other exposure, contrast, saturation and colour cast."""
    haze: float = Field(default=0.25, ge=0, le=1)
    """Share with haze or thin cloud over one of the images."""
    growth: float = Field(default=0.7, ge=0, le=1)
    """Share where trees have grown or are gone, and land between them has changed its cover a little."""
    vehicles: float = Field(default=0.95, ge=0, le=1)
    """Share with other cars at the second date."""
    camera: float = Field(default=0.8, ge=0, le=1)
    """Share with another sharpness, noise and compression."""
    shift: float = Field(default=0.8, ge=0, le=1)
    """Share where the images are not registered exactly."""
    shift_metres: float = Field(default=0.5, ge=0, le=5)
    """Largest registration error along each axis."""


class SatelliteConfig(ConfigModel):
    """Top-down scenes with changes of roads and buildings, in LEVIR-CC's manner (0.5 m a pixel, half of the pairs
    without a change, five captions)."""

    metres_per_pixel: float = Field(default=0.5, ge=0.2, le=3)
    """Ground resolution (LEVIR: 0.5)."""
    supersampling: int = Field(default=2, ge=1, le=4)
    """Pixels are drawn this many times finer along each axis, then averaged."""
    unchanged_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the pairs without a change (LEVIR-CC: 0.50)."""
    works: tuple[Work, ...] = Field(default=get_args(Work), min_length=1)
    """Kinds of change, in turn over the changed pairs."""
    settings: tuple[Setting, ...] = Field(default=get_args(Setting), min_length=1)
    """Landscapes to draw from."""
    min_visible_pixels: int = Field(default=40, ge=4)
    """Least number of mask pixels of every changed road or building."""
    distractors: DistractorConfig = DistractorConfig()
    """What differs without being a change."""

    def errors(self) -> Iterator[str]:
        for name in ("works", "settings"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                yield f"{name} names a value twice"


class RenderConfig(ConfigModel):
    """Appearance of the scenes. The defaults are CLEVR-Change's: 480x320, 3 to 10 objects, moderate jitter."""

    num_scenes: int = Field(default=39_803, ge=1)
    """Scenes; each gives two pairs, one with a change and one with distractors only (CLEVR-Change: 39,803)."""
    ordered_pairs: bool = False
    """Of scenes of the train split, all ordered pairs of the three images and two images paired with themselves: eight
    pairs, four of them changed, from the same renderings. Validation and test scenes keep their two."""
    seed: int = Field(default=0, ge=0)
    """Scene n of a seed is always the same; another seed is another data set."""
    width: int = Field(default=480, ge=16, le=4096)
    """Pixels."""
    height: int = Field(default=320, ge=16, le=4096)
    """Pixels."""
    samples_per_pixel: int = Field(default=16, ge=1, le=4096)
    """Light paths per pixel, rounded up to a grid; time is proportional. 8, 16 and 64 look best for their time, because
    they are divided evenly among the lamps."""
    min_objects: int = Field(default=3, ge=1, le=12)
    """Fewest objects in the default image."""
    max_objects: int = Field(default=10, ge=1, le=12)
    """Most objects in the default image."""
    jitter: JitterName = "moderate"
    """Camera and light differences of both after images: `moderate` as in CLEVR-Change, `extreme` as in CLEVR-DC."""
    change_types: tuple[ChangeType, ...] = Field(default=("color", "material", "add", "drop", "move"), min_length=1)
    """Scene n has the change `change_types[n % len]`, so the types are balanced."""
    shapes: tuple[Shape, ...] = Field(default=("cube", "sphere", "cylinder"), min_length=1)
    """Shapes to draw from."""
    colors: tuple[Color, ...] = Field(
        default=("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"), min_length=1
    )
    """Colours to draw from."""
    materials: tuple[Material, ...] = Field(default=("rubber", "metal"), min_length=1)
    """Materials to draw from: diffuse `rubber`, glossy `metal`."""
    large_radius: float = Field(default=0.7, gt=0, le=2)
    """Radius of a large sphere or cylinder in scene units; a cube's half edge is this over sqrt(2)."""
    small_radius: float = Field(default=0.35, gt=0, le=2)
    """The same of a small object."""
    extent: float = Field(default=3.0, gt=0, le=10)
    """Objects lie within plus and minus this on both ground axes."""
    camera_distance: float = Field(default=11.6, gt=2, le=60)
    """From the camera to the point it looks at."""
    min_gap: float = Field(default=0.25, ge=0, le=5)
    """Smallest free space between any two objects."""
    min_move: float = Field(default=1.0, ge=0, le=5)
    """Smallest distance that a moved object travels."""
    min_visible_pixels: int = Field(default=200, ge=1)
    """Least number of visible pixels of every object in every image it is in (CLEVR: 200 at 480x320)."""
    captions_per_pair: int = Field(default=6, ge=1, le=8)
    """Reference captions of each pair (CLEVR-Change has 6.2 on average)."""
    relation_share: float = Field(default=0.25, ge=0, le=1)
    """Share of captions that use a relation although attributes alone would be unambiguous."""
    val_share: float = Field(default=0.05, ge=0, lt=1)
    """Share of the scenes in the validation split."""
    test_share: float = Field(default=0.10, ge=0, lt=1)
    """Share of the scenes in the test split."""
    variation: VariationConfig = VariationConfig()
    """How much scenes and pictures vary."""
    several: SeveralConfig | None = None
    """If given, each scene gives one pair with none to several changes, instead of one with one change and one without;
    `change_types` and `relation_share` are not used."""
    satellite: SatelliteConfig | None = None
    """If given, each scene gives one satellite pair; of the other settings `num_scenes`, `seed`, `width`, `height`,
    `val_share` and `test_share` are used."""

    def errors(self) -> Iterator[str]:
        if self.satellite is not None:
            for name in sorted(RenderConfig.model_fields.keys() - _OF_SATELLITE):
                if getattr(self, name) != RenderConfig.model_fields[name].default:
                    yield f"{name} is not used with satellite; leave it out"
        if self.min_objects > self.max_objects:
            yield f"min_objects {self.min_objects} is above max_objects {self.max_objects}"
        if self.small_radius >= self.large_radius:
            yield f"small_radius {self.small_radius} is not below large_radius {self.large_radius}"
        elif self.small_radius * (1 + (vary := self.variation.object_size)) >= self.large_radius * (1 - vary):
            yield (
                f"variation.object_size {vary:g} lets small objects be as large as large ones; it must be below "
                f"{(self.large_radius - self.small_radius) / (self.large_radius + self.small_radius):.3f}"
            )
        if self.val_share + self.test_share >= 1:
            yield f"val_share + test_share is {self.val_share + self.test_share:g}; nothing is left for training"
        if "color" in self.change_types and len(set(self.colors)) < 2:
            yield "change_types has 'color', so colors needs at least two colours"
        if "material" in self.change_types and len(set(self.materials)) < 2:
            yield "change_types has 'material', so materials needs both materials"
        if "drop" in self.change_types and self.min_objects < 2:
            yield f"change_types has 'drop', so min_objects must be at least 2, not {self.min_objects}"
        for name in ("change_types", "shapes", "colors", "materials"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                yield f"{name} names a value twice"
        if self.several is not None:
            yield from self._errors_of_several(self.several)

    def _errors_of_several(self, several: SeveralConfig) -> Iterator[str]:
        for name in ("ordered_pairs", "change_types", "relation_share"):
            if getattr(self, name) != RenderConfig.model_fields[name].default:
                yield f"{name} is not used with several; leave it out"
        if not several.max_changes:
            return
        for kind, name, least in (("replace", "shapes", 2), ("color", "colors", 2), ("material", "materials", 2)):
            if kind in several.kinds and len(set(getattr(self, name))) < least:
                yield f"several.kinds has {kind!r}, so {name} needs at least {least}; add one or leave the kind out"
        for kind in ("orientation", "text"):
            if kind in several.kinds and "cube" not in self.shapes:
                yield f"several.kinds has {kind!r}, which only cubes show; add cube to shapes or leave the kind out"
        if several.max_changes >= self.max_objects:
            yield (
                f"several.max_changes {several.max_changes} needs more than max_objects {self.max_objects} objects: "
                "one a change and one that stays; lower it or raise max_objects"
            )


_OF_SATELLITE = {"satellite", "num_scenes", "seed", "width", "height", "val_share", "test_share"}
"""Settings that satellite pairs use."""


class RenderJob(ConfigModel):
    """Render a data set folder of pairs."""

    out: str
    """The data set folder to write. Path or URI."""
    render: RenderConfig = RenderConfig()
    """The scenes."""
    chunk_size: int = Field(default=20, ge=1, le=10_000)
    """Scenes per chunk of work (one Parquet part with two pairs of each, or eight)."""
    workers: int = Field(default=2, ge=1)
    """Scenes rendered at a time, each on one core: Ray actors, or with --local processes."""
    max_reject_share: float = Field(default=0.01, ge=0, le=1)
    """The job fails if more than this share of the scenes cannot be placed."""
