"""Encoded images: what is shown of them, what becomes of broken ones, and how far ahead they are made."""

import io
import os
import struct
import tarfile
import threading
import time
import zlib
from contextlib import closing
from itertools import islice

import made_data
import numpy as np
import pytest
from made_data import (
    CLASSES,
    IMAGES,
    cifar,
    class_folders,
    encoded,
    masks,
    opened,
    parquet,
    picture,
    same,
    shard,
    shards,
)
from PIL import Image
from rights import without_rights

from minidl.data import BadFile, BadFiles, Feed, batches_ahead
from minidl.data.cifar import _moved
from minidl.data.feed import Job
from minidl.data.pixels import (
    DEVIATION,
    MEAN,
    MOST_PIXELS,
    Crop,
    central_view,
    classes_of,
    decode,
    pixels,
    random_view,
    whole,
)
from minidl.data.source import MOST_FILE_BYTES
from minidl.errors import UserError


def one_epoch(data, batch=5, **arguments):
    with closing(data.batches(batch, **arguments)) as batches:
        return list(islice(batches, data.train_size // batch))


# What is shown -------------------------------------------------------------------------------------------------------
def test_pixels_are_those_of_pillow_with_the_mean_and_deviation_of_imagenet():
    image = picture(7)
    out = np.empty((3, 16, 16), np.float32)
    pixels(image, whole(*image.size), 16, out=out)
    shown = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR), np.float64) / 255
    expected = ((shown - MEAN) / DEVIATION).transpose(2, 0, 1)
    np.testing.assert_allclose(out, expected, atol=1e-5)  # float32 of numbers up to 3
    mirrored = np.empty_like(out)
    pixels(image, Crop(0, 0, *image.size, mirrored=True), 16, out=mirrored)
    np.testing.assert_array_equal(mirrored, out[:, :, ::-1])


def test_a_view_shows_its_part_and_nothing_else():
    image, out, cropped = picture(7), np.empty((3, 8, 8), np.float32), np.empty((3, 8, 8), np.float32)
    pixels(image, Crop(5, 9, 8, 8), 8, out=out)  # as large as it is shown: no pixel is mixed with another
    pixels(image.crop((5, 9, 13, 17)), whole(8, 8), 8, out=cropped)
    np.testing.assert_array_equal(out, cropped)


def test_a_network_for_grey_images_gets_one_channel(tmp_path):
    batch = one_epoch(opened("class_folders", class_folders(tmp_path), channels=1))[0]
    assert batch.images.shape[1:] == (1, 16, 16) and abs(batch.images).max() < 5


