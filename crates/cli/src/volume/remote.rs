//! Exports of NBD servers as devices: their URIs, the options for them, and access to a header on one.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use inlock_engine::store::asynchronous::AsyncStore;
use inlock_engine::store::{read_all, write_all};
use inlock_engine::{BackingStore, Errno};
use inlock_nbd_store::{NbdStore, NbdUri, StoreOptions, UriError};
use inlock_volume::{FileDevice, HeaderDevice};

use crate::error::CliError;
use crate::ui::print::warn;

/// Longest name of a lock file.
const MAX_IDENTITY: usize = 200;

/// Options of this process for exports.
static OPTIONS: OnceLock<StoreOptions> = OnceLock::new();

/// Sets the options for exports in this process.
pub(crate) fn set_options(options: StoreOptions) {
    // Only the first call counts, and there is one.
    let _ = OPTIONS.set(options);
}

/// Prints an event of an export.
pub(crate) fn report(uri: &str, event: &str) {
    warn(format_args!("{uri}: {event}"));
}

/// Returns the text of a device name that is a URI of NBD.
pub(crate) fn uri_of(name: &Path) -> Option<&str> {
    name.to_str().filter(|text| NbdUri::is_uri(text))
}

/// Connects to an export, for writing too if `writing`.
pub(crate) fn open(text: &str, writing: bool) -> anyhow::Result<Arc<NbdStore>> {
    let uri = NbdUri::parse(text).map_err(|error| {
        let hint = match error {
            UriError::Tls => "reach the server through a tunnel that encrypts (ssh -L, stunnel), and use nbd://",
            _ => "write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH; a file name begins with ./",
        };
        anyhow::Error::from(error).context(CliError::Refused { message: format!("Device {text} cannot be used"), hint })
    })?;
    let options = OPTIONS.get().cloned().unwrap_or_default();
    let opened = NbdStore::open(&uri, &options, !writing);
    let store = opened.map_err(|source| CliError::NoExport { uri: text.to_owned(), source })?;
    if writing {
        if store.facts().is_read_only() {
            return Err(CliError::ReadOnly { path: text.into() }.into());
        }
        if !store.can_flush() {
            return Err(CliError::refused(
                format!("The server of {text} cannot flush: no write would ever be known to be durable."),
                "use --read-only, or a server with flushes (nbd-server: flush = true)",
            ));
        }
    }
    Ok(Arc::new(store))
}

/// Returns a name for an export that can be that of a lock file. Names of two exports may be the same only if they are
/// long or differ in special characters; then one waits for the other.
pub(crate) fn identity(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' };
    let name: String = text.chars().map(safe).collect();
    format!("n{}", &name[..name.len().min(MAX_IDENTITY)])
}

/// Whether requests of so many bytes, from this offset on, are made of whole blocks of the server.
pub(crate) fn fits(store: &NbdStore, unit: u64, offset: Option<u64>) -> bool {
    let block = u64::from(store.facts().min_block);
    unit.is_multiple_of(block) && offset.is_some_and(|offset| offset.is_multiple_of(block))
}

/// A device whose header is read or written.
#[derive(Debug)]
pub(crate) enum DeviceHeader {
    File(FileDevice),
    Remote(Arc<NbdStore>),
}

impl HeaderDevice for DeviceHeader {
    fn len(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => file.len(),
            Self::Remote(store) => Ok(store.geometry().len),
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(buf, offset),
            Self::Remote(store) => {
                let end = offset.saturating_add(buf.len() as u64);
                if end > store.geometry().len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(read_all(&**store, buf, offset)?)
            }
        }
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all_at(data, offset),
            Self::Remote(store) => Ok(write_all(&**store, data, offset)?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Self::File(file) => file.sync(),
            Self::Remote(store) => Ok(store.sync()?),
        }
    }
}

/// The error of an action that needs a file or a block device.
pub(crate) fn no_file() -> io::Error {
    io::Error::from(Errno::OPNOTSUPP)
}

/// Fails what waits for the stores of a device, and everything later.
pub(crate) fn abort(device: &inlock_engine::Device) {
    device.stores().iter().filter_map(|store| store.asynchronous()).for_each(AsyncStore::abort);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_a_file_name() {
        assert_eq!(identity("nbd://h:7/a b"), "nnbd___h_7_a_b");
        assert!(identity(&"nbd://h/".repeat(100)).len() <= 255);
        assert!(!identity("nbd+unix:///ä/..?socket=/x").contains('/'));
    }
}
