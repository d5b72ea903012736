"""Data sets: made up, read from what comes with scikit-learn, or opened by their path.

``Data`` says what each of them is to a training; ``opening`` sees which format a path has.
"""

from minidl.data.batch import AnyBatch, Batch, TextBatch
from minidl.data.dataset import Data
from minidl.data.digits import Digits
from minidl.data.feed import Feed, batches_ahead
from minidl.data.opening import WantedImages, WantedText, open_images, open_text
from minidl.data.shapes import Shapes
from minidl.data.source import BadFile, BadFiles
from minidl.data.synthetic import Synthetic

__all__ = ["AnyBatch", "BadFile", "BadFiles", "Batch", "Data", "Digits", "Feed", "Shapes", "Synthetic", "TextBatch",
           "WantedImages", "WantedText", "batches_ahead", "open_images", "open_text"]