def stored_png(bits, kind, values, *, more=b""):
    """A PNG of one row with so many bits a channel, that no library had its hands in; ``more`` chunks before it."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    row = b"\0" + b"".join(value.to_bytes(bits // 8, "big") for value in values) if bits >= 8 else b"\0" + int(
        "".join(f"{value:0{bits}b}" for value in values).ljust(8, "0"), 2).to_bytes(1, "big")
    head = struct.pack(">IIBBBBB", len(values) // channels, 1, bits, kind, 0, 0, 0)
    return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), *(chunk(*one) for one in more),
                     chunk(b"IDAT", zlib.compress(row)), chunk(b"IEND", b"")))


WIDE = [0, 255, 256, 0x7FFF, 0xFFFF]  # of 16 bits; the upper 8 are:
UPPER = [0, 0, 1, 0x7F, 0xFF]


@pytest.mark.parametrize(("data", "grey", "colour"), [
    pytest.param(stored_png(16, 0, WIDE), UPPER, [[v] * 3 for v in UPPER], id="grey of 16 bits"),
    pytest.param(b"P5 5 1 65535\n" + np.array(WIDE, ">u2").tobytes(), UPPER, None, id="PGM of 16 bits"),
    pytest.param(stored_png(16, 2, [v for v in WIDE for _ in range(3)]), UPPER, [[v] * 3 for v in UPPER],
                 id="colours of 16 bits"),
    pytest.param(stored_png(16, 0, WIDE, more=[(b"tRNS", b"\0\xff")]), [0, 255, 1, 0x7F, 0xFF], None,
                 id="a transparent grey of 16 bits"),
    pytest.param(stored_png(8, 4, [0, 255, 0, 0, 100, 51]), [0, 255, 224], None, id="grey with alpha"),  # 255 - 155/5
    pytest.param(stored_png(8, 6, [255, 0, 0, 255, 9, 9, 9, 0, 0, 0, 0, 51]), None,
                 [[255, 0, 0], [255, 255, 255], [204, 204, 204]], id="colours with alpha"),
    pytest.param(stored_png(8, 2, [1, 2, 3, 4, 5, 6], more=[(b"tRNS", bytes([0, 1, 0, 2, 0, 3]))]), None,
                 [[255, 255, 255], [4, 5, 6]], id="a transparent colour"),
    pytest.param(stored_png(8, 3, [1, 0], more=[(b"PLTE", bytes([10, 20, 30, 40, 50, 60]))]), None,
                 [[40, 50, 60], [10, 20, 30]], id="a palette"),
    pytest.param(stored_png(8, 3, [1, 0], more=[(b"PLTE", bytes([10, 20, 30, 40, 50, 60])), (b"tRNS", b"\0\xff")]),
                 None, [[40, 50, 60], [255, 255, 255]], id="a palette with a transparent entry"),
    pytest.param(stored_png(2, 0, [0, 1, 2, 3]), [0, 85, 170, 255], None, id="grey of 2 bits"),
    pytest.param(stored_png(1, 0, [1, 0, 1]), [255, 0, 255], None, id="black and white"),
])
def test_every_kind_of_image_becomes_the_numbers_that_the_manual_says(data, grey, colour):
    for mode, expected in (("L", grey), ("RGB", colour)):
        if expected is not None:
            assert np.asarray(decode(data, "x", mode=mode))[0].tolist() == expected


def test_cmyk_is_mixed_by_the_formula():
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    found = np.asarray(decode(encoded(image, "JPEG"), "x", mode="RGB"))
    assert np.abs(found.astype(int) - [255, 0, 0]).max() <= 3  # JPEG rounds


def turned(values, number, kind="PNG"):
    """An image whose EXIF says that it is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = number
    file = io.BytesIO()
    Image.fromarray(np.array(values, np.uint8)).save(file, kind, exif=exif)
    return file.getvalue()


@pytest.mark.parametrize(("number", "upright"), [
    (1, [[1, 2, 3], [4, 5, 6]]), (2, [[3, 2, 1], [6, 5, 4]]), (3, [[6, 5, 4], [3, 2, 1]]),
    (4, [[4, 5, 6], [1, 2, 3]]), (5, [[1, 4], [2, 5], [3, 6]]), (6, [[4, 1], [5, 2], [6, 3]]),
    (7, [[6, 3], [5, 2], [4, 1]]), (8, [[3, 6], [2, 5], [1, 4]]), (9, [[1, 2, 3], [4, 5, 6]])])
def test_an_image_is_turned_as_its_exif_says(number, upright):
    data = turned([[1, 2, 3], [4, 5, 6]], number)
    assert np.asarray(decode(data, "x", mode="L")).tolist() == upright
    assert np.asarray(decode(data, "x", mode="RGB"))[..., 1].tolist() == upright


def test_an_image_and_a_mask_that_are_turned_differently_are_refused(tmp_path):
    masks(tmp_path / "data", count=12)
    path = tmp_path / "data" / "images" / "003.png"
    path.write_bytes(turned(np.asarray(Image.open(path)), 3))
    with pytest.raises(BadFile, match=r"003.png: its EXIF orientation 3 differs from its mask's \(1\)"):
        list(islice(opened("masks", tmp_path / "data").batches(4), 3))


@pytest.mark.parametrize("data", [stored_png(2, 0, [0, 1, 2, 3]), stored_png(4, 0, [0, 1]), b"P5 4 1 3\n\0\1\2\3"])
def test_a_mask_whose_classes_a_decoder_would_stretch_is_refused(data):
    with pytest.raises(BadFile, match="^x: its classes have fewer than 8 bits"):
        decode(data, "x", mode=None)


def test_an_image_of_floating_point_numbers_is_refused():
    with pytest.raises(BadFile, match="floating-point numbers"):
        decode(b"Pf\n2 1\n-1.0\n" + np.array([0, 1], "<f4").tobytes(), "x", mode="L")


