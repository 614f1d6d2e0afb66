//! Every change of a byte of data, tag, IV or sector number is detected, and the unit is zeroed.

use super::*;

/// One of each algorithm, and of each way to number IVs.
const SPECS: [&str; 7] = [
    "capi:gcm(aes)-random",
    "capi:rfc4309(ccm(aes))-random",
    "capi:rfc7539(chacha20,poly1305)-random",
    "capi:aegis128-random",
    "capi:authenc(hmac(sha256),xts(aes))-random",
    "capi:authenc(hmac(sha1),cbc(aes))-essiv:sha256",
    "capi:authenc(hmac(sha512),ctr(aes))-random",
];

/// Three sealed units; the second one is changed.
struct Sealed {
    aead: Aead,
    plain: Vec<u8>,
    data: Vec<u8>,
    tuples: Vec<u8>,
    out: Vec<u8>,
}

const FIRST: Sector = Sector(0x0102_0304_0506_0708);

impl Sealed {
    fn new(kernel: AesKernel, text: &str, log2: u32) -> Self {
        let aead = aead(kernel, &spec(text), unit(log2));
        let plain = noise(21, 3 << log2);
        let (mut data, mut tuples) = (plain.clone(), vec![0; 3 * aead.tuple_len()]);
        aead.seal(FIRST, InOut::InPlace(&mut data), &mut tuples).unwrap();
        Self { aead, out: vec![0x5a; data.len()], plain, data, tuples }
    }

    /// Checks that exactly `bad` fail, are zeroes, and that the others are right.
    fn assert_bad(&mut self, first: Sector, bad: &[usize], change: &str) {
        self.out.fill(0x5a);
        let found = self.aead.open(first, InOut::copy(&self.data, &mut self.out), &self.tuples).unwrap();
        let name = format!("{:?}: {change}", self.aead);
        assert!(found.iter().eq(bad.iter().copied()), "{name}: {found:?}");
        let len = self.aead.unit().bytes();
        for (at, (out, plain)) in self.out.chunks_exact(len).zip(self.plain.chunks_exact(len)).enumerate() {
            let right = if bad.contains(&at) { out.iter().all(|byte| *byte == 0) } else { out == plain };
            assert!(right, "{name}: unit {at}");
        }
    }
}

fn every_change_is_detected(log2: u32) {
    for kernel in AesKernel::available() {
        for text in SPECS {
            let mut sealed = Sealed::new(kernel, text, log2);
            sealed.assert_bad(FIRST, &[], "nothing");
            let len = 1 << log2;
            for at in len..2 * len {
                sealed.data[at] ^= 1 << (at % 8);
                sealed.assert_bad(FIRST, &[1], "a byte of data");
                sealed.data[at] ^= 1 << (at % 8);
            }
            let tuple = sealed.aead.tuple_len();
            for at in tuple..2 * tuple {
                for change in [1, 0x80] {
                    sealed.tuples[at] ^= change;
                    sealed.assert_bad(FIRST, &[1], "a byte of the tuple");
                    sealed.tuples[at] ^= change;
                }
            }
            for byte in 0..8 {
                sealed.assert_bad(Sector(FIRST.0 ^ 0x10 << (8 * byte)), &[0, 1, 2], "the sector number");
            }
        }
    }
}

#[test]
fn every_changed_byte_of_a_short_unit_is_detected() {
    every_change_is_detected(9);
}

#[test]
fn every_changed_byte_of_a_long_unit_is_detected() {
    every_change_is_detected(12);
}

#[test]
fn moved_units_and_tuples_are_detected() {
    for kernel in AesKernel::available() {
        for text in SPECS {
            let mut sealed = Sealed::new(kernel, text, 9);
            let swap = |bytes: &mut [u8], len: usize| {
                let (front, back) = bytes.split_at_mut(len);
                front.swap_with_slice(&mut back[..len]);
            };
            let tuple = sealed.aead.tuple_len();
            swap(&mut sealed.data, 512);
            sealed.assert_bad(FIRST, &[0, 1], "two units swapped");
            swap(&mut sealed.tuples, tuple);
            sealed.assert_bad(FIRST, &[0, 1], "two units and their tuples swapped");
            swap(&mut sealed.data, 512);
            sealed.assert_bad(FIRST, &[0, 1], "two tuples swapped");
            sealed.tuples.fill(0);
            sealed.assert_bad(FIRST, &[0, 1, 2], "tuples that were never written");
        }
    }
}

/// Bad units of many batches, in place.
#[test]
fn bad_units_of_a_long_call_are_listed() {
    let aead = aead(AesKernel::best().unwrap(), &spec(SPECS[0]), unit(9));
    let plain = noise(3, 2048 * 512);
    let (mut data, mut tuples) = (plain.clone(), vec![0; 2048 * 28]);
    aead.seal(FIRST, InOut::InPlace(&mut data), &mut tuples).unwrap();
    let bad = [0, 1, 7, 8, 63, 64, 127, 1000, 2047];
    bad.iter().for_each(|at| data[at * 512 + 5] ^= 4);
    let found = aead.open(FIRST, InOut::InPlace(&mut data), &tuples).unwrap();
    assert_eq!(found.iter().collect::<Vec<_>>(), bad);
    assert_eq!((found.first(), found.len()), (Some(0), bad.len()));
    for (at, (out, plain)) in data.chunks_exact(512).zip(plain.chunks_exact(512)).enumerate() {
        assert!(if bad.contains(&at) { out == [0; 512] } else { out == plain }, "unit {at}");
    }
}
