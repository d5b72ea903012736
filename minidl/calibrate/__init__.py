"""Measures this machine as a device, and writes a profile that ``sim:FILE.json`` and ``cpu:FILE.json`` read.

    minidl calibrate [--out FILE] [--quick]

Small networks are trained on the CPU device, and every call's duration is fitted by the terms of its work
(``minidl.device.fitted``): operations, bytes and so on, each with a rate. So the operands of measured operations are in
memory as in a real training. No published network is measured: predictions of these are real predictions.
"""

from minidl.calibrate.measure import calibrate

__all__ = ["calibrate"]
