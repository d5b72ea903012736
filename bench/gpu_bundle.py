"""One archive for a machine with a GPU and without a way to a package registry: wheels, machine code, and this source.

    python -m bench.gpu_bundle --out bundle [--extra cuda13] [--architectures sm_90] [--part-mib 60]

Made where there is a registry, by the same version of Python and kind of machine. It lies in parts of less than 64 MiB:

    cat bundle/minidl-gpu.tar.* | tar x && sh minidl-gpu/run.sh

unpacks it and runs ``bench/gpu.py``; what follows ``run.sh`` is handed on to that. Needs no GPU itself.

    python -m bench.gpu_bundle --slim [--python 3.12] --out bundle

is for a machine that has PyTorch with CUDA 13, NumPy, SciPy, Numba and CuPy: the wheels that are missing there, for its
Python, and this source. It is made by any Python, and its ``run.sh CALL FOLDER`` is a call of ``docs/gpu.md``.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.support.bundle import NAME, RUN, SLIM, download, pack
from bench.support.cuda_calls import capability_of

ROOT = Path(__file__).resolve().parent.parent
KEPT = ("minidl", "models", "bench", "tests", "examples", "train.py", "pyproject.toml", "README.md", "LICENSE")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_bundle", description="An archive for a GPU machine.")
    parser.add_argument("--out", type=Path, default=Path("bundle"))
    parser.add_argument("--extra", default="cuda13", choices=("cuda12", "cuda12-pascal", "cuda13"))
    parser.add_argument("--architectures", nargs="*", default=["sm_90"], help="for which kernels are compiled")
    parser.add_argument("--part-mib", type=int, default=60)
    parser.add_argument("--slim", action="store_true", help="only what a machine with PyTorch for CUDA 13 lacks")
    parser.add_argument("--python", default="3.12", help="with --slim: that machine's (default: 3.12)")
    args = parser.parse_args()
    if args.slim:
        with tempfile.TemporaryDirectory() as folder:
            download(Path(folder), (ROOT / "pyproject.toml").read_text(encoding="utf-8"), args.python)
            contents = {"wheels": Path(folder), **{f"source/{name}": ROOT / name for name in KEPT}}
            parts = pack(args.out, contents, SLIM, args.part_mib << 20)
        print(f"{len(parts)} parts: cat {args.out}/{NAME}.tar.* | tar x && sh {NAME}/run.sh 1 FOLDER")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        wheels, cubins = Path(folder, "wheels"), Path(folder, "cubins")
        subprocess.run([sys.executable, "-m", "pip", "download", "-d", str(wheels), "setuptools>=77",
                        f"{ROOT}[{args.extra},test]"], check=True)
        for own in wheels.glob("minidl-*"):  # the source goes along
            own.unlink()
        cubins.mkdir()
        for architecture in args.architectures:
            compile_into(cubins, architecture)
        contents = {"wheels": wheels, "cache/minidl/cubins": cubins,
                    **{f"source/{name}": ROOT / name for name in KEPT}}
        parts = pack(args.out, contents, RUN.format(extra=args.extra), args.part_mib << 20)
    print(f"{len(parts)} parts of at most {args.part_mib} MiB: cat {args.out}/{NAME}.tar.* | tar x && sh {NAME}/run.sh")
    return 0


def compile_into(folder: Path, architecture: str) -> None:
    """Compile all CUDA kernels that the check needs into ``folder``, with the compilers of this Python environment."""
    from bench.gpu_check.sizes import FULL
    from bench.gpu_check.warm import every_source
    from minidl.kernels.cuda.compile import Compiler

    compiler = Compiler(capability_of(architecture), folder)
    for source in every_source(FULL):
        compiler.cubin(source)


if __name__ == "__main__":
    sys.exit(main())
