//! AES-GCM and other authenticated modes over requests of many data units, compared with OpenSSL's GCM.
//!
//! OpenSSL is called as for one key: the context is reused, and each unit sets its IV, adds its additional data,
//! encrypts, and fetches its tag. No implementation makes random IVs, except in the row that says so.

use inlock_cipher::{Aead, AeadSpec, AesKernel, DataUnitSize, InOut, IvNumbering, Sector};
use openssl::cipher::{Cipher, CipherRef};
use openssl::cipher_ctx::CipherCtx;
use openssl::error::ErrorStack;
use std::error::Error;
use std::time::{Duration, Instant};

const SLICES: usize = 41;
const SLICE_TIME: Duration = Duration::from_micros(500);
const TUPLE: usize = 28;

/// An implementation under a name; a call processes the request and returns its length.
type Contestant = (String, Box<dyn FnMut() -> usize>);

/// Prints a table of every kernel for AES-GCM, and one of all algorithms on the best kernel.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("{}\n", openssl::version::version());
    println!("| AES | request | unit | direction | implementation | GB/s | to OpenSSL's GCM |");
    println!("|---|---|---|---|---|---|---|");
    for key_len in [32, 16] {
        for (request, unit) in [(1 << 20, 4096), (1 << 20, 512), (4096, 4096), (4096, 512)] {
            for seal in [true, false] {
                let mut contestants = vec![openssl_gcm(key_len, request, unit, seal)?];
                for kernel in AesKernel::available() {
                    contestants.push(inlock(kernel, "capi:gcm(aes)-random", key_len, request, unit, seal, false)?);
                }
                if seal {
                    check_same(key_len, unit)?;
                    let best = AesKernel::best()?;
                    contestants.push(inlock(best, "capi:gcm(aes)-random", key_len, request, unit, true, true)?);
                }
                print_rows(key_len, request, unit, seal, &mut contestants);
            }
        }
    }
    for (request, unit) in [(1 << 20, 4096), (1 << 20, 512)] {
        for seal in [true, false] {
            let mut contestants = vec![openssl_gcm(32, request, unit, seal)?];
            for (spec, key_len) in [
                ("capi:aegis128-random", 16),
                ("capi:rfc7539(chacha20,poly1305)-random", 32),
                ("capi:rfc4309(ccm(aes))-random", 35),
                ("capi:authenc(hmac(sha256),xts(aes))-random", 96),
                ("capi:authenc(hmac(sha512),xts(aes))-random", 128),
            ] {
                contestants.push(inlock(AesKernel::best()?, spec, key_len, request, unit, seal, false)?);
            }
            print_rows(32, request, unit, seal, &mut contestants);
        }
    }
    Ok(())
}

fn key(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + 1) as u8).collect()
}

/// Returns `len` bytes that begin a page.
fn pages(len: usize) -> &'static mut [u8] {
    let room = Box::leak(vec![0x42; len + 4096].into_boxed_slice());
    let start = room.as_ptr().align_offset(4096);
    &mut room[start..start + len]
}

fn inlock(
    kernel: AesKernel,
    spec: &str,
    key_len: usize,
    request: usize,
    unit: usize,
    seal: bool,
    random: bool,
) -> Result<Contestant, Box<dyn Error>> {
    let spec: AeadSpec = spec.parse()?;
    let unit = DataUnitSize::new(unit as u32)?;
    let aead = Aead::new_on(kernel, &spec, &key(key_len), unit, IvNumbering::Sectors, Sector(0))?;
    let (data, out) = (pages(request), pages(request));
    let mut tuples = vec![0x42; request / unit.bytes() * aead.tuple_len()];
    let name = format!("inlock {spec} {}{}", aead.kernel(), if random { ", random IVs" } else { "" });
    if !seal {
        aead.seal_with_stored_ivs(Sector(0), InOut::InPlace(data), &mut tuples)?;
    }
    let call = move || {
        if !seal {
            let bad = aead.open(Sector(0), InOut::copy(data, out), &tuples).expect("lengths that fit");
            assert!(bad.is_empty());
        } else if random {
            aead.seal(Sector(0), InOut::InPlace(data), &mut tuples).expect("random bytes");
        } else {
            aead.seal_with_stored_ivs(Sector(0), InOut::InPlace(data), &mut tuples).expect("lengths that fit");
        }
        request
    };
    Ok((name, Box::new(call)))
}

/// AES-GCM of OpenSSL, one unit a call.
struct OpenSslGcm {
    context: CipherCtx,
    unit: usize,
}

impl OpenSslGcm {
    fn new(key_len: usize, unit: usize, seal: bool) -> Result<Self, ErrorStack> {
        let cipher: &CipherRef = if key_len == 32 { Cipher::aes_256_gcm() } else { Cipher::aes_128_gcm() };
        let mut context = CipherCtx::new()?;
        match seal {
            true => context.encrypt_init(Some(cipher), Some(&key(key_len)), None)?,
            false => context.decrypt_init(Some(cipher), Some(&key(key_len)), None)?,
        }
        Ok(Self { context, unit })
    }

