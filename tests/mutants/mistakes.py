"""Plausible mistakes in what follows a paper or decides a score; each must make a test fail.

A program may train, caption and score with any of these, and its numbers look like numbers.
"""

from __future__ import annotations

from typing import NamedTuple


class Mistake(NamedTuple):
    """A change of the program.

    Attributes:
        name: what is wrong then.
        file: of the program.
        old, new: text that occurs once in the file, and what replaces it.
        test: the file of tests, or the test in it, that must fail.
    """

    name: str
    file: str
    old: str
    new: str
    test: str


_NAMC = "tests/systems/namc/test_equations.py"
_PROCAP, _PROCAP_DATA = "tests/systems/procap/test_losses.py", "tests/systems/procap/test_data.py"
_TWINCAP, _TWINCAP_TASK = "tests/systems/twincap/test_model.py", "tests/systems/twincap/test_task.py"
_TWINCAP_DATA = "tests/systems/twincap/test_data.py"
_SFT = "tests/vlm/test_sft.py"
_LISTS = "tests/metrics/test_difference_lists.py"

NAMC = (
    Mistake(
        "co-attention reads its own image",
        "idc/systems/namc/model.py",
        "others = x_2BPD.roll(len(x_2BPD) // 2, dims=0)\n            others_hidden",
        "others = x_2BPD\n            others_hidden",
        _NAMC,
    ),
    Mistake(
        "the other image is hidden by the wrong mask",
        "idc/systems/namc/model.py",
        "hidden_2BP.roll(len(hidden_2BP) // 2, dims=0)",
        "hidden_2BP",
        _NAMC,
    ),
    Mistake(
        "self-attention sees hidden positions",
        "idc/systems/namc/model.py",
        "layer.within(x_2BPD, hidden_2BP)",
        "layer.within(x_2BPD, None)",
        _NAMC,
    ),
    Mistake(
        "MIR without text",
        "idc/systems/namc/task.py",
        "text = self.heads.text(denoised.text)",
        "text = torch.zeros_like(self.heads.text(denoised.text))",
        _NAMC,
    ),
    Mistake(
        "MIR reads the padding of descriptions",
        "idc/systems/namc/task.py",
        'device=features.device) > batch["text"]["end"].unsqueeze(1)',
        'device=features.device) > 10**6 + batch["text"]["end"].unsqueeze(1)',
        _NAMC,
    ),
    Mistake(
        "MIR sees what it must restore",
        "idc/systems/namc/task.py",
        "encoder.reconstruct(encoder.embed(features, masked), text",
        "encoder.reconstruct(encoder.embed(features), text",
        _NAMC,
    ),
    Mistake(
        "NIM on the first subset alone",
        "idc/systems/namc/nim.py",
        "(slice(None, pairs), slice(pairs, None))",
        "(slice(None, pairs),)",
        _NAMC,
    ),
    Mistake(
        "raw images always aligned",
        "idc/systems/namc/nim.py",
        'self.encoder.images(images_NHWC, masked_images if settings.align_images == "denoised" else None)',
        "self.encoder.images(images_NHWC, None)",
        _NAMC,
    ),
    Mistake(
        "no masks while generating",
        "idc/systems/namc/task.py",
        "self.net.memory(features, None if denoised is None else denoised.images)",
        "self.net.memory(features, None)",
        _NAMC,
    ),
    Mistake(
        "what is relevant is masked",
        "idc/systems/namc/nim.py",
        "irrelevance = 1 - relevance_NX",
        "irrelevance = relevance_NX",
        _NAMC,
    ),
    Mistake(
        "the decoder reads the words that the description has lost",
        "idc/systems/namc/task.py",
        "ids = torch.cat([ids[:, :1], torch.where(lost, UNK, targets)[:, :-1]], dim=1)",
        "ids = torch.cat([ids[:, :1], targets[:, :-1]], dim=1)",
        _NAMC,
    ),
)