# Folders that lead astray -------------------------------------------------------------------------------------------
def test_images_in_linked_folders_are_used(tmp_path):
    root = class_folders(tmp_path / "data")
    (root / "class 1").rename(tmp_path / "elsewhere")
    (root / "class 1").mkdir()
    (root / "class 1" / "more").symlink_to(tmp_path / "elsewhere")
    data = opened("class_folders", root)
    assert data.train_size + data.test_size == 42


@pytest.mark.parametrize(("spoil", "message"), [
    (lambda root: (root / "class 1" / "more").symlink_to(root), "class 1/more: a link to a folder that contains it"),
    (lambda root: (root / "class 1" / "more").symlink_to(root / "nowhere"), "more: a dangling link"),
    (lambda root: (root / "class 3").symlink_to(root / "nowhere"), "class 3: a dangling link"),
    (lambda root: (root / "class 1" / "more").symlink_to(root / "class 1" / "more"), "more: Too many levels of symbol"),
    (lambda root: (root / "class 1" / "more").symlink_to("x" * 300), "more: File name too long"),
])
def test_images_that_a_link_hides_are_an_error_or_counted(tmp_path, spoil, message):
    root = class_folders(tmp_path / "data")
    spoil(root)
    with pytest.raises(UserError, match=message):
        opened("class_folders", root)
    bad = BadFiles(skip=True)
    opened("class_folders", root, bad=bad)
    assert len(bad) >= 1 and any(message in line for line in bad.messages)


@pytest.mark.parametrize(("kind", "name", "message"), [
    ("class_folders", "lost.png", "lost.png: an image beside the folders of classes"),
    ("class_folders", "lost.TIF", "lost.TIF: an image beside the folders of classes"),
    ("class_folders", "class 1/more/lost.tiff", "lost.tiff: an image of an unsupported kind"),
    ("shards", "lost.png", "lost.png: an image beside part-0.tar"),
    ("parquet", "lost.png", "lost.png: an image beside train-00000.parquet"),
    ("cifar", "lost.png", "lost.png: an image beside CIFAR-10's files"),
    ("masks", "lost.png", "lost.png: an image beside images and masks"),
    ("masks", "images/more/lost.png", "images/more: a folder among images"),
    ("masks", "masks/lost.png", "lost.png: a mask without an image in"),
    ("masks", "masks/003_mask.gif", "003_mask.png: 003_mask.gif has the same name before its suffix"),
    ("masks", "images/lost.heic", "lost.heic: an image of an unsupported kind"),
])
def test_images_that_nothing_would_read_are_an_error_or_counted(tmp_path, kind, name, message):
    root = getattr(made_data, kind)(tmp_path / "data")
    whole = opened(kind, root)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_bytes(encoded(picture(0)))
    with pytest.raises(BadFile, match=message):
        opened(kind, root)
    bad = BadFiles(skip=True)
    found = opened(kind, root, bad=bad)
    assert (found.train_size, found.test_size) == (whole.train_size, whole.test_size)
    assert [message in line for line in bad.messages] == [True]


def test_images_beside_train_and_val_are_an_error(tmp_path):
    class_folders(tmp_path / "train", count=30)
    class_folders(tmp_path / "val", count=9)
    (tmp_path / "lost.jpeg").write_bytes(encoded(picture(0)))
    with pytest.raises(BadFile, match="lost.jpeg: an image beside train"):
        opened("class_folders", tmp_path)


def test_a_folder_with_train_alone_is_no_class_of_that_name(tmp_path):
    class_folders(tmp_path / "train", count=30)
    data = opened("class_folders", tmp_path)
    assert (data.class_names, data.train_size, data.test_size) == (("class 0", "class 1", "class 2"), 27, 3)
    (tmp_path / "train").rename(tmp_path / "elsewhere")
    class_folders(tmp_path)
    (tmp_path / "elsewhere").rename(tmp_path / "train")
    assert "train" in opened("class_folders", tmp_path).class_names  # among others it is one: there are trains


def test_shards_of_two_kinds_are_refused(tmp_path):
    shards(tmp_path)
    parquet(tmp_path)
    with pytest.raises(UserError, match=r"2 files \*.tar and 2 \*.parquet, but only one kind is read"):
        opened("shards", tmp_path)


