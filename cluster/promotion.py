"""Register, promote and roll back captioners (``jobs/register.py``, ``jobs/promote.py``)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cluster.promotion_config import PromoteJob, RegisterJob
from cluster.registry import Promotion, Registry, Version, uri_of
from idc.evaluation.config import CompareJob
from idc.evaluation.promotion import Decision, ScoredVersion, decide
from idc.evaluation.significance import compare_evaluations
from idc.training.artifact import read_artifact


def register(job: RegisterJob) -> str:
    """Register the artifact. Returns sentences about what was done.

    Raises:
        ValueError: artifact or evaluation is damaged, or they do not belong together; then nothing is written.
    """
    artifact = read_artifact(job.artifact)
    registry = Registry(uri_of(job.tracking_uri, artifact.path), job.name, make=True)
    version, done = registry.register(artifact, job.evaluation)
    lines = [f"{artifact.path} {done[0]}", *done[1:]]
    if not version.evaluations:
        lines.append(
            "it has no evaluation and cannot be promoted: make one with python jobs/evaluate.py, then register it "
            "again with evaluation=..."
        )
    return "\n".join(lines)


def promote(job: PromoteJob) -> Promotion:
    """Promote a candidate, or roll back. With ``job.dry_run``, or if it has the alias already, nothing is written.

    Raises:
        ValueError: the candidate is worse, cannot be compared, or does not exist; the message has the commands to run.
    """
    registry = Registry(uri_of(job.tracking_uri), job.name, job.alias)
    promotion = plan_rollback(registry) if job.rollback else _forward(registry, job)
    if not job.dry_run and promotion.kind != "unchanged":
        registry.move(promotion)
    return promotion


def describe_promotion(promotion: Promotion, job: PromoteJob) -> str:
    """A promotion as text for the user."""
    if promotion.kind == "unchanged":
        return promotion.why
    would = "would go" if job.dry_run else "goes"
    before = f" from version {promotion.old}" if promotion.old is not None else ""
    lines = [f"{job.alias} of {job.name} {would}{before} to version {promotion.new}", promotion.why]
    if promotion.scored is not None:
        lines.append(f"compared on {promotion.scored}")
    lines.append(f"{promotion.at:%Y-%m-%d %H:%M:%S} UTC, {promotion.command or 'by no command of the project'}")
    return "\n".join(lines)


def status(job: PromoteJob) -> str:
    """Table of versions with scores, the champion, and all moves of the alias."""
    registry = Registry(uri_of(job.tracking_uri), job.name, job.alias)
    versions, champion = registry.versions(), registry.champion()
    if not versions:
        return f"{job.name} has no versions in {registry.shown}; python jobs/register.py adds one"
    lines = [
        f"{job.name} in {registry.shown}",
        f"{'version':>8}  {'registered':17}{'system':10}{job.metric:>8}  evaluated on",
    ]
    for version in versions:
        head = f"{version.number:8d}  {version.created:%Y-%m-%d %H:%M} {version.system:10}"
        mark = f"  <- {job.alias}" if version.number == champion else ""
        for scored in version.evaluations.values():
            value = f"{100 * scored.scores[job.metric]:8.2f}" if job.metric in scored.scores else f"{'':8}"
            lines.append(f"{head}{value}  {scored}{mark}")
            head, mark = " " * len(head), ""
        if not version.evaluations:
            lines.append(f"{head}{'':8}  nothing{mark}")
    history = registry.history()
    lines.append("history:" if history else f"history: {job.alias} was never given")
    for move in history:
        lines.append(f"  {move.at:%Y-%m-%d %H:%M:%S} UTC  {move.old or 'none'} -> {move.new}  {move.kind}: {move.why}")
    return "\n".join(lines)


def _forward(registry: Registry, job: PromoteJob) -> Promotion:
    versions = registry.versions()
    if not versions:
        raise ValueError(f"{job.name} has no versions in {registry.shown}; python jobs/register.py adds one")
    candidate = registry.version(job.version) if job.version is not None else versions[-1]
    old = registry.champion()
    if old == candidate.number:
        why = f"version {old} is {job.alias} of {job.name} already; nothing to do. version=N chooses another one"
        return Promotion(alias=job.alias, kind="unchanged", old=old, new=old, why=why)
    if job.version is None and any(m.kind == "rollback" and m.old == candidate.number for m in registry.history()):
        raise ValueError(f"version {candidate.number} was rolled back; version={candidate.number} promotes it again")
    decision: Decision | None = None
    scored: ScoredVersion | None = None
    kind: Literal["first", "compared", "forced"] = "first" if old is None else "compared"
    why = f"the first {job.alias}: there was none to compare it with"
    try:
        if not candidate.evaluations:
            raise ValueError(f"version {candidate.number} has no evaluation:\n{_commands(candidate, None, registry)}")
        if old is not None:
            decision, scored = _compared(registry, registry.version(old), candidate, job)
            why = decision.text()
            if not decision.not_worse:
                raise ValueError(f"version {candidate.number} stays a candidate: {why}; --force promotes it anyway")
    except ValueError as error:
        if not job.force:
            raise
        kind, why = "forced", f"forced, although {error}" if decision is None else f"forced, although {decision.text()}"
    return Promotion(
        alias=job.alias, kind=kind, old=old, new=candidate.number, why=why.replace("\n", " "), decision=decision,
        scored=scored,
    )  # fmt: skip


def _compared(
    registry: Registry, champion: Version, candidate: Version, job: PromoteJob
) -> tuple[Decision, ScoredVersion]:
    """Compare candidate and champion on the newest evaluation that both have."""
    champion_keys = {scored.key: key for key, scored in champion.evaluations.items()}
    shared = [(key, scored) for key, scored in candidate.evaluations.items() if scored.key in champion_keys]
    if not shared:
        both = (candidate, champion)
        lines = [f"  version {version.number}: {scored}" for version in both for scored in version.evaluations.values()]
        again, like = both if champion.evaluations else (champion, candidate)
        raise ValueError(
            f"versions {candidate.number} and {champion.number} ({job.alias}) were not evaluated on the same pairs:\n"
            + "\n".join([*lines, _commands(again, list(like.evaluations.values())[-1], registry)])
        )
    key, scored = shared[-1]
    with registry.evaluation(champion, champion_keys[scored.key]) as a, registry.evaluation(candidate, key) as b:
        return decide(compare_evaluations(CompareJob(a=a, b=b)), job.metric, job.margin), scored


def _commands(version: Version, like: ScoredVersion | None, registry: Registry) -> str:
    """Commands that evaluate a version like another one was, and add the evaluation to the registry."""
    if not version.folder:
        return (
            f"version {version.number} was not registered by jobs/register.py, which alone records what its evaluation "
            f"must match; register its folder as a version:\n  python jobs/register.py artifact=FOLDER "
            f"name={registry.name} tracking_uri={registry.shown}"
        )
    pairs = "pairs=... split=test" if like is None else f"pairs={like.folder} split={like.split}"
    protocol = f" protocol={like.protocol}" if like is not None and like.protocol != "coco" else ""
    out = f"{Path(version.folder).parent}/evaluation-{like.data if like is not None else 'test'}"
    return (
        f"evaluate version {version.number} and add that to it:\n"
        f"  python jobs/evaluate.py artifact={version.folder} {pairs}{protocol} out={out}\n"
        f"  python jobs/register.py artifact={version.folder} evaluation={out} name={registry.name} "
        f"tracking_uri={registry.shown}"
    )


def plan_rollback(registry: Registry) -> Promotion:
    """The rollback to the previous champion."""
    now, stack = registry.champion(), list[int]()
    for move in registry.history():
        if move.old is not None and stack[-1:] != [move.old]:
            stack.append(move.old)  # another program had moved the alias
        if move.kind == "rollback":
            stack.pop()
        if stack[-1:] != [move.new]:
            stack.append(move.new)
    if stack[-1:] == [now]:
        stack.pop()
    if not stack or now is None:
        raise ValueError(
            f"there was no {registry.alias} of {registry.name} before version {now}; nothing to go back to"
        )
    registry.version(stack[-1])
    why = f"rolled back from version {now} to the {registry.alias} before"
    return Promotion(alias=registry.alias, kind="rollback", old=now, new=stack[-1], why=why)
