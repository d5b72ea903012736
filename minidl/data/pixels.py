"""Decodes one encoded image: decoding, cropping, resizing, normalisation.

Pillow decodes; it is imported with the first image. A file may claim any size: it is checked against a limit before
anything is allocated. Images that are not simply 8 bits of grey or colour are handled as follows:

  16 bits a channel   the upper 8 count, for grey and colours
  transparency        shown on a white page, for a channel, a colour or entries of a palette
  palettes            the colours they name
  CMYK                Pillow's formula; colour profiles and gamma are ignored
  orientation         of EXIF: the image is turned as viewers turn it
  animations          the first frame

A mask's numbers are used as stored, and a mask whose numbers a decoder would stretch is refused.
"""

import warnings
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from math import exp, log, sqrt
from typing import Any

import numpy as np

from minidl.data.source import BadFile
from minidl.errors import UserError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM")  # Pillow has more formats; some of them run other programs
MOST_PIXELS = 80_000_000  # of an image: 240 MB decoded
# Mean and deviation of ImageNet's training images, 0 to 1 (red, green, blue), as used for published weights.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_MEAN, GREY_DEVIATION = sum(MEAN) / 3, sum(DEVIATION) / 3
CENTRE = 0.875  # of a test image's shorter side: 224 pixels of 256
VOID = 255  # the class of a mask's pixels that do not count
IGNORED = -100  # the label of VOID pixels
ORIENTATION = 0x0112  # of EXIF: 1 is upright
TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
         8: "ROTATE_90"}  # Pillow's names of the turns that make an image upright


@dataclass(frozen=True, slots=True)
class Crop:
    """The part of an image that a network sees, in the image's pixels. mirrored: left and right change places."""

    left: float
    top: float
    width: float
    height: float
    mirrored: bool = False


def random_view(width: int, height: int, random: np.random.Generator, *, least: float = 0.08) -> Crop:
    """Return a random part of an image: its area a share from ``least`` to 1, its aspect 3:4 to 4:3; half are mirrored.

    Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, section 6. If ten tries do not fit, it is the centre.
    """
    mirrored = bool(random.random() < 0.5)
    for _ in range(10):
        area = width * height * random.uniform(least, 1.0)
        ratio = exp(random.uniform(log(3 / 4), log(4 / 3)))
        w, h = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return Crop(int(random.integers(width - w + 1)), int(random.integers(height - h + 1)), w, h, mirrored)
    widest, highest = min(width, height * 4 / 3), min(height, width * 4 / 3)
    return Crop((width - widest) / 2, (height - highest) / 2, widest, highest, mirrored)


def central_view(width: int, height: int) -> Crop:
    """Return the central square of an image, with 0.875 of its shorter side, to which test images are cut."""
    side = CENTRE * min(width, height)
    return Crop((width - side) / 2, (height - side) / 2, side, side)


def whole(width: int, height: int) -> Crop:
    """Return the part of an image that is all of it."""
    return Crop(0, 0, width, height)


def decode(data: bytes, name: str, *, mode: str | None) -> Any:
    """Decode an image file's bytes; return an upright Pillow image. name: the file, for messages.

    mode: "L" or "RGB"; None for a mask, which is not converted. Raises BadFile for an image that cannot be
    decoded or has more than 80 million pixels, UserError without Pillow.
    """
    pillow = _pillow()
    try:
        image = pillow.open(BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise BadFile(name, f"{width} x {height} pixels; at most {MOST_PIXELS} are decoded")
        if mode is None and _is_stretched(image):
            raise BadFile(name, "its classes have fewer than 8 bits a pixel, or another maximum than 255, and would be "
                                "stretched: a mask is one number of 8 bits a pixel")
        image.load()
        turn = TURNS.get(orientation(image))
        shown = image if mode is None or image.mode == mode and "transparency" not in image.info else _plain(
            image, name).convert(mode)
        return shown if turn is None else shown.transpose(pillow.Transpose[turn])
    except BadFile:
        raise
    except Exception as error:  # decoders raise many types of errors
        if type(error).__name__ == "UnidentifiedImageError":
            raise BadFile(name, f"not an image in one of the formats {', '.join(FORMATS)}") from None
        raise BadFile(name, f"not an image that can be decoded: {error or type(error).__name__}") from None


def orientation(image: Any) -> int:
    """Return a Pillow image's EXIF orientation, 1 (upright, or unknown) to 8."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged metadata does not mean damaged pixels
        return 1
    return found if found in TURNS else 1


def _plain(image: Any, name: str) -> Any:
    """Return an image of 8 bits per channel, without transparency. Raises BadFile for floating-point pixels."""
    if image.mode == "F":
        raise BadFile(name, "its pixels are floating-point numbers without a known value of white")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if "transparency" in image.info:
            values[values == image.info["transparency"]] = 0xFFFF
        return _pillow().fromarray((values >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image
    page = _pillow().new("RGBA", image.size, "white")
    page.alpha_composite(image.convert("RGBA"))
    return page.convert("RGB")


def _is_stretched(image: Any) -> bool:
    """Return True if decoding a grey Pillow image, which is only open yet, would stretch its numbers to 0 to 255."""
    return image.mode == "L" and any(tile[3] in ("L;2", "L;4") or tile[0] in ("ppm", "ppm_plain")
                                     and tile[3][-1] != 255 for tile in image.tile)


def pixels(image: Any, view: Crop, size: int, *, out: np.ndarray) -> None:
    """Write the part ``view`` of an L or RGB image, resized and normalised, to ``out`` [C, size, size], float32."""
    shown = np.asarray(_shown(image, view, size, _pillow().Resampling.BILINEAR), np.float32)
    if out.shape[0] == 1:
        np.multiply(shown, 1 / (255 * GREY_DEVIATION), out=out[0])
        out[0] -= GREY_MEAN / GREY_DEVIATION
        return
    for channel, (mean, deviation) in enumerate(zip(MEAN, DEVIATION, strict=True)):
        np.multiply(shown[..., channel], 1 / (255 * deviation), out=out[channel])
        out[channel] -= mean / deviation


def classes_of(mask: Any, view: Crop, size: int, name: str, *, num_classes: int, out: np.ndarray) -> None:
    """Write the part ``view`` of a mask, resized, to ``out`` [size, size], int64: one class per pixel.

    255 becomes IGNORED (-100) or, with two classes, 1. Raises BadFile for a mask in colours or an unknown class.
    """
    if mask.mode not in ("L", "P", "1"):
        raise BadFile(name, f"a mask is one number per pixel, but this image is {mask.mode}")
    values = np.asarray(mask, np.int64)  # check the whole mask, not only the view
    top = 255 if mask.mode != "1" else 1
    wrong = values[(values >= num_classes) & (values != VOID)]
    if wrong.size:
        raise BadFile(name, f"a pixel of class {wrong[0]}, but there are only {num_classes} (0 to {num_classes - 1})")
    shown = np.asarray(_shown(mask, view, size, _pillow().Resampling.NEAREST), np.int64)
    out[:] = np.where(shown == VOID, 1 if num_classes == 2 else IGNORED, shown) if top == 255 else shown


def _shown(image: Any, view: Crop, size: int, how: Any) -> Any:
    box = view.left, view.top, view.left + view.width, view.top + view.height
    resized = image.resize((size, size), how, box=box)
    return resized.transpose(_pillow().Transpose.FLIP_LEFT_RIGHT) if view.mirrored else resized


@cache
def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UserError('images need Pillow, which is not installed: pip install "minidl[data]"') from None
    # These warnings concern metadata, which is not used; minidl has its own limit of pixels.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image
