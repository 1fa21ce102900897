"""A vision-language model as a captioner: log-probabilities are those of teacher forcing, batches change nothing."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from idc.captioning.calibration import YES, Calibration, fit_calibration, inputs_of
from idc.captioning.contract import InputSize, SearchOptions
from idc.data.schema import IMAGE, Turn
from idc.vlm.base import find_base, load_model
from idc.vlm.batch import Sample, collate_encoded, encode_images, model_inputs
from idc.vlm.captioner import VlmCaptioner
from idc.vlm.chat import CHANGE_QUESTION, caption_turns
from idc.vlm.config import FAMILIES, BaseConfig, GenerateConfig, PromptConfig
from idc.vlm.generate import generate
from idc.vlm.logps import answer_log_probabilities, attention_of, gather_image_features, sums_of_answers
from tests.vlm.artifacts import CAPTIONS, pairs, taught_folder
from tests.vlm.models import every_family, picture

BEFORES, AFTERS = (list(images) for images in zip(*pairs(), strict=True))
CLOSE = 1e-5
DRAWS = torch.rand(3, 6, 5, generator=torch.Generator().manual_seed(3))
KIND = "qwen2_5_vl"
"""The family of what does not depend on it."""


@cache
def captioner(kind: str, **settings: Any) -> VlmCaptioner:
    base = BaseConfig(source=str(taught_folder(kind)))
    given = GenerateConfig(**{"max_new_tokens": 24, **settings})
    return VlmCaptioner(load_model(taught_folder(kind), base), find_base(base).family, PromptConfig(), given)


def prompts_of(model: VlmCaptioner) -> list[list[int]]:
    sizes = [(before.shape[:2], after.shape[:2]) for before, after in pairs()]
    return [model.chat.prompt(caption_turns(model.prompt), pair) for pair in sizes]


def left_batch(model: VlmCaptioner) -> dict[str, Any]:
    """The prompts of all pairs, for generation."""
    samples = [
        Sample(ids, [False] * len(ids), model.family.pixels(pair))
        for ids, pair in zip(prompts_of(model), pairs(), strict=True)
    ]
    return collate_encoded(samples, model.family, side="left")


@every_family
def test_it_says_what_it_learned_in_batches_as_alone(kind: str) -> None:
    model = captioner(kind)
    assert model(BEFORES, AFTERS) == list(CAPTIONS)
    together = model.describe(BEFORES, AFTERS)
    for before, after, expected in zip(BEFORES, AFTERS, together, strict=True):
        (alone,) = model.describe([before], [after])
        assert alone.best.caption == expected.best.caption
        assert alone.best.log_probability == pytest.approx(expected.best.log_probability, abs=CLOSE)
        assert alone.evidence == pytest.approx(expected.evidence, abs=CLOSE)


@pytest.mark.parametrize(
    ("kind", "attention"), [*((kind, "sdpa") for kind in FAMILIES), (KIND, "eager"), (KIND, "apart")]
)
def test_answers_that_share_a_prompt_have_the_log_probabilities_of_answers_alone(
    kind: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also their gradients; each alone through the whole of transformers' model, images and all. "apart" is what is
    done for flash attention, which this machine has not."""
    tuned = copy.deepcopy(captioner(kind).model).train()
    if attention == "apart":
        monkeypatch.setattr("idc.vlm.logps.attention_of", lambda model: "flash_attention_2")
    else:
        tuned.set_attn_implementation(attention)
        assert attention_of(tuned) == attention
    model, batch = captioner(kind), left_batch(captioner(kind))
    prompts, family = prompts_of(model), model.family
    answers = [[[5, 6, 7, 8], [9], [6, 5]], [], [[8, 8, 8], [5, 6, 7, 8, 9, 10]]]
    images = [(0, 1), (2, 3), (5, 4)]
    encoded = encode_images(tuned, batch, family)
    logs_K = answer_log_probabilities(tuned, prompts, answers, encoded, batch, images, family)
    totals, counts = sums_of_answers(logs_K, answers)
    totals.sum().backward()
    gradients = {name: weight.grad for name, weight in tuned.named_parameters() if weight.grad is not None}
    tuned.zero_grad()

    # A pair's pixels, of which some families have the patches of all images in one row each.
    grids = batch.get("image_grid_thw")
    pixels = batch["pixel_values"].split([1] * 6 if grids is None else grids.prod(dim=1).tolist())
    naive = []
    for prompt, of_prompt, shown in zip(prompts, answers, images, strict=True):
        for answer in of_prompt:
            ids = torch.tensor([[*prompt, *answer]])
            inputs: dict[str, Any] = {"pixel_values": torch.cat([pixels[image] for image in shown])}
            if grids is not None:
                inputs["image_grid_thw"] = grids[list(shown)]
                inputs["mm_token_type_ids"] = (ids == family.image_id).int()
            elif kind == "llava_onevision":
                inputs = {"pixel_values": inputs["pixel_values"][:, None], "batch_num_images": torch.tensor([2]),
                          "image_sizes": torch.full((2, 2), family.side)}  # fmt: skip
            logits = tuned(input_ids=ids, **inputs).logits[0].log_softmax(-1)
            at = range(len(prompt), ids.shape[1])
            naive.append(torch.stack([logits[place - 1, ids[0, place]] for place in at]).sum())
    assert counts.tolist() == [4, 1, 2, 3, 6]
    assert totals.tolist() == pytest.approx(torch.stack(naive).tolist(), abs=CLOSE * 6)
    torch.stack(naive).sum().backward()
    alone = {name: weight.grad for name, weight in tuned.named_parameters() if weight.grad is not None}
    assert set(alone) == set(gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, alone[name], atol=2e-4, rtol=1e-3, msg=lambda text, name=name: name + text)


