"""Checks of Markdown pages: links resolve, and every command in a code block is one that its program accepts.

Commands are parsed by the programs themselves: a job's ``main`` runs until its command line is parsed, its config
included. Nothing is trained, written or downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import yaml

import idc.config
from idc.__main__ import commands

ROOT = Path(__file__).resolve().parents[2]
SERVER = "http://127.0.0.1:8000"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_INLINE_COMMAND = re.compile(
    r"(\.venv/bin/)?(python jobs/[a-z_]+\.py|python -m|make|idc|pip install|serve deploy|mlflow) "
)


# -- links --------------------------------------------------------------------------------------------------------


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return [fault for link in _LINK.findall(text) if (fault := _broken(page, link))]


def _broken(page: Path, link: str) -> str | None:
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return None if "." in parts.netloc else f"{link}: no host"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return f"{link}: no such file in the repository"
    if parts.fragment and parts.fragment not in anchors(target):
        return f"{link}: no such heading"
    return None


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for line in _FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if heading := re.fullmatch(r"#{1,6} (.+)", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found.append(f"{anchor}-{count}" if (count := found.count(anchor)) else anchor)
    return frozenset(found)


# -- code ---------------------------------------------------------------------------------------------------------


def faulty_code(page: Path) -> list[str]:
    """What is wrong with the code blocks of a page, and with the commands in its text."""
    text = page.read_text(encoding="utf-8")
    faults = []
    for block in _FENCE.finditer(text):
        line = text[: block.start()].count("\n") + 1
        faults += [f"line {line}: {fault}" for fault in faulty_block(block["language"], _dedent(block))]
    for code in _CODE.finditer(_FENCE.sub("", text)):
        command = " ".join(code[2].split())
        # With an elision ("...", NAME) it is a pattern, not a command.
        if _INLINE_COMMAND.match(command) and "..." not in command and "NAME" not in command.split()[1]:
            faults += [f"`{command}`: {fault}" for fault in faulty_command(command)]
    return faults


def _dedent(block: re.Match[str]) -> str:
    return "".join(line.removeprefix(block["indent"]) for line in block["text"].splitlines(keepends=True))


def blocks(text: str) -> list[str]:
    """The code blocks of commands in Markdown."""
    return [block for language, block in all_blocks(text) if language == ""]


def all_blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of all code blocks in Markdown."""
    return [(block["language"], _dedent(block)) for block in _FENCE.finditer(text)]


def faulty_block(language: str, text: str) -> Iterator[str]:
    """What is wrong with a code block."""
    if language == "python":
        try:
            compile(text, "block", "exec")
        except SyntaxError as error:
            yield f"python: {error}"
    elif language == "json":
        for line in text.splitlines():
            try:
                json.loads(line)
            except ValueError as error:
                yield f"json: {line}: {error}"
    elif language == "yaml":
        try:
            yaml.safe_load(text)
        except yaml.YAMLError as error:
            yield f"yaml: {error}"
    elif language == "":
        for command in text.replace("\\\n", " ").splitlines():
            yield from (f"{' '.join(command.split())}: {fault}" for fault in faulty_command(command))
    elif language not in ("text", "bibtex"):
        yield f"```{language}: nothing checks this language"


def faulty_command(command: str) -> Iterator[str]:
    """What is wrong with a line of shell."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError as error:
        yield str(error)
        return
    for separated, simple in itertools.groupby(words, (";", "&&", "||", "|").__contains__):
        if not separated:
            yield from _faulty(list(simple))


def _faulty(words: list[str]) -> Iterator[str]:
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    if program in _CHECKED:
        yield from _CHECKED[program](arguments)
    elif program in _OTHER:
        folders = [word for word in arguments if word.startswith(("k8s/", "cluster/", "serve/"))]
        paths = [f"{word}/kustomization.yaml" if "-k" in arguments else word for word in folders]
        yield from (f"no such file: {path}" for path in paths if not (ROOT / path).exists())
        if (job := next((place for place, word in enumerate(arguments) if word == "python"), None)) is not None:
            yield from _faulty(arguments[job:])
    else:
        yield f"{program}: nothing checks this program"


_OTHER = ("kubectl", "helm", "docker", "sh", "sed", "ray", "sbatch", "serve", "pip", "export", "git", "mlflow", "cd",
          "echo", "umask", "curl")  # fmt: skip
"""Programs of others: the repository's files that they are given must exist, and what they submit is checked; lines of
curl are run by test_served_examples.py."""


def _faulty_python(arguments: list[str]) -> Iterator[str]:
    first, rest = arguments[0], arguments[1:]
    if first == "-c":
        compile(rest[0], "-c", "exec")
    elif first == "-m" and rest[0] == "pytest":
        yield from (f"no such test: {path}" for path in rest[1:] if not (ROOT / path).exists())
    elif first == "-m" and rest[0] == "serve.app":
        yield from _faulty_parse("serve.app", rest[1:])
    elif first == "-m":
        if not (ROOT / f"{rest[0].replace('.', '/')}.py").exists():
            yield f"no such module: {rest[0]}"
    elif not (ROOT / first).is_file():
        yield f"no such script: {first}"
    else:
        yield from _faulty_parse(first.removesuffix(".py").replace("/", "."), rest)


def _faulty_idc(arguments: list[str]) -> Iterator[str]:
    if not arguments or arguments[0] in ("--path", "--help"):
        return
    command = commands(ROOT).get(arguments[0])
    if command is None:
        yield f"no such command: {arguments[0]}"
    else:
        script = [str(Path(command[0]).relative_to(ROOT))] if command[0].endswith(".py") else command[1:]
        yield from _faulty_python([*script, *arguments[1:]])


def _faulty_make(arguments: list[str]) -> Iterator[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    modules = {"DEMO": "jobs.demo", "SERVE": "serve.app"}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in modules:
            yield from _faulty_parse(modules[name], shlex.split(value))
        elif argument not in targets and not (equals and f"$({name})" in makefile):
            yield f"no such target or variable: {argument}"


_CHECKED = {"python": _faulty_python, "idc": _faulty_idc, "make": _faulty_make}


# -- the programs' own parsers ------------------------------------------------------------------------------------


class _Parsed(BaseException):
    """The command line was accepted; what would run is not reached."""


def _faulty_parse(name: str, arguments: list[str]) -> Iterator[str]:
    """What the program's own parser says against a command line, its config included."""
    module: ModuleType = importlib.import_module(name)
    said = io.StringIO()
    program = f"{name.replace('.', '/')}.py"
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(contextlib.redirect_stdout(said))
            stack.enter_context(patch.object(sys, "argv", [program, *arguments]))
            # Inputs are named as a user would have them, and are not on this machine.
            stack.enter_context(patch.object(idc.config, "missing_inputs", lambda _: []))
            stack.enter_context(patch.object(argparse.ArgumentParser, "parse_args", _then_stop(_plain_parse)))
            stack.enter_context(patch.object(idc.config, "_parsed", _then_stop(idc.config._parsed)))
            module.main()
    except _Parsed:
        return
    except SystemExit as left:
        if left.code:
            yield " ".join(said.getvalue().split()) or str(left.code)
        return
    yield "its main parsed no command line"


_plain_parse = argparse.ArgumentParser.parse_args


def _then_stop(parse: Any) -> Any:
    def parse_and_stop(*args: Any, **options: Any) -> None:
        partial(parse, *args, **options)()
        raise _Parsed

    return parse_and_stop
