"""Small data sets on disk, in every format that minidl reads, and the data set that each becomes."""

import io
import tarfile

import numpy as np
from PIL import Image

from minidl.data import (
    BadFiles,
    Digits,
    Feed,
    Shapes,
    Synthetic,
    TextBatch,
    TokenBatch,
    WantedImages,
    WantedText,
    open_images,
    open_text,
)

CLASSES = 3
A_CLASS = 14  # images
SIDE = 24  # pixels of the files; data sets have 16


def picture(number, *, side=SIDE, mode="RGB"):
    """Return noise that follows from a number; brighter for higher classes."""
    random = np.random.default_rng(number)
    channels = (side, side + number % 5, 3)
    values = random.integers(0, 120, channels) + 60 * (number % CLASSES)
    return Image.fromarray(values.astype(np.uint8)).convert(mode)


def encoded(image, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def class_folders(root, *, count=CLASSES * A_CLASS):
    for number in range(count):
        folder = root / f"class {number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        kind = "JPEG" if number % 2 else "PNG"
        (folder / f"{number:03}.{'jpg' if number % 2 else 'png'}").write_bytes(encoded(picture(number), kind))
    return root


def shard(path, numbers):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            parts = {"png": encoded(picture(number)), "cls": str(number % CLASSES).encode()}
            for ending, data in parts.items():
                member = tarfile.TarInfo(f"some/folder/{number:05}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path


def shards(root):
    for part in range(2):
        shard(root / f"part-{part}.tar", range(21 * part, 21 * part + 21))
    return root


def parquet(root):
    import pyarrow as pa
    import pyarrow.parquet as pq

    root.mkdir(parents=True, exist_ok=True)
    for name, numbers in (("train-00000", range(30)), ("validation-00000", range(30, 42))):
        table = pa.table({"image": [{"bytes": encoded(picture(n)), "path": None} for n in numbers],
                          "label": [n % CLASSES for n in numbers]})
        pq.write_table(table, root / f"{name}.parquet", row_group_size=8)
    return root


def masks(root, *, count=30):
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image = picture(number)
        mask = Image.fromarray((np.asarray(image.convert("L")) > 100).astype(np.uint8) * 255)
        image.save(root / "images" / f"{number:03}.png")
        mask.save(root / "masks" / f"{number:03}_mask.png")
    return root


def cifar(root):
    root.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, count in (("data_batch_1", 20), ("data_batch_2", 22), ("test_batch", 11)):
        records = random.integers(0, 256, (count, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(root / f"{name}.bin")
    (root / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")
    return root


def text(root, *, stories=40):
    root.mkdir(parents=True, exist_ok=True)
    for part in range(2):
        lines = []
        for story in range(stories // 2):
            lines += [f"story {part} {story} has the sentence number {n} about a cat and {'a dog ' * (n % 4)}."
                      for n in range(9)] + [""]
        (root / f"{part}.txt").write_text("\n".join(lines))
    return root


running_text = text
IMAGES = {"class_folders": class_folders, "shards": shards, "parquet": parquet, "cifar": cifar}
ON_DISK = (*IMAGES, "masks", "text", "running_text")
MADE_UP = ("digits", "shapes", "synthetic")


def opened(kind, root, *, workers=1, skip=False, bad=None, **wanted):
    """Return the data set of a kind, read from ``root`` unless it is synthetic."""
    if kind in MADE_UP:
        return {"digits": lambda: Digits(8), "shapes": lambda: Shapes(16),
                "synthetic": lambda: Synthetic((1, 4, 4), 3)}[kind]()
    bad, feed = BadFiles(skip=skip) if bad is None else bad, Feed(workers, wanted.pop("ahead", 2))
    if kind in ("text", "running_text"):
        arguments = {"length": 32, "predictions": 5, "vocab": None, "vocab_size": 120, "token_file": None,
                     "pairs": kind == "text"} | wanted
        return open_text(root, WantedText(**arguments), bad=bad, feed=feed)
    arguments = {"size": 32 if kind == "cifar" else 16, "own_size": 224, "channels": 3,
                 "num_classes": 2 if kind == "masks" else None, "pixel_labels": kind == "masks"} | wanted
    return open_images(root, WantedImages(**arguments), bad=bad, feed=feed)


def arrays(batch):
    """Return all arrays of a batch."""
    if isinstance(batch, TextBatch):
        return [array for _, array in batch._arrays()]
    return [batch.input_ids if isinstance(batch, TokenBatch) else batch.images, batch.labels]


def same(one, other):
    return one.size == other.size and all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))
