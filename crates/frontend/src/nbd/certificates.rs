//! Files of certificates and keys, named as users of nbdkit, QEMU and GnuTLS have them.

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest file of certificates or keys in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A file of certificates or keys that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
#[non_exhaustive]
pub struct CertificateError {
    /// The file.
    pub path: PathBuf,
    /// Cause of the failure.
    pub reason: String,
    /// Error of the system, if the file cannot be read.
    pub source: Option<io::Error>,
}

impl CertificateError {
    /// Returns an error about the content of a file.
    pub fn new(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string(), source: None }
    }

    fn unreadable(path: &Path, error: io::Error) -> Self {
        Self { path: path.to_owned(), reason: error.to_string(), source: Some(error) }
    }
}

/// Authorities whose certificates are trusted.
pub struct Authorities {
    /// Certificates of `ca-cert.pem`.
    pub roots: RootCertStore,
    /// Lists of revoked certificates: `ca-crl.pem`, if it exists.
    pub revoked: Vec<CertificateRevocationListDer<'static>>,
    /// File of the lists.
    pub revoked_file: PathBuf,
}

impl Authorities {
    /// Reads the files of a directory.
    ///
    /// # Errors
    /// A file cannot be read, or `ca-cert.pem` does not exist.
    pub fn read(dir: &Path) -> Result<Self, CertificateError> {
        let file = dir.join("ca-cert.pem");
        let mut roots = RootCertStore::empty();
        for certificate in read_pem::<CertificateDer<'static>>(&file)? {
            roots.add(certificate).map_err(|error| CertificateError::new(&file, error))?;
        }
        let revoked_file = dir.join("ca-crl.pem");
        let revoked = read_optional(&revoked_file)?.unwrap_or_default();
        Ok(Self { roots, revoked, revoked_file })
    }
}

/// Reads a file as [`read_pem`] if there is one. A link without its file is one that cannot be read.
///
/// # Errors
/// The file cannot be read, or has nothing of the kind.
pub fn read_optional<T: PemObject>(path: &Path) -> Result<Option<Vec<T>>, CertificateError> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => read_pem(path).map(Some),
    }
}

/// Reads the objects of one kind from a file. There is at least one.
///
/// # Errors
/// The file cannot be read, or has nothing of the kind.
pub fn read_pem<T: PemObject>(path: &Path) -> Result<Vec<T>, CertificateError> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| CertificateError::unreadable(path, error))?;
    file.take(MAX_FILE).read_to_end(&mut text).map_err(|error| CertificateError::unreadable(path, error))?;
    let found: Result<Vec<T>, PemError> = T::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| CertificateError::new(path, error))?;
    match found.is_empty() {
        true => Err(CertificateError::new(path, "nothing of its kind in PEM format")),
        false => Ok(found),
    }
}
