//! Clears copies of key material outside of locked memory: on the stack and in vector registers.
//!
//! The compiler may spill any value to the stack, and round keys stay in registers after a cipher call until other code
//! uses these; a signal or the dynamic linker may then copy them to a stack.
#![allow(unsafe_code)]

/// Clears the vector registers, and overwrites `N` bytes of this thread's stack below the caller. The code that used
/// the key must be in a function of its own that is not inlined and has returned.
#[inline(never)]
pub fn scrub_stack<const N: usize>() {
    clear_vector_registers();
    std::hint::black_box(&mut [0_u8; N]);
}

#[cfg(target_arch = "x86_64")]
fn clear_vector_registers() {
    use std::arch::asm;
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU has AVX-512; the registers are declared as clobbered, and nothing else is touched.
        unsafe {
            asm!(
                "vzeroall",
                "vpxord zmm16, zmm16, zmm16",
                "vpxord zmm17, zmm17, zmm17",
                "vpxord zmm18, zmm18, zmm18",
                "vpxord zmm19, zmm19, zmm19",
                "vpxord zmm20, zmm20, zmm20",
                "vpxord zmm21, zmm21, zmm21",
                "vpxord zmm22, zmm22, zmm22",
                "vpxord zmm23, zmm23, zmm23",
                "vpxord zmm24, zmm24, zmm24",
                "vpxord zmm25, zmm25, zmm25",
                "vpxord zmm26, zmm26, zmm26",
                "vpxord zmm27, zmm27, zmm27",
                "vpxord zmm28, zmm28, zmm28",
                "vpxord zmm29, zmm29, zmm29",
                "vpxord zmm30, zmm30, zmm30",
                "vpxord zmm31, zmm31, zmm31",
                clobber_abi("sysv64"),
                options(nomem, nostack)
            );
        }
    } else if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the CPU has AVX; the registers are declared as clobbered, and nothing else is touched.
        unsafe { asm!("vzeroall", clobber_abi("sysv64"), options(nomem, nostack)) };
    } else {
        // SAFETY: every x86-64 has SSE2; the registers are declared as clobbered, and nothing else is touched.
        unsafe {
            asm!(
                "xorps xmm0, xmm0",
                "xorps xmm1, xmm1",
                "xorps xmm2, xmm2",
                "xorps xmm3, xmm3",
                "xorps xmm4, xmm4",
                "xorps xmm5, xmm5",
                "xorps xmm6, xmm6",
                "xorps xmm7, xmm7",
                "xorps xmm8, xmm8",
                "xorps xmm9, xmm9",
                "xorps xmm10, xmm10",
                "xorps xmm11, xmm11",
                "xorps xmm12, xmm12",
                "xorps xmm13, xmm13",
                "xorps xmm14, xmm14",
                "xorps xmm15, xmm15",
                clobber_abi("sysv64"),
                options(nomem, nostack)
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn clear_vector_registers() {}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::arch::asm;

    #[test]
    fn scrub_clears_vector_registers() {
        if !std::arch::is_x86_feature_detected!("avx512f") {
            println!("SKIPPED: no AVX-512 to look at registers with");
            return;
        }
        let (mut low, mut high) = ([0xee_u8; 64], [0xee_u8; 64]);
        // SAFETY: the CPU has AVX-512; the registers are declared as clobbered.
        unsafe {
            asm!("vpternlogd zmm5, zmm5, zmm5, 0xff", "vpternlogd zmm21, zmm21, zmm21, 0xff", clobber_abi("sysv64"))
        };
        clear_vector_registers();
        // SAFETY: as above; 64 bytes are written to each of two arrays of that length.
        unsafe {
            asm!(
                "vmovdqu64 [{low}], zmm5",
                "vmovdqu64 [{high}], zmm21",
                low = in(reg) low.as_mut_ptr(),
                high = in(reg) high.as_mut_ptr(),
                options(nostack)
            );
        }
        assert_eq!((low, high), ([0; 64], [0; 64]));
    }
}
