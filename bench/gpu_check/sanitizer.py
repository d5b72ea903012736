"""NVIDIA's ``compute-sanitizer`` over a few operations, where it is installed: accesses outside what is allocated."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu_check.setting import Record, Setting

PROGRAM = "compute-sanitizer"


def measure(setting: Setting, record: Record) -> None:
    """Record the errors that compute-sanitizer finds in the smallest run of the operations."""
    found = shutil.which(PROGRAM)
    if found is None:
        record.leave_out(f"{PROGRAM} is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "gpu").mkdir()  # where the part writes
        command = [found, "--tool", "memcheck", sys.executable, "-m", "bench.gpu_check.command", "--one",
                   "ops", "--device", setting.device, "--sizes", "tiny", "--out", folder]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False,
                                 timeout=max(1.0, min(setting.seconds_left(), 600.0)))
        except subprocess.TimeoutExpired:
            record.leave_out(f"{PROGRAM} was ended: the time is up")
            return
    summary = re.search(r"ERROR SUMMARY: (\d+) error", run.stdout + run.stderr)
    if summary is None:
        record.leave_out(f"{PROGRAM} did not come to an end: {(run.stderr or run.stdout).strip()[-200:]}")
        return
    record.put("errors", int(summary[1]), f"{PROGRAM}: {summary[1]} errors")
    if int(summary[1]):
        lines = [line for line in run.stdout.splitlines() if "Invalid" in line][:3]
        record.fail(f"{PROGRAM}: {summary[1]} errors, as {'; '.join(lines)}")
