//! `--engine`: the cipher engine of a volume.

use crate::error::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;

use inlock_afalg::{AfAlg, AfAlgError};
use inlock_engine::{Content, Device, Target};
use inlock_volume::VolumeKey;

/// A cipher engine other than the software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Length in bytes of the shortest request for it.
    pub threshold: usize,
}

impl EngineOptions {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        "afalg"
    }

    /// Starts the engine. Checks that the kernel has it, before a passphrase is asked for.
    pub fn start(self) -> Result<VolumeEngine> {
        Ok(VolumeEngine { engine: Arc::new(AfAlg::start().map_err(cannot_use)?), threshold: self.threshold })
    }
}

/// A running engine for a volume.
pub struct VolumeEngine {
    engine: Arc<AfAlg>,
    threshold: usize,
}

impl VolumeEngine {
    /// Gives the keys of the device's targets to the engine.
    ///
    /// # Errors
    ///
    /// Fails if no target is encrypted, or the engine lacks the cipher of one.
    pub fn add_to(self, device: Device, targets: &[Target<'_>], path: &Path) -> Result<Device> {
        // As in the device: each key once, in the order of first use.
        let mut keys: Vec<&VolumeKey> = Vec::new();
        for target in targets {
            let (Content::Crypt(key), Some(spec)) = (target.content, &target.segment.cipher) else { continue };
            let numbering = target.segment.large_iv.into();
            self.engine.check(spec, key.as_bytes(), target.segment.unit, numbering).map_err(cannot_use)?;
            if !keys.iter().any(|known| std::ptr::eq(*known, key)) {
                keys.push(key);
            }
        }
        if keys.is_empty() {
            return Err(Self::nothing_to_do(path));
        }
        Ok(device.with_engine(self.engine, self.threshold, &keys)?)
    }

    /// Returns the error of a volume without data units for an engine.
    pub fn nothing_to_do(path: &Path) -> Error {
        Error::new(ErrorKind::EngineIdle, format!("A cipher engine has nothing to do for {}.", path.display()))
    }
}

fn cannot_use(error: AfAlgError) -> Error {
    let text = format!("Cannot use --engine afalg: {error}.");
    Error::telling(ErrorKind::NoEngine, text, error)
}
