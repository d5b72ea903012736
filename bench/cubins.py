"""``python -m bench.cubins``: compile every CUDA kernel offline, and print what its blocks take. Needs no GPU.

    python -m bench.cubins [sm_75 sm_80 sm_90 ...] [--all] [--fresh]

For each architecture one line a source: registers of a thread, shared bytes of a block, stack and spilled bytes of a
thread (both should be 0), threads of a block, and how many of them an SM holds at most, by registers. Without ``--all``
only the largest of each device function; ``--fresh`` compiles anew what is kept on disk. Exit status 1 if anything
spills. CUDA 12's libraries compile for sm_50 to sm_90, those of CUDA 13 for sm_75 to sm_120.
"""

import argparse
import sys

from bench.support.cuda_calls import PRECISIONS, capability_of, sources
from minidl.kernels.cuda.compile import Compiler, Cubin
from minidl.kernels.cuda.launch import DeviceFunction

REGISTERS = 65536  # of an SM
THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536}  # that an SM holds at most; 2048 if not named


def threads_of_sm(source: DeviceFunction, cubin: Cubin, capability: tuple[int, int]) -> int:
    """How many threads an SM holds at most, as far as registers go: they are given out to warps by 256."""
    registers = -(-max(cubin.registers, 1) * 32 // 256) * 256
    return min(THREADS.get(capability, 2048), REGISTERS // (registers * (source.threads // 32)) * source.threads)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cubins", description="Compile every CUDA kernel offline.")
    parser.add_argument("architectures", nargs="*", default=["sm_75", "sm_80", "sm_90"])
    parser.add_argument("--all", action="store_true", help="a line for every source, not only for the largest")
    parser.add_argument("--fresh", action="store_true", help="compile anew what is kept on disk")
    args = parser.parse_args()
    spills = 0
    for architecture in args.architectures:
        compiler = Compiler(capability_of(architecture), keep=not args.fresh)
        lines = [(source, compiler.cubin(source)) for dtype in PRECISIONS for source in sources(dtype)]
        lines = list(dict(lines).items())
        spilling = [source for source, cubin in lines if cubin.stack_bytes or cubin.spill_bytes]
        spills += len(spilling)
        print(f"{architecture}: {len(lines)} sources, {len(spilling)} with a stack or spills")
        print(f"{'registers':>9} {'shared':>7} {'stack':>6} {'spill':>6} {'threads':>7} {'of an SM':>8}  source")
        largest: dict[str, tuple[DeviceFunction, Cubin]] = {}
        for source, cubin in sorted(lines, key=lambda line: -line[1].registers):
            largest.setdefault(source.name.partition("(")[0], (source, cubin))
        for source, cubin in lines if args.all else largest.values():
            print(f"{cubin.registers:9} {cubin.shared_bytes:7} {cubin.stack_bytes:6} {cubin.spill_bytes:6} "
                  f"{source.threads:7} {threads_of_sm(source, cubin, compiler.capability):8}  {source.name}")
    return 1 if spills else 0


if __name__ == "__main__":
    sys.exit(main())