PROCAP = (
    Mistake(
        "in-block and out-of-block masking exchanged",
        "idc/systems/procap/data.py",
        "block if scheme == 2 else ~block",
        "block if scheme == 3 else ~block",
        _PROCAP_DATA,
    ),
    Mistake(
        "random masking masks the same patches of every frame",
        "idc/systems/procap/data.py",
        "masked = rng.random((frames, shapes.patches)) < share",
        "masked = np.tile(rng.random(shapes.patches) < share, (frames, 1))",
        _PROCAP_DATA,
    ),
    Mistake(
        "the caption that is not aligned is the right one",
        "idc/systems/procap/task.py",
        "texts.append(self._unaligned(batch))",
        'texts.append(batch["text"])',
        _PROCAP,
    ),
    Mistake(
        "the warped frames are not warped",
        "idc/systems/procap/task.py",
        "frames.append(self._warped_features(batch))",
        "frames.append(frames[0])",
        _PROCAP,
    ),
    Mistake(
        "consistency has no negatives",
        "idc/systems/procap/task.py",
        "each = F.softplus(-true) + F.softplus(false)",
        "each = F.softplus(-true)",
        _PROCAP,
    ),
    Mistake(
        "masked patches are visible",
        "idc/systems/procap/model.py",
        "return torch.where(masked_BFP.unsqueeze(-1), self.mask_embedding.to(patches.dtype), patches)",
        "return patches",
        _PROCAP,
    ),
    Mistake(
        "the after image is placed at the second frame",
        "idc/systems/procap/model.py",
        "torch.stack([frames[0], frames[-1]])",
        "torch.stack([frames[0], frames[1]])",
        _PROCAP,
    ),
    Mistake(
        "the queries are not the mask embedding",
        "idc/systems/procap/model.py",
        "queries = self.mask_embedding.to(patches_BGPD.dtype)",
        "queries = torch.zeros_like(self.mask_embedding)",
        _PROCAP,
    ),
    Mistake(
        "key frames are those that resemble an end",
        "idc/systems/procap/procedures/similarity.py",
        "return (1 - shares / shares.sum()).astype(np.float32)",
        "return (shares / shares.sum()).astype(np.float32)",
        "tests/systems/procap/procedures/test_similarity.py",
    ),
    Mistake(
        "the sample with the wrong caption counts for consistency",
        "idc/systems/procap/task.py",
        "self.heads.consistency(h_csy[-count:])",
        "self.heads.consistency(h_csy[count : 2 * count])",
        _PROCAP,
    ),
)

TWINCAP = (
    Mistake(
        "the trunk gets no difference",
        "idc/systems/twincap/model.py",
        "parts.append(parts[1] - parts[0])",
        "parts.append(parts[1] - parts[1])",
        _TWINCAP,
    ),
    Mistake(
        "each look is read in the other image",
        "idc/systems/twincap/model.py",
        "unsqueeze(2) * features.flatten(3)",
        "unsqueeze(2) * features.flip(1).flatten(3)",
        _TWINCAP,
    ),
    Mistake(
        "the attributes before and after exchanged",
        "idc/systems/twincap/task.py",
        'batch["changed"][:, image, column]',
        'batch["changed"][:, 1 - image, column]',
        f"{_TWINCAP_TASK}::test_the_heads_learn_what_is_true_of_each_image",
    ),
    Mistake(
        "the changed objects are those of the other image",
        "idc/systems/twincap/task.py",
        'torch.where(batch["differs"], shown, UNKNOWN)',
        'torch.where(batch["differs"].flip(1), shown, UNKNOWN)',
        f"{_TWINCAP_TASK}::test_the_heads_learn_what_is_true_of_each_image",
    ),
    Mistake(
        "peaks are looked for in the before image alone",
        "idc/systems/twincap/model.py",
        "objects.detach().float().sigmoid().amax(1)",
        "objects.detach().float().sigmoid()[:, 0]",
        _TWINCAP,
    ),
    Mistake(
        "a peak is read in the trunk at the wrong cell",
        "idc/systems/twincap/model.py",
        "row // 2 * (width // 2) + column // 2",
        "row // 2 * width + column // 2",
        _TWINCAP,
    ),
    Mistake(
        "a peak's part is that of any object, however far",
        "idc/systems/twincap/task.py",
        "nearest.values <= PEAK_REACH",
        "nearest.values <= torch.inf",
        f"{_TWINCAP_TASK}::test_the_heads_learn_what_is_true_of_each_image",
    ),
    Mistake(
        "mirrored images keep their captions",
        "idc/systems/twincap/data.py",
        "captions = [mirror_caption(caption) for caption in captions]",
        "[mirror_caption(caption) for caption in captions]",
        f"{_TWINCAP_DATA}::test_mirrored_samples_have_mirrored_places_and_words",
    ),
    Mistake(
        "captions are those of the last weights",
        "idc/systems/twincap/task.py",
        "return self.net if self.average is None else self.average",
        "return self.net",
        f"{_TWINCAP_TASK}::test_the_stored_weights_are_the_moving_average",
    ),
)

