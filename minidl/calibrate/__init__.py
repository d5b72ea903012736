"""Measure this machine as a device, and write a profile that ``sim:FILE.json`` and ``cpu:FILE.json`` read.

    minidl calibrate [--out FILE] [--quick]

Small networks are trained on the CPU device, and every call's duration is fitted by the terms of its work
(``minidl.device.fitted``); so operations are measured with their operands where training leaves them. Knows no
published network: what is predicted later was not measured here.
"""

from minidl.calibrate.measure import calibrate

__all__ = ["calibrate"]
