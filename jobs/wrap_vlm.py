"""Make an artifact of a vision-language model without training.

    python jobs/wrap_vlm.py base.source=Qwen/Qwen2.5-VL-3B-Instruct base.download=true out=runs/qwen/artifact
    python jobs/wrap_vlm.py base.source=/models/InternVL3-2B-hf out=runs/internvl/artifact generation.beams=4
    python jobs/wrap_vlm.py base.source=Qwen/Qwen2.5-VL-7B-Instruct out=runs/levir/artifact \\
        prompt.text="<image><image>Describe what was built between these two aerial images."

The artifact names the base model and holds its processor, the prompt and how captions are generated, but no weights.
The model must be on this machine; base.download=true asks the hub for it, after a line with its size.
"""

from __future__ import annotations

from idc.config import cli, command
from idc.next_command import after_calibration
from idc.systems.zeroshot.config import WrapJob


@command
def main() -> None:
    args = cli(WrapJob, __doc__, local=False)
    from idc.systems.zeroshot.wrap import wrap

    print(wrap(args.config, args.overwrite))
    print(f"next: {after_calibration(args.config.out)}")


if __name__ == "__main__":
    main()
