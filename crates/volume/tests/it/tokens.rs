//! Tokens: which are tried, in which order, with which keyslots; and how they are printed.

use crate::support::with;
use crate::support::{PASSPHRASE, luks2_options, map_of, secret, text_of};
use inlock_volume::luks2::{Luks2, TokenError, TokenFailure, TokenHandler, TokenOptions, TokenRequest, format};
use inlock_volume::{HeaderDevice, HeaderPolicy, KdfLimits, MemoryDevice, Secret, UnlockError, UnlockOptions, Volume};
use serde_json::{Value, json};

/// Returns a volume whose keyslots 0, 1 and 2 have the same passphrase, with these tokens.
fn volume(tokens: Value, change: impl FnOnce(&mut Value)) -> (MemoryDevice, Luks2) {
    let device = MemoryDevice::zeroed((2 << 20) + 8192);
    format(&device, with!(luks2_options(); keyslots_len: Some(1 << 20)), &secret(PASSPHRASE)).unwrap();
    let mut luks2 = Luks2::load(&device).unwrap();
    let mut map = Value::Object(map_of(&luks2));
    let number = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
    let (at, len) = (number(&map["keyslots"]["0"]["area"]["offset"]), number(&map["keyslots"]["0"]["area"]["size"]));
    let mut area = vec![0; len as usize];
    device.read_exact_at(&mut area, at).unwrap();
    for slot in 1..3 {
        let mut copy = map["keyslots"]["0"].clone();
        copy["area"]["offset"] = (at + slot * len).to_string().into();
        map["keyslots"][slot.to_string()] = copy;
        device.write_all_at(&area, at + slot * len).unwrap();
    }
    map["digests"]["0"]["keyslots"] = json!(["0", "1", "2"]);
    map["tokens"] = tokens;
    change(&mut map);
    let Value::Object(map) = map else { unreachable!() };
    luks2.commit(&device, &text_of(map)).unwrap();
    let luks2 = Luks2::load(&device).unwrap();
    (device, luks2)
}

/// Gives the passphrase that a token's type names, and records what it was asked.
#[derive(Default)]
struct Recorder(Vec<u32>);

impl TokenHandler for Recorder {
    fn passphrase(&mut self, token: &TokenRequest<'_>) -> Result<Secret, TokenFailure> {
        let object: Value = serde_json::from_str(token.json).unwrap();
        assert_eq!(object["type"], token.kind);
        self.0.push(token.number);
        match token.kind {
            "right" => Ok(secret(PASSPHRASE)),
            "wrong" => Ok(secret(b"wrong")),
            "pin" => Err(TokenFailure::PinRequired),
            "missing" => Err(TokenFailure::ResourceMissing),
            "none" => Err(TokenFailure::NoPassphrase),
            "failed" => Err(TokenFailure::Failed),
            _ => Err(TokenFailure::Unsupported),
        }
    }
}

type Opened = Result<(u32, Option<u32>), TokenError>;

/// Returns the token and the keyslot that it opened, and the tokens that were asked.
fn try_all(
    (device, luks2): &(MemoryDevice, Luks2),
    tokens: &TokenOptions,
    options: &UnlockOptions,
) -> (Opened, Vec<u32>) {
    let mut recorder = Recorder::default();
    let opened = luks2.unlock_with_tokens(device, &mut recorder, tokens, options);
    (opened.map(|(token, unlocked)| (token, unlocked.keyslot)), recorder.0)
}

fn token(kind: &str, keyslots: &[&str]) -> Value {
    json!({"type": kind, "keyslots": keyslots})
}

fn by_default(volume: &(MemoryDevice, Luks2)) -> (Opened, Vec<u32>) {
    try_all(volume, &TokenOptions::default(), &UnlockOptions::default())
}

