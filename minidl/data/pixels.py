"""Pixels out of encoded images: decoding, the part that is shown, normalisation. Knows one image, and no data set.

Pillow decodes; it is imported when the first image is. A file may claim any size: it is held against a limit before
anything is allocated for it.
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

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM")  # Pillow knows more; some of those run other programs
MOST_PIXELS = 80_000_000  # of an image: 240 MB decoded
# Of ImageNet's training images, 0 to 1 (red, green, blue): what published weights were trained with.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GREY_MEAN, GREY_DEVIATION = sum(MEAN) / 3, sum(DEVIATION) / 3
CENTRE = 0.875  # of a test image's shorter side: 224 pixels of 256
VOID = 255  # in a mask: pixels that do not count
IGNORED = -100  # their label


@dataclass(frozen=True, slots=True)
class View:
    """The part of an image that is shown, in its pixels, and whether it is mirrored."""

    left: float
    top: float
    width: float
    height: float
    mirrored: bool = False


def random_view(width: int, height: int, random: np.random.Generator, *, least: float = 0.08) -> View:
    """A view of ``least`` to 1 of the area, 3:4 to 4:3, anywhere; half of them mirrored.

    Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, section 6. What never fits in ten tries is the middle.
    """
    mirrored = bool(random.random() < 0.5)
    for _ in range(10):
        area = width * height * random.uniform(least, 1.0)
        ratio = exp(random.uniform(log(3 / 4), log(4 / 3)))
        w, h = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return View(int(random.integers(width - w + 1)), int(random.integers(height - h + 1)), w, h, mirrored)
    widest, highest = min(width, height * 4 / 3), min(height, width * 4 / 3)
    return View((width - widest) / 2, (height - highest) / 2, widest, highest, mirrored)


def central_view(width: int, height: int) -> View:
    """The square in the middle that test images are cut to."""
    side = CENTRE * min(width, height)
    return View((width - side) / 2, (height - side) / 2, side, side)


def whole(width: int, height: int) -> View:
    """The view that shows all of an image."""
    return View(0, 0, width, height)


def decode(data: bytes, name: str, *, mode: str | None) -> Any:
    """Decode an image, to Pillow's; ``mode`` L or RGB, None: as it is. Raises BadFile, and UserError without Pillow."""
    pillow = _pillow()
    try:
        image = pillow.open(BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise BadFile(name, f"{width} x {height} pixels, and at most {MOST_PIXELS} are decoded")
        image.load()
        if mode is None or image.mode == mode:
            return image
        # A palette may have transparency, which Pillow warns about unless it has a channel for it.
        return (image.convert("RGBA") if "transparency" in image.info else image).convert(mode)
    except BadFile:
        raise
    except Exception as error:  # decoders raise whatever they stumble over
        if type(error).__name__ == "UnidentifiedImageError":
            raise BadFile(name, f"not an image in one of the formats {', '.join(FORMATS)}") from None
        raise BadFile(name, f"not an image that can be decoded: {error or type(error).__name__}") from None


def pixels(image: Any, view: View, size: int, *, out: np.ndarray) -> None:
    """A view of an image of mode L or RGB, resized to ``size`` a side, normalised.  out: [C, size, size], float32."""
    shown = np.asarray(_shown(image, view, size, _pillow().Resampling.BILINEAR), np.float32)
    if out.shape[0] == 1:
        np.multiply(shown, 1 / (255 * GREY_DEVIATION), out=out[0])
        out[0] -= GREY_MEAN / GREY_DEVIATION
        return
    for channel, (mean, deviation) in enumerate(zip(MEAN, DEVIATION, strict=True)):
        np.multiply(shown[..., channel], 1 / (255 * deviation), out=out[channel])
        out[channel] -= mean / deviation


def classes_of(mask: Any, view: View, size: int, name: str, *, num_classes: int, out: np.ndarray) -> None:
    """A view of a mask, a class a pixel; 255 is IGNORED, or with two classes the second.  out: [size, size], int64.

    Raises BadFile if it is no image of numbers, or a pixel has a class that there is not.
    """
    if mask.mode not in ("L", "P", "1"):
        raise BadFile(name, f"a mask is one number a pixel, and this image is {mask.mode}")
    values = np.asarray(mask, np.int64)  # before resizing: what is wrong is wrong wherever the view is
    top = 255 if mask.mode != "1" else 1
    wrong = values[(values >= num_classes) & (values != VOID)]
    if wrong.size:
        raise BadFile(name, f"a pixel of class {wrong[0]}, and there are {num_classes} (0 to {num_classes - 1})")
    shown = np.asarray(_shown(mask, view, size, _pillow().Resampling.NEAREST), np.int64)
    out[:] = np.where(shown == VOID, 1 if num_classes == 2 else IGNORED, shown) if top == 255 else shown


def _shown(image: Any, view: View, size: int, how: Any) -> Any:
    box = view.left, view.top, view.left + view.width, view.top + view.height
    resized = image.resize((size, size), how, box=box)
    return resized.transpose(_pillow().Transpose.FLIP_LEFT_RIGHT) if view.mirrored else resized


@cache
def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UserError('images need Pillow, which is not installed: pip install "minidl[data]"') from None
    # About metadata that nobody reads here; the limit of pixels is ours.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image
