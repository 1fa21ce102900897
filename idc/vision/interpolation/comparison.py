"""Compare interpolators: PSNR and SSIM of known middle frames."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from idc.progress import tracked
from idc.vision.image_quality import psnr_ssim
from idc.vision.interpolation.config import CompareInterpolatorsJob
from idc.vision.interpolation.middle_frames import Middle, make_middle
from idc.vision.interpolation.triplets import Triplets, open_triplets

JSON_FILE, TABLE_FILE = "interpolators.json", "interpolators.md"

PROTOCOL = (
    "PSNR in dB and SSIM (7x7 windows, mean over RGB, scikit-image) of the 8-bit middle frame, means over triplets; "
    "seconds a frame, the median"
)


def compare(job: CompareInterpolatorsJob) -> dict[str, Any]:
    """Measure all interpolators, and write ``interpolators.json`` and ``interpolators.md`` into ``job.out``.

    Returns:
        ``protocol``, ``sources`` (name -> number of triplets), ``rows`` (interpolator -> source -> ``PSNR``, ``SSIM``,
        ``seconds``), ``triplets`` (source -> name -> interpolator -> PSNR).

    Raises:
        ValueError: triplets or weights cannot be read.
    """
    middles: dict[str, Middle] = {name: make_middle(name) for name in job.interpolators}
    middles |= {name: make_middle("vfiformer", weights) for name, weights in job.vfiformer.items()}
    rows: dict[str, dict[str, Any]] = {name: {} for name in middles}
    sources, single = {}, {}
    for source, path in job.triplets.items():
        triplets = open_triplets(path, None if job.split == "all" else job.split)
        if not len(triplets):
            raise ValueError(f"triplets.{source}: {path} has no triplets of split={job.split}")
        count = len(triplets) if job.max_triplets is None else min(job.max_triplets, len(triplets))
        sources[source] = count
        single[source] = _measure(triplets, count, middles, source)
        for name in middles:
            values = [scores[name] for scores in single[source].values()]
            means = {key: float(np.mean([value[key] for value in values])) for key in ("PSNR", "SSIM")}
            rows[name][source] = {**means, "seconds": float(np.median([value["seconds"] for value in values]))}
    result = {
        "protocol": PROTOCOL,
        "config": job.model_dump(mode="json"),
        "sources": sources,
        "rows": rows,
        "triplets": {
            source: {
                triplet: {name: score["PSNR"] for name, score in scores.items()} for triplet, scores in all_.items()
            }
            for source, all_ in single.items()
        },
    }
    out = Path(job.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / JSON_FILE).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (out / TABLE_FILE).write_text(table(result) + "\n", encoding="utf-8")
    return result


def _measure(
    triplets: Triplets, count: int, middles: dict[str, Middle], source: str
) -> dict[str, dict[str, dict[str, float]]]:
    """Triplet -> interpolator -> PSNR, SSIM, seconds."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for n in tracked(range(count), count, source, "triplet"):
        triplet = triplets[n * len(triplets) // count]
        scores[triplet.name] = {}
        for name, middle in middles.items():
            start = time.perf_counter()
            made = middle(triplet.first, triplet.last)
            seconds = time.perf_counter() - start
            psnr, ssim = psnr_ssim(triplet.middle, made)
            scores[triplet.name][name] = {"PSNR": psnr, "SSIM": ssim, "seconds": seconds}
    return scores


def table(result: dict[str, Any]) -> str:
    """The result as Markdown; the best PSNR and SSIM of a source are bold."""
    sources = result["sources"]
    head = "| interpolator | " + " | ".join(f"{name} ({n}): PSNR | SSIM | s" for name, n in sources.items()) + " |"
    lines = [head, "|---|" + "---:|---:|---:|" * len(sources)]
    for name, values in result["rows"].items():
        cells = []
        for source in sources:
            best = {key: max(row[source][key] for row in result["rows"].values()) for key in ("PSNR", "SSIM")}
            for key, digits in (("PSNR", 2), ("SSIM", 4)):
                value = values[source][key]
                text = f"{value:.{digits}f}"
                cells.append(f"**{text}**" if value == best[key] else text)
            cells.append(f"{values[source]['seconds']:.3g}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", result["protocol"] + "."])