def test_the_settings_that_come_with_a_model_are_not_used() -> None:
    model = captioner(KIND)
    expected = model.describe(BEFORES, AFTERS)
    own = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=9.0, num_beams=2, max_new_tokens=1)
    before, model.model.generation_config = model.model.generation_config, own
    try:
        found = model.describe(BEFORES, AFTERS)
        assert model.model.generation_config is own, "it is left as it was"
    finally:
        model.model.generation_config = before
    assert [one.best for one in found] == [one.best for one in expected]


def test_samples_are_drawn_from_the_whole_distribution() -> None:
    """Not from the 50 most probable words, the default of transformers: at a high temperature rare ones appear."""
    model = captioner(KIND, max_new_tokens=1)
    words = {one.caption for one in model.sample(BEFORES[:1], AFTERS[:1], n=400, temperature=100.0)[0]}
    assert len(words) > 80


def test_the_pieces_that_are_heard_add_up_and_a_character_is_heard_as_a_whole() -> None:
    model = captioner(KIND)
    dialogues, first, last = [[Turn("user", IMAGE * 2)]] * 3, [], []
    answers = model.answer(BEFORES, AFTERS, dialogues, on_text=[first.append, None, last.append])
    assert ["".join(first), "".join(last)] == [answers[0].text, answers[2].text]
    assert min(len(first), len(last)) > 3
    text = "un café 变化 😀 fin"
    ids = model.chat.answer_ids(text)
    assert len(ids) > len(text), "no character has several tokens"
    heard: list[str] = []
    progress = model._progress([heard.append])
    for count in range(1, len(ids) + 1):
        progress(0, ids[:count])
    assert "".join(heard) == text
    assert "\ufffd" not in "".join(heard)


def test_images_that_rows_share_keep_the_order_of_the_rows() -> None:
    """Of two sizes: the language model places an image's tokens by its grid."""
    model = captioner(KIND)
    pixels = model.family.pixels([picture(0, 64, 64), picture(1, 64, 112), picture(2, 112, 64)])
    encoded, images = encode_images(model.model, pixels, model.family), [2, 0, 1, 0]
    features, language = gather_image_features(encoded, pixels, images, model.family)
    grids = pixels["image_grid_thw"].tolist()
    assert len({tuple(grid) for grid in grids}) == 3
    assert language["image_grid_thw"].tolist() == [grids[image] for image in images]
    for image, feature in zip(images, features.pooler_output, strict=True):
        assert torch.equal(feature, encoded.pooler_output[image])


@pytest.mark.parametrize(
    ("kind", "most", "beams", "options"),
    [
        (KIND, 24, 4, {"hypotheses": 4}),
        ("llava_onevision", 24, 4, {"hypotheses": 4}),
        (KIND, 3, 3, {"hypotheses": 3}),
        (KIND, 5, 1, {"hypotheses": 6, "temperature": 1.5, "draws": DRAWS}),
    ],
)
def test_log_probabilities_are_those_of_teacher_forcing(
    kind: str, most: int, beams: int, options: dict[str, Any]
) -> None:
    """Of every hypothesis, token by token the same ids; also of those that were cut off."""
    model, batch = captioner(kind), left_batch(captioner(kind))
    settings = GenerateConfig(max_new_tokens=most, beams=beams)
    encoded = encode_images(model.model, batch, model.family)
    generated = generate(model.model, batch, encoded, model.family, settings, **options)
    assert [len(several) for several in generated] == [options["hypotheses"]] * 3
    answers = [[hypothesis.ids for hypothesis in several] for several in generated]
    images = [(2 * pair, 2 * pair + 1) for pair in range(3)]
    with torch.no_grad():
        logs_K = answer_log_probabilities(model.model, prompts_of(model), answers, encoded, batch, images, model.family)
        totals, counts = sums_of_answers(logs_K, answers)
    hypotheses = [one for several in generated for one in several]
    assert {one.ended for one in hypotheses} >= {most == 24}
    assert counts.tolist() == [len(one.ids) for one in hypotheses]
    assert [one.total for one in hypotheses] == pytest.approx(totals.tolist(), abs=CLOSE * 24)


