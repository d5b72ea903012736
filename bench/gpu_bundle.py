"""One archive for a machine with a GPU and without a way to a package registry: wheels, machine code, and this source.

    python -m bench.gpu_bundle --out bundle [--extra cuda13] [--architectures sm_90] [--part-mib 60]

Made where there is a registry, by the same version of Python and kind of machine. It lies in parts of less than 64 MiB:

    cat bundle/minidl-gpu.tar.* | tar x && sh minidl-gpu/run.sh

unpacks it and runs ``bench/gpu.py``; what follows ``run.sh`` is handed on to that. Needs no GPU itself.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.support.bundle import NAME, pack
from bench.support.cuda_calls import capability_of

ROOT = Path(__file__).resolve().parent.parent
KEPT = ("minidl", "bench", "tests", "examples", "train.py", "pyproject.toml", "README.md", "LICENSE")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_bundle", description="An archive for a GPU machine.")
    parser.add_argument("--out", type=Path, default=Path("bundle"))
    parser.add_argument("--extra", default="cuda13", choices=("cuda12", "cuda12-pascal", "cuda13"))
    parser.add_argument("--architectures", nargs="*", default=["sm_90"], help="for which kernels are compiled")
    parser.add_argument("--part-mib", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels, cubins = Path(folder, "wheels"), Path(folder, "cubins")
        subprocess.run([sys.executable, "-m", "pip", "download", "-d", str(wheels), "setuptools>=77",
                        f"{ROOT}[{args.extra},test]"], check=True)
        for own in wheels.glob("minidl-*"):  # the source goes along
            own.unlink()
        cubins.mkdir()
        for architecture in args.architectures:
            compile_into(cubins, capability_of(architecture))
        contents = {"wheels": wheels, "cache/minidl/cubins": cubins,
                    **{f"source/{name}": ROOT / name for name in KEPT}}
        parts = pack(args.out, contents, args.extra, args.part_mib << 20)
    print(f"{len(parts)} parts of at most {args.part_mib} MiB: cat {args.out}/{NAME}.tar.* | tar x && sh {NAME}/run.sh")
    return 0


def compile_into(folder: Path, capability: tuple[int, int]) -> None:
    """All kernels that the check needs, as the compilers of this environment make them."""
    from bench.gpu_check.sizes import FULL
    from bench.gpu_check.warm import every_source
    from minidl.kernels.cuda.compile import Compiler

    compiler = Compiler(capability, folder)
    for source in every_source(FULL):
        compiler.cubin(source)


if __name__ == "__main__":
    sys.exit(main())
