//! Images made by other tools and by Inlock.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::process::{inlock, output, program, text};
use crate::random::Random;

/// Length of the payload of test images, in bytes: many data units, few enough for the slow reference decryptor.
pub const PAYLOAD: u64 = 2 << 20;

/// Cheap costs for keyslots whose derivation is not under test.
pub const CHEAP_ARGON2: [&str; 3] = ["--pbkdf-memory=64", "--pbkdf-force-iterations=4", "--pbkdf-parallel=1"];
/// Minimum costs of PBKDF2.
pub const CHEAP_PBKDF2: [&str; 2] = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];

/// Writes a passphrase to a file and returns its path.
pub fn key_file(dir: &Path, name: &str, passphrase: &[u8]) -> Result<PathBuf> {
    let path = dir.join(name);
    fs::write(&path, passphrase)?;
    Ok(path)
}

/// Creates an empty file of this length.
pub fn sparse(path: &Path, len: u64) -> Result<()> {
    Ok(File::create(path)?.set_len(len)?)
}

/// Formats with cryptsetup. `len` is the length of the whole image.
pub fn cryptsetup_format(image: &Path, len: u64, key: &Path, args: &[&str]) -> Result<()> {
    sparse(image, len)?;
    text(program("cryptsetup").args(["luksFormat", "-q"]).args(args).arg("--key-file").arg(key).arg(image)).map(drop)
}

/// Formats with Inlock. `len` is the length of the whole image.
pub fn inlock_format(image: &Path, len: u64, key: &Path, args: &[&str]) -> Result<()> {
    sparse(image, len)?;
    text(inlock()?.args(["luksFormat", "-q"]).args(args).arg("--key-file").arg(key).arg(image)).map(drop)
}

/// Runs `qemu-img create -f luks`. `len` is the length of the payload.
///
/// On fast machines its benchmark of the key derivation sometimes measures no elapsed time and fails. It is then
/// retried after pauses of different lengths, so that it does not always start at the same distance from a clock tick.
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

/// Fills a byte range of a file with noise from a seed, which stands for ciphertext of unknown origin.
pub fn fill_with_noise(image: &Path, offset: u64, len: u64, seed: u64) -> Result<()> {
    let file = File::options().write(true).open(image)?;
    Ok(file.write_all_at(&Random::new(seed).bytes(len as usize), offset)?)
}

/// Describes the first difference between two byte strings. `None`: they are equal.
pub fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let place = ours.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or(ours.len().min(theirs.len()));
    let differing = ours.iter().zip(theirs).filter(|(a, b)| a != b).count();
    Some(format!("lengths {} and {}, first difference at {place}, {differing} bytes differ", ours.len(), theirs.len()))
}
