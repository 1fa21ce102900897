"""How often the captioner `objects` says the truth about two photographs, by set of pairs and detector.

    python -m benchmarks.objects --data FOLDER --clip FILE.mp4
    python -m benchmarks.objects --data FOLDER --detector yolox.onnx
    python -m benchmarks.objects --data FOLDER --to-judge

``FOLDER`` holds the sets as folders with a ``pairs.json`` (id, before, after); missing sets are left out. Frames of the
clip are written as pairs. A viewer read the truths off the pairs (`object_truths.json`) and judged the sentences
(`object_verdicts.json`); those verdicts are reported where the sentence is still the same, and ``--to-judge`` lists the
others. Rules may be tuned on every second pair of `fresh_pairs`, from the first on; the others are reported apart.

A truth is a list of changes, each one line, empty if nothing of substance changed::

    gone bottle 14 58          kind, object, and its centre: per cent of the width and of the height
    changed background         without a centre: anywhere, or all of the picture
    ~moved person 30 50        true but not needed: what most viewers would not mention, or see only at a second look

``gone`` and ``appeared`` are of a place: what went from one place to another is gone at the one and has appeared at the
other. ``moved`` is by less than its own size; ``changed`` looks different. A ``view`` differs where the camera moved.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from idc.captioning.contract import Claim, Description
from idc.captioning.objects_config import EMBEDDED, ObjectsConfig
from idc.data.images import decode_image
from idc.metrics.change_types import says_no_change

CLIP, HALVED = "clip", "fresh_pairs"
UNTUNED = ("preview_pairs", f"{HALVED}, odd", CLIP)
"""Sets on which no rule or threshold of the captioner was chosen. The clip's camera is that of nine pairs of
surveillance_pairs; its frames are others."""
VERDICTS = ("true", "partly", "false", "silent", "refused", "failed camera")
"""By rule and by eye; a partly true sentence is ``bare`` if it has neither name, words nor colour of what changed."""
_COLUMNS = ("true", "partly, naming", "partly, bare", *VERDICTS[2:])
_FRAMES = [(first, first + gap) for gap in (30, 90, 210, 390) for first in range(15, 1189 - gap, 120)]
"""The clip's pairs: every 120th frame, and those one to thirteen seconds later."""
_VAGUE = frozenset({"object", "region"})
"""Objects of a claim that may stand for anything."""
_UNDECIDED = {"camera": "failed camera", "view": "refused"}
"""Object of a needed change -> verdict if the captioner rightly compares nothing for it."""
_CROWD = 5
"""Number of needed changes from which saying half of them is saying the main change."""
_POSITIONS = {
    "left": (0, 0, 43), "middle": (0, 23, 77), "right": (0, 57, 100), "top": (1, 0, 43), "bottom": (1, 57, 100),
}  # fmt: skip
"""Word -> axis, and least and greatest centre that it may be said of: thirds of the image with a tenth as tolerance."""
Row = dict[str, Any]


class TrueChange(NamedTuple):
    """One line of a truth; ``needed``: a description without it is not the whole truth."""

    kind: str
    object: str
    centre: tuple[float, float] | None
    needed: bool


def true_changes(lines: Sequence[str]) -> tuple[TrueChange, ...]:
    """The changes that the lines of a truth stand for."""
    changes = []
    for line in lines:
        kind, name, *centre = line.removeprefix("~").split()
        if kind not in ("gone", "appeared", "moved", "changed"):
            raise ValueError(f"truth {line!r}: the kind must be gone, appeared, moved or changed")
        where = (float(centre[0]), float(centre[1])) if centre else None
        changes.append(TrueChange(kind, name.replace("-", " "), where, not line.startswith("~")))
    return tuple(changes)


def judge_description(
    description: Description, truth: Sequence[TrueChange], width: int, synonyms: Mapping[str, Sequence[str]]
) -> tuple[str, tuple[Claim, ...]]:
    """A verdict on a description of images of this width, and its claims that no change agrees with.

    true: every claim agrees with a change and the main change is named, or nothing is claimed and nothing of substance
    changed. partly: every claim agrees, but a needed change is missing or said without its name. false: a claim agrees
    with no change. silent: nothing is claimed although something changed. refused, failed camera: nothing was
    compared, of two quite different views or of an image that shows nothing (:data:`_UNDECIDED`). ``synonyms``: object
    of a truth -> names by which it may be called.
    """
    claims = description.claims or ()
    needed = {index for index, change in enumerate(truth) if change.needed}
    agreeing = [_agreeing(claim, truth, width, synonyms) for claim in claims]
    if wrong := tuple(claim for claim, changes in zip(claims, agreeing, strict=True) if changes is None):
        return "false", wrong
    if not claims and description.verdict != "unsure":
        return ("silent" if needed else "true"), ()
    if not claims:
        undecided = {index: truth[index].object for index in needed if truth[index].object in _UNDECIDED}
        if not says_no_change(description.best.caption):
            return next((_UNDECIDED[name] for name in undecided.values()), "silent" if needed else "true"), ()
        if needed and not undecided:
            return "silent", ()
        agreeing = [set(undecided)]  # no change, but the camera moved
    said = len(needed.intersection(set().union(*filter(None, agreeing))))
    return ("true" if said >= (len(needed) / 2 if len(needed) >= _CROWD else len(needed)) else "partly"), ()


