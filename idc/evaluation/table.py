"""An evaluation as plain text."""

from __future__ import annotations

from idc.evaluation import baselines
from idc.evaluation.record import Evaluation
from idc.metrics.change_maps import change_map_table as maps_table
from idc.metrics.changes import ChangeTable
from idc.metrics.difference_lists import difference_table as differences_table
from idc.metrics.hallucination import hallucination_table as claims_table
from idc.util.units import score_text


def evaluation_table(evaluation: Evaluation) -> str:
    """Scores, baselines and upper bound, by subset, the agreement on change, and the protocol; numbers times 100."""
    head = f"{evaluation.pairs} pairs of {evaluation.split}, {evaluation.references} references, x100"
    lines = [f"{head}, protocol {evaluation.protocol['name']}"]
    metrics = list(evaluation.scores)
    if metrics:
        width = {name: max(9, len(name) + 2) for name in metrics}
        rows: list[tuple[str, int, dict[str, float]]] = [("model", evaluation.pairs, evaluation.scores)]
        rows += [(f"model, {name}", evaluation.pairs, scores) for name, scores in evaluation.extra_protocols.items()]
        rows += [
            (f"baseline: {name}", evaluation.pairs, baseline.scores) for name, baseline in evaluation.baselines.items()
        ]
        if evaluation.upper_bound is not None:
            rows.append(("upper bound: the truth", evaluation.pairs, evaluation.upper_bound.scores))
        rows += [(f"  {name}", subset.pairs, subset.scores) for name, subset in evaluation.subsets.items()]
        label_width = max(22, *(len(label) + 1 for label, _, _ in rows))
        lines.append(f"{'':{label_width}}{'pairs':>7}" + "".join(f"{name:>{width[name]}}" for name in metrics))
        for label, pairs, scores in rows:
            # Further protocols have no SPICE.
            cells = [score_text(scores[name], 2) if name in scores else "" for name in metrics]
            row = "".join(f"{cell:>{width[name]}}" for cell, name in zip(cells, metrics, strict=True))
            lines.append(f"{label:{label_width}}{pairs:7d}" + row)
        if evaluation.intervals:
            ranges = [f"{name} {100 * i.low:.2f} to {100 * i.high:.2f}" for name, i in evaluation.intervals.items()]
            lines.append(f"intervals: {'; '.join(ranges)} ({evaluation.protocol['intervals']})")
    if constant := evaluation.baselines.get(baselines.CONSTANT):
        lines.append(f"the constant: {constant.caption!r}")
    if trained := evaluation.baselines.get(baselines.TRAINED):
        lines.append(f"the trained baseline: {trained.what}")
    for name in (
        "tokenizer", "vocabulary", "references", "empty references", "left out", "undefined", "few pairs", "no spaces",
    ):  # fmt: skip
        if name in evaluation.protocol:
            lines.append(f"{name}: {evaluation.protocol[name]}")
    if evaluation.change is not None:
        lines += _change(evaluation.change)
    if types := evaluation.types:
        lines.append(
            f"names the right change type: {types.accuracy:.1%} of {types.pairs} pairs "
            f"(always {types.most_frequent!r}: {types.chance_most_frequent:.1%})"
        )
    if evaluation.hallucination is not None:
        lines.append(claims_table(evaluation.hallucination))
        for name, baseline in evaluation.baselines.items():
            if (claims := baseline.hallucination) is not None:
                lines.append(
                    f"  baseline: {name}: object {claims.object.rate:.1%}, attribute {claims.attribute.rate:.1%}"
                )
    if evaluation.differences is not None:
        lines.append(differences_table(evaluation.differences))
        for name, baseline in evaluation.baselines.items():
            if (differences := baseline.differences) is not None:
                values = ", ".join(f"{what} {value:.1%}" for what, value in differences.means().items())
                lines.append(f"  baseline: {name}: {values}")
    if (warnings := evaluation.warnings()) is not None:
        lines.append(f"warned as unlike the training data: {warnings}")
    if evaluation.change_maps is not None:
        lines.append(maps_table(evaluation.change_maps))
    return "\n".join(lines)


def _change(change: ChangeTable) -> list[str]:
    lines = [f"says whether anything changed: {change.accuracy:.1%} right (always the same: "
             f"{change.chance_most_frequent:.1%}); {change.rule}"]  # fmt: skip
    said = list(next(iter(change.table.values())))
    lines.append(f"{'  pair, caption says':22}" + "".join(f"{name:>11}" for name in said))
    return lines + [
        f"  {actual:20}" + "".join(f"{row[name]:11d}" for name in said) for actual, row in change.table.items()
    ]
