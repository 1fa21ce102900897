"""A step from draws to loss against a loop of one answer at a time, and the mistakes that this comparison finds."""

from __future__ import annotations

import inspect
import itertools
import math
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idc.config import load
from idc.rewards import policy
from idc.rewards.config import RewardSettings
from idc.rewards.rewards import DrawnCaption, Rewards, Row
from tests.rewards.scenes import ROWS

PAIRS, GROUP, LONGEST, WORDS, END = 3, 4, 6, 7, 6
ME = "tests.rewards.test_policy"
WEIGHTS = {f"{ME}:words_of": 1.0, f"{ME}:sevens_of": 0.5}


def words_of(captions: Sequence[str], row: Row) -> list[float]:
    return [len(caption.split()) * (1 + len(row["pair_id"])) for caption in captions]


def sevens_of(captions: Sequence[str], row: Row) -> list[float]:
    return [math.sin(len(caption) + 7 * len(row["captions"])) for caption in captions]


class Table:
    """A policy without a network: the words of a caption of a pair depend on their positions alone."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(PAIRS, LONGEST, WORDS, generator=generator, dtype=torch.float64).requires_grad_()
        self.logits.data[:, :, END] += 0.7  # captions of several lengths, few of which are cut off

    def sample(self, greedy: bool, seed: int = 0) -> list[list[DrawnCaption]]:
        draws = np.random.default_rng(seed).random((PAIRS, GROUP, LONGEST))
        answers = []
        for pair in range(PAIRS):
            rows = []
            for number in range(1 if greedy else GROUP):
                ids: list[int] = []
                while len(ids) < LONGEST and END not in ids:
                    probabilities = self.logits[pair, len(ids)].detach().softmax(0)
                    drawn = int((probabilities.cumsum(0) < draws[pair, number, len(ids)]).sum())
                    ids.append(int(probabilities.argmax()) if greedy else drawn)
                rows.append(DrawnCaption(ids, " ".join(f"w{n}" for n in ids if n != END), ids[-1] == END))
            answers.append(rows)
        return answers

    def log_p(self, tokens: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        logs = self.logits.log_softmax(-1)
        return torch.stack([
            logs[pair, position, word]
            for pair, group in enumerate(tokens) for ids in group for position, word in enumerate(ids)
        ])  # fmt: skip


def naive_loss(
    now: Table, drawn: Table, reference: Table, answers: Sequence[Sequence[DrawnCaption]], settings: RewardSettings
) -> Tensor:
    """One answer after another, without tensors but for the gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for pair, group in enumerate(answers):
        several = []
        for of in [group] if settings.baseline == "group" else [group, drawn.sample(True)[pair]]:
            rows = []
            for answer in of:
                values = [function([answer.text], ROWS[pair])[0] for function in (words_of, sevens_of)]
                rows.append([value if answer.ended or value < 0 else 0.0 for value in values])
            several.append(rows)
        columns = list(zip(*several[0], strict=True))
        advantages = []
        for number in range(len(group)):
            centred = []
            for column, weight, reward in zip(columns, WEIGHTS.values(), range(2), strict=True):
                baseline = sum(column) / len(column) if settings.baseline == "group" else several[1][0][reward]
                mean = sum(column) / len(column)
                deviation = math.sqrt(sum((value - mean) ** 2 for value in column) / (len(column) - 1)) + 1e-4
                centred.append(weight * (column[number] - baseline) / (deviation if settings.scale == "each" else 1))
            advantages.append(sum(centred))
        if settings.scale == "sum":
            sums = [sum(w * value for w, value in zip(WEIGHTS.values(), row, strict=True)) for row in several[0]]
            mean = sum(sums) / len(sums)
            deviation = math.sqrt(sum((value - mean) ** 2 for value in sums) / (len(sums) - 1)) + 1e-4
            advantages = [advantage / deviation for advantage in advantages]
        for answer, advantage in zip(group, advantages, strict=True):
            logs = [table.logits.log_softmax(-1)[pair] for table in (now, drawn, reference)]
            ratios = [(logs[0][t, word] - logs[1][t, word].detach()) for t, word in enumerate(answer.ids)]
            if settings.ratio == "sequence":
                ratios = [sum(ratios[1:], ratios[0]) / len(ratios)] * len(ratios)
            length = {"answer": len(answer.ids), "longest": LONGEST,
                      "group": sum(len(other.ids) for other in group) / len(group)}[settings.length]  # fmt: skip
            for t, word in enumerate(answer.ids):
                rho = ratios[t].exp()
                bounded = min(max(rho, torch.tensor(1 - settings.clip_low)), torch.tensor(1 + settings.clip_high))
                loss = -min(rho * advantage, bounded * advantage)
                if settings.kl:
                    away = logs[2][t, word].detach() - logs[0][t, word]
                    loss = loss + settings.kl * (away.exp() - away - 1)
                total = total + loss / length / (PAIRS * GROUP)
    return total


