"""The data set that ``--data`` means, in the size that the network takes. Knows no network by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from minidl.app.flags import VOCAB_SIZE, Options
from minidl.data import (
    BadFiles,
    Data,
    Digits,
    Feed,
    Shapes,
    Synthetic,
    WantedImages,
    WantedText,
    open_images,
    open_text,
)
from minidl.errors import UserError

DIGITS_IMAGE_SIZE = 32  # at most, unless asked for: there is no more in them
SHAPES_IMAGE_SIZE = 64


class TextShape(Protocol):
    """Tokens a sequence, and positions predicted in each."""

    @property
    def length(self) -> int: ...
    @property
    def predictions(self) -> int: ...


class Takes(Protocol):
    """What a network is made for: see ``models.Model``."""

    @property
    def input_shape(self) -> tuple[int, int, int]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def pixel_labels(self) -> bool: ...
    @property
    def text(self) -> TextShape | None: ...
    @property
    def reads_pairs(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Sequences:
    """A TextShape of another length, with as large a part of it predicted."""

    length: int
    predictions: int

    @classmethod
    def of(cls, text: TextShape, length: int | None) -> "Sequences":
        length = length or text.length
        return cls(length, max(1, text.predictions * length // text.length))


def read_data(options: Options, takes: Takes, bad: BadFiles, *, has_values: bool) -> Data:
    """Raises UserError; BadFile, which is one, names what is broken."""
    if takes.text is not None:
        return _text(options, takes.text, bad, reads_pairs=takes.reads_pairs)
    for flag, value in (("--sequence-length", options.sequence_length), ("--vocab", options.vocab),
                        ("--vocab-size", options.vocab_size), ("--token-file", options.token_file)):
        if value is not None:
            raise UserError(f"{flag} is for text, and {options.model} reads images")
    channels, own_size, _ = takes.input_shape
    size = options.image_size or own_size
    if options.data == "synthetic":
        return Synthetic((channels, size, size), options.num_classes or takes.num_classes, values=has_values,
                         label_shape=(size, size) if takes.pixel_labels else ())
    if options.data in ("digits", "shapes"):
        return _made_up(options, takes, own_size)
    wanted = WantedImages(options.image_size, own_size, channels, options.num_classes or (
        takes.num_classes if takes.pixel_labels else None), takes.pixel_labels)
    return open_images(Path(options.data), wanted, bad=bad, feed=Feed(options.workers, 0))


def _made_up(options: Options, takes: Takes, own_size: int) -> Data:
    data: Data
    if options.data == "digits":
        if takes.pixel_labels:
            raise UserError(f"{options.model} needs a label a pixel: the digits have one an image")
        data = Digits(options.image_size or min(own_size, DIGITS_IMAGE_SIZE))
    else:
        if not takes.pixel_labels:
            raise UserError(f"{options.model} gives one class an image: the shapes have a label a pixel")
        data = Shapes(options.image_size or min(own_size, SHAPES_IMAGE_SIZE))
    if options.num_classes not in (None, data.num_classes):
        raise UserError(f"--num-classes {options.num_classes}: the {options.data} have {data.num_classes} classes")
    return data


def _text(options: Options, text: TextShape, bad: BadFiles, *, reads_pairs: bool) -> Data:
    if options.data in ("digits", "shapes") or options.image_size or options.num_classes:
        raise UserError(f"{options.model} reads text: --data {options.data}, --image-size and --num-classes are for "
                        "images")
    shape = Sequences.of(text, options.sequence_length)
    if options.data == "synthetic":
        return Synthetic((shape.length,), 0, values=False)  # the network makes its own noise
    if not reads_pairs:
        raise UserError(f"{options.model} reads noise only (--data synthetic): pairs of sentences are for BERT")
    wanted = WantedText(shape.length, shape.predictions, None if options.vocab is None else Path(options.vocab),
                        options.vocab_size or VOCAB_SIZE,
                        None if options.token_file is None else Path(options.token_file))
    return open_text(Path(options.data), wanted, bad=bad, feed=Feed(1, 0))
