//! The limit that benchmarks compare a kernel with.

#[cfg(target_arch = "x86_64")]
use super::x86_64::{AesNiKernel, Vaes256Kernel, Vaes512Kernel};
use crate::Cipher;
use crate::block_cipher::new_block_cipher;
use crate::isa::{AesKernel, AesNi};

/// The throughput limit of a kernel: independent AES rounds of its width, back to back, with the number of rounds of
/// the key length. The portable kernel has the limit of AES-NI; on a CPU without AES instructions, the limit is its own
/// block cipher on independent blocks.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    kernel: AesKernel,
    key_bits: usize,
}

impl Limit {
    /// Returns the limit of `kernel` with AES keys of `key_bits`: 128, 192 or 256.
    pub fn new(kernel: AesKernel, key_bits: usize) -> Self {
        let kernel = match (kernel, AesNi::detect()) {
            (AesKernel::Portable, Some(proof)) => AesKernel::AesNi(proof),
            _ => kernel,
        };
        Self { kernel, key_bits }
    }

    /// Computes for some microseconds, `count` times, and returns the number of bytes encrypted.
    pub fn run(&self, count: usize) -> u64 {
        rounds(self.kernel, self.key_bits, count * 64)
    }
}

/// Runs AES rounds of `kernel`'s width back to back, `iterations` times, and returns the number of bytes. The portable
/// kernel runs its block cipher on independent blocks.
fn rounds(kernel: AesKernel, key_bits: usize, iterations: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    match kernel {
        AesKernel::Portable => {}
        AesKernel::AesNi(proof) => return AesNiKernel::limit(proof, key_bits / 32 + 6, iterations),
        AesKernel::Vaes256(proof) => return Vaes256Kernel::limit(proof, key_bits / 32 + 6, iterations),
        AesKernel::Vaes512(proof) => return Vaes512Kernel::limit(proof, key_bits / 32 + 6, iterations),
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = kernel;
    let cipher = new_block_cipher(AesKernel::Portable, Cipher::Aes, &[0x5a; 32][..key_bits / 8])
        .expect("AES has keys of 128, 192 and 256 bits");
    let mut blocks = [0x5a; 512];
    for _ in 0..iterations {
        cipher.encrypt_blocks(&mut blocks);
    }
    std::hint::black_box(&blocks);
    (iterations * blocks.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Includes the portable cipher's own limit, for CPUs without AES instructions.
    #[test]
    fn limit_of_every_kernel_counts_its_bytes() {
        for kernel in AesKernel::available() {
            for key_bits in [128, 192, 256] {
                let (one, two) = (rounds(kernel, key_bits, 1), rounds(kernel, key_bits, 2));
                assert!(one > 0 && two == 2 * one, "{kernel:?}");
                assert!(Limit::new(kernel, key_bits).run(1) > 0);
            }
        }
    }
}