#[test]
fn token_opens_only_keyslots_that_it_is_assigned_to() {
    let made = volume(json!({"0": token("right", &["2"])}), |_| {});
    assert_eq!(by_default(&made).0.unwrap(), (0, Some(2)));
    // Its passphrase opens keyslots 0 and 1, too.
    let made = volume(json!({"0": token("right", &[])}), |_| {});
    assert!(matches!(by_default(&made), (Err(TokenError::NoUsableToken), asked) if asked.is_empty()));
}

#[test]
fn token_of_unbound_keyslot_is_not_asked() {
    let (device, luks2) = volume(json!({"0": token("right", &["2"])}), |map| {
        let digest = map["digests"]["0"].clone();
        map["digests"]["0"]["keyslots"] = json!(["0", "1"]);
        map["digests"]["1"] = digest;
        map["digests"]["1"]["keyslots"] = json!(["2"]);
        map["digests"]["1"]["segments"] = json!([]);
    });
    assert!(matches!(by_default(&(device, luks2)), (Err(TokenError::NoUsableToken), asked) if asked.is_empty()));
}

#[test]
fn failed_token_does_not_hide_next() {
    for kind in ["wrong", "pin", "missing", "none", "failed", "unknown"] {
        let made = volume(json!({"0": token(kind, &["0"]), "1": token("right", &["1"])}), |_| {});
        let (opened, asked) = by_default(&made);
        assert_eq!((opened.unwrap(), asked), ((1, Some(1)), vec![0, 1]), "{kind}");
    }
}

#[test]
fn error_is_that_of_token_which_user_can_make_work() {
    let errors = |kinds: &[&str]| {
        let tokens: serde_json::Map<String, Value> =
            kinds.iter().enumerate().map(|(number, kind)| (number.to_string(), token(kind, &["0"]))).collect();
        by_default(&volume(tokens.into(), |_| {})).0.unwrap_err().to_string()
    };
    assert_eq!(errors(&[]), "no usable token is available");
    assert_eq!(errors(&["unknown"]), "no usable token is available");
    assert_eq!(errors(&["unknown", "failed"]), "a token failed");
    for none in ["wrong", "none"] {
        assert_eq!(errors(&["failed", none, "unknown"]), "no token can unlock its keyslots");
    }
    assert_eq!(errors(&["missing", "wrong"]), "a token requires an additional missing resource");
    assert_eq!(errors(&["wrong", "missing"]), "a token requires an additional missing resource");
    assert_eq!(errors(&["missing", "pin", "wrong"]), "a token requires a PIN");
}

#[test]
fn requested_token_or_type_is_only_one_tried() {
    let tokens = json!({"0": token("wrong", &["0"]), "1": token("right", &["0"]), "3": token("right", &["1"])});
    let made = volume(tokens, |_| {});
    let with_number = |number| with!(TokenOptions::default(); number: Some(number));
    let with_kind = |kind: &str| with!(TokenOptions::default(); kind: Some(kind.to_owned()));
    let options = UnlockOptions::default();
    let (opened, asked) = try_all(&made, &with_number(3), &options);
    assert_eq!((opened.unwrap(), asked), ((3, Some(1)), vec![3]));
    let (opened, asked) = try_all(&made, &with_kind("right"), &options);
    assert_eq!((opened.unwrap(), asked), ((1, Some(0)), vec![1]));
    let (opened, asked) = try_all(&made, &with_kind("righ"), &options);
    assert!(matches!(opened, Err(TokenError::NoUsableToken)) && asked.is_empty());
    let both = with!(with_number(3); kind: Some("wrong".to_owned()));
    assert!(matches!(try_all(&made, &both, &options).0, Err(TokenError::NoUsableToken)));
    assert!(matches!(try_all(&made, &with_number(2), &options).0, Err(TokenError::NoUsableToken)));
    let (opened, asked) = try_all(&made, &TokenOptions::default(), &with!(options; keyslot: Some(1)));
    assert_eq!((opened.unwrap(), asked), ((3, Some(1)), vec![3]), "--key-slot selects");
}

