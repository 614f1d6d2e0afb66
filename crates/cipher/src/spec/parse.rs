//! Parsing of dm-crypt's two notations, split as by the Linux kernel: the legacy `cipher[:keys]-mode-iv[:options]`, and
//! `capi:` with a name of the kernel's crypto API, `capi:xts(aes)-plain64`.
//!
//! Options that the kernel ignores are ignored, including IV modes of ECB.

use super::{ChainMode, Cipher, CipherSpec, IvMode, KeyCount};
use crate::Hash;
use std::str::FromStr;

/// A part of a cipher specification that is not supported, or does not fit the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported {part} '{value}': expected {expected}")]
pub struct InvalidCipherSpec {
    /// The part: `cipher`, `key count`, `mode`, `IV mode`, `ESSIV hash`, or `specification`.
    pub part: &'static str,
    /// Its text, at most 64 characters.
    pub value: String,
    /// Possible values.
    pub expected: &'static str,
}

impl InvalidCipherSpec {
    pub(super) fn new(part: &'static str, value: &str, expected: &'static str) -> Self {
        Self { part, value: value.chars().take(64).collect(), expected }
    }
}

const CIPHERS: &str = "aes, serpent, twofish, camellia, aria, sm4, des3_ede, blowfish, cast5, cast6, xchacha12,aes, xchacha20,aes or cipher_null";
const MODES: &str = "xts, cbc, ecb, ctr, lrw or adiantum";
const IVS: &str = "plain, plain64, plain64be, essiv with a hash, benbi, null, lmk, tcw, eboiv or elephant";
const HASHES: &str =
    "the Linux kernel's name of a hash, such as md5, sha1, rmd160, sha256, sha3-256, blake2b-256 or sm3";

impl FromStr for CipherSpec {
    type Err = InvalidCipherSpec;

    /// Parses either notation. In the legacy one, a cipher alone or with the mode `plain` means `cbc-plain`.
    fn from_str(text: &str) -> Result<Self, InvalidCipherSpec> {
        let spec = match text.strip_prefix("capi:") {
            Some(name) => capi(name)?,
            None => legacy(text)?,
        };
        spec.check()?;
        Ok(spec)
    }
}

fn legacy(text: &str) -> Result<CipherSpec, InvalidCipherSpec> {
    if text.contains('(') {
        return Err(InvalidCipherSpec::new("specification", text, "'capi:' before a name with parentheses"));
    }
    let mut words = text.splitn(3, '-');
    let (name, keys) = key_count(words.next().unwrap_or_default())?;
    let (mode, iv) = match (words.next(), words.next()) {
        (None, _) | (Some("plain"), None) => ("cbc", Some("plain")),
        (Some(mode), iv) => (mode, iv),
    };
    let (cipher, mode) = (cipher(name)?, chain_mode(mode)?);
    let iv = match iv.map(|iv| iv.split_once(':').map_or((iv, None), |(iv, options)| (iv, Some(options)))) {
        Some((iv, options)) => iv_mode(mode, iv, options)?,
        None => no_iv(mode)?,
    };
    Ok(CipherSpec { cipher, mode, iv, keys })
}

/// Splits `aes:64`.
fn key_count(word: &str) -> Result<(&str, KeyCount), InvalidCipherSpec> {
    let Some((name, count)) = word.split_once(':') else { return Ok((word, KeyCount::ONE)) };
    let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    match count.parse().ok().filter(|_| digits).and_then(KeyCount::new) {
        Some(keys) => Ok((name, keys)),
        None => Err(InvalidCipherSpec::new("key count", count, "a power of two from 1 to 64")),
    }
}

/// Parses the text after `capi:`. Options follow the last colon, the IV mode the last dash before it.
fn capi(text: &str) -> Result<CipherSpec, InvalidCipherSpec> {
    let (rest, options) = text.rsplit_once(':').map_or((text, None), |(rest, options)| (rest, Some(options)));
    let (name, iv) = rest.rsplit_once('-').map_or((rest, None), |(name, iv)| (name, Some(iv)));
    if let Some(inner) = between(name, "essiv(") {
        let (inner, hash) = inner.rsplit_once(',').unwrap_or((inner, ""));
        let (cipher, mode) = api_name(inner)?;
        // The template encrypts the output of any IV mode, but only with this one it is ESSIV.
        if iv != Some("plain64") {
            return Err(InvalidCipherSpec::new("IV mode", iv.unwrap_or_default(), "plain64 with essiv(...)"));
        }
        return Ok(CipherSpec { cipher, mode, iv: essiv(mode, hash)?, keys: KeyCount::ONE });
    }
    let (cipher, mode) = api_name(name)?;
    let keys = if iv == Some("lmk") { KeyCount::MAX } else { KeyCount::ONE };
    let iv = match iv {
        Some(iv) => iv_mode(mode, iv, options)?,
        None => no_iv(mode)?,
    };
    Ok(CipherSpec { cipher, mode, iv, keys })
}

