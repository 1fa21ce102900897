"""The package in Python: ``idc.load`` and ``idc.evaluate``, for notebooks and other programs.

    import idc

    captioner = idc.load()
    caption = captioner("before.png", "after.png")
    print(caption.caption, caption.verdict, caption.captioner)

The names are those of the package itself (``idc.load``); this module is loaded when one of them is first used.
"""

from __future__ import annotations

import html
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
from PIL import Image

from idc.captioning.apply import DecodedFile, Fault, describe_each, pixels_of
from idc.captioning.boxes import boxes_of, draw_boxes
from idc.captioning.contract import (
    Captioner,
    Description,
    SearchOptions,
    assessment_text,
    draw_map,
    sentence_without_model,
)
from idc.captioning.counts import counts_of
from idc.captioning.loading import CaptionerLoader, LoadConfig
from idc.captioning.objects_config import Mode, ObjectsConfig
from idc.captioning.pair import read_images
from idc.captioning.region_of_interest import Box, read_areas
from idc.captioning.sources import AUTO
from idc.data.images import encode_png, image_of, resize_image
from idc.util.option_values import listed

if TYPE_CHECKING:
    from idc.evaluation.record import Evaluation
    from idc.metrics.protocols import ProtocolName

ImageSource = str | os.PathLike[str] | Image.Image | np.ndarray
"""An image: a file or URI, also of a PDF, an image of Pillow, or an array (H, W), (H, W, 3) or (H, W, 4) of uint8."""
PartSource = Box | ImageSource
"""A part of an image: left, top, right and bottom, or a mask, which is white there."""
ImageSources = list[Any] | tuple[Any, ...]
"""Several images."""

_SHOWN = 320
"""Height of the images in a notebook, in pixels."""


def load(
    source: str | os.PathLike[str] = AUTO,
    *,
    device: str | None = None,
    speed: str = "auto",
    base: str | None = None,
    endpoint: str | None = None,
    detector: str | None = None,
    names: Sequence[str] | None = None,
    mode: Mode | None = None,
) -> LoadedCaptioner:
    """Load a captioner.

    Args:
        source: ``auto``, for each pair ``objects``, unless the newest captioner below ``runs/`` with a familiarity, or
            ``shipped``, knows both images and is not contradicted; ``objects``, which needs no training and names what
            changed; ``regions``, the same without names of objects; ``shipped``, the small one of rendered scenes that
            comes with the package; an artifact's folder or URI; ``hf:ORG/NAME``, a vision-language model of the
            Hugging Face hub; ``models:/NAME@ALIAS`` or ``models:/NAME/VERSION``, a model of the MLflow registry at
            ``MLFLOW_TRACKING_URI``.
        device: torch device, e.g. ``cuda``; by default cuda if there is one.
        speed: as the option ``--speed`` of the commands: auto, exact, fast or bf16.
        base: folder of the artifact's base model, if it is not where the artifact was made.
        endpoint: URL of a server that runs the language model of a vision-language artifact.
        detector, names, mode: of ``objects``, as in :class:`idc.captioning.objects_config.ObjectsConfig`.

    Raises:
        ValueError: there is no such captioner, or it cannot be loaded.
    """
    settings = {"detector": detector, "names": names, "mode": mode}
    objects = ObjectsConfig(**{field: value for field, value in settings.items() if value is not None})
    values = {"device": device, "speed": speed, "base": {"source": base}, "endpoint": endpoint and {"url": endpoint}}
    loader = CaptionerLoader(os.fspath(source), LoadConfig.model_validate({**values, "objects": objects}), gpus=None)
    return LoadedCaptioner(loader(), os.fspath(source), objects)


