"""Systems that tune a vision-language model, through their real entries: the same numbers however the batch is cut,
whatever the engine, with and without recomputed activations. Families differ in ``tests/vlm``.

A further system is a row of :data:`SYSTEMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from idc.config import load
from idc.systems.adpo.config import AdpoJob
from idc.systems.m3diff.config import M3DiffJob
from idc.systems.sft.config import SftJob
from idc.training.artifact import ADAPTER
from idc.vlm.config import TuningJob
from tests.invariants.harness import ZERO2, ZERO3, Run, largest_difference, run_cases
from tests.systems.adpo.small import encoder_folder, pairs_folder
from tests.vlm.folders import write_pairs
from tests.vlm.models import tiny_folder

pytestmark = pytest.mark.slow
TRAIN = {
    "steps": 20, "epochs": None, "batch_size": 4, "log_every": 1, "checkpoint_every": 20, "seed": 3,
    "precision": "fp32", "group_by_length": 0, "keep_best": None,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"grad_accumulation": 4},
    "recomputed": {"activation_checkpointing": True},
    "zero 2, two workers": {**ZERO2, "num_workers": 2},
    "zero 3, recomputed": {**ZERO3, "activation_checkpointing": True},
    "zero 3, two workers": {**ZERO3, "num_workers": 2, "grad_accumulation": 2},
}
TOLERANCES = {"losses": 1e-5, "gradient norms": 2e-4, "validation loss": 1e-5, "weights": 1e-3}
"""Relative, of the weights absolute; rates are 1e-2, so that Adam makes steps of that size from rounding errors where a
gradient is near 0. Measured, largest of all cases and families: 9e-7, 3e-5, 4e-8, 1e-4."""


def sft_payload(kind: str, folder: Path, language: str = "lora") -> dict[str, Any]:
    """Adapters with dropout off, tower and projector trained whole: all kinds of parameters there are. Dropout depends
    on the micro-batch and the rank, so that no two layouts of a run share it."""
    return payload_of(SftJob, kind, folder, 1e-2, language)


def m3diff_payload(kind: str, folder: Path) -> dict[str, Any]:
    """The same with the module, at lower rates: at 1e-2 single steps of LLaVA-OneVision enlarge rounding errors a
    hundredfold."""
    rate = 2e-3
    return payload_of(M3DiffJob, kind, folder, rate, **{"mdp.optim": {"lr": rate, "warmup_share": 0.1}})


def adpo_payload(kind: str, folder: Path) -> dict[str, Any]:
    """Adapters, whose reference is the model without them, and a retriever that draws a negative for each caption;
    the running mean of the reward goes on over steps, micro-batches and ranks."""
    part = {"lr": 1e-2, "warmup_share": 0.1}
    return payload_of(AdpoJob, kind, folder, 1e-2, **{
        "tune": {"lora": {"rank": 4, "alpha": 8, "dropout": 0.0}, "language_optim": part}, "candidates": 6,
        "retriever": {"encoder": str(encoder_folder()), "baseline": 0.9, "optim": {"lr": 1e-3}},
    })  # fmt: skip


def payload_of(
    job: type[TuningJob], kind: str, folder: Path, rate: float, language: str = "lora", **more: Any
) -> dict[str, Any]:
    adapters = {"lora": {"rank": 4, "alpha": 8, "dropout": 0.0}} if language == "lora" else {"language": language}
    part = {"lr": rate, "warmup_share": 0.1}
    return load(job, None, {
        "pairs": str(folder), "base.source": str(tiny_folder(kind)), "captions": "one", "validation_samples": 4,
        "tune": {**adapters, "language_optim": part, "tower": part, "projector": part},
        "generation.max_new_tokens": 8, "train": TRAIN, **more,
    }).model_dump(mode="json")  # fmt: skip


class Tuned(NamedTuple):
    """A system: its payload for a family and a folder of pairs, the families that are run, and the writer of the
    pairs."""

    payload: Callable[[str, Path], dict[str, Any]]
    families: Sequence[str]
    pairs: Callable[..., Path] = write_pairs


SYSTEMS = {
    "sft": Tuned(sft_payload, ("qwen2_5_vl", "llava_onevision")),
    "m3diff": Tuned(m3diff_payload, ("internvl",)),
    "adpo": Tuned(adpo_payload, ("internvl",), pairs_folder),
}
ALL = [(system, kind) for system, tuned in SYSTEMS.items() for kind in tuned.families]
of_every_system = pytest.mark.parametrize("tuning", ALL, indirect=True, ids="-".join)


def entry_of(system: str) -> str:
    return f"idc.systems.{system}.task:train"


@pytest.fixture(scope="module")
def tuning(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A system and a family."""
    of: tuple[str, str] = request.param
    return of


