"""Small random detectors of transformers' classes, in folders like those of the hub."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    DetrConfig,
    DetrForObjectDetection,
    DetrImageProcessorPil,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessorPil,
    GroundingDinoProcessor,
    Owlv2Config,
    Owlv2ForObjectDetection,
    Owlv2ImageProcessorPil,
    Owlv2Processor,
    PreTrainedTokenizerFast,
    ResNetConfig,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrImageProcessorPil,
    RTDetrResNetConfig,
    SwinConfig,
)

LABELS = {0: "person", 1: "motorbike", 2: "N/A", 3: "tvmonitor", 4: "zebra"}
CLOSED, WITH_WORDS = ("rt_detr", "detr"), ("grounding-dino", "owlv2")
_VOCABULARY = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", ".", "a", "photo", "of", "zebra", "traffic", "light", "drum", "kit")


@cache
def detector_folder(kind: str) -> Path:
    """A detector whose scores and boxes depend much on the image; its classes are :data:`LABELS` or words."""
    torch.manual_seed(0)
    model, processor = _MAKERS[kind]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "class_embed" in name or "class_labels_classifier" in name or "score_head" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
                if name == "class_labels_classifier.bias":
                    parameter[[2, 5]] -= 5.0  # not a class, not an object
            elif kind == "detr" and ("query_position" in name or "decoder.layers" in name):
                parameter.copy_(torch.randn_like(parameter))  # else its queries are all alike
            elif "bbox_embed" in name or "bbox_predictor" in name or "box_head" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{kind}-"))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _rt_detr() -> tuple[Any, Any]:
    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrConfig(
        backbone_config=backbone, encoder_in_channels=[16, 24, 32], encoder_hidden_dim=32, encoder_ffn_dim=32,
        encoder_attention_heads=2, d_model=32, decoder_in_channels=[32, 32, 32], decoder_ffn_dim=32, decoder_layers=2,
        decoder_attention_heads=2, num_queries=20, num_denoising=0, anchor_image_size=None, id2label=LABELS,
    )  # fmt: skip
    return RTDetrForObjectDetection(config), RTDetrImageProcessorPil(size={"height": 64, "width": 64})


def _detr() -> tuple[Any, Any]:
    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = DetrConfig(
        backbone_config=backbone, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, num_queries=20,
        decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2, id2label=LABELS,
    )  # fmt: skip
    return DetrForObjectDetection(config), DetrImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 96})


def _tokenizer(limit: int) -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        model_max_length=limit, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def _grounding_dino() -> tuple[Any, Any]:
    backbone = SwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    text = BertConfig(
        vocab_size=len(_VOCABULARY), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    config = GroundingDinoConfig(
        backbone_config=backbone, text_config=text, d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2, num_queries=20, num_feature_levels=4,
        max_text_len=12, disable_custom_kernels=True,
    )  # fmt: skip
    images = GroundingDinoImageProcessorPil(size={"shortest_edge": 96, "longest_edge": 192})
    return GroundingDinoForObjectDetection(config), GroundingDinoProcessor(images, _tokenizer(12))


def _owlv2() -> tuple[Any, Any]:
    text = {
        "vocab_size": len(_VOCABULARY), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64,
        "patch_size": 16,
    }  # fmt: skip
    config = Owlv2Config(text_config=text, vision_config=vision, projection_dim=32)
    images = Owlv2ImageProcessorPil(size={"height": 64, "width": 64})
    return Owlv2ForObjectDetection(config), Owlv2Processor(images, _tokenizer(8))


_MAKERS = {
    "rt_detr": _rt_detr, "detr": _detr, "grounding-dino": _grounding_dino, "owlv2": _owlv2
}  # fmt: skip