def moved(table: Table, by: float = 0.4) -> Table:
    other = Table()
    shift = torch.randn(table.logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    other.logits.data = table.logits.data + by * shift
    return other


def compare(module: Any, settings: RewardSettings) -> None:
    """Loss and gradient of a step, and of a second update with the same captions after the policy moved."""
    start, reference = Table(), moved(Table(), 0.2)
    group = module.GroupPolicy(settings, Rewards(WEIGHTS, ROWS), LONGEST, 1)
    answers = start.sample(False)
    assert len({len(answer.ids) for row in answers for answer in row}) > 2
    assert any(not answer.ended for row in answers for answer in row)
    for now in [start, moved(start)][: settings.updates]:
        loss, _ = group.step(
            {"visit": ["batch"], "row": ROWS},
            start.sample,
            now.log_p,
            reference.log_p,
        )
        expected = naive_loss(now, start, reference, answers, settings)
        (gradient,), (theirs,) = (torch.autograd.grad(value, now.logits) for value in (loss, expected))
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradient, theirs)
        assert float(gradient.abs().max()) > 1e-3


CHOICES = {
    "baseline": ("group", "greedy"), "scale": ("none", "sum", "each"), "ratio": ("token", "sequence"),
    "length": ("answer", "group", "longest"), "kl": (0.0, 0.3),
}  # fmt: skip


def test_a_step_is_that_of_a_loop_of_one_answer_at_a_time() -> None:
    """Every choice with every other, one and two updates a rollout."""
    for values in itertools.product(*CHOICES.values()):
        compare(
            policy, load(RewardSettings, None, dict(zip(CHOICES, values, strict=True)) | {"group": 4, "updates": 2})
        )
    compare(policy, load(RewardSettings, None, {"group": 4}))


LAST = "answers_K == torch.cat([answers_K[1:], answers_K.new_tensor([-1])])"
MISTAKES = {
    "baseline over the batch": ("rewards_RBG.mean(dim=2, keepdim=True)", "rewards_RBG.mean(dim=(1, 2), keepdim=True)"),
    "sign": ("-torch.minimum", "torch.minimum"),
    "clip on the wrong side": ("-torch.minimum", "-torch.maximum"),
    "bounds exchanged": ("clamp(1 - settings.clip_low, 1 +", "clamp(1 - settings.clip_high, 1 - settings.clip_low +"),
    "reward of the next pair": ("self.rewards(answers, rows)", "self.rewards(answers, [*rows[1:], rows[0]])"),
    "deviation without Bessel": (".std(dim=1, keepdim=True)", ".std(dim=1, keepdim=True, correction=0)"),
    "end token left out": ("losses_K.sum()", f"(losses_K * ({LAST})).sum()"),
    "mean over padding": ("lengths_A[answers_K]", "lengths_A.max()"),
    "old policy of the second update": ("if rollout.drawn_K is None:", "if True:"),
    "reference and policy exchanged": ("reference_K - log_p_K", "log_p_K - reference_K"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_comparison_finds_a_planted_mistake(name: str) -> None:
    right, wrong = MISTAKES[name]
    source = inspect.getsource(policy)
    assert right in source
    module = types.ModuleType("mistaken")
    module.__dict__["__name__"] = policy.__name__
    exec(compile(source.replace(right, wrong), "mistaken", "exec"), module.__dict__)
    scale, length = ("none", "longest") if "end token" in name else ("sum", "answer")
    settings = {"scale": scale, "length": length, "clip_high": 0.3, "kl": 0.3, "group": 4, "updates": 2}
    with pytest.raises(AssertionError):
        compare(module, load(RewardSettings, None, settings))


def test_draws_are_a_function_of_seed_epoch_sample_and_answer_alone() -> None:
    draws = policy.draws_of(1, 2, 3, 4, 5)
    assert torch.equal(draws[:2], policy.draws_of(1, 2, 3, 2, 5))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert not torch.equal(draws, policy.draws_of(*other, 4, 5))
    assert len(set(draws.flatten().tolist())) == 20


def test_captions_are_drawn_anew_when_the_batch_is_another_one() -> None:
    table, settings = Table(), load(RewardSettings, None, {"group": 4, "updates": 3})
    group = policy.GroupPolicy(settings, Rewards(WEIGHTS, ROWS), LONGEST, 2)
    drawn: list[str] = []

    def logged(batch: str) -> dict[str, Any]:
        def sample(greedy: bool) -> list[list[DrawnCaption]]:
            drawn.append(batch)
            return table.sample(greedy)

        return group.step({"visit": [batch], "row": ROWS}, sample, table.log_p, table.log_p)[1]

    logs = [logged(batch) for batch in "ababab" + "cdcdcd"]
    assert drawn == list("abcd")
    assert [entry["seconds/sampling"] > 0 for entry in logs] == [True, True, False, False, False, False] * 2
