"""An archive in parts, of wheels, machine code and sources, with the script that installs it and checks the GPU."""

import io
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import BinaryIO

NAME = "minidl-gpu"
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
SLIM = """\
#!/bin/sh
# Install the wheels that lie beside this file into a folder of their own, and make a call of the GPU check with them
# and the packages that this machine has (docs/gpu.md):  sh run.sh CALL FOLDER [flags of bench/gpu.py]
set -e
here=$(cd "$(dirname "$0")" && pwd)
python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$here/site" "$here"/wheels/*.whl
# numba-cuda takes the place of numba.cuda by a .pth file, which is read in folders of packages alone.
echo "import site; site.addsitedir('$here/site')" > "$here/site/sitecustomize.py"
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}"
exec sh "$here/source/bench/gpu_day.sh" "$@"
"""


# What a machine with PyTorch, NumPy, Numba and CuPy lacks; versions as the extra cuda13 has them.
MISSING = ("numba-cuda", "cuda-core", "cuda-pathfinder", "nvidia-cudnn-frontend", "msgspec", "ml_dtypes", "tqdm",
           "tabulate")
PLATFORMS = tuple(f"{name}_x86_64" for name in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17",
                                                "manylinux2014"))


class Parts(io.RawIOBase):
    """A file that is written into files of at most ``nbytes``, ``name.00``, ``name.01`` and so on."""

    def __init__(self, folder: Path, name: str, nbytes: int) -> None:
        self.paths: list[Path] = []
        self._folder, self._name, self._nbytes = folder, name, nbytes
        self._left = 0
        self._file: BinaryIO | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override] # of what a tar file gives
        """Write all of the data, over as many parts as it fills; return its length."""
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
        """Close the last part."""
        if self._file is not None:
            self._file.close()
        super().close()

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.paths.append(self._folder / f"{self._name}.{len(self.paths):02}")
        self._file, self._left = self.paths[-1].open("wb"), self._nbytes


def pack(out: Path, contents: dict[str, Path], script: str, nbytes: int) -> list[Path]:
    """Write an archive of files and folders, by their paths in it, and of the script that runs it; return its parts."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{NAME}.tar.*"):
        old.unlink()
    parts = Parts(out, f"{NAME}.tar", nbytes)
    with parts, tarfile.open(fileobj=parts, mode="w|") as archive:
        for place, path in contents.items():
            archive.add(path, f"{NAME}/{place}", filter=_plain)
        text = script.encode()
        described = tarfile.TarInfo(f"{NAME}/run.sh")
        described.size, described.mode = len(text), 0o755
        archive.addfile(described, io.BytesIO(text))
    return parts.paths


def download(folder: Path, project: str, python: str) -> None:
    """Download the wheels of ``MISSING`` for a version of Python such as ``3.12``. project: the text of pyproject.toml.
    """
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:",
                    "--implementation", "cp", "--python-version", python,
                    *(word for name in PLATFORMS for word in ("--platform", name)), "-d", str(folder),
                    *wanted(project)], check=True)


def wanted(project: str) -> list[str]:
    """Return the requirements of ``MISSING`` with a pyproject.toml's bounds for them, without their own extras."""
    facts = tomllib.loads(project)["project"]
    bounds = {}
    for line in (*facts["dependencies"], *facts["optional-dependencies"]["cuda13"]):
        found = re.fullmatch(r"([\w.-]+)(\[.*\])?(.*)", line)
        assert found is not None, line
        bounds[found[1]] = found[3]
    return [name + bounds.get(name, "") for name in MISSING]


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the archive's entry for a file without its owner; this is a filter of ``tarfile``."""
    if "__pycache__" in member.name or "/bench/results/gpu" in member.name:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
