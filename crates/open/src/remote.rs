//! Exports of NBD servers and images of Ceph RBD as devices: their names, the options for them, and access to a header
//! on one.

use crate::error::{Error, ErrorKind, Result, no_export, no_image};
use crate::host::Context;
use crate::private_key;
use crate::staged::Staging;
use std::io;
use std::path::Path;
use std::sync::Arc;

use inlock_engine::store::{read_all, write_all};
use inlock_engine::{BackingStore, Errno};
use inlock_frontend::nbd::descriptors::raise_limit;
use inlock_nbd_store::{NbdStore, NbdUri, UriError};
use inlock_rbd_store::{RbdName, RbdStore};
use inlock_volume::{FileDevice, HeaderDevice};

/// Storage daemons that an image may be on. One more waits, or fails, if the hard limit of descriptors is lower.
const DAEMONS: usize = 4096;

/// A device that is not on this host.
#[derive(Clone, Debug)]
pub enum Remote {
    /// The export of an NBD server.
    Nbd(Arc<NbdStore>),
    /// An image of Ceph RBD.
    Rbd(Arc<RbdStore>),
}

impl Remote {
    /// Returns the name of the device with which it can be opened again.
    pub fn name(&self) -> &str {
        match self {
            Self::Nbd(store) => store.uri().as_str(),
            Self::Rbd(store) => store.name().as_str(),
        }
    }

    /// Returns the store.
    pub fn store(&self) -> Arc<dyn BackingStore> {
        match self {
            Self::Nbd(store) => Arc::clone(store) as _,
            Self::Rbd(store) => Arc::clone(store) as _,
        }
    }

    /// Returns the image of Ceph RBD.
    pub fn rbd(&self) -> Option<&RbdStore> {
        match self {
            Self::Nbd(_) => None,
            Self::Rbd(store) => Some(store),
        }
    }

    fn as_store(&self) -> &dyn BackingStore {
        match self {
            Self::Nbd(store) => &**store,
            Self::Rbd(store) => &**store,
        }
    }

    /// Returns the length of the server's blocks in bytes.
    pub fn min_block(&self) -> u64 {
        match self {
            Self::Nbd(store) => store.facts().min_block.into(),
            // librbd takes any range.
            Self::Rbd(_) => 1,
        }
    }

    /// Returns what identifies the device under all spellings of its name, in the characters of a file name. Two
    /// devices never have the same.
    pub fn identity(&self) -> String {
        match self {
            Self::Nbd(store) => identity(store.uri()),
            Self::Rbd(store) => file_name('r', &store.facts().identity),
        }
    }

    /// Returns [`Remote::identity`], and identities that the device has under other names.
    pub fn identities(&self) -> Vec<String> {
        match self {
            Self::Nbd(store) => store.aliases().iter().map(|alias| file_name('n', alias)).collect(),
            Self::Rbd(_) => vec![self.identity()],
        }
    }

    /// Whether requests of so many bytes, from this offset on, are made of whole blocks of the server.
    pub fn is_fitting(&self, unit: u64, offset: Option<u64>) -> bool {
        let block = self.min_block();
        unit.is_multiple_of(block) && offset.is_some_and(|offset| offset.is_multiple_of(block))
    }
}

/// Returns the text of a device name that is a URI of NBD, or the name of an image of RBD.
pub fn uri_of(name: &Path) -> Option<&str> {
    name.to_str().filter(|text| NbdUri::is_uri(text) || RbdName::is_name(text))
}

/// A kind of devices that are not on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteKind {
    /// The export of an NBD server.
    Nbd,
    /// An image of Ceph RBD.
    Rbd,
}

/// Returns the kind of a device that its name says is not on this host.
pub fn kind_of(name: &Path) -> Option<RemoteKind> {
    let text = uri_of(name)?;
    Some(if RbdName::is_name(text) { RemoteKind::Rbd } else { RemoteKind::Nbd })
}

/// Returns a device name, or a word of the command line with one, without options that may be secret.
pub fn shown(text: &str) -> &str {
    let name = text.find("rbd:").filter(|at| *at == 0 || text[..*at].ends_with('='));
    name.map_or(text, |at| &text[..at + RbdName::without_options(&text[at..]).len()])
}

/// Opens an export or an image, for writing too if `writing`.
pub fn open(context: &Context, text: &str, writing: bool) -> Result<Remote> {
    let options = &context.settings().remote;
    if RbdName::is_name(text) {
        let name = RbdName::parse(text).map_err(|error| {
            let text = format!("Device {} cannot be used", RbdName::without_options(text));
            Error::with_source(ErrorKind::ImageName, text, error)
        })?;
        let open = || open_image(&name, &options.rbd, writing);
        let store = if writing { context.image(&name, open)? } else { Arc::new(open()?) };
        context.remember(Arc::clone(&store) as _);
        return Ok(Remote::Rbd(store));
    }
    let store = Arc::new(open_export(context, text, writing)?);
    context.remember(Arc::clone(&store) as _);
    Ok(Remote::Nbd(store))
}

