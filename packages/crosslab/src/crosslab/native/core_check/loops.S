# SPDX-License-Identifier: Apache-2.0
# Own versions of the loops for which rvv-bench-results publishes the cycles of a whole loop: the
# bodies have the same instructions and run as often.
#
# a0: at least 256 KiB of data; a1: number of elements, as in rvv-bench.

.option norvc

.macro begin name
	.globl \name
	.type \name, @function
\name:
.endm

# Copies bytes from the second half of the data to the first half.
.irp m, m1, m2, m4, m8
begin copy_\m
	li t2, 131072
	add t2, a0, t2
1:	vsetvli t0, a1, e8, \m, ta, ma
	vle8.v v16, (t2)
	add t2, t2, t0
	sub a1, a1, t0
	vse8.v v16, (a0)
	add a0, a0, t0
	bnez a1, 1b
	ret
.endr

# Copies with one vset for all whole groups.
.irp m, m1, m8
begin copy_whole_\m
	li t2, 131072
	add t2, a0, t2
	add t3, a0, a1
	vsetvli t0, zero, e8, \m, ta, ma
	sub t3, t3, t0
1:	vle8.v v16, (t2)
	add t2, t2, t0
	vse8.v v16, (a0)
	add a0, a0, t0
	bltu a0, t3, 1b
	ret
.endr

# Counts bytes that begin a code point: signed numbers above 0xbf.
.irp m, m1, m2, m4, m8
begin count_\m
	li t1, 0
	li t2, -65
1:	vsetvli t0, a1, e8, \m, ta, ma
	vle8.v v16, (a0)
	vmsgt.vx v8, v16, t2
	vcpop.m t3, v8
	add t1, t1, t3
	sub a1, a1, t0
	add a0, a0, t0
	bnez a1, 1b
	mv a0, t1
	ret
.endr

# Counts, with vl read after the count; with one vset; with four groups per round, counted late.
.irp m, m1, m2, m4, m8
begin count_top_\m
	li t1, 0
	li t2, -65
	vsetvli t0, zero, e8, \m, ta, ma
	addi t0, t0, -1
	and t0, a1, t0
	vsetvli t0, t0, e8, \m, ta, ma
1:	vle8.v v16, (a0)
	vmsgt.vx v8, v16, t2
	vcpop.m t3, v8
	sub a1, a1, t0
	add a0, a0, t0
	vsetvli t0, zero, e8, \m, ta, ma
	add t1, t1, t3
	bnez a1, 1b
	ret
begin count_whole_\m
	li t1, 0
	li t2, -65
	add t3, a0, a1
	vsetvli t0, zero, e8, \m, ta, ma
	sub t3, t3, t0
1:	vle8.v v16, (a0)
	vmsgt.vx v8, v16, t2
	vcpop.m t4, v8
	add t1, t1, t4
	add a0, a0, t0
	bltu a0, t3, 1b
	ret
begin count_four_\m
	li t1, 0
	li t2, -65
1:
.irp to, t3, t4, t5
	vsetvli t0, a1, e8, \m, ta, ma
	vle8.v v16, (a0)
	vmsgt.vx v8, v16, t2
	vcpop.m \to, v8
	sub a1, a1, t0
	add a0, a0, t0
.endr
	vsetvli t0, a1, e8, \m, ta, ma
	vle8.v v16, (a0)
	add t1, t1, t3
	add t1, t1, t4
	add t1, t1, t5
	vmsgt.vx v8, v16, t2
	vcpop.m t4, v8
	add t1, t1, t4
	sub a1, a1, t0
	add a0, a0, t0
	bnez a1, 1b
	ret
.endr

# Fills the data with a byte; with one vset for all whole groups.
.irp m, m1, m2, m4, m8
begin fill_\m
	vsetvli t0, zero, e8, \m, ta, ma
	vmv.v.i v16, 7
1:	vsetvli t0, a1, e8, \m, ta, ma
	vse8.v v16, (a0)
	sub a1, a1, t0
	add a0, a0, t0
	bnez a1, 1b
	ret
