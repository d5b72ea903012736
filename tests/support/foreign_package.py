"""Write a third-party package as pip would install it: a module, and metadata with entry points."""

from pathlib import Path


def install(folder: Path, *, package: str, source: str, entry_points: dict[str, dict[str, str]]) -> None:
    """Write the module ``package`` and its metadata; ``entry_points``: group -> name -> "module:attribute"."""
    (folder / f"{package}.py").write_text(source)
    metadata = folder / f"{package}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
        for group, names in entry_points.items()))
