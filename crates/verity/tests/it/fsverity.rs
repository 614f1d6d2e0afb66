//! Digests of files against the program `fsverity`.

use crate::support::noise;
use inlock_cipher::Hash;
use inlock_verity::{FileError, FileParameters, digest_file};
use std::fs;
use std::io::{self, Read};
use std::process::Command;

/// Returns the digest in hexadecimal digits.
fn digest(data: &[u8], parameters: &FileParameters) -> String {
    let digest = digest_file(&mut &*data, parameters).unwrap().digest;
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lengths around a block, a block of digests, and two levels of them.
const LENGTHS: [usize; 14] =
    [0, 1, 511, 512, 513, 4095, 4096, 4097, 131_071, 524_288, 524_289, 525_000, 2_100_000, 20_000_000];

#[test]
fn digests_of_files_are_those_of_fsverity() {
    if Command::new("fsverity").arg("--version").output().is_err() {
        println!("SKIPPED: fsverity is not installed");
        return;
    }
    let path = std::env::temp_dir().join(format!("inlock-fsverity-{}", std::process::id()));
    let all = noise(9, 20_000_000);
    let mut compared = 0;
    for len in LENGTHS {
        fs::write(&path, &all[..len]).unwrap();
        for (hash, name) in [(Hash::Sha256, "sha256"), (Hash::Sha512, "sha512")] {
            for (block_len, salt) in [(4096, ""), (1024, "00"), (512, "0123456789abcdef"), (65536, &"7f".repeat(32))] {
                let mut command = Command::new("fsverity");
                command.args(["digest", "--compact"]).arg(format!("--hash-alg={name}")).arg(&path);
                command.arg(format!("--block-size={block_len}"));
                if !salt.is_empty() {
                    command.arg(format!("--salt={salt}"));
                }
                let theirs = String::from_utf8(command.output().unwrap().stdout).unwrap();
                let digits = salt.as_bytes().as_chunks::<2>().0;
                let byte = |digits: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
                let parameters = FileParameters { hash, block_len, salt: digits.iter().map(byte).collect() };
                assert_eq!(digest(&all[..len], &parameters), theirs.trim(), "{len} bytes, {parameters:?}");
                compared += 1;
            }
        }
    }
    fs::remove_file(&path).unwrap();
    println!("COUNT fsverity_digests_compared {compared}");
}

/// A file that is read in short pieces.
struct Short<'a>(&'a [u8]);

impl Read for Short<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.0.len()).min(777);
        into[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

#[test]
fn short_reads_give_the_same_digest_and_other_bytes_another() {
    let mut data = noise(5, 1_000_000);
    let parameters = FileParameters::default();
    let whole = digest_file(&mut &*data, &parameters).unwrap();
    assert_eq!(digest_file(&mut Short(&data), &parameters).unwrap(), whole);
    let mut others = vec![whole.digest.clone()];
    for at in [0, 4095, 4096, 524_288, 999_999] {
        data[at] ^= 1;
        others.push(digest_file(&mut &*data, &parameters).unwrap().digest);
        data[at] ^= 1;
    }
    // Zeroes behind the end change the descriptor, though not the tree.
    data.resize(1_000_001, 0);
    let longer = digest_file(&mut &*data, &parameters).unwrap();
    assert_eq!(longer.root, whole.root);
    others.push(longer.digest);
    others.sort();
    others.dedup();
    assert_eq!(others.len(), 7);
}

#[test]
fn impossible_parameters_of_a_file_are_refused() {
    let default = FileParameters::default;
    let rows = [
        (FileParameters { hash: Hash::Sha1, ..default() }, "hash_algorithm"),
        (FileParameters { block_len: 0, ..default() }, "log_blocksize"),
        (FileParameters { block_len: 4095, ..default() }, "log_blocksize"),
        (FileParameters { block_len: 1 << 20, ..default() }, "log_blocksize"),
        (FileParameters { salt: vec![0; 33], ..default() }, "salt_size"),
    ];
    for (parameters, field) in rows {
        let error = digest_file(&mut &b"data"[..], &parameters).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
        // Before the file is read.
        let error = digest_file(&mut FailsOnce(b"", Some(io::ErrorKind::Other)), &parameters).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

/// A file whose first read fails.
struct FailsOnce<'a>(&'a [u8], Option<io::ErrorKind>);

impl Read for FailsOnce<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.1.take() {
            Some(kind) => Err(kind.into()),
            None => self.0.read(into),
        }
    }
}

#[test]
fn interrupted_read_is_repeated_and_failed_one_is_an_error() {
    let (data, parameters) = (noise(3, 5000), FileParameters::default());
    let whole = digest_file(&mut &data[..], &parameters).unwrap();
    let interrupted = &mut FailsOnce(&data, Some(io::ErrorKind::Interrupted));
    assert_eq!(digest_file(interrupted, &parameters).unwrap(), whole);
    let failed = digest_file(&mut FailsOnce(&data, Some(io::ErrorKind::TimedOut)), &parameters);
    assert!(matches!(failed, Err(FileError::Io(error)) if error.kind() == io::ErrorKind::TimedOut));
}
