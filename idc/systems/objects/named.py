"""``objects`` and ``regions`` in the place of an artifact."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os

from idc.captioning.objects_config import NONE, ObjectsConfig
from idc.data.remote_copies import cache_root
from idc.systems import REGIONS
from idc.systems.objects.detectors import detector_identity
from idc.systems.objects.text import reads_text
from idc.training.artifact import CONFIG, write_artifact

_VERSION = 3
"""Incremented when the same pairs would get other captions: results are stored by the artifact's contents."""


def objects_folder(name: str, config: ObjectsConfig | None = None) -> str:
    """The folder of the artifact with these settings, made in the cache at the first use;
    :data:`idc.systems.REGIONS` has no detector. It holds no weights. ValueError: the detector is not on this
    machine, or cannot be used."""
    settings = config or ObjectsConfig()
    if name == REGIONS:
        settings = settings.model_copy(update={"detector": NONE})
    contents = {
        "version": _VERSION,
        **settings.model_dump(mode="json"),
        "text": reads_text() if settings.text is None else settings.text,
        "detector_identity": detector_identity(settings.detector),
    }
    key = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:12]
    target = cache_root() / f"{name}-{key}"
    with (target.parent / f".{target.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / CONFIG).is_file():
            write_artifact(
                target,
                system="objects",
                config=contents,
                state_dict={},
                purpose="Names what differs between two images, without training on pairs.",
            )
    os.utime(target)  # the cache drops what is not used
    return str(target)