fn open_image(name: &RbdName, options: &inlock_rbd_store::StoreOptions, writing: bool) -> Result<RbdStore> {
    // librados has a descriptor for each storage daemon.
    raise_limit(DAEMONS);
    let opened = RbdStore::open(name, options, !writing);
    let store = opened.map_err(|source| no_image(&format!("rbd:{name}"), source))?;
    if writing && store.geometry().read_only {
        return Err(Error::read_only(Path::new(name.as_str())));
    }
    Ok(store)
}

fn open_export(context: &Context, text: &str, writing: bool) -> Result<NbdStore> {
    let options = &context.settings().remote.nbd;
    let uri = NbdUri::parse(text).map_err(|error| {
        let has_shared_key = matches!(error, UriError::SharedKey);
        let kind = ErrorKind::ExportName { has_shared_key };
        Error::with_source(kind, format!("Device {text} cannot be used"), error)
    })?;
    if let Some(warning) = uri.private_key().and_then(|file| private_key::warning(&file)) {
        context.warn(warning);
    }
    let opened = NbdStore::open(&uri, options, !writing);
    let store = opened.map_err(|source| no_export(text, source))?;
    if writing {
        if store.facts().is_read_only() {
            return Err(Error::read_only(Path::new(text)));
        }
        if !store.can_flush() {
            return Err(Error::new(
                ErrorKind::NoFlush,
                format!("The server of {text} cannot flush: no write would ever be known to be durable."),
            ));
        }
    }
    Ok(store)
}

fn identity(uri: &NbdUri) -> String {
    file_name('n', &uri.canonical())
}

/// Returns a text in the characters of a file name, behind a letter. Two texts never give the same.
pub(crate) fn file_name(kind: char, text: &str) -> String {
    let mut name = String::from(kind);
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'-' => name.push(char::from(byte)),
            // The underscore too.
            _ => name.push_str(&format!("_{byte:02x}")),
        }
    }
    name
}

/// A device whose header is read or written.
#[derive(Debug)]
pub enum DeviceHeader {
    /// A file or a block device.
    File(FileDevice),
    /// A device that is not on this host.
    Remote(Remote),
    /// A device that another process writes.
    Staged(Arc<Staging>),
}

impl DeviceHeader {
    fn device(&self) -> &dyn HeaderDevice {
        match self {
            Self::File(file) => file,
            Self::Remote(remote) => remote,
            Self::Staged(staging) => &**staging,
        }
    }
}

impl HeaderDevice for DeviceHeader {
    fn len(&self) -> io::Result<u64> {
        self.device().len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.device().read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.device().write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.device().sync()
    }
}

impl HeaderDevice for Remote {
    fn len(&self) -> io::Result<u64> {
        Ok(self.as_store().geometry().len)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.as_store().geometry().len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(read_all(self.as_store(), buf, offset)?)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        Ok(write_all(self.as_store(), data, offset)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.as_store().sync()?)
    }
}

/// The error of an action that needs a file or a block device.
pub fn no_file() -> io::Error {
    io::Error::from(Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity_of(text: &str) -> String {
        identity(&NbdUri::parse(text).unwrap())
    }

    #[test]
    fn identities_of_two_exports_differ_and_of_two_spellings_do_not() {
        assert_eq!(identity_of("nbd://h/a%20b"), "nnbd_3a_2f_2fh_3a10809_2fa_2520b");
        assert!(!identity_of("nbd+unix:///%C3%A4/..?socket=/x").contains('/'));
        let long = "x".repeat(4000);
        for (one, other) in [
            ("nbd://h/vol_1", "nbd://h/vol/1"),
            ("nbd://h:7/a", "nbd://h/7/a"),
            ("nbd+unix:///?socket=/run/a_b", "nbd+unix:///?socket=/run/a/b"),
            ("nbd://h/a_2fb", "nbd://h/a/b"),
            (&format!("nbd://h/{long}1"), &format!("nbd://h/{long}2")),
            (&format!("nbd+unix:///{long}?socket=/1"), &format!("nbd+unix:///{long}?socket=/2")),
        ] {
            assert_ne!(identity_of(one), identity_of(other), "{one} {other}");
        }
        for other in ["nbd://h/", "nbd://H", "nbd://h:10809", "nbd://h/#x"] {
            assert_eq!(identity_of("nbd://h"), identity_of(other), "{other}");
        }
    }
}
