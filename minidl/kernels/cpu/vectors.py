"""Vector instructions for compiled code, where the compiler's own vectorisation would not find them.

The few operations that convolutions need, each written in the compiler's intermediate language, so that it is right on
any processor and fast on those with vectors of at least 32 bytes. Knows registers; no shapes.
"""

from typing import Any

from llvmlite import binding, ir
from numba import extending, types
from numba.core import cgutils

_WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
VECTOR_BYTES = 64 if _WIDE else 32
REGISTERS = 32 if _WIDE else 16
intrinsic: Any = extending.intrinsic  # what it makes is called with other arguments than what is written
INT32, INT64 = ir.IntType(32), ir.IntType(64)


def lane_count(bitwidth: int) -> int:
    """Elements of a vector."""
    return VECTOR_BYTES * 8 // bitwidth


@intrinsic
def lanes(typing_context: Any, array: Any) -> Any:
    """Elements of a vector of this array's dtype, as a constant of the compiled code."""
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.intp, lane_count(array.dtype.bitwidth))
    return types.intp(array), generate


class Vectors:
    """What is emitted for vectors of one dtype: ``v = Vectors(context, builder, dtype)``."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context, self.builder = context, builder
        self.scalar = context.get_value_type(dtype)
        self.bits = dtype.bitwidth
        self.count = lane_count(self.bits)
        self.vector = ir.VectorType(self.scalar, self.count)
        self.mask = ir.VectorType(ir.IntType(1), self.count)
        self.suffix = f"v{self.count}f{self.bits}"
        self.zero = ir.Constant(self.vector, None)

    def at(self, kind: Any, array: Any, offset: Any) -> Any:
        """Address of element ``offset`` of an array."""
        data = self.context.make_array(kind)(self.context, self.builder, array).data
        return self.builder.gep(data, [offset])

    def step(self, address: Any, elements: Any) -> Any:
        """Address that many elements further."""
        return self.builder.gep(address, [ir.Constant(INT64, elements) if isinstance(elements, int) else elements])

    def spread(self, value: Any) -> Any:
        """A vector of one value."""
        kind = ir.VectorType(value.type, self.count)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined),
                                           ir.Constant(ir.VectorType(INT32, self.count), [0] * self.count))

    def below(self, limit: Any) -> Any:
        """The mask of the lanes with a number less than ``limit`` (64 bits)."""
        numbers = ir.Constant(ir.VectorType(INT64, self.count), list(range(self.count)))
        return self.builder.icmp_signed("<", numbers, self.spread(limit))

    def load(self, address: Any, mask: Any = None) -> Any:
        """A vector, whose lanes outside of the mask are zero and are not read."""
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=self.bits // 8)
        kind = ir.FunctionType(self.vector, [pointer.type, INT32, self.mask, self.vector])
        load = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.load.{self.suffix}.p0")
        return self.builder.call(load, [pointer, ir.Constant(INT32, self.bits // 8), mask, self.zero])

    def load_offsets(self, address: Any) -> Any:
        """As many 32-bit integers as a vector has lanes."""
        kind = ir.VectorType(INT32, self.count)
        return self.builder.load(self.builder.bitcast(address, kind.as_pointer()), align=4)

    def scattered(self, origin: Any, offsets: Any) -> Any:
        """The addresses of elements by their offsets (32 bits) from an address."""
        wide = ir.VectorType(INT64, self.count)
        distance = self.builder.mul(self.builder.sext(offsets, wide), ir.Constant(wide, [self.bits // 8] * self.count))
        start = self.spread(self.builder.ptrtoint(origin, INT64))
        return self.builder.inttoptr(self.builder.add(start, distance), ir.VectorType(origin.type, self.count))

    def load_scattered(self, addresses: Any, mask: Any) -> Any:
        """A vector from a vector of addresses; lanes outside of the mask are zero and are not read."""
        kind = ir.FunctionType(self.vector, [addresses.type, INT32, self.mask, self.vector])
        load = cgutils.get_or_insert_function(self.builder.module, kind,
                                              f"llvm.masked.gather.{self.suffix}.v{self.count}p0")
        return self.builder.call(load, [addresses, ir.Constant(INT32, self.bits // 8), mask, self.zero])

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        if mask is None:
            self.builder.store(value, pointer, align=self.bits // 8)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, INT32, self.mask])
        store = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.store.{self.suffix}.p0")
        self.builder.call(store, [value, pointer, ir.Constant(INT32, self.bits // 8), mask])

    def transposed(self, rows: list[Any]) -> list[Any]:
        """The transpose of as many vectors as one has lanes: squares of 2, 4, ... lanes exchange their corners."""
        size = 1
        while size < self.count:
            first = [i + self.count * (i // size % 2) - size * (i // size % 2) for i in range(self.count)]
            second = [i + self.count if i // size % 2 else i + size for i in range(self.count)]
            upper, lower = (ir.Constant(ir.VectorType(INT32, self.count), mask) for mask in (first, second))
            result = list(rows)
            for i in range(self.count):
                if not i // size % 2:
                    result[i] = self.builder.shuffle_vector(rows[i], rows[i + size], upper)
                    result[i + size] = self.builder.shuffle_vector(rows[i], rows[i + size], lower)
            rows, size = result, 2 * size
        return rows

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once where the processor can."""
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind,
                                                                f"llvm.fmuladd.{self.suffix}"), [a, b, c])


