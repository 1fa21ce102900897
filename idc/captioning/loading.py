"""Which captioner is loaded, and how: artifact, device and speed, the same in every command that captions; and the
captioner ``auto``, which chooses between two. Imports neither torch nor numpy, which `--help` does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from idc.captioning.contract import (
    CAPABILITIES,
    FAMILIAR_FROM,
    Answer,
    Capability,
    Captioner,
    Description,
    Images,
    SearchOptions,
    Speed,
    equal_outside,
)
from idc.captioning.objects_config import ObjectsConfig
from idc.captioning.sources import AUTO, artifact_folder, is_of_hub, newest_or_shipped
from idc.config import ConfigModel
from idc.endpoint.chat_endpoint import EndpointConfig
from idc.systems import load_captioner, untrained_captioner, untrained_name
from idc.training.artifact import artifact_identity, read_artifact
from idc.training.config import missing_device
from idc.training.hashing import combined_hash

if TYPE_CHECKING:
    import numpy as np

    from idc.captioning.familiarity import Familiarity

_UNNAMED = frozenset({"object", "region", "line", "row", "picture"})
"""Objects of claims of the untrained captioner that name nothing."""
_SURE = 0.9
"""Confidence from which a name contradicts a trained captioner: of 440 rendered pairs 16 have a weaker one, which takes
a cylinder for a cup, and 5 a stronger one."""

LoadCaptioner = Callable[[], Captioner]
"""Loads a captioner; picklable, because every actor loads its own."""


class BaseAt(ConfigModel):
    """Where the base model of an artifact is."""

    source: str | None = Field(None, min_length=1, json_schema_extra={"option": "--base"})
    """Folder of the base model, for an artifact that has one. Default: where it was when the artifact was made, in the
    hub's cache for a model of the hub."""


class LoadConfig(ConfigModel):
    """How a captioner is loaded."""

    device: str | None = Field(None, min_length=1)
    """Torch device of the captioner, e.g. cuda. Default: cuda in processes that Ray gives GPUs, else cpu."""
    speed: Speed = "auto"
    """auto: every optimisation that changes no caption and pays on this processor. fast: also those that pay on some
    processors only. exact: none that changes even the rounding of float32. bf16: fast, with matrix products and
    convolutions in bfloat16; captions may differ, and a processor without such instructions emulates them, slower than
    float32."""
    base: BaseAt = BaseAt()
    """The model of others that the artifact needs."""
    endpoint: EndpointConfig | None = None
    """A server that runs the language model of a vision-language artifact (`endpoint.url=http://localhost:8000/v1`, as
    `vllm serve` starts it), instead of this program: the artifact gives prompt, image sizes and calibration. Default:
    the model runs here."""
    objects: ObjectsConfig = ObjectsConfig()
    """How `objects` names what changed, alone and beside other captioners."""

    @field_validator("endpoint")
    @classmethod
    def _somewhere(cls, value: EndpointConfig | None) -> EndpointConfig | None:
        if value is not None and not value.url:
            raise ValueError("url is missing; give the base URL of the endpoint, as in http://localhost:8000/v1")
        return value

    def preflight(self) -> Iterator[str]:
        if not getattr(self, "gpus_per_actor", 0):  # else Ray loads it on a machine that has them
            yield from missing_device(self.device)

    def loading_identity(self) -> dict[str, str]:
        """The loading settings that captions depend on, where they differ from the default; for fingerprints."""
        if self.endpoint is not None:
            return {"endpoint": self.endpoint.model or "the artifact's base"}
        return {"speed": self.speed} if self.speed == "bf16" else {}


DEFAULTS = LoadConfig()
LOADING = frozenset(LoadConfig.model_fields)
"""Names of these settings in a job."""


def captioner_identity(artifact: str, folder: str, objects: ObjectsConfig) -> str:
    """A hash over all that the rows of a captioner depend on: artifact (``folder`` is that of the name ``artifact``),
    familiarity, and what is said of unfamiliar pairs."""
    folders = {"named": folder, "untrained": artifact_folder(untrained_name(objects), objects)}
    hashes = {role: artifact_identity(path) for role, path in folders.items()}
    return combined_hash(hashes | ({AUTO: AUTO} if artifact == AUTO else {}))


