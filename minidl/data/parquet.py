"""Images in Parquet files, as on Hugging Face: columns ``image`` (bytes, or {bytes, path}) and ``label``.

A row of a Parquet file cannot be read alone, but an epoch needs all rows in any order: so the images are copied once,
one group of rows at a time, into a temporary file of the same total size. pyarrow is imported when the data is read.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any

from minidl.data.source import MOST_CLASSES, MOST_FILE_BYTES, BadFile, BadFiles, Descriptor, Extent, Packed, as_bad_file
from minidl.errors import UserError
from minidl.outside.reading import open_file

IMAGE, LABEL = "image", "label"
MOST_GROUP_BYTES = 4 << 30  # of a group of rows, unpacked; a larger one is refused


def read_parquet(paths: Sequence[Path], bad: BadFiles) -> Packed:
    """Return the images and labels in the rows of all files, in the order of ``paths``, as one ``ImageSource``.

    Raises BadFile for damage, and for a row without an image and a class. If bad files are skipped, such a row is left
    out, and of a damaged file the rows from the damage on. Raises UserError without pyarrow, or without a good row.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - only to see if it is installed
    except ImportError:
        raise UserError('Parquet files need pyarrow, which is not installed: pip install "minidl[parquet]"') from None
    labels: list[int] = []
    names: list[tuple[str, int]] = []  # (name, bytes) of each copied image
    with TemporaryFile() as spool:
        for path in paths:
            try:
                for name, image, label in _samples(path, bad):
                    spool.write(image)
                    names.append((name, len(image)))
                    labels.append(label)
            except BadFile as error:
                bad.note(error)
            except OSError as error:
                raise UserError(f"cannot copy the images of {path} to {gettempdir()}: "
                                f"{error.strerror or error}") from None
        spool.flush()
        file = Descriptor(os.dup(spool.fileno()))  # keeps the file until this one is closed too
    if not names:
        raise UserError(f"{paths[0]}: it has no rows with an image and a class")
    ends = accumulate(nbytes for _, nbytes in names)
    return Packed([Extent(file, end - nbytes, nbytes, name) for (name, nbytes), end in zip(names, ends, strict=True)],
                  labels)


def _samples(path: Path, bad: BadFiles) -> Iterator[tuple[str, bytes, int]]:
    """Yield (name, encoded image, class) of every row that has them; other rows are bad files."""
    for number, (image, label) in enumerate(_rows(path)):
        name = f"{path}:row {number}"
        data = image.get("bytes") if isinstance(image, dict) else image
        if type(data) is not bytes or not 0 < len(data) <= MOST_FILE_BYTES:
            bad.note(BadFile(name, "it has no image bytes"))
        elif type(label) is not int or not 0 <= label < MOST_CLASSES:
            bad.note(BadFile(name, f"its class is {label!r}, not a whole number from 0 to {MOST_CLASSES - 1}"))
        else:
            yield name, data, label


def _rows(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield (image, label) of every row, with one group of rows in memory at a time. Raises BadFile for damage."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with as_bad_file(path), open_file(path):  # refuses pipes, on which ParquetFile would block
            pass
        with ParquetFile(path, memory_map=True, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if IMAGE not in names or LABEL not in names:
                raise BadFile(str(path), f"columns {IMAGE} and {LABEL} are needed; it has {', '.join(names)}")
            for group in range(file.num_row_groups):
                claimed = file.metadata.row_group(group).total_byte_size
                if not 0 <= claimed <= MOST_GROUP_BYTES:
                    raise BadFile(str(path), f"group {group} claims {claimed} bytes; at most "
                                             f"{MOST_GROUP_BYTES} are read at once")
                table = file.read_row_group(group, columns=[IMAGE, LABEL])
                table.validate(full=True)
                yield from zip(table[IMAGE].to_pylist(), table[LABEL].to_pylist(), strict=True)
    # Parsers raise many types of errors; each means that the file is damaged or of another format.
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, pyarrow.ArrowException):
            raise BadFile(str(path), error.strerror or str(error)) from None
        why = str(error).partition("\n")[0]
        raise BadFile(str(path), f"not a Parquet file, or damaged: {why}") from None
