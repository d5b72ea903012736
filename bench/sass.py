"""``python -m bench.sass``: machine instructions an element of the CUDA kernels that memory should bound. Needs no GPU.

    python -m bench.sass [sm_80 sm_90] > bench/results/sass.md

For each kernel: instructions and bytes an element, the time of either on a GPU of that architecture (A100, H100; P100
for sm_60, under CUDA 12), and how much longer it takes than memory needs. A scheduler is taken to issue in 60% of its
cycles. Exit status 1 if a kernel takes more than 1.3 times its memory's time in float32, 1.5 times in bfloat16 (but
for ``SLOW``). Needs an extra (cuda12, cuda13) and nvidia-cuda-nvdisasm.
"""

import argparse
import sys

from bench.support.cuda_calls import capability_of
from bench.support.sass import ALLOWED, allowed, counts, disassembler
from minidl.device.cuda.opening import BF16_CAPABILITY

TITLE = """\
# Instructions of the kernels that memory should bound

By `python -m bench.sass`, on maps of ResNet-50 at batch 256, channels-last, on rows of BERT, and on parameters.
Picoseconds an element, over the whole GPU; a scheduler is taken to issue in 60% of its cycles. In general: instructions
of the kernel for any layout, which is the reference, and what runs where operands are not whole groups of 16 bytes."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sass", description="Count the instructions of CUDA kernels.")
    parser.add_argument("architectures", nargs="*", default=["sm_80", "sm_90"])
    args = parser.parse_args()
    program = disassembler()
    if program is None:
        print("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm", file=sys.stderr)
        return 2
    print(TITLE)
    slow = 0
    for architecture in args.architectures:
        capability = capability_of(architecture)
        print(f"\n## {architecture}\n\n| operation | kernel | dtype | instructions | in general | registers | bytes | "
              "issue ps | memory ps | ratio |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|")
        for dtype in ALLOWED:
            if dtype == "bfloat16" and capability < BF16_CAPABILITY:
                continue  # which such a GPU is refused
            for c, general in zip(counts(capability, dtype, program), counts(capability, dtype, program, general=True),
                                  strict=True):
                slow += c.ratio > allowed(capability, c.operation, dtype)
                print(f"| {c.operation} | {c.kernel} | {c.dtype} | {c.instructions:.1f} | "
                      f"{general.instructions:.1f} | {c.registers} | {c.moved:.2f} | {1e12 * c.issue_s:.2f} | "
                      f"{1e12 * c.memory_s:.2f} | {c.ratio:.2f} |", flush=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
