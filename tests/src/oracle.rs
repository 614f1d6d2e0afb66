//! The independent decryptor: `oracle/reference.py`, which shares no code with Inlock.
//!
//! It asks cryptsetup for the volume key and the layout, and decrypts with the Python package `cryptography`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{PYTHON, lossy, output, output_with_input, program, root};

/// A volume to decrypt.
#[derive(Clone, Copy, Debug)]
pub struct Volume<'a> {
    /// The image with the data.
    pub image: &'a Path,
    /// The key file.
    pub key: &'a Path,
    /// The detached header, if there is one.
    pub header: Option<&'a Path>,
    /// The layout of a volume without a header, as `reference.py --plain` takes it. The key file has its key.
    pub plain: Option<&'a str>,
}

impl Volume<'_> {
    fn command(&self, action: &str) -> Command {
        let mut command = program(PYTHON);
        command.arg(root().join("tests/oracle/reference.py")).arg(action).arg(self.image).arg(self.key);
        if let Some(header) = self.header {
            command.arg("--header").arg(header);
        }
        if let Some(plain) = self.plain {
            command.args(["--plain", plain]);
        }
        command
    }

    /// Returns the whole plaintext.
    pub fn decrypt(&self) -> Result<Vec<u8>> {
        let output = output(&mut self.command("decrypt"))?;
        if !output.status.success() {
            bail!("reference decrypt: {}", lossy(&output.stderr));
        }
        Ok(output.stdout)
    }

    /// Writes plaintext to the volume, from its start.
    pub fn encrypt(&self, plain: &[u8]) -> Result<()> {
        let output = output_with_input(&mut self.command("encrypt"), plain)?;
        if !output.status.success() {
            bail!("reference encrypt: {}", lossy(&output.stderr));
        }
        Ok(())
    }

    /// Returns the start of the payload in the image, in bytes.
    pub fn payload_offset(&self) -> Result<u64> {
        let text = crate::process::text(&mut self.command("offset"))?;
        Ok(text.trim().parse()?)
    }
}
