//! The options of the header policy.

use inlock_volume::HeaderPolicy;

use super::{Fault, OpenConfig, Result};
use crate::any_cipher::AnyCipher;
use crate::host::Host;
use crate::policy_file;

impl OpenConfig {
    /// Returns the policy: that of the file, with the options.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be used, or pins what an option pins too.
    pub fn policy(&self, host: &dyn Host) -> Result<HeaderPolicy> {
        let mut policy = match &self.policy {
            Some(path) => policy_file::read(host, path).map_err(|error| Fault::Open(error).of("policy"))?,
            None => HeaderPolicy::default(),
        };
        policy.allow_null_cipher |= self.allow_null_cipher;
        policy.allow_null_iv |= self.allow_null_iv;
        policy.allow_linear_segment |= self.allow_linear_segment;
        policy.allow_integrity_superblock |= self.allow_integrity_superblock;
        if policy.data_blocks.is_some() {
            return Err(Fault::PolicyOfVerity.of("policy"));
        }
        match &self.require_cipher {
            Some(_) if !policy.required_ciphers.is_empty() || !policy.required_aeads.is_empty() => {
                return Err(Fault::InPolicy("cipher").of("require-cipher"));
            }
            Some(ciphers) => (policy.required_ciphers, policy.required_aeads) = AnyCipher::divide(&ciphers.0),
            None => {}
        }
        match &self.expect_uuid {
            Some(_) if policy.expected_uuid.is_some() => return Err(Fault::InPolicy("uuid").of("expect-uuid")),
            Some(uuid) => policy.expected_uuid = Some(uuid.clone()),
            None => {}
        }
        Ok(policy)
    }
}