def _agreeing(
    claim: Claim, truth: Sequence[TrueChange], width: int, synonyms: Mapping[str, Sequence[str]]
) -> set[int] | None:
    """Indices of the changes that a claim names, none where it is vague; None if it agrees with no change."""
    order = sorted(range(len(truth)), key=lambda index: not truth[index].needed)
    several = claim.kind == "moved" and claim.count > 1  # all of them are in other places
    for parts, named in _readings(claim, width):
        changes: set[int] = set()
        for kind, name, where in parts:
            called = [
                index for index in order
                if index not in changes and truth[index].kind == kind and _fits(where, truth[index].centre, claim.count)
                and (name in _VAGUE or name == truth[index].object or name in synonyms.get(truth[index].object, ()))
            ]  # fmt: skip
            changes.update((called if several else called[:1]) or [-1])
        if -1 not in changes:
            return changes if named and not _VAGUE.intersection(name for _, name, _ in parts) else set()
    return None


def _readings(claim: Claim, width: int) -> Iterator[tuple[list[tuple[str, str, str]], bool]]:
    """What a claim may mean, the most precise first: kind, object and place of the changes that must all be true, and
    whether it names them."""
    name, where = claim.object, claim.where
    if claim.kind in ("gone", "appeared"):
        yield [(claim.kind, name, where)] * claim.count, True
    elif claim.kind == "replaced" and name != "words":  # whose before and after are no names
        yield [("gone", claim.before or name, where), ("appeared", claim.after or name, where)], True
    elif claim.kind == "moved":
        left, _, right, _ = claim.box_before or (0, 0, 0, 0)
        third = min(2, int(3 * (left + right) / 2 / width))
        old = ("left", "middle", "right")[third] if right and claim.count == 1 else ""
        yield [("gone", name, old), ("appeared", name, where)], True
        yield [("moved", name, where)], True
    else:
        yield [("changed", name, where)], True
        yield [("moved", name, where)], True
        yield [("gone", name, where), ("appeared", name, where)], False  # one went, and another came
        if name in _VAGUE:
            yield [("gone", name, where)], False
            yield [("appeared", name, where)], False


def _fits(position: str, centre: tuple[float, float] | None, count: int) -> bool:
    """Whether a thing with this centre may be said to be at a place, or several things one of which it is."""
    if centre is None:
        return True
    limits = [_POSITIONS[word] for word in re.findall("|".join(_POSITIONS), position)]
    fits = [low <= centre[axis] <= high for axis, low, high in limits]
    return not fits or (all if count == 1 else any)(fits)


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(__file__).with_name(f"object_{name}.json").read_text(encoding="utf-8"))
    return content


