"""A GPU of one rank, over the vendor that judges each call, and exchanges on tensors that lie anywhere in its arena."""

from types import SimpleNamespace

from fake_cuda import JudgedCuda, strided

from minidl.device import profiles
from minidl.meta import Cost, aligned
from minidl.parts.slicing.exchange import SUM_RANKS

PROFILE = profiles.get("h200")


def gpu(network=None, rank=0, made=JudgedCuda, **options):
    return made(PROFILE, numerics=True, network=network, uuid=f"GPU-{rank}", **options)


class Operand:
    """A tensor that lies at an offset of the arena."""

    def __init__(self, offset, size, described):
        self.meta = described
        self.block = SimpleNamespace(offset=offset, size=size)
        self.base = self


class Bench:
    """A GPU of one rank whose arena is filled from the front."""

    def __init__(self, network, ranks):
        self.ranks, self.device = ranks, gpu(network, ranks.rank, depth=64)
        self.device.attach(1 << 22, 1 << 20)
        self.device.join(ranks)
        self.free = 0

    def empty(self, described):
        """An operand with bytes of its own that holds nonsense. Views have them behind an offset."""
        reach = sum((d - 1) * s for d, s in zip(described.shape, described.strides, strict=True))
        extent = described.offset + 1 + reach
        made = Operand(self.free, aligned(extent * described.dtype.itemsize), described)
        self.free += made.block.size + 256
        self.array(made)[...] = -77
        return made

    def put(self, described, values):
        made = self.empty(described)
        self.array(made)[...] = values
        return made

    def array(self, operand):
        return strided(self.device.address(operand), operand.meta.shape, operand.meta.strides, operand.meta.dtype.name)

    def run(self, op, inputs, attrs, donated=False):
        """Launch the exchange; return the outputs. donated: they take the bytes of the first inputs where they can."""
        metas = tuple([x.meta for x in inputs])
        fixed = attrs | {"ranks": self.ranks, "turn": "a test"}
        made = self.device.lay_out(op.name, metas, op.describe(metas, fixed))
        takes = donated and op is SUM_RANKS
        outputs = [inputs[i] if takes and inputs[i].meta == y else self.empty(y) for i, y in enumerate(made)]
        (algorithm,) = self.device.algorithms(op.name, metas, made, fixed, Cost(0.0, 0.0, "exchange"))
        self.device.launch(op.name, algorithm, outputs, inputs, fixed, self.free)
        self.free += aligned(algorithm.workspace)
        return [self.device.read(y) for y in outputs], algorithm.workspace
