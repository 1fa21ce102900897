"""Where a pair changed, on the grid of patches: where the two images disagree, and where the caption's words look.

For patch p of the image tokenizer's grid:

    d_p = |b_p - a_p| / max_q (|b_q| + |a_q|)      disagreement, in [0, 1]
    s_p = A_p / max_q A_q                          looks, in [0, 1]
    map_p = d_p (1 + s_p) / 2                      in [0, 1]

b and a are the tokenizer's features of the two images, each less its own image's mean over the patches, so that a light
that shifts all patches alike disagrees nowhere. A is the decoder's cross-attention to the latent procedure while it
says the best caption, mean over layers, heads and words (not the end token), summed over the frames. The scale is not
stretched to the content of a pair: where nothing changed the map is dark, not noise made bright.

Features rather than the tokens they are quantised to: a token differs or does not, and does so in many patches for the
noise of the renderer alone. `jobs/evaluate.py change_maps=true` holds the map against true masks, beside baselines.

B pairs, G frames, P patches, Z features, T words, S = F * P positions of the latent procedure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idc.data.text import SpecialIds
from idc.decoding import Decoded
from idc.systems.procap.text_decoder import TextDecoder


def disagreement(frames_BGPZ: Tensor) -> Tensor:
    """d of the first and the last frame, (B, P)."""
    ends = frames_BGPZ[:, [0, -1]].float()
    ends = ends - ends.mean(dim=2, keepdim=True)
    most = ends.norm(dim=-1).sum(dim=1).amax(dim=1, keepdim=True)
    return (ends[:, 1] - ends[:, 0]).norm(dim=-1) / most.clamp_min(1e-12)


def looks(decoder: TextDecoder, procedure_BSD: Tensor, said: Decoded, patches: int, special: SpecialIds) -> Tensor:
    """s of the captions ``said``, one a pair, (B, P): one pass over the words that are known by now."""
    ids_BT = said.ids
    begin = torch.full_like(ids_BT[:, :1], special.bos)
    attended_BTS = decoder.attended(torch.cat([begin, ids_BT[:, :-1]], dim=1), procedure_BSD)
    words_BT = (torch.arange(ids_BT.shape[1], device=ids_BT.device) < said.lengths.unsqueeze(1)) & (
        ids_BT != special.eos
    )
    words_BT[:, 0] |= ~words_BT.any(dim=1)  # a caption of no words: where the end token looks
    total_BS = (attended_BTS * words_BT.unsqueeze(-1)).sum(dim=1)
    patches_BP = total_BS.unflatten(1, (-1, patches)).sum(dim=1)
    return patches_BP / patches_BP.amax(dim=1, keepdim=True)


def combine(disagreement_BP: Tensor, looks_BP: Tensor) -> Tensor:
    """The map, (B, P)."""
    return disagreement_BP * (1 + looks_BP) / 2
