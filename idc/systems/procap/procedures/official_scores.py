"""The official ProCap code's files of similarities, ``{clevr,spot,edit}_similarity_scores.json``.

    {"10": {"bef_inter_sim": [[9 numbers] per caption], "inter_aft_sim": [[9] per caption],
            "bef_inter_dino_score": [9], "inter_aft_dino_score": [9]}}                  (the last two may be absent)
    {"000123.png": {"sc_sim_matrixes": {as above}, "nsc_sim_matrixes": {as above}}}     (CLEVR-Change)

The 9 are before, the 7 frames between, and after. The meaning of the values at before and after themselves is not
documented; they count only for :attr:`OfficialScores.limits`, as in the official code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from idc.data import files

Kind = Literal["text", "visual"]
KINDS: tuple[Kind, ...] = ("text", "visual")
_KEYS = {"text": ("bef_inter_sim", "inter_aft_sim"), "visual": ("bef_inter_dino_score", "inter_aft_dino_score")}
_MATRICES = {"sc_sim_matrixes": "c", "nsc_sim_matrixes": "nc"}


@dataclass(frozen=True)
class OfficialScores:
    """The contents of a file, averaged over captions; small enough to be sent to every worker.

    Attributes:
        rows: pair id -> row (CLEVR-Change's ids as our reader names them, 000123c and 000123nc).
        groups: (N,) 1 for CLEVR-Change's pairs without a change, else 0.
        values: kind -> (N, 2, l + 2) float32, the second axis before and after; NaN where a pair has none.
        limits: kind -> (2, 2), minimum and maximum squared difference of each group.
        fingerprint: of the file.
    """

    rows: dict[str, int]
    groups: np.ndarray
    values: dict[Kind, np.ndarray]
    limits: dict[Kind, np.ndarray]
    fingerprint: str

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> OfficialScores:
        """Read a file.

        Raises:
            ValueError: it is not such a file; the message names the pair and the key.
        """
        data = files.locate(path).read()
        try:
            content = json.loads(data)
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        if not isinstance(content, dict) or not content:
            raise ValueError(f"{path} is not a file of similarity scores: it has no pairs by name")
        rows: dict[str, int] = {}
        groups: list[int] = []
        read: dict[Kind, list[np.ndarray | None]] = {"text": [], "visual": []}
        for name, unchanged, entry in _entries(content):
            rows[name] = len(groups)
            groups.append(unchanged)
            for kind in KINDS:
                read[kind].append(_ends(entry, _KEYS[kind], name, path))
        lengths = {ends.shape[1] for similarities in read.values() for ends in similarities if ends is not None}
        if len(lengths) != 1:
            raise ValueError(f"{path} must have one number of frames, but has {sorted(lengths) or 'no similarities'}")
        nothing = np.full((2, lengths.pop()), np.nan, np.float32)
        values: dict[Kind, np.ndarray] = {
            kind: np.stack([nothing if ends is None else ends for ends in read[kind]]) for kind in KINDS
        }
        of_group = np.array(groups, np.int8)
        limits = {kind: np.stack([_limits(values[kind][of_group == group]) for group in (0, 1)]) for kind in KINDS}
        return cls(rows, of_group, values, limits, hashlib.sha256(data).hexdigest()[:20])

    @property
    def num_frames(self) -> int:
        """l + 2."""
        return int(self.values["text"].shape[2])

    def lacking(self, kind: Kind) -> int:
        """Number of pairs without similarities of this kind."""
        return int(np.isnan(self.values[kind]).any(axis=(1, 2)).sum())

    def ends(self, row: int, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
        """Similarities to before and to after, (l + 2,) each."""
        before, after = self.values[kind][row]
        return before, after

    def limits_of(self, row: int, kind: Kind) -> tuple[float, float]:
        """Minimum and maximum squared difference over all pairs of this row's group."""
        low, high = self.limits[kind][self.groups[row]]
        return float(low), float(high)


def _entries(content: dict[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yields (id of the pair, its group, its similarities)."""
    for key, entry in content.items():
        if isinstance(entry, dict) and _MATRICES.keys() & entry.keys():
            for matrix, suffix in _MATRICES.items():
                if matrix in entry:
                    yield key.removesuffix(".png") + suffix, int(suffix == "nc"), entry[matrix]
        else:
            yield key, 0, entry


def _ends(entry: Any, keys: tuple[str, str], name: str, path: Any) -> np.ndarray | None:
    """Mean over the captions, (2, l + 2) float32; None if the entry has neither key."""
    if not isinstance(entry, dict):
        raise ValueError(f"{path}: {name!r} holds a {type(entry).__name__}, not similarities")
    if not any(entry.get(key) for key in keys):
        return None
    try:
        before, after = (np.atleast_2d(np.asarray(entry[key], dtype=np.float32)).mean(axis=0) for key in keys)
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: {name!r} has no rows of numbers under {' and '.join(keys)} ({error!r})") from error
    if before.shape != after.shape or before.ndim != 1 or len(before) < 3:
        raise ValueError(f"{path}: {name!r} has {before.shape} and {after.shape} numbers under {' and '.join(keys)}")
    return np.stack([before, after])


def _limits(values: np.ndarray) -> np.ndarray:
    """(minimum, maximum) squared difference of (N, 2, l + 2), ignoring NaN; (0, 0) without values."""
    squares = np.square(values[:, 0].astype(np.float64) - values[:, 1])
    squares = squares[~np.isnan(squares)]
    return np.array([squares.min(), squares.max()]) if squares.size else np.zeros(2)
