//! The independent decryptor: `oracle/reference.py`, which shares no code with Inlock.
//!
//! It asks cryptsetup for the volume key and the layout and does the cipher with Python's `cryptography`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{PYTHON, lossy, output, output_with_input, program, root};

/// A volume as the oracle opens it.
#[derive(Clone, Copy, Debug)]
pub struct Volume<'a> {
    /// The image with the data.
    pub image: &'a Path,
    /// The key file.
    pub key: &'a Path,
    /// The detached header, if it has one.
    pub header: Option<&'a Path>,
    /// The layout of a volume without a header, as `reference.py --plain` takes it; the key file is its key then.
    pub plain: Option<&'a str>,
}

impl Volume<'_> {
    fn command(&self, verb: &str) -> Command {
        let mut command = program(PYTHON);
        command.arg(root().join("tests/oracle/reference.py")).arg(verb).arg(self.image).arg(self.key);
        if let Some(header) = self.header {
            command.arg("--header").arg(header);
        }
        if let Some(plain) = self.plain {
            command.args(["--plain", plain]);
        }
        command
    }

    /// The whole plaintext.
    pub fn decrypt(&self) -> Result<Vec<u8>> {
        let output = output(&mut self.command("decrypt"))?;
        if !output.status.success() {
            bail!("reference decrypt: {}", lossy(&output.stderr));
        }
        Ok(output.stdout)
    }

    /// Writes plaintext into the volume, from its start.
    pub fn encrypt(&self, plain: &[u8]) -> Result<()> {
        let output = output_with_input(&mut self.command("encrypt"), plain)?;
        if !output.status.success() {
            bail!("reference encrypt: {}", lossy(&output.stderr));
        }
        Ok(())
    }

    /// Where the payload starts in the image, in bytes.
    pub fn payload_offset(&self) -> Result<u64> {
        let text = crate::process::text(&mut self.command("offset"))?;
        Ok(text.trim().parse()?)
    }
}
