"""TwinCap as a captioner: captions with confidences, change maps, attributes of what changed, the probability of given
captions, and samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from idc.captioning.contract import Images, Speed
from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.nn.config import WordCaptionerSettings
from idc.nn.decoding import Decoded
from idc.nn.word_captioner import DescriptionExtras, WordCaptioner
from idc.rendered.captions import ATTRIBUTES
from idc.systems.twincap.config import ModelConfig, SupervisionConfig
from idc.systems.twincap.model import Encoded, TwinNet
from idc.systems.twincap.truth import VALUES
from idc.training.artifact import read_artifact

CHANGE_ODDS, CHANGE_HEAT = "log_odds_of_change", "change_heat"
"""Names of the captioner's evidence: of the type head, and the largest logit of the change map."""


class TwinCaptioner(WordCaptioner[Encoded]):
    """A loaded artifact; "bf16" computes convolutions and products in bfloat16, all other speeds in float32."""

    def __init__(self, path: Path | str, device: str = "cpu", speed: Speed = "auto"):
        artifact = read_artifact(path, system="twincap")
        assert artifact.vocabulary is not None
        job = artifact.config["job"]  # of which the shipped weights have settings of data that are gone
        model = ModelConfig.model_validate(job["model"])
        supervision = SupervisionConfig.model_validate(job["supervision"])
        self.net = TwinNet(model, supervision, len(artifact.vocabulary))
        artifact.load_into(self.net)
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        self.net.to(device).eval()
        super().__init__(
            artifact,
            device,
            self.net.decoder,
            WordCaptionerSettings(beams=job["beams"], length_penalty=job["length_penalty"]),
            evidence=[CHANGE_ODDS] * bool(supervision.heads) + [CHANGE_HEAT] * bool(supervision.dense),
            has_map=bool(supervision.dense),
            image_size=(model.height, model.width),
            speed=speed,
        )

    def _encode(self, befores: Images, afters: Images) -> Encoded:
        return cast(Encoded, self.net(self._images(befores, afters)))

    def _findings(self, encoded: Encoded, decoded: Decoded, change_map: bool) -> Sequence[DescriptionExtras]:
        evidence, attributes = self._evidence(encoded), self._attributes(encoded)
        maps: Sequence[np.ndarray | None] = [None] * len(evidence)
        if change_map:
            maps = list(self.net.change_map(encoded).float().cpu().numpy())
        return [DescriptionExtras(*parts) for parts in zip(evidence, maps, attributes, strict=True)]

    def _evidence(self, encoded: Encoded) -> list[dict[str, float]]:
        evidence: dict[str, list[float]] = {}
        if self.net.kind is not None:
            none = CHANGE_TYPES.index(NO_CHANGE)
            logits = self.net.kind(encoded.pooled).float()
            others = logits[:, [index for index in range(len(CHANGE_TYPES)) if index != none]]
            evidence[CHANGE_ODDS] = (others.logsumexp(dim=1) - logits[:, none]).tolist()
        if self.net.objects is not None:
            evidence[CHANGE_HEAT] = encoded.change.float().flatten(1).amax(dim=1).tolist()
        return [{name: values[index] for name, values in evidence.items()} for index in range(len(encoded.pooled))]

    def _attributes(self, encoded: Encoded) -> Sequence[dict[str, Any] | None]:
        """The most probable type of the change, and the changed object's attributes before and after it: for an added
        object only after, for a removed one only before, without a change neither."""
        if self.net.kind is None or self.net.changed is None:
            return [None] * len(encoded.pooled)
        kinds = _likeliest(self.net.kind(encoded.pooled), CHANGE_TYPES)
        sides = [
            [_likeliest(logits, VALUES[name]) for name, logits in zip(ATTRIBUTES, head(encoded.pooled), strict=True)]
            for head in self.net.changed
        ]
        return [
            {
                "type": kind,
                **{
                    side: None if kind["value"] in absent else
                    {name: column[index] for name, column in zip(ATTRIBUTES, columns, strict=True)}
                    for side, columns, absent in zip(
                        ("before", "after"), sides, (("add", NO_CHANGE), ("drop", NO_CHANGE)), strict=True
                    )
                },
            }
            for index, kind in enumerate(kinds)
        ]  # fmt: skip


def _likeliest(logits: Tensor, values: Sequence[str]) -> list[dict[str, Any]]:
    best = logits.float().softmax(dim=-1).max(dim=-1)
    return [
        {"value": values[index], "probability": probability}
        for index, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


load_captioner = TwinCaptioner
