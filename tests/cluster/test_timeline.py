"""The memory and time line of a run: figures by step."""

from __future__ import annotations

from cluster.timeline import KINDS, Timeline, TimelineLine, TimelineStep


def timeline() -> Timeline:
    """Two steps: in the first the workers use 1.5 cores and 1 GiB, in the second the driver 0.5 and up to 3."""
    cores, memory = TimelineLine(), TimelineLine()
    for second in range(1, 21):
        first = second <= 10
        nothing = dict.fromkeys(KINDS, 0.0)
        cores.add(second, {**nothing, "workers": 1.5 if first else 0.0, "driver": 0.0 if first else 0.5})
        memory.add(second, {**nothing, "workers": 1.0 if first else 0.0, "driver": 0.5 if second < 20 else 3.0})
    steps = [TimelineStep(title="train <all>", start=0, end=10), TimelineStep(title="score", start=10, end=20)]
    return Timeline(steps=steps, seconds=20, cores_available=2, cores=cores, memory_gib=memory)


def test_the_figures_of_a_step_are_those_of_its_samples() -> None:
    figures = timeline().figures()
    train, score = figures["train <all>"], figures["score"]
    assert train.seconds == score.seconds == 10
    assert train.cores == {"all": 1.5, "driver": 0.0, "workers": 1.5, "Ray": 0.0, "Java": 0.0}
    assert (train.memory_mean_gib, train.memory_peak_gib) == (1.5, 1.5)
    assert score.memory_mean_gib == 0.75
    assert score.memory_peak_gib == 3.0
    assert score.memory_at_peak_gib == {"driver": 3.0, "workers": 0.0, "Ray": 0.0, "Java": 0.0}
    assert timeline().peak_gib() == 3.0


def test_a_step_without_a_sample_has_its_length_alone() -> None:
    short = timeline().model_copy(update={"steps": [TimelineStep(title="short", start=3.1, end=3.4)]})
    figures = short.figures()["short"]
    assert figures.seconds == 0.3
    assert figures.cores == {}
    assert figures.memory_peak_gib is None
