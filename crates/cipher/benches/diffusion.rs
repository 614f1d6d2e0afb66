//! Merging the 4000 stripes of a key of 64 bytes with the anti-forensic splitter: the blocks of a stripe together over
//! one digest at a time, in turns. The median of the ratios of the times is printed.

#![allow(missing_docs)]

use inlock_cipher::{Diffusion, Hash};
use std::hint::black_box;
use std::time::Instant;

const STRIPES: usize = 4000;
const ROUNDS: usize = 201;

/// Merges with `diffuse`, and returns the key and the time.
fn merge(material: &[u8], key_len: usize, mut diffuse: impl FnMut(&mut [u8])) -> (Vec<u8>, f64) {
    let start = Instant::now();
    let mut key = vec![0; key_len];
    let (others, last) = material.split_at(material.len() - key_len);
    for stripe in others.chunks_exact(key_len) {
        key.iter_mut().zip(stripe).for_each(|(a, b)| *a ^= b);
        diffuse(black_box(&mut key));
    }
    key.iter_mut().zip(last).for_each(|(a, b)| *a ^= b);
    (key, start.elapsed().as_secs_f64())
}

fn main() {
    for key_len in [32, 64, 96] {
        let material: Vec<u8> = (0..key_len * STRIPES).map(|n| ((n * 131) >> 3) as u8).collect();
        let together = || {
            let mut diffusion = Diffusion::new(Hash::Sha256);
            merge(&material, key_len, |key| diffusion.apply(key))
        };
        let one_by_one = || {
            merge(&material, key_len, |key| {
                for (number, chunk) in (0u32..).zip(key.chunks_mut(Hash::Sha256.len())) {
                    let digest = Hash::Sha256.digest(&[&number.to_be_bytes(), chunk]);
                    let len = chunk.len();
                    chunk.copy_from_slice(&digest[..len]);
                }
            })
        };
        let mut ratios = Vec::new();
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let (new, old) = if round % 2 == 0 {
                let new = together();
                (new, one_by_one())
            } else {
                let old = one_by_one();
                (together(), old)
            };
            assert_eq!(new.0, old.0, "the keys differ");
            ratios.push(old.1 / new.1);
            times.push(new.1);
        }
        ratios.sort_by(f64::total_cmp);
        times.sort_by(f64::total_cmp);
        let (ratio, time) = (ratios[ROUNDS / 2], times[ROUNDS / 2] * 1e6);
        println!("sha256, key of {key_len} bytes, {STRIPES} stripes: {ratio:.2} times as fast, {time:.0} us");
    }
}
