//! `verity format`: makes the tree of a data device, and prints the root hash.

use std::path::{Path, PathBuf};

use anyhow::Context;
use uuid::Uuid;

use super::dump::description;
use super::threads;
use crate::args::options::Options;
use crate::args::verity::{fec, given, hash_offset, refuse};
use crate::error::CliError;
use crate::host::context;
use crate::output::{self, Existing};
use crate::ui::print::print;
use crate::ui::terminal;
use inlock_open::output::Output;
use inlock_open::path_text;
use inlock_open::signatures;
use inlock_open::verity::{VerityDevices, hex};
use inlock_open::verity_format::VerityFormat;

/// A device to create.
pub(super) struct FormatArgs {
    data: PathBuf,
    hash: PathBuf,
    format: VerityFormat,
    root_hash_file: Option<PathBuf>,
    /// `--batch-mode`
    batch: bool,
}

impl FormatArgs {
    pub(super) fn new(options: &Options, data: PathBuf, hash: PathBuf) -> anyhow::Result<Self> {
        refuse(options)?;
        let uuid = match options.uuid.as_deref() {
            None => Uuid::new_v4(),
            Some(text) => Uuid::parse_str(text).ok().filter(|_| text.len() == 36).ok_or_else(|| {
                CliError::usage(format!("Wrong VERITY UUID format provided on device {}.", hash.display()))
            })?,
        };
        let format = VerityFormat {
            given: given(options)?,
            hash_name: options.hash.clone().unwrap_or_else(|| "sha256".to_owned()),
            hash_offset: hash_offset(options)?,
            superblock: !options.no_superblock,
            uuid,
            fec: fec(options)?,
            threads: threads(options),
        };
        let (root_hash_file, batch) = (options.root_hash_file.clone(), options.batch_mode);
        Ok(Self { data, hash, format, root_hash_file, batch })
    }

    /// Names what a hash device has, and asks on a terminal.
    fn confirm(&self, devices: &VerityDevices) -> anyhow::Result<()> {
        if let Some(hash) = devices.hash.as_ref().filter(|_| !self.batch)
            && signatures::warn_of(hash, "DM_verity_hash")?
            && terminal::stdin_is_terminal()
        {
            let text = format!("This will overwrite data on {} irrevocably.", path_text::shown(&hash.path));
            terminal::confirm(&text, CliError::NotConfirmed)?;
        }
        Ok(())
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        let root_hash_file = self.root_hash_file.as_deref().map(|path| self.take(path)).transpose()?;
        let devices = self.format.open(context(), &self.data, &self.hash)?;
        self.confirm(&devices)?;
        let made = self.format.create(&devices)?;
        let root = hex(&made.root);
        if let Some((path, output)) = root_hash_file {
            output.write_all(root.as_bytes()).with_context(cannot_create(path))?;
        }
        let VerityFormat { hash_name, hash_offset, .. } = &self.format;
        let superblock = made.superblock.as_ref();
        let text = description(&self.hash, superblock, &made.layout, made.fec.as_ref(), hash_name, *hash_offset)?;
        let at = text.find("Hash device size").unwrap_or(text.len());
        print(format_args!("{}Root hash:      \t{root}\n{}", &text[..at], &text[at..]))
    }

    /// Opens the file of the root hash, which is none of the devices.
    fn take<'a>(&self, path: &'a Path) -> anyhow::Result<(&'a Path, Output)> {
        let fec = self.format.fec.as_ref().map(|fec| &*fec.device);
        let devices: Vec<&Path> = [&*self.data, &*self.hash].into_iter().chain(fec).collect();
        let output = output::take(Some(path), &devices, Existing::Replaced { batch: self.batch });
        Ok((path, output.with_context(cannot_create(path))?))
    }
}

fn cannot_create(root_hash_file: &Path) -> impl FnOnce() -> String {
    move || format!("Cannot create root hash file {} for writing.", root_hash_file.display())
}
