"""Checkpoints of a training: safetensors and JSON with checksums, written so that a complete one always exists.

``durable`` knows files, ``safetensors`` the format, ``store`` a folder of checkpoints, ``state`` the contents.
"""

from minidl.checkpoint.safetensors import CorruptFile
from minidl.checkpoint.state import Fixed, documents_of, restore, send_rows, tensors_of
from minidl.checkpoint.store import Checkpoint, Store, read_checkpoint

__all__ = ["Checkpoint", "CorruptFile", "Fixed", "Store", "documents_of", "read_checkpoint", "restore", "send_rows",
           "tensors_of"]
