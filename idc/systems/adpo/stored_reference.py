"""Log-probabilities of the reference policy at rest, so that a run needs neither a second model nor a second pass.

A folder of Parquet parts with a manifest (:mod:`idc.data.store`): a row is one caption of one pair, with the pair's
images in one of the orders of :data:`idc.systems.adpo.config.ORDERS`. Its key is everything that they depend on: the
base by its fingerprint and how it is used, the number format of the computation, the question, the pairs. A folder of
another key is refused, one of the same key that lacks a caption too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from idc import logs
from idc.data.manifest import complete_manifest
from idc.data.store import DatasetFolder, fingerprint, iter_rows, read_manifest
from idc.systems.adpo.config import ORDERS, AdpoJob
from idc.training.context import Context
from idc.training.data import to_device
from idc.vlm.batch import encode_images
from idc.vlm.logps import answer_log_probabilities
from idc.vlm.tuning_config import base_content

KIND = "reference log-probabilities"
_PAIRS = 64
"""Pairs of a part file."""
_ROWS = 64
"""Most answers of a forward pass."""
_SCHEMA = pa.schema(
    [("part", pa.int32()), ("pair_id", pa.string()), ("images", pa.string()), ("caption", pa.string()),
     ("log_p", pa.float32())]
)  # fmt: skip

Answers = dict[tuple[int, int], dict[tuple[int, str], float]]
"""(part, row) of a pair -> (number of a caption in the bank, images) -> log p."""


def reference_key(job: AdpoJob) -> dict[str, Any]:
    """What the log-probabilities of a run depend on, besides their captions.

    Raises:
        ValueError: base or pairs cannot be read.
    """
    return {
        "base": [*base_content(job.base), job.train.precision],
        "prompt": job.prompt.model_dump(mode="json"),
        "pairs": [complete_manifest(path).fingerprint for path in (job.pairs, *job.more_pairs)],
    }


class StoredReference:
    """The log-probabilities of a run.

    Args:
        folder, key: of :func:`reference_key`.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self.folder, self.key = folder, key
        self._answers: Answers = {}

    def refuse_other(self) -> None:
        """Refuse a folder of other log-probabilities.

        Raises:
            ValueError: they are of another key, or the folder holds something else.
        """
        if not self.folder.exists():
            return
        config = read_manifest(self.folder, kind=KIND, command="this job, on first use").config
        what = {"base": "another base model or number format", "prompt": "another prompt", "pairs": "other pairs"}
        for name, text in what.items():
            if config.get(name) != self.key[name]:
                raise ValueError(
                    f"reference.folder: {self.folder} holds log-probabilities of {text} than this run's; give another "
                    "folder"
                )

    def of(self, part: int, row: int, answers: Sequence[tuple[int, str]]) -> list[float]:
        """log p of a pair's answers."""
        pair = self._answers[part, row]
        return [pair[answer] for answer in answers]

    def prepare(self, parts: Sequence[Any], samples: Iterable[Any], task: Any, context: Context) -> None:
        """Read the log-probabilities of a run; those of a folder that does not exist are computed, by all ranks
        together. A killed job goes on.

        Args:
            parts: the run's folders (:class:`idc.systems.adpo.data.PreferenceSamples`).
            samples: (part, index, epoch) of everything that the run will take.
            task: whose model is still its base.

        Raises:
            ValueError: the folder lacks some.
        """
        needed: dict[tuple[int, int], dict[tuple[int, str], None]] = defaultdict(dict)
        for part, index, epoch in samples:
            row, answers = parts[part].needed(index, epoch)
            needed[part, row].update(dict.fromkeys(answers))
        if not (self.folder.exists() and read_manifest(self.folder, kind=KIND).complete):
            self._write(parts, {pair: list(answers) for pair, answers in sorted(needed.items())}, task, context)
        self._read(parts, needed)

    def _write(
        self, parts: Sequence[Any], needed: dict[tuple[int, int], list[Any]], task: Any, context: Context
    ) -> None:
        pairs = list(needed)
        captions = [[*pair, *map(list, needed[pair])] for pair in pairs]
        chunks = -(-len(pairs) // _PAIRS)
        options: dict[str, Any] = {
            "kind": KIND, "schema": _SCHEMA, "fingerprint": fingerprint(self.key, captions), "config": dict(self.key),
            "num_chunks": chunks,
        }  # fmt: skip
        if context.rank == 0:
            number = sum(map(len, needed.values()))
            text = f"computing {number:,} log-probabilities of the reference for {len(pairs):,} pairs: {self.folder}"
            logs.event("reference", text, number=number)
            DatasetFolder.open_for_build(self.folder, **options)
        context.barrier()
        folder = DatasetFolder.open_for_build(self.folder, **options)
        for chunk in [chunk for chunk in folder.pending() if chunk % context.world_size == context.rank]:
            rows = []
            for part, row in pairs[chunk * _PAIRS : (chunk + 1) * _PAIRS]:
                rows += reference_rows(parts[part], row, needed[part, row], task, context.device)
            folder.write_chunk(chunk, rows)
        context.barrier()
        if context.rank == 0:
            folder.finish()
        context.barrier()

    def _read(self, parts: Sequence[Any], needed: Mapping[tuple[int, int], Any]) -> None:
        row_of = {(number, name): row for number, part in enumerate(parts)
                  for row, name in enumerate(part.rows.column("pair_id"))}  # fmt: skip
        answers: Answers = defaultdict(dict)
        for stored in iter_rows(self.folder):
            part = stored["part"]
            if stored["caption"] in parts[part].bank:
                caption = parts[part].bank.number(stored["caption"])
                answers[part, row_of[part, stored["pair_id"]]][caption, stored["images"]] = stored["log_p"]
        self._answers = dict(answers)
        lacking = sum(answer not in self._answers.get(pair, {}) for pair, asked in needed.items() for answer in asked)
        if lacking:
            raise ValueError(
                f"reference.folder: {self.folder} lacks {lacking} of the log-probabilities that this run needs, as it "
                "was made for other settings or another seed; give another folder"
            )


@torch.no_grad()
def reference_rows(
    samples: Any, row: int, answers: Sequence[tuple[int, str]], task: Any, device: torch.device
) -> list[dict[str, Any]]:
    """Rows of a folder: log p of these answers of a pair, by one vision pass; ``samples``: of the pair's folder."""
    dialogue = samples.dialogue(row, 0)
    pixels = to_device(samples.chat.family.pixels(dialogue.decoded()), device)
    prompts = samples.prompts(dialogue.turns[:-1], dialogue.sizes)
    family, model = samples.chat.family, task.model
    rows: list[dict[str, Any]] = []
    with torch.autocast(device.type, torch.bfloat16, enabled=samples.job.train.precision == "bf16"):
        encoded = encode_images(model, pixels, family)
        for start in range(0, len(answers), _ROWS):
            asked = answers[start : start + _ROWS]
            orders = list(dict.fromkeys(order for _, order in asked))
            asked = [answer for order in orders for answer in asked if answer[1] == order]
            ids = [[samples.bank.answers[caption] for caption, shown in asked if shown == order] for order in orders]
            totals, _ = answer_log_probabilities(
                model, [prompts[order] for order in orders], ids, encoded, pixels, [ORDERS[order] for order in orders],
                family,
            )  # fmt: skip
            rows += [
                {"part": samples.part, "pair_id": dialogue.name, "images": order, "log_p": total,
                 "caption": samples.bank.texts[caption]}
                for (caption, order), total in zip(asked, totals.tolist(), strict=True)
            ]  # fmt: skip
    return rows
