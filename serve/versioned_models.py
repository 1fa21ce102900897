"""The version behind each model name, as a front knows it: the part that all its backends share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from serve.backend import ModelStatus
from serve.config import ServeConfig
from serve.log import log
from serve.versions import Resolver

SEE_LOG = "see the server log for the reason"


class VersionedModels:
    """The models of a config with their status; a backend looks the versions up."""

    def __init__(self, config: ServeConfig):
        self._config = config
        self._resolver = Resolver(config.registry.tracking_uri, config.loading.objects)
        self._served = {
            name: ModelStatus(name, "unknown", error="the version has not been looked up yet")
            for name in sorted(config.models, key=lambda name: name != config.default_model)
        }

    def models(self) -> list[ModelStatus]:
        """As :meth:`serve.backend.Backend.models`."""
        return list(self._served.values())

    def _note(self, name: str, why: str | None = None, **changes: Any) -> None:
        """Change the status of a model. ``why`` goes to the log only, not to clients."""
        before, after = self._served[name], replace(self._served[name], **changes)
        if after != before:
            self._served[name] = after
            log(event="model", model=name, version=after.version, error=why)
