//! NBD URIs: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, and both with `nbds` for TLS.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Port of NBD servers.
const PORT: u16 = 10809;

/// Longest name of an export in the protocol.
const MAX_NAME: usize = 4096;

/// Location of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    pub(crate) address: Address,
    pub(crate) export: Vec<u8>,
    pub(crate) tls: Option<TlsOptions>,
    text: String,
}

/// Parameters of a URI for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    /// Directory of `ca-cert.pem`, `ca-crl.pem`, `client-cert.pem` and `client-key.pem`.
    pub(crate) certificates: Option<PathBuf>,
    /// Whether the server's certificate is checked.
    pub(crate) verify_peer: bool,
    /// Name in the server's certificate.
    pub(crate) hostname: String,
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(String, u16),
}

/// Reason why a text is no usable NBD URI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// TLS with a shared key.
    #[error("TLS with pre-shared keys is not supported")]
    SharedKey,
    /// A parameter of TLS in a URI without it.
    #[error("the parameter '{0}' needs a URI with TLS, nbds: or nbds+unix:")]
    NeedsTls(String),
    /// A parameter that is neither true nor false.
    #[error("the parameter '{0}' is neither true nor false")]
    Boolean(String),
    /// Another transport.
    #[error("the transport {0} is not supported")]
    Transport(String),
    /// No `//` behind the scheme.
    #[error("// is missing behind {0}")]
    Slashes(String),
    /// No host.
    #[error("the host is missing")]
    NoHost,
    /// A host with `nbd+unix`.
    #[error("a unix socket has no host; write nbd+unix:///EXPORT?socket=PATH")]
    Host,
    /// No path of a socket.
    #[error("?socket=PATH is missing")]
    NoSocket,
    /// A user name, which NBD does not have.
    #[error("NBD has no user names")]
    User,
    /// A port that is no number from 1 to 65535.
    #[error("the port '{0}' is no number from 1 to 65535")]
    Port(String),
    /// An unknown parameter.
    #[error("the parameter '{0}' is unknown")]
    Parameter(String),
    /// `%` without two hexadecimal digits, or a zero byte.
    #[error("'{0}' has an invalid percent-encoding")]
    Encoding(String),
    /// The name of the export is too long.
    #[error("the name of the export is longer than {MAX_NAME} bytes")]
    Name,
}

impl NbdUri {
    /// Returns whether `text` has a scheme of NBD, so that it names no file.
    pub fn is_uri(text: &str) -> bool {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        matches!(scheme.split('+').next(), Some("nbd" | "nbds"))
    }

    /// Parses a URI.
    ///
    /// # Errors
    /// It is malformed, or uses what is not supported.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        let (is_unix, has_tls) = match scheme {
            "nbd" | "nbds" => (false, scheme == "nbds"),
            "nbd+unix" | "nbds+unix" => (true, scheme == "nbds+unix"),
            _ => return Err(UriError::Transport(scheme.to_owned())),
        };
        let rest = rest.strip_prefix("//").ok_or_else(|| UriError::Slashes(format!("{scheme}:")))?;
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(UriError::User);
        }
        let (mut socket, mut is_relative) = (None, false);
        let mut tls = TlsOptions { certificates: None, verify_peer: true, hostname: String::new() };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("socket", path)) => socket = Some(decode(path)?),
                Some((name, _)) if name.starts_with("tls-") && !has_tls => {
                    return Err(UriError::NeedsTls(name.to_owned()));
                }
                Some(("tls-psk-file" | "tls-username", _)) => return Err(UriError::SharedKey),
                Some(("tls-certificates", path)) => {
                    let path = PathBuf::from(OsString::from_vec(decode(path)?));
                    is_relative |= path.is_relative();
                    tls.certificates = Some(std::path::absolute(&path).unwrap_or(path));
                }
                Some(("tls-verify-peer", value)) => tls.verify_peer = boolean(parameter, value)?,
                Some(("tls-hostname", name)) => {
                    tls.hostname = String::from_utf8(decode(name)?).map_err(|_| UriError::Encoding(name.to_owned()))?;
                }
                _ => return Err(UriError::Parameter(parameter.to_owned())),
            }
        }
        let address = match (is_unix, socket) {
            (true, Some(path)) if authority.is_empty() && !path.is_empty() => {
                let path = PathBuf::from(OsString::from_vec(path));
                is_relative |= path.is_relative();
                // A background process leaves its directory.
                Address::Unix(std::path::absolute(&path).unwrap_or(path))
            }
            (true, Some(_)) if !authority.is_empty() => return Err(UriError::Host),
            (true, _) => return Err(UriError::NoSocket),
            (false, Some(_)) => return Err(UriError::Parameter("socket".to_owned())),
            (false, None) => tcp(authority)?,
        };
        if tls.hostname.is_empty() {
            tls.hostname = match &address {
                Address::Tcp(host, _) => host.clone(),
                Address::Unix(_) => "localhost".to_owned(),
            };
        }
        let export = decode(path)?;
        if export.len() > MAX_NAME {
            return Err(UriError::Name);
        }
        let mut uri = Self { address, export, tls: has_tls.then_some(tls), text: text.to_owned() };
        if is_relative {
            uri.text = uri.absolute();
        }
        Ok(uri)
    }

    /// Returns the URI that all spellings of this one have in common: with its port, the absolute path of the socket,
    /// the host in lower case, and one percent-encoding. URIs of two exports differ in it; whether TLS is used makes no
    /// other export.
    pub fn canonical(&self) -> String {
        let export = encode(&self.export);
        match &self.address {
            Address::Unix(path) => format!("nbd+unix:///{export}?socket={}", encode(path.as_os_str().as_bytes())),
            Address::Tcp(host, port) => {
                let host = encode(host.to_ascii_lowercase().as_bytes());
                format!("nbd://{host}:{port}/{export}")
            }
        }
    }

    /// Returns the URI with absolute paths.
    fn absolute(&self) -> String {
        let canonical = self.canonical();
        let Some(tls) = &self.tls else { return canonical };
        let mut text = canonical.replacen("nbd", "nbds", 1);
        let mut separator = if text.contains('?') { '&' } else { '?' };
        let mut add = |name: &str, value: String| {
            text.extend([separator]);
            text += &format!("{name}={value}");
            separator = '&';
        };
        if let Some(dir) = &tls.certificates {
            add("tls-certificates", encode(dir.as_os_str().as_bytes()));
        }
        add("tls-verify-peer", tls.verify_peer.to_string());
        add("tls-hostname", encode(tls.hostname.as_bytes()));
        text
    }

    /// Returns the file of the private key that a client may have in its directory of certificates.
    pub fn private_key(&self) -> Option<PathBuf> {
        Some(self.tls.as_ref()?.certificates.as_ref()?.join("client-key.pem"))
    }

    /// Returns the name of the export for messages.
    pub fn export_name(&self) -> String {
        String::from_utf8_lossy(&self.export).into_owned()
    }

    /// Returns the URI as it was written, or with absolute paths if one was relative.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

