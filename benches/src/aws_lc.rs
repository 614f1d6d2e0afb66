//! AWS-LC's EVP interface, one call per unit. It has AES-256-XTS only.
//!
//! No safe binding exposes its XTS, so this file calls C.

use crate::peers::{Case, Peer};
use aws_lc_sys as lc;
use std::ptr::{NonNull, null, null_mut};

pub(crate) struct AwsLcPeer {
    context: NonNull<lc::EVP_CIPHER_CTX>,
    unit: usize,
}

impl AwsLcPeer {
    /// Sets up the key once. `None`: the library does not have the cipher.
    pub(crate) fn new(case: &Case<'_>) -> Option<Self> {
        if !case.is_xts() || case.key_bits() != 256 {
            return None;
        }
        // SAFETY: the context is new, the key has the 64 bytes that this cipher reads, and the IV comes later.
        unsafe {
            let context = NonNull::new(lc::EVP_CIPHER_CTX_new())?;
            let peer = Self { context, unit: case.unit };
            let (cipher, encrypt) = (lc::EVP_aes_256_xts(), i32::from(case.encrypt));
            let set = lc::EVP_CipherInit_ex(context.as_ptr(), cipher, null_mut(), case.key.as_ptr(), null(), encrypt);
            (set == 1).then_some(peer)
        }
    }
}

impl Peer for AwsLcPeer {
    fn name(&self) -> String {
        "AWS-LC".to_owned()
    }

    fn run(&mut self, first: u64, data: &mut [u8], len: usize) -> usize {
        for (number, unit) in (first..).zip(data[..len].chunks_exact_mut(self.unit)) {
            let iv = u128::from(number).to_le_bytes();
            let (mut written, unit_len, unit) = (0, unit.len() as i32, unit.as_mut_ptr());
            // SAFETY: the context has its key, the IV has the length that XTS reads, and XTS writes as many bytes as it
            // reads.
            let done = unsafe {
                let context = self.context.as_ptr();
                lc::EVP_CipherInit_ex(context, null(), null_mut(), null(), iv.as_ptr(), -1) == 1
                    && lc::EVP_CipherUpdate(context, unit, &mut written, unit, unit_len) == 1
            };
            assert!(done && written == unit_len, "EVP takes a unit under a key and an IV of the right lengths");
        }
        len
    }
}

impl Drop for AwsLcPeer {
    fn drop(&mut self) {
        // SAFETY: the context is owned and freed once.
        unsafe { lc::EVP_CIPHER_CTX_free(self.context.as_ptr()) };
    }
}
