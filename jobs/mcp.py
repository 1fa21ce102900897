"""Serve an agent over stdio, by the Model Context Protocol: it compares images, documents and folders.

    python jobs/mcp.py --root screenshots
    python jobs/mcp.py --root before --root after --artifact objects

The tools are compare_images and compare_folders. They read files below the folders of --root alone, also by links, and
use no network. Needs the official SDK: pip install 'idc[mcp]'. As an agent's programs are configured:

    {"mcpServers": {"idc": {"command": "idc", "args": ["mcp", "--root", "/home/me/screenshots"]}}}
"""

from __future__ import annotations

import sys
from pathlib import Path

from idc.agent.config import AgentJob
from idc.config import Cli, command, run_form
from idc.util.command_forms import Form


def serve_agent(args: Cli[AgentJob]) -> None:
    # Python puts the folder of this file first, in which the SDK's name is that of this file.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    from idc.agent.server import agent_server

    agent_server(args.config).run("stdio")


@command
def main() -> None:
    run_form(__doc__, {serve_agent: Form(AgentJob, local=False, overwrite=False)})


if __name__ == "__main__":
    main()
