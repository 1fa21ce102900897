"""`make demo`: several systems on the same rendered pairs, from rendering to a leaderboard. The steps, by the names of
their jobs; the summary at the end is in ``summary.py``.

A system joins with the file ``demo.py`` in its folder, whose ``DEMO`` is a :class:`idc.demo.system.DemoSystem`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from idc.demo.system import CONFIGS, TABLETOP, DemoFolders, DemoStep, DemoSystem
from idc.systems import SYSTEMS
from idc.util.cores import usable_cores

DEFAULT = ("twincap", "procap")
"""The systems of a demo for which none are named."""
CORRUPTIONS = {"gaussian_noise": 3, "fog": 3}
"""Corruption of both images -> severity, for the robustness of the captioners."""
ROBUSTNESS_PAIRS = 120
"""Number of test pairs of the robustness, the first ones."""
_WITHOUT_LOCAL = ("jobs/calibrate.py", "jobs/leaderboard.py", "jobs/merge_vlm.py")
"""Jobs without ``--local``."""
LEADERBOARD = "leaderboard"
"""Name of the leaderboard's folder in runs/FOLDER."""


def demo_systems(names: Sequence[str]) -> list[DemoSystem]:
    """The systems of a demo, or a ValueError: a name occurs twice, is not a system, or of one without ``demo.py``; or
    the systems are trained on different pairs."""
    if len(set(names)) < len(names):
        raise ValueError(f"--systems: {' '.join(names)}: a system occurs twice")
    able = [name for name in SYSTEMS if importlib.util.find_spec(f"idc.systems.{name}.demo") is not None]
    for name in names:
        if name not in SYSTEMS:
            raise ValueError(f"--systems: unknown system {name!r}; available: {', '.join(able)}")
        if name not in able:
            raise ValueError(f"--systems: {name} has no idc/systems/{name}/demo.py; available: {', '.join(able)}")
    systems: list[DemoSystem] = [importlib.import_module(f"idc.systems.{name}.demo").DEMO for name in names]
    renderings = {system.rendering: name for name, system in zip(names, systems, strict=True)}
    if len(renderings) > 1:
        pairs = ", ".join(f"{name} with {preset}" for preset, name in renderings.items())
        raise ValueError(
            f"--systems: {pairs} (jobs/configs/render): systems of different pairs; give each its own demo"
        )
    return systems