/// Parses `xts(aes)`, `xts(ecb(aes-generic))`, `adiantum(xchacha12,aes)`, or the name of a driver such as
/// `xts-aes-aesni`.
pub(super) fn api_name(name: &str) -> Result<(Cipher, ChainMode), InvalidCipherSpec> {
    let Some((mode, inner)) = name.strip_suffix(')').and_then(|name| name.split_once('(')) else {
        return mode_driver(name);
    };
    let mode = chain_mode(mode)?;
    // XTS and LRW are built on ECB, whose name the kernel adds if it is left out.
    let inner = match mode {
        ChainMode::Xts | ChainMode::Lrw => between(inner, "ecb(").unwrap_or(inner),
        _ => inner,
    };
    match mode {
        ChainMode::Adiantum => Ok((adiantum(inner)?, mode)),
        _ => Ok((cipher_or_driver(inner)?, mode)),
    }
}

/// Parses a driver of a whole mode: mode, cipher and the driver's own word.
fn mode_driver(name: &str) -> Result<(Cipher, ChainMode), InvalidCipherSpec> {
    let expected = "a mode and a cipher: xts(aes)";
    let known = name.split_once('-').filter(|(_, rest)| rest.split_once('-').is_some_and(|(_, word)| is_driver(word)));
    let (mode, rest) = known.ok_or_else(|| InvalidCipherSpec::new("specification", name, expected))?;
    Ok((cipher_or_driver(rest)?, chain_mode(mode)?))
}

/// Parses `aes`, or a driver of it such as `aes-generic`. All drivers of a cipher compute the same.
pub(super) fn cipher_or_driver(name: &str) -> Result<Cipher, InvalidCipherSpec> {
    match name.split_once('-') {
        Some((short, word)) if is_driver(word) => cipher(short),
        _ => cipher(name),
    }
}

/// Parses the arguments of `adiantum`: a stream cipher, AES, and possibly the default of its hash.
fn adiantum(arguments: &str) -> Result<Cipher, InvalidCipherSpec> {
    let mut parts = arguments.splitn(3, ',');
    let (stream, block, hash) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next());
    let known_hash = hash.is_none_or(|hash| hash.split_once('-').map_or(hash, |(name, _)| name) == "nhpoly1305");
    let known_block = matches!(cipher_or_driver(block), Ok(Cipher::Aes));
    let stream = stream.split_once('-').filter(|(_, word)| is_driver(word)).map_or(stream, |(stream, _)| stream);
    if known_block && known_hash { cipher(&format!("{stream},aes")) } else { cipher(arguments) }
}

/// Whether a word can follow a cipher in the name of a driver.
pub(super) fn is_driver(word: &str) -> bool {
    const FIRST: &[&str] = &[
        "generic", "asm", "aesni", "vaes", "ce", "neon", "neonbs", "simd", "arm", "arm64", "avx", "avx2", "sse2",
        "i586", "x86_64", "ssse3", "gfni", "fixed",
    ];
    word.split(['-', '_']).next().is_some_and(|first| FIRST.contains(&first) || FIRST.contains(&word))
}

pub(super) fn between<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    text.strip_prefix(before)?.strip_suffix(')')
}

fn cipher(name: &str) -> Result<Cipher, InvalidCipherSpec> {
    let found = Cipher::ALL.iter().copied().find(|cipher| cipher.name() == name);
    found.ok_or_else(|| InvalidCipherSpec::new("cipher", name, CIPHERS))
}

fn chain_mode(name: &str) -> Result<ChainMode, InvalidCipherSpec> {
    let found = ChainMode::ALL.iter().copied().find(|mode| mode.name() == name);
    found.ok_or_else(|| InvalidCipherSpec::new("mode", name, MODES))
}

pub(super) fn iv_mode(mode: ChainMode, name: &str, options: Option<&str>) -> Result<IvMode, InvalidCipherSpec> {
    if name == "essiv" {
        return essiv(mode, options.unwrap_or_default());
    }
    if mode == ChainMode::Ecb {
        return Ok(IvMode::Null);
    }
    let found = IvMode::ALL.iter().copied().find(|iv| iv.name() == name && *iv != IvMode::SpdkUpper);
    found.ok_or_else(|| InvalidCipherSpec::new("IV mode", name, IVS))
}

