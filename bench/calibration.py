"""The simulator against published training speeds, and forward against backward.

    python -m bench.calibration > bench/results/calibration.md

The constants of ``minidl/device/profiles.py`` were fixed by the p100 rows, before any policy was tuned. Operations run
separately here, as in the frameworks whose speeds were published: "fused" is what the same step gains by fused ones.
"""

from bench.steps import UNLIMITED, training_step, unmanaged
from minidl import Runtime
from minidl.memory.switches import Switches

SEPARATE = Switches(fused=False)

PUBLISHED = [  # device, model, batch, images/s without memory management
    ("sim:p100", "resnet50", 64, "219"), ("sim:p100", "resnet152", 64, "91.8"), ("sim:p100", "vgg16", 64, "154"),
    ("sim:p100-cudnn", "resnet50", 64, "219"), ("sim:p100-cudnn", "resnet152", 64, "91.8"),
    ("sim:p100-cudnn", "vgg16", 64, "154"),
    ("sim:v100", "resnet50", 64, "367"), ("sim:a100", "resnet50", 256, "938-1066"),
    ("sim:h100", "resnet50", 256, "1753-1898"), ("sim:h200", "resnet50", 256, "2200 (estimate)"),
]


def forward_seconds(name: str, batch: int) -> tuple[float, float]:
    """Device seconds of the forward calls that a replay may run, and of all calls, of one step."""
    with Runtime(device="sim:p100", policy="none", memory_budget=UNLIMITED, switches=SEPARATE) as runtime:
        step = training_step(runtime, name, batch)
        with runtime.iteration():
            step()
            calls = runtime.trace().calls
    end = next(i for i, call in enumerate(calls) if call.op == "cross_entropy") + 1
    return sum(call.seconds for call in calls[:end] if call.replayable), sum(call.seconds for call in calls)


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