def evaluate(
    predictions: Sequence[str] | Mapping[str, str],
    references: Sequence[Sequence[str]] | Mapping[str, Sequence[str]],
    *,
    protocol: ProtocolName = "coco",
    metrics: Sequence[str] | None = None,
    resamples: int = 0,
) -> Evaluation:
    """Score captions against references with the metrics of the field: BLEU, METEOR, ROUGE-L and CIDEr.

    Args:
        predictions: a caption for each pair, as a list or by the pair's id; it may be alone in a list.
        references: the reference captions of each pair, in the same order or by the same ids. Ids are text or integers.
        protocol: how captions become tokens: ``coco`` (most papers), ``spot_single``, ``spot_multi``, ``levir_words``,
            ``characters`` (Chinese and other scripts without spaces).
        metrics: names of some of the metrics, for example ``["CIDEr"]``; all by default.
        resamples: number of bootstrap resamples for the intervals; 0 for none.

    Returns:
        The evaluation; ``scores`` has the numbers as fractions (papers print them times 100). CIDEr is NaN where it is
        not defined, as for a single pair; ``protocol["undefined"]`` has the reason.

    Raises:
        ValueError: the two do not belong to each other, a caption is empty, or there is no such protocol or metric.
        idc.metrics.java.JavaError: Java, which METEOR and the tokenizer need, does not work.
    """
    from typing import get_args

    from idc.evaluation.record import Prediction
    from idc.evaluation.score import evaluate_captions as score
    from idc.metrics.coco import METRICS
    from idc.metrics.protocols import ProtocolName, get_protocol

    names = [name for name in get_args(ProtocolName) if name != "levir_ids"]  # which needs the training captions
    if protocol not in names:
        raise ValueError(f"protocol: {protocol!r} is not one of {', '.join(names)}")
    if unknown := sorted(set(metrics or ()) - set(METRICS)):
        raise ValueError(f"metrics: {', '.join(unknown)} unknown; available: {', '.join(METRICS)}")
    captions, truth = _by_id(predictions, "predictions"), _by_id(references, "references")
    if captions.keys() != truth.keys():
        alone = sorted(captions.keys() ^ truth.keys())[:5]
        raise ValueError(
            f"{len(captions)} predictions and references of {len(truth)} pairs; in only one of them: {', '.join(alone)}"
        )
    if single := [name for name, value in truth.items() if isinstance(value, str)]:
        raise ValueError(f"references: a list of captions for each pair, but {single[0]} has a single text")
    captions = {name: _unwrap_single(value) for name, value in captions.items()}
    texts = [("predictions", name, text) for name, text in captions.items()]
    texts += [("references", name, text) for name in truth for text in truth[name]]
    for what, name, text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{what}: a text is expected, but {name} has {text!r:.80}")
    rows = [
        Prediction(pair_id=name, caption=caption, references=list(truth[name])) for name, caption in captions.items()
    ]
    return score(rows, protocol=get_protocol(protocol), metrics=metrics or METRICS, resamples=resamples)[0]


@dataclass(frozen=True, repr=False, kw_only=True)
class Caption(Description):
    """The description of a pair, with its images, uint8 RGB (H, W, 3). In a notebook it draws them, where they differ,
    and its sentences."""

    before: np.ndarray
    after: np.ndarray

    @property
    def caption(self) -> str:
        return self.best.caption

    @property
    def confidence(self) -> float:
        """Of the best caption, in [0, 1]."""
        return self.best.confidence

    @property
    def map(self) -> np.ndarray | None:
        """Where the pair changed, float32 (H, W) in [0, 1] over the image after; None if the captioner cannot tell."""
        return self.change_map

    def __str__(self) -> str:
        return self.caption

    def __repr__(self) -> str:
        return f"Caption({self.caption!r}, confidence={self.confidence:.2f}, verdict={self.verdict!r})"

    def _repr_png_(self) -> bytes:
        """The two images with boxes, and the map, side by side."""
        sides = zip((self.before, self.after), boxes_of(self.to_dict()), strict=True)
        images = [Image.fromarray(draw_boxes(_shown(image), boxes, image.shape)) for image, boxes in sides]
        if self.map is not None:
            drawn = Image.fromarray(draw_map(self.map, self.after.shape[:2])).convert("RGB")
            images.append(drawn.resize(images[1].size))
        sheet = Image.new("RGB", (sum(image.width + 4 for image in images) - 4, _SHOWN), "white")
        left = 0
        for image in images:
            sheet.paste(image, (left, 0))
            left += image.width + 4
        return encode_png(np.asarray(sheet))

    def _repr_html_(self) -> str:
        fields = self.to_dict()
        by = f"captioner {self.captioner}"
        texts = sentence_without_model(fields), self.caption, f"{assessment_text(fields)}; {by}", self.warning
        first, *others = (html.escape(text) for text in texts if text is not None)
        picture = b64encode(self._repr_png_()).decode()
        text = "<br>".join([f"<b>{first}</b>", *others])
        return f'<div><img alt="before, after" src="data:image/png;base64,{picture}"><br>{text}</div>'


class CallOptions(TypedDict, total=False):
    """Options of a call of :class:`LoadedCaptioner`, which documents them."""

    beams: int | None
    candidates: int
    ignore: Sequence[PartSource]
    only: Sequence[PartSource]
    counts: str | Sequence[str]
    criteria: str | None


