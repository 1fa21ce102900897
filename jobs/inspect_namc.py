"""Show what a pre-trained NAMC holds for noise in images and descriptions, and what it makes of masked regions.

    python jobs/inspect_namc.py pretrained=runs/namc-small-pretrain/artifact pairs=data/demo/described \\
        tokenizer=runs/namc-tokenizer/artifact out=runs/namc-small-pretrain/inspection

Writes <out>/inspection.json and <out>/page.html: relevance of patches and words (figures 6 to 8), the area under the
ROC curve of irrelevance as a detector of known wrong words, PSNR and SSIM of the reconstructions (table 9). Needs
no Ray.
"""

from __future__ import annotations

import json
from pathlib import Path

from idc.config import cli
from idc.systems.namc.config import InspectJob


def main() -> None:
    args = cli(InspectJob, __doc__, local=False)
    from idc.atomic import write_text
    from idc.report.relevance_page import relevance_page
    from idc.systems.namc.inspection import inspect

    job, out = args.config, Path(args.config.out)
    if (out / "inspection.json").exists() and not args.overwrite:
        raise SystemExit(f"inspect_namc: {out} has an inspection; give another out, or --overwrite")
    try:
        inspection = inspect(job)
    except ValueError as error:
        raise SystemExit(f"inspect_namc: {error}") from None
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "inspection.json", json.dumps(inspection.figures, indent=1) + "\n")
    page = relevance_page(
        "NAMC: noise and reconstruction", f"{job.pretrained} on {job.pairs}", inspection.figures, inspection.pairs
    )
    write_text(out / "page.html", page)
    print(
        "\n".join(f"{name:24} {value:.4g}" for name, value in inspection.figures.items()), out / "page.html", sep="\n"
    )


if __name__ == "__main__":
    main()
