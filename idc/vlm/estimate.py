"""Costs of tuning a vision-language model, on paper: parameters, operations, memory, hours, from its config.json.

Nothing is loaded, and torch is not needed. Operations are those of matrix products, two for each multiplication with
addition. Memory is what stays on one GPU at the largest moment of a step; it leaves out what the allocator wastes, some
tenth more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from idc.vlm.config import FAMILIES

GIB = 2**30
CUDA = 1 * GIB
"""Bytes that CUDA, its libraries and their work space take of a GPU."""
TRAINED, GRADIENT, MOMENTS, COPY = 4, 4, 8, 2
"""Bytes of a trained parameter: itself, its gradient and Adam's two averages in float32, and the bfloat16 copy with
which autocast computes."""
FROZEN = 2
"""Bytes of a frozen parameter."""


@dataclass(frozen=True)
class Layers:
    """A stack of transformer layers.

    Attributes:
        count: of layers.
        width: of the residual stream.
        inner: of the feed-forward part.
        queries, keys: of all heads together; values are as wide as keys.
        gated: the feed-forward part has three matrices instead of two.
        vectors: parameters of a layer that belong to no matrix: biases, norms, scales.
        whole: layers whose attention sees all tokens; the others see `window`.
        causal: a token sees those before it.
    """

    count: int
    width: int
    inner: int
    queries: int
    keys: int
    gated: bool
    vectors: int
    window: int = 0
    whole: int = 0
    causal: bool = False

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix of a layer: q, k, v, o, then the feed-forward part."""
        attention = ((self.width, self.queries), *((self.width, self.keys),) * 2, (self.queries, self.width))
        return (*attention, *((self.width, self.inner),) * (1 + self.gated), (self.inner, self.width))

    @property
    def matrices(self) -> int:
        """Parameters of a layer's matrices."""
        return sum(inputs * outputs for inputs, outputs in self.linears)

    @property
    def parameters(self) -> int:
        return self.count * (self.matrices + self.vectors)

    def operations(self, tokens: int, through: bool = False, trained: bool = False, again: bool = False) -> float:
        """Operations for one sequence.

        Args:
            through: with the backward pass to the layers' inputs.
            trained: with the gradients of the matrices.
            again: with a second forward pass before the backward pass.
        """
        seen = self.whole * tokens + (self.count - self.whole) * min(tokens, self.window)
        attention = 4 * tokens * seen * self.queries * (0.5 if self.causal else 1)
        matrices = 2 * self.count * self.matrices * tokens
        return matrices * (1 + through + trained + again) + attention * (1 + 2 * through + again)

    def kept(self, rank: int = 0, dropout: bool = False, trained: bool = False) -> int:
        """Bytes that one layer keeps of one token for its backward pass under autocast in bfloat16, with a fused kernel
        for attention.

        Args:
            rank: of the adapters at all of its matrices; 0: there are none.
            dropout: the adapters have dropout.
            trained: the matrices are trained, which keeps their inputs and the residual stream in float32.
        """
        norms = 2 * (8 if trained else 4) * self.width  # what a norm reads, and if it is trained its quotient
        attention = 2 * (2 * self.queries + 2 * self.keys)  # q, k, v, result
        feed = 2 * self.inner * (3 if self.gated else 1)
        inputs = sum(inputs for inputs, _ in self.linears)
        if trained:
            return norms + attention + feed + 2 * (inputs - self.queries)  # the result of attention is counted
        adapters = (2 + dropout) * inputs + 2 * rank * len(self.linears) if rank else 0
        return norms + attention + feed + adapters


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a vision-language model.

    Attributes:
        tower, language: their layers.
        patches: of the tower for one token of an image.
        more_patches: of an image, besides: 1 for a class token, -1 for a token (a newline) that is no patch.
        tower_rest, projector, language_rest: parameters outside the layers: embeddings and norms; all of the module
            between tower and language model; embeddings, output layer and norm.
        embedding: operations of the embedding of a patch.
        projection: operations of the projector for one token of an image.
        vocabulary: entries of the output layer.
    """

    tower: Layers
    language: Layers
    patches: int
    more_patches: int
    tower_rest: int
    projector: int
    language_rest: int
    embedding: int
    projection: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Parameters of tower, projector and language model."""
        return {
            "tower": self.tower.parameters + self.tower_rest,
            "projector": self.projector,
            "language": self.language.parameters + self.language_rest,
        }

    def lora(self, rank: int) -> int:
        """Parameters of adapters for all matrices of the language model's layers."""
        return self.language.count * sum(rank * (inputs + outputs) for inputs, outputs in self.language.linears)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ModelSize:
        """The sizes of a model.

        Args:
            config: its config.json as transformers reads it (``AutoConfig.from_pretrained(folder).to_dict()``).

        Raises:
            ValueError: it is of no known family.
        """
        read = {"qwen2_5_vl": _qwen2_5, "llava_onevision": _llava, "internvl": _internvl, "qwen3_vl": _qwen3}
        if (kind := config["model_type"]) not in read:
            raise ValueError(f"there is no estimate for models of type {kind!r}; there are {', '.join(FAMILIES)}")
        return read[kind](config, config["text_config"], config["vision_config"])


