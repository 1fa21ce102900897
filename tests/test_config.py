"""Configs: what is refused, with which words; defaults, files and overrides on top of each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import Field, ValidationError

from idc.config import ConfigError, ConfigModel, cli, command, load, missing, override
from idc.util import logs


class Inner(ConfigModel):
    """A section."""

    rate: float = Field(1e-3, gt=0)
    """Learning rate."""
    steps: int = Field(10, ge=1)
    """Steps."""
    kind: Literal["linear", "cosine"] = "linear"
    """Shape."""

    def errors(self) -> Iterator[str]:
        if self.kind == "cosine" and self.steps < 5:
            yield f"steps: {self.steps} is too few for a cosine"


class Source(ConfigModel):
    """A section that has no default."""

    path: str
    """A file."""
    share: float = Field(0.5, ge=0, le=1, json_schema_extra={"option": "--share"})
    """A share."""

    def errors(self) -> Iterator[str]:
        if self.share == 0.125:
            yield "share: 0.125 is unlucky"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.path, "path")


class Job(ConfigModel):
    """A job."""

    name: str = Field(min_length=1)
    """Its name."""
    inner: Inner = Inner(steps=20, kind="cosine")
    """A section with other defaults than its own."""
    source: Source | None = None
    """Perhaps."""
    more: tuple[Source, ...] = ()
    """Several."""
    words: tuple[Literal["red", "green"], ...] = ("red",)
    """Words."""
    total: int = 30
    """Must not be below inner.steps."""

    def errors(self) -> Iterator[str]:
        if self.total < self.inner.steps:
            yield f"total: {self.total} is below inner.steps = {self.inner.steps}"


def faults_of(overrides: dict[str, Any], path: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(Job, str(path) if path else None, overrides)
    assert str(refused.value).splitlines() == refused.value.errors
    return refused.value.errors


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# -- faults -------------------------------------------------------------------------------------------------------


def test_all_faults_of_fields_are_named_at_once_then_all_between_fields() -> None:
    """Unknown keys, bad ranges and words, a bad list; contradictions."""
    found = faults_of(
        {"name": "", "inner.stepps": 3, "inner.rate": -1, "inner.kind": "cosin", "words": ["red", "blue"], "totl": 1}
    )
    assert found == [
        "name: string should have at least 1 character, got ''",
        "inner.rate: input should be greater than 0, got -1",
        "inner.kind: 'cosin' is not one of linear, cosine; did you mean 'cosine'?",
        "inner.stepps: no such setting; did you mean 'steps'?",
        "words.1: 'blue' is not one of red, green",
        "totl: no such setting; did you mean 'total'?",
    ]
    found = faults_of(
        {
            "name": "a",
            "source": {"path": "x", "share": 0.125},
            "more": [{"path": "y"}, {"path": "z", "share": 0.125}],
            "total": 3,
        }
    )
    assert found == [
        "total: 3 is below inner.steps = 20",
        "source.share: 0.125 is unlucky",
        "more.1.share: 0.125 is unlucky",
    ]


def test_what_is_required_is_said() -> None:
    assert faults_of({}) == ["name: required, and not given"]
    assert faults_of({"name": "a", "source.share": 1}) == ["source.path: required, and not given"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--config: cannot read"),
        ("[1, 2]", "holds a list, not a mapping"),
        ("a: [1", "is not YAML"),
        ("name: a\ninner: 3", "inner: input should be a valid dictionary or instance of Inner, got 3"),
    ],
)
def test_a_bad_file(tmp_path: Path, text: str | None, message: str) -> None:
    (line,) = faults_of({}, tmp_path / "no.yaml" if text is None else yaml_file(tmp_path, text))
    assert message in line


def test_a_config_made_by_hand_is_checked_too_and_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="too few for a cosine"):
        Inner(kind="cosine", steps=1)
    with pytest.raises(ValidationError, match=r"is below inner\.steps"):
        Job(name="a", total=1)
    with pytest.raises(ValidationError, match="frozen"):
        Job(name="a").total = 5  # type: ignore[misc]


# -- layers -------------------------------------------------------------------------------------------------------


def test_defaults_of_the_job_lie_under_the_file_and_the_file_under_overrides(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "name: a\ninner:\n  rate: 1.0e-2\n")
    config = load(Job, str(file), {"inner.kind": "linear"})
    assert config.inner == Inner(rate=1e-2, steps=20, kind="linear")  # steps: of Job's default, not Inner's own 10
    assert load(Job, str(file)).inner == Inner(rate=1e-2, steps=20, kind="cosine")
    assert load(Job, None, {"name": "a"}).inner == Inner(steps=20, kind="cosine")
    assert load(Job, str(file), {"inner": {"steps": 6}}).inner == Inner(rate=1e-2, steps=6, kind="cosine")


def test_defaults_within_a_section_that_has_to_be_given_are_kept() -> None:
    class Outer(ConfigModel):
        """A job as a section without a default."""

        job: Job
        """The job."""

    config = load(Outer, None, {"job.name": "a", "job.inner.rate": 1e-2})
    assert config.job.inner == Inner(rate=1e-2, steps=20, kind="cosine")
    assert load(Outer, None, {"job": {"name": "a"}}).job.model_fields_set == {"name"} | config.job.model_fields_set
    with pytest.raises(ConfigError, match="job: required, and not given"):
        load(Outer, None, {})


def test_override_makes_a_changed_copy() -> None:
    base = load(Job, None, {"name": "a", "inner.steps": 7})
    changed = override(Job, base, {"inner.rate": 3e-4, "total": 8})
    assert changed == Job(name="a", inner=Inner(steps=7, rate=3e-4, kind="cosine"), total=8)
    assert base.inner.rate == 1e-3
    with pytest.raises(ConfigError, match=r"total: 2 is below inner\.steps = 7"):
        override(Job, base, {"total": 2})


# -- command line -------------------------------------------------------------------------------------------------


class Captions(ConfigModel):
    """A job with options of a section."""

    source: Source = Source(path="s3://here")
    """Its share is also an option."""
    words: tuple[str, ...] = ()
    """Several."""
    as_json: bool = Field(False, json_schema_extra={"option": "--json"})
    """A field `json` would hide a method."""
    file: str | None = None
    """A text."""
    kind: Literal["on", "off"] = "on"
    """A word."""
    kinds: tuple[str, ...] | None = None
    """Perhaps several."""


def test_an_option_is_a_setting_also_of_a_section_and_may_be_repeated() -> None:
    argv = ["--json", "--share", "0.25", "--words", "1,2", "--words=b.png"]
    assert cli(Captions, "", argv).config == Captions(
        source=Source(path="s3://here", share=0.25), words=("1,2", "b.png"), as_json=True
    )
    over = cli(Captions, "", ["--share", "0.25", "source={path: s3://a, share: 1}"]).config
    assert over.source == Source(path="s3://a", share=0.25)
    assert cli(Captions, "", ["--words", "[a, b]"]).config.words == ("a", "b")
    named = cli(Captions, "", ["s3://b/x?version=1", "--json"], positional=("source.path",)).config
    assert named.source.path == "s3://b/x?version=1"


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--file", "dir #1/a"], "file", "dir #1/a"),
        (["--file", "out: x.png"], "file", "out: x.png"),
        (["--file", "2024"], "file", "2024"),
        (["--file=null"], "file", "null"),
        (["file=a", "--file=b"], "file", "b"),
        (["--kind", "off"], "kind", "off"),
        (["file=null"], "file", None),
        (["--kinds=a", "--kinds=b"], "kinds", ("a", "b")),
        (["--kinds=[a]"], "kinds", ("a",)),
        (["x=1.png"], "file", "x=1.png"),
        (["x.y=1.png"], "file", "x.y=1.png"),
    ],
)
def test_the_value_of_an_option_or_of_a_positional_is_taken_as_it_is(
    argv: list[str], field: str, value: object
) -> None:
    """Not that of ``key=value``, which is YAML; a word that names no setting is a positional."""
    assert getattr(cli(Captions, "", argv, positional=("file",)).config, field) == value


@pytest.mark.parametrize("error", [ValueError("no such pair"), FileNotFoundError("no such pair"), KeyError("pair")])
def test_a_users_error_ends_a_job_with_its_message_and_another_one_with_its_place(error: Exception) -> None:
    @command
    def main() -> None:
        raise error

    with pytest.raises(KeyError if isinstance(error, KeyError) else SystemExit) as ended:
        main()
    assert isinstance(error, KeyError) or str(ended.value) == "test_config: no such pair"


def test_control_characters_in_names_of_others_reach_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[2J\x9b1A\r\x07\u202eb\udcff c\n\té"
    shown = r"a\x1b[2J\x9b1A\r\x07\u202eb\udcff c" + "\n\té"

    @command
    def main() -> None:
        raise ValueError(name)

    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value) == f"test_config: {shown}"
    logs.event("note", name)
    assert capsys.readouterr().err == f"{shown}\n"


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    with pytest.raises(SystemExit) as left:
        cli(Job, "A job.", argv)
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    head, *lines = err.splitlines()
    assert head == f"config refused, {len(lines)} error{'s' * (len(lines) > 1)}:"
    return [line.strip() for line in lines]


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("1E+2", 100.0), (".5", 0.5), ("2", 2.0), ("1_000", 1000.0), ("0.25", 0.25)]
)
def test_numbers_on_the_command_line(text: str, value: float) -> None:
    """YAML 1.1 takes ``1e-4`` for text."""
    assert cli(Job, "", ["name=a", f"inner.rate={text}"]).config.inner.rate == value


def test_values_are_yaml() -> None:
    args = cli(Job, "", ["name=a=b", "--local", "words=[red, green]", "source={path: /tmp, share: 0.25}"])
    assert (args.local, args.overwrite) == (True, False), "flags may stand anywhere"
    assert args.config.name == "a=b"
    assert args.config.words == ("red", "green")
    assert args.config.source == Source(path="/tmp", share=0.25)
    for name in ("1st", "-x", "2026-01-run", "e5", "nan", "inf"):
        assert cli(Job, "", [f"name={name}"]).config.name == name


def test_print_config_can_be_loaded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["name=a", "inner.rate=1e-5", "more=[{path: not there}]", "source={path: x, share: 0.25}"]
    with pytest.raises(SystemExit) as left:
        cli(Job, "", [*argv, "--print-config"])
    assert left.value.code == 0  # although files are missing
    printed = capsys.readouterr().out
    assert list(yaml.safe_load(printed)) == list(Job.model_fields)
    again = load(Job, str(yaml_file(tmp_path, printed)))
    assert again == load(
        Job, None, {"name": "a", "inner.rate": 1e-5, "more": [{"path": "not there"}], "source": SOURCE}
    )


SOURCE = {"path": "x", "share": 0.25}


def test_the_command_line_names_missing_files_beside_all_other_faults(capsys: pytest.CaptureFixture[str]) -> None:
    lines = refused(capsys, "name=a", "total", "source.path=/no/such", "more=[{path: /nor/this}]", "total=2")
    assert lines == [
        "'total' is not of the form key=value",
        "total: 2 is below inner.steps = 20",
        "source.path: no such file or folder: '/no/such'",
        "more.0.path: no such file or folder: '/nor/this'",
    ]


def test_uris_are_not_asked_for(tmp_path: Path) -> None:
    assert cli(Job, "", ["name=a", "source.path=s3://bucket/x"]).config.source == Source(path="s3://bucket/x")
    assert list(missing(None, "path")) == []
    assert list(missing(str(tmp_path), "path")) == []
    (line,) = missing("no/such", "path")
    assert line.startswith("path: no such file or folder: 'no/such'")


def test_relative_paths_are_meant_from_idc_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "there").touch()
    monkeypatch.chdir(tmp_path)
    refused(capsys, "name=a", "source.path=there")
    monkeypatch.setenv("IDC_ROOT", str(tmp_path / "root"))
    assert cli(Job, "", ["name=a", "source.path=there"]).config.source == Source(path="there")
    assert Path.cwd() == tmp_path / "root"
    os.chdir(tmp_path)
    assert refused(capsys, "name=a", "source.path=there", "total=2") == ["total: 2 is below inner.steps = 20"]


def test_help_lists_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli(Job, "What it does.\n\n    python jobs/x.py", ["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "    python jobs/x.py" in out
    for line in ("name  (required)", "inner.rate  (default 0.001)", "source.path  (required)", "total  (default 30)"):
        assert line in out
    assert "Learning rate." in out


def test_help_lists_the_spellings_of_options_and_usage_the_positionals(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli(Captions, "", ["--help"], positional=("file", "kind"))
    out = capsys.readouterr().out
    assert re.match(r"usage: \S+ \[options\] FILE KIND \[key=value \.\.\.\]\n", out)
    assert "  as_json  (default False)  --as_json, --as-json, --json\n" in out
    assert "  source.share  (default 0.5)  --share\n" in out
    assert "  source.path  (required)\n" in out