#[test]
fn preferred_keyslot_is_first_and_ignored_one_only_by_number() {
    let tokens = json!({"0": token("right", &["0"]), "1": token("right", &["1"]), "2": token("right", &["2"])});
    let made = volume(tokens, |map| {
        map["keyslots"]["0"]["priority"] = 0.into();
        map["keyslots"]["2"]["priority"] = 2.into();
    });
    let (opened, asked) = by_default(&made);
    assert_eq!((opened.unwrap(), asked), ((2, Some(2)), vec![2]));
    let only = with!(TokenOptions::default(); number: Some(0));
    assert_eq!(try_all(&made, &only, &UnlockOptions::default()).0.unwrap(), (0, Some(0)));
    let slot = with!(UnlockOptions::default(); keyslot: Some(0));
    assert_eq!(try_all(&made, &TokenOptions::default(), &slot).0.unwrap(), (0, Some(0)));
    let two = volume(json!({"0": token("wrong", &["0", "1"]), "1": token("right", &["0", "1"])}), |map| {
        map["keyslots"]["0"]["priority"] = 0.into();
    });
    let (opened, asked) = try_all(&two, &TokenOptions::default(), &slot);
    assert_eq!((opened.unwrap(), asked), ((1, Some(0)), vec![0, 1]), "two tokens of an ignored keyslot");
    let requested = with!(TokenOptions::default(); number: Some(1));
    assert_eq!(
        try_all(&two, &requested, &UnlockOptions::default()).0.unwrap(),
        (1, Some(1)),
        "the ignored one is last"
    );
    let kind = with!(TokenOptions::default(); kind: Some("right".to_owned()));
    let all_ignored = volume(json!({"0": token("right", &["0"])}), |map| map["keyslots"]["0"]["priority"] = 0.into());
    assert!(matches!(try_all(&all_ignored, &kind, &UnlockOptions::default()).0, Err(TokenError::NoUsableToken)));
}

#[test]
fn invalid_token_is_skipped_and_named_if_requested() {
    let broken = json!({"type": "systemd-tpm2", "keyslots": ["0"]});
    let made = volume(json!({"0": broken, "1": token("right", &["0"])}), |_| {});
    let (opened, asked) = by_default(&made);
    assert_eq!((opened.unwrap(), asked), ((1, Some(0)), vec![1]), "the handler never sees it");
    let only = with!(TokenOptions::default(); number: Some(0));
    let error = try_all(&made, &only, &UnlockOptions::default()).0.unwrap_err();
    assert_eq!(error.to_string(), "LUKS2 header: tokens/0: tpm2-blob is not base64");
    assert!(made.1.check_token(0).is_err() && made.1.check_token(1).is_ok() && made.1.check_token(9).is_ok());
}

#[test]
fn policy_and_limits_hold_for_tokens() {
    let made = volume(json!({"0": token("right", &["0"])}), |_| {});
    let policy = with!(HeaderPolicy::default(); expected_uuid: Some("99999999-2222-3333-4444-555555555555".to_owned()));
    let (opened, asked) = try_all(&made, &TokenOptions::default(), &with!(UnlockOptions::default(); policy: policy));
    assert!(matches!(opened, Err(TokenError::Unlock(UnlockError::Policy(_)))), "{opened:?}");
    assert!(asked.is_empty(), "asked before the policy");
    // Many tokens cannot make the keyslots of one header cost more than all of them together may.
    let tokens: serde_json::Map<String, Value> =
        (0..32).map(|number| (number.to_string(), token("wrong", &["0", "1", "2"]))).collect();
    let made = volume(tokens.into(), |_| {});
    let limits = with!(KdfLimits::default(); argon2_total_work_kib: 4 * 32 * 10);
    let (opened, _) = try_all(&made, &TokenOptions::default(), &with!(UnlockOptions::default(); limits: limits));
    assert!(matches!(opened, Err(TokenError::Unlock(UnlockError::TooCostlyTogether(_)))), "{opened:?}");
}

