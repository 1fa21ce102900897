"""DeepSpeed's own settings."""

from __future__ import annotations

from typing import Any

from idc.config import layered
from idc.training.config import TrainConfig


def deepspeed_config(train: TrainConfig, world_size: int, fused: bool = False) -> dict[str, Any]:
    """DeepSpeed's own settings from ours; ``deepspeed_extra`` is merged last, section by section. ``fused``: torch's
    Adam in one pass over parameter, gradient and averages."""
    settings: dict[str, Any] = {
        "train_batch_size": train.batch_size,
        "train_micro_batch_size_per_gpu": train.micro_batch_size // world_size,
        "gradient_accumulation_steps": train.grad_accumulation,
        "gradient_clipping": train.clip_norm,
        "optimizer": {
            "type": "AdamW" if train.optimizer == "adamw" else "Adam",
            "params": {
                "betas": list(train.betas),
                "eps": train.eps,
                "torch_adam": True,  # DeepSpeed's own Adam is compiled on first use
                "adam_w_mode": train.optimizer == "adamw",
                **({"fused": True} if fused else {}),
            },
        },
        "zero_optimization": {"stage": train.zero_stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 60,
    }
    return layered(settings, train.deepspeed_extra)