@pytest.fixture(scope="module")
def runs(tuning: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Pairs of unequal sizes; under ZeRO-3 all parameters are sharded, those of a system's own module included."""
    (system, kind), folder = tuning, tmp_path_factory.mktemp("-".join(tuning))
    pairs = SYSTEMS[system].pairs(folder / "pairs", train=24, val=4)
    return run_cases(entry_of(system), SYSTEMS[system].payload(kind, pairs), CASES, folder / "runs")


def weights(run: Run) -> dict[str, torch.Tensor]:
    """Everything that was trained, ADPO's retriever included."""
    from safetensors.torch import load_file

    more = (run.path / "artifact" / ADAPTER / "adapter_model.safetensors", run.path / "retriever" / "model.safetensors")
    return run.state | {name: tensor for path in more if path.exists() for name, tensor in load_file(path).items()}


def largest(one: Iterable[float], other: Iterable[float]) -> float:
    """The largest relative difference."""
    return max(abs(a / b - 1) for a, b in zip(one, other, strict=True))


def agree(plain: Run, other: Run) -> None:
    """Losses, gradient norms, validation and weights, step by step."""
    assert len(other.log) == TRAIN["steps"]
    norms = [[line["grad_norm"] for line in run.log] for run in (plain, other)]
    found = {
        "losses": largest(other.losses, plain.losses),
        "gradient norms": largest(norms[1], norms[0]),
        "validation loss": abs(other.log[-1]["validation/loss"] / plain.log[-1]["validation/loss"] - 1),
        "weights": largest_difference(weights(plain), weights(other)),
    }
    print(other.path.parent.parent.name, other.path.name, {name: f"{value:.1e}" for name, value in found.items()})
    assert all(found[name] < TOLERANCES[name] for name in TOLERANCES), found


@of_every_system
@pytest.mark.parametrize("name", [name for name in CASES if name != "plain"])
def test_the_numbers_are_the_same(runs: dict[str, Run], name: str) -> None:
    agree(runs["plain"], runs[name])


@of_every_system
def test_the_runs_moved_far_more_than_the_tolerances(tuning: tuple[str, str], runs: dict[str, Run]) -> None:
    losses = runs["plain"].losses
    print(losses[0], losses[-1])
    change = losses[-1] / losses[0] - 1
    assert abs(change) > 500 * TOLERANCES["losses"]
    assert change < 0 or tuning[0] == "adpo", "only a retriever that learns too may raise the loss"
    names = weights(runs["zero 3, two workers"])
    assert any(name.startswith("mdp.") for name in names) == (tuning[0] == "m3diff"), "the module is compared"
    retriever = any(name.startswith("clip.visual.") for name in names)  # Qwen's tower is "visual" too
    assert retriever == (tuning[0] == "adpo"), "and the retriever"


def test_a_model_that_is_trained_whole_with_tied_words(tmp_path: Path) -> None:
    """The same weights read the words and predict them, which ZeRO-3 gathers in two places."""
    pairs = write_pairs(tmp_path / "pairs", train=24, val=4)
    cases = {name: CASES[name] for name in ("plain", "zero 2, two workers", "zero 3, two workers")}
    runs = run_cases(entry_of("sft"), sft_payload("internvl", pairs, "full"), cases, tmp_path / "runs")
    state = weights(runs["zero 3, two workers"])
    assert torch.equal(state["lm_head.weight"], state["model.language_model.embed_tokens.weight"])
    for name in list(cases)[1:]:
        agree(runs["plain"], runs[name])
