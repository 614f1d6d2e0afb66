//! Known answers, and comparison with the `argon2` crate, on every kernel.

use super::*;

fn derive(argon2: Argon2, kernel: Kernel, threads: usize, passphrase: &[u8], salt: &[u8], len: usize) -> Vec<u8> {
    let mut key = vec![0; len];
    let mut memory = ScratchMemory::zeroed(argon2.memory_words(), threads).unwrap();
    let input = Input { passphrase, salt, secret: &[], data: &[] };
    argon2.derive_with(kernel, &input, &mut key, &mut memory, threads).unwrap();
    key
}

fn expected(argon2: Argon2, passphrase: &[u8], salt: &[u8], len: usize) -> Vec<u8> {
    let algorithm = match argon2.variant {
        Argon2Variant::Argon2i => ::argon2::Algorithm::Argon2i,
        Argon2Variant::Argon2id => ::argon2::Algorithm::Argon2id,
    };
    let params = ::argon2::Params::new(argon2.memory_kib, argon2.passes, argon2.lanes, Some(len)).unwrap();
    let mut key = vec![0; len];
    let made = ::argon2::Argon2::new(algorithm, ::argon2::Version::V0x13, params);
    made.hash_password_into(passphrase, salt, &mut key).unwrap();
    key
}

/// RFC 9106, sections 5.2 and 5.3.
#[test]
fn argon2_of_rfc_9106() {
    let rows = [
        (Argon2Variant::Argon2i, "c814d9d1dc7f37aa13f0d77f2494bda1c8de6b016dd388d29952a4c4672b6ce8"),
        (Argon2Variant::Argon2id, "0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659"),
    ];
    for (variant, expected) in rows {
        for kernel in Kernel::available(CpuLimit::default()) {
            let argon2 = Argon2 { variant, passes: 3, memory_kib: 32, lanes: 4 };
            let input = Input { passphrase: &[1; 32], salt: &[2; 16], secret: &[3; 8], data: &[4; 12] };
            let mut memory = ScratchMemory::zeroed(argon2.memory_words(), 1).unwrap();
            let mut key = [0; 32];
            argon2.derive_with(kernel, &input, &mut key, &mut memory, 1).unwrap();
            assert_eq!(key[..], crate::testing::unhex(expected));
        }
    }
}

#[test]
fn every_kernel_agrees_with_another_implementation() {
    let kernels = Kernel::available(CpuLimit::default());
    let mut compared = 0;
    for variant in [Argon2Variant::Argon2i, Argon2Variant::Argon2id] {
        // Memory that is no multiple of the segments; segments below and above one block of addresses and the start of
        // threads.
        for (memory_kib, lanes) in [(8, 1), (9, 1), (35, 1), (32, 4), (33, 4), (71, 2), (1030, 1), (1200, 3), (2077, 4)]
        {
            for passes in [1, 2, 3, 5] {
                for (len, salt) in [(4, 8), (32, 32), (64, 16), (65, 8), (512, 33)] {
                    let argon2 = Argon2 { variant, passes, memory_kib, lanes };
                    let (passphrase, salt) = (&b"a passphrase"[..passes as usize], &[len as u8; 40][..salt]);
                    let expected = expected(argon2, passphrase, salt, len);
                    for &kernel in &kernels {
                        let threads = compared % 5 + 1;
                        let key = derive(argon2, kernel, threads, passphrase, salt, len);
                        assert_eq!(key, expected, "{argon2:?} on {threads} threads, {len} bytes");
                        compared += 1;
                    }
                }
            }
        }
    }
    println!("{compared} keys on {} kernels", kernels.len());
}

/// Blocks of random words, for which no carry is rare.
#[test]
fn kernels_compress_random_blocks_alike() {
    let random = |seed: u64| -> Block {
        let bytes = crate::testing::noise(seed, 8 * WORDS);
        block::from_bytes(bytes.as_slice().try_into().unwrap())
    };
    for seed in 0..200 {
        let (previous, reference) = (random(3 * seed), random(3 * seed + 1));
        let mut start = random(3 * seed + 2);
        if seed == 0 {
            start = [u64::MAX; WORDS];
        }
        let (mut replaced, mut added) = (start, start);
        block::compress::<false>(&previous, &reference, &mut replaced);
        block::compress::<true>(&previous, &reference, &mut added);
        for kernel in Kernel::available(CpuLimit::default()) {
            let (mut own_replaced, mut own_added) = (start, start);
            match kernel {
                Kernel::Portable => continue,
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx2(token) => {
                    token.compress::<false>(&previous, &reference, &mut own_replaced);
                    token.compress::<true>(&previous, &reference, &mut own_added);
                }
                #[cfg(target_arch = "x86_64")]
                Kernel::Avx512(token) => {
                    token.compress::<false>(&previous, &reference, &mut own_replaced);
                    token.compress::<true>(&previous, &reference, &mut own_added);
                }
            }
            assert!(own_replaced == replaced && own_added == added, "seed {seed}");
        }
    }
}
