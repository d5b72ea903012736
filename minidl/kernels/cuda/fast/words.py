"""Loads and stores of 16 and of 8 bytes as single instructions, for the compiler. Only ``compile`` imports this.

LLVM would split such an access into words of four bytes, because it cannot know the alignment of pointers; here it is
told.
"""

from typing import Any

from llvmlite import ir
from numba import types

from minidl.kernels.cuda.numba_cuda import intrinsic

WORD = ir.IntType(32)


def _place(builder: Any, pointer: Any, index: Any, count: int) -> Any:
    """Return the address of the index-th group of ``count`` words of 32 bits after ``pointer``."""
    several = ir.VectorType(WORD, count)
    return builder.gep(builder.bitcast(pointer, several.as_pointer()), [index])


def _loader(count: int) -> Any:
    @intrinsic
    def load_words(typing_context: Any, pointer: Any, index: Any) -> Any:
        """Load the index-th group of ``count`` words of 32 bits."""
        signature = types.UniTuple(types.uint32, count)(pointer, types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(_place(builder, arguments[0], arguments[1], count), align=4 * count)
            words = [builder.extract_element(value, ir.Constant(WORD, k)) for k in range(count)]
            return context.make_tuple(builder, signature.return_type, words)
        return signature, generate
    return load_words


def _storer(count: int) -> Any:
    @intrinsic
    def store_words(typing_context: Any, pointer: Any, index: Any, words: Any) -> Any:
        """Store the index-th group of ``count`` words of 32 bits."""
        signature = types.void(pointer, types.int64, types.UniTuple(types.uint32, count))

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = ir.Constant(ir.VectorType(WORD, count), ir.Undefined)
            for k in range(count):
                value = builder.insert_element(value, builder.extract_value(arguments[2], k), ir.Constant(WORD, k))
            builder.store(value, _place(builder, arguments[0], arguments[1], count), align=4 * count)
            return context.get_dummy_value()
        return signature, generate
    return store_words


@intrinsic
def pair(typing_context: Any, low: Any, high: Any) -> Any:
    """Return two float32 rounded to bfloat16 in one word, by the instruction that GPUs have since Ampere."""
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(WORD, [ir.FloatType()] * 2)
        return builder.asm(kind, "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", arguments, side_effect=False)
    return types.uint32(types.float32, types.float32), generate


PAIRS_SINCE = (8, 0)  # compute capability
ACCESS = {count: (_loader(count), _storer(count)) for count in (2, 4)}  # (load, store) by words
