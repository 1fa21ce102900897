"""``hf:ORG/NAME[@REVISION]`` in the place of an artifact: the model of that id on the hub, with the default prompt."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from pathlib import Path

from idc.data.remote_copies import cache_root
from idc.systems.zeroshot.config import ZeroShotConfig
from idc.training.artifact import CONFIG
from idc.training.base import hub_id
from idc.vlm.config import BaseConfig


def artifact_of(name: str) -> str:
    """The folder of the artifact, made in the cache at the first use. If the model is not on this machine, all of it
    is downloaded but its weights, which are needed unless it runs behind an endpoint; if it is, the hub is not
    asked. ValueError: the name is malformed, or the model is not here and the hub does not give it, or it is of no
    known family."""
    from idc.systems.zeroshot.wrap import saved_config, write_wrapped
    from idc.vlm.base import find_base

    source, revision = hub_id(name)
    config = ZeroShotConfig(base=BaseConfig(source=source, revision=revision, download=True))
    try:
        base = find_base(config.base, weights=False)
    except ValueError as error:  # nobody has set base.source here
        fault = re.sub(r"^base\.\w+: |, or give its folder with base\.source=/path", "", str(error))
        raise ValueError(f"{name}: {fault}") from None
    settings = json.dumps([base.name.to_dict(), saved_config(config)], sort_keys=True)
    version = f"{(base.name.revision or '')[:12]}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}"
    target = cache_root() / f"hf-{source.replace('/', '--')}-{version}"
    with (target.parent / f".{target.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one writes it, the others find it whole
        if not (target / CONFIG).is_file():
            write_wrapped(Path(target), config, base)
    os.utime(target)  # the cache drops what is not used
    return str(target)
