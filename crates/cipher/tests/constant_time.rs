//! No branch and no address depends on a key or on data: checked by valgrind's memcheck on the finished machine code.
//!
//! Each test runs itself again under valgrind, where it marks the key and the data as undefined. Memcheck follows
//! undefined bits through every instruction and reports one that decides a branch or an address. Two controls do just
//! that, to show that it would be reported. Valgrind does not emulate VAES and AVX-512 and hides them from the program,
//! so only the portable kernel and, if the CPU has them, AES-NI and the AVX2 kernels of Serpent and
//! Adiantum are checked; all x86-64 kernels share their loops.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code)] // Requests to valgrind, which are no-ops elsewhere.

use inlock_cipher::{
    Aead, AeadSpec, AesKernel, BadUnits, CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, Sector,
    new_sector_cipher_on,
};
use std::hint::black_box;
use std::process::Command;

/// Specifications that must take the same time for every key and all data.
const SPECS: [&str; 10] = [
    "aes-xts-plain64",
    "aes-cbc-plain64",
    "aes-cbc-essiv:sha256",
    "aes-lrw-benbi",
    "aes-ctr-plain64",
    "aes-ctr-essiv:sha256",
    "serpent-xts-plain64",
    "serpent-cbc-plain64",
    "xchacha12,aes-adiantum-plain64",
    "xchacha20,aes-adiantum-plain64",
];

/// Authenticated modes that must.
const AEAD_SPECS: [&str; 7] = [
    "capi:gcm(aes)-random",
    "capi:rfc4309(ccm(aes))-random",
    "capi:rfc7539(chacha20,poly1305)-random",
    "capi:aegis128-random",
    "capi:authenc(hmac(sha256),xts(aes))-random",
    "capi:authenc(hmac(sha1),cbc(aes))-essiv:sha256",
    "capi:authenc(hmac(sha512),ctr(aes))-random",
];

/// The one function that may branch on the result of a comparison of tags, which is no secret.
const SUPPRESSION: &str = "{\n  units that failed\n  Memcheck:Cond\n  fun:*zero_failed_units*\n}\n";

/// Tells a test that it runs under valgrind.
const INSIDE: &str = "INLOCK_INSIDE_VALGRIND";
/// Exit status of valgrind if memcheck reports an error.
const COMPLAINED: i32 = 97;
/// The last line of a child, so that an early exit is detected.
const DONE: &str = "worked on undefined bytes by ";

/// Sends a memcheck request about a range of bytes: 'M', 'C', and its number.
fn request(number: u64, bytes: &[u8]) {
    let arguments = [0x4d43_0000 + number, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0];
    // SAFETY: the rotations add up to 128 bits and the exchange is of a register with itself: no effect but the result
    // in `rdx`. Valgrind knows the sequence and reads the arguments, without writing them or the bytes.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") arguments.as_ptr(), inout("rdx") 0u64 => _, inout("rdi") 0u64 => _,
        );
    }
}

fn make_undefined(bytes: &mut [u8]) {
    request(1, bytes);
}

fn make_defined(bytes: &mut [u8]) {
    request(2, bytes);
}

/// Outside of valgrind: runs the test `name` under it, and returns its exit status and output. `None`: inside, where
/// the test does its work, or without valgrind.
fn outside(name: &str) -> Option<(i32, String)> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let this = std::env::current_exe().expect("a test knows its own path");
    let mut valgrind = Command::new("valgrind");
    let suppressions = std::env::temp_dir().join(format!("inlock-{name}-{}.supp", std::process::id()));
    std::fs::write(&suppressions, SUPPRESSION).expect("a file for valgrind");
    valgrind.arg("--quiet").arg(format!("--suppressions={}", suppressions.display()));
    valgrind.arg(format!("--error-exitcode={COMPLAINED}")).arg(this);
    valgrind.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    let output = valgrind.output();
    std::fs::remove_file(&suppressions).expect("the file is still there");
    match output {
        Ok(output) => {
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            Some((output.status.code().unwrap_or(-1), text))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIPPED: valgrind is not installed");
            Some((-2, String::new()))
        }
        Err(error) => panic!("valgrind: {error}"),
    }
}

/// Returns a secret that memcheck follows.
fn secret(len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at * 7 + 1) as u8).collect();
    make_undefined(black_box(&mut bytes));
    bytes
}

