"""``python stubbed_listing.py``: print cuDNN's plans for some convolutions on an absent H200, as JSON.

The driver that ``LD_LIBRARY_PATH`` finds answers for the machine.
"""

import ctypes
import json
from pathlib import Path

ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)

from minidl.device.cuda.cudnn_graphs import CudnnGraphs  # noqa: E402 - after the driver
from minidl.device.cuda.seam import Convolution  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = CudnnGraphs((ROOT / "bench/gpu_properties/h200.json").read_text(encoding="utf-8"))
FOUND = {f"{kind} {dtype}": [(p.name, p.workspace, p.deterministic, p.tensor_cores) for p in GRAPHS.plans(Convolution(
    kind, dtype, (64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56), (1, 1), (1, 1), tf32))]
    for kind in ("conv2d", "conv2d_dgrad", "conv2d_wgrad") for dtype, tf32 in (("float32", True), ("bfloat16", False))}
print(json.dumps(FOUND))