def test_images_in_a_folder_that_may_not_be_read_are_an_error_or_counted(closed_folder):
    root = class_folders(closed_folder.parent / "data")
    closed_folder.rename(root / "class 1" / "closed")
    with without_rights():
        with pytest.raises(BadFile, match="class 1/closed: Permission denied"):
            opened("class_folders", root)
        bad = BadFiles(skip=True)
        assert opened("class_folders", root, bad=bad).train_size == 38 and len(bad) == 1


def test_random_views_have_the_areas_and_ratios_of_their_paper_and_half_are_mirrored():
    random = np.random.default_rng(0)
    views = [random_view(400, 300, random) for _ in range(3000)]
    areas = np.array([view.width * view.height for view in views]) / (400 * 300)
    ratios = np.array([view.width / view.height for view in views])
    assert all(v.left >= 0 and v.top >= 0 and v.left + v.width <= 400 and v.top + v.height <= 300 for v in views)
    assert 0.079 < areas.min() < 0.1 and 0.9 < areas.max() <= 1 and ratios.min() > 0.74 and ratios.max() < 1.35
    assert abs(np.mean([view.mirrored for view in views]) - 0.5) < 0.03  # three deviations of 3000 coins are 0.027


def test_of_an_image_in_which_no_view_fits_the_middle_is_shown():
    view = random_view(1000, 10, np.random.default_rng(0), least=0.9)
    assert (view.left, view.top, view.width, view.height) == ((1000 - 40 / 3) / 2, 0, 40 / 3, 10)
    assert central_view(256, 512) == Crop(16, 144, 224, 224)


def test_labels_stay_with_their_images(tmp_path):
    for kind in ("class_folders", "shards", "parquet"):
        data = opened(kind, IMAGES[kind](tmp_path / kind))
        for batch in [*one_epoch(data), next(data.test_batches(10))]:
            brightness = batch.images.mean(axis=(1, 2, 3))  # a class is 60 of 255 brighter: about one deviation
            lowest = (60 / 255 - np.mean(MEAN)) / np.mean(DEVIATION)
            steps = (brightness - lowest) / (60 / 255 / np.mean(DEVIATION))
            np.testing.assert_array_equal(np.rint(steps), batch.labels)


def test_classes_are_the_folders_by_name(tmp_path):
    data = opened("class_folders", class_folders(tmp_path))
    assert data.class_names == ("class 0", "class 1", "class 2") and data.num_classes == CLASSES


def test_a_mask_is_cut_and_mirrored_with_its_image(tmp_path):
    folder = masks(tmp_path)
    for path in (folder / "images").iterdir():  # masks that say which pixels are bright, after resizing too
        mask = np.kron(np.random.default_rng(int(path.stem)).integers(0, 2, (3, 3)), np.ones((8, 8))).astype(np.uint8)
        Image.fromarray(mask * 255).save(path)
        Image.fromarray(mask).save(folder / "masks" / f"{path.stem}_mask.png")
    agree = [((batch.images[:, 0] > 0) == (batch.labels == 1)).mean() for batch in one_epoch(opened("masks", folder))]
    assert np.mean(agree) > 0.93  # all but the pixels at edges


def test_255_in_a_mask_is_no_class_but_the_second_of_two():
    mask = Image.fromarray(np.array([[0, 1], [2, 255]], np.uint8))
    out = np.empty((2, 2), np.int64)
    classes_of(mask, whole(2, 2), 2, "m", num_classes=3, out=out)
    assert out.tolist() == [[0, 1], [2, -100]]
    with pytest.raises(BadFile, match=r"m: a pixel of class 2, but there are only 2 \(0 to 1\)"):
        classes_of(mask, whole(2, 2), 2, "m", num_classes=2, out=out)
    two = Image.fromarray(np.array([[0, 255], [1, 0]], np.uint8))
    classes_of(two, whole(2, 2), 2, "m", num_classes=2, out=out)
    assert out.tolist() == [[0, 1], [1, 0]]


