"""The remedies in the program's messages: options, settings and commands that a user is told to type, and the commands
that print each message."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import idc.config
from cluster import training_command
from idc.config import ConfigModel
from tests.docs.checks import ROOT
from tests.test_layers import modules_of, name_of, python_files

PARTS = {
    "caption": ("", "input=a", "out=a"), "convert": ("", "kind=mci"), "pretrain_procap": ("", "only=procedures"),
    "robustness": ("", "kind=fog"), "evaluate": ("", "instructions=a", "answers=a", "judge=a", "evaluations=[a]"),
    "finetune_changevg": ("", "only=guide"),
}  # fmt: skip
"""Job -> settings by which it does different things."""
OPTION = re.compile(r"(?<![\w.-])--[a-z][\w-]*")
SETTING = re.compile(r"(?<![\w./?&<{-])([a-z_]\w*(?:\.\w+)*)=(?![=\s])")
COMMAND = re.compile(r"python (?:jobs/\w+\.py|-m serve\.app)(?: (?!and |adds |writes |lists |makes |\()[^\s;,:`)]+)*")
JOB = re.compile(r"jobs/\w+\.py")
OF_OTHERS = re.compile(r"\b(?:rio|pip|ray job|hf|mlflow|openssl) [a-z-]+[^;,`]*|Content-Disposition.*|<[a-z]+ .*", re.DOTALL)
"""Commands of other programs, headers, HTML."""


@dataclass
class Program:
    """What a command takes: options, and settings by their dotted names with the sections that they are in."""

    options: set[str] = field(default_factory=set)
    settings: set[str] = field(default_factory=set)
    sections: list[tuple[str, type[ConfigModel]]] = field(default_factory=list)

    def add(self, schema: type[ConfigModel], prefix: str = "") -> None:
        self.sections.append((prefix, schema))
        for name, info in schema.model_fields.items():
            self.settings.add(prefix + name)
            if (inner := idc.config._model_of(info.annotation)) is not None:
                self.add(inner, f"{prefix}{name}.")


class _Parsed(BaseException):
    """All that the command takes is known."""


@cache
def programs() -> dict[str, Program]:
    """Module of a command -> what it takes, in all of its parts."""
    found = {}
    for name in [*(f"jobs.{path.stem}" for path in sorted((ROOT / "jobs").glob("*.py"))), "serve.app"]:
        found[name] = program = Program()

        def take(schema: Any, *_: Any, program: Program = program, **options: Any) -> None:
            program.add(schema)
            given = [spelling for _, spellings, _ in idc.config._options(schema) for spelling in spellings]
            program.options |= {"--config", "--print-config", "--help", *given}
            program.options |= {f"--{flag}" for flag in ("local", "overwrite") if options.get(flag, True)}
            raise _Parsed

        def parse(parser: argparse.ArgumentParser, *_: Any, program: Program = program) -> None:
            program.options |= {option for action in parser._actions for option in action.option_strings}
            raise _Parsed

        module = importlib.import_module(name)
        for words in PARTS.get(name.removeprefix("jobs."), ("",)):
            with contextlib.ExitStack() as stack:
                stack.enter_context(patch.object(sys, "argv", [name, *words.split()]))
                stack.enter_context(patch.object(argparse.ArgumentParser, "parse_args", parse))
                for place in (module, training_command, idc.config):
                    if hasattr(place, "cli"):
                        stack.enter_context(patch.object(place, "cli", take))
                stack.enter_context(contextlib.suppress(_Parsed))
                module.main()
    return found


@cache
def reached(module: str) -> frozenset[str]:
    """The modules that a module imports, directly or by others, also by names in strings (``"module:function"``)."""
    files = {name_of(path): path for path in python_files("idc", "cluster", "serve", "jobs")}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        if (name := waiting.pop()) in seen or name not in files:
            continue
        seen.add(name)
        text = files[name].read_text(encoding="utf-8")
        waiting += modules_of(files[name], types=False)
        waiting += re.findall(r"[\"'](idc(?:\.\w+)+)[:\"']", text)
        if re.search(r"f\"idc\.systems\.\{", text):
            waiting += [other for other in files if other.startswith("idc.systems.")]
    return frozenset(seen)


@dataclass(frozen=True)
class Message:
    """A text of the program that is no documentation, with ``x`` in the place of its values."""

    path: Path
    line: int
    text: str
    section: str | None
    """The class of settings in which it is."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    def printed_by(self) -> dict[str, Program]:
        module = name_of(self.path)
        return {name: program for name, program in programs().items() if module in reached(name)}

    def faults(self) -> Iterator[str]:
        text = OF_OTHERS.sub("", self.text)
        taking = self.printed_by().values()
        text = COMMAND.sub("", text)
        for option in OPTION.findall(text):
            if not any(option in program.options for program in taking):
                yield f"{option}: no command that prints this takes it"
        for setting in SETTING.findall(text):
            if not any(self._takes(program, setting) for program in taking):
                yield f"{setting}=: no command that prints this takes it"
        for job in JOB.findall(text):
            if not (ROOT / job).exists():
                yield f"{job}: no such file"

    def _takes(self, program: Program, setting: str) -> bool:
        if setting in program.settings or any(
            re.fullmatch(rf"{re.escape(name)}\.\w+", setting) for name in program.settings
        ):
            return True
        own = None if self.section is None else getattr(importlib.import_module(name_of(self.path)), self.section, None)
        return isinstance(own, type) and any(
            prefix + setting in program.settings for prefix, schema in program.sections if issubclass(schema, own)
        )


def messages() -> list[Message]:
    found = []
    for path in python_files("idc", "cluster", "serve", "jobs"):
        found += _messages_of(path)
    return found


def _messages_of(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def visit(node: ast.AST, section: str | None) -> Iterator[Message]:
        if isinstance(node, ast.ClassDef):
            section = node.name
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        text = None
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if text is not None:
            if " " in text.strip():
                yield Message(path, node.lineno, text, section)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, section)

    yield from visit(tree, None)
