"""The interpreter's arithmetic where it is easy to get wrong, and that it refuses what it does not know."""
import sys
import unittest
from fractions import Fraction

try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is not installed")
    sys.exit(77)

import ptx_machine
import ptx_numbers
from ptx_parser import Fault, Module

HEAD = """.visible .entry kernel(
	.param .u64 kernel_param_0
)
.maxntid 32, 1, 1
{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<9>;

	mov.u32 %r1, %tid.x;
"""
TAIL = """	ld.param.u64 %rd1, [kernel_param_0];
	mul.wide.u32 %rd2, %r1, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r2;
	ret;

}
"""


def run(body):
    """%r2 of the 32 threads of a warp after these instructions."""
    memory = ptx_machine.Memory()
    memory.set_allocations([(1 << 40, 128)])
    kernel = Module(HEAD + body + TAIL).kernel("kernel")
    ptx_machine.launch(kernel, memory, (1, 1, 1), (32, 1, 1), 0, (1 << 40).to_bytes(8, "little"))
    _, found, _ = memory.undo()
    return found.view(np.uint32).tolist()


def call(op, *values):
    return ptx_numbers.function(op.split("."))[0](*values)


class Numbers(unittest.TestCase):
    def test_a_fused_product_and_sum_is_rounded_once(self):
        generator = np.random.default_rng(3)
        a, b, c = (generator.standard_normal(20000).astype(np.float32) for _ in range(3))
        c[::2] = -(a * b)[::2]  # what is left is the error of the product
        for x, y, z, found in zip(a, b, c, call("fma.rn.f32", a, b, c)):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            error = abs(Fraction(float(found)) - exact)
            for neighbour in (np.nextafter(found, np.float32(np.inf)), np.nextafter(found, np.float32(-np.inf))):
                self.assertLessEqual(error, abs(Fraction(float(neighbour)) - exact))
        # 2^-70 below the middle between 1 + 2^-23 and 1 + 2^-22: double would have rounded to the middle.
        a, b, c = (np.array([x], np.float32) for x in (2.0**-24 + 2.0**-47, 1 - 2.0**-23, 1 + 2.0**-23))
        self.assertEqual(call("fma.rn.f32", a, b, c)[0], np.float32(1 + 2.0**-23))

    def test_leading_zeros_of_64_bits(self):
        values = np.array([0, 1, 2**31, 2**32, 2**63, 2**64 - 1], np.uint64)
        self.assertEqual(call("clz.b64", values).tolist(), [64, 63, 32, 31, 0, 0])

    def test_fields_go_into_numbers(self):
        value, target = np.array([0xABCD] * 4, np.uint64), np.array([2**64 - 1] * 4, np.uint64)
        start, length = np.array([8, 32, 0, 64], np.uint32), np.array([4, 32, 64, 8], np.uint32)
        self.assertEqual(call("bfi.b64", value, target, start, length).tolist(),
                         [0xFFFFFFFFFFFFFDFF, 0x0000ABCDFFFFFFFF, 0xABCD, 2**64 - 1])

    def test_directed_rounding(self):
        a, b = np.array([1, -1], np.float32), np.array([2.0**-30, -2.0**-30], np.float32)
        self.assertEqual(call("add.rz.f32", a, b).tolist(), [1, -1])
        below = np.nextafter(np.float32(-1), np.float32(-2))
        self.assertEqual(call("fma.rm.f32", a, np.ones(2, np.float32), b).tolist(), [1, below])

    def test_integers_divide_as_in_c_and_shifts_end_at_the_width(self):
        a, b = np.array([-7, 7], np.int32), np.array([2, -2], np.int32)
        self.assertEqual(call("div.s32", a, b).tolist(), [-3, -3])
        self.assertEqual(call("rem.s32", a, b).tolist(), [-1, 1])
        self.assertEqual(call("shr.s32", a, np.array([40], np.uint32)).tolist(), [-1, 0])
        self.assertEqual(call("shl.b32", np.array([1], np.uint32), np.array([32], np.uint32)).tolist(), [0])
        self.assertEqual(call("mul.hi.u16", np.array([3], np.uint16), np.array([43691], np.uint16)).tolist(), [2])

    def test_16_bits_round_to_even(self):
        x = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, np.nan], np.float32)
        self.assertEqual(ptx_numbers.to_16_bits(x, "bf16").tolist(), [0x3F80, 0x3F82, 0x7F80, 0x7FFF])


    def test_8_bits_round_to_even_and_saturate(self):
        x = np.array([17, 18, 19, 20, -500, np.inf, 2.0**-10, 3 * 2.0**-10, -0.0], np.float32)
        self.assertEqual(ptx_numbers.to_8_bits(x, "e4m3").tolist(), [0x58, 0x59, 0x5A, 0x5A, 0xFE, 0x7E, 0, 2, 0x80])
        x = np.array([5, 4.5, 1e6, 2.0**-16, np.nan], np.float32)
        self.assertEqual(ptx_numbers.to_8_bits(x, "e5m2").tolist(), [0x45, 0x44, 0x7B, 1, 0x7F])

    def test_two_codes_go_into_one_register(self):
        body = """	cvt.rn.satfinite.e4m3x2.f32 %rs1, 0f40000000, 0f3F800000;
	cvt.u32.u16 %r2, %rs1;
"""
        self.assertEqual(run(body), [0x4038] * 32)


class Warps(unittest.TestCase):
    def test_lanes_wait_for_each_other_where_the_way_back_leads_upwards(self):
        body = """	setp.ne.s32 %p1, %r1, 0;
	mov.u32 %r2, 5;
	@%p1 bra $L__1;
	bra.uni $L__2;

$L__1:
	shfl.sync.idx.b32 %r2|%p2, %r2, 0, 31, -1;
	bra.uni $L__3;

$L__2:
	mov.u32 %r2, 9;
	bra.uni $L__1;

$L__3:
"""
        self.assertEqual(run(body), [9] * 32)

    def test_shuffles_up_keep_what_comes_from_outside(self):
        self.assertEqual(run("	shfl.sync.up.b32 %r2|%p2, %r1, 3, 0, -1;\n"), [0, 1, 2, *range(29)])

    def test_a_warp_that_never_meets_is_a_fault(self):
        body = """	setp.ne.s32 %p1, %r1, 0;
	@%p1 bra $L__1;
	ret;

$L__1:
	shfl.sync.idx.b32 %r2|%p2, %r1, 0, 31, -1;
"""
        with self.assertRaisesRegex(Fault, "does not come"):
            run(body)

    def test_what_is_unknown_is_a_fault(self):
        for instruction in ("sad.u32 %r2, %r1, %r1, 0", "add.sat.s32 %r2, %r1, %r1", "ld.u32 %r2, [%rd1]"):
            with self.assertRaisesRegex(Fault, "unknown"):
                run(f"	{instruction};\n")

    def test_addresses_are_checked(self):
        for offset, message in ((4096, "outside"), (2, "misaligned")):
            body = f"	ld.param.u64 %rd5, [kernel_param_0];\n	ld.global.u32 %r2, [%rd5+{offset}];\n"
            with self.assertRaisesRegex(Fault, message):
                run(body)


if __name__ == "__main__":
    unittest.main()