def demo_steps(
    folder: str,
    seeds: Sequence[int],
    *,
    systems: Sequence[str] = DEFAULT,
    robustness: bool = True,
) -> Iterator[DemoStep]:
    """The commands in order, or a ValueError. With each of the training ``seeds`` every system is trained, calibrated
    and evaluated; with ``robustness`` those of the first seed also on corrupted images. ``folder``: a name below data/
    and runs/."""
    if Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise ValueError(f"--folder {folder}: give a name, e.g. --folder mine; the demo writes data/NAME and runs/NAME")
    # Of a training next to another one: half of the cores, and no more than the presets take. Two trainings of one
    # thread each see more samples in a second than one of two.
    threads = max(1, min(2, usable_cores() // 2))
    for step in _steps(folder, seeds, demo_systems(systems), robustness):
        command = list(step.command)
        if step.trains and step.queue is not None:
            command.append(f"train.cpus_per_worker={threads}")
        if command[0] not in _WITHOUT_LOCAL and not any(word.startswith("evaluations=") for word in command):
            command.append("--local")
        yield step._replace(command=command)


def _steps(folder: str, seeds: Sequence[int], systems: Sequence[DemoSystem], robustness: bool) -> Iterator[DemoStep]:
    rendering = systems[0].rendering
    per_seed = folders_of(folder, seeds, rendering)
    data, pairs = per_seed[0].data, per_seed[0].pairs
    yield DemoStep("render pairs", ["jobs/render.py", "--config", f"{CONFIGS}/render/{rendering}.yaml", f"out={pairs}"])
    if robustness:
        yield from _corrupt(data, pairs)
    yield from in_two_queues([list(_of_system(system, per_seed, robustness)) for system in systems])
    yield _page(per_seed, systems)
    evaluations = [
        f"{run}/evaluation" for system in systems for of in per_seed for run in system.captioners(of).values()
    ]
    out = f"{per_seed[0].runs}/{LEADERBOARD}"
    yield DemoStep("write the leaderboard", ["jobs/leaderboard.py", "--runs", *evaluations, "--out", out])


def folders_of(folder: str, seeds: Sequence[int], rendering: str = TABLETOP) -> list[DemoFolders]:
    """The folders for each seed. Other pairs than those of most systems have a folder of their own."""
    data, runs = f"data/{folder}" if rendering == TABLETOP else f"data/{folder}/{rendering}", f"runs/{folder}"
    return [
        DemoFolders(data, f"{data}/pairs", runs, seed, f" (seed {seed})" if len(seeds) > 1 else "") for seed in seeds
    ]


def _of_system(system: DemoSystem, per_seed: Sequence[DemoFolders], robustness: bool) -> Iterator[DemoStep]:
    for folders in per_seed:
        for stage in system.stages:
            yield stage.step(folders)
            if stage.captioner:
                yield _evaluate(stage.captioner, stage.folder(folders), folders)
        # Changed weights move what the probability is fitted on: only what the last stage trains is calibrated.
        yield DemoStep(f"calibrate {system.title}{folders.of}", [
            "jobs/calibrate.py", f"artifact={system.artifact(folders)}", f"pairs={folders.pairs}", "report_split=test",
        ])  # fmt: skip
        yield _evaluate(system.title, system.folder(folders), folders)
        yield from (stage.step(folders) for stage in system.further)
    if robustness:
        kinds = ", ".join(f"{kind}: [{severity}]" for kind, severity in CORRUPTIONS.items())
        yield DemoStep(f"robustness of {system.title}", [
            "jobs/robustness.py", f"artifact={system.artifact(per_seed[0])}", f"pairs={per_seed[0].pairs}",
            f"sets={per_seed[0].data}/corrupted", f"out={system.folder(per_seed[0])}/robustness",
            f"corruptions={{{kinds}}}", "swap=false", f"evaluate.max_pairs={ROBUSTNESS_PAIRS}",
            "evaluate.metrics=[CIDEr]", "evaluate.resamples=0", "evaluate.constant_candidates=0",
            "evaluate.nearest_train_pairs=0",
        ])  # fmt: skip


def _evaluate(captioner: str, run: str, folders: DemoFolders) -> DemoStep:
    return DemoStep(f"evaluate {captioner} on the test split{folders.of}", [
        "jobs/evaluate.py", f"artifact={run}/artifact", f"pairs={folders.pairs}", f"out={run}/evaluation",
        "change_maps=true",
    ])  # fmt: skip


def _corrupt(data: str, pairs: str) -> Iterator[DemoStep]:
    for kind, severity in CORRUPTIONS.items():
        yield DemoStep(f"corrupt pairs: {kind.replace('_', ' ')}", [
            "jobs/robustness.py", f"pairs={pairs}", f"out={data}/corrupted/{kind}-{severity}", f"kind={kind}",
            f"severity={severity}", "splits=[test]", "keep_others=false",
        ])  # fmt: skip


def in_two_queues(systems: Sequence[Sequence[DemoStep]]) -> Iterator[DemoStep]:
    """The systems' steps in two queues, the systems dealt out to them in turn. Before them run, alone, the steps marked
    ``first`` and the commands of several systems; one that a system has several times runs at its first position."""
    systems_of = Counter(command for chain in systems for command in {tuple(step.command) for step in chain})
    done: set[tuple[str, ...]] = set()
    queues: tuple[list[DemoStep], list[DemoStep]] = ([], [])
    for number, chain in enumerate(systems):
        for step in chain:
            if (command := tuple(step.command)) in done:
                continue
            done.add(command)
            if step.first or systems_of[command] > 1:
                yield step
            else:
                queues[number % 2].append(step)
    first, second = queues
    if not second:
        yield from first
        return
    yield from (step._replace(queue=1) for step in first)
    yield from (step._replace(queue=2) for step in second)


def _page(per_seed: Sequence[DemoFolders], systems: Sequence[DemoSystem]) -> DemoStep:
    folders = per_seed[0]
    names = [name for system in systems for name in system.captioners(folders)]
    runs = [[run for system in systems for run in system.captioners(of).values()] for of in per_seed]
    evaluations = [f"[{','.join(f'{run}/evaluation' for run in of_name)}]" for of_name in zip(*runs, strict=True)]
    compared = [f"compare.{name}={of}" for name, of in zip(names[1:], evaluations[1:], strict=True)]
    further = dict.fromkeys(text.format(**folders._asdict()) for system in systems for text in system.page)
    *first, last = [system.title for system in systems]
    title = " and ".join(filter(None, [", ".join(first), last]))
    return DemoStep("write the page", [
        "jobs/evaluate.py", f"out={folders.runs}/report.html", f"evaluations={evaluations[0]}", *compared,
        f"pairs={folders.pairs}", *further, f"title={title} on rendered pairs",
    ])  # fmt: skip