def test_an_image_of_cifar_is_shifted_by_at_most_four_pixels_and_mirrored():
    images = np.random.default_rng(1).integers(1, 256, (64, 3, 32, 32), dtype=np.uint8)
    moved = _moved(images, np.random.default_rng(2))
    framed = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)))
    seen = set()
    for image, frame in zip(moved, framed, strict=True):
        seen |= {(top, left, step) for top in range(9) for left in range(9) for step in (1, -1)
                 if np.array_equal(image, frame[:, top:top + 32, left:left + 32][..., ::step])}
    assert len(seen) > 40 and {step for *_, step in seen} == {1, -1} and {top for top, *_ in seen} == set(range(9))


# Broken files --------------------------------------------------------------------------------------------------------
def damage(kind, root):
    """Break one example of a data set; what its message must name."""
    if kind == "class_folders":
        path = next(root.glob("class 1/*.jpg"))
        path.write_bytes(path.read_bytes()[:200])
        return str(path), "not an image that can be decoded"
    if kind == "masks":
        (root / "masks" / "004_mask.png").unlink()
        return "004.png", "it has no mask 004"
    if kind == "cifar":
        data = bytearray((root / "data_batch_1.bin").read_bytes())
        data[3073 * 7] = 77
        (root / "data_batch_1.bin").write_bytes(data)
        return "data_batch_1.bin:record 7", "class 77, but there are only 10"
    if kind == "shards":
        shard(root / "part-2.tar", [1])
        with tarfile.open(root / "part-2.tar", "a") as archive:
            member = tarfile.TarInfo("lonely.cls")
            member.size = 1
            archive.addfile(member, io.BytesIO(b"1"))
        return "part-2.tar:lonely", "a sample is one image and one .cls, not cls"
    (root / "1.txt").write_bytes(b"a sentence\nanother \xff one\n")
    return "1.txt", "line 2, byte 8: not UTF-8"


@pytest.mark.parametrize("kind", ["class_folders", "masks", "cifar", "shards", "text"])
def test_a_broken_example_is_an_error_that_names_it_or_is_left_out_and_counted(tmp_path, kind):
    root = getattr(made_data, kind)(tmp_path)
    name, why = damage(kind, root)
    with pytest.raises(BadFile) as found:
        data = opened(kind, root)
        one_epoch(data)
        list(data.test_batches(5))
    assert name in str(found.value) and why in str(found.value)
    bad = BadFiles(skip=True)
    data = opened(kind, root, bad=bad)
    assert all(batch.size == 5 for batch in one_epoch(data))
    list(data.test_batches(5))
    assert len(bad) == 1 and name in bad.messages[0]


@pytest.mark.parametrize("kind", ["class_folders", "masks"])
def test_what_takes_the_place_of_broken_images_does_not_depend_on_the_threads(tmp_path, kind):
    root = getattr(made_data, kind)(tmp_path)
    paths = sorted(root.rglob("*.png" if kind == "masks" else "*.jpg"))[:12:3]
    for path in paths:
        path.write_bytes(b"nothing")
    runs = []
    for workers in (1, 4):
        bad = BadFiles(skip=True)
        data = opened(kind, root, bad=bad, workers=workers)
        runs.append((one_epoch(data, seed=2), list(data.test_batches(3)), len(bad)))
    assert all(map(same, runs[0][0], runs[1][0])) and all(map(same, runs[0][1], runs[1][1]))
    assert runs[0][2] == runs[1][2] > 1  # not all: a few images fill no batch
    assert all(np.isfinite(batch.images).all() for batch in runs[0][0])
    with closing(opened(kind, root, skip=True).batches(5, seed=2, skip=3)) as rest:  # and a training may go on anywhere
        assert all(map(same, islice(rest, 2), runs[0][0][3:5]))


def test_a_broken_image_gives_way_to_the_next_one_in_training_and_is_missing_in_the_test(tmp_path):
    for part, number in (("train", 9), ("val", 6)):
        class_folders(tmp_path / part, count=number)
    for part in ("train", "val"):
        (tmp_path / part / "class 1" / "001.jpg").write_bytes(b"nothing")
    data = opened("class_folders", tmp_path, skip=True)
    # Images lie as 000 003 006 | 001 004 007 | 002 005 008: what is number 3 gives way to number 4.
    for seed in range(3):
        order = np.random.default_rng([seed, 0]).permutation(9)
        batch, rows = one_epoch(data, 9, seed=seed)[0], {int(number): row for row, number in enumerate(order)}
        assert np.array_equal(batch.images[rows[3]], batch.images[rows[4]])
    found = list(data.test_batches(4))
    assert [batch.size for batch in found] == [3, 2] and all(len(batch.labels) == batch.size for batch in found)
    assert np.concatenate([batch.labels for batch in found]).tolist() == [0, 0, 1, 2, 2]