class AutoCaptioner(Captioner):
    """The trained captioner for pairs both images of which it is familiar with, unless the untrained one
    (:func:`untrained_captioner`) contradicts it; that one for all others. :attr:`Description.captioner` names it, and
    :attr:`Description.chosen` says why. The trained one is loaded when the first pair needs it. Without a fitted
    ``familiarity`` it captions none: nobody can tell which pairs are like the training images."""

    gains_from_batch: bool = False
    reads_counts: bool = True

    def __init__(
        self, name: str, load_trained: Callable[[], Captioner], familiarity: Familiarity | None, objects: ObjectsConfig
    ) -> None:
        self._name, self._load_trained, self._familiarity, self._objects = name, load_trained, familiarity, objects

    @cached_property
    def trained(self) -> Captioner:
        return self._load_trained()

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        """Change maps, which the untrained captioner always has, and answers if the trained one has them."""
        return frozenset(filter(self.can, CAPABILITIES))

    def can(self, capability: Capability) -> bool:
        """Loads the trained captioner only where it decides."""
        return capability == "map" or (capability == "answer" and self.trained.can(capability))

    @property
    def trained_on(self) -> str | None:  # type: ignore[override]
        return self.trained.trained_on

    def answer(self, *arguments: Any, **options: Any) -> list[Answer]:
        """By the trained captioner."""
        return self.trained.answer(*arguments, **options)

    def _describe(
        self,
        befores: Images,
        afters: Images,
        options: SearchOptions,
        region_of_interest: Sequence[np.ndarray | None] | None = None,
    ) -> list[Description]:
        region_of_interest = region_of_interest or [None] * len(afters)
        pairs = [(equal_outside(*pair), pair[1]) for pair in zip(befores, afters, region_of_interest, strict=True)]
        familiar: list[int] = []
        if options.counts is not None:
            reason = f"it tells apart what counts, which {self._name} does not"
        elif self._familiarity is None:
            reason = f"no familiarity was fitted of {self._name}"
        else:
            reason = f"not both images are like the training of {self._name}"
            familiar = [index for index, pair in enumerate(pairs) if self._familiarity(*pair) >= FAMILIAR_FROM]
        described = [
            replace(each, captioner=untrained_name(self._objects), chosen=reason)
            for each in untrained_captioner(self._objects).describe(
                befores, afters, options, region_of_interest=region_of_interest
            )
        ]
        if not familiar:
            return described
        change_map = options.change_map and self.trained.can("map")
        trained = self.trained.describe(
            [befores[index] for index in familiar],
            [afters[index] for index in familiar],
            replace(options, change_map=change_map),
            region_of_interest=[region_of_interest[index] for index in familiar],
        )
        for index, description in zip(familiar, trained, strict=True):
            if objection := _objection(description, described[index]):
                described[index] = replace(described[index], chosen=f"{objection}, which {self._name} does not")
            else:
                other = described[index].captioner
                why = f"both images are like the training of {self._name}, and {other} does not object"
                described[index] = replace(description, captioner=self._name, chosen=why)
        return described

    _describe_regions = _describe


def _objection(trained: Description, untrained: Description) -> str | None:
    """What the untrained captioner finds that the trained one does not know, or denies; None if nothing."""
    claims = untrained.claims or ()
    names = [
        claim.object for claim in claims
        if claim.object == "words" or (claim.object not in _UNNAMED and claim.confidence >= _SURE)
    ]  # fmt: skip
    if names:
        return f"{untrained.captioner} names {', '.join(dict.fromkeys(names))}"
    if claims and trained.verdict == "unchanged":
        return f"{untrained.captioner} finds a change"
    return None


class CaptionerLoader:
    """Loads the captioner of a source (:mod:`idc.captioning.sources`); picklable.

    Args:
        gpus: number of GPUs of the process that will load the captioner. Its default device is cuda if there are any;
            with None, if torch finds one then.
        threads: number of threads of torch and OpenCV in that whole process; by default unchanged.

    Raises:
        ValueError: the folder is not an artifact, or its base model is not on this machine or is another one. On
            loading: the device is not on that machine.

    Attributes:
        artifact: the folder, looked up once, because an alias of a registry may move; for ``auto`` that of the trained
            captioner.
    """

    artifact: str

    def __init__(
        self, artifact: str, config: LoadConfig = DEFAULTS, gpus: float | None = 0.0, threads: int | None = None
    ) -> None:
        self.objects, self.threads, self.speed = config.objects, threads, config.speed
        self.device = config.device or (None if gpus is None else "cuda" if gpus > 0 else "cpu")
        self.trained: tuple[str, CaptionerLoader] | None = None
        if self.objects != DEFAULTS.objects:
            artifact_folder(untrained_name(self.objects), self.objects)  # refuses a detector that is not there
        if artifact == AUTO:
            name = newest_or_shipped()
            loader = CaptionerLoader(name, config, gpus, threads)
            self.trained, self.artifact = (name, loader), loader.artifact
            return
        self.artifact = artifact_folder(artifact, config.objects)
        contents, self.base, self.endpoint = read_artifact(self.artifact), config.base.source, config.endpoint
        if contents.base is None and self.base is not None:
            raise ValueError(f"base.source: {artifact} has no base model; leave it out")
        if contents.base is not None and self.endpoint is None:
            # An artifact of a stranger may name any base; only what `hf:` named here is downloaded.
            contents.base.folder(self.base, download=is_of_hub(contents.path))

    def folder_of(self, description: Description) -> str:
        """The folder of the artifact that described a pair."""
        name = description.captioner
        if self.trained is None or name is None or name == self.trained[0]:
            return self.artifact
        return artifact_folder(name, self.objects)

    def __call__(self) -> Captioner:
        for fault in missing_device(self.device):
            raise ValueError(fault)
        if self.threads is not None:
            import cv2

            cv2.setNumThreads(self.threads)
        if self.objects != DEFAULTS.objects:
            untrained_captioner(self.objects)  # whose settings are refused once, and not in every pair that needs it
        if self.trained is not None:
            from idc.captioning.familiarity import Familiarity

            name, load_trained = self.trained
            return AutoCaptioner(name, load_trained, Familiarity.read(self.artifact), self.objects)
        if self.threads is not None or self.device is None:
            import torch

            if self.threads is not None:
                torch.set_num_threads(self.threads)
            self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        assert self.device is not None
        return load_captioner(self.artifact, self.device, self.speed, self.base, self.endpoint)
