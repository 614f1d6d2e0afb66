//! A kernel for tests: other implementations of the ciphers, and faults.

use crate::api::{CryptoApi, Session, Transform};
use crate::error::AfAlgError;
use aes::Aes256;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use inlock_engine::Direction;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Behaviour and counters of the kernel.
#[derive(Default)]
pub(super) struct Kernel {
    /// Every operation of this number fails; 0: none.
    pub(super) fails_every: AtomicU64,
    /// Sessions cannot be opened.
    pub(super) has_no_sessions: AtomicBool,
    /// The upper half of IVs is ignored.
    pub(super) halves_ivs: AtomicBool,
    /// Operations panic.
    pub(super) panics: AtomicBool,
    /// Operations wait until it is true again.
    pub(super) runs: Gate,
    pub(super) operations: AtomicU64,
    /// Open transforms and sessions.
    pub(super) sockets: AtomicUsize,
    pub(super) most_sockets: AtomicUsize,
}

/// Blocks threads while it is closed.
#[derive(Default)]
pub(super) struct Gate {
    is_closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub(super) fn set_closed(&self, closed: bool) {
        *self.is_closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        drop(self.changed.wait_while(self.is_closed.lock().unwrap(), |closed| *closed).unwrap());
    }
}

/// A socket that is counted while it is open.
struct Socket(Arc<Kernel>);

impl Socket {
    fn new(kernel: &Arc<Kernel>) -> Self {
        let open = kernel.sockets.fetch_add(1, Ordering::SeqCst) + 1;
        kernel.most_sockets.fetch_max(open, Ordering::SeqCst);
        Self(Arc::clone(kernel))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) struct Api(pub(super) Arc<Kernel>);

impl CryptoApi for Api {
    fn open(&self, algorithm: &str, key: &[u8]) -> Result<Box<dyn Transform>, AfAlgError> {
        let bits = key.len() * 8;
        let refused = || AfAlgError::Key { algorithm: algorithm.to_owned(), bits };
        let cipher = match algorithm {
            "xts(aes)" if bits == 512 => Cipher::Xts(key.to_vec()),
            "cbc(aes)" if bits == 256 => Cipher::Cbc(key.to_vec()),
            "xts(aes)" | "cbc(aes)" => return Err(refused()),
            _ => return Err(AfAlgError::Algorithm(algorithm.to_owned())),
        };
        Ok(Box::new(Bound { socket: Socket::new(&self.0), cipher }))
    }
}

#[derive(Clone)]
enum Cipher {
    Xts(Vec<u8>),
    Cbc(Vec<u8>),
}

fn aes(key: &[u8]) -> Aes256 {
    Aes256::new_from_slice(key).unwrap()
}

impl Cipher {
    fn process(&self, direction: Direction, mut iv: [u8; 16], unit: &mut [u8]) {
        match (self, direction) {
            (Self::Xts(key), direction) => {
                let xts = xts_mode::Xts128::new(aes(&key[..32]), aes(&key[32..]));
                match direction {
                    Direction::Encrypt => xts.encrypt_sector(unit, iv.into()),
                    Direction::Decrypt => xts.decrypt_sector(unit, iv.into()),
                }
            }
            (Self::Cbc(key), direction) => {
                let aes = aes(key);
                for block in unit.as_chunks_mut::<16>().0 {
                    let before = *block;
                    match direction {
                        Direction::Encrypt => {
                            block.iter_mut().zip(iv).for_each(|(byte, iv)| *byte ^= iv);
                            aes.encrypt_block(block.into());
                            iv = *block;
                        }
                        Direction::Decrypt => {
                            aes.decrypt_block(block.into());
                            block.iter_mut().zip(iv).for_each(|(byte, iv)| *byte ^= iv);
                            iv = before;
                        }
                    }
                }
            }
        }
    }
}

struct Bound {
    socket: Socket,
    cipher: Cipher,
}

impl Transform for Bound {
    fn session(&self) -> io::Result<Box<dyn Session>> {
        let kernel = &self.socket.0;
        if kernel.has_no_sessions.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Box::new(Accepted { socket: Socket::new(kernel), cipher: self.cipher.clone(), has_failed: false }))
    }
}

struct Accepted {
    socket: Socket,
    cipher: Cipher,
    has_failed: bool,
}

impl Session for Accepted {
    fn process(&mut self, direction: Direction, ivs: &[[u8; 16]], data: &mut [u8]) -> usize {
        assert!(!self.has_failed, "a session is used after a failure");
        let kernel = &self.socket.0;
        let unit = data.len() / ivs.len();
        for (number, (iv, unit)) in ivs.iter().zip(data.chunks_exact_mut(unit)).enumerate() {
            kernel.runs.pass();
            assert!(!kernel.panics.load(Ordering::SeqCst), "a fault of the test");
            let operation = kernel.operations.fetch_add(1, Ordering::SeqCst) + 1;
            let every = kernel.fails_every.load(Ordering::SeqCst);
            if every > 0 && operation.is_multiple_of(every) {
                self.has_failed = true;
                return number;
            }
            let mut iv = *iv;
            if kernel.halves_ivs.load(Ordering::SeqCst) {
                iv[4..].fill(0);
            }
            self.cipher.process(direction, iv, unit);
        }
        ivs.len()
    }
}
