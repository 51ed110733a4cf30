"""Arithmetic of PTX on numpy arrays: IEEE with the rounding that the opcode names, C's integer division, conversions.

A sum that must be rounded other than to nearest, or once more to a narrower type, is first rounded to odd in double:
rounding that result again gives what one rounding of the exact sum gives.
"""
import numpy as np

from ptx_parser import WIDTHS


def two_sum(a, b):
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def sum_to_odd(a, b):
    """a + b in double: if inexact, the neighbour whose last bit is 1."""
    total, error = two_sum(np.asarray(a, np.float64), np.asarray(b, np.float64))
    bits = total.view(np.int64).copy()
    change = (error != 0) & np.isfinite(error) & np.isfinite(total) & (bits % 2 == 0)
    bits += np.where(change, np.where((error > 0) == (total > 0), 1, -1), 0)
    return bits.view(np.float64)


def narrowed(x, rounding):
    """Double to single: n nearest, m down, p up, z toward zero."""
    nearest = x.astype(np.float32)
    wide = nearest.astype(np.float64)
    away = {"n": np.zeros(x.shape, bool), "m": wide > x, "p": wide < x, "z": np.abs(wide) > np.abs(x)}[rounding]
    toward = {"n": 0, "m": -np.inf, "p": np.inf, "z": 0}[rounding]
    return np.where(away, np.nextafter(nearest, np.float32(toward)), nearest)


def fma_32(rounding):
    return lambda a, b, c: narrowed(sum_to_odd(a.astype(np.float64) * b, c), rounding)


def sum_32(rounding):
    return lambda a, b: narrowed(sum_to_odd(a, b), rounding)


def two_product(a, b):
    def halves(x):
        big = x * 134217729.0
        high = big - (big - x)
        return high, x - high

    product = a * b
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def fma_64(a, b, c):
    """Source: Boldo and Melquiond 2008, Emulation of FMA and correctly rounded sums."""
    high, low = two_product(a, b)
    other, rest = two_sum(c, low)
    total, error = two_sum(high, other)
    exact = total + sum_to_odd(rest, error)
    return np.where(np.isfinite(exact), exact, a * b + c)


def divided(a, b):
    if a.dtype.kind == "f":
        return a / b
    if a.dtype.kind == "u":
        return a // b
    return ((a - np.fmod(a, b)) // b).astype(a.dtype)


def product_wide(a, b):
    kind = f"{a.dtype.kind}{2 * a.dtype.itemsize}"
    return a.astype(kind) * b.astype(kind)


def product_high(a, b):
    return product_wide(a, b) >> (8 * a.dtype.itemsize)


def shifted(left):
    def shift(value, count):
        bits = 8 * value.dtype.itemsize
        small = np.minimum(count, bits - 1).astype(value.dtype)
        result = value << small if left else value >> small
        if left or value.dtype.kind == "u":
            result = np.where(count >= bits, 0, result)
        return result.astype(value.dtype)

    return shift


def bits_of(value):
    """[..., 32] from the highest."""
    return np.unpackbits(value.astype(">u4").view(np.uint8).reshape(-1, 4), axis=1)


def from_bits(bits):
    return np.packbits(bits, axis=1).view(">u4").astype(np.uint32).ravel()


def leading_zeros(value):
    bits = bits_of(value)
    return np.where(value == 0, 0xFFFFFFFF, bits.argmax(axis=1)).astype(np.uint32)


def leading_zeros_64(value):
    high, low = (leading_zeros(half.astype(np.uint32)) for half in (value >> np.uint64(32), value))
    high, low = (np.minimum(count, np.uint32(32)) for count in (high, low))
    return np.where(high < 32, high, high + low)


def field(value, start, length):
    """bfe of an unsigned number: `length` bits from bit `start`."""
    start, length = (count.astype(np.uint64) & np.uint64(0xFF) for count in (start, length))
    mask = (np.uint64(1) << np.minimum(length, np.uint64(32))) - np.uint64(1)
    return (value.astype(np.uint64) >> np.minimum(start, np.uint64(63))) & mask


def inserted(value, target, start, length):
    """bfi: the lowest `length` bits of the value from bit `start` of the target on."""
    start, length = (count.astype(np.uint64) & np.uint64(0xFF) for count in (start, length))
    shift = shifted(left=True)
    mask = shift(~shift(~np.zeros_like(value), length), start)
    return (target & ~mask) | (shift(value, start) & mask)


def flushed(x):
    return np.where(np.abs(x) < np.float32(2.0**-126), x * np.float32(0), x)


UNARY = {"neg": np.negative, "abs": np.abs, "not": np.invert}
BINARY = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
          "min": np.minimum, "max": np.maximum, "div": divided, "rem": np.fmod}
