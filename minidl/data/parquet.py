"""Images in Parquet files, as Hugging Face keeps them: a column ``image`` of bytes (or of {bytes, path}), and ``label``.

A row of a Parquet file cannot be read alone, and an epoch wants all rows in any order: so the images are copied once,
group of rows by group, into a temporary file. That takes as much room on the disk as they have. pyarrow is imported when
the data is read.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from minidl.data.source import MOST_CLASSES, MOST_FILE_BYTES, BadFile, BadFiles, Extent, Packed
from minidl.errors import UserError

IMAGE, LABEL = "image", "label"
MOST_GROUP_BYTES = 4 << 30  # of a group of rows, unpacked: what claims to be larger is not read


def read_parquet(paths: Sequence[Path], bad: BadFiles) -> Packed:
    """All rows of the files, in their order. Of a broken file those before the damage count, if it is skipped.

    Raises BadFile, with the file and the row, for what is damaged or no image with a class. Raises UserError if pyarrow
    is missing, or if there are no rows.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - whether it is there
    except ImportError:
        raise UserError('Parquet files need pyarrow, which is not installed: pip install "minidl[parquet]"') from None
    extents: list[Extent] = []
    labels: list[int] = []
    spool = TemporaryFile()  # noqa: SIM115 - stays open as long as images are read from it
    packed_in = os.dup(spool.fileno())
    end = 0
    for path in paths:
        try:
            for number, (image, label) in enumerate(_rows(path)):
                name = f"{path}:row {number}"
                try:
                    data = image["bytes"] if isinstance(image, dict) else image
                    if type(data) is not bytes or not 0 < len(data) <= MOST_FILE_BYTES:
                        raise BadFile(name, "there are no bytes of an image in it")
                    if type(label) is not int or not 0 <= label < MOST_CLASSES:
                        raise BadFile(name, f"its class is {label!r}, not a whole number from 0 to {MOST_CLASSES - 1}")
                except BadFile as error:
                    bad.note(error)
                    continue
                spool.write(data)
                extents.append(Extent(packed_in, end, len(data), name))
                labels.append(label)
                end += len(data)
        except BadFile as error:
            bad.note(error)
        except OSError as error:
            raise UserError(f"cannot copy the images of {path} to {os.path.dirname(str(spool.name)) or 'a temporary file'}"
                            f": {error.strerror or error}") from None
    spool.flush()
    if not extents:
        raise UserError(f"{paths[0]}: there are no rows with an image and a class in it")
    return Packed(extents, labels)


def _rows(path: Path) -> Iterator[tuple[Any, Any]]:
    """(image, label) of every row, with one group of rows in memory at a time. Raises BadFile."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, memory_map=True, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if IMAGE not in names or LABEL not in names:
                raise BadFile(str(path), f"its columns are {', '.join(names) or 'none'}; {IMAGE} and {LABEL} are needed")
            for group in range(file.num_row_groups):
                claimed = file.metadata.row_group(group).total_byte_size
                if not 0 <= claimed <= MOST_GROUP_BYTES:
                    raise BadFile(str(path), f"group {group} should have {claimed} bytes, and at most {MOST_GROUP_BYTES} "
                                             "are read at once")
                table = file.read_row_group(group, columns=[IMAGE, LABEL])
                table.validate(full=True)
                yield from zip(table[IMAGE].to_pylist(), table[LABEL].to_pylist(), strict=True)
    # The reader passes on what its parsers stumble over; whatever that is, the file is not one.
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, pyarrow.ArrowException):
            raise BadFile(str(path), error.strerror or str(error)) from None
        raise BadFile(str(path), f"not a Parquet file, or damaged: {str(error).splitlines()[0] if str(error) else ''}"
                      ) from None
