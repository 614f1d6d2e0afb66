//! Images made by other people's tools, and by Inlock.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::process::{inlock, output, program, text};
use crate::random::Random;

/// Bytes of payload the images of the matrix have: enough for many data units, little enough for a slow decryptor.
pub const PAYLOAD: u64 = 2 << 20;

/// Cheap costs for key slots that only have to be opened.
pub const CHEAP_ARGON2: [&str; 3] = ["--pbkdf-memory=64", "--pbkdf-force-iterations=4", "--pbkdf-parallel=1"];
/// The least that PBKDF2 may be told.
pub const CHEAP_PBKDF2: [&str; 2] = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];

/// A file with a passphrase in it.
pub fn key_file(dir: &Path, name: &str, passphrase: &[u8]) -> Result<PathBuf> {
    let path = dir.join(name);
    fs::write(&path, passphrase)?;
    Ok(path)
}

/// An empty file of a length.
pub fn sparse(path: &Path, len: u64) -> Result<()> {
    Ok(File::create(path)?.set_len(len)?)
}

/// Formats with cryptsetup; `len` is the whole image's.
pub fn cryptsetup_format(image: &Path, len: u64, key: &Path, args: &[&str]) -> Result<()> {
    sparse(image, len)?;
    text(program("cryptsetup").args(["luksFormat", "-q"]).args(args).arg("--key-file").arg(key).arg(image)).map(drop)
}

/// Formats with Inlock; `len` is the whole image's.
pub fn inlock_format(image: &Path, len: u64, key: &Path, args: &[&str]) -> Result<()> {
    sparse(image, len)?;
    text(inlock()?.args(["luksFormat", "-q"]).args(args).arg("--key-file").arg(key).arg(image)).map(drop)
}

/// `qemu-img create -f luks`; `len` is the payload's.
///
/// On fast machines its key derivation benchmark sometimes finds that no time went by and gives up; it is asked again,
/// after pauses of different lengths, so that it does not always meet the clock's ticks in the same way.
pub fn qemu_format(image: &Path, len: u64, key: &Path, options: &str) -> Result<()> {
    let mut last = String::new();
    for attempt in 0..100 {
        let mut command = program("qemu-img");
        command.args(["create", "-q", "-f", "luks", "--object"]).arg(format!("secret,id=s,file={}", key.display()));
        command.args(["-o", &format!("key-secret=s,iter-time=100{options}")]).arg(image).arg(len.to_string());
        let output = output(&mut command)?;
        if output.status.success() {
            return Ok(());
        }
        last = crate::process::lossy(&output.stderr);
        if !last.contains("Unable to get accurate CPU usage") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(attempt % 17));
    }
    bail!("qemu-img create {options}: {last}")
}

/// Fills a byte range of a file with noise from a seed: ciphertext nobody wrote.
pub fn fill_with_noise(image: &Path, offset: u64, len: u64, seed: u64) -> Result<()> {
    let file = File::options().write(true).open(image)?;
    Ok(file.write_all_at(&Random::new(seed).bytes(len as usize), offset)?)
}

/// The first difference of two byte strings as a short text; none when they are equal.
pub fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let place = ours.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or(ours.len().min(theirs.len()));
    let differing = ours.iter().zip(theirs).filter(|(a, b)| a != b).count();
    Some(format!("lengths {} and {}, first difference at {place}, {differing} bytes differ", ours.len(), theirs.len()))
}
