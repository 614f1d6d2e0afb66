//! Vectored calls over copying the pieces and a contiguous call: requests of 256 KiB in memory, batches of both in
//! turns. The median of the ratios of the times is printed, below 1 where the vectored call is faster.

#![allow(missing_docs, clippy::unwrap_used)]

use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, BlockingDevice, Device};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Instant;

const REQUEST: usize = 256 << 10;
const BATCH: usize = 40;
const ROUNDS: usize = 101;

fn volume(spec: &str, unit: u32) -> BlockingDevice {
    let spec: CipherSpec = spec.parse().unwrap();
    let key: Vec<u8> = (0..*spec.key_lens().iter().max().unwrap() as u8).collect();
    let segment = Segment::whole(Some(spec), DataUnitSize::new(unit).unwrap());
    let store = Arc::new(MemoryStore::new(vec![1; 8 << 20]));
    BlockingDevice::new(Arc::new(Device::new(&[segment], &VolumeKey::new(&key), store, Access::default()).unwrap()))
}

/// Lengths of pieces: each as long as `piece`, but the first, which has `first`.
fn lens(first: usize, piece: usize) -> Vec<usize> {
    let mut lens = vec![first];
    while lens.iter().sum::<usize>() + piece <= REQUEST {
        lens.push(piece);
    }
    lens.push(REQUEST - lens.iter().sum::<usize>());
    lens
}

/// Returns the time of a batch.
fn batch(volume: &BlockingDevice, pieces: &mut [Vec<u8>], staging: &mut [u8], writes: bool, vectored: bool) -> f64 {
    let start = Instant::now();
    for n in 0..BATCH {
        let offset = (n % 24 * REQUEST) as u64;
        match (writes, vectored) {
            (true, true) => {
                let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                volume.write_vectored_at(&slices, offset).unwrap();
            }
            (false, true) => {
                let mut slices: Vec<IoSliceMut<'_>> = pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
                volume.read_vectored_at(&mut slices, offset).unwrap();
            }
            (true, false) => {
                let mut rest = &mut *staging;
                for piece in &*pieces {
                    rest.split_off_mut(..piece.len()).unwrap().copy_from_slice(piece);
                }
                volume.write_at(staging, offset).unwrap();
            }
            (false, false) => {
                volume.read_at(staging, offset).unwrap();
                let mut rest = &*staging;
                for piece in &mut *pieces {
                    let len = piece.len();
                    piece.copy_from_slice(rest.split_off(..len).unwrap());
                }
            }
        }
    }
    start.elapsed().as_secs_f64()
}

fn main() {
    let cuts = [("pages", 4096, 4096), ("pages, shifted by 100 bytes", 100, 4096), ("1000 bytes", 1000, 1000)];
    for (spec, unit) in [("aes-xts-plain64", 4096), ("aes-xts-plain64", 512), ("aes-cbc-essiv:sha256", 512)] {
        let volume = volume(spec, unit);
        for (name, first, piece) in cuts {
            let mut pieces: Vec<Vec<u8>> = lens(first, piece).into_iter().map(|len| vec![7; len]).collect();
            let mut staging = vec![0; REQUEST];
            for writes in [true, false] {
                let mut time = |vectored| batch(&volume, &mut pieces, &mut staging, writes, vectored);
                time(true);
                time(false);
                let mut ratios: Vec<f64> = (0..ROUNDS)
                    .map(|round| {
                        // The second batch may find a warmer cache.
                        let (first, second) = (time(round % 2 == 0), time(round % 2 != 0));
                        if round % 2 == 0 { first / second } else { second / first }
                    })
                    .collect();
                ratios.sort_by(f64::total_cmp);
                let direction = if writes { "write" } else { "read" };
                let ratio = ratios[ROUNDS / 2];
                println!("{spec}, units of {unit}, pieces of {name}, {direction}: {ratio:.2} of the time");
            }
        }
    }
}