def _pick(step: int) -> Any:
    @intrinsic
    def pick(typing_context: Any, target: Any, at: Any, source: Any, base: Any, offsets: Any, offsets_at: Any) -> Any:
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target_, at_, source_, base_, offsets_, offsets_at_ = args
            v = Vectors(context, builder, target.dtype)
            wanted = v.load_offsets(v.at(offsets, offsets_, offsets_at_))
            outside = ir.Constant(wanted.type, None)
            origin, there = v.at(source, source_, base_), v.at(target, target_, at_)
            if step == 0:
                value = v.load_scattered(v.scattered(origin, wanted), builder.icmp_signed(">=", wanted, outside))
            elif step == 1:
                value = v.load(origin, builder.icmp_signed(">=", wanted, outside))
            else:  # every second element of two vectors; what lies between them is not read
                halves = []
                for half in range(2):
                    lanes = [half * v.count // 2 + i // 2 if i % 2 == 0 else v.count for i in range(v.count)]
                    spaced = builder.shuffle_vector(wanted, ir.Constant(wanted.type, [-1] * v.count),
                                                    ir.Constant(wanted.type, lanes))
                    mask = builder.icmp_signed(">=", spaced, outside)
                    halves.append(v.load(v.step(origin, half * v.count), mask))
                value = builder.shuffle_vector(*halves, ir.Constant(wanted.type, [2 * i for i in range(v.count)]))
            v.store(value, there)
            return context.get_dummy_value()
        return types.void(target, index, source, index, offsets, index), generate
    return pick


# One vector, with zeros in the lanes i whose offsets[offsets_at + i] is negative; in the others
pick_run = _pick(step=1)  # target[at + i] = source[base + i]
pick_every_second = _pick(step=2)  # target[at + i] = source[base + 2 i]
pick_scattered = _pick(step=0)  # target[at + i] = source[base + offsets[offsets_at + i]]


def _turn(scattered: bool) -> Any:
    @intrinsic
    def turn(typing_context: Any, target: Any, at: Any, step: Any, count: Any, source: Any, base: Any, row_step: Any,
             rows: Any, offsets: Any, offsets_at: Any) -> Any:
        index = types.intp
        signature = types.void(target, index, index, index, source, index, index, index, offsets, index)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target_, at_, step_, count_, source_, base_, row_step_, rows_, offsets_, offsets_at_ = args
            v = Vectors(context, builder, target.dtype)
            wanted = v.load_offsets(v.at(offsets, offsets_, offsets_at_))
            mask = builder.icmp_signed(">=", wanted, ir.Constant(wanted.type, None))
            block = []
            for i in range(v.count):
                number = ir.Constant(INT64, i)  # rows that there are not: the first one again
                row = builder.select(builder.icmp_signed("<", number, rows_), number, ir.Constant(INT64, 0))
                origin = v.step(v.at(source, source_, base_), builder.mul(row, row_step_))
                block.append(v.load_scattered(v.scattered(origin, wanted), mask) if scattered else v.load(origin, mask))
            block = v.transposed(block)
            for i in range(v.count):
                with builder.if_then(builder.icmp_signed("<", ir.Constant(INT64, i), count_)):
                    v.store(block[i], v.step(v.at(target, target_, at_), builder.mul(step_, ir.Constant(INT64, i))))
            return context.get_dummy_value()
        return signature, generate
    return turn


# The transpose of a square of vectors: row j of it, i < count of them as columns, comes from
turn_run = _turn(scattered=False)  # target[at + i step + j] = source[base + j row_step + i]
turn_scattered = _turn(scattered=True)  # target[at + i step + j] = source[base + j row_step + offsets[offsets_at + i]]
