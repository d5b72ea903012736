"""The simulator against published training speeds, and forward against backward.

    python -m bench.calibration > bench/results/calibration.md

The constants of ``minidl/device/profiles.py`` were fixed by the p100 rows, before any policy was tuned. Operations run
separately here, as in the frameworks whose speeds were published: "fused" is the gain of the same step with fused
operations.
"""

from bench.support.steps import forward_seconds, unmanaged
from minidl.lab.training_step import SEPARATE

PUBLISHED = [  # device, model, batch, images/s without memory management
    ("sim:p100", "resnet50", 64, "219"), ("sim:p100", "resnet152", 64, "91.8"), ("sim:p100", "vgg16", 64, "154"),
    ("sim:p100-cudnn", "resnet50", 64, "219"), ("sim:p100-cudnn", "resnet152", 64, "91.8"),
    ("sim:p100-cudnn", "vgg16", 64, "154"),
    ("sim:v100", "resnet50", 64, "367"), ("sim:a100", "resnet50", 256, "938-1066"),
    ("sim:h100", "resnet50", 256, "1753-1898"), ("sim:h200", "resnet50", 256, "2200 (estimate)"),
]


def main() -> None:
    print("# Calibration\n\nMade by `python -m bench.calibration`.\n")
    print("| device | model | batch | published images/s | modelled | ratio | fused |\n|---|---|--:|--:|--:|--:|--:|")
    for device, name, batch, published in PUBLISHED:
        speed = unmanaged(name, batch, device=device, switches=SEPARATE).images_per_second
        fused = unmanaged(name, batch, device=device).images_per_second
        first = float(published.split("-")[0].split()[0])
        print(f"| {device} | {name} | {batch} | {published} | {speed:.1f} | {speed / first:.3f} | {fused:.1f} |")
    forward, total = forward_seconds("resnet50", 64)
    share = 100 * forward / (forward + total)
    print(f"\nReplaying every forward call of ResNet-50 once would cost {share:.1f}% of the unmanaged speed (forward "
          f"{forward * 1e3:.1f} ms of {total * 1e3:.1f} ms at batch 64); wanted: 25 +- 3%.")


if __name__ == "__main__":
    main()