SFT = (
    Mistake(
        "a state predicts its own token",
        "idc/vlm/logps.py",
        "hidden_RLD[:, :-1][learned_RL]",
        "hidden_RLD[:, 1:][learned_RL]",
        f"{_SFT}::test_the_loss_is_the_mean_over_a_samples_tokens_then_over_samples",
    ),
    Mistake(
        "every token of a batch counts the same",
        "idc/vlm/sft.py",
        "return sample_losses(losses, rows, batch[SAMPLES]).mean(), {}",
        "return losses.mean(), {}",
        f"{_SFT}::test_the_loss_is_the_mean_over_a_samples_tokens_then_over_samples",
    ),
    Mistake(
        "the questions are learned too",
        "idc/vlm/chat.py",
        "learned += [said] * len(piece)",
        "learned += [True] * len(piece)",
        "tests/vlm/test_labels.py::test_learned_tokens_are_the_answers_with_their_ends",
    ),
    Mistake(
        "the base's weights are trained",
        "idc/vlm/tuning.py",
        "parameter.requires_grad_(group_of(name, family, tune) is not None)",
        "parameter.requires_grad_(True)",
        f"{_SFT}::test_exactly_the_wanted_parts_are_trained_and_all_of_them_get_a_gradient",
    ),
    Mistake(
        "the rate of LoRA+ divides",
        "idc/vlm/tuning.py",
        "getattr(tune.language_optim, name) * plus",
        "getattr(tune.language_optim, name) / plus",
        f"{_SFT}::test_each_group_has_its_rate_and_the_matrices_b_of_lora_plus_theirs",
    ),
    Mistake(
        "seeing lowers the score of seeing",
        "idc/vlm/sft.py",
        "(right_loss - shuffled_loss) / tokens",
        "(shuffled_loss - right_loss) / tokens",
        f"{_SFT}::test_a_model_that_sees_has_a_lower_loss_with_the_right_images",
    ),
    Mistake(
        "the shuffled images are the row's own",
        "idc/vlm/samples.py",
        "(index + len(rows) // 2) % len(rows)",
        "index % len(rows)",
        "tests/vlm/test_samples.py::test_validation_shuffles_the_images_among_rows_with_as_many",
    ),
    Mistake(
        "answers' scores count the prompt's tokens",
        "idc/vlm/logps.py",
        'return totals_R, batch["learned"][:, 1:].sum(dim=1)',
        'return totals_R, batch["attention_mask"][:, 1:].sum(dim=1)',
        "tests/vlm/test_captioner.py::test_log_probabilities_are_those_of_teacher_forcing",
    ),
)

DIFFERENCES = (
    Mistake(
        "F1 counts the true differences alone",
        "idc/metrics/difference_lists.py",
        "2 * right / (claims + self.truths)",
        "right / self.truths",
        _LISTS,
    ),
    Mistake(
        "claims are assigned to what fits them least",
        "idc/metrics/difference_lists.py",
        "linear_sum_assignment(-grades)",
        "linear_sum_assignment(grades)",
        _LISTS,
    ),
    Mistake(
        "one right attribute is enough",
        "idc/metrics/difference_lists.py",
        "return claim.described <= common and",
        "return bool(claim.described & common) and",
        _LISTS,
    ),
    Mistake(
        "the old look is not checked",
        "idc/metrics/difference_lists.py",
        "in old for name, value in claim.old",
        "in old | claim.old for name, value in claim.old",
        _LISTS,
    ),
    Mistake(
        "what is said twice counts as invented",
        "idc/metrics/difference_lists.py",
        '"surplus" if any(',
        '"invented" if any(',
        _LISTS,
    ),
    Mistake(
        "silence about a pair without differences is right",
        "idc/metrics/difference_lists.py",
        "said = float(self.says_no_change)",
        "said = float(not self.claims)",
        _LISTS,
    ),
    Mistake(
        "an object may be on either of two sides that are named",
        "idc/metrics/difference_lists.py",
        "sides = all(any(on_side(side, thing, view, 0.0) for thing, _, view in shown) for side in claim.sides)",
        "sides = any(on_side(side, thing, view, 0.0) for thing, _, view in shown for side in claim.sides or SIDES)",
        _LISTS,
    ),
    Mistake(
        "a moved object came from where it went",
        "idc/metrics/difference_lists.py",
        "_side(side, difference, truth, moved_there=False)",
        "_side(side, difference, truth, moved_there=True)",
        _LISTS,
    ),
    Mistake(
        "an object that is only a landmark has changed",
        "idc/metrics/difference_claims.py",
        "anchors = {int(match[5]) for match in ANCHOR.finditer(text)}",
        "anchors = set[int]()",
        _LISTS,
    ),
    Mistake(
        "what did not happen is claimed",
        "idc/metrics/difference_claims.py",
        "named == NO_CHANGE or NOT_DONE.search(text) or",
        "named == NO_CHANGE or",
        _LISTS,
    ),
    Mistake(
        "half right claims outweigh a right one",
        "idc/metrics/difference_lists.py",
        "_RIGHT, _HALF = 10_000, 1",
        "_RIGHT, _HALF = 3, 2",
        _LISTS,
    ),
    Mistake(
        "found by kind counts half right claims",
        "idc/metrics/difference_lists.py",
        'if index is not None and verdict == "right":',
        "if index is not None:",
        _LISTS,
    ),
)

MISTAKES = (*NAMC, *PROCAP, *TWINCAP, *SFT, *DIFFERENCES)
