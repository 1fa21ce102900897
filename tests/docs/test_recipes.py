"""The documented commands, run on small data in the order of the pages; of the others, why they are only parsed."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chat_server import Server, serving
from tests.docs.checks import blocks
from tests.docs.test_docs import PAGES, name_of
from tests.docs.workplace import make_workplace, run
from tests.systems.procap.world import World

NOT_RUN = {
    r"hf:|base\.source=(Qwen|OpenGVLab|/models)": "a hub; tests/vlm/test_commands.py has one of its own",
    r"clip=openai/": "a hub; tests/vision/pair_encoder",
    r"runs/(qwen|internvl|aerial|sft-0)/|runs/mine-vlm/|out=merged|jobs/finetune_(sft|m3diff)": "a base; tests/vlm",
    r"jobs/finetune_changevg": "a base and a guide; tests/systems/changevg",
    r"jobs/train_adpo|runs/(mine-sft|sft-small|adpo|uniform|dpo)/?": "a base; tests/systems/adpo, tests/captioning",
    r"source=(Levir|LEVIR)-MCI|data/(levir|levir-mci)/|data/changeimti": "LEVIR-MCI's images; tests/changeimti",
    r"s3://|gs://": "object storage; tests/cluster/test_commands_on_object_store.py",
    r"(_paper|_official|_clip4idc|mining/paper|m3diff/paper)\.yaml": "GPUs and data sets of the papers' size",
    r"jobs/sweep\.py": "minutes to days; tests/sweep and tests/cluster/test_tune.py run small ones",
    r"jobs/convert\.py|runs/official/": "the authors' weights; tests/systems/procap/test_convert.py",
    r"-m pytest|-m tests\.|serve\.app|-m benchmarks": "tests, servers and benchmarks themselves",
    r"\b(ARTIFACT|DIR|FOLDER|BEFORE|PAIRS|PROCEDURES)\b": "a name for the reader to fill in",
    r"data/clevr_change/pairs|render/demo\.yaml out=data/demo/pairs": "the same as a command that is run",
    r"--help": "parsed by tests/docs/test_docs.py",
    r"photographs\.csv|data/editing|data/real/": "data of the reader; the same commands are run elsewhere",
    r"sets=data/demo/robustness": "the demo's; docs/robustness.md has another one",
    r"jobs/train_twincap\.py --config jobs/configs/twincap/demo\.yaml$": "the demo's, run for the workplace",
    r"guide_small\.yaml|runs/(guide-small|changevg(-\w+)?)/|artifact runs/guide/": "minutes; tests/systems/changevg",
    r"data/satellite/changeimti": "rendered satellite pairs; tests/systems/changevg",
    r"twincap/several_|data/several/swapped|several-800": "minutes; tests/rendered/test_several.py",
    r"several-(twincap|sft|encoder)/?": "minutes, and a base; tests/systems/adpo, tests/vision/pair_encoder",
    r"yolox_s\.onnx": "a network to download; tests/systems/objects",
}  # fmt: skip
"""Pattern of commands that no recipe runs, which are parsed with their configs like all: why, or who runs them."""

EVALUATED = [
    f"jobs/evaluate.py artifact=runs/demo/{name}/artifact pairs=data/demo/pairs out=runs/demo/{name}/evaluation{maps}"
    for name, maps in (("twincap-0", ""), ("finetune-0", " change_maps=true"))
]
SEVERITIES = "jobs/robustness.py --config jobs/configs/robustness/severities.yaml"
BEFORE = {
    "docs/evaluation.md": [
        *EVALUATED,
        f"{SEVERITIES} artifact=runs/one/artifact out=runs/one/robustness",
        f"{SEVERITIES} artifact=runs/two/artifact out=runs/two/robustness",
    ],
    "docs/results.md": EVALUATED,
    "docs/registry.md": [
        *EVALUATED,
        "jobs/register.py artifact=runs/two/artifact evaluation=runs/two/evaluation",
        "jobs/promote.py",
    ],
}
"""Page -> what its reader has done before: the demo has more steps than the workplace, and there is an old champion."""
MORE: dict[tuple[str, ...], list[str]] = {("jobs/promote.py",): ["--force"]}
"""Options of a command in the workplace, whose models are no better than each other."""

ELSEWHERE = {"runs/one/": "runs/demo/finetune-0/", "runs/two/": "runs/demo/twincap-0/"}
"""Names of a page, and those of the workplace."""


DESCRIPTION = (
    "The difference between the two images is that the first image shows a red cube, "
    "while the second image shows a blue ball."
)
REUSED = {"captions", "out=runs/mine/evaluation", "out=data/mined"}
"""Outputs for which the pages give one name several times."""


def of_pages() -> list[tuple[str, str]]:
    """Page and text of every documented Python command."""
    found = []
    for page in PAGES:
        for block in blocks(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("python "):
                    found.append((name_of(page), " ".join(line.split())))
    return found


def why_not_run(command: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, command)), None)


def words_of(command: str) -> tuple[str, ...]:
    return tuple(shlex.split(command, comments=True)[1:])


def to_run() -> dict[str, list[tuple[str, ...]]]:
    """Page -> its commands that are run here, once each."""
    there: set[tuple[str, ...]] = set()
    pages: dict[str, list[tuple[str, ...]]] = {}
    for page, command in of_pages():
        words = words_of(command)
        if why_not_run(command) is None and words not in there:
            there.add(words)
            pages.setdefault(page, []).append(words)
    return pages


def test_most_commands_are_run_and_those_for_ones_own_pairs_are_the_whole_chain() -> None:
    commands = to_run()
    assert sum(map(len, commands.values())) >= 65
    assert [Path(words[0]).stem for words in commands["docs/data.md"]][:2] == ["validate", "import_dataset"]
    jobs = list(dict.fromkeys(Path(words[0]).stem for words in commands["docs/training.md"]))
    assert jobs[:4] == ["train_twincap", "evaluate", "calibrate", "caption"]
    assert jobs[4:7] == ["train_tokenizer", "pretrain_procap", "finetune_procap"]


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_an_exception_still_has_a_command(pattern: str) -> None:
    assert any(re.search(pattern, command) for _, command in of_pages())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        server.answer = lambda number, content: (
            (200, "Score: 50\nHalf of it." if isinstance(content, str) else DESCRIPTION)
        )
        yield server


@pytest.fixture(scope="module")
def workplace(world: World, captioner_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workplace(world, captioner_artifact, tmp_path_factory.mktemp("workplace"))


def as_here(words: tuple[str, ...], server: Server) -> list[str]:
    """A command with the names and addresses of the workplace."""
    line = shlex.join(words)
    for name in (*ELSEWHERE, "https://HOST/v1", "http://localhost:8000/v1"):
        line = line.replace(name, ELSEWHERE.get(name, server.url))
    return shlex.split(line)


@pytest.mark.slow
@pytest.mark.parametrize("page", to_run())
def test_the_commands_of_a_page_work(
    page: str, workplace: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    faults = []
    for words in [*map(words_of, (f"python {command}" for command in BEFORE.get(page, ()))), *to_run()[page]]:
        if REUSED & {*words}:
            for name in REUSED:
                shutil.rmtree(workplace / name.removeprefix("out="), ignore_errors=True)
        done = run([*as_here(words, server), *MORE.get(words, [])], workplace)
        if done.returncode:
            faults.append(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    assert not faults, "\n\n".join(faults)
