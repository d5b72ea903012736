"""``minidl.torch`` on this GPU: the waits of its copies, bits and budgets of a training, and what managing takes.

What needs PyTorch is in ``inside``. Without a GPU the waits are tried on a stand-in, and the training runs on the CPU.
"""

from importlib.util import find_spec

from bench.gpu_check.setting import Record, Setting


def measure(setting: Setting, record: Record) -> None:
    """Record for each wait whether its program is right, and for each contender its seconds, peak and bits."""
    if find_spec("torch") is None:
        record.leave_out("PyTorch is not installed")
        return
    from bench.gpu_check import inside

    inside.measure(setting, record)