def _language(text: Mapping[str, Any], tied: bool) -> tuple[Layers, int]:
    """Layers of Qwen2 and Qwen3 language models, and their other parameters."""
    width, heads = text["hidden_size"], text["num_attention_heads"]
    head = text.get("head_dim") or width // heads
    queries, keys = heads * head, text["num_key_value_heads"] * head
    qwen3 = text["model_type"].startswith("qwen3")
    vectors = 2 * width + (2 * head if qwen3 else queries + 2 * keys)
    count, inner = text["num_hidden_layers"], text["intermediate_size"]
    layers = Layers(count, width, inner, queries, keys, True, vectors, whole=count, causal=True)
    return layers, text["vocab_size"] * width * (1 if tied else 2) + width


def _tower(count: int, width: int, inner: int, gated: bool, vectors: int) -> Layers:
    return Layers(count, width, inner, width, width, gated, vectors, whole=count)


def _qwen2_5(config: Mapping[str, Any], text: Mapping[str, Any], vision: Mapping[str, Any]) -> ModelSize:
    width, inner, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    merge, side = vision["spatial_merge_size"] ** 2, vision["patch_size"]
    tower = Layers(
        vision["depth"], width, inner, width, width, True, 2 * width + 4 * width + 2 * inner + width,
        window=(vision["window_size"] // side) ** 2, whole=len(vision["fullatt_block_indexes"]),
    )  # fmt: skip
    wide = merge * width
    language, rest = _language(text, config["tie_word_embeddings"])
    projector = width + wide * wide + wide + wide * out + out
    patch = vision["in_channels"] * vision["temporal_patch_size"] * side**2 * width
    return ModelSize(
        tower, language, merge, 0, patch, projector, rest, 2 * patch, 2 * wide * (wide + out), text["vocab_size"]
    )


def _qwen3(config: Mapping[str, Any], text: Mapping[str, Any], vision: Mapping[str, Any]) -> ModelSize:
    width, inner, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    merge = vision["spatial_merge_size"] ** 2
    tower = _tower(vision["depth"], width, inner, False, 4 * width + 4 * width + inner + width)
    wide, deep = merge * width, len(vision["deepstack_visual_indexes"])
    merger = wide * wide + wide + wide * out + out
    patch = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2 * width
    language, rest = _language(text, config["tie_word_embeddings"])
    return ModelSize(
        tower, language, merge, 0, patch + width + vision["num_position_embeddings"] * width,
        merger + 2 * width + deep * (merger + 2 * wide), rest, 2 * patch, (1 + deep) * 2 * wide * (wide + out),
        text["vocab_size"],
    )  # fmt: skip


def _llava(config: Mapping[str, Any], text: Mapping[str, Any], vision: Mapping[str, Any]) -> ModelSize:
    width, inner, side = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    tower = _tower(vision["num_hidden_layers"], width, inner, False, 4 * width + 4 * width + inner + width)
    patch = 3 * side**2 * width
    embeddings = patch + width + (vision["image_size"] // side) ** 2 * width + 2 * width
    language, rest = _language(text, config["tie_word_embeddings"])
    out = language.width
    projector = width * out + out + out * out + out + out
    return ModelSize(
        tower, language, 1, -1, embeddings, projector, rest, 2 * patch, 2 * out * (width + out), text["vocab_size"]
    )


def _internvl(config: Mapping[str, Any], text: Mapping[str, Any], vision: Mapping[str, Any]) -> ModelSize:
    width, inner = vision["hidden_size"], vision["intermediate_size"]
    biases = 3 * width if vision["attention_bias"] else 0
    tower = _tower(vision["num_hidden_layers"], width, inner, False, 6 * width + biases + width + inner + width)
    (high, wide), (rows, columns) = vision["image_size"], vision["patch_size"]
    patch = 3 * rows * columns * width
    embeddings = patch + width + (high // rows * (wide // columns) + 1) * width + width
    merge = round(1 / config["downsample_ratio"]) ** 2
    joined = merge * width
    language, rest = _language(text, config["tie_word_embeddings"])
    out = language.width
    projector = 2 * joined + joined * out + out + out * out + out
    return ModelSize(
        tower, language, merge, 1, embeddings, projector, rest, 2 * patch, 2 * out * (joined + out), text["vocab_size"]
    )


@dataclass(frozen=True)
class SampleSize:
    """A dialogue in tokens.

    Attributes:
        image_tokens: of each image in the language model.
        images: number of them.
        text: tokens of the text, answers included.
        learned: tokens of the answers.
    """

    image_tokens: int
    images: int = 2
    text: int = 60
    learned: int = 20

    @property
    def tokens(self) -> int:
        return self.images * self.image_tokens + self.text


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned.

    Attributes:
        language: as ``tune.language``.
        rank: of the adapters, with language=lora.
        tower, projector: whether they are trained.
        checkpointing: activations are computed again in the backward pass.
        micro_batch: samples on one GPU at once.
        gpus: number of them.
        zero_stage: of DeepSpeed; 0: every GPU holds everything.
    """

    language: Literal["lora", "full", "frozen"] = "lora"
    rank: int = 64
    tower: bool = False
    projector: bool = False
    checkpointing: bool = True
    micro_batch: int = 1
    gpus: int = 1
    zero_stage: int = 0


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU: weights (with the bfloat16 copies of those that are trained), gradients, Adam's averages,
    activations, and what CUDA itself takes."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    cuda: float = CUDA

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.cuda


def trained_parameters(model: ModelSize, tuning: Tuning) -> int:
    """Number of trained parameters, adapters included."""
    parts = model.parts()
    chosen = [parts[name] for name in ("tower", "projector") if getattr(tuning, name)]
    if tuning.language == "full":
        chosen.append(parts["language"])
    return sum(chosen) + (model.lora(tuning.rank) if tuning.language == "lora" else 0)


def memory(model: ModelSize, tuning: Tuning, sample: SampleSize) -> Memory:
    """The memory of one GPU that a training step takes."""
    trained = trained_parameters(model, tuning)
    adapters = model.lora(tuning.rank) if tuning.language == "lora" else 0
    frozen = model.parameters + adapters - trained
    shares = {stage: tuning.gpus if tuning.zero_stage >= stage else 1 for stage in (1, 2, 3)}
    # ZeRO-3 gathers what is needed next: two layers, and the largest single matrix.
    largest = 2 * model.language.matrices + model.vocabulary * model.language.width
    gathered = TRAINED * largest if shares[3] > 1 else COPY * trained
    return Memory(
        weights=(frozen * FROZEN + trained * TRAINED) / shares[3] + gathered,
        gradients=trained * GRADIENT / shares[2],
        optimizer=trained * MOMENTS / shares[1],
        activations=tuning.micro_batch * _activations(model, tuning, sample),
    )


def _activations(model: ModelSize, tuning: Tuning, sample: SampleSize) -> float:
    """Bytes for one sample."""
    full, lora = tuning.language == "full", tuning.language == "lora"
    language = _kept(model.language, tuning.checkpointing, full, tuning.rank if lora else 0) * sample.tokens
    language += sample.learned * model.vocabulary * (2 + 4 + 4)  # logits in bfloat16, in float32, and the gradient
    patches = sample.images * _patches(model, sample)[0]
    if not tuning.tower:  # nothing of a frozen tower is kept: one layer at a time
        return max(model.tower.kept() * patches, language)
    return language + _kept(model.tower, tuning.checkpointing, True, 0) * patches


def _kept(layers: Layers, checkpointing: bool, trained: bool, rank: int) -> int:
    """Bytes of one token in all layers."""
    layer = layers.kept(rank, dropout=True, trained=trained)
    return layers.count * (4 if trained else 2) * layers.width + layer if checkpointing else layers.count * layer


def step_operations(model: ModelSize, tuning: Tuning, sample: SampleSize) -> float:
    """Operations of forward and backward pass for one sample; adapters and the optimizer are left out."""
    language = model.language.operations(sample.tokens, True, tuning.language == "full", tuning.checkpointing)
    head = _head(model, sample) * (2 + (tuning.language == "full"))
    again = tuning.checkpointing and tuning.tower
    return _images(model, sample, tuning.tower, tuning.projector, again) + language + head


def generation_operations(model: ModelSize, sample: SampleSize) -> float:
    """Operations of a greedy answer of ``learned`` tokens, its prompt read once."""
    return _images(model, sample) + model.language.operations(sample.tokens) + _head(model, sample)


def _head(model: ModelSize, sample: SampleSize) -> float:
    return 2 * model.vocabulary * model.language.width * sample.learned


def _images(
    model: ModelSize, sample: SampleSize, tower: bool = False, projector: bool = False, again: bool = False
) -> float:
    """Operations of tower and projector, with the backward pass of what is trained."""
    patches, tokens = _patches(model, sample)
    embedding = model.embedding * tokens * model.patches * (1 + tower)
    projection = model.projection * tokens * (1 + (tower or projector) + projector)
    return sample.images * (embedding + model.tower.operations(patches, tower, tower, again) + projection)


def _patches(model: ModelSize, sample: SampleSize) -> tuple[int, int]:
    """Tokens of an image in the tower, and those of them in the language model that come from patches."""
    tokens = sample.image_tokens + min(0, model.more_patches)
    return tokens * model.patches + max(0, model.more_patches), tokens


def hours(operations: float, samples: float, peak: float, gpus: int = 1, utilisation: float = 0.4) -> float:
    """Hours of training.

    Args:
        operations: of a sample (:func:`step_operations`).
        samples: of the whole training.
        peak: of one GPU in operations a second.
        utilisation: share of the peak that is reached.
    """
    return operations * samples / (peak * gpus * utilisation) / 3600
