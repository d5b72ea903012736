"""The archive for a GPU machine: parts that are small enough, and whole when they are put together."""

import io
import tarfile

from bench.support.bundle import NAME, pack


def test_the_parts_together_are_the_archive_and_none_is_too_large(tmp_path):
    (tmp_path / "wheels" / "__pycache__").mkdir(parents=True)
    (tmp_path / "wheels" / "a.whl").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "wheels" / "__pycache__" / "b.pyc").write_bytes(b"left out")
    (tmp_path / "LICENSE").write_text("words")
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{NAME}.tar.99").write_bytes(b"of an older one")
    parts = pack(out, {"wheels": tmp_path / "wheels", "source/LICENSE": tmp_path / "LICENSE"}, "cuda13", 10_000)
    assert sorted(out.iterdir()) == parts and len(parts) > 2
    sizes = [part.stat().st_size for part in parts]
    assert set(sizes[:-1]) == {10_000} and 0 < sizes[-1] <= 10_000
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
        assert set(archive.getnames()) == {f"{NAME}/{name}" for name in ("wheels", "wheels/a.whl", "source/LICENSE",
                                                                        "run.sh")}
        assert archive.extractfile(f"{NAME}/wheels/a.whl").read() == bytes(range(256)) * 100
        script = archive.extractfile(f"{NAME}/run.sh").read().decode()
    assert '"./source[cuda13,test]"' in script and "--no-index" in script