    fn additional_data(at: usize, unit: usize, iv: &[u8]) -> [u8; 20] {
        let mut data = [0; 20];
        data[..8].copy_from_slice(&(at as u64 * unit as u64 / 512).to_le_bytes());
        data[8..].copy_from_slice(iv);
        data
    }

    fn seal(&mut self, data: &mut [u8], tuples: &mut [u8]) -> Result<(), ErrorStack> {
        let units = data.chunks_exact_mut(self.unit).zip(tuples.chunks_exact_mut(TUPLE));
        for (at, (unit, tuple)) in units.enumerate() {
            let (tag, iv) = tuple.split_at_mut(16);
            self.context.encrypt_init(None, None, Some(iv))?;
            self.context.cipher_update(&Self::additional_data(at, self.unit, iv), None)?;
            self.context.cipher_update_inplace(unit, self.unit)?;
            self.context.cipher_final(&mut [0; 16])?;
            self.context.tag(tag)?;
        }
        Ok(())
    }

    fn open(&mut self, data: &[u8], out: &mut [u8], tuples: &[u8]) -> Result<(), ErrorStack> {
        let units = data.chunks_exact(self.unit).zip(tuples.chunks_exact(TUPLE));
        for ((at, (unit, tuple)), out) in units.enumerate().zip(out.chunks_exact_mut(self.unit)) {
            let (tag, iv) = tuple.split_at(16);
            self.context.decrypt_init(None, None, Some(iv))?;
            self.context.set_tag(tag)?;
            self.context.cipher_update(&Self::additional_data(at, self.unit, iv), None)?;
            self.context.cipher_update(unit, Some(out))?;
            self.context.cipher_final(&mut [0; 16])?;
        }
        Ok(())
    }
}

fn openssl_gcm(key_len: usize, request: usize, unit: usize, seal: bool) -> Result<Contestant, Box<dyn Error>> {
    let mut openssl = OpenSslGcm::new(key_len, unit, seal)?;
    let (data, out) = (pages(request), pages(request));
    let mut tuples = vec![0x42; request / unit * TUPLE];
    if !seal {
        OpenSslGcm::new(key_len, unit, true)?.seal(data, &mut tuples)?;
    }
    let call = move || {
        let done = if seal { openssl.seal(data, &mut tuples) } else { openssl.open(data, out, &tuples) };
        done.expect("a key, an IV and a tag that fit");
        request
    };
    Ok(("OpenSSL gcm".to_owned(), Box::new(call)))
}

/// Fails unless every kernel seals to the bytes that OpenSSL does.
fn check_same(key_len: usize, unit: usize) -> Result<(), Box<dyn Error>> {
    let plain: Vec<u8> = (0..16 * unit).map(|at| (at * 31 + at / 256) as u8).collect();
    let (mut expected, mut expected_tuples) = (plain.clone(), vec![0x17; 16 * TUPLE]);
    OpenSslGcm::new(key_len, unit, true)?.seal(&mut expected, &mut expected_tuples)?;
    for kernel in AesKernel::available() {
        let spec = "capi:gcm(aes)-random".parse()?;
        let size = DataUnitSize::new(unit as u32)?;
        let aead = Aead::new_on(kernel, &spec, &key(key_len), size, IvNumbering::Sectors, Sector(0))?;
        let (mut data, mut tuples) = (plain.clone(), vec![0x17; 16 * TUPLE]);
        aead.seal_with_stored_ivs(Sector(0), InOut::InPlace(&mut data), &mut tuples)?;
        if (data, tuples) != (expected.clone(), expected_tuples.clone()) {
            return Err(format!("{} and OpenSSL compute different bytes", aead.kernel()).into());
        }
    }
    Ok(())
}

/// Measures the contestants in turns, the first of which is the one to compare with.
fn print_rows(key_len: usize, request: usize, unit: usize, seal: bool, contestants: &mut [Contestant]) {
    let time = |call: &mut dyn FnMut() -> usize, calls: usize| {
        let begin = Instant::now();
        let bytes: usize = (0..calls).map(|_| call()).sum();
        (bytes as f64, begin.elapsed().as_secs_f64())
    };
    let calls: Vec<usize> = contestants
        .iter_mut()
        .map(|(_, call)| {
            let (_, taken) = (time(call, 1), time(call, 3).1);
            ((SLICE_TIME.as_secs_f64() * 3.0 / taken) as usize).max(1)
        })
        .collect();
    let mut rates = vec![Vec::new(); contestants.len()];
    for slice in 0..SLICES {
        for at in 0..contestants.len() {
            let at = if slice % 2 == 0 { at } else { contestants.len() - 1 - at };
            let (bytes, taken) = time(&mut contestants[at].1, calls[at]);
            rates[at].push(bytes / taken);
        }
    }
    for ((name, _), own) in contestants.iter().zip(&rates) {
        let ratio = median(own.iter().zip(&rates[0]).map(|(own, other)| own / other).collect());
        let direction = if seal { "seal" } else { "open" };
        let speed = median(own.clone()) / 1e9;
        println!("| {} | {request} | {unit} | {direction} | {name} | {speed:.2} | x{ratio:.2} |", key_len * 8);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
