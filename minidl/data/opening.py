"""Open a data set by its path; the contents decide the format. Knows every format, and no model.

  DIR/<class>/<image>                 class folders
  DIR/images/<name>, masks/<name>     images with masks
  DIR/data_batch_*.bin                CIFAR-10
  *.tar, *.parquet, or a DIR of them  samples in shards
  *.txt, or a DIR of them             sentences, or running text; the path may begin with ``text:``

Class folders, images with masks, and shards may be in DIR/train, with those for the test in DIR/val (or ``test``);
shards may also be named train-* and val-*. CIFAR-10 is tested with its test_batch.bin. Otherwise, also if there is only
``train``, a tenth of the examples is held out for the test.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from minidl.data.cifar import CLASSES, SIDE, TRAIN, Cifar10
from minidl.data.dataset import Data
from minidl.data.feed import Feed
from minidl.data.folders import IMAGES, MASKS, ClassFolders, MaskFolders
from minidl.data.images import Images
from minidl.data.parquet import read_parquet
from minidl.data.shards import read_shards
from minidl.data.source import BadFiles, ImageSource, note_images_beside
from minidl.data.text.sentences import Sentences, open_tokens
from minidl.data.text.token_file import Windows
from minidl.errors import UserError
from minidl.outside.reading import is_folder, is_there, names_in
from minidl.outside.writing import Unwritable

BY_NAME = ("synthetic", "digits", "shapes")  # data sets without a path
TAR, PARQUET, TEXT = ".tar", ".parquet", ".txt"
TEXT_MARK = "text:"  # may precede the path of text
_TRAIN, _TEST = ("train", "training"), ("val", "valid", "validation", "test")
CIFAR_FOLDER = "cifar-10-batches-bin"  # the folder in its archive


@dataclass(frozen=True, slots=True)
class WantedImages:
    """The images that a network takes, of ``size`` pixels a side; pixel_labels: True for one class per pixel.

    size          None: ``own_size``, the network's usual size, unless the data has a fixed size
    num_classes   None: the number of classes in the data.
    """

    size: int | None
    own_size: int
    channels: int
    num_classes: int | None
    pixel_labels: bool


@dataclass(frozen=True, slots=True)
class WantedText:
    """The text that a network takes, ``length`` tokens a sequence.
    pairs: True for pairs of sentences, of each of which at most ``predictions`` tokens are predicted; False for running
    text. token_file: None for a file beside the text; it and the other fields are arguments of ``open_tokens``."""

    length: int
    predictions: int
    vocab: Path | None
    vocab_size: int
    token_file: Path | None
    force: bool = False
    pairs: bool = True


def open_images(path: Path, wanted: WantedImages, *, bad: BadFiles, feed: Feed) -> Data:
    """Return the data set of images at a path.
    Raises BadFile for a broken file, unless these are skipped; UserError for a missing path, another format,
    and images or numbers that do not fit ``wanted``."""
    _require(path)
    cifar = next((folder for folder in (path, path / CIFAR_FOLDER) if _matching(folder, TRAIN)), None)
    if cifar is not None and not wanted.pixel_labels:
        for flag, asked, there in (("--image-size", wanted.size, SIDE), ("--num-classes", wanted.num_classes, CLASSES)):
            if asked not in (None, there):
                raise UserError(f"{flag} {asked}: CIFAR-10 has {there}")
        note_images_beside(cifar, "CIFAR-10's files", bad)
        return Cifar10(cifar, bad)
    train, test = _split(path)
    if train[0] != path:
        for folder in dict.fromkeys((path, train[0].parent)):
            note_images_beside(folder, train[0].name, bad)
    learnt = _source(train, bad)
    tested = None if test is None else _source(
        test, bad, class_names=learnt.class_names if isinstance(learnt, ClassFolders) else None)
    for source in (learnt, tested):
        if source is not None and (source.labels is None) != wanted.pixel_labels:
            raise UserError(f"{path}: " + (f"images with one class each, but this network labels pixels: it needs "
                                           f"{IMAGES}/ and {MASKS}/" if wanted.pixel_labels else
                                           "images with masks, but this network predicts one class per image"))
    if isinstance(learnt, ClassFolders) and wanted.num_classes not in (None, len(learnt.class_names)):
        raise UserError(f"--num-classes {wanted.num_classes}: {path} has {len(learnt.class_names)} classes")
    return Images(learnt, tested, size=wanted.size or wanted.own_size, channels=wanted.channels,
                  num_classes=wanted.num_classes, bad=bad, feed=feed)


def open_text(path: Path, wanted: WantedText, *, bad: BadFiles, feed: Feed) -> Sentences | Windows:
    """Return the data set of text at a path.
    Raises BadFile for a broken file, unless these are skipped; UserError for a missing path, a path without text, a bad
    vocabulary, and a token file that cannot be written."""
    path = Path(str(path).removeprefix(TEXT_MARK))
    _require(path)
    paths = _matching(path, "*" + TEXT) if is_folder(path) else [path]
    if not paths:
        raise UserError(f"{path}: this network reads text, but there is no file *{TEXT} here")
    token_file = wanted.token_file or path.with_name(f"{path.name}.{wanted.vocab_size}.tokens")
    try:
        tokens, vocabulary = open_tokens(paths, vocab=wanted.vocab, vocab_size=wanted.vocab_size,
                                         token_file=token_file, bad=bad, force=wanted.force)
    except Unwritable as error:
        raise UserError(f"{error}; use --token-file for another path") from None
    if not wanted.pairs:
        return Windows(tokens, vocabulary, length=wanted.length, feed=feed)
    data = Sentences(tokens, vocabulary, length=wanted.length, predictions=wanted.predictions, feed=feed)
    if not data.train_size:
        raise UserError(f"{paths[0]}: it has no pair of sentences to train on")
    return data


def _require(path: Path) -> None:
    if not is_there(path):
        near = get_close_matches(str(path), BY_NAME, n=1)
        raise UserError(f"--data {path}: there is no such file or folder"
                        + (f"; did you mean {near[0]}?" if near else f", and no data set of that name "
                           f"({', '.join(BY_NAME)})"))


def _split(path: Path) -> tuple[list[Path], list[Path] | None]:
    """Return the paths of the training and of the test data; None for the latter: hold out some training examples."""
    if not is_folder(path):
        return [path], None
    train = next((path / name for name in _TRAIN if is_folder(path / name)), None)
    test = next((path / name for name in _TEST if is_folder(path / name)), None)
    if train is not None and test is not None:
        return _shards(train) or [train], _shards(test) or [test]
    if train is not None and _folders(path) == [train.name]:
        return _shards(train) or [train], None  # not a class named "train"
    shards = _shards(path)
    if not shards:
        return [path], None
    tested = [shard for shard in shards if shard.name.startswith(_TEST)]
    learnt = [shard for shard in shards if shard not in tested]
    # If there are validation and test shards, use the validation shards, as usual during training.
    chosen = [shard for shard in tested if not shard.name.startswith("test")] or tested
    return (learnt, chosen) if learnt and tested else (shards, None)


def _shards(folder: Path) -> list[Path]:
    """Return the paths of all tar or Parquet files in a folder. Raises UserError if the folder has both kinds."""
    tars, tables = _matching(folder, "*" + TAR), _matching(folder, "*" + PARQUET)
    if tars and tables:
        raise UserError(f"{folder}: {len(tars)} files *{TAR} and {len(tables)} *{PARQUET}, but only one kind is read: "
                        "name one file, or a folder with one kind")
    return tars or tables


def _folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, except hidden ones."""
    return [name for name in names_in(folder) if not name.startswith(".") and is_folder(folder / name)]


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder that match a pattern, sorted by name; none if it is not a folder."""
    return [folder / name for name in fnmatch.filter(names_in(folder), pattern)] if is_folder(folder) else []


def _source(paths: Sequence[Path], bad: BadFiles, *, class_names: tuple[str, ...] | None = None) -> ImageSource:
    first = paths[0]
    if is_folder(first):
        if is_folder(first / IMAGES) and is_folder(first / MASKS):
            return MaskFolders(first, bad)
        return ClassFolders(first, bad, class_names=class_names)
    if first.suffix == TAR:
        return read_shards(paths, bad)
    if first.suffix == PARQUET:
        return read_parquet(paths, bad)
    raise UserError(f"{first}: this network reads images: a folder of classes, {IMAGES}/ with {MASKS}/, CIFAR-10's "
                    f"binary files, *{TAR} or *{PARQUET}")
