"""Pictures of what ProCap predicts between two images: codebook entries that its encoder predicts for hidden patches,
decoded by the image tokenizer.

Two ways:

- From a caption (stage 1): before and after are given, all patches between them are masked, and the caption precedes
  them, as in training. :func:`mask_predict` fills in the patches over several rounds.
- Without a caption (stage 2): stage 1's head from patches to codebook entries is applied to the hidden states of the
  procedure queries, which the captioner's decoder reads. Stage 2 trains the encoder and not this head (the official
  code freezes it, too), and no loss ties them: the longer stage 2 was, the less the picture may mean.

Shapes as in ``model.py``.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from idc.captioning.contract import Speed
from idc.captioning.loading import DEFAULTS, LoadConfig
from idc.data.files import locate
from idc.data.images import ImageError, decode_image, resize_image
from idc.data.store import iter_rows
from idc.data.text import PAD, Vocabulary, words
from idc.systems.procap.captioner import TOKENIZER, PairCaptioner, frame_reader, pictures, shapes_of
from idc.systems.procap.clip import ClipWords
from idc.systems.procap.config import EncoderConfig
from idc.systems.procap.data import text_slot
from idc.systems.procap.model import ProcedureEncoder, make_token_head
from idc.systems.procap.speed import accelerate, optimisations, running
from idc.systems.procap.task import part_of
from idc.training.artifact import Artifact, read_artifact
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, to_images, tokenizer_fingerprint

ROUNDS = 8
"""Default number of rounds of mask-predict."""


@dataclass(frozen=True)
class Imagined:
    """The picture of a change, generated in one way.

    Attributes:
        way: short description of the way.
        frames: uint8 (k + 2, Y, X, 3); first and last are before and after, decoded from their own codebook entries,
            the best quality that the ones between can have.
    """

    way: str
    frames: np.ndarray


@torch.no_grad()
def mask_predict(
    encoder: ProcedureEncoder,
    head: nn.Module,
    tokenizer: ImageTokenizer,
    ends_B2: Tensor,
    ids_BN: Tensor,
    rounds: int = ROUNDS,
) -> Tensor:
    """Codebook entries of the k frames between, (B, k, P), by iterative decoding in the order of confidence.

    As in MaskGIT (Chang et al. 2022): every round predicts all open patches at once, each by its most probable entry,
    and keeps those of the highest probability, so that after round r of R all but floor(M cos(pi r / 2 R)) of the
    M = k * P patches are kept: few at first, when little is known. Kept patches do not change again. (The official
    code's mask-predict is one round with sampled entries.)

    The encoder reads no entries, but features or images (``ends_B2``: those of before and after). After each round the
    frames are therefore decoded from the entries predicted so far and read again; kept patches are those of these
    frames, open ones stay masked.
    """
    shapes, read = encoder.shapes, frame_reader(encoder.config, tokenizer)
    batch, between = ends_B2.shape[0], shapes.num_keyframes
    frames = ends_B2.new_zeros(batch, shapes.frames, *ends_B2.shape[2:])
    frames[:, [0, -1]] = ends_B2
    masked = torch.ones(batch, shapes.frames, shapes.patches, dtype=torch.bool, device=frames.device)
    masked[:, [0, -1]] = False
    total = between * shapes.patches
    tokens_BM = torch.zeros(batch, total, dtype=torch.long, device=frames.device)
    open_BM = torch.ones(batch, total, dtype=torch.bool, device=frames.device)
    for number in range(1, rounds + 1):
        hidden = encoder("modeling", frames, masked, ids_BN, PAD)[2]
        probability, best = _inner(hidden, between, head).max(dim=-1)
        tokens_BM = torch.where(open_BM, best, tokens_BM)
        kept = total - math.floor(total * math.cos(math.pi / 2 * number / rounds))
        # Infinite, so that patches of earlier rounds are among the kept ones in every round.
        order = torch.where(open_BM, probability, torch.inf).topk(kept, dim=1).indices
        open_BM = torch.ones_like(open_BM).scatter(1, order, False)
        if number == rounds:
            break
        seen = tokenizer.decode(tokens_BM.view(-1, shapes.patches))
        frames[:, 1:-1] = read(seen).float().unflatten(0, (batch, between))
        masked[:, 1:-1] = open_BM.unflatten(1, (between, shapes.patches))
    return tokens_BM.unflatten(1, (between, shapes.patches))


def _inner(hidden_BSD: Tensor, between: int, head: nn.Module) -> Tensor:
    """Probabilities (B, k * P, K) of the entries of the frames between, of the hidden states of all frames."""
    inner = hidden_BSD.unflatten(1, (between + 2, -1))[:, 1:-1].flatten(1, 2)
    probabilities: Tensor = head(inner).float().softmax(dim=-1)
    return probabilities


class Modeler:
    """A loaded stage 1 artifact: encoder, token head, tokenizer.

    Args:
        path: folder of the artifact.
        device, speed: as :class:`~idc.systems.procap.captioner.PairCaptioner`.

    Raises:
        ValueError: it is not an artifact of stage 1, or its captions are CLIP's byte pairs and their tokenizer is
            missing.
    """

    def __init__(self, path: Path | str, device: str = "cpu", speed: Speed = "auto"):
        artifact = read_artifact(path, system="procap")
        if artifact.config["stage"] != "pretrain":
            raise ValueError(f"{path} is an artifact of ProCap's stage 2; give that of pretrain_procap.py")
        job = artifact.config["job"]
        self.artifact, self.device = artifact, torch.device(device)
        self.condition: bool = job["caption_condition"]
        self.vocabulary: Vocabulary | ClipWords | None = artifact.vocabulary
        if (bpe := job["encoder"].get("text_vocabulary")) is not None:
            self.vocabulary = ClipWords(job["clip_tokenizer"], bpe)
        self.tokenizer = ImageTokenizer.load(artifact.extra(TOKENIZER)).to(self.device)
        config, shapes = EncoderConfig.model_validate(job["encoder"]), shapes_of(artifact.config["shapes"])
        state = artifact.state_dict()
        self.encoder = ProcedureEncoder(config, shapes)
        self.encoder.load_state_dict(part_of(state, "encoder."))
        self.head = make_token_head(config.width, shapes.codebook_size)
        self.head.load_state_dict(part_of(state, "heads.msm."))
        self.encoder.to(self.device).eval()
        self.speed = optimisations(speed, self.device)
        accelerate(self.tokenizer, self.encoder, self.speed, self.device)
        self.head.to(self.device).eval()

    def imagine(self, before: np.ndarray, after: np.ndarray, caption: str, rounds: int = ROUNDS) -> Imagined:
        """Generate frames of the change that ``caption`` describes between two uint8 RGB images (H, W, 3)."""
        assert self.vocabulary is not None
        length = self.encoder.config.text_length if self.condition else 0
        ids = text_slot(self.vocabulary.encode(caption)[1:-1], length)
        images = ends(before, after, self.tokenizer).to(self.device)
        with running(self.speed, self.device):
            two = frame_reader(self.encoder.config, self.tokenizer)(images).float().unsqueeze(0)
            text = torch.from_numpy(ids).unsqueeze(0).to(self.device)
            tokens = mask_predict(self.encoder, self.head, self.tokenizer, two, text, rounds)[0]
            frames = pictures(images, tokens, self.tokenizer)
        condition = "by the caption" if self.condition else "trained without captions"
        return Imagined(f"stage 1, {condition}, {rounds} rounds", frames)

    def unknown(self, caption: str) -> list[str]:
        """The words of a caption that are not in the vocabulary; with CLIP's byte pairs there are none."""
        if not isinstance(self.vocabulary, Vocabulary):
            return []
        return [word for word in words(caption) if word not in self.vocabulary.words]


class Imaginer:
    """Generates the frames of a change with an artifact of either stage.

    Args:
        path: folder of the artifact. Stage 1 needs a caption; stage 2 also works without one, and makes the caption.
        pretrained: for an artifact of stage 2, that of the stage 1 it began with, if that was moved.
        load: how both are loaded.

    Attributes:
        captioner: of a stage 2 artifact.
        modeler: of stage 1, if its artifact exists.

    Raises:
        ValueError: the two do not belong together, or neither can generate frames.
    """

    def __init__(self, path: Path | str, pretrained: Path | str | None = None, load: LoadConfig = DEFAULTS):
        options: dict[str, Any] = {"device": load.device or "cpu", "speed": load.speed}
        artifact = read_artifact(path, system="procap")
        self.captioner: PairCaptioner | None = None
        self.modeler: Modeler | None = None
        self.head: nn.Module | None = None
        if artifact.config["stage"] == "pretrain":
            self.modeler = Modeler(path, **options)
            return
        self.captioner = PairCaptioner(path, **options)
        source = pretrained or artifact.config["job"]["pretrained"]
        if source is not None and (pretrained is not None or Path(source).exists()):
            self.modeler = Modeler(source, **options)
            _check_same(artifact, self.modeler.artifact)
        if self.captioner.captioner.kind == "queries":
            stored = self.captioner.captioner.token_head
            self.head = stored if stored is not None or self.modeler is None else self.modeler.head
        if self.head is None and self.modeler is None:
            raise ValueError(
                f"{path} has no head from patches to codebook entries, and the stage 1 artifact it began with "
                f"({source or 'none'}) is missing; give its folder with --pretrained"
            )

    def __call__(
        self, before: np.ndarray, after: np.ndarray, caption: str | None = None, rounds: int = ROUNDS
    ) -> list[Imagined]:
        """Frames between two uint8 RGB images (H, W, 3) of any sizes, in every available way; without a caption, for
        the captioner's own.

        Raises:
            ValueError: a stage 1 artifact alone, and no caption.
        """
        ways = []
        if self.modeler is not None:
            ways.append(self.modeler.imagine(before, after, self.caption(before, after, caption), rounds))
        if self.captioner is not None and self.head is not None:
            frames = np.stack(self.captioner.imagine(before, after, self.head))
            ways.append(Imagined("stage 2, the procedure queries", frames))
        return ways

    def caption(self, before: np.ndarray, after: np.ndarray, text: str | None = None) -> str:
        """The given caption, or the captioner's."""
        if text is not None:
            return text
        if self.captioner is None:
            raise ValueError("an artifact of stage 1 makes no captions: give a caption, or an artifact of stage 2")
        return self.captioner([before], [after])[0]


def _check_same(second: Artifact, first: Artifact) -> None:
    """Refuse a stage 1 artifact with other shapes or another tokenizer than the stage 2 artifact."""
    if second.config["shapes"] != first.config["shapes"] or tokenizer_fingerprint(
        second.extra(TOKENIZER)
    ) != tokenizer_fingerprint(first.extra(TOKENIZER)):
        raise ValueError(f"{first.path} was trained with another tokenizer or other procedures than {second.path}")


def ends(before: np.ndarray, after: np.ndarray, tokenizer: ImageTokenizer) -> Tensor:
    """The two images as input of the tokenizer, (2, 3, Y, X) in [0, 1]."""
    return to_images(np.stack([prepare_frame(image, tokenizer.config) for image in (before, after)]))


# -- pictures ------------------------------------------------------------------------------------------------------

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
_CELL, _GAP, _TEXT = 128, 6, 16
_PAPER, _INK, _SOFT = (251, 250, 247), (29, 34, 38), (91, 100, 108)


def filmstrip(before: np.ndarray, after: np.ndarray, ways: Sequence[Imagined], text: Sequence[str] = ()) -> np.ndarray:
    """One picture, uint8 (H, W, 3): ``text``, then a row for each way, from the image before to the image after."""
    frames = len(ways[0].frames)
    width = _GAP + (frames + 2) * (_CELL + _GAP)
    lines = [line for entry in text for line in textwrap.wrap(entry, width // 7)]
    top, row = _GAP + len(lines) * _TEXT, 2 * _TEXT + _CELL + _GAP
    canvas, draw, font = _canvas(width, top + len(ways) * row)
    for number, line in enumerate(lines):
        draw.text((_GAP, _GAP + number * _TEXT), line, _INK, font)
    labels = [
        "before",
        "before, as codes",
        *(f"imagined {n}" for n in range(1, frames - 1)),
        "after, as codes",
        "after",
    ]
    for number, way in enumerate(ways):
        y = top + number * row
        draw.text((_GAP, y), way.way, _INK, font)
        for column, (label, frame) in enumerate(zip(labels, (before, *way.frames, after), strict=True)):
            x = _GAP + column * (_CELL + _GAP)
            canvas.paste(_cell(frame), (x, y + _TEXT + 2))
            draw.text((x, y + _TEXT + _CELL + 2), label, _SOFT, font)
    return np.asarray(canvas)


def write_gif(path: Path | str, before: np.ndarray, after: np.ndarray, ways: Sequence[Imagined]) -> None:
    """Write the same as an animation that repeats: the ways side by side, from the image before to the image after."""
    width, shots = _GAP + len(ways) * (_CELL + _GAP), []
    for frames in zip(*((before, *way.frames[1:-1], after) for way in ways), strict=True):
        canvas, draw, font = _canvas(width, _CELL + 2 * _GAP + _TEXT)
        for number, (way, frame) in enumerate(zip(ways, frames, strict=True)):
            x = _GAP + number * (_CELL + _GAP)
            canvas.paste(_cell(frame), (x, _GAP))
            draw.text((x, _GAP + _CELL), way.way.split(",")[0], _SOFT, font)
        shots.append(canvas)
    pauses = [1200, *[500] * (len(shots) - 2), 1200]
    shots[0].save(path, save_all=True, append_images=shots[1:], duration=pauses, loop=0)


def _canvas(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw, Font]:
    canvas = Image.new("RGB", (width, height), _PAPER)
    return canvas, ImageDraw.Draw(canvas), ImageFont.load_default(12)


def _cell(frame: np.ndarray) -> Image.Image:
    return Image.fromarray(resize_image(frame, _CELL))


# -- pairs in, pictures out ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedPair:
    """Two uint8 RGB images (H, W, 3), the file name of their pictures, and a reference caption, if any."""

    name: str
    before: np.ndarray
    after: np.ndarray
    reference: str | None = None


def read_pairs(images: Sequence[str], folder: str | None, ids: Sequence[str]) -> list[NamedPair]:
    """Read two image files, or the pairs ``ids`` of a folder of pairs, in this order.

    Raises:
        ValueError: an image cannot be read, or the folder lacks a pair.
        OSError: a file cannot be opened.
    """
    if folder is None:
        before, after = (_read_image(path) for path in images)
        return [NamedPair(Path(images[0]).stem, before, after)]
    columns = ["pair_id", "before", "after", "captions"]
    rows = {row["pair_id"]: row for row in iter_rows(folder, columns, batch_size=32) if row["pair_id"] in ids}
    if lost := [name for name in ids if name not in rows]:
        raise ValueError(f"{folder} has no pair {', '.join(lost)}; give other ids")
    return [
        NamedPair(
            name.replace("/", "_"),
            decode_image(rows[name]["before"]),
            decode_image(rows[name]["after"]),
            next(iter(rows[name]["captions"]), None),
        )
        for name in ids
    ]


def _read_image(path: str) -> np.ndarray:
    try:
        return decode_image(locate(path).read())
    except ImageError as error:
        raise ValueError(f"{path}: {error}") from None


def imagine_to(
    out: Path | str, imaginer: Imaginer, pair: NamedPair, caption: str | None = None, rounds: int = ROUNDS
) -> list[Path]:
    """Write ``out/NAME.png`` and ``out/NAME.gif``, or ``NAME-2``, ``NAME-3``, ... if those exist. Returns the paths.

    Raises:
        ValueError: there is no caption, and the artifact makes none.
    """
    shown = imaginer.caption(pair.before, pair.after, caption)
    text = [f"{'predicted' if caption is None else 'given'}: {shown or '(nothing)'}"]
    if caption is None and pair.reference is not None:
        text.append(f"reference: {pair.reference}")
    if imaginer.modeler is not None and (unknown := imaginer.modeler.unknown(shown)):
        text.append(f"unknown to the model: {', '.join(unknown)}")
    ways = imaginer(pair.before, pair.after, shown, rounds)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    names = (pair.name if number == 1 else f"{pair.name}-{number}" for number in itertools.count(1))
    outputs = ((folder / f"{name}.png", folder / f"{name}.gif") for name in names)
    strip, film = next(files for files in outputs if not any(file.exists() for file in files))
    palette = Image.fromarray(filmstrip(pair.before, pair.after, ways, text)).quantize(256)  # a third of the size
    palette.save(strip, optimize=True)
    write_gif(film, pair.before, pair.after, ways)
    return [strip, film]
