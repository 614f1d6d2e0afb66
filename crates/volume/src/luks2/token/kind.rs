//! Rules for the fields of known token types, those of their plugins for cryptsetup.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// The fields of a token.
pub(in crate::luks2) type Object = Map<String, Value>;

/// The only type that cryptsetup has without a plugin: a key in the kernel's keyring.
pub(in crate::luks2) const KEYRING: &str = "luks2-keyring";
/// Prefix of types that are reserved for cryptsetup.
const RESERVED: &str = "luks2-";
/// Number of a TPM's PCRs.
const PCRS: u64 = 24;

/// Checks the fields of a token by the rules of its type. A type that is not known has none.
///
/// # Errors
///
/// Returns the violated rule.
pub(in crate::luks2) fn check(token: &Object) -> Result<(), &'static str> {
    match token.get("type").and_then(Value::as_str).unwrap_or_default() {
        "" => Err("the type is empty or not a string"),
        KEYRING => keyring(token),
        kind if kind.starts_with(RESERVED) => Err("types that begin with luks2- are reserved"),
        "systemd-tpm2" => tpm2(token),
        "systemd-fido2" => fido2(token),
        "systemd-pkcs11" => pkcs11(token),
        "ssh" => ssh(token),
        "clevis" => rule(token.get("jwe").is_some_and(Value::is_object), "jwe is not an object"),
        _ => Ok(()),
    }
}

fn keyring(token: &Object) -> Result<(), &'static str> {
    let description = token.get("key_description").and_then(Value::as_str);
    rule(description.is_some_and(|text| !text.is_empty()), "key_description is missing, empty or not a string")?;
    rule(token.len() == 3, "there are other fields than type, keyslots and key_description")
}

fn tpm2(token: &Object) -> Result<(), &'static str> {
    rule(token.get("tpm2-blob").is_some_and(|value| all(value, is_base64)), "tpm2-blob is not base64")?;
    rule(token.get("tpm2-policy-hash").is_some_and(|value| all(value, is_hex)), "tpm2-policy-hash is not hexadecimal")?;
    let is_pcr = |value: &Value| value.as_u64().is_some_and(|number| number < PCRS);
    let pcrs = token.get("tpm2-pcrs").and_then(Value::as_array);
    rule(pcrs.is_some_and(|pcrs| pcrs.iter().all(is_pcr)), "tpm2-pcrs is not an array of PCR numbers")?;
    let is_one_of = |names: &'static [&str]| {
        move |value: &Value| {
            value.as_str().is_some_and(|name| names.iter().any(|known| name.eq_ignore_ascii_case(known)))
        }
    };
    let is_bank = is_one_of(&["sha1", "sha256", "sha384", "sha512"]);
    optional(token, "tpm2-pcr-bank", is_bank, "tpm2-pcr-bank is not a hash of a TPM")?;
    optional(token, "tpm2-primary-alg", is_one_of(&["ecc", "rsa"]), "tpm2-primary-alg is neither ecc nor rsa")?;
    optional(token, "tpm2-pin", Value::is_boolean, "tpm2-pin is not a boolean")
}

fn fido2(token: &Object) -> Result<(), &'static str> {
    rule(token.get("fido2-credential").is_some_and(is_base64), "fido2-credential is not base64")?;
    rule(token.get("fido2-salt").is_some_and(is_base64), "fido2-salt is not base64")?;
    optional(token, "fido2-rp", Value::is_string, "fido2-rp is not a string")?;
    optional(token, "fido2-clientPin-required", Value::is_boolean, "fido2-clientPin-required is not a boolean")?;
    optional(token, "fido2-up-required", Value::is_boolean, "fido2-up-required is not a boolean")?;
    optional(token, "fido2-uv-required", Value::is_boolean, "fido2-uv-required is not a boolean")
}

fn pkcs11(token: &Object) -> Result<(), &'static str> {
    let uri = token.get("pkcs11-uri").and_then(Value::as_str);
    let is_uri = uri.and_then(|uri| uri.strip_prefix("pkcs11:")).is_some_and(|rest| !rest.is_empty());
    rule(is_uri, "pkcs11-uri is not a URI of PKCS #11")?;
    rule(token.get("pkcs11-key").is_some_and(is_base64), "pkcs11-key is not base64")
}

fn ssh(token: &Object) -> Result<(), &'static str> {
    let fields = ["ssh_server", "ssh_user", "ssh_path", "ssh_keypath"];
    rule(
        fields.iter().all(|name| token.get(*name).is_some_and(Value::is_string)),
        "ssh_server, ssh_user, ssh_path or ssh_keypath is missing or not a string",
    )
}

fn rule(is_met: bool, violation: &'static str) -> Result<(), &'static str> {
    if is_met { Ok(()) } else { Err(violation) }
}

fn optional(
    token: &Object,
    field: &str,
    is_valid: impl Fn(&Value) -> bool,
    violation: &'static str,
) -> Result<(), &'static str> {
    rule(token.get(field).is_none_or(is_valid), violation)
}

