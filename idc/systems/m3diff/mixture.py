"""The training mixture of M3Diff: several data sets, each with its own question. Loads no torch.

The paper's mixture (table 9) has six data sets, :data:`TABLE_9`, with 896k captions, its "fine-tuning dataset of 896K
samples" (section 5.2): every caption is a sample. The paper prints no questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field

from idc.config import ConfigModel
from idc.data.manifest import Manifest, complete_manifest, read_manifest
from idc.data.schema import IMAGE
from idc.data.stored_rows import iter_rows
from idc.data.validation.published import PUBLISHED
from idc.util.model_faults import did_you_mean
from idc.vlm.config import Captions, PromptConfig

_PAIR = f"First image (before): {IMAGE}\nSecond image (after): {IMAGE}\n"
QUESTIONS: Mapping[str, str] = {
    "image_editing_request": "Which edit turns the first image into the second? Answer with one short request.",
    "birds_to_words": "How does the bird in the first image, animal1, differ from the bird in the second, animal2?",
    "spot_the_diff": "What changed between these two frames of a fixed camera? Describe one change in one sentence.",
    "spot_the_diff_multi": "What changed between these two frames of a fixed camera? Describe all changes.",
    "omnidiff": "Describe every difference between the two images: which thing it is and where, and how it changed.",
    "clevr_dc": "The second image is taken from another side. What changed in the scene? Answer in one sentence.",
    "clevr_change": "The camera may have moved a little. What changed in the scene? Answer in one sentence.",
}
"""Name of a data set -> the question about its pairs. They are ours, and ask for captions as the data set has them: a
request, a comparison, one change of several, all changes in detail."""


def default_question(name: str) -> PromptConfig:
    """The question about the pairs of a data set of this name; the general one of SFT for other names."""
    return PromptConfig(text=_PAIR + QUESTIONS[name]) if name in QUESTIONS else PromptConfig()


TABLE_9 = ("image_editing_request", "birds_to_words", "spot_the_diff", "omnidiff", "clevr_dc", "clevr_change")
"""The sets of table 9 of the paper, the training data: 145k pairs, 896k captions."""


class SetConfig(ConfigModel):
    """One data set of a mixture."""

    pairs: str = Field(min_length=1)
    """Folder of its pairs, as jobs/import_dataset.py writes it. Path or URI."""
    prompt: PromptConfig | None = None
    """The question about its pairs. Default: that of a data set of this name (`QUESTIONS` in
    idc/systems/m3diff/mixture.py), else the general one of SFT."""
    captions: Captions | None = None
    """each: every caption of a pair is a sample of an epoch. one: every pair is, with a caption drawn at each visit.
    Default: each for the data sets of table 9, whose captions add up to the 896k samples of section 5.2, though that
    section says it of `clevr_change` and `clevr_dc` alone; one for other names."""


class MixtureConfig(ConfigModel):
    """The data sets that a model is trained on together. An epoch is one pass over all of them."""

    sets: dict[str, SetConfig] = Field(min_length=1)
    """Name -> data set; a name of table 9 (`clevr_change`, `clevr_dc`, `spot_the_diff`, `image_editing_request`,
    `birds_to_words`, `omnidiff`) has its own question."""
    without: tuple[str, ...] = ()
    """Names of sets that are left out (`mixture.without=[omnidiff]`)."""
    train_on_val: bool = False
    """Train on the validation pairs too, without validation. The paper must have done so: the 71k pairs of CLEVR-Change
    in table 9 are more than its 67,660 training pairs."""
    validate_on: str | None = None
    """Name of the set whose validation split is scored. Default: the first."""

    @property
    def used(self) -> dict[str, SetConfig]:
        """The sets that are not left out, by name."""
        return {name: data_set for name, data_set in self.sets.items() if name not in self.without}

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are trained on."""
        return ("train", "val") if self.train_on_val else ("train",)

    @property
    def validated(self) -> str | None:
        """Name of the set that validation scores, None if there is no validation."""
        return None if self.train_on_val else self.validate_on or next(iter(self.used))

    def prompt_of(self, name: str) -> PromptConfig:
        """The question about the pairs of a set; also of one that is not in the mixture, for an evaluation."""
        data_set = self.sets.get(name)
        if data_set is not None and data_set.prompt is not None:
            return data_set.prompt
        return default_question(name)

    def captions_of(self, name: str) -> Captions:
        """Which captions of a set are samples."""
        return self.used[name].captions or ("each" if name in TABLE_9 else "one")

    def errors(self) -> Iterator[str]:
        for name, data_set in self.sets.items():  # sections in a mapping are not looked at by the config's own checks
            for key, section in ((name, data_set), (f"{name}.prompt", data_set.prompt)):
                if section is not None:
                    yield from (f"sets.{key}.{fault}" for fault in section.all_errors())
        if not self.used:
            yield f"without: leaves out all sets ({', '.join(self.sets)}), so there is nothing to train on"
        for name in self.without:
            if name not in self.sets:
                yield f"without: {name!r} is not one of the sets{self._there(name, self.sets)}"
        first: dict[str, str] = {}
        for name, data_set in self.sets.items():
            other = first.setdefault(data_set.pairs.rstrip("/"), name)
            if other != name:
                yield f"sets.{name}.pairs: {data_set.pairs!r} is the folder of {other!r} too; give each set once"
        if self.validate_on is not None and self.validate_on not in self.used:
            yield f"validate_on: {self.validate_on!r} is not one of the sets{self._there(self.validate_on, self.used)}"
        if self.validate_on is not None and self.train_on_val:
            yield "validate_on: train_on_val=true trains on the validation pairs; remove one of the two"

    @staticmethod
    def _there(name: str, sets: Mapping[str, SetConfig]) -> str:
        return did_you_mean(name, list(sets)) or f"; there are: {', '.join(sets)}"

    def preflight(self) -> Iterator[str]:
        for name, data_set in self.used.items():
            if "://" not in data_set.pairs:
                try:
                    check_set(name, data_set)
                except ValueError as error:
                    yield str(error)