begin fill_whole_\m
	add t3, a0, a1
	vsetvli t0, zero, e8, \m, ta, ma
	vmv.v.i v16, 7
	sub t3, t3, t0
1:	vse8.v v16, (a0)
	add a0, a0, t0
	bltu a0, t3, 1b
	ret
.endr

# Replaces bytes by a table of 16 entries.
.irp m, m1, m2, m4, m8
begin look_up_\m
	li t0, 16
	vsetvli zero, t0, e8, m1, ta, ma
	vle8.v v24, (a0)
1:	vsetvli t0, a1, e8, \m, ta, ma
	vle8.v v8, (a0)
	vand.vi v8, v8, 15
	vrgather.vv v16, v24, v8
	vse8.v v16, (a0)
	sub a1, a1, t0
	add a0, a0, t0
	bnez a1, 1b
	ret
.endr

# Reverses the bytes of words with a gather; the indices are computed outside of the loop.
.macro places m, wide
	vsetvli t0, zero, e\wide, \m, ta, ma
	vid.v v24
	vxor.vi v24, v24, 3
.endm
.irp m, m1, m2, m4
begin swap_\m
	places \m, 8
1:	vsetvli t0, a1, e32, \m, ta, ma
	vle32.v v8, (a0)
	slli t1, t0, 2
	vsetvli zero, t1, e8, \m, ta, ma
	vrgather.vv v16, v8, v24
	vsetvli zero, t0, e32, \m, ta, ma
	vse32.v v16, (a0)
	sub a1, a1, t0
	add a0, a0, t1
	bnez a1, 1b
	ret
.endr

# Reverses the bytes of words with a gather by 16-bit indices.
.macro swap16 m, double
begin swap16_\m
	places \double, 16
1:	vsetvli t0, a1, e32, \m, ta, ma
	vle32.v v8, (a0)
	slli t1, t0, 2
	vsetvli zero, t1, e8, \m, ta, ma
	vrgatherei16.vv v16, v8, v24
	vsetvli zero, t0, e32, \m, ta, ma
	vse32.v v16, (a0)
	sub a1, a1, t0
	add a0, a0, t1
	bnez a1, 1b
	ret
.endm
swap16 m1, m2
swap16 m2, m4

# Reverses the bytes of words with a load and a store of four fields.
begin swap_fields_m1
1:	vsetvli t0, a1, e8, m1, ta, ma
	vlseg4e8.v v8, (a0)
	vmv1r.v v19, v8
	vmv1r.v v18, v9
	vmv1r.v v17, v10
	vmv1r.v v16, v11
	vsseg4e8.v v16, (a0)
	sub a1, a1, t0
	slli t1, t0, 2
	add a0, a0, t1
	bnez a1, 1b
	ret

# Computes a square picture of a1 points, with at most 100 rounds for a row of lanes.
.irp m, m1, m2
begin picture_\m
	fcvt.s.wu ft0, a1
	fsqrt.s ft0, ft0
	fcvt.wu.s t6, ft0, rtz  # width
	fcvt.s.wu ft0, t6
	li t0, 2
	fcvt.s.wu ft1, t0
	fdiv.s ft1, ft1, ft0  # step
	li t0, -1
	fcvt.s.w ft2, t0      # -1
	li t0, -3
	fcvt.s.w ft3, t0
	li t0, 2
	fcvt.s.w ft5, t0
	fdiv.s ft3, ft3, ft5  # -1.5
	li t0, 4
	fcvt.s.w ft5, t0      # 4
	vsetvli t0, zero, e32, \m, ta, ma
	vfmv.v.f v30, ft5
	vid.v v28
	li t5, 0              # row
2:	fcvt.s.wu ft6, t5
	vsetvli t0, zero, e32, \m, ta, ma
	vfmv.v.f v26, ft6
	vfmul.vf v26, v26, ft1
	vfadd.vf v26, v26, ft2
	li t4, 0              # column
	mv t3, t6