def test_where_every_image_is_broken_there_is_an_end(tmp_path):
    for path in class_folders(tmp_path).rglob("*.*"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="neither this nor any of the other 37 images can be used"):
        one_epoch(opened("class_folders", tmp_path, skip=True))


def cut(path, nbytes):
    path.write_bytes(path.read_bytes()[:nbytes])


def end_of_members(path):
    """Where its last sample ends: what follows are the zeros that end an archive."""
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-1]
    return last.offset_data + 512


def rewrite(path, label):
    """A shard of one sample with that class."""
    with tarfile.open(path, "w") as archive:
        for name, data in (("s.png", encoded(picture(1))), ("s.cls", label)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(("kind", "spoil", "message"), [
    ("class_folders", lambda root: (root / "class 3").mkdir(), "class 3: a class without images"),
    ("class_folders", lambda root: [(root / part).mkdir() for part in ("train", "val")] and [
        (root / part / name).mkdir() for part, name in (("train", "a"), ("val", "b"))],
     "train.a: a class without images"),
    ("cifar", lambda root: cut(root / "data_batch_2.bin", 3073 * 3 + 5), "9224 bytes, not a multiple of a record's"),
    ("shards", lambda root: cut(root / "part-1.tar", 10_300), "part-1.tar: .*truncated"),
    ("shards", lambda root: cut(root / "part-1.tar", 512), "part-1.tar: truncated"),
    ("shards", lambda root: cut(root / "part-1.tar", end_of_members(root / "part-1.tar")), "part-1.tar: truncated or"),
    ("shards", lambda root: rewrite(root / "part-1.tar", b"9" * 20), "part-1.tar:s: its class is b'999999"),
    ("shards", lambda root: (root / "part-1.tar").write_bytes(b"x" * 2000), "part-1.tar: not a tar archive"),
    ("shards", lambda root: os.mkfifo(root / "part-3.tar"), "part-3.tar: a pipe, not a file"),
    ("parquet", lambda root: cut(next(root.glob("train*")), 3000), "train-00000.parquet: not a Parquet file, or"),
    ("masks", lambda root: [path.unlink() for path in root.glob("images/*")], "it has no images with masks"),
])
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path, kind, spoil, message):
    spoil(getattr(made_data, kind)(tmp_path))
    with pytest.raises(UserError, match=message):
        opened(kind, tmp_path)


def test_a_label_that_there_is_no_class_for_is_an_error_that_names_its_sample(tmp_path):
    with pytest.raises(BadFile, match=r"part-0.tar:some/folder/00002: class 2, but there are only 2 \(0 to 1\)"):
        opened("shards", shards(tmp_path), num_classes=2)
    with pytest.raises(BadFile, match=r"parquet:row 2: class 2, but there are only 2"):
        opened("parquet", parquet(tmp_path / "p"), num_classes=2)
    with pytest.raises(UserError, match="--num-classes 4: .* has 3 classes"):
        opened("class_folders", class_folders(tmp_path / "c"), num_classes=4)


def test_of_a_shard_that_is_cut_off_the_samples_before_count_if_it_is_skipped(tmp_path):
    cut(shards(tmp_path) / "part-1.tar", 30_000)
    bad = BadFiles(skip=True)
    data = opened("shards", tmp_path, bad=bad)
    assert 21 < data.train_size + 2 < 42 and len(bad) == 1 and "part-1.tar: truncated" in bad.messages[0]


@pytest.mark.parametrize("kind", [kind for kind in IMAGES if kind != "cifar"])
def test_images_for_a_network_that_labels_pixels_need_masks(tmp_path, kind):
    with pytest.raises(UserError, match="this network labels pixels: it needs images/ and masks/"):
        opened(kind, IMAGES[kind](tmp_path), pixel_labels=True, num_classes=2)


