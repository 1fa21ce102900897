"""Serve captions over HTTP on Ray Serve, from one machine or a cluster.

    python -m serve.app                                          # on http://127.0.0.1:8000: the captioner `auto`
    python -m serve.app models.demo=runs/my-run/artifact port=8001
    serve deploy serve/configs/production.yaml                   # on a cluster; KubeRay takes the same file

``build(args)`` makes the application of a :class:`~serve.config.ServeConfig` for Serve config files and ``serve run``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idc.captioning.sources import NO_REGISTRY, REGISTRY
from idc.config import ConfigError, cli, load
from serve.config import CommandConfig, ServeConfig, absolute_uri
from serve.deployment.application import application
from serve.deployment.command import run_server

if TYPE_CHECKING:
    from ray.serve import Application

LOCAL_CONFIG = Path(__file__).parent / "configs" / "local.yaml"
_NO_TOKENS = (
    "auth.tokens: empty, and on a cluster anybody can seem to be on this machine; make a token (openssl rand -hex 32), "
    "and give its client the hash: auth.tokens.NAME=$(printf %s TOKEN | sha256sum | cut -c-64)"
)


def build(args: dict[str, Any]) -> Application:
    """The application of the settings ``args``, nested or dotted, as a Serve config file and ``serve run`` give them.

    Raises:
        ConfigError: with every fault of the settings.
    """
    try:
        config = load(ServeConfig, overrides=args)
    except ConfigError as error:
        raise ConfigError([f"args of serve.app:build: {fault}" for fault in error.errors]) from None
    for name, source in config.models.items():
        if source.startswith(REGISTRY) and absolute_uri(config.tracking_uri) is None:
            raise ConfigError([f"args of serve.app:build: models.{name}: {source} {NO_REGISTRY}"])
    if not config.auth.tokens:  # requests through a proxy, a sidecar or a forwarded port come from localhost
        raise ConfigError([f"args of serve.app:build: {_NO_TOKENS}"])
    return application(config)


def default_settings(argv: Sequence[str]) -> list[str]:
    """The arguments in front of a command line without ``--config``: :data:`LOCAL_CONFIG`, without its model if the
    command line names some."""
    named = any(word.lstrip("-").startswith("models") for word in argv)
    return ["--config", str(LOCAL_CONFIG), *(["models=null"] if named else [])]


def main() -> None:
    """The command line of this module."""
    argv = sys.argv[1:]
    if not any(word == "--config" or word.startswith("--config=") for word in argv):
        argv = [*default_settings(argv), *argv]
    run_server(cli(CommandConfig, __doc__, argv, local=False, overwrite=False).config)


if __name__ == "__main__":
    main()