/// Tokens of a header as they are printed.
const PRINTED: &str = "Tokens:
  0: systemd-tpm2
\ttpm2-hash-pcrs:   7+11
\ttpm2-pcr-bank:    sha256
\ttpm2-pubkey:
\t            (null)
\ttpm2-pubkey-pcrs: n/a
\ttpm2-primary-alg: ecc
\ttpm2-blob:        00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f
\t            10
\ttpm2-policy-hash:
\t            00 11 22 33
\ttpm2-pin:         true
\tKeyslot:    0
  1: systemd-fido2
\tfido2-credential:
\t            00 01 02
\tfido2-salt: 03 04
\tfido2-rp:   io.systemd.cryptsetup
\tfido2-clientPin-required:
\t            true
\tfido2-up-required:
\t            false
\tKeyslot:    0
  2: systemd-pkcs11
\tpkcs11-uri: pkcs11:token=x
\tpkcs11-key: 00 01 02
\tKeyslot:    0
  3: ssh
\tssh_server: s
\tssh_user: u
\tssh_path: p
\tssh_key_path: k
\tKeyslot:    0
  4: luks2-keyring
\tKey description: a\\u001bb
\tKeyslot:    0
  5: systemd-recovery
\tKeyslot:    0
\tKeyslot:    1
  6: clevis
\tclevis pin: tang
\ttang url:   http://[::1]:1\\u009b
  7: systemd-tpm2
  8: new\\u000a
  9: clevis
Digests:
";

#[test]
fn token_is_printed_as_with_its_plugin() {
    let tpm2 = json!({
        "type": "systemd-tpm2", "keyslots": ["0"], "tpm2-blob": "AAECAwQFBgcICQoLDA0ODxA=", "tpm2-pcrs": [7, 11],
        "tpm2-pcr-bank": "sha256", "tpm2-policy-hash": "00112233", "tpm2-pin": true,
    });
    let fido2 = json!({
        "type": "systemd-fido2", "keyslots": ["0"], "fido2-credential": "AAEC", "fido2-salt": "AwQ=",
        "fido2-rp": "io.systemd.cryptsetup", "fido2-clientPin-required": true, "fido2-up-required": false,
    });
    // {"alg":"ECDH-ES","clevis":{"pin":"tang","tang":{"url":"http://[::1]:1\u009b"}}}
    let protected = "eyJhbGciOiJFQ0RILUVTIiwiY2xldmlzIjp7InBpbiI6InRhbmciLCJ0YW5nIjp7InVybCI6Imh0dHA6Ly9bOjoxXTox\
        XHUwMDliIn19fQ";
    let tokens = json!({
        "0": tpm2, "1": fido2,
        "2": {"type": "systemd-pkcs11", "keyslots": ["0"], "pkcs11-uri": "pkcs11:token=x", "pkcs11-key": "AAEC"},
        "3": {"type": "ssh", "keyslots": ["0"], "ssh_server": "s", "ssh_user": "u", "ssh_path": "p", "ssh_keypath": "k"},
        "4": {"type": "luks2-keyring", "keyslots": ["0"], "key_description": "a\u{1b}b"},
        "5": {"type": "systemd-recovery", "keyslots": ["0", "1"]},
        "6": {"type": "clevis", "keyslots": [], "jwe": {"protected": protected}},
        "7": {"type": "systemd-tpm2", "keyslots": [], "tpm2-blob": 3},
        "8": {"type": "new\n", "keyslots": []},
        "9": {"type": "clevis", "keyslots": [], "jwe": {"protected": "!"}},
    });
    let (device, _) = volume(tokens, |_| {});
    let text = Volume::load(&device).unwrap().dump("x").to_string();
    let start = text.find("Tokens:\n").unwrap();
    assert_eq!(&text[start..start + PRINTED.len()], PRINTED);
}