def test_masks_are_refused_where_an_image_has_one_class(tmp_path):
    with pytest.raises(UserError, match="this network predicts one class per image"):
        opened("masks", masks(tmp_path), pixel_labels=False)


def test_a_folder_with_train_and_val_is_tested_with_the_latter(tmp_path):
    class_folders(tmp_path / "train", count=30)
    class_folders(tmp_path / "val", count=9)
    data = opened("class_folders", tmp_path)
    assert data.train_size == 30 and [batch.size for batch in data.test_batches(4)] == [4, 4, 1]
    (tmp_path / "val" / "class 9").mkdir()
    with pytest.raises(UserError, match="class 9: not a class to train on"):
        opened("class_folders", tmp_path)


def test_cifar_has_one_size_and_ten_classes(tmp_path):
    for wanted, message in (({"size": 64}, "--image-size 64: CIFAR-10 has 32"),
                            ({"num_classes": 3}, "--num-classes 3: CIFAR-10 has 10")):
        with pytest.raises(UserError, match=message):
            opened("cifar", cifar(tmp_path), **wanted)


# Sizes that files claim ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("side", "message"), [
    (9200, f"9200 x 9200 pixels; at most {MOST_PIXELS} are decoded"), (60_000, "exceeds limit")])
def test_an_image_that_claims_to_be_huge_is_refused_before_anything_is_allocated_for_it(side, message):
    data = bytearray(encoded(picture(1)))
    data[16:24] = side.to_bytes(4, "big") * 2  # width and height in the first chunk of a PNG
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(BadFile, match=message):
        decode(bytes(data), "huge.png", mode="RGB")


def test_a_file_that_is_too_large_or_no_file_is_not_read(tmp_path):
    class_folders(tmp_path)
    with open(tmp_path / "class 0" / "huge.png", "wb") as file:
        file.truncate(MOST_FILE_BYTES + 1)  # a hole: it takes no disk
    os.mkfifo(tmp_path / "class 0" / "pipe.png")
    bad = BadFiles(skip=True)
    data = opened("class_folders", tmp_path, bad=bad)
    one_epoch(data)
    list(data.test_batches(5))
    assert [message.rsplit("/")[-1] for message in bad.messages] == [
        f"huge.png: {MOST_FILE_BYTES + 1} bytes; an image must have 1 to {MOST_FILE_BYTES}", "pipe.png: a pipe, not a "
        "file"]


# Ahead of the step ---------------------------------------------------------------------------------------------------
class Sized:
    nbytes = 100


def test_no_more_batches_are_begun_than_the_host_budget_counts():
    begun, feed = [], Feed(workers=2, ahead=3)
    jobs = (begun.append(number) or Job(1, [lambda: None], Sized) for number in range(10))
    batches = feed.run(jobs)
    for number in range(10):
        next(batches)
        assert len(begun) == min(number + 4, 10)  # the one that was handed out, and three ahead
    assert next(batches, None) is None and feed.peak_bytes == 300 and feed.made == 10


def test_batches_ahead_take_at_most_a_quarter_of_the_host_budget():
    assert [batches_ahead(100, host) for host in (0, 399, 400, 1599, 10**9)] == [0, 0, 1, 3, 4]


def test_waiting_for_a_batch_is_counted_and_a_batch_that_is_ready_costs_nothing():
    gate = threading.Event()
    feed = Feed(workers=1, ahead=1)
    batches = feed.run(iter([Job(3, [gate.wait], Sized), Job(3, [lambda: None], Sized)]))
    threading.Timer(0.2, gate.set).start()
    next(batches)
    waited = feed.waited_seconds
    assert waited >= 0.15
    time.sleep(0.1)  # in which the second is made
    next(batches)
    assert feed.waited_seconds - waited < 0.1
    assert feed.per_second == pytest.approx(6 / feed.busy_seconds)


def test_an_error_comes_when_its_batch_is_due_and_ends_the_threads():
    def fail():
        raise BadFile("x", "broken")

    before = threading.active_count()
    jobs = [Job(1, [lambda: None], Sized), Job(1, [lambda: None, fail, lambda: None], Sized)] * 2
    batches = Feed(workers=2, ahead=3).run(iter(jobs))
    next(batches)
    with pytest.raises(BadFile, match="x: broken"):
        next(batches)
    assert threading.active_count() == before
