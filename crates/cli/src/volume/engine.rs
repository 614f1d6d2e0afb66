//! `--engine`: the cipher engine of a volume.

use std::path::Path;
use std::sync::Arc;

use inlock_afalg::{AfAlg, AfAlgError};
use inlock_engine::{Content, Device, Target};
use inlock_volume::VolumeKey;

use crate::error::{CliError, Status};

/// A cipher engine other than the software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineArgs {
    /// Length in bytes of the shortest request for it.
    pub threshold: usize,
}

impl EngineArgs {
    /// Returns its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        "afalg"
    }

    /// Starts the engine. Checks that the kernel has it, before a passphrase is asked for.
    pub(crate) fn start(self) -> anyhow::Result<VolumeEngine> {
        Ok(VolumeEngine { engine: Arc::new(AfAlg::start().map_err(cannot_use)?), threshold: self.threshold })
    }
}

/// A running engine for a volume.
pub(crate) struct VolumeEngine {
    engine: Arc<AfAlg>,
    threshold: usize,
}

impl VolumeEngine {
    /// Gives the keys of the device's targets to the engine.
    ///
    /// # Errors
    ///
    /// Fails if no target is encrypted, or the engine lacks the cipher of one.
    pub(crate) fn add_to(self, device: Device, targets: &[Target<'_>], path: &Path) -> anyhow::Result<Device> {
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
    pub(crate) fn nothing_to_do(path: &Path) -> anyhow::Error {
        CliError::refused(
            format!("A cipher engine has nothing to do for {}.", path.display()),
            "use --engine software; engines encrypt LUKS and plain volumes, without integrity protection",
        )
    }
}

fn cannot_use(error: AfAlgError) -> anyhow::Error {
    let hint = match &error {
        AfAlgError::NoSockets => "load the modules af_alg and algif_skcipher, or use --engine software".to_owned(),
        AfAlgError::Algorithm(name) => {
            format!(
                "load algif_skcipher and the modules of {name} (grep '{name}' /proc/crypto), or use --engine software"
            )
        }
        _ => "use --engine software".to_owned(),
    };
    CliError::Remote(format!("Cannot use --engine afalg: {error}."), Some(hint), Status::Wrong).into()
}
