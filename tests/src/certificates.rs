//! Certificates for tests of TLS, made by `openssl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings of `openssl` for an authority and the certificates that it signs.
const CONFIG: &str = "
[req]
distinguished_name = name
prompt = no
[name]
CN = test
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost,IP:127.0.0.1
[other]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:other.example
[client]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = clientAuth
[ca]
default_ca = lists
[lists]
database = index
serial = serial
default_md = sha256
default_crl_days = 2
crlnumber = number
crl_extensions = list
policy = any
[any]
commonName = supplied
[list]
authorityKeyIdentifier = keyid
";

/// An authority, with its files and those of the certificates that it issues in one directory.
#[derive(Debug)]
pub struct Authority(PathBuf);

impl Authority {
    /// Makes `ca-cert.pem` with its key.
    pub fn new(dir: &Path) -> Self {
        fs::write(dir.join("config"), CONFIG).expect("openssl and a writable directory");
        let authority = Self(dir.to_owned());
        authority.make("ca", "authority", &[]);
        authority
    }

    /// Makes an authority in a new directory, with a certificate with these settings as `server-cert.pem`.
    pub fn with_server(dir: &Path, settings: &str) -> Self {
        fs::create_dir(dir).expect("openssl and a writable directory");
        let authority = Self::new(dir);
        authority.issue("server", settings, 17);
        authority
    }

    /// As [`Authority::with_server`], with a certificate of a client too.
    pub fn with_server_and_client(dir: &Path) -> Self {
        let authority = Self::with_server(dir, "server");
        authority.issue("client", "client", 18);
        authority
    }

    /// Makes a new directory for a client that trusts this authority, with the client's certificate of `client`.
    pub fn make_client(&self, dir: &Path, client: Option<&Self>) {
        fs::create_dir(dir).expect("a writable directory");
        let copy = |from: &Self, file: &str| {
            fs::copy(from.0.join(file), dir.join(file)).expect("a file that was made");
        };
        copy(self, "ca-cert.pem");
        if let Some(client) = client {
            copy(client, "client-cert.pem");
            copy(client, "client-key.pem");
        }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Makes `NAME-cert.pem` with its key and the settings `server`, `other` (with another host name) or `client`.
    pub fn issue(&self, name: &str, settings: &str, serial: u32) {
        let (serial, subject) = (serial.to_string(), format!("/CN={name}"));
        let signed = ["-CA", "ca-cert.pem", "-CAkey", "ca-key.pem", "-set_serial", &serial, "-subj", &subject];
        self.make(name, settings, &signed);
    }

    /// As [`Authority::issue`], valid in the past.
    pub fn issue_expired(&self, name: &str, settings: &str) {
        let (key, certificate) = (format!("{name}-key.pem"), format!("{name}-cert.pem"));
        let new = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        self.openssl(&[&new[..], &["-config", "config", "-keyout", &key, "-out", "request"]].concat());
        fs::write(self.0.join("index"), "").expect("openssl and a writable directory");
        fs::write(self.0.join("serial"), "71\n").expect("openssl and a writable directory");
        let time = ["-startdate", "20240101000000Z", "-enddate", "20240201000000Z"];
        let signed = ["ca", "-batch", "-notext", "-config", "config", "-cert", "ca-cert.pem", "-keyfile", "ca-key.pem"];
        let files = ["-extensions", settings, "-in", "request", "-out", &certificate, "-outdir", "."];
        self.openssl(&[&signed[..], &time, &files].concat());
    }

    /// Makes `ca-crl.pem`, which revokes the certificate with this serial number.
    pub fn revoke(&self, serial: u32) {
        let entry = format!("R\t491231235959Z\t250101000000Z\t{serial:02X}\tunknown\t/CN=revoked\n");
        fs::write(self.0.join("index"), entry).expect("openssl and a writable directory");
        fs::write(self.0.join("number"), "01\n").expect("openssl and a writable directory");
        let list = ["ca", "-gencrl", "-config", "config", "-keyfile", "ca-key.pem", "-cert", "ca-cert.pem"];
        self.openssl(&[&list[..], &["-out", "ca-crl.pem"]].concat());
    }

    fn make(&self, name: &str, settings: &str, more: &[&str]) {
        let (key, certificate) = (format!("{name}-key.pem"), format!("{name}-cert.pem"));
        let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
        let files = ["-config", "config", "-extensions", settings, "-keyout", &key, "-out", &certificate];
        self.openssl(&[&new[..], &files, more].concat());
    }

    fn openssl(&self, arguments: &[&str]) {
        let made = Command::new("openssl")
            .current_dir(&self.0)
            .args(arguments)
            .output()
            .expect("openssl and a writable directory");
        assert!(made.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&made.stderr));
    }
}
