"""Damage data files in every way that comes to mind, and open them: run by tests in a process of its own.

    python corrupted.py FOLDER COUNT SEED

A file decodes or is refused with a UserError. Prints one JSON object: how often which happened, what else did, and by
how many bytes the memory of this process grew beyond what the undamaged files had needed.
"""

import json
import random
import resource
import shutil
import sys
import traceback
from contextlib import closing
from itertools import islice
from pathlib import Path

import made_data

from minidl.errors import UserError

KINDS = {"class_folders": "*.*", "shards": "*.tar", "parquet": "*.parquet", "masks": "*.png", "cifar": "*.bin",
         "text": "*.txt", "tokens": "*.tokens", "vocabulary": "*.vocab.txt"}


def damaged(data, choose):
    """Other bytes: a few changed, cut off, cut out, grown, or large numbers where lengths may be."""
    data = bytearray(data)
    how = choose.randrange(6)
    if how == 0:
        for _ in range(choose.choice((1, 3, 30))):
            data[choose.randrange(len(data))] = choose.randrange(256)
    elif how == 1:
        del data[choose.randrange(len(data)):]
    elif how == 2:
        start = choose.randrange(len(data))
        del data[start:start + choose.randrange(1, 64)]
    elif how == 3:
        start = choose.randrange(len(data))
        data[start:start] = choose.randbytes(choose.randrange(1, 64))
    elif how == 4:  # near the front, or near the end, where formats keep their lengths
        start = choose.choice((choose.randrange(min(600, len(data))), max(0, len(data) - 1 - choose.randrange(600))))
        large = choose.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"77777777777"))
        data[start:start + len(large)] = large
    else:
        data = bytearray(choose.randbytes(choose.randrange(2000)))
    return bytes(data)


def use(kind, folder):
    """Open a data set, and go through it once."""
    data = made_data.opened("text" if kind in ("text", "tokens", "vocabulary") else kind, folder, workers=2)
    if data.train_size < 2:
        return
    with closing(data.batches(2)) as batches:
        for _ in islice(batches, data.train_size // 2):
            pass
    for _ in data.test_batches(3):
        pass


def main(folder, count, seed):
    choose = random.Random(seed)
    sources = {}
    for kind in KINDS:
        made = {"class_folders": lambda to: made_data.class_folders(to, count=9),
                "masks": lambda to: made_data.masks(to, count=6)}.get(kind) or getattr(
            made_data, "text" if kind in ("tokens", "vocabulary") else kind)
        sources[kind] = made(folder / kind / "data")
        use(kind, sources[kind])
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    decoded = refused = 0
    wrong = []
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder / kind, copy)
        path = choose.choice(sorted(copy.rglob(KINDS[kind])))
        path.write_bytes(damaged(path.read_bytes(), choose))
        try:
            use(kind, copy / "data")
            decoded += 1
        except UserError as error:
            refused += 1
            if "copy" not in str(error):
                wrong.append(f"{number}, {kind}: no file is named in {error}")
        except BaseException:
            wrong.append(f"{number}, {kind}, {path.name}: {traceback.format_exc(limit=-3)}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024
    print(json.dumps({"decoded": decoded, "refused": refused, "wrong": wrong, "grown_bytes": grown}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