FLOATS = {"min": np.fmin, "max": np.fmax, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": divided}
PREDICATES = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}
WIDER = {"s32": "s64", "u32": "u64", "s16": "s32", "u16": "u32"}
WHOLE = {
    "ex2.approx.f32": np.exp2, "ex2.approx.ftz.f32": lambda x: flushed(np.exp2(flushed(x))),
    "lg2.approx.f32": np.log2, "rsqrt.approx.f32": lambda x: (1 / np.sqrt(x)).astype(np.float32),
    "sqrt.rn.f32": np.sqrt, "sqrt.rn.f64": np.sqrt, "rcp.rn.f32": lambda x: np.float32(1) / x,
    "rcp.rn.f64": lambda x: 1.0 / x, "fma.rn.f64": fma_64,
    "popc.b32": lambda x: bits_of(x).sum(axis=1), "brev.b32": lambda x: from_bits(bits_of(x)[:, ::-1]),
    "bfind.shiftamt.u32": leading_zeros, "bfe.u32": field,
}


def function(op):
    """(function, types of the operands or None for that of the opcode, type of the result); no function: unknown."""
    name, modes, kind = op[0], op[1:-1], op[-1]
    same = [None] * 3
    whole = WHOLE.get(".".join(op))
    if whole:
        return whole, same, kind
    if name == "clz" and kind == "b64":
        return leading_zeros_64, same, "u32"
    if name == "bfi" and not modes:
        return inserted, [None, None, "u32", "u32"], kind
    if kind == "pred":
        return PREDICATES.get(name), same, kind
    if kind in ("f32", "f64"):
        if not modes and name in ("neg", "abs"):
            return UNARY[name], same, kind
        if modes in ([], ["rn"]) and name in FLOATS:
            return FLOATS[name], same, kind
        if kind == "f32" and len(modes) == 1 and modes[0] in ("rn", "rm", "rp", "rz"):
            table = {"fma": fma_32, "add": sum_32}
            if name in table:
                return table[name](modes[0][1]), same, kind
        return None, same, kind
    if name in ("shl", "shr") and not modes:
        return shifted(name == "shl"), [None, "u32"], kind
    if name in ("mul", "mad") and len(modes) == 1:
        if modes == ["lo"]:
            return (np.multiply if name == "mul" else lambda a, b, c: a * b + c), same, kind
        if modes == ["wide"]:
            wide = WIDER[kind]
            return (product_wide if name == "mul" else lambda a, b, c: product_wide(a, b) + c), [None, None, wide], wide
        if modes == ["hi"] and name == "mul" and WIDTHS[kind] < 8:
            return product_high, same, kind
    if not modes:
        return {**UNARY, **BINARY}.get(name), same, kind
    return None, same, kind


def to_16_bits(x, kind):
    """Single to the bits of f16 or bf16, to nearest even."""
    if kind == "f16":
        return x.astype(np.float16).view(np.uint16)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded)


def to_8_bits(x, kind):
    """Single to the bits of e4m3 or e5m2, to nearest even; what is too large becomes the largest finite number."""
    fraction, bias, largest = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}[kind]
    magnitude = np.minimum(np.abs(x).astype(np.float64), 1e9)
    exponent = np.maximum(np.frexp(np.maximum(magnitude, 1e-30))[1] - 1, 1 - bias)
    # Units in the last place: from 2^fraction on with the bit that normal numbers do not store.
    units = np.rint(np.ldexp(magnitude, fraction - exponent))
    code = np.minimum(units + (exponent + bias - 1) * 2.0**fraction, largest)
    code = np.where(np.isnan(x), 0x7F, code)
    return code.astype(np.uint8) | np.where(np.signbit(x), np.uint8(0x80), np.uint8(0))


def from_bfloat16(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def conversion(to, source, modes, dtype):
    """The function from an array of type `source` to one of type `to`; None: unknown."""
    floats = ("f16", "bf16", "f32", "f64")
    if source == "bf16" and to == "f32" and not modes:
        return from_bfloat16
    if to in ("bf16", "f16") and source == "f32" and modes == ["rn"]:
        return lambda x: to_16_bits(x, to)
    if to == source == "f32" and modes == ["sat"]:
        return lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)).astype(np.float32)
    if to in floats and (modes == ["rn"] or not modes) and source != "bf16":
        return lambda x: x.astype(dtype)
    if to not in floats and source not in floats and not modes:
        return lambda x: x.astype(dtype)
    rounds = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
    if to not in floats and source in ("f32", "f64") and len(modes) == 1 and modes[0] in rounds:
        limits = np.iinfo(dtype)
        rounding = rounds[modes[0]]

        def to_integer(x):
            whole = rounding(np.where(np.isnan(x), 0, x).astype(np.float64))
            inside = (whole >= float(limits.min)) & (whole < float(limits.max) + 1)
            value = np.where(inside, whole, 0).astype(dtype)
            return np.where(inside, value, np.where(whole < 0, limits.min, limits.max)).astype(dtype)

        return to_integer
    return None
