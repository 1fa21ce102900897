"""Configs: typed, closed, frozen; all errors of single fields are reported at once, then all between fields with the
missing inputs, before anything starts.

The command line, sweeps and tests make configs only through :func:`load`, :func:`override` and :func:`cli`. A default
lives in the schema and nowhere else; a YAML file holds what differs from it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from idc.util import logs
from idc.util.command_forms import Form, chosen_form, of_another_form, options_of, parser_of
from idc.util.model_faults import fault_lines, model_of
from idc.util.option_values import is_text, scalar
from idc.util.program import as_started, shipped
from idc.util.redaction import for_terminal, redacted, secret_fault

_FIELDS_ONLY = object()
"""Validation context that leaves :meth:`ConfigModel.errors` out."""


class ConfigModel(BaseModel):
    """Base of every config section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        hide_input_in_errors=True,  # it may hold a secret
    )

    @classmethod
    def composed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The settings of all YAML files, before those of the command line. Override if files say how they combine."""
        return values

    def errors(self) -> Iterator[str]:
        """Faults between the fields of this section; all of them are reported. Override to add checks."""
        return iter(())

    def preflight(self) -> Iterator[str]:
        """Inputs that are missing on this machine. Checked by the command line only, not when a saved config is read
        elsewhere."""
        return iter(())

    def all_errors(self) -> Iterator[str]:
        """Secrets among the settings of this section, then :meth:`errors`."""
        texts = ((name, text) for name in type(self).model_fields for text in _texts(getattr(self, name)))
        yield from (f"{name}: {fault}" for name, text in texts if (fault := secret_fault(text)) is not None)
        yield from self.errors()

    def model_post_init(self, context: Any) -> None:
        if context is not _FIELDS_ONLY and (errors := list(self.all_errors())):
            raise ValueError("\n".join(errors))


Schema = TypeVar("Schema", bound=ConfigModel)


class ConfigError(ValueError):
    """A config was refused; ``errors`` has one line for each thing wrong with it.

    ``rest`` is the config, where each of its fields is valid.
    """

    def __init__(self, errors: Sequence[str], rest: ConfigModel | None = None):
        self.errors = [redacted(fault) for fault in errors]
        self.rest = rest
        super().__init__("\n".join(self.errors))


@dataclass(frozen=True)
class Cli(Generic[Schema]):
    """A parsed command line of a job."""

    config: Schema
    local: bool
    """Run on this machine, without Ray."""
    overwrite: bool
    """Replace an output that was made from another config."""


def missing(path: str | None, field: str) -> Iterator[str]:
    """A fault if ``path`` is a local path that does not exist (URIs are checked only when they are read)."""
    if path is not None and "://" not in path and not Path(path).exists():
        seen_from = "" if Path(path).is_absolute() else f" (in {str(Path.cwd())!r}; IDC_ROOT sets another folder)"
        yield f"{field}: no such file or folder: {path!r}{seen_from}"


def load(
    schema: type[Schema], path: str | Sequence[str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Schema:
    """The config of a YAML file, of several laid over each other, or of the defaults, with dotted ``overrides`` on top.

    Raises:
        ConfigError: with every fault: unknown keys (and what was probably meant), bad values, contradictions.
    """
    return _resolved(schema, *_read_files([path] if isinstance(path, str) else path or []), overrides or {})


def _resolved(
    schema: type[Schema], values: dict[str, Any], unread: Sequence[str], overrides: Mapping[str, Any]
) -> Schema:
    settings = _override({} if unread else schema.composed(values), overrides)
    return _validate(schema, _laid_over(_section_defaults(schema, settings), settings), unread)


def _read_files(paths: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of files laid over each other, and the faults of those that cannot be read."""
    values: dict[str, Any] = {}
    unread: list[str] = []
    for name in paths:
        try:
            values = _laid_over(values, _read_yaml(name))
        except ConfigError as error:
            unread += error.errors
    return values, unread


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(Path(shipped(path)).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"--config: cannot read {path!r}: {reason}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"--config: {path!r} is not YAML: {' '.join(str(error).split())}"]) from None
    if not isinstance(values, dict):
        raise ConfigError([f"--config: {path!r} holds a {type(values).__name__}, not a mapping of settings"])
    return values


def override(schema: type[Schema], base: Schema, overrides: Mapping[str, Any]) -> Schema:
    """A copy of ``base`` with dotted keys replaced: ``override(Job, base, {"train.lr": 3e-4})``."""
    return _validate(schema, _override(base.model_dump(exclude_unset=True), overrides))


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings laid over each other, the last on top; keys may be dotted, values may be mappings of further keys."""
    return functools.reduce(_override, layers, {})


def cli(
    schema: type[Schema],
    doc: str | None,
    argv: Sequence[str] | None = None,
    *,
    local: bool = True,
    overwrite: bool = True,
    positional: Sequence[str] = (),
) -> Cli[Schema]:
    """Parse a job's command line; leaves with status 2 and every fault on stderr if it is refused.

    A setting that is in no section, or has an ``option`` in its ``json_schema_extra``, may also be given as an option:
    ``--source DIR`` is ``source=DIR``, and ``--json`` is ``as_json=true``. One with several values may be repeated. The
    value of an option whose setting is a text is that text; all other values are YAML.

    Args:
        local, overwrite, positional: of :class:`Form`.
    """
    return _parsed([Form(schema, "", local, overwrite, positional)], doc, argv)[1]


def run_form(doc: str | None, forms: Mapping[Callable[[Cli[Any]], None], Form]) -> None:
    """Parse the command line of a job that does several things, like :func:`cli`, and call the function of the form
    that its settings choose: those of YAML files, with those of the command line on top."""
    form, args = _parsed(list(forms.values()), doc)
    next(function for function, its_form in forms.items() if its_form is form)(args)


def _parsed(forms: Sequence[Form], doc: str | None, argv: Sequence[str] | None = None) -> tuple[Form, Cli[Any]]:
    used = forms[:1]  # all others are imported only if they, or their settings, are used
    args, unused = parser_of(doc, used).parse_known_intermixed_args(argv)
    values, unread = _read_files(args.config or [])
    form = chosen_form(forms, values, args)
    if unused or form is not forms[0]:
        used = forms
        args = parser_of(doc, used).parse_intermixed_args(argv)
        form = chosen_form(forms, values, args)
    if args.help:
        parser_of(doc, [form]).print_help()
        raise SystemExit(0)
    settings = form.config_type().model_fields
    overrides, errors = _overrides(args, used, form.positional, settings)
    for option in ("local", "overwrite"):
        if getattr(args, option, False) and not getattr(form, option):
            errors.append(of_another_form(f"--{option}", form, [other for other in forms if getattr(other, option)]))
    for name in dict.fromkeys([*values, *(key.partition(".")[0] for key in overrides)]):
        if others := [other for other in forms if name not in settings and name in other.config_type().model_fields]:
            errors.append(of_another_form(name, form, others))
            values.pop(name, None)
            overrides = {key: value for key, value in overrides.items() if key.partition(".")[0] != name}
    try:
        config = _resolved(form.config_type(), values, unread, overrides)
    except ConfigError as error:
        enter_root()
        refuse(errors + error.errors + missing_inputs(error.rest))
    enter_root()
    if args.print_config and not errors:
        print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")
        raise SystemExit(0)
    if errors := [*errors, *logs.errors(), *missing_inputs(config)]:
        refuse(errors)
    logs.set_up()
    return form, Cli(config, getattr(args, "local", False), getattr(args, "overwrite", False))


def _overrides(
    args: argparse.Namespace, used: Sequence[Form], positional: Sequence[str], settings: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """The settings of a command line by their dotted names, and its faults.

    Args:
        used: the forms whose options were parsed.
        positional, settings: of the form that was chosen.
    """
    errors: list[str] = []
    overrides: dict[str, Any] = {}
    unnamed = list(positional)

    def read(key: str, text: str) -> None:
        try:
            overrides[key] = scalar(text)
        except yaml.YAMLError:
            errors.append(f"{key}: cannot read the value {text!r}; quote it as YAML would")

    for item in args.overrides:
        key, equals, text = item.partition("=")
        if unnamed and (not equals or "/" in key or key.partition(".")[0] not in settings):
            overrides[unnamed.pop(0)] = item  # a path or URI may have a =, and no setting has a /
        elif not equals or not key:
            errors.append(f"{item!r} is not of the form key=value")
        else:
            read(key, text)
    for name, (_, field) in options_of(used).items():
        if (value := getattr(args, f"{name}=", None)) is None:
            continue
        overrides.pop(name, None)  # an option lies over all words
        if is_text(field.annotation) or (isinstance(value, list) and len(value) > 1):
            overrides[name] = value
        else:
            read(name, value[0] if isinstance(value, list) else value)
    return overrides, errors


def command(main: Callable[[], None]) -> Callable[[], None]:
    """The ``main`` of a job, which ends with the message of a user's error, and status 1 (2 for a refused config)."""

    @functools.wraps(main)
    def run() -> None:
        try:
            main()
        except ConfigError as error:
            refuse(error.errors)
        except (ValueError, OSError) as error:
            text = f"{Path(main.__code__.co_filename).stem}: {as_started(str(error))}"
            raise SystemExit(for_terminal(text)) from None

    return run


def arguments(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Settings as a shell command takes them: ``section.name=value``, the inverse of the parse."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from arguments(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield shlex.quote(f"{prefix}{name}={text}")


def enter_root() -> None:
    """Go to the folder IDC_ROOT, if it is set: relative paths of configs are meant from there. `ray job submit` unpacks
    the code into a folder of its own, where neither data nor runs lie."""
    if root := os.environ.get("IDC_ROOT"):
        try:
            os.chdir(root)
        except OSError as error:
            refuse([f"IDC_ROOT: cannot go to {root!r}: {error.strerror}"])


def refuse(errors: Sequence[str]) -> NoReturn:
    """Print the errors and leave with status 2."""
    print(f"config refused, {len(errors)} error{'s' * (len(errors) > 1)}:", file=sys.stderr)
    for fault in errors:
        print(f"  {for_terminal(redacted(as_started(fault)))}", file=sys.stderr)
    raise SystemExit(2)


def _section_defaults(schema: type[BaseModel], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The sections, at any depth, whose default in this schema differs from the section's own defaults; also those in a
    section without a default for which there are ``settings``."""
    defaults: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        value = field.get_default(call_default_factory=True)
        inner = settings.get(name)
        below = inner if isinstance(inner, Mapping) else {}
        if isinstance(value, ConfigModel):
            defaults[name] = _laid_over(_section_defaults(type(value), below), value.model_dump(exclude_unset=True))
        elif field.is_required() and isinstance(inner, Mapping) and (section := model_of(field.annotation)):
            defaults[name] = {key: value for key, value in _section_defaults(section, below).items() if value}
    return defaults


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` on top of ``below``, mapping by mapping."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        if isinstance(value, Mapping):
            value = _laid_over(inner if isinstance(inner, Mapping) else {}, value)
        result[key] = value
    return result


def _override(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    for dotted, value in overrides.items():
        for key in reversed(dotted.split(".")):
            value = {key: value}
        values = _laid_over(values, value)
    return dict(values)


def _validate(schema: type[Schema], values: dict[str, Any], unread: Sequence[str] = ()) -> Schema:
    """Validate each field, then between fields. With faults of ``unread`` files, which may set all else, only each
    field that is set."""
    try:
        config = schema.model_validate(values, context=_FIELDS_ONLY)
    except ValidationError as error:
        items = [item for item in error.errors() if not (unread and item["type"] == "missing")]
        raise ConfigError([*unread, *fault_lines(schema, values, items)]) from None
    if unread:
        raise ConfigError(unread, rest=config)
    errors = [_typable(line, path, section) for path, section in _sections(config) for line in section.all_errors()]
    if errors:
        raise ConfigError(list(dict.fromkeys(errors)), rest=config)
    return config


def _texts(value: Any) -> list[str]:
    """The texts of a setting, also in lists and mappings; not those of other sections."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return [text for item in inner for text in _texts(item)]


def _sections(config: ConfigModel, path: str = "") -> Iterator[tuple[str, ConfigModel]]:
    """A config and the sections in it, each with its dotted path (which ends in a dot)."""
    yield path, config
    for name in type(config).model_fields:
        value = getattr(config, name)
        items = [(f"{name}.{n}", item) for n, item in enumerate(value)] if isinstance(value, tuple) else [(name, value)]
        for key, item in items:
            if isinstance(item, ConfigModel):
                yield from _sections(item, f"{path}{key}.")


def missing_inputs(config: ConfigModel | None) -> list[str]:
    """Inputs of the config and all its sections that are missing on this machine."""
    sections = () if config is None else _sections(config)
    faults = (_typable(fault, path, section) for path, section in sections for fault in section.preflight())
    return list(dict.fromkeys(faults))


def _typable(fault: str, path: str, section: ConfigModel) -> str:
    """A fault of a section with its own settings by their dotted names, as they are typed."""
    return re.sub(rf"(?<![\w.])(?=({'|'.join(type(section).model_fields)})=)", path, f"{path}{fault}")
