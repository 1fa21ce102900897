"""The sweeps of the repository: tables at each of their sizes, and files that are a sweep by themselves."""

from __future__ import annotations

from pathlib import Path

import yaml

CONFIGS = Path(__file__).resolve().parents[2] / "jobs/configs"
SIZES = ("paper", "small")


def shipped_sweeps() -> dict[str, tuple[str, ...]]:
    """Name as in ``procap/table02_small`` -> its files below the folder of configs, in the order of the command line.
    What has no size but its own is small, if its file does not say otherwise."""
    sweeps: dict[str, tuple[str, ...]] = {}
    for path in sorted(CONFIGS.glob("*/sweeps/*.yaml")):
        system, file = path.parts[-3], path.relative_to(CONFIGS).as_posix()
        if path.stem in SIZES:
            continue
        sizes = yaml.safe_load(path.read_text(encoding="utf-8")).get("sizes")
        if sizes is None:
            sweeps[f"{system}/{path.stem}"] = (file,)
        for size in sizes or ():
            name = f"{system}/{path.stem}" + ("" if size == "paper" else f"_{size}")
            sweeps[name] = (file, f"{system}/sweeps/{size}.yaml")
    return sweeps
