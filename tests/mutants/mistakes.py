"""Plausible mistakes in what follows a paper or decides a score; each must make a test fail.

A program may train, caption and score with any of these, and its numbers look like numbers.

Long because it is one list.
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
_SHARED = "tests/vlm/test_captioner.py::test_answers_that_share_a_prompt_have_the_log_probabilities_of_answers_alone"
_LISTS = "tests/metrics/test_difference_lists.py"
_MCI, _EQUATIONS = "tests/systems/changevg/test_convert.py", "tests/systems/changevg/test_guide.py"
_GUIDE, _GUIDED = "tests/systems/changevg/test_task.py", "tests/systems/changevg/test_guided.py"
_CAPTIONER, _DIALOGUES = "idc/systems/changevg/guided_captioner.py", "idc/systems/changevg/dialogues.py"

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
        "states_K = tokens_K - 1",
        "states_K = tokens_K",
        f"{_SFT}::test_the_loss_is_the_mean_over_a_samples_tokens_then_over_samples",
    ),
    Mistake(
        "every token of a batch counts the same",
        "idc/vlm/sft.py",
        "return sample_losses(losses_K, rows_K, batch[SAMPLES]).mean(), {}",
        "return losses_K.mean(), {}",
        f"{_SFT}::test_the_loss_is_the_mean_over_a_samples_tokens_then_over_samples",
    ),
    Mistake(
        "a long caption of a pair counts more than a short one",
        "idc/vlm/sft.py",
        "losses_K, rows_K = sample_losses(losses_K, answers_K, len(pairs_A2)), pairs_A2[:, 0]",
        "pass",
        f"{_SFT}::test_captions_together_have_the_loss_and_gradients_of_each_alone",
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
        "answers' scores leave out their end tokens",
        "idc/vlm/logps.py",
        "return logs_K.new_zeros(len(counts_A)).index_add(0, answers_K, logs_K), counts_A",
        "return logs_K.new_zeros(len(counts_A)).index_add(0, answers_K, logs_K), counts_A - 1",
        "tests/vlm/test_captioner.py::test_log_probabilities_are_those_of_teacher_forcing",
    ),
    Mistake(
        "an answer reads those before it",
        "idc/vlm/logps.py",
        "((prompt | same) & same",
        "((prompt | same | ~prompt) & same",
        _SHARED,
    ),
    Mistake("answers stand one after another", "idc/vlm/logps.py", ".clamp(min=0)", ".clamp(max=0)", _SHARED),
    Mistake(
        "an answer's first token is predicted by the answer before",
        "idc/vlm/logps.py",
        "states_K = torch.where(first_K,",
        "states_K = torch.where(first_K & ~first_K,",
        _SHARED,
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

CHANGEVG = (
    Mistake(
        "a BI3 block attends to the product of both maps",
        "idc/systems/changevg/guide.py",
        "self.contrast(queries * (keys - queries))",
        "self.contrast(queries * keys)",
        _MCI,
    ),
    Mistake(
        "whether maps are equal is asked for a whole batch",
        "idc/systems/changevg/guide.py",
        "equal_B111 = (queries == keys).flatten(1).all(dim=1).view(-1, 1, 1, 1)",
        "equal_B111 = (queries == keys).all()",
        _MCI,
    ),
    Mistake(
        "the second image reads the first one's old map",
        "idc/systems/changevg/guide.py",
        "before = first(before, after) + before\n                after = second(after, before) + after",
        "before, after = first(before, after) + before, second(after, before) + after",
        _MCI,
    ),
    Mistake(
        "positions of rows in the place of those of columns",
        "idc/systems/changevg/guide.py",
        "torch.cat([columns, rows], dim=-1)",
        "torch.cat([rows, columns], dim=-1)",
        _MCI,
    ),
    Mistake(
        "the word decoder does not add a layer's input",
        "idc/systems/changevg/guide_decoder.py",
        "return output + entered",
        "return output",
        _MCI,
    ),
    Mistake(
        "the difference of a level in the other direction",
        "idc/systems/changevg/guide.py",
        "self.difference(after_BCYX - before_BCYX)",
        "self.difference(before_BCYX - after_BCYX)",
        _MCI,
    ),
    Mistake(
        "MCI's words keep the order of its marks",
        "idc/systems/changevg/convert.py",
        "_OWN_ORDER = (0, 2, 3, 1)",
        "_OWN_ORDER = (0, 1, 2, 3)",
        _MCI,
    ),
    Mistake(
        "ReLU of the paper's transform layer",
        "idc/systems/changevg/guide.py",
        "return (x if self.paper else F.relu(x)).flatten(2).mT",
        "return F.relu(x).flatten(2).mT",
        _EQUATIONS,
    ),
    Mistake(
        "self-attention after the paper's fusion has a difference",
        "idc/systems/changevg/guide.py",
        "ContrastBlock(top, config.heads, config.dropout, contrast=False)",
        "ContrastBlock(top, config.heads, config.dropout)",
        _EQUATIONS,
    ),
    Mistake(
        "the guide's losses are not divided by their values",
        "idc/systems/changevg/task.py",
        "[loss / loss.detach().clamp_min(LEAST) for loss in parts]",
        "list(parts)",
        f"{_GUIDE}::test_the_losses_and_that_each_is_divided_by_its_own_value",
    ),
    Mistake(
        "a road's sigmoid learns buildings",
        "idc/systems/changevg/task.py",
        "for number in range(1, len(CLASSES))]",
        "for number in reversed(range(1, len(CLASSES)))]",
        f"{_GUIDE}::test_the_losses_and_that_each_is_divided_by_its_own_value",
    ),
    Mistake(
        "classes of a smaller mask are averaged",
        "idc/systems/changevg/data.py",
        "Image.Resampling.NEAREST",
        "Image.Resampling.BILINEAR",
        "tests/systems/changevg/test_data.py",
    ),
    Mistake(
        "IoU counts hits twice in the union",
        "idc/metrics/segmentation.py",
        "union = true + predicted - hits",
        "union = true + predicted",
        "tests/metrics/test_segmentation.py",
    ),
    Mistake(
        "a note by the guide that learned the pair",
        "idc/systems/changevg/notes_job.py",
        "return fold_of(pair_id, self.folds) if",
        "return (fold_of(pair_id, self.folds) + 1) % self.folds if",
        "tests/systems/changevg/test_notes.py::test_a_cross_fitted_note_is_of_the_guide_that_did_not_learn_the_pair",
    ),
    Mistake(
        "the guide sees the images exchanged",
        _CAPTIONER,
        "self.guide.look(images[0], images[1], self.regions)",
        "self.guide.look(images[1], images[0], self.regions)",
        f"{_GUIDED}::test_notes_are_those_of_the_pair_in_its_order",
    ),
    Mistake(
        "the answer to a pair quotes the notes on another one",
        _CAPTIONER,
        "zip(self.looks(befores, afters), dialogues, strict=True)\n            ]\n        return super",
        "zip(self.looks(befores, afters)[::-1], dialogues, strict=True)\n            ]\n        return super",
        f"{_GUIDED}::test_a_batch_asks_what_its_pairs_ask_alone",
    ),
    Mistake(
        "a pair learns the notes on another one",
        _DIALOGUES,
        "zip(names, captioner.observe(befores, afters, regions), strict=True)",
        "zip(names, captioner.observe(befores, afters, regions)[::-1], strict=True)",
        f"{_GUIDED}::test_notes_are_those_of_the_pair_in_its_order",
    ),
    Mistake(
        "a branch is left out of the tuning alone",
        _CAPTIONER,
        "guided_question(notes, self.prompt.text, self.quote)",
        "guided_question(notes, self.prompt.text, GuidedPromptConfig())",
        f"{_GUIDED}::test_a_question_is_put_as_it_was_learned",
    ),
    Mistake(
        "a branch is left out of the captioner alone",
        _DIALOGUES,
        "samples.notes, samples.quote = notes, job.quote",
        "samples.notes = notes",
        f"{_GUIDED}::test_a_question_is_put_as_it_was_learned",
    ),
    Mistake(
        "every question of a dialogue quotes the notes",
        "idc/systems/changevg/notes.py",
        "return [*turns[:first], asked, *turns[first + 1 :]]",
        "return [asked if turn.role == 'user' else turn for turn in turns]",
        "tests/systems/changevg/test_notes.py::test_both_jobs_in_turn",
    ),
    Mistake(
        "the guide runs for every turn",
        _CAPTIONER,
        "enumerate(keys) if key not in self._looks",
        "enumerate(keys)",
        f"{_GUIDED}::test_the_guide_runs_once_for_each_pair",
    ),
    Mistake(
        "the map is the language model's",
        _CAPTIONER,
        "return [extras.change_map for _, extras in pairs.more]",
        "return super().maps(pairs)",
        f"{_GUIDED}::test_maps_are_the_guides",
    ),
    Mistake(
        "the captioner counts other regions than its answers",
        _CAPTIONER,
        "GuidedCaptioner(guide, job.quote, job.regions,",
        "GuidedCaptioner(guide, job.quote, RegionConfig(),",
        f"{_GUIDED}::test_a_question_is_put_as_it_was_learned",
    ),
    Mistake(
        "notes of another guide are learned",
        _DIALOGUES,
        "if identities[0] != artifact_identity(job.guide):",
        "if False:",
        f"{_GUIDED}::test_notes_that_do_not_fit_are_refused",
    ),
    Mistake(
        "a dialogue goes on after the true answers",
        "idc/evaluation/asking.py",
        'self.history.append(Turn("assistant", prediction))',
        'self.history.append(Turn("assistant", answer.text))',
        "tests/evaluation/test_asking.py",
    ),
)

MISTAKES = (*NAMC, *PROCAP, *TWINCAP, *SFT, *DIFFERENCES, *CHANGEVG)