def test_beams_are_those_of_transformers_with_its_own_score() -> None:
    model, batch = captioner(KIND), left_batch(captioner(KIND))
    encoded = encode_images(model.model, batch, model.family)
    settings = GenerateConfig(max_new_tokens=24, beams=3)
    ours = generate(model.model, batch, encoded, model.family, settings, hypotheses=3)
    config = GenerationConfig(
        max_new_tokens=24, num_beams=3, num_return_sequences=3, do_sample=False, output_scores=True,
        return_dict_in_generate=True, eos_token_id=model.family.tokenizer.eos_token_id, early_stopping=False,
        pad_token_id=model.family.tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.no_grad():
        theirs = model.model.generate(**model_inputs(batch, encoded, model.family), generation_config=config)
    means = [one.mean for several in ours for one in several]
    assert means == pytest.approx(theirs.sequences_scores.tolist(), abs=CLOSE)


def test_one_vision_pass_serves_all_that_is_asked() -> None:
    model = captioner(KIND)
    towers: list[Any] = []
    tower = dict(model.model.named_modules())[model.family.tower[0].removesuffix(".patch_embed")]
    handle = tower.register_forward_pre_hook(lambda module, inputs: towers.append(module))
    try:
        model.describe(BEFORES, AFTERS, SearchOptions(beams=4, candidates=4, change_map=True))
        model.score(BEFORES, AFTERS, [list(CAPTIONS)] * 3)
        model.sample(BEFORES, AFTERS, n=5)
    finally:
        handle.remove()
    assert len(towers) == 3


def test_samples_follow_the_seed_and_the_temperature() -> None:
    model = captioner(KIND)
    first = model.sample(BEFORES, AFTERS, n=4, temperature=3.0, seed=1)
    state = torch.random.get_rng_state()
    assert model.sample(BEFORES, AFTERS, n=4, temperature=3.0, seed=1) == first
    assert model.sample(BEFORES, AFTERS, n=4, temperature=3.0, seed=2) != first
    assert torch.equal(torch.random.get_rng_state(), state), "the draws of others do not change"
    cold = model.sample(BEFORES, AFTERS, n=2, temperature=1e-4)
    for samples, expected in zip(cold, model.describe(BEFORES, AFTERS), strict=True):
        assert {one.caption for one in samples} == {expected.best.caption}
        assert samples[0].log_probability == pytest.approx(expected.best.log_probability, abs=CLOSE)


def test_a_score_is_of_the_caption_and_the_images() -> None:
    model = captioner(KIND)
    scores = model.score(BEFORES, AFTERS, [list(CAPTIONS)] * 3)
    for pair, several in enumerate(scores):
        assert max(several, key=lambda one: one.mean) is several[pair]
    assert model.score(BEFORES, AFTERS, [[], [CAPTIONS[1]], []]) == [[], [pytest.approx(scores[1][1], abs=1e-4)], []]
    swapped = model.score(BEFORES[::-1], AFTERS[::-1], [[CAPTIONS[0]]] * 3)
    assert swapped[0][0].total < scores[0][0].total - 1
    assert captioner(KIND, max_new_tokens=4).score(BEFORES[:1], AFTERS[:1], [[CAPTIONS[0]]])[0][0].tokens == 4


@every_family
def test_the_change_map_is_dark_where_nothing_changed_and_the_seen_size_is_reported(kind: str) -> None:
    model = captioner(kind)
    half = BEFORES[2].copy()
    half[:50] = picture(9, 50, 40)
    described = model.describe([*BEFORES, BEFORES[2]], [*AFTERS, half], SearchOptions(change_map=True))
    maps = [one.change_map for one in described]
    assert maps[2].max() < 1e-5
    assert maps[0].max() > 1e-3
    assert 0 <= min(one.min() for one in maps) <= max(one.max() for one in maps) <= 1
    shapes, seen = {
        "llava_onevision": ([(4, 4), (3, 4), (4, 2), (4, 2)], InputSize((34, 64), (41, 64))),
        "internvl": ([(2, 2), (2, 2), (2, 2), (2, 2)], InputSize((64, 64), (64, 64))),
    }.get(kind, ([(2, 2), (1, 2), (3, 1), (3, 1)], InputSize((32, 64), (32, 64))))
    assert [one.shape for one in maps] == shapes
    assert described[1].input_size == seen
    assert described[0].evidence == {"change_peak": maps[0].max(), "change_mean": maps[0].mean()}
    assert maps[3][0].mean() > maps[3][-1].mean(), "the upper half changed"
    assert model.describe(BEFORES[:1], AFTERS[:1])[0].change_map is None


def test_a_captioner_that_is_asked_has_the_odds_of_yes(tmp_path: Path) -> None:
    silent = captioner(KIND)
    plain = silent.describe(BEFORES, AFTERS)
    rows = [inputs_of(one) | {YES: odds} for one, odds in zip(plain, (1, 2, -2), strict=True)]
    fitted = Calibration(fingerprint="", source={}, quality={}, **fit_calibration(rows, [True, True, False]))
    (tmp_path / "calibration.json").write_text(fitted.model_dump_json())
    model = VlmCaptioner(silent.model, silent.family, silent.prompt, silent.settings, path=tmp_path)
    asked = VlmCaptioner(silent.model, silent.family, PromptConfig(text=IMAGE * 2 + CHANGE_QUESTION), silent.settings)
    scores = asked.score(BEFORES, AFTERS, [["yes", "no"]] * 3)
    for (yes, no), one in zip(scores, model.describe(BEFORES, AFTERS), strict=True):
        assert one.evidence[YES] == pytest.approx(yes.total - no.total, abs=1e-4)
        assert one.changed == fitted(one)
    assert all(YES not in one.evidence for one in plain), "without such a calibration nothing is asked"


def test_answers_in_dialogues() -> None:
    model = captioner(KIND)
    plain = model.answer(BEFORES, AFTERS, [[Turn("user", IMAGE * 2)]] * 3)
    assert [one.text for one in plain] == list(CAPTIONS), "marks alone ask for a caption"
    for one, expected, ids in zip(plain, model.describe(BEFORES, AFTERS), prompts_of(model), strict=True):
        assert one.log_probability == pytest.approx(expected.best.log_probability, abs=CLOSE)
        assert (one.prompt_tokens, one.cut_off, one.input_size) == (len(ids), False, expected.input_size)
    dialogue = [Turn("user", f"{IMAGE}{IMAGE}\nWhat changed?"), Turn("assistant", CAPTIONS[0]), Turn("user", "Red?")]
    (long,) = model.answer(BEFORES[:1], AFTERS[:1], [dialogue], max_tokens=2)
    assert (long.tokens, long.cut_off) == (2, True)
    without_marks = [Turn("user", "What changed?"), *dialogue[1:]]
    assert model.answer(BEFORES[:1], AFTERS[:1], [without_marks], max_tokens=2) == [long]
    assert long.prompt_tokens == len(model.chat.prompt(dialogue, [BEFORES[0].shape[:2], AFTERS[0].shape[:2]]))


@pytest.mark.parametrize(
    ("method", "arguments", "options", "fault"),
    [
        ("describe", (BEFORES, AFTERS[:1]), {}, "3 before and 1 after images: give as many of each"),
        ("score", (BEFORES, AFTERS, [[]]), {}, "1 lists of captions for 3 pairs"),
        ("score", (BEFORES[:1], AFTERS[:1], [["a cube<|im_end|>"]]), {}, r"control token '<\|im_end\|>'"),
        ("sample", (BEFORES, AFTERS, 1), {"temperature": 0}, "temperature positive, got n=1, temperature=0"),
        ("answer", (BEFORES, AFTERS, [[]]), {}, "1 dialogues about 3 pairs"),
        ("answer", (BEFORES[:1], AFTERS[:1], [[Turn("user", "What? " * 40)]]), {}, "reads at most 60: shorten"),
    ],
)
def test_wrong_calls_are_refused(
    method: str, arguments: tuple[Any, ...], options: dict[str, Any], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = captioner(KIND)
    monkeypatch.setattr(model.family.config.get_text_config(), "max_position_embeddings", 60)
    with pytest.raises(ValueError, match=fault):
        getattr(model, method)(*arguments, **options)
