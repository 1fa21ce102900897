"""The server for agents, by the SDK's own client over a real pipe: its tools, refusals, and what it may read."""

from __future__ import annotations

import asyncio
import base64
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters

from idc.agent.config import AgentJob
from idc.config import ConfigError, load
from idc.data.images import decode_image, encode_png
from tests.captioning.pdf_files import pdf, text_page
from tests.conftest import Command
from tests.systems.objects.test_exact import BLUE, changed, screen

ROOT = Path(__file__).resolve().parents[2]
BEFORE, AFTER = encode_png(np.array(screen())), encode_png(changed("rectangle", (40, 400, 239, 439), fill=BLUE))
SENTENCE = "A blue area of 200 x 40 px appeared at the bottom left."


def bomb(side: int) -> bytes:
    """A PNG file of a few bytes that has side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    files = {
        "a.png": BEFORE, "b.png": AFTER, "bomb.png": bomb(60_000), "text.png": b"no image",
        "a.pdf": pdf([text_page(0), text_page(1)]), "b.pdf": pdf([text_page(0), text_page(1, {(7, 3): "zebra"})]),
        "old/same.png": BEFORE, "old/page.png": BEFORE, "old/gone.png": BEFORE, "old/cut.png": BEFORE,
        "new/same.png": BEFORE, "new/page.png": AFTER, "new/here.png": BEFORE, "new/cut.png": BEFORE[:200],
        "../secret.png": BEFORE, "../secrets/x.png": BEFORE,
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "inside.png").symlink_to(folder / "b.png")
    (folder / "folder").symlink_to(tmp_path / "secrets")
    (folder / "new" / "link.png").symlink_to(tmp_path / "secret.png")
    return folder


def session(root: Path, work: Callable[[Client], Awaitable[Any]]) -> Any:
    """What ``work`` returns, with a client of a server that was started for it."""

    async def run() -> Any:
        arguments = [str(ROOT / "jobs" / "mcp.py"), "--root", str(root), "--artifact", "objects"]
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
            return await work(client)

    return asyncio.run(run())


PAIR = {"before": "a.png", "after": "b.png"}
OUTSIDE = "not below the folders of this server"
TRANSCRIPT: list[tuple[str, dict[str, Any], bool, str]] = [
    ("compare_images", PAIR, False, f"{SENTENCE}\nVerdict: changed."),
    ("compare_images", PAIR | {"after": "inside.png"}, False, SENTENCE),
    ("compare_images", PAIR | {"after": "a.png"}, False, "The two images are identical."),
    ("compare_images", PAIR | {"ignore": [[0, 0.8, 1, 1]]}, False, "The two images are identical."),
    ("compare_images", PAIR | {"counts": ["words"]}, False, "Nothing that counts changed."),
    ("compare_images", {"before": "a.pdf", "after": "b.pdf"}, False, "Page 2 of 2 changed. Page 2: The word "),
    ("compare_folders", {"before": "old", "after": "new"}, False, "1 changed, 1 new, 1 missing, 1 not compared"),
    ("compare_images", PAIR | {"after": "no.png"}, True, "no.png: no such file"),
    ("compare_images", PAIR | {"after": "old"}, True, "old: no such file"),
    ("compare_images", PAIR | {"after": "../secret.png"}, True, f"../secret.png: {OUTSIDE}"),
    ("compare_images", PAIR | {"after": "/etc/passwd"}, True, f"/etc/passwd: {OUTSIDE}"),
    ("compare_images", PAIR | {"after": "/nowhere"}, True, f"/nowhere: {OUTSIDE}"),
    ("compare_images", PAIR | {"after": "link.png"}, True, f"link.png: {OUTSIDE}"),
    ("compare_images", PAIR | {"after": "https://host/b.png"}, True, "https://host/b.png: no such file"),
    ("compare_images", PAIR | {"ignore": ["link.png"]}, True, f"link.png: {OUTSIDE}"),
    ("compare_images", PAIR | {"counts": ["/etc/x.yaml"]}, True, "'/etc/x.yaml' is neither a preset"),
    ("compare_images", PAIR | {"criteria": "words"}, True, "criteria: this captioner reads no language"),
    ("compare_folders", {"before": "old", "after": "folder"}, True, f"folder: {OUTSIDE}"),
    ("compare_folders", {"before": "old", "after": "a.png"}, True, "a.png: no such folder"),
    ("compare_images", PAIR | {"after": "bomb.png"}, True, "bomb.png: too many pixels"),
    ("compare_images", PAIR | {"after": "text.png"}, True, "text.png: not an image"),
    ("compare_images", {"before": "a.png"}, True, "1 validation error"),
    ("draw", {}, True, "Unknown tool"),
]
"""Calls of one session: tool, arguments, whether it is an error, and the beginning of the text."""


def test_a_session_with_the_tools(root: Path) -> None:
    async def work(client: Client) -> tuple[Any, list[Any]]:
        tools = (await client.list_tools()).tools
        return tools, [await client.call_tool(name, arguments) for name, arguments, *_ in TRANSCRIPT]

    tools, results = session(root, work)
    schemas = {tool.name: tool.output_schema for tool in tools}
    assert set(schemas) == {"compare_images", "compare_folders"}
    for tool in tools:
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema)
        assert tool.annotations.read_only_hint
    for (name, arguments, is_error, text), result in zip(TRANSCRIPT, results, strict=True):
        said = result.content[0].text
        assert bool(result.is_error) == is_error, (arguments, said)
        assert said.removeprefix(f"Error executing tool {name}: ").removeprefix(f"{root}/").startswith(text), said
        if not is_error:
            Draft202012Validator(schemas[name]).validate(result.structured_content)
    claim = results[0].structured_content["claims"][0]
    assert (claim["kind"], claim["box_after"]) == ("appeared", [40, 400, 240, 440])
    assert results[5].structured_content["claims"][0]["page"] == 2
    states = {file["name"]: file["state"] for file in results[6].structured_content["files"]}
    assert states == {"page.png": "changed", "here.png": "new", "gone.png": "missing", "cut.png": "failed"}


def test_the_picture_has_the_boxes(root: Path) -> None:
    async def work(client: Client) -> Any:
        return await client.call_tool("compare_images", {"before": "a.png", "after": "b.png", "picture": True})

    before, after = (decode_image(base64.b64decode(block.data)) for block in session(root, work).content[1:])
    assert before.shape == after.shape == decode_image(AFTER).shape
    assert (after[400, 40:240] == (230, 30, 120)).all()
    assert not (before == (230, 30, 120)).all(axis=2).any(), "nothing was there"


def test_two_clients_at_once_and_two_calls_of_one(root: Path) -> None:
    async def work(first: Client) -> list[Any]:
        arguments = [str(ROOT / "jobs" / "mcp.py"), "--root", str(root), "--artifact", "objects"]
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as second:
            calls = [
                client.call_tool("compare_images", {"before": before, "after": after})
                for client in (first, second)
                for before, after in (("a.png", "b.png"), ("b.png", "a.png"), ("a.pdf", "b.pdf"))
            ]
            return await asyncio.gather(*calls)

    sentences = [result.structured_content["sentence"] for result in session(root, work)]
    assert sentences[:3] == sentences[3:]
    assert sentences[0] == SENTENCE
    assert sentences[1] == SENTENCE.replace("appeared", "is gone")


def test_what_cannot_be_served_is_refused_at_the_start(tmp_path: Path, command: Command) -> None:
    refused = command("mcp", "--root", tmp_path / "nowhere")
    assert refused.returncode == 2
    assert "nowhere is not a folder" in refused.stderr
    with pytest.raises(ConfigError, match="root"):
        load(AgentJob, None, {})