class LoadedCaptioner:
    """A loaded captioner, called with pairs of images.

    Attributes:
        source: what it was loaded from.
        captioner: the captioner itself, for what only some can do (:data:`idc.captioning.contract.CAPABILITIES`).
        objects: settings of ``objects``, which also speaks of pairs that the captioner is not familiar with.
    """

    def __init__(self, captioner: Captioner, source: str, objects: ObjectsConfig | None = None) -> None:
        self.captioner, self.source, self.objects = captioner, source, objects or ObjectsConfig()

    def __repr__(self) -> str:
        return f"LoadedCaptioner({self.source!r})"

    @overload
    def __call__(self, before: ImageSource, after: ImageSource, **options: Unpack[CallOptions]) -> Caption: ...
    @overload
    def __call__(self, before: ImageSources, after: ImageSources, **options: Unpack[CallOptions]) -> list[Caption]: ...
    def __call__(
        self,
        before: ImageSource | ImageSources,
        after: ImageSource | ImageSources,
        *,
        beams: int | None = None,
        candidates: int = 1,
        ignore: Sequence[PartSource] = (),
        only: Sequence[PartSource] = (),
        counts: str | Sequence[str] = (),
        criteria: str | None = None,
    ) -> Caption | list[Caption]:
        """Caption one pair, or the pairs of two lists of equal length, which are one batch of the model.

        Args:
            beams: of the search, 1 is greedy; by default as the artifact was validated.
            candidates: maximum number of captions of a pair.
            ignore: parts in which differences do not count: boxes (left, top, right, bottom) in pixels of the image
                after, or, if none of the four numbers is above 1, as shares of it; or masks, images that are white
                there and are stretched to the image after.
            only: parts outside of which differences do not count, likewise; by default the whole image.
            counts: what counts as a change, by names (:attr:`idc.captioning.apply.CaptionSettings.counts`) as "scene"
                or ["words", "0.5%"]; by default everything.
            criteria: the same in own words, or "c3:parking_lot" for a context of C3-Bench, for a vision-language model.

        Raises:
            ValueError: what counts is not known, or the captioner does not read it; an image cannot be read (all such
                images are named), the captioner refuses a pair (its index is named), or the lists differ in length.
        """
        if not isinstance(before, list | tuple) and not isinstance(after, list | tuple):
            return self(
                [before], [after], beams=beams, candidates=candidates, ignore=ignore, only=only, counts=counts,
                criteria=criteria,
            )[0]  # fmt: skip
        if not (isinstance(before, list | tuple) and isinstance(after, list | tuple)) or len(before) != len(after):
            raise ValueError("before and after: give two images, or two lists of the same length")
        images = _decoded([*before, *after])
        parts = read_areas(ignore), read_areas(only)
        sides = zip(images[: len(before)], images[len(before) :], strict=True)
        pairs = [pixels_of(*pair).counting(*parts) for pair in sides]
        what = counts_of(listed(counts), self.objects.names)
        options = SearchOptions(beams, candidates, self.captioner.can("map"), what, criteria)
        options.check(self.captioner)
        captions = []
        described = describe_each(self.captioner, pairs, options, self.objects)
        for index, result in enumerate(described):
            if isinstance(result.pixels, Fault):
                where = f"pair {index} of the lists: " if len(pairs) > 1 else ""
                raise ValueError(f"{where}{result.pixels.error.detail}")
            assert result.description is not None
            fields = vars(result.description) | {"captioner": result.description.captioner or self.source}
            captions.append(Caption(**fields, before=result.pixels.before, after=result.pixels.after))
        return captions


def _decoded(sources: Sequence[ImageSource]) -> list[DecodedFile]:
    files = [os.fspath(source) for source in sources if isinstance(source, str | os.PathLike)]
    decoded = iter(read_images(*files))
    return [
        next(decoded) if isinstance(source, str | os.PathLike) else DecodedFile(b"", image_of(source, alpha=True))
        for source in sources
    ]


def _shown(pixels: np.ndarray) -> np.ndarray:
    return resize_image(pixels, (_SHOWN, max(1, round(pixels.shape[1] * _SHOWN / pixels.shape[0]))))


def _by_id(values: Any, field: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        return {str(number): value for number, value in enumerate(values)}
    if repeated := [text for text, count in Counter(map(str, values)).items() if count > 1]:
        raise ValueError(f"{field}: ids that are there as a number and as text: {', '.join(repeated[:5])}")
    return {str(name): value for name, value in values.items()}


def _unwrap_single(caption: Any) -> Any:
    return caption[0] if isinstance(caption, list | tuple) and len(caption) == 1 else caption
