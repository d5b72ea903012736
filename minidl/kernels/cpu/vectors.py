"""Emits vector instructions for compiled code, where automatic vectorisation fails.

The few vector operations that convolutions need, each written in LLVM's intermediate language, so that it is correct on
any processor and fast on those with vectors of at least 32 bytes. A lane is one element of a vector register.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import extending, types
from numba.core import cgutils

_WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
VECTOR_BYTES = 64 if _WIDE else 32
REGISTERS = 32 if _WIDE else 16
# The functions that it decorates are called with other arguments than their source shows.
intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic
INT32, INT64 = ir.IntType(32), ir.IntType(64)


def lane_count(bitwidth: int) -> int:
    """Return the number of elements of ``bitwidth`` bits in a vector register of this processor."""
    return VECTOR_BYTES * 8 // bitwidth


@intrinsic
def lanes(typing_context: Any, array: Any) -> Any:
    """Return the number of elements of the array's dtype in a vector register, as a compile-time constant."""
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.intp, lane_count(array.dtype.bitwidth))
    return types.intp(array), generate


class Vectors:
    """Emits code for vectors of one dtype: ``v = Vectors(context, builder, dtype)``.

    ``stored`` is the dtype in memory if it differs: 16-bit floats (as in elements.py) are converted when loaded.
    """

    def __init__(self, context: Any, builder: Any, dtype: Any, stored: Any = None) -> None:
        self.context, self.builder = context, builder
        self.stored = stored or dtype
        self.scalar = context.get_value_type(dtype)
        self.bits = dtype.bitwidth
        self.count = lane_count(self.bits)
        self.vector = ir.VectorType(self.scalar, self.count)
        self.mask = ir.VectorType(ir.IntType(1), self.count)
        self.suffix = f"v{self.count}f{self.bits}"
        self.zero = ir.Constant(self.vector, None)
        self.loaded = ir.VectorType(context.get_value_type(self.stored), self.count)
        self.stored_bytes = self.stored.bitwidth // 8

    def at(self, kind: Any, array: Any, offset: Any) -> Any:
        """Return the address of element ``offset`` of an array."""
        data = self.context.make_array(kind)(self.context, self.builder, array).data
        return self.builder.gep(data, [offset])

    def step(self, address: Any, elements: Any) -> Any:
        """Return the address that is ``elements`` elements after ``address``."""
        return self.builder.gep(address, [ir.Constant(INT64, elements) if isinstance(elements, int) else elements])

    def spread(self, value: Any) -> Any:
        """Return a vector with one value in all lanes."""
        kind = ir.VectorType(value.type, self.count)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined),
                                           ir.Constant(ir.VectorType(INT32, self.count), [0] * self.count))

    def below(self, limit: Any) -> Any:
        """Return a mask of the lanes whose number (from 0) is below ``limit``, a signed 64-bit value of that code."""
        numbers = ir.Constant(ir.VectorType(INT64, self.count), list(range(self.count)))
        return self.builder.icmp_signed("<", numbers, self.spread(limit))

    def load(self, address: Any, mask: Any = None) -> Any:
        """Load a vector; lanes outside the mask are zero and are not read."""
        pointer = self.builder.bitcast(address, self.loaded.as_pointer())
        if mask is None:
            return self.decoded(self.builder.load(pointer, align=self.stored_bytes))
        return self.decoded(self._masked("load", "p0", pointer, mask))

    def load_piece(self, address: Any, mask: Any) -> Any:
        """Load as many elements as the mask has lanes, without conversion; others are zero and are not read."""
        kind = ir.VectorType(self.loaded.element, mask.type.count)
        return self._masked("load", "p0", self.builder.bitcast(address, kind.as_pointer()), mask)

    def _masked(self, name: str, suffix: str, source: Any, mask: Any) -> Any:
        result = ir.VectorType(self.loaded.element, mask.type.count)
        kind = ir.FunctionType(result, [source.type, INT32, mask.type, result])
        element = f"f{self.bits}" if self.loaded == self.vector else "i16"
        load = cgutils.get_or_insert_function(self.builder.module, kind,
                                              f"llvm.masked.{name}.v{result.count}{element}.{suffix}")
        return self.builder.call(load, [source, ir.Constant(INT32, self.stored_bytes), mask,
                                        ir.Constant(result, None)])

    def decoded(self, loaded: Any) -> Any:
        """Return a loaded vector converted to the dtype of computation, by the formulas of half.py."""
        if self.loaded == self.vector:
            return loaded
        wide = ir.VectorType(INT32, self.count)

        def all_lanes(value: int) -> Any:
            return ir.Constant(wide, [value] * self.count)
        b, bits = self.builder, self.builder.zext(loaded, wide)
        if self.stored == types.uint16:
            return b.bitcast(b.shl(bits, all_lanes(16)), self.vector)
        sign = b.shl(b.and_(bits, all_lanes(0x8000)), all_lanes(16))
        size = b.shl(b.and_(bits, all_lanes(0x7FFF)), all_lanes(13))
        factor = ir.Constant(self.vector, [ir.Constant(self.scalar, 2.0**112)] * self.count)
        scaled = b.bitcast(b.fmul(b.bitcast(size, self.vector), factor), wide)
        special = b.icmp_unsigned(">=", size, all_lanes(0x0F800000))
        value = b.select(special, b.or_(size, all_lanes(0x7F800000)), scaled)
        return b.bitcast(b.or_(value, sign), self.vector)

    def load_offsets(self, address: Any) -> Any:
        """Load one 32-bit integer for each lane."""
        kind = ir.VectorType(INT32, self.count)
        return self.builder.load(self.builder.bitcast(address, kind.as_pointer()), align=4)

    def scattered(self, origin: Any, offsets: Any) -> Any:
        """Return the addresses of the elements at a vector of 32-bit offsets from the address ``origin``."""
        wide = ir.VectorType(INT64, self.count)
        nbytes = ir.Constant(wide, [self.stored_bytes] * self.count)
        distance = self.builder.mul(self.builder.sext(offsets, wide), nbytes)
        start = self.spread(self.builder.ptrtoint(origin, INT64))
        return self.builder.inttoptr(self.builder.add(start, distance), ir.VectorType(origin.type, self.count))

    def load_scattered(self, addresses: Any, mask: Any) -> Any:
        """Load a vector from a vector of addresses; lanes outside the mask are zero and are not read."""
        return self.decoded(self._masked("gather", f"v{self.count}p0", addresses, mask))

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Store a vector at an address; lanes outside the mask are not written."""
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        if mask is None:
            self.builder.store(value, pointer, align=self.bits // 8)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, INT32, self.mask])
        store = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.masked.store.{self.suffix}.p0")
        self.builder.call(store, [value, pointer, ir.Constant(INT32, self.bits // 8), mask])

    def transposed(self, rows: list[Any]) -> list[Any]:
        """Return the transpose of a square matrix of elements, whose rows are as many vectors as a vector has lanes."""
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
        """Return a * b + c, rounded once if the processor can."""
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind,
                                                                f"llvm.fmuladd.{self.suffix}"), [a, b, c])


def _pick(scattered: bool) -> Any:
    @intrinsic
    def pick(typing_context: Any, target: Any, at: Any, source: Any, base: Any, offsets: Any, offsets_at: Any) -> Any:
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target_, at_, source_, base_, offsets_, offsets_at_ = args
            v = Vectors(context, builder, target.dtype, source.dtype)
            wanted = v.load_offsets(v.at(offsets, offsets_, offsets_at_))
            mask = builder.icmp_signed(">=", wanted, ir.Constant(wanted.type, None))
            origin = v.at(source, source_, base_)
            value = v.load_scattered(v.scattered(origin, wanted), mask) if scattered else v.load(origin, mask)
            v.store(value, v.at(target, target_, at_))
            return context.get_dummy_value()
        return types.void(target, index, source, index, offsets, index), generate
    return pick


def _pick_every_second(parts: int) -> Any:
    @intrinsic
    def pick(typing_context: Any, target: Any, at: Any, source: Any, base: Any, offsets: Any, offsets_at: Any,
             starts: Any) -> Any:
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target_, at_, source_, base_, offsets_, offsets_at_, starts_ = args
            v = Vectors(context, builder, target.dtype, source.dtype)
            wanted = v.load_offsets(v.at(offsets, offsets_, offsets_at_))
            share, first, origin = v.count // parts, v.at(starts, starts_, offsets_at_), v.at(source, source_, base_)
            pieces = []
            for part in range(parts):  # a part spans twice as many elements; every second one is not read
                lanes = [part * share + i // 2 if i % 2 == 0 else v.count for i in range(2 * share)]
                spaced = builder.shuffle_vector(wanted, ir.Constant(wanted.type, [-1] * v.count),
                                                ir.Constant(ir.VectorType(INT32, 2 * share), lanes))
                mask = builder.icmp_signed(">=", spaced, ir.Constant(spaced.type, None))
                start = builder.sext(builder.load(v.step(first, part * share)), INT64)
                pieces.append(v.load_piece(v.step(origin, start), mask))
            while len(pieces) > 2:
                size = 2 * pieces[0].type.count
                together = ir.Constant(ir.VectorType(INT32, size), list(range(size)))
                pieces = [builder.shuffle_vector(*pieces[i:i + 2], together) for i in range(0, len(pieces), 2)]
            evens = ir.Constant(ir.VectorType(INT32, v.count), [2 * i for i in range(v.count)])
            v.store(v.decoded(builder.shuffle_vector(*pieces, evens)), v.at(target, target_, at_))
            return context.get_dummy_value()
        return types.void(target, index, source, index, offsets, index, starts), generate
    return pick


# One vector, with zeros in the lanes i whose offsets[offsets_at + i] is negative; in the others
pick_run = _pick(scattered=False)  # target[at + i] = source[base + i]
pick_scattered = _pick(scattered=True)  # target[at + i] = source[base + offsets[offsets_at + i]]
# and for lane i of a half, or quarter, of the lanes from j on: target[at + i] = source[base + start + 2 (i - j)] with
# start = starts[offsets_at + j].
pick_halves, pick_quarters = _pick_every_second(2), _pick_every_second(4)


def _turn(scattered: bool) -> Any:
    @intrinsic
    def turn(typing_context: Any, target: Any, at: Any, step: Any, count: Any, source: Any, base: Any, row_step: Any,
             rows: Any, offsets: Any, offsets_at: Any) -> Any:
        index = types.intp
        signature = types.void(target, index, index, index, source, index, index, index, offsets, index)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target_, at_, step_, count_, source_, base_, row_step_, rows_, offsets_, offsets_at_ = args
            v = Vectors(context, builder, target.dtype, source.dtype)
            wanted = v.load_offsets(v.at(offsets, offsets_, offsets_at_))
            mask = builder.icmp_signed(">=", wanted, ir.Constant(wanted.type, None))
            block = []
            for i in range(v.count):
                number = ir.Constant(INT64, i)  # missing rows are replaced by the first one
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