#[test]
fn no_branch_or_address_depends_on_key_or_data() {
    if let Some((code, text)) = outside("no_branch_or_address_depends_on_key_or_data") {
        if code != -2 {
            assert_eq!(code, 0, "{text}");
            assert!(text.contains(&format!("{DONE}portable")), "{text}");
        }
        return;
    }
    for kernel in AesKernel::available() {
        for spec in SPECS {
            let spec: CipherSpec = spec.parse().unwrap();
            for key_len in spec.key_lens().into_iter().filter(|len| *len != 0 && len.is_multiple_of(16)) {
                for (unit, units) in [(512, 1), (512, 19), (4096, 3)] {
                    let unit = DataUnitSize::new(unit).unwrap();
                    let mut data = secret(units * unit.bytes());
                    let mut other = data.clone();
                    let cipher =
                        new_sector_cipher_on(kernel, &spec, &secret(key_len), unit, IvNumbering::DataUnits).unwrap();
                    cipher.encrypt(IvNumber(7), InOut::InPlace(&mut data));
                    cipher.decrypt(IvNumber(7), InOut::copy(&data, &mut other));
                    make_defined(&mut other);
                    let expected = (0..other.len()).map(|at| (at * 7 + 1) as u8);
                    assert!(other.iter().copied().eq(expected), "{spec} on {}", cipher.kernel());
                }
            }
        }
        println!("{DONE}{}", kernel.name());
    }
}

#[test]
fn no_branch_or_address_of_authenticated_modes_depends_on_key_or_data() {
    if let Some((code, text)) = outside("no_branch_or_address_of_authenticated_modes_depends_on_key_or_data") {
        if code != -2 {
            assert_eq!(code, 0, "{text}");
            assert!(text.contains(&format!("{DONE}portable")), "{text}");
        }
        return;
    }
    for kernel in AesKernel::available() {
        for spec in AEAD_SPECS {
            let spec: AeadSpec = spec.parse().unwrap();
            for key_len in spec.key_lens() {
                for (unit, units) in [(512, 1), (512, 19), (4096, 3)] {
                    let unit = DataUnitSize::new(unit).unwrap();
                    let key = secret(key_len);
                    let aead = Aead::new_on(kernel, &spec, &key, unit, IvNumbering::Sectors, Sector(0)).unwrap();
                    let mut data = secret(units * unit.bytes());
                    let mut other = data.clone();
                    let mut tuples = vec![0; units * aead.tuple_len()];
                    aead.seal(Sector(7), InOut::InPlace(&mut data), &mut tuples).unwrap();
                    let mut bad = aead.open(Sector(7), InOut::copy(&data, &mut other), &tuples).unwrap();
                    make_defined(bytes_of(&mut bad));
                    make_defined(&mut other);
                    assert!(bad.is_empty(), "{aead:?}");
                    let expected = (0..other.len()).map(|at| (at * 7 + 1) as u8);
                    assert!(other.iter().copied().eq(expected), "{aead:?}");
                }
            }
        }
        println!("{DONE}{}", kernel.name());
    }
}

/// Returns the memory of a result, for a request.
fn bytes_of(bad: &mut BadUnits) -> &mut [u8] {
    // SAFETY: the type is an array of numbers, for which every byte is valid.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(bad).cast(), size_of::<BadUnits>()) }
}

/// Checks that memcheck reports a control.
fn assert_complaint(ended: (i32, String), complaint: &str) {
    let (code, text) = ended;
    if code != -2 {
        assert_eq!(code, COMPLAINED, "{text}");
        assert!(text.contains(complaint), "{text}");
    }
}

#[test]
fn control_a_table_looked_up_by_a_secret_is_seen() {
    if let Some(ended) = outside("control_a_table_looked_up_by_a_secret_is_seen") {
        return assert_complaint(ended, "Use of uninitialised value");
    }
    let table: Vec<u8> = (0..=255).rev().collect();
    black_box(black_box(&table)[usize::from(secret(1)[0])]);
}

#[test]
fn control_a_branch_on_a_secret_is_seen() {
    if let Some(ended) = outside("control_a_branch_on_a_secret_is_seen") {
        return assert_complaint(ended, "Conditional jump or move depends on uninitialised value");
    }
    if secret(1)[0] == black_box(1) {
        println!("the branch was taken");
    }
}

/// The request reaches memcheck: without it, everything would pass.
#[test]
fn control_a_key_comes_out_undefined() {
    if let Some(ended) = outside("control_a_key_comes_out_undefined") {
        return assert_complaint(ended, "Conditional jump or move depends on uninitialised value");
    }
    // A cipher's output under an undefined key is undefined: memcheck follows bits through the AES instructions too.
    let cipher = AesKernel::available().pop().and_then(|kernel| {
        new_sector_cipher_on(
            kernel,
            &CipherSpec::AES_XTS_PLAIN64,
            &secret(64),
            DataUnitSize::SECTOR,
            IvNumbering::DataUnits,
        )
        .ok()
    });
    let mut data = vec![0; 512];
    cipher.unwrap().encrypt(IvNumber(0), InOut::InPlace(&mut data));
    if data[511] == black_box(1) {
        println!("the branch was taken");
    }
}
