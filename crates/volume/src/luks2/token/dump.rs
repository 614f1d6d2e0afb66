//! Tokens as `cryptsetup luksDump` prints them with the plugins of their types.

use super::kind::{self, Object, unhex};
use crate::luks2::json;
use crate::printable::{Hex, Printable};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;
use std::fmt::{self, Formatter};

/// Writes the fields of a token's type. Nothing for a type that is not known, or a token that violates its rules.
pub(in crate::luks2) fn write(token: &Object, f: &mut Formatter<'_>) -> fmt::Result {
    if kind::check(token).is_err() {
        return Ok(());
    }
    match text(token, "type").unwrap_or_default() {
        kind::KEYRING => write_text(token, "Key description: ", "key_description", f),
        "systemd-tpm2" => write_tpm2(token, f),
        "systemd-fido2" => write_fido2(token, f),
        "systemd-pkcs11" => {
            write_text(token, "pkcs11-uri: ", "pkcs11-uri", f)?;
            write_rows("pkcs11-key: ", &bytes(token, "pkcs11-key"), f)
        }
        "ssh" => {
            write_text(token, "ssh_server: ", "ssh_server", f)?;
            write_text(token, "ssh_user: ", "ssh_user", f)?;
            write_text(token, "ssh_path: ", "ssh_path", f)?;
            write_text(token, "ssh_key_path: ", "ssh_keypath", f)
        }
        "clevis" => write_clevis(token, f),
        _ => Ok(()),
    }
}

fn write_tpm2(token: &Object, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\ttpm2-hash-pcrs:   {}", pcrs(token, "tpm2-pcrs"))?;
    let or_none = |field, none| Printable::new(text(token, field).unwrap_or(none)).to_string();
    writeln!(f, "\ttpm2-pcr-bank:    {}", or_none("tpm2-pcr-bank", "n/a"))?;
    writeln!(f, "\ttpm2-pubkey:")?;
    match bytes(token, "tpm2_pubkey") {
        key if key.is_empty() => writeln!(f, "\t{INDENT}(null)")?,
        key => write_rows(INDENT, &key, f)?,
    }
    writeln!(f, "\ttpm2-pubkey-pcrs: {}", pcrs(token, "tpm2_pubkey_pcrs"))?;
    writeln!(f, "\ttpm2-primary-alg: {}", or_none("tpm2-primary-alg", "ecc"))?;
    for blob in each(token, "tpm2-blob") {
        write_rows("tpm2-blob:        ", &STANDARD.decode(blob).unwrap_or_default(), f)?;
    }
    writeln!(f, "\ttpm2-policy-hash:")?;
    for hash in each(token, "tpm2-policy-hash") {
        write_rows(INDENT, &unhex(hash).unwrap_or_default(), f)?;
    }
    writeln!(f, "\ttpm2-pin:         {}", token.get("tpm2-pin").and_then(Value::as_bool).unwrap_or(false))
}

fn write_fido2(token: &Object, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\tfido2-credential:")?;
    write_rows(INDENT, &bytes(token, "fido2-credential"), f)?;
    write_rows("fido2-salt: ", &bytes(token, "fido2-salt"), f)?;
    if token.contains_key("fido2-rp") {
        write_text(token, "fido2-rp:   ", "fido2-rp", f)?;
    }
    for field in ["fido2-clientPin-required", "fido2-up-required", "fido2-uv-required"] {
        if let Some(is_required) = token.get(field).and_then(Value::as_bool) {
            writeln!(f, "\t{field}:\n\t{INDENT}{is_required}")?;
        }
    }
    Ok(())
}

/// Writes the pin of clevis, and the address of a tang server. cryptsetup has no plugin for clevis.
fn write_clevis(token: &Object, f: &mut Formatter<'_>) -> fmt::Result {
    let protected = token["jwe"].get("protected").and_then(Value::as_str);
    let header = protected.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok()).and_then(|b| String::from_utf8(b).ok());
    let Some(header) = header.and_then(|text| json::parse(&text).ok()) else { return Ok(()) };
    let Some(clevis) = header.get("clevis").and_then(Value::as_object) else { return Ok(()) };
    write_text(clevis, "clevis pin: ", "pin", f)?;
    match clevis.get("tang").and_then(Value::as_object) {
        Some(tang) => write_text(tang, "tang url:   ", "url", f),
        None => Ok(()),
    }
}

/// Space before bytes in a row without a name.
const INDENT: &str = "            ";

/// Writes bytes in rows of 16, with the name before the first.
fn write_rows(name: &str, bytes: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    if bytes.is_empty() {
        return writeln!(f, "\t{}", name.trim_end());
    }
    for (row, bytes) in bytes.chunks(16).enumerate() {
        let row = format!("\t{}{}", if row == 0 { name } else { INDENT }, Hex(bytes));
        writeln!(f, "{}", row.trim_end())?;
    }
    Ok(())
}

fn write_text(token: &Object, name: &str, field: &str, f: &mut Formatter<'_>) -> fmt::Result {
    match text(token, field) {
        Some(text) => writeln!(f, "\t{name}{}", Printable::new(text)),
        None => Ok(()),
    }
}

fn text<'a>(token: &'a Object, field: &str) -> Option<&'a str> {
    token.get(field).and_then(Value::as_str)
}

fn bytes(token: &Object, field: &str) -> Vec<u8> {
    text(token, field).and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
}

/// Returns the text of a field, or the texts of its array.
fn each<'a>(token: &'a Object, field: &str) -> Vec<&'a str> {
    match token.get(field) {
        Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
        value => value.and_then(Value::as_str).into_iter().collect(),
    }
}

/// Returns PCRs as `7+11`.
fn pcrs(token: &Object, field: &str) -> String {
    let numbers = token.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let names: Vec<String> = numbers.iter().filter_map(Value::as_u64).map(|number| number.to_string()).collect();
    if names.is_empty() { "n/a".to_owned() } else { names.join("+") }
}
