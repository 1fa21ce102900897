"""The change map of a pair on the grid of patches: disagreement of the images, and attention of the caption's words.

For patch p of the image tokenizer's grid:

    d_p = |b_p - a_p| / max_q (|b_q| + |a_q|)      disagreement, in [0, 1]
    s_p = A_p / max_q A_q                          attention, in [0, 1]
    map_p = d_p (1 + s_p) / 2                      in [0, 1]

b and a are the tokenizer's features of the two images, each less its own image's mean over the patches, so that a light
that shifts all patches equally causes no disagreement. A is the decoder's cross-attention to the latent procedure while
it generates the best caption, mean over layers, heads and words (not the end token), summed over the frames. The scale
is not stretched to the content of a pair: the map of an unchanged pair is dark, not amplified noise.

Features rather than the tokens they are quantised to: tokens are equal or not, and differ in many patches because of
the renderer's noise alone. `jobs/evaluate.py change_maps=true` scores the map against true masks, with baselines.

B pairs, G frames, P patches, Z features, T words, S = F * P positions of the latent procedure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idc.data.text import SpecialIds
from idc.nn.decoding import Decoded
from idc.systems.procap.text_decoder import TextDecoder


def disagreement(frames_BGPZ: Tensor) -> Tensor:
    """d of the first and the last frame, (B, P)."""
    ends = frames_BGPZ[:, [0, -1]].float()
    ends = ends - ends.mean(dim=2, keepdim=True)
    most = ends.norm(dim=-1).sum(dim=1).amax(dim=1, keepdim=True)
    # Two images of one colour each have no features left here: 0, not 0 / 0.
    return (ends[:, 1] - ends[:, 0]).norm(dim=-1) / most.clamp_min(1e-12)


def attention(
    decoder: TextDecoder, procedure_BSD: Tensor, captions: Decoded, patches: int, special: SpecialIds
) -> Tensor:
    """s of the generated captions, one per pair, (B, P), in one pass over their words."""
    ids_BT = captions.ids
    begin = torch.full_like(ids_BT[:, :1], special.bos)
    attended_BTS = decoder.attended(torch.cat([begin, ids_BT[:, :-1]], dim=1), procedure_BSD)
    words_BT = (torch.arange(ids_BT.shape[1], device=ids_BT.device) < captions.lengths.unsqueeze(1)) & (
        ids_BT != special.eos
    )
    words_BT[:, 0] |= ~words_BT.any(dim=1)  # a caption without words: the end token's attention
    total_BS = (attended_BTS * words_BT.unsqueeze(-1)).sum(dim=1)
    patches_BP = total_BS.unflatten(1, (-1, patches)).sum(dim=1)
    return patches_BP / patches_BP.amax(dim=1, keepdim=True)


def combine(disagreement_BP: Tensor, attention_BP: Tensor) -> Tensor:
    """The map, (B, P)."""
    return disagreement_BP * (1 + attention_BP) / 2
