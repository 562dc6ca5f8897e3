"""Sixteen floats at a time, by address: the few vector instructions the hot loops are written in.

Why not leave it to the compiler: plain loops over the same blocks take about 1.6 times as long, because it reloads
and stores running sums for every row and picks narrower registers. `tile_plain` has the plain loops.

`Lanes` is LLVM's <16 x float>; on machines with narrower registers LLVM splits it. Comparisons are ordered and nothing
here is reassociated or contracted, so NaN, infinities and rounding keep their meaning. Addresses are plain integers:
whoever passes them keeps the arrays alive and in bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

NUM_LANES = 16
VECTOR_BYTES = 4 * NUM_LANES
BLOCK = 64  # coordinates that are taken together: four vectors

_F32, _F64, _I32 = ir.FloatType(), ir.DoubleType(), ir.IntType(32)
_VECTOR = ir.VectorType(_F32, NUM_LANES)
_HALVES = ir.VectorType(ir.HalfType(), NUM_LANES)
_WIDE = ir.VectorType(_F64, NUM_LANES // 2)
_KEYS = ir.VectorType(_I32, NUM_LANES)


declare: Any = cgutils.get_or_insert_function
instruction: Any = intrinsic  # its results exist only inside kernels, out of a type checker's sight


class Lanes(types.Type):
    """Numba's type of one vector."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, _VECTOR)  # type: ignore[no-untyped-call]


_lanes = Lanes()


def _on_lanes(num_lanes: int, build: Callable[..., Any], returns: Any = _lanes) -> Any:
    """An instruction whose arguments are all lanes."""
    names = ", ".join("abcdef"[:num_lanes])
    signature = returns(*[_lanes] * num_lanes)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return build(builder, *args)

    scope: dict[str, Any] = {"signature": signature, "emit": emit}
    exec(f"def operation(typingctx, {names}): return signature, emit", scope)
    return instruction(scope["operation"])


def _constant(value: float) -> Any:
    return ir.Constant(_VECTOR, [ir.Constant(_F32, value)] * NUM_LANES)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@instruction
def load(typingctx, address):  # type: ignore[no-untyped-def]
    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(_pointer(builder, args[0], _VECTOR), align=4, typ=_VECTOR)

    return _lanes(types.intp), emit


