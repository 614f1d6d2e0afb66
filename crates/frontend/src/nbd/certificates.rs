//! Files of certificates and keys, named as users of nbdkit, QEMU and GnuTLS have them.

use rustls::RootCertStore;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

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
        let revoked = if exists(&revoked_file) { read_pem(&revoked_file)? } else { Vec::new() };
        Ok(Self { roots, revoked, revoked_file })
    }
}

/// Whether a file is there. A link without its file is one that cannot be read.
pub fn exists(path: &Path) -> bool {
    !path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Reads the objects of one kind from a file. There is at least one.
///
/// # Errors
/// The file cannot be read, or has nothing of the kind.
pub fn read_pem<T: PemObject>(path: &Path) -> Result<Vec<T>, CertificateError> {
    // It may be a private key: as long as it can be, so that no copy is left behind when it grows.
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
    let file = std::fs::File::open(path).map_err(|error| CertificateError::unreadable(path, error))?;
    file.take(MAX_FILE).read_to_end(&mut text).map_err(|error| CertificateError::unreadable(path, error))?;
    let found: Result<Vec<T>, PemError> = T::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| CertificateError::new(path, error))?;
    match found.is_empty() {
        true => Err(CertificateError::new(path, "nothing of its kind in PEM format")),
        false => Ok(found),
    }
}

/// Reads a private key, and wipes its text.
///
/// # Errors
/// The file cannot be read, or has no key that is supported.
pub fn read_key(path: &Path) -> Result<Arc<dyn SigningKey>, CertificateError> {
    let mut keys: Vec<PrivateKeyDer<'static>> = read_pem(path)?;
    let key = any_supported_type(&keys[0]);
    keys.iter_mut().for_each(Zeroize::zeroize);
    key.map_err(|error| CertificateError::new(path, error))
}

/// Joins a chain of certificates and the key of the first one, each with its file.
///
/// # Errors
/// The key is that of another certificate.
pub fn join(
    (chain, chain_file): (Vec<CertificateDer<'static>>, &Path),
    (key, key_file): (Arc<dyn SigningKey>, &Path),
) -> Result<Arc<SingleCertAndKey>, CertificateError> {
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(Arc::new(certified.into())),
        Err(Error::InconsistentKeys(_)) => {
            Err(CertificateError::new(key_file, format!("does not belong to {}", chain_file.display())))
        }
        Err(error) => Err(CertificateError::new(chain_file, error)),
    }
}