def clip_pairs(clip: Path, folder: Path) -> list[Row]:
    """Write pairs of frames of a fixed camera's clip as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    video, needed = cv2.VideoCapture(str(clip)), {index for pair in _FRAMES for index in pair}
    for index in range(max(needed) + 1):
        read, frame = video.read()
        if not read:
            raise ValueError(f"--clip {clip}: no frame {index}; expected the clip of which the truths speak")
        if index in needed:
            cv2.imwrite(str(folder / f"{index:05d}.png"), frame)
    return [
        {"id": f"clip_{a:05d}_{b:05d}", "before": f"{a:05d}.png", "after": f"{b:05d}.png", "set": CLIP,
         "folder": folder}
        for a, b in _FRAMES
    ]  # fmt: skip


def describe_all(detector: str, pairs: Sequence[Row]) -> tuple[list[Row], float]:
    """The judged descriptions of all pairs, and the peak memory in MiB. Run in a process of its own, whose memory is
    this detector's."""
    from idc.systems.objects.captioner import ObjectsCaptioner

    captioner, truths = ObjectsCaptioner(ObjectsConfig(detector=detector)), _read("truths")
    rows = []
    for pair in pairs:
        before, after = (decode_image((pair["folder"] / pair[side]).read_bytes()) for side in ("before", "after"))
        started = time.process_time()
        description = captioner.describe([before], [after])[0]
        seconds = time.process_time() - started
        truth = true_changes(truths["pairs"][pair["set"].partition(",")[0]][pair["id"]])
        verdict, wrong = judge_description(description, truth, before.shape[1], truths["synonyms"])
        claims = description.claims or ()
        rows.append({
            "set": pair["set"], "id": pair["id"], "sentence": description.best.caption, "verdict": verdict,
            "truth": _words_of(pair),
            "bare": all(claim.object in _VAGUE and not claim.before and not claim.after for claim in claims),
            "wrong": [f"{claim.kind} {claim.object} {claim.where}" for claim in wrong],
            "unchanged": not any(change.needed for change in truth), "seconds": seconds,
        })  # fmt: skip
    return rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def to_judge(rows: Sequence[Row], eye: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines of the sentences that the viewer has not judged: set, id, the rule's verdict, sentence and truth."""
    return [
        f"{row['set']}/{row['id']} [{row['verdict']}]\n  said:  {row['sentence']}\n  truth: {row['truth']}"
        for row in rows if eye.get(row["id"], {}).get("sentence") != row["sentence"]
    ]  # fmt: skip


def _words_of(pair: Row) -> str:
    """The truth of a pair as a sentence, where its set has one."""
    viewer = pair.get("viewer_truth") or {}
    return str(pair.get("truth") or viewer.get("text") or " ".join(pair.get("captions", ())))


def report(rows: Sequence[Row], eye: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines printed for one detector: of what :func:`describe_all` returns, and the viewer's verdicts by id."""
    groups = {name: [row for row in rows if row["set"] == name] for name in dict.fromkeys(row["set"] for row in rows)}
    groups |= {"sets no rule was tuned on": [row for row in rows if row["set"] in UNTUNED], "all": list(rows)}
    seen = {row["id"]: eye[row["id"]] for row in rows if eye.get(row["id"], {}).get("sentence") == row["sentence"]}
    lines = [f"| pairs | n | {' | '.join(_COLUMNS)} |", "|---|---|" + "---|" * len(_COLUMNS)]
    for name, group in groups.items():
        viewed = [{**row, **seen[row["id"]]} for row in group if row["id"] in seen]
        for title, judged in ((name, group), (f"{name}, by eye", viewed)):
            if judged:
                kinds = {True: "partly, bare", False: "partly, naming"}
                counts = Counter(kinds[row["bare"]] if row["verdict"] == "partly" else row["verdict"] for row in judged)
                shares = (f"{counts[column]} ({100 * counts[column] / len(judged):.0f} %)" for column in _COLUMNS)
                lines.append(f"| {title} | {len(judged)} | {' | '.join(shares)} |")
    unchanged = [row for row in rows if row["unchanged"]]
    invented = sum(row["verdict"] == "false" for row in unchanged)
    lines += ["", f"Unchanged pairs called changed: {invented} of {len(unchanged)}", ""]
    for row in sorted(rows, key=lambda row: -VERDICTS.index(row["verdict"])):
        view = seen.get(row["id"], row)
        by_eye = f", eye {view['verdict']} ({view.get('reason', '')})" if view["verdict"] != row["verdict"] else ""
        if row["verdict"] != "true" or by_eye:
            wrong = f" [wrong: {', '.join(row['wrong'])}]" if row["wrong"] else ""
            lines.append(f"- {row['verdict']}{by_eye}: {row['set']}/{row['id']}: {row['sentence']}{wrong}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of the sets")
    parser.add_argument("--clip", type=Path, metavar="FILE", help="bottle-detection.mp4 of Intel's sample-videos")
    parser.add_argument("--detector", default=EMBEDDED, help=f"as the captioner's (default: {EMBEDDED})")
    parser.add_argument("--out", type=Path, default=Path("runs/objects"), help="folder of results and the clip's pairs")
    parser.add_argument("--to-judge", action="store_true", help="list the sentences that were not judged by eye")
    args = parser.parse_args()
    names = list(_read("truths")["pairs"])
    tables = {name: args.data / name / "pairs.json" for name in names}
    pairs = [
        {**row, "set": f"{name}, {'odd' if index % 2 else 'even'}" if name == HALVED else name, "folder": table.parent}
        for name, table in tables.items() if table.is_file()
        for index, row in enumerate(json.loads(table.read_text(encoding="utf-8")))
    ]  # fmt: skip
    pairs += clip_pairs(args.clip, args.out / CLIP) if args.clip else []
    if not pairs:
        parser.error(f"--data {args.data}: none of {', '.join(names)} is there, and no --clip is named")
    name = Path(args.detector).name
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        rows, peak = process.submit(describe_all, args.detector, pairs).result()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    seconds = [row["seconds"] for row in rows]
    lines = to_judge if args.to_judge else report
    print(f"## {name}\n", *lines(rows, _read("verdicts").get(name, {})), "", sep="\n")
    print(f"CPU seconds a pair: {np.median(seconds):.2f} (median), {max(seconds):.2f} (most); {peak:.0f} MiB")


if __name__ == "__main__":
    main()