fn essiv(mode: ChainMode, hash: &str) -> Result<IvMode, InvalidCipherSpec> {
    if mode == ChainMode::Ecb {
        return Err(InvalidCipherSpec::new("IV mode", "essiv", "no IV mode with ecb"));
    }
    // Names of drivers, such as sha256-generic, are the kernel's too.
    let found = Hash::from_kernel_name(hash).or_else(|| Hash::from_kernel_name(hash.strip_suffix("-generic")?));
    found.map(IvMode::Essiv).ok_or_else(|| InvalidCipherSpec::new("ESSIV hash", hash, HASHES))
}

fn no_iv(mode: ChainMode) -> Result<IvMode, InvalidCipherSpec> {
    if mode == ChainMode::Ecb { Ok(IvMode::Null) } else { Err(InvalidCipherSpec::new("IV mode", "", IVS)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        text.parse::<CipherSpec>().map(|spec| spec.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_notation_reads_as_the_legacy_one() {
        let rows = [
            ("aes", "aes-cbc-plain"),
            ("aes-plain", "aes-cbc-plain"),
            ("aes:2", "aes:2-cbc-plain"),
            ("aes:1-xts-plain64", "aes-xts-plain64"),
            ("aes:064-cbc-lmk", "aes:64-cbc-lmk"),
            ("aes-xts-plain64:passed:over", "aes-xts-plain64"),
            ("serpent-ecb", "serpent-ecb"),
            ("aes-ecb-plain", "aes-ecb"),
            ("aes-ecb-anything", "aes-ecb"),
            ("serpent-cbc-essiv:sha1", "serpent-cbc-essiv:sha1"),
            ("blowfish-cbc-essiv:sha384", "blowfish-cbc-essiv:sha384"),
            ("xchacha20,aes-adiantum-plain64", "xchacha20,aes-adiantum-plain64"),
            ("capi:xts(aes)-plain64", "aes-xts-plain64"),
            ("capi:ecb(cipher_null)", "cipher_null-ecb"),
            ("capi:cbc(aes)-essiv:sha256", "aes-cbc-essiv:sha256"),
            ("capi:essiv(cbc(aes),sha256)-plain64", "aes-cbc-essiv:sha256"),
            ("capi:cbc(aes)-lmk", "aes:64-cbc-lmk"),
            ("capi:adiantum(xchacha12,aes)-plain64", "xchacha12,aes-adiantum-plain64"),
            ("capi:adiantum(xchacha20,aes)-plain64", "xchacha20,aes-adiantum-plain64"),
            ("capi:lrw(twofish)-benbi:passed-over", "twofish-lrw-benbi"),
            ("capi:xts(ecb(aes-generic))-plain64", "aes-xts-plain64"),
            ("capi:xts(ecb(aes))-plain64", "aes-xts-plain64"),
            ("capi:xts(serpent-generic)-plain64", "serpent-xts-plain64"),
            ("capi:xts-aes-aesni-plain64", "aes-xts-plain64"),
            ("capi:xts-aes-vaes-avx10_512-plain64", "aes-xts-plain64"),
            ("capi:cbc-des3_ede-asm-plain64", "des3_ede-cbc-plain64"),
            ("capi:lrw(ecb(camellia-asm))-benbi", "camellia-lrw-benbi"),
            ("capi:cbc(cast6-generic)-plain64", "cast6-cbc-plain64"),
            ("capi:essiv(cbc(aes-aesni),sha256-generic)-plain64", "aes-cbc-essiv:sha256"),
            ("capi:essiv(cbc-aes-aesni,sha256)-plain64", "aes-cbc-essiv:sha256"),
            ("capi:cbc(aes)-essiv:sha3-256", "aes-cbc-essiv:sha3-256"),
            ("aes-xts-essiv:blake2b-256", "aes-xts-essiv:blake2b-256"),
            ("twofish-cbc-essiv:streebog256", "twofish-cbc-essiv:streebog256"),
            ("cast6-lrw-benbi", "cast6-lrw-benbi"),
            ("capi:adiantum(xchacha12-simd,aes-aesni,nhpoly1305-avx2)-plain64", "xchacha12,aes-adiantum-plain64"),
        ];
        for (text, expected) in rows {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn errors_name_the_word_and_what_was_expected() {
        let rows = [
            ("", "cipher '': expected aes, serpent"),
            ("aes256-xts-plain64", "cipher 'aes256'"),
            ("AES-xts-plain64", "cipher 'AES'"),
            ("aes:3-cbc-plain", "key count '3': expected a power of two from 1 to 64"),
            ("aes:0-cbc-plain", "key count '0'"),
            ("aes:-cbc-plain", "key count ''"),
            ("aes:+2-cbc-plain", "key count '+2'"),
            ("aes:2:2-cbc-plain", "key count '2:2'"),
            ("aes:128-cbc-plain", "key count '128'"),
            ("aes-wtf-plain64", "mode 'wtf': expected xts, cbc"),
            ("aes-xts", "IV mode '': expected plain, plain64"),
            ("aes-cbc-", "IV mode ''"),
            ("aes-xts-plain65", "IV mode 'plain65'"),
            ("aes-xts-plain64-x", "IV mode 'plain64-x'"),
            ("aes-xts-(spdk-upper)", "specification 'aes-xts-(spdk-upper)'"),
            ("aes-cbc-essiv", "ESSIV hash ''"),
            ("aes-cbc-essiv:wp512", "ESSIV hash 'wp512': expected a hash as long"),
            ("aes-cbc-essiv:tgr192", "ESSIV hash 'tgr192': expected the Linux kernel's name of a hash, such as md5"),
            ("aes-cbc-essiv:SHA256", "ESSIV hash 'SHA256'"),
            ("aes-cbc-essiv:ripemd160", "ESSIV hash 'ripemd160'"),
            ("serpent-cbc-essiv:keccak-256", "ESSIV hash 'keccak-256'"),
            ("aes-cbc-essiv:sha1", "ESSIV hash 'sha1': expected a hash as long as one of the cipher's keys"),
            ("aes-cbc-essiv:sha512", "ESSIV hash 'sha512'"),
            ("aes-ecb-essiv:sha256", "IV mode 'essiv': expected no IV mode"),
            ("aes-xts-random", "IV mode 'random'"),
            ("aes-xts-lmk", "IV mode 'lmk': expected another one: lmk goes with cbc only"),
            ("aes-ctr-eboiv", "IV mode 'eboiv'"),
            ("des3_ede-xts-plain64", "mode 'xts': expected cbc, ecb or ctr"),
            ("cipher_null", "mode 'cbc': expected ecb"),
            ("aes-adiantum-plain64", "mode 'adiantum': expected a mode of block ciphers"),
            ("xchacha12,aes-xts-plain64", "mode 'xts': expected adiantum"),
            ("xchacha12,aes-adiantum-benbi", "IV mode 'benbi'"),
            ("xts(aes)-plain64", "specification 'xts(aes)-plain64': expected 'capi:'"),
            ("capi:aes-xts-plain64", "specification 'aes-xts': expected a mode and a cipher"),
            ("capi:xts(aes)", "IV mode ''"),
            ("capi:xts(aes)-", "IV mode ''"),
            ("capi:xts(aes-plain64", "specification 'xts(aes'"),
            ("capi:xts(cbc(aes))-plain64", "cipher 'cbc(aes)'"),
            ("capi:cbc(ecb(aes))-plain64", "cipher 'ecb(aes)'"),
            ("capi:xts(aes-x)-plain64", "cipher 'aes-x'"),
            ("capi:xts-aes-x-plain64", "specification 'xts-aes-x'"),
            ("capi:xts--generic-plain64", "cipher ''"),
            ("capi:adiantum(xchacha12,aes,x)-plain64", "cipher 'xchacha12,aes,x'"),
            ("capi:adiantum(xchacha12,des)-plain64", "cipher 'xchacha12,des'"),
            ("capi:xts(des4)-plain64", "cipher 'des4'"),
            ("capi:essiv(cbc(aes),sha256)-plain", "IV mode 'plain': expected plain64 with essiv(...)"),
            ("capi:essiv(cbc(aes))-plain64", "ESSIV hash ''"),
            ("capi:gcm(aes)-random", "mode 'gcm'"),
            ("capi:adiantum(xchacha12,aes,poly)-plain64", "cipher 'xchacha12,aes,poly'"),
        ];
        for (text, expected) in rows {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(&format!("unsupported {expected}")), "{text}: {error}");
        }
    }

    #[test]
    fn errors_list_every_name() {
        let listed = |list: &str, name: &str| list.replace(" or ", ", ").split(", ").any(|word| word == name);
        assert!(Cipher::ALL.iter().all(|cipher| listed(CIPHERS, cipher.name())));
        assert!(ChainMode::ALL.iter().all(|mode| listed(MODES, mode.name())));
        let ivs = IvMode::ALL.iter().filter(|iv| **iv != IvMode::SpdkUpper);
        assert!(ivs.clone().all(|iv| listed(&IVS.replace("essiv with a hash", "essiv"), iv.name())));
    }
}
