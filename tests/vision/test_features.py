"""Frozen features: known photographs get their ImageNet class, and each model's vectors have its shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import skimage.data
import torch

from idc.data.images import resize_image
from idc.vision.features import ClipFeatures, Dinov2Features, EfficientNetLite0
from idc.vision.image_quality import contact_sheet, psnr_ssim
from idc.vision.pair_encoder.config import PairEncoderConfig
from tests.vision.scenes import scene
from tests.vision.tiny_models import save_tiny_clip, save_tiny_dinov2


@pytest.mark.parametrize(
    ("photograph", "classes"),
    [
        ("chelsea", {281, 282, 285}),  # a tabby cat: tabby, tiger cat, Egyptian cat
        ("coffee", {967, 968, 504}),  # an espresso in a cup: espresso, cup, coffee mug
        ("rocket", {657, 744, 812}),  # a rocket on its pad: missile, projectile, space shuttle
    ],
)
def test_efficientnet_lite0_recognises_photographs(photograph: str, classes: set[int]) -> None:
    image = getattr(skimage.data, photograph)()
    edge = min(image.shape[:2])
    top, left = (image.shape[0] - edge) // 2, (image.shape[1] - edge) // 2
    network, crop = EfficientNetLite0(224), image[top : top + edge, left : left + edge]
    head = torch.from_numpy(network([crop])[0])
    probabilities = network.model._fc(head).softmax(-1)[0].detach().numpy()
    assert probabilities.shape == (1000,)
    assert int(probabilities.argmax()) in classes
    pixels = torch.from_numpy(resize_image(crop, 224)).permute(2, 0, 1)[None].float()
    with torch.no_grad():
        expected = network.model((pixels - 127) / 128).softmax(-1)[0].numpy()
    assert np.allclose(probabilities, expected, atol=1e-5), "every block of the package's own forward pass, once"


def test_efficientnet_lite0_places_a_photograph_near_its_crop() -> None:
    cat, cup = skimage.data.chelsea(), skimage.data.coffee()
    images = [cat, cat[10:-10, 15:-15], cup, resize_image(cup, 100)]
    for vectors, width in zip(EfficientNetLite0(128)(images), (1280, 112 * 16), strict=True):
        assert vectors.shape == (4, width)
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        near = unit @ unit.T
        assert min(near[0, 1], near[2, 3]) > near[:2, 2:].max() + 0.1


def test_clip_features_are_the_projected_embedding(tmp_path: Path) -> None:
    shape = PairEncoderConfig(image_size=32, patch_size=16, width=16, heads=2, separate_layers=1, joint_layers=1,
                              text_width=16, text_layers=1, text_heads=2, embedding=24)  # fmt: skip
    model = save_tiny_clip(tmp_path, shape)
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    scaled = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    with torch.no_grad():
        expected = model.get_image_features(pixel_values=scaled)
    expected = expected if isinstance(expected, torch.Tensor) else expected.pooler_output
    found = ClipFeatures(str(tmp_path))([image, image[:20]])
    assert found.shape == (2, 24)
    assert np.allclose(found[0], expected[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("model", [ClipFeatures, Dinov2Features])
def test_a_folder_without_a_model_is_refused(model: type, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be loaded as"):
        model(str(tmp_path))
    save_tiny_dinov2(tmp_path / "dinov2")
    assert Dinov2Features(str(tmp_path / "dinov2"))([np.zeros((9, 14, 3), np.uint8)]).shape == (1, 16)


def test_psnr_and_ssim_of_known_images_and_the_layout_of_a_contact_sheet() -> None:
    image = scene("red")
    assert psnr_ssim(image, image) == (100.0, 1.0)
    noisy = np.clip(image.astype(int) + 10, 0, 255).astype(np.uint8)
    psnr, ssim = psnr_ssim(image, noisy)
    assert psnr == pytest.approx(20 * np.log10(255 / 10), abs=0.01)
    assert 0.9 < ssim < 1
    sheet = contact_sheet([np.full((2, 3, 3), n, np.uint8) for n in range(4)], rows=2)
    assert sheet[:, :, 0].tolist() == [[0] * 3 + [2] * 3] * 2 + [[1] * 3 + [3] * 3] * 2
