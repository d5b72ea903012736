"""Data sets: synthetic ones, the digits of scikit-learn, or files and folders opened by their path.

``Data`` is the interface of a data set; ``opening`` recognises the format of a path.
"""

from minidl.data.batch import AnyBatch, Batch, TextBatch, TokenBatch
from minidl.data.builtin import Digits, Shapes, Synthetic
from minidl.data.dataset import Data
from minidl.data.feed import Feed, batches_ahead
from minidl.data.opening import WantedImages, WantedText, open_images, open_text
from minidl.data.source import BadFile, BadFiles

__all__ = ["AnyBatch", "BadFile", "BadFiles", "Batch", "Data", "Digits", "Feed", "Shapes", "Synthetic", "TextBatch",
           "TokenBatch", "WantedImages", "WantedText", "batches_ahead", "open_images", "open_text"]
