"""The forms of a command: what it does by which settings, and these as options of a parser."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from idc.util.model_faults import model_of
from idc.util.option_values import is_several


@dataclass(frozen=True)
class Form:
    """One of the things that a command does, with the settings of it alone."""

    schema: type[BaseModel] | str
    """Its config; ``"module:class"`` is imported when this form, or a setting of another one, is used."""
    setting: str = ""
    """The setting by which it is chosen, ``name`` or ``name=value``. The first form has none, and is chosen without."""
    local: bool = True
    """Whether it uses the option --local; one that would do nothing is refused."""
    overwrite: bool = True
    """Whether it uses the option --overwrite."""
    positional: Sequence[str] = ()
    """Settings that may be given by their value alone, in this order. A word ``name=value`` is one of them if no
    setting has this name."""
    unlike: tuple[str, ...] = ()
    """Endings of the first of ``positional`` with which another form of the same setting is meant."""
    note: str = ""
    """What its help has after the description of the command."""

    def config_type(self) -> Any:
        """The class of its config."""
        return resolve_name(self.schema) if isinstance(self.schema, str) else self.schema

    def is_chosen(self, settings: Mapping[str, Any]) -> bool:
        """Whether the top-level ``settings`` of files and command line have its own."""
        name, _, value = self.setting.partition("=")
        if name not in settings or value not in ("", settings[name]):
            return False
        if not self.unlike:
            return True
        first = str(settings.get(self.positional[0], "")).lower()
        return bool(first) and not first.endswith(self.unlike)

    def typed(self) -> str:
        """Its setting as a message names it."""
        return self.setting if "=" in self.setting else f"{self.setting}="


def parser_of(doc: str | None, forms: Sequence[Form]) -> argparse.ArgumentParser:
    """A parser of the options of all ``forms``, with the help of the first one."""
    parser = argparse.ArgumentParser(
        usage=" ".join(["%(prog)s", "[options]", *map(str.upper, forms[0].positional), "[key=value ...]"]),
        description=f"{doc or ''}\n{forms[0].note}",
        epilog=_field_help(forms[0].config_type()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,  # of the form that is chosen, which is not known before
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings, e.g. train.batch_size=32 (or --key value, undotted)",
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help message and exit")
    parser.add_argument("--config", metavar="FILE", action="append", help="YAML file of settings; a further one on top")
    parser.add_argument("--print-config", action="store_true", help="print the resolved config as YAML and stop")
    if any(form.local for form in forms):
        parser.add_argument("--local", action="store_true", help="run on this machine, without Ray")
    if any(form.overwrite for form in forms):
        parser.add_argument("--overwrite", action="store_true", help="replace an output made from another config")
    for name, (spellings, field) in options_of(forms).items():
        flag: dict[str, Any] = {"action": "store_const", "const": "true"} if field.annotation is bool else {}
        if is_several(field.annotation):
            flag = {"action": "append"}
        parser.add_argument(*spellings, dest=f"{name}=", help=argparse.SUPPRESS, **flag)
    return parser


def chosen_form(forms: Sequence[Form], values: Mapping[str, Any], args: argparse.Namespace) -> Form:
    """The form whose setting files or the command line have; else the first."""
    words = [word.partition("=") for word in args.overrides]
    unnamed = [key for key, equals, _ in words if not equals]
    settings = {**values, **dict(zip(forms[0].positional, unnamed, strict=False))}
    settings |= {key.partition(".")[0]: text for key, equals, text in words if equals}
    settings |= {
        name.removesuffix("="): value for name, value in vars(args).items() if name[-1] == "=" and value is not None
    }
    return next((form for form in forms[1:] if form.is_chosen(settings)), forms[0])


def options_of(forms: Sequence[Form]) -> dict[str, tuple[list[str], FieldInfo]]:
    """The dotted settings of all ``forms`` that may be given as options: how these are spelled, and their field."""
    return dict(option for form in reversed(forms) for option in _options(form.config_type()))


def of_another_form(name: str, form: Form, others: Sequence[Form]) -> str:
    """The fault that ``name``, a setting or an option, is one of ``others``, and not of ``form``."""
    if form.setting:
        return f"{name}: not used with {form.typed()}; remove one of the two"
    return f"{name}: not used without {' or '.join(dict.fromkeys(other.typed() for other in others))}"


def _options(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, tuple[list[str], FieldInfo]]]:
    for name, field in schema.model_fields.items():
        if (section := model_of(field.annotation)) is not None:
            if typing.get_origin(field.annotation) not in (tuple, dict):
                yield from _options(section, f"{prefix}{name}.")
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        spellings = [str(extra["option"])] if "option" in extra else []
        if not prefix:
            spellings = [*dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}", *spellings])]
        if spellings:
            yield prefix + name, (spellings, field)


def _field_help(schema: type[BaseModel], prefix: str = "") -> str:
    lines = ["settings:"] if not prefix else []
    options = {name: ", ".join(spellings) for name, (spellings, _) in _options(schema, prefix)}
    for name, field in schema.model_fields.items():
        section = model_of(field.annotation)
        if section is not None:
            lines.append(_field_help(section, f"{prefix}{name}."))
            continue
        default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)!r}"
        text = " ".join((field.description or "").split())
        option = options.get(f"{prefix}{name}", "")
        lines.append(f"  {prefix}{name}  ({default})  {option}".rstrip() + f"\n      {text}")
    return "\n".join(lines)
