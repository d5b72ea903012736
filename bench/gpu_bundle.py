"""One archive for a machine with a GPU and without a way to a package registry: wheels, machine code, and this source.

    python -m bench.gpu_bundle --out bundle [--extra cuda13] [--architectures sm_90] [--part-mib 60]

Made where there is a registry, by the same version of Python and kind of machine. It lies in parts of less than 64 MiB:

    cat bundle/minidl-gpu.tar.* | tar x && sh minidl-gpu/run.sh

unpacks it and runs ``bench/gpu.py``; what follows ``run.sh`` is handed on to that. Needs no GPU itself.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parent.parent
NAME = "minidl-gpu"
KEPT = ("minidl", "bench", "tests", "examples", "train.py", "pyproject.toml", "README.md", "LICENSE")
RUN = """\
#!/bin/sh
# Install what lies beside this file, from no registry, and check the GPU.
set -e
cd "$(dirname "$0")"
python3 -m venv environment
environment/bin/pip install --no-index --find-links wheels setuptools
environment/bin/pip install --no-index --find-links wheels --no-build-isolation "./source[{extra},test]"
XDG_CACHE_HOME="$PWD/cache" environment/bin/python source/bench/gpu.py "$@"
"""


class Parts(io.RawIOBase):
    """A file that is written into files of at most ``nbytes``, ``name.00``, ``name.01`` and so on."""

    def __init__(self, folder: Path, name: str, nbytes: int) -> None:
        self.paths: list[Path] = []
        self._folder, self._name, self._nbytes = folder, name, nbytes
        self._left = 0
        self._file: BinaryIO | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override] # of what a tar file gives
        """Write all of it, over as many parts as that takes."""
        view, written = memoryview(data), 0
        while written < len(view):
            if not self._left:
                self._next()
            assert self._file is not None
            piece = view[written:written + self._left]
            self._file.write(piece)
            written, self._left = written + len(piece), self._left - len(piece)
        return written

    def close(self) -> None:
        """End the last part."""
        if self._file is not None:
            self._file.close()
        super().close()

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.paths.append(self._folder / f"{self._name}.{len(self.paths):02}")
        self._file, self._left = self.paths[-1].open("wb"), self._nbytes


def pack(out: Path, contents: dict[str, Path], extra: str, nbytes: int) -> list[Path]:
    """The archive in parts: folders and files by their places in it, and the script that runs it."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{NAME}.tar.*"):
        old.unlink()
    parts = Parts(out, f"{NAME}.tar", nbytes)
    with parts, tarfile.open(fileobj=parts, mode="w|") as archive:
        for place, path in contents.items():
            archive.add(path, f"{NAME}/{place}", filter=_plain)
        script = RUN.format(extra=extra).encode()
        described = tarfile.TarInfo(f"{NAME}/run.sh")
        described.size, described.mode = len(script), 0o755
        archive.addfile(described, io.BytesIO(script))
    return parts.paths


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What belongs into the archive, as nobody's in particular."""
    if "__pycache__" in member.name or "/bench/results/gpu" in member.name:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


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
            digits = architecture.removeprefix("sm_")
            compile_into(cubins, (int(digits[:-1]), int(digits[-1])))
        contents = {"wheels": wheels, "cache/minidl/cubins": cubins,
                    **{f"source/{name}": ROOT / name for name in KEPT}}
        parts = pack(args.out, contents, args.extra, args.part_mib << 20)
    print(f"{len(parts)} parts of at most {args.part_mib} MiB: cat {args.out}/{NAME}.tar.* | tar x && sh {NAME}/run.sh")
    return 0


def compile_into(folder: Path, capability: tuple[int, int]) -> None:
    """All kernels that the check needs, as the compilers of this environment make them."""
    from minidl.kernels.cuda.compile import Compiler
    from minidl.testing.gpu_check.sizes import FULL
    from minidl.testing.gpu_check.warm import sources

    compiler = Compiler(capability, folder)
    for source in dict.fromkeys(s for dtype in FULL.dtypes for s in sources(dtype, FULL.ops_block)):
        compiler.cubin(source)


if __name__ == "__main__":
    sys.exit(main())
