//! Searching the memory of another process.

use inlock_tests::memory_search::Needles;
use rustix::process::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

/// Counts occurrences of `wanted`, which are equally long, in the memory of a process. `None`: skipped, since it
/// cannot be read.
pub(crate) fn count(pid: Pid, wanted: &[&[u8]]) -> Option<usize> {
    let path = |file| format!("/proc/{}/{file}", pid.as_raw_nonzero());
    let (Ok(maps), Ok(memory)) = (File::open(path("maps")), File::open(path("mem"))) else {
        println!("SKIPPED: only root looks into a process that is not dumpable");
        return None;
    };
    let needles = Needles::new(wanted.iter().copied());
    let mut piece = vec![0; 1 << 20];
    let (mut found, mut looked) = (0, 0);
    for line in BufReader::new(maps).lines() {
        let line = line.expect("text");
        let Some((start, end)) = range(&line) else { continue };
        let mut at = start;
        while at < end {
            // Pieces overlap, so that a match across their edge is found once.
            let piece = &mut piece[..(end - at).min(1 << 20) as usize];
            // Pages beyond the end of a file and the kernel's own pages cannot be read.
            let Ok(read) = memory.read_at(piece, at) else { break };
            looked += read;
            found += needles.find(&piece[..read]).len();
            if read < piece.len() || at + read as u64 == end {
                break;
            }
            at += (read - (needles.len() - 1)) as u64;
        }
    }
    assert!(looked > 100_000, "{looked} bytes of memory were looked at");
    Some(found)
}

/// Readable addresses of a line of `/proc/PID/maps`.
fn range(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let readable = words.next()?.starts_with('r');
    let number = |text| u64::from_str_radix(text, 16).ok();
    readable.then_some((number(start)?, number(end)?))
}

/// Returns the round keys of AES with a key of 128 bits (FIPS 197, section 5.2). The first one is the key.
pub(crate) fn aes128_round_keys(key: &[u8]) -> [[u8; 16]; 11] {
    let mut keys = [[0; 16]; 11];
    keys[0].copy_from_slice(key);
    let mut constant = 1;
    for round in 1..keys.len() {
        let before = keys[round - 1];
        let mut word = [13, 14, 15, 12].map(|place| substituted(before[place]));
        word[0] ^= constant;
        constant = product(constant, 2);
        for (place, old) in before.iter().enumerate() {
            word[place % 4] ^= old;
            keys[round][place] = word[place % 4];
        }
    }
    keys
}

/// Product of two polynomials modulo that of AES.
fn product(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b > 0 {
        sum ^= if b & 1 == 1 { a } else { 0 };
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    sum
}

/// The S-box of AES.
fn substituted(byte: u8) -> u8 {
    // A byte to the power of 254 is its inverse.
    let inverse = (0..254).fold(1, |power, _| product(power, byte));
    (0..5).fold(0x63, |sum, turns| sum ^ inverse.rotate_left(turns))
}

/// The key and two round keys are those of FIPS 197, appendix A.1.
#[test]
fn round_keys_are_those_of_the_standard() {
    let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
    let keys = aes128_round_keys(&key).map(u128::from_be_bytes);
    assert_eq!(keys[1], 0xa0fa_fe17_8854_2cb1_23a3_3939_2a6c_7605);
    assert_eq!(keys[10], 0xd014_f9a8_c9ee_2589_e13f_0cc8_b663_0ca6);
}