@instruction
def load_stored(typingctx, address, index, kind):  # type: ignore[no-untyped-def]
    """The index-th vector after an address, stored as the type of `kind`: float32, or half precision as uint16."""
    stored = _VECTOR if kind == types.float32 else _HALVES
    size = VECTOR_BYTES if kind == types.float32 else VECTOR_BYTES // 2

    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        offset = builder.mul(args[1], ir.Constant(args[1].type, size))
        values = builder.load(_pointer(builder, builder.add(args[0], offset), stored), align=size // 16, typ=stored)
        return values if kind == types.float32 else builder.fpext(values, _VECTOR)

    return _lanes(types.intp, types.intp, kind), emit


@instruction
def store(typingctx, address, values):  # type: ignore[no-untyped-def]
    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[1], _pointer(builder, args[0], _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, _lanes), emit


@instruction
def prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an address, into the second-level cache."""

    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _I32, _I32, _I32])
        function = declare(builder.module, kind, "llvm.prefetch.p0")
        read, second_level, data = (ir.Constant(_I32, value) for value in (0, 2, 1))
        builder.call(function, [_pointer(builder, args[0], ir.IntType(8)), read, second_level, data])
        return context.get_dummy_value()

    return types.void(types.intp), emit


@instruction
def splat(typingctx, value):  # type: ignore[no-untyped-def]
    """The same float32 in every lane."""

    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), args[0], ir.Constant(_I32, 0))
        order = ir.Constant(_KEYS, [ir.Constant(_I32, 0)] * NUM_LANES)
        return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), order)

    return _lanes(types.float32), emit


@instruction
def add_wide(typingctx, address, values):  # type: ignore[no-untyped-def]
    """Fold the lanes to eight and add them to the eight float64 at an address."""

    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        def half(first: int) -> Any:
            order = ir.VectorType(_I32, NUM_LANES // 2)
            places = [ir.Constant(_I32, first + lane) for lane in range(NUM_LANES // 2)]
            return builder.shuffle_vector(args[1], ir.Constant(_VECTOR, ir.Undefined), ir.Constant(order, places))

        folded = builder.fpext(builder.fadd(half(0), half(NUM_LANES // 2)), _WIDE)
        place = _pointer(builder, args[0], _WIDE)
        builder.store(builder.fadd(builder.load(place, align=8, typ=_WIDE), folded), place, align=8)
        return context.get_dummy_value()

    return types.void(types.intp, _lanes), emit


@instruction
def add_products(typingctx, address, a, b):  # type: ignore[no-untyped-def]
    """Multiply the BLOCK floats at `a` and `b` and add them, lane by lane, to the eight float64 at an address.

    The products are exact in float64 and the order of the sums is spelled out: a compiler that is left to reorder a
    sum may do so differently each time it compiles it, and a run resumed by another process would part from itself.
    """

    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        part = ir.VectorType(_F32, NUM_LANES // 2)

        def product(index: int) -> Any:
            offset = ir.Constant(args[1].type, index * VECTOR_BYTES // 2)
            x, y = (
                builder.fpext(builder.load(_pointer(builder, builder.add(at, offset), part), align=4, typ=part), _WIDE)
                for at in args[1:]
            )
            return builder.fmul(x, y)

        place = _pointer(builder, args[0], _WIDE)
        even, odd = builder.load(place, align=8, typ=_WIDE), product(1)
        for index in range(0, 2 * BLOCK // NUM_LANES, 2):
            even = builder.fadd(even, product(index))
            odd = builder.fadd(odd, product(index + 1)) if index else odd
        builder.store(builder.fadd(even, odd), place, align=8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), emit


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = declare(builder.module, kind, f"llvm.fma.v{NUM_LANES}f32")
    return builder.call(function, [a, b, c])


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), b, a)


def _no_nan(builder: Any, a: Any) -> Any:
    return builder.select(builder.fcmp_unordered("uno", a, a), _constant(float("inf")), a)


def _middle_key(builder: Any, low: Any, high: Any) -> Any:
    """Halfway between two floats in the order of their bits, rounded towards `low`."""

    def ordered(bits: Any) -> Any:
        shift, mask = (ir.Constant(_KEYS, [ir.Constant(_I32, v)] * NUM_LANES) for v in (31, 0x7FFFFFFF))
        return builder.xor(bits, builder.and_(builder.ashr(bits, shift), mask))

    one = ir.Constant(_KEYS, [ir.Constant(_I32, 1)] * NUM_LANES)
    a, b = ordered(builder.bitcast(low, _KEYS)), ordered(builder.bitcast(high, _KEYS))
    middle = builder.add(builder.and_(a, b), builder.ashr(builder.xor(a, b), one))
    return builder.bitcast(ordered(middle), _VECTOR)


def _same(builder: Any, a: Any, b: Any) -> Any:
    differ = builder.bitcast(builder.fcmp_unordered("!=", a, b), ir.IntType(NUM_LANES))
    return builder.icmp_unsigned("==", differ, ir.Constant(ir.IntType(NUM_LANES), 0))


fma = _on_lanes(3, _fma)  # a b + c, rounded once
add = _on_lanes(2, lambda builder, a, b: builder.fadd(a, b))
sub = _on_lanes(2, lambda builder, a, b: builder.fsub(a, b))
mul = _on_lanes(2, lambda builder, a, b: builder.fmul(a, b))
div = _on_lanes(2, lambda builder, a, b: builder.fdiv(a, b))
smaller = _on_lanes(2, _smaller)
larger = _on_lanes(2, _larger)
no_nan = _on_lanes(1, _no_nan)  # NaN becomes +inf
middle_key = _on_lanes(2, _middle_key)
where_le = _on_lanes(4, lambda builder, a, b, yes, no: builder.select(builder.fcmp_ordered("<=", a, b), yes, no))
where_lt = _on_lanes(4, lambda builder, a, b, yes, no: builder.select(builder.fcmp_ordered("<", a, b), yes, no))
same = _on_lanes(2, _same, types.boolean)  # whether all lanes are equal