fn tcp(authority: &str) -> Result<Address, UriError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or(UriError::NoHost)?,
        None => authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon)),
    };
    if host.is_empty() {
        return Err(UriError::NoHost);
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => PORT,
        Some("") => PORT,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(UriError::Port(digits.to_owned())),
        },
        _ => return Err(UriError::Port(port.trim_start_matches(':').to_owned())),
    };
    let host = String::from_utf8(decode(host)?).map_err(|_| UriError::NoHost)?;
    Ok(Address::Tcp(host, port))
}

/// Parses the value of a parameter that is true or false.
fn boolean(parameter: &str, value: &str) -> Result<bool, UriError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err(UriError::Boolean(parameter.to_owned())),
    }
}

/// Encodes all bytes that have a meaning in a URI, and those that cannot be shown.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'.' | b'_' | b'~' | b'/' => text.push(char::from(*byte)),
            byte => text.extend(['%', hex(byte >> 4), hex(byte & 15)]),
        }
    }
    text
}

fn hex(digit: u8) -> char {
    char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase()
}

/// Decodes `%XX`.
fn decode(text: &str) -> Result<Vec<u8>, UriError> {
    let invalid = || UriError::Encoding(text.to_owned());
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or_else(invalid);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        };
        if byte == 0 {
            return Err(invalid());
        }
        decoded.push(byte);
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_gives_address_and_export() {
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        for (text, address, export) in [
            ("nbd://host", tcp("host", 10809), ""),
            ("nbd://host/", tcp("host", 10809), ""),
            ("nbd://host:7/disk", tcp("host", 7), "disk"),
            ("nbd://host:/disk", tcp("host", 10809), "disk"),
            ("nbd://[::1]:9/a/b", tcp("::1", 9), "a/b"),
            ("nbd://[::1]//a", tcp("::1", 10809), "/a"),
            ("nbd://127.0.0.1/a%20b#fragment", tcp("127.0.0.1", 10809), "a b"),
            ("nbd+unix:///?socket=/run/s", Address::Unix("/run/s".into()), ""),
            ("nbd+unix:///disk?socket=s%3F", Address::Unix(std::env::current_dir().unwrap().join("s?")), "disk"),
        ] {
            let uri = NbdUri::parse(text).unwrap();
            assert_eq!((uri.address.clone(), uri.export_name()), (address, export.to_owned()), "{text}");
            let is_relative = text.ends_with("=s%3F");
            assert!(NbdUri::is_uri(text) && uri.as_str() == if is_relative { uri.canonical() } else { text.into() });
        }
    }

    #[test]
    fn spellings_of_one_export_have_one_canonical_form() {
        let canonical = |text: &str| NbdUri::parse(text).unwrap().canonical();
        let here = std::env::current_dir().unwrap();
        let absolute = format!("nbd+unix:///?socket={}", here.join("s").display());
        for (one, other) in [
            ("nbd://h", "nbd://h/"),
            ("nbd://h", "nbd://H:10809/#x"),
            ("nbd://h/a", "nbd://h:/%61"),
            ("nbd://h/a", "nbds://h/a?tls-verify-peer=false"),
            ("nbd+unix:///?socket=s", &absolute),
            ("nbd+unix:///?socket=./s", &absolute),
        ] {
            assert_eq!(canonical(one), canonical(other), "{one} {other}");
            assert_eq!(canonical(&canonical(one)), canonical(one));
        }
        for (one, other) in [
            ("nbd://h/a_b", "nbd://h/a/b"),
            ("nbd://h:7/a", "nbd://h/7/a"),
            ("nbd://h/a%3Fb", "nbd://h/a%253Fb"),
            ("nbd://[::1]:7/", "nbd://[::1%3A7]/"),
            ("nbd://h/a", "nbd://h/A"),
            ("nbd+unix:///a?socket=/s", "nbd+unix:///?socket=/s/a"),
            ("nbd+unix:///a?socket=/s_b", "nbd+unix:///a?socket=/s/b"),
        ] {
            assert_ne!(canonical(one), canonical(other), "{one} {other}");
        }
    }

    /// A relative directory and a relative socket become absolute, since a background process leaves its directory.
    #[test]
    fn uri_with_tls_keeps_its_parameters() {
        let tls = |text: &str| NbdUri::parse(text).unwrap().tls;
        assert_eq!(tls("nbd://h/"), None);
        let here = std::env::current_dir().unwrap();
        for (text, certificates, verify_peer, hostname) in [
            ("nbds://h/", None, true, "h"),
            ("nbds://[::1]/?tls-verify-peer=0", None, false, "::1"),
            ("nbds://h/?tls-certificates=/a%20b&tls-hostname=other", Some("/a b".into()), true, "other"),
            ("nbds://h/x?tls-certificates=d", Some(here.join("d")), true, "h"),
            ("nbds+unix:///x?socket=s&tls-verify-peer=False", None, false, "localhost"),
            ("nbds+unix:///?socket=s&tls-certificates=d", Some(here.join("d")), true, "localhost"),
        ] {
            let expected = TlsOptions { certificates, verify_peer, hostname: hostname.to_owned() };
            assert_eq!(tls(text), Some(expected), "{text}");
            let (uri, absolute) = (NbdUri::parse(text).unwrap(), NbdUri::parse(text).unwrap().absolute());
            let again = NbdUri::parse(&absolute).unwrap();
            assert_eq!(
                (&again.address, &again.export, &again.tls),
                (&uri.address, &uri.export, &uri.tls),
                "{absolute}"
            );
            assert!(!uri.as_str().contains("=d") && !uri.as_str().contains("socket=s"), "{uri}");
        }
    }

    #[test]
    fn unusable_uri_is_refused_with_its_reason() {
        for (text, error) in [
            ("nbds+vsock://2/", UriError::Transport("nbds+vsock".to_owned())),
            ("nbds://host/?tls-psk-file=f", UriError::SharedKey),
            ("nbds://host/?tls-verify-peer=maybe", UriError::Boolean("tls-verify-peer=maybe".to_owned())),
            ("nbd://host/?tls-certificates=d", UriError::NeedsTls("tls-certificates".to_owned())),
            ("nbd+vsock://2/", UriError::Transport("nbd+vsock".to_owned())),
            ("nbd:host:7", UriError::Slashes("nbd:".to_owned())),
            ("nbd+unix:/s", UriError::Slashes("nbd+unix:".to_owned())),
            ("nbd:///disk", UriError::NoHost),
            ("nbd://[::1/", UriError::NoHost),
            ("nbd://me@host/", UriError::User),
            ("nbd://host:0/", UriError::Port("0".to_owned())),
            ("nbd://host:70000/", UriError::Port("70000".to_owned())),
            ("nbd://host:x/", UriError::Port("x".to_owned())),
            ("nbd://host:+80/", UriError::Port("+80".to_owned())),
            ("nbd://host/?socket=s", UriError::Parameter("socket".to_owned())),
            ("nbd://host/?x=1", UriError::Parameter("x=1".to_owned())),
            ("nbd+unix:///", UriError::NoSocket),
            ("nbd+unix:///?socket=", UriError::NoSocket),
            ("nbd+unix://host/?socket=s", UriError::Host),
            ("nbd://host/%4", UriError::Encoding("%4".to_owned())),
            ("nbd://host/%00", UriError::Encoding("%00".to_owned())),
        ] {
            assert!(NbdUri::is_uri(text));
            assert_eq!(NbdUri::parse(text), Err(error), "{text}");
        }
        assert_eq!(NbdUri::parse(&format!("nbd://h/{}", "x".repeat(4097))), Err(UriError::Name));
        assert!(NbdUri::parse(&format!("nbd://h/{}", "x".repeat(4096))).is_ok());
        for file in ["disk.img", "./nbd:x", "/dev/nbd0", "nbd", "nbdx://y"] {
            assert!(!NbdUri::is_uri(file), "{file}");
        }
    }
}
