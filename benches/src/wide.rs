//! The kernels of ciphers other than AES-XTS and AES-CBC, compared with the portable path, which is made of libraries.

use crate::contest;
use crate::peers::{Case, InlockPeer, Peer};
use inlock_cipher::{AesKernel, CipherSpec};
use std::error::Error;

/// Specification and key length in bytes.
const CIPHERS: [(&str, usize); 13] = [
    ("serpent-xts-plain64", 64),
    ("serpent-cbc-essiv:sha256", 32),
    ("serpent-lrw-benbi", 48),
    ("xchacha12,aes-adiantum-plain64", 32),
    ("xchacha20,aes-adiantum-plain64", 32),
    ("aes-lrw-benbi", 48),
    ("aes-lrw-benbi", 32),
    ("aes-ctr-plain64", 32),
    ("aes-ctr-plain64", 16),
    // Without kernels.
    ("twofish-xts-plain64", 64),
    ("camellia-xts-plain64", 64),
    ("sm4-xts-plain64", 32),
    ("aria-xts-plain64", 64),
];

/// Prints a table of every cipher on every kernel.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("| cipher | key | request | unit | direction | kernel | MB/s | to portable |");
    println!("|---|---|---|---|---|---|---|---|");
    for (name, key_len) in CIPHERS {
        let spec: CipherSpec = name.parse()?;
        let key: Vec<u8> = (0..key_len).map(|at| (at * 7 + 1) as u8).collect();
        for (request, unit) in [(256 << 10, 4096), (256 << 10, 512), (4096, 4096)] {
            for encrypt in [true, false] {
                let case = Case { spec, key: &key, unit, encrypt };
                let mut peers: Vec<Box<dyn Peer>> = Vec::new();
                for kernel in AesKernel::available() {
                    let peer: Box<dyn Peer> = Box::new(InlockPeer::new(kernel, &case, false)?);
                    // Some levels of the CPU share a kernel.
                    if peers.iter().all(|other| other.name() != peer.name()) {
                        peers.push(peer);
                    }
                }
                // A cipher without kernels is compared with itself.
                let shown = peers.len();
                if shown == 1 {
                    peers.push(Box::new(InlockPeer::new(AesKernel::Portable, &case, false)?));
                }
                for row in contest::run(&case, request, &mut peers)?.into_iter().take(shown) {
                    let number = |field: &str| row[field].as_f64().unwrap_or_default();
                    println!(
                        "| {name} | {} | {request} | {unit} | {} | {} | {:.0} | x{:.2} |",
                        key_len * 8,
                        row["direction"].as_str().unwrap_or_default(),
                        row["implementation"].as_str().unwrap_or_default(),
                        number("bytes_per_second") / 1e6,
                        // The first is the portable path.
                        number("share_of_limit"),
                    );
                }
            }
        }
    }
    Ok(())
}
