"""Opens the data set that ``--data`` names, with images or texts of the size that the network takes."""

from pathlib import Path

from minidl.cli.app.options import VOCAB_SIZE, Options
from minidl.data import (
    BadFiles,
    Data,
    Digits,
    Feed,
    Shapes,
    Synthetic,
    WantedImages,
    WantedText,
    batches_ahead,
    open_images,
    open_text,
)
from minidl.errors import UserError
from minidl.models import Model
from minidl.models.text import Text

DIGITS_IMAGE_SIZE = 32  # at most, unless asked for: there is no more in them
SHAPES_IMAGE_SIZE = 64


def read_data(options: Options, takes: Model, bad: BadFiles, *, has_values: bool) -> Data:
    """Open the data set, or make a synthetic one. Raises BadFile, a UserError, for a broken file that is not skipped.
    Raises UserError for data or flags that do not suit the network, and if the data cannot be read.

    takes       the model whose input shape the data must have
    bad         collects the names of broken files if these are skipped
    has_values  False for a device without values, which needs only shapes
    """
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


def _made_up(options: Options, takes: Model, own_size: int) -> Data:
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


def _text(options: Options, text: Text, bad: BadFiles, *, reads_pairs: bool) -> Data:
    if options.data in ("digits", "shapes") or options.image_size or options.num_classes:
        raise UserError(f"{options.model} reads text: --data {options.data}, --image-size and --num-classes are for "
                        "images")
    shape = text.of_length(options.sequence_length)
    if options.data == "synthetic":
        return Synthetic((shape.length,), 0, values=False)  # the network makes its own noise
    wanted = WantedText(shape.length, shape.predictions, None if options.vocab is None else Path(options.vocab),
                        options.vocab_size or VOCAB_SIZE,
                        None if options.token_file is None else Path(options.token_file), options.force,
                        pairs=reads_pairs)
    return open_text(Path(options.data), wanted, bad=bad, feed=Feed(1, 0))


def described(data: Data) -> tuple[str, str]:
    """Return two phrases for messages: the noun for the examples, and the unit of their size.
    The pair is ("images", "images") or ("sequences", "tokens a sequence")."""
    return ("images", "images") if len(data.input_shape) == 3 else ("sequences", "tokens a sequence")


def made_ahead(data: Data, examples: int, host_memory: int) -> int:
    """Return how many batches of ``examples`` are loaded in advance, within ``host_memory`` bytes.
    The result is 0 if no thread loads the data."""
    return batches_ahead(data.shapes(examples).nbytes, host_memory) if data.feed is not None else 0
