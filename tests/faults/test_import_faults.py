"""A folder with every fault there is: exact rejects, and nothing else lost."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idc.data.images import decode_image, encode_png
from idc.data.store import iter_rows, read_manifest, read_rejects
from tests.data.test_images import bomb

ROOT = Path(__file__).parents[2]
NOISE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
GREY16 = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)

REJECTS = {
    "bomb": "too many pixels: after, after/bomb.png, ",
    "caption": "not UTF-8: caption, the caf\\xe9 closed",
    "cut": "truncated image: before, before/cut.png, ",
    "empty": "empty file: after, after/empty.png",
    "missing": "missing partner: there is no after image for before/missing.png",
    "text": "not an image: before, before/text.png, ",
}
GOOD = ("good0", "good1", "good2", "grey16", "rgba")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs under ``before`` and ``after``, captions in text files."""
    folder = tmp_path_factory.mktemp("faults")
    good = encode_png(NOISE)

    def as_png(array: np.ndarray) -> bytes:
        out = io.BytesIO()
        Image.fromarray(array).save(out, "PNG")
        return out.getvalue()

    rgba = as_png(np.dstack([NOISE, np.full((48, 64), 255, np.uint8)]))
    images: dict[str, tuple[bytes, bytes | None]] = {
        "good0": (good, good),
        "good1": (good, encode_png(255 - NOISE)),
        "good2": (encode_png(NOISE[:20]), good),
        "bomb": (good, bomb(20_000)),
        "caption": (good, good),
        "cut": (good[:5000], good),
        "empty": (good, b""),
        "grey16": (as_png(GREY16), good),
        "missing": (good, None),
        "rgba": (rgba, rgba),
        "text": (b"I am a text file, not a picture.\n", good),
    }
    (folder / "before").mkdir()
    (folder / "after").mkdir()
    for name, (before, after) in images.items():
        (folder / "before" / f"{name}.png").write_bytes(before)
        if after is not None:
            (folder / "after" / f"{name}.png").write_bytes(after)
        (folder / f"{name}.txt").write_text(f"what changed in {name}\n")
    (folder / "caption.txt").write_bytes("the caf\u00e9 closed\n".encode("latin-1"))
    return folder


def check(out: Path, source: Path) -> None:
    manifest = read_manifest(out, "pairs")
    assert manifest.complete
    assert (manifest.num_rows, manifest.num_rejected) == (len(GOOD), len(REJECTS))
    assert manifest.reject_reasons == {
        "empty file": 1, "missing partner": 1, "not UTF-8": 1, "not an image": 1, "too many pixels": 1,
        "truncated image": 1,
    }  # fmt: skip
    rejects = dict(read_rejects(out))
    assert sorted(rejects) == sorted(REJECTS)
    for name, reason in REJECTS.items():
        assert rejects[name].startswith(reason), rejects[name]
    rows = {row["pair_id"]: row for row in iter_rows(out)}
    assert tuple(rows) == GOOD
    for name, row in rows.items():
        assert row["captions"] == [f"what changed in {name}"]
        for role in ("before", "after"):
            original = (source / role / f"{name}.png").read_bytes()
            assert np.array_equal(decode_image(row[role]), decode_image(original))
            assert (row[role] == original) == (name != "grey16" or role != "before")
    assert np.array_equal(decode_image(rows["rgba"]["before"]), NOISE)
    grey = decode_image(rows["grey16"]["before"])
    assert np.abs(grey[..., 0].astype(float) - GREY16 / 257).max() < 1
    assert Image.open(io.BytesIO(rows["grey16"]["before"])).mode == "RGB"


def test_the_job(source: Path, tmp_path: Path) -> None:
    """As a user runs it; the bomb (1.2 GB of pixels) is refused before it is decoded, so the peak stays small."""
    out = tmp_path / "out"
    command = [
        sys.executable, str(ROOT / "jobs/import_dataset.py"), "--format", "folder", f"source={source}", f"--out={out}",
        "--local",
    ]  # fmt: skip
    too_many = subprocess.run(command, capture_output=True, text=True)
    assert too_many.returncode == 1
    assert "6 of 11 rows were rejected" in too_many.stderr
    assert "1 x truncated image" in too_many.stderr

    # A process starts with its parent's peak memory as its own, and pytest's may be large: a small one starts the job.
    peak = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); " + (
        "print('peak kB', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    run = subprocess.run(
        [sys.executable, "-c", peak, *command, "max_reject_share=0.6", "--overwrite"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "5 pairs" in run.stdout + run.stderr
    assert "rejected: 6" in run.stdout + run.stderr
    assert f"next: python jobs/validate.py pairs={out}\n" in run.stdout
    kilobytes = int(run.stdout.rsplit("peak kB", 1)[1])
    assert kilobytes < 500_000
    check(out, source)