3:	vsetvli t0, t3, e32, \m, ta, ma
	vadd.vx v8, v28, t4
	vfcvt.f.xu.v v8, v8
	vfmul.vf v8, v8, ft1
	vfadd.vf v24, v8, ft3
	vmv.v.i v10, 0        # rounds
	vmv.v.i v12, 0        # x
	vmv.v.i v14, 0        # y
	vmv.v.i v16, 0        # x * x
	vmv.v.i v18, 0        # y * y
	li t2, 100
4:	vfadd.vv v20, v16, v18
	vmflt.vv v0, v20, v30
	addi t2, t2, -1
	vadc.vim v10, v10, 0, v0
	beqz t2, 5f
	vfadd.vv v12, v12, v12
	vfsub.vv v16, v16, v18
	vfmadd.vv v14, v12, v26
	vfadd.vv v12, v16, v24
	vfmul.vv v18, v14, v14
	vfirst.m t1, v0
	vfmul.vv v16, v12, v12
	bgez t1, 4b
5:	vse32.v v10, (a0)
	slli t1, t0, 2
	add a0, a0, t1
	sub t3, t3, t0
	add t4, t4, t0
	bnez t3, 3b
	addi t5, t5, 1
	bltu t5, t6, 2b
	ret
.endr

# Poly1305's inner loop, 16 bytes a lane: multiply by a constant in five limbs of 26 bits, carry,
# split the next block. The instructions are those of the hash; the result is not a hash.
.macro column d, a0, b0, a1, b1, a2, b2, a3, b3, a4, b4
	vwmulu.vx \d, \a0, \b0
	vwmaccu.vx \d, \b1, \a1
	vwmaccu.vx \d, \b2, \a2
	vwmaccu.vx \d, \b3, \a3
	vwmaccu.vx \d, \b4, \a4
.endm
.macro carry a, d
	vwaddu.wv \d, \d, v11
	vnsrl.wi v11, \d, 26
	vnsrl.wi \a, \d, 0
	vand.vx \a, \a, t0
.endm
begin hash
	vsetvli t1, zero, e32, m1, ta, ma
	slli t1, t1, 4
	li t2, 5
	li t3, 7
	li t4, 9
	li t5, 11
	li t6, 13
1:	column v12, v1, t2, v5, t3, v4, t4, v3, t5, v2, t6
	column v14, v2, t2, v1, t3, v5, t4, v4, t5, v3, t6
	column v16, v3, t2, v2, t3, v1, t4, v5, t5, v4, t6
	column v18, v4, t2, v3, t3, v2, t4, v1, t5, v5, t6
	column v20, v5, t2, v4, t3, v3, t4, v2, t5, v1, t6
	li t0, 0x3ffffff
	vmv.v.i v11, 0
	carry v1, v12
	carry v2, v14
	carry v3, v16
	carry v4, v18
	carry v5, v20
	vsll.vi v22, v11, 2
	vadd.vv v1, v1, v22
	vadd.vv v1, v1, v11
	vsrl.vi v11, v1, 26
	vand.vx v1, v1, t0
	vadd.vv v2, v2, v11
	vlseg4e32.v v11, (a0)
	add a0, a0, t1
	sub a1, a1, t1
	li t0, 0x3ffffff
	vand.vx v20, v11, t0
	vsrl.vi v11, v11, 26
	vsll.vi v31, v12, 6
	vor.vv v11, v11, v31
	vand.vx v21, v11, t0
	vsrl.vi v12, v12, 20
	vsll.vi v31, v13, 12
	vor.vv v12, v12, v31
	vand.vx v22, v12, t0
	vsrl.vi v13, v13, 14
	vsll.vi v31, v14, 18
	vor.vv v13, v13, v31
	vand.vx v23, v13, t0
	vsrl.vi v24, v14, 8
	li t0, 1 << 24
	vor.vx v24, v24, t0
	vadd.vv v1, v1, v20
	vadd.vv v2, v2, v21
	vadd.vv v3, v3, v22
	vadd.vv v4, v4, v23
	vadd.vv v5, v5, v24
	bgtz a1, 1b
	ret