/// Whether a value, or each of an array that is not empty, is valid. Since version 257 systemd has arrays.
fn all(value: &Value, is_valid: impl Fn(&Value) -> bool) -> bool {
    match value {
        Value::Array(values) => !values.is_empty() && values.iter().all(is_valid),
        value => is_valid(value),
    }
}

fn is_base64(value: &Value) -> bool {
    value.as_str().is_some_and(|text| STANDARD.decode(text).is_ok())
}

fn is_hex(value: &Value) -> bool {
    value.as_str().and_then(unhex).is_some()
}

/// Decodes hexadecimal digits.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), &'static str> {
        check(serde_json::from_str::<Value>(text).expect("JSON").as_object().expect("an object"))
    }

    #[test]
    fn token_is_valid_as_its_plugin_says() {
        for valid in [
            r#"{"type":"other"}"#,
            r#"{"type":"systemd-recovery","keyslots":["0"]}"#,
            r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":"d"}"#,
            r#"{"type":"systemd-tpm2","tpm2-blob":"AAEC","tpm2-pcrs":[7],"tpm2-policy-hash":"0011"}"#,
            r#"{"type":"systemd-tpm2","tpm2-blob":"","tpm2-pcrs":[],"tpm2-policy-hash":"","tpm2-pin":true}"#,
            r#"{"type":"systemd-tpm2","tpm2-blob":["AAEC"],"tpm2-pcrs":[23],"tpm2-policy-hash":["0011"]}"#,
            r#"{"type":"systemd-fido2","fido2-credential":"AAEC","fido2-salt":"AAEC"}"#,
            r#"{"type":"systemd-pkcs11","pkcs11-uri":"pkcs11:token=x","pkcs11-key":"AAEC"}"#,
            r#"{"type":"ssh","ssh_server":"s","ssh_user":"u","ssh_path":"p","ssh_keypath":"k"}"#,
            r#"{"type":"clevis","jwe":{}}"#,
        ] {
            assert_eq!(checked(valid), Ok(()), "{valid}");
        }
        for (part, invalid) in [
            ("type", r#"{"keyslots":[]}"#),
            ("type", r#"{"type":""}"#),
            ("reserved", r#"{"type":"luks2-"}"#),
            ("reserved", r#"{"type":"luks2-other"}"#),
            ("key_description", r#"{"type":"luks2-keyring","keyslots":["0"]}"#),
            ("key_description", r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":""}"#),
            ("key_description", r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":3}"#),
            ("other fields", r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":"d","x":1}"#),
            ("tpm2-blob", r#"{"type":"systemd-tpm2","tpm2-pcrs":[7],"tpm2-policy-hash":"0011"}"#),
            ("tpm2-blob", r#"{"type":"systemd-tpm2","tpm2-blob":"A!","tpm2-pcrs":[7],"tpm2-policy-hash":"0011"}"#),
            ("tpm2-blob", r#"{"type":"systemd-tpm2","tpm2-blob":[],"tpm2-pcrs":[7],"tpm2-policy-hash":"0011"}"#),
            ("tpm2-pcrs", r#"{"type":"systemd-tpm2","tpm2-blob":"","tpm2-pcrs":[24],"tpm2-policy-hash":"0011"}"#),
            ("tpm2-pcrs", r#"{"type":"systemd-tpm2","tpm2-blob":"","tpm2-pcrs":["7"],"tpm2-policy-hash":"0011"}"#),
            ("policy-hash", r#"{"type":"systemd-tpm2","tpm2-blob":"","tpm2-pcrs":[7],"tpm2-policy-hash":"001"}"#),
            ("policy-hash", r#"{"type":"systemd-tpm2","tpm2-blob":"","tpm2-pcrs":[7]}"#),
            (
                "bank",
                r#"{"type":"systemd-tpm2","tpm2-blob":"","tpm2-pcrs":[],"tpm2-policy-hash":"","tpm2-pcr-bank":"md9"}"#,
            ),
            ("pin", r#"{"type":"systemd-tpm2","tpm2-blob":"","tpm2-pcrs":[],"tpm2-policy-hash":"","tpm2-pin":1}"#),
            ("credential", r#"{"type":"systemd-fido2","fido2-salt":"AAEC"}"#),
            ("salt", r#"{"type":"systemd-fido2","fido2-credential":"AAEC"}"#),
            ("up-req", r#"{"type":"systemd-fido2","fido2-credential":"","fido2-salt":"","fido2-up-required":1}"#),
            ("uri", r#"{"type":"systemd-pkcs11","pkcs11-uri":"pkcs11:","pkcs11-key":"AAEC"}"#),
            ("key", r#"{"type":"systemd-pkcs11","pkcs11-uri":"pkcs11:token=x"}"#),
            ("ssh_keypath", r#"{"type":"ssh","ssh_server":"s","ssh_user":"u","ssh_path":"p"}"#),
            ("jwe", r#"{"type":"clevis","jwe":3}"#),
        ] {
            let violation = checked(invalid).expect_err(invalid);
            assert!(violation.contains(part), "{violation}: {invalid}");
        }
    }
}
