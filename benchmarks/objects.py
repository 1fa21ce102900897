"""How often the captioner `objects` says the truth about two photographs, by set of pairs and detector.

    python -m benchmarks.objects --data FOLDER --clip FILE.mp4
    python -m benchmarks.objects --data FOLDER --detector hf:ORG/NAME

``FOLDER`` holds the sets as folders with a ``pairs.json`` (id, before, after); missing sets are left out. Frames of the
clip are written as pairs. A viewer read the truths off the pairs (`object_truths.json`) and judged the sentences
(`object_verdicts.json`); those verdicts are reported where the sentence is still the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.object_truths import VERDICTS, judge_claims, true_changes
from idc.captioning.objects_config import EMBEDDED, ObjectsConfig
from idc.data.images import decode_image

CLIP, UNTUNED = "clip", ("preview_pairs", "clip")
"""Sets on which no rule or threshold of the captioner was chosen. The clip's camera is that of nine pairs of
surveillance_pairs; its frames are others."""
_FRAMES = [(first, first + gap) for gap in (30, 90, 210, 390) for first in range(15, 1189 - gap, 120)]
"""The clip's pairs: every 120th frame, and those one to thirteen seconds later."""
Row = dict[str, Any]


def _read(name: str) -> dict[str, Any]:
    path = Path(__file__).with_name(f"object_{name}.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def clip_pairs(clip: Path, folder: Path) -> list[Row]:
    """Write pairs of frames of a fixed camera's clip: PNG files and a table that this project reads."""
    folder.mkdir(parents=True, exist_ok=True)
    video, needed = cv2.VideoCapture(str(clip)), {index for pair in _FRAMES for index in pair}
    for index in range(max(needed) + 1):
        read, frame = video.read()
        if not read:
            raise ValueError(f"--clip {clip}: no frame {index}; expected the clip of which the truths speak")
        if index in needed:
            cv2.imwrite(str(folder / f"{index:05d}.png"), frame)
    rows = [{"id": f"clip_{a:05d}_{b:05d}", "before": f"{a:05d}.png", "after": f"{b:05d}.png"} for a, b in _FRAMES]
    table = "".join(json.dumps({"pair_id": row["id"], **row}) + "\n" for row in rows)
    (folder / "pairs.jsonl").write_text(table, encoding="utf-8")
    return [{**row, "set": CLIP, "folder": folder} for row in rows]


def describe_all(detector: str, pairs: Sequence[Row]) -> tuple[list[Row], float]:
    """The judged descriptions of all pairs, and the peak memory in MiB.

    Run in a process of its own, whose memory is this detector's.
    """
    from idc.systems.objects.captioner import ObjectsCaptioner

    captioner = ObjectsCaptioner(ObjectsConfig(detector=detector))
    truths = _read("truths")
    rows = []
    for pair in pairs:
        before, after = (decode_image((pair["folder"] / pair[side]).read_bytes()) for side in ("before", "after"))
        started = time.process_time()
        description = captioner.describe([before], [after])[0]
        seconds = time.process_time() - started
        truth = true_changes(truths["pairs"][pair["set"]][pair["id"]])
        claims = description.claims or ()
        verdict, wrong = judge_claims(claims, truth, before.shape[1], truths["synonyms"])
        row = {"set": pair["set"], "id": pair["id"], "sentence": description.best.caption, "verdict": verdict}
        row |= {"wrong": [claim.to_dict() for claim in wrong], "claims": [claim.to_dict() for claim in claims]}
        rows.append(row | {"unchanged": not any(change.needed for change in truth), "seconds": seconds})
    return rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(rows: Sequence[Row], eye: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines printed for one detector: of what :func:`describe_all` returns, and the viewer's verdicts by id."""
    groups = {name: [row for row in rows if row["set"] == name] for name in dict.fromkeys(row["set"] for row in rows)}
    groups |= {"sets no rule was tuned on": [row for row in rows if row["set"] in UNTUNED], "all": list(rows)}
    seen = {row["id"]: eye[row["id"]] for row in rows if eye.get(row["id"], {}).get("sentence") == row["sentence"]}
    lines = [f"| pairs | n | {' | '.join(VERDICTS)} |", "|---|---|" + "---|" * len(VERDICTS)]
    for name, group in groups.items():
        viewed = [seen[row["id"]]["verdict"] for row in group if row["id"] in seen]
        for title, verdicts in ((name, [row["verdict"] for row in group]), (f"{name}, by eye", viewed)):
            if verdicts:
                counts = Counter(verdicts)
                shares = (f"{counts[verdict]} ({100 * counts[verdict] / len(verdicts):.0f} %)" for verdict in VERDICTS)
                lines.append(f"| {title} | {len(verdicts)} | {' | '.join(shares)} |")
    unchanged = [row for row in rows if row["unchanged"]]
    invented = sum(row["verdict"] == "false" for row in unchanged)
    lines += ["", f"Unchanged pairs called changed: {invented} of {len(unchanged)}", ""]
    lines += [f"- {name}: {_line(row)}" for name in VERDICTS[:0:-1] for row in rows if row["verdict"] == name]
    for row in rows:
        view = seen.get(row["id"], row)
        if view["verdict"] != row["verdict"]:
            lines.append(f"- rule {row['verdict']}, eye {view['verdict']} ({view.get('reason', '')}): {_line(row)}")
    return lines


def _line(row: Row) -> str:
    wrong = ", ".join(f"{claim['kind']} {claim['object']} {claim['where']}" for claim in row["wrong"])
    return f"{row['set']}/{row['id']}: {row['sentence']}" + f" [wrong: {wrong}]" * bool(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of the sets")
    parser.add_argument("--clip", type=Path, metavar="FILE", help="bottle-detection.mp4 of Intel's sample-videos")
    parser.add_argument("--detector", default=EMBEDDED, help=f"as the captioner's (default: {EMBEDDED})")
    parser.add_argument("--out", type=Path, default=Path("runs/objects"), help="folder of results and the clip's pairs")
    args = parser.parse_args()
    names = list(_read("truths")["pairs"])
    tables = {name: args.data / name / "pairs.json" for name in names}
    pairs = [
        {**row, "set": name, "folder": table.parent}
        for name, table in tables.items() if table.is_file() for row in json.loads(table.read_text(encoding="utf-8"))
    ]  # fmt: skip
    pairs += clip_pairs(args.clip, args.out / CLIP) if args.clip else []
    if not pairs:
        parser.error(f"--data {args.data}: none of {', '.join(names)} is there, and no --clip is named")
    args.out.mkdir(parents=True, exist_ok=True)
    name = Path(args.detector).name
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        rows, peak = process.submit(describe_all, args.detector, pairs).result()
    (args.out / f"{name}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    seconds = [row["seconds"] for row in rows]
    print(f"## {name}\n", *report(rows, _read("verdicts").get(name, {})), "", sep="\n")
    print(f"CPU seconds a pair: {np.median(seconds):.2f} (median), {max(seconds):.2f} (most); {peak:.0f} MiB")


if __name__ == "__main__":
    main()