def prompt_of_dataset(mixture: MixtureConfig | None, name: str) -> PromptConfig:
    """The question about a data set's pairs, of a mixture or of table 9; ValueError if neither has this name."""
    names = list(dict.fromkeys([*(mixture.sets if mixture is not None else ()), *QUESTIONS]))
    if name not in names:
        raise ValueError(f"ask: {name!r} has no question of its own; there are: {', '.join(names)}")
    return default_question(name) if mixture is None else mixture.prompt_of(name)


def check_set(name: str, data_set: SetConfig) -> Manifest:
    """The manifest of a set that can be trained on. Reads its captions up to the first, no image. ValueError: it is
    missing, incomplete, of another kind, or has no images or no training captions; one line with the set's name and the
    command that imports it."""
    format = {"spot_the_diff_multi": "spot_the_diff spot_the_diff.protocol=multi"}.get(name, name)
    format = format if name in PUBLISHED else "FORMAT"
    command = f"python jobs/import_dataset.py format={format} source=FOLDER out={data_set.pairs}"
    try:
        read_manifest(data_set.pairs, command=command)
        manifest = complete_manifest(data_set.pairs, kind="pairs")
        manifest.need_images(data_set.pairs)
    except ValueError as error:
        how = "" if command in str(error) else f" ({command})"
        raise ValueError(f"sets.{name}: {error}{how}") from None
    if not any(row["captions"] for row in iter_rows(data_set.pairs, ["captions"], "train")):
        raise ValueError(
            f"sets.{name}: the training split of {data_set.pairs} has no captions; import the data set with its "
            f"caption files: {command}"
        )
    return manifest


def check_sets(mixture: MixtureConfig) -> list[str]:
    """Check every set by :func:`check_set`, before anything large is loaded; returns their fingerprints, in order.
    ValueError also if two sets have the same rows."""
    by_fingerprint: dict[str, str] = {}
    for name, data_set in mixture.used.items():
        try:
            manifest = check_set(name, data_set)
        except ValueError as error:
            raise ValueError(f"mixture.{error}") from None
        other = by_fingerprint.setdefault(manifest.fingerprint, name)
        if other != name:
            raise ValueError(
                f"mixture.sets.{name}: {data_set.pairs} has the same rows as {other!r} ({mixture.used[other].pairs}); "
                f"give each set once, or leave one out: mixture.without=[{name}]"
            )
    return list(by_fingerprint)
