"""PSNR, SSIM and contact sheets."""

from __future__ import annotations

import numpy as np
import pytest

from idc.vision.image_quality import contact_sheet, psnr_ssim
from tests.vision.scenes import scene


def test_psnr_and_ssim_of_known_images_and_the_layout_of_a_contact_sheet() -> None:
    image = scene("red")
    assert psnr_ssim(image, image) == (100.0, 1.0)
    noisy = np.clip(image.astype(int) + 10, 0, 255).astype(np.uint8)
    psnr, ssim = psnr_ssim(image, noisy)
    assert psnr == pytest.approx(20 * np.log10(255 / 10), abs=0.01)
    assert 0.9 < ssim < 1
    sheet = contact_sheet([np.full((2, 3, 3), n, np.uint8) for n in range(4)], rows=2)
    assert sheet[:, :, 0].tolist() == [[0] * 3 + [2] * 3] * 2 + [[1] * 3 + [3] * 3] * 2
