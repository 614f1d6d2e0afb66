//! The table of LUKS2 breakages, each with its verdict.

use super::Verdict::{Load, Opens, Unlock};
use super::{Break, HDR, Verdict};
use inlock_volume::luks2::binary_header::BLOCK_LEN;
use serde_json::{Value, json};

pub(super) type Row = (&'static str, Break, Verdict);

#[rustfmt::skip] // one breakage a row
pub(super) fn header_rows() -> Vec<Row> {
    use Break::{Header, Raw};
    fn put(block: &mut [u8; BLOCK_LEN], at: usize, bytes: &[u8]) {
        block[at..at + bytes.len()].copy_from_slice(bytes);
    }
    vec![
        ("first magic lost", Raw(|i| i[0] = 0), Opens("first header copy is damaged")),
        ("both magics lost", Raw(|i| (i[0], i[HDR]) = (0, 0)), Load("not a LUKS volume")),
        ("first checksum wrong", Raw(|i| i[448] ^= 1), Opens("checksum does not match")),
        ("second checksum wrong", Raw(|i| i[HDR + 448] ^= 1), Opens("second header copy is damaged")),
        ("both checksums wrong", Raw(|i| (i[448], i[HDR + 448]) = (i[448] ^ 1, i[HDR + 448] ^ 1)), Load("checksum")),
        ("first copy zeroed", Raw(|i| i[..HDR].fill(0)), Opens("first header copy is damaged")),
        ("second copy zeroed", Raw(|i| i[HDR..2 * HDR].fill(0)), Opens("second header copy is damaged")),
        ("first lost, second damaged", Raw(|i| (i[0], i[HDR + 5000]) = (0, 1)), Load("LUKS2 second header: checksum")),
        ("version 3", Header(|b| put(b, 6, &[0, 3])), Load("version 3 is not supported")),
        ("version 0", Header(|b| put(b, 6, &[0, 0])), Load("version 0 is not supported")),
        ("version 65535", Header(|b| put(b, 6, &[255, 255])), Load("version 65535 is not supported")),
        ("header size 0", Header(|b| put(b, 8, &[0; 8])), Load("header size is 0")),
        ("header size 2^64 - 1", Header(|b| put(b, 8, &[255; 8])), Load("header size is 18446744073709551615")),
        ("header size 8 KiB", Header(|b| put(b, 14, &[0x20, 0])), Load("header size is 8192")),
        ("header size 24 KiB", Header(|b| put(b, 14, &[0x60, 0])), Load("header size is 24576")),
        ("header size 4 MiB on 1 MiB", Header(|b| put(b, 8, &[0, 0, 0, 0, 0, 0x40, 0, 0])), Load("byte 4194304")),
        ("header offset wrong", Header(|b| b[263] ^= 1), Load("header offset is")),
        ("checksum algorithm unknown", Header(|b| put(b, 72, b"md4\0")), Load("checksum algorithm 'md4")),
        ("checksum algorithm without end", Header(|b| b[72..104].fill(b'a')), Load("checksum algorithm is not a zero-")),
        ("label without end", Header(|b| b[24..72].fill(b'a')), Opens("")),
        ("label with an escape", Header(|b| b[24] = 0x1b), Opens("the label has bytes")),
        ("label not UTF-8", Header(|b| b[24] = 0xff), Opens("the label has bytes")),
        ("subsystem without end", Header(|b| b[208..256].fill(b'a')), Opens("")),
        ("uuid without end", Header(|b| b[168..208].fill(b'a')), Load("uuid is not a zero-terminated text")),
        ("uuid empty", Header(|b| b[168..208].fill(0)), Opens("")),
        ("other salt", Header(|b| b[104] ^= 1), Opens("")),
        ("padding in use", Header(|b| b[4000] = 1), Opens("")),
    ]
}

#[rustfmt::skip] // one breakage a row
pub(super) fn text_rows() -> Vec<Row> {
    use Break::{Json, Text};
    fn replace(text: &str, from: &str, to: &str) -> Vec<u8> {
        assert!(text.contains(from));
        text.replacen(from, to, 1).into_bytes()
    }
    vec![
        ("no text", Text(|_| Vec::new()), Load("JSON is not a zero-terminated object")),
        ("an array", Text(|_| b"[]".to_vec()), Load("JSON is not a zero-terminated object")),
        ("empty object", Text(|_| b"{}".to_vec()), Load("config is missing")),
        ("area full", Text(|_| vec![b' '; HDR - BLOCK_LEN]), Load("JSON is not a zero-terminated object")),
        ("blank before", Text(|t| format!(" {t}").into()), Load("JSON is not a zero-terminated object")),
        ("newline behind", Text(|t| format!("{t}\n").into()), Load("JSON is not a zero-terminated object")),
        ("two objects", Text(|t| format!("{t}{t}").into()), Load("JSON is not valid at line 1")),
        ("bytes behind the zero", Text(|t| format!("{t}\0x").into()), Load("bytes after the end")),
        ("not closed", Text(|t| replace(t, "{", "{\"x\":{")), Load("JSON is not valid")),
        ("a zero inside", Text(|t| replace(t, "\"raw\"", "\"r\0w\"")), Load("bytes after the end")),
        ("not UTF-8", Text(|t| [&b"{\"\xff\":1,"[..], &t.as_bytes()[1..]].concat()), Opens("the metadata has bytes")),
        ("not UTF-8 between strings", Text(|t| [&b"{\xff"[..], &t.as_bytes()[1..]].concat()), Load("JSON is not valid at line 1")),
        ("a key twice", Text(|t| replace(t, "{", "{\"config\":{},")), Load("key 'config' twice")),
        ("a key twice, escaped", Text(|t| replace(t, "{", "{\"\\u0063onfig\":{},")), Load("key 'config' twice")),
        ("a key twice, deep", Text(|t| replace(t, "\"stripes\"", "\"stripes\":1,\"stripes\"")), Load("'stripes' twice")),
        ("deep nesting", Text(|t| replace(t, "{", &format!("{{\"x\":{}{},", "[".repeat(2000), "]".repeat(2000)))), Load("nested deeper")),
        ("4000 digits", Text(|t| replace(t, "\"stripes\":4000", &format!("\"stripes\":{}", "4".repeat(4000)))), Load("JSON is not valid")),
        ("an exponent", Text(|t| replace(t, "\"stripes\":4000", "\"stripes\":4e3")), Load("stripes is not a whole number")),
        ("a negative number", Text(|t| replace(t, "\"stripes\":4000", "\"stripes\":-4000")), Opens("stripes is not a whole number")),
        ("NaN", Text(|t| replace(t, "\"stripes\":4000", "\"stripes\":NaN")), Load("JSON is not valid")),
        ("unknown fields", Json(|j| j["x"] = json!({"y": [1, {"z": null}]})), Opens("")),
    ]
}

#[rustfmt::skip] // one breakage a row
pub(super) fn config_rows() -> Vec<Row> {
    use Break::Json;
    vec![
        ("no config", Json(|j| remove(j, "config")), Load("config is missing")),
        ("config a number", Json(|j| j["config"] = json!(1)), Load("config is not an object")),
        ("no keyslots", Json(|j| remove(j, "keyslots")), Load("keyslots is missing")),
        ("no segments", Json(|j| remove(j, "segments")), Load("segments is missing")),
        ("no digests", Json(|j| remove(j, "digests")), Load("digests is missing")),
        ("no tokens", Json(|j| remove(j, "tokens")), Load("tokens is missing")),
        ("tokens an array", Json(|j| j["tokens"] = json!([])), Load("tokens is not an object")),
        ("json_size wrong", Json(|j| j["config"]["json_size"] = json!("12289")), Load("config: json_size is 12289, but must be 12288")),
        ("json_size a number", Json(|j| j["config"]["json_size"] = json!(12288)), Load("config: json_size is not a string")),
        ("keyslots_size odd", Json(|j| j["config"]["keyslots_size"] = json!("524289")), Load("keyslots_size 524289 is not a multiple")),
        ("keyslots_size huge", Json(|j| j["config"]["keyslots_size"] = json!("134221824")), Load("keyslots_size is 134221824, but")),
        ("keyslots_size over the payload", Json(|j| j["config"]["keyslots_size"] = json!("1048576")), Load("segments/0: offset 1048576 overlaps the keyslot areas")),
        ("keyslots_size too small", Json(|j| j["config"]["keyslots_size"] = json!("4096")), Load("keyslots/0/area: offset 32768 and size 258048 exceed 36864")),
        ("flags no array", Json(|j| j["config"]["flags"] = json!("allow-discards")), Load("config: flags is not an array of strings")),
        ("a flag a number", Json(|j| j["config"]["flags"] = json!([1])), Load("config: flags is not an array of strings")),
        ("unknown flag", Json(|j| j["config"]["flags"] = json!(["of-tomorrow"])), Opens("")),
        ("unknown requirement", Json(|j| j["config"]["requirements"] = json!({"mandatory": ["of-tomorrow"]})), Unlock("config/requirements: 'of-tomorrow' is not supported")),
        ("known requirement", Json(|j| j["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]})), Unlock("'online-reencrypt-v2' is not supported")),
        ("requirement with an escape", Json(|j| j["config"]["requirements"] = json!({"mandatory": ["\u{1b}[2J"]})), Unlock("'\\u001b[2J' is not")),
        ("requirements no array", Json(|j| j["config"]["requirements"] = json!({"mandatory": "x"})), Load("config/requirements: mandatory is not an array")),
        ("no requirement", Json(|j| j["config"]["requirements"] = json!({"mandatory": []})), Opens("")),
    ]
}

#[rustfmt::skip] // one breakage a row
pub(super) fn keyslot_rows() -> Vec<Row> {
    use Break::Json;
    vec![
        ("keyslot named x", Json(|j| j["keyslots"]["x"] = json!({})), Load("keyslots: object name 'x' is not a decimal number")),
        ("keyslot named 01", Json(|j| j["keyslots"]["01"] = json!({})), Load("object name '01'")),
        ("keyslot named 32", Json(|j| j["keyslots"]["32"] = json!({})), Load("object name '32'")),
        ("keyslot named -1", Json(|j| j["keyslots"]["-1"] = json!({})), Load("object name '-1'")),
        ("33 keyslots", Json(|j| copies(j, "keyslots", 1..33)), Load("keyslots: 33 objects, but at most 32")),
        ("keyslot a number", Json(|j| j["keyslots"]["1"] = json!(1)), Load("keyslots/1: value is not an object")),
        ("keyslot without type", Json(|j| remove(slot(j), "type")), Load("keyslots/0: type is missing")),
        ("keyslot of unknown type", Json(|j| slot(j)["type"] = json!("of-tomorrow")), Unlock("no usable keyslot")),
        ("no keyslot", Json(|j| (j["keyslots"], j["digests"]["0"]["keyslots"]) = (json!({}), json!([]))), Unlock("no usable keyslot")),
        ("key size 0", Json(|j| slot(j)["key_size"] = json!(0)), Unlock("no usable keyslot")),
        ("key size 2^32", Json(|j| slot(j)["key_size"] = json!(1u64 << 32)), Unlock("no usable keyslot")),
        ("key size a string", Json(|j| slot(j)["key_size"] = json!("64")), Load("key_size is not a whole number")),
        ("key size of no cipher", Json(|j| slot(j)["key_size"] = json!(63)), Unlock("does not take a key of 504 bits")),
        ("key size of another cipher", Json(|j| slot(j)["key_size"] = json!(32)), Unlock("no key available")),
        ("priority 3", Json(|j| slot(j)["priority"] = json!(3)), Unlock("no usable keyslot")),
        ("priority 0", Json(|j| slot(j)["priority"] = json!(0)), Unlock("no usable keyslot")),
        ("priority 2", Json(|j| slot(j)["priority"] = json!(2)), Opens("")),
        ("no af", Json(|j| remove(slot(j), "af")), Load("keyslots/0: af is missing")),
        ("af unknown", Json(|j| slot(j)["af"]["type"] = json!("luks9")), Load("keyslots/0/af: type 'luks9' is not supported")),
        ("af hash unknown", Json(|j| slot(j)["af"]["hash"] = json!("md4")), Unlock("hash 'md4' is not supported")),
        ("stripes 0", Json(|j| slot(j)["af"]["stripes"] = json!(0)), Opens("keyslot 0 is damaged: LUKS2 header: keyslots/0/af: stripes is 0, but must be 4000")),
        ("stripes 4033", Json(|j| slot(j)["af"]["stripes"] = json!(4033)), Opens("stripes is 4033, but must be 4000")),
        ("stripes 2^32 - 1", Json(|j| slot(j)["af"]["stripes"] = json!(u32::MAX)), Opens("stripes is 4294967295, but must be 4000")),
        ("stripes 3999", Json(|j| slot(j)["af"]["stripes"] = json!(3999)), Opens("stripes is 3999, but must be 4000")),
        ("no area", Json(|j| remove(slot(j), "area")), Load("keyslots/0: area is missing")),
        ("area of unknown type", Json(|j| slot(j)["area"]["type"] = json!("fluffy")), Load("keyslots/0/area: type 'fluffy'")),
        ("area over the first header", Json(|j| slot(j)["area"]["offset"] = json!("4096")), Load("LUKS2 header: keyslots/0/area: offset 4096 overlaps the header")),
        ("area over the second header", Json(|j| slot(j)["area"]["offset"] = json!("32767")), Load("offset 32767 overlaps the header")),
        ("area past the keyslot areas", Json(|j| slot(j)["area"]["offset"] = json!("524288")), Load("offset 524288 and size 258048 exceed 557056, the end of the keyslot areas")),
        ("area at 2^64 - 1", Json(|j| slot(j)["area"]["offset"] = json!("18446744073709551615")), Load("exceed 557056")),
        ("area size wraps", Json(|j| slot(j)["area"]["size"] = json!("18446744073709551615")), Load("exceed 557056")),
        ("area size 0", Json(|j| slot(j)["area"]["size"] = json!("0")), Load("keyslots/0/area: size is 0, which is not allowed")),
        ("area offset with blank", Json(|j| slot(j)["area"]["offset"] = json!(" 32768")), Load("offset is not a string of decimal digits")),
        ("area offset with sign", Json(|j| slot(j)["area"]["offset"] = json!("+32768")), Load("offset is not a string of decimal digits")),
        ("area offset in hex", Json(|j| slot(j)["area"]["offset"] = json!("0x8000")), Load("offset is not a string of decimal digits")),
        ("area offset 2^64", Json(|j| slot(j)["area"]["offset"] = json!("18446744073709551616")), Load("offset is not a string of decimal digits")),
        ("areas overlap", Json(|j| copies(j, "keyslots", 1..2)), Load("keyslots/1/area: offset 32768 overlaps keyslots/0")),
        ("area key size of no cipher", Json(|j| slot(j)["area"]["key_size"] = json!(33)), Unlock("does not take a key of 264 bits")),
        ("area cipher unknown", Json(|j| slot(j)["area"]["encryption"] = json!("seed-xts-plain64")), Unlock("cipher 'seed-xts-plain64' is not supported (its cipher)")),
        ("area cipher another one", Json(|j| slot(j)["area"]["encryption"] = json!("serpent-xts-plain64")), Unlock("no key available")),
        ("area IV mode unknown", Json(|j| slot(j)["area"]["encryption"] = json!("aes-xts-random")), Unlock("cipher 'aes-xts-random' is not supported (its IV mode)")),
        ("area cipher with an escape", Json(|j| slot(j)["area"]["encryption"] = json!("\u{1b}[2J")), Unlock("cipher '\\u001b[2J' is not supported")),
        ("area cipher null", Json(|j| slot(j)["area"]["encryption"] = json!("cipher_null-ecb")), Unlock("keyslot 0: the cipher does not encrypt")),
        ("area cipher capi, of an unknown mode", Json(|j| slot(j)["area"]["encryption"] = json!("capi:gcm(aes)-plain64")), Unlock("cipher 'capi:gcm(aes)-plain64' is not supported (its mode)")),
        ("area cipher a number", Json(|j| slot(j)["area"]["encryption"] = json!(7)), Load("encryption is not a string")),
    ]
}

#[rustfmt::skip] // one breakage a row
pub(super) fn kdf_rows() -> Vec<Row> {
    use Break::Json;
    fn pbkdf2(value: &mut Value, iterations: Value) {
        let salt = slot(value)["kdf"]["salt"].clone();
        slot(value)["kdf"] = json!({"type": "pbkdf2", "hash": "sha256", "iterations": iterations, "salt": salt});
    }
    vec![
        ("kdf unknown", Json(|j| slot(j)["kdf"]["type"] = json!("scrypt")), Unlock("kdf: type 'scrypt' is not supported")),
        ("no kdf", Json(|j| remove(slot(j), "kdf")), Load("keyslots/0: kdf is missing")),
        ("kdf memory 2^32 - 1", Json(|j| slot(j)["kdf"]["memory"] = json!(u32::MAX)), Unlock("argon2 memory in KiB 4294967295 exceeds the limit")),
        ("kdf memory 16 GiB", Json(|j| slot(j)["kdf"]["memory"] = json!(16 << 20)), Unlock("argon2 memory in KiB 16777216 exceeds the limit")),
        ("kdf memory 2^40", Json(|j| slot(j)["kdf"]["memory"] = json!(1u64 << 40)), Unlock("no usable keyslot")),
        ("kdf memory 0", Json(|j| slot(j)["kdf"]["memory"] = json!(0)), Unlock("no usable keyslot")),
        ("kdf memory 1", Json(|j| slot(j)["kdf"]["memory"] = json!(1)), Unlock("argon2 memory in KiB 1 is less than the minimum of 8")),
        ("kdf time 2^32 - 1", Json(|j| slot(j)["kdf"]["time"] = json!(u32::MAX)), Unlock("argon2 time cost 4294967295 exceeds the limit")),
        ("kdf time 0", Json(|j| slot(j)["kdf"]["time"] = json!(0)), Unlock("no usable keyslot")),
        ("kdf time negative", Json(|j| slot(j)["kdf"]["time"] = json!(-1)), Unlock("no usable keyslot")),
        ("kdf cpus 0", Json(|j| slot(j)["kdf"]["cpus"] = json!(0)), Unlock("no usable keyslot")),
        ("kdf cpus 2^24", Json(|j| slot(j)["kdf"]["cpus"] = json!(1 << 24)), Unlock("argon2 lanes 16777216 exceeds the limit of 16")),
        ("kdf work", Json(|j| (slot(j)["kdf"]["time"], slot(j)["kdf"]["memory"]) = (json!(9999), json!(1 << 20))), Unlock("argon2 memory in KiB times time cost 10484711424 exceeds the limit")),
        ("pbkdf2 iterations 2^31", Json(|j| pbkdf2(j, json!(1u32 << 31))), Unlock("pbkdf2 iterations 2147483648 exceeds the limit")),
        ("pbkdf2 iterations 0", Json(|j| pbkdf2(j, json!(0))), Unlock("no usable keyslot")),
        ("pbkdf2 iterations a string", Json(|j| pbkdf2(j, json!("1000"))), Load("iterations is not a whole number")),
        ("pbkdf2 in place of argon2", Json(|j| pbkdf2(j, json!(1000))), Unlock("no key available with this passphrase")),
        ("salt not base64", Json(|j| slot(j)["kdf"]["salt"] = json!("!!!!")), Unlock("no usable keyslot")),
        ("salt empty", Json(|j| slot(j)["kdf"]["salt"] = json!("")), Unlock("no usable keyslot")),
        ("salt of 1 byte", Json(|j| slot(j)["kdf"]["salt"] = json!("AA==")), Unlock("argon2 salt length 1 is less than the minimum of 8")),
        ("salt of 1 KiB", Json(|j| slot(j)["kdf"]["salt"] = json!("A".repeat(1368))), Unlock("no usable keyslot")),
        ("other salt", Json(|j| slot(j)["kdf"]["salt"] = json!("AAAAAAAAAAA=")), Unlock("no key available with this passphrase")),
    ]
}

#[rustfmt::skip] // one breakage a row
pub(super) fn digest_rows() -> Vec<Row> {
    use Break::Json;
    fn digest(value: &mut Value) -> &mut Value {
        &mut value["digests"]["0"]
    }
    vec![
        ("no digest", Json(|j| j["digests"] = json!({})), Load("keyslots/0: is bound to no digest")),
        ("9 digests", Json(|j| copies(j, "digests", 1..9)), Load("digests: 9 objects, but at most 8")),
        ("digest of unknown type", Json(|j| digest(j)["type"] = json!("sha3")), Unlock("digest 0 cannot be computed: its type")),
        ("digest hash unknown", Json(|j| digest(j)["hash"] = json!("md4")), Unlock("digest 0 cannot be computed: its hash")),
        ("digest of 1 byte", Json(|j| digest(j)["digest"] = json!("AA==")), Unlock("digest 0 cannot be computed: it does not have the length")),
        ("digest empty", Json(|j| digest(j)["digest"] = json!("")), Load("digests/0: digest is 0")),
        ("digest not base64", Json(|j| digest(j)["digest"] = json!("AA=A")), Load("digests/0: digest is not base64")),
        ("digest iterations 0", Json(|j| digest(j)["iterations"] = json!(0)), Load("digests/0: iterations is 0")),
        ("digest iterations 2^31", Json(|j| digest(j)["iterations"] = json!(1u32 << 31)), Unlock("pbkdf2 iterations 2147483648")),
        ("digest names no keyslot", Json(|j| digest(j)["keyslots"] = json!(["7"])), Load("digests/0: refers to keyslots/7, which does not exist")),
        ("digest names a keyslot by number", Json(|j| digest(j)["keyslots"] = json!([0])), Load("keyslots is not an array of strings")),
        ("digest names no segment", Json(|j| digest(j)["segments"] = json!(["0", "1"])), Load("digests/0: refers to segments/1")),
        ("digest without keyslots", Json(|j| digest(j)["keyslots"] = json!([])), Load("keyslots/0: is bound to no digest")),
        ("digest without segments", Json(|j| digest(j)["segments"] = json!([])), Unlock("segments/0: is bound to no digest")),
        ("two digests on a keyslot", Json(|j| copies(j, "digests", 1..2)), Load("digests/1: keyslots/0 is already bound to digests/0")),
        ("two digests on a segment", Json(|j| { copies(j, "digests", 1..2); j["digests"]["1"]["keyslots"] = json!([]); }), Unlock("segments/0: is bound to two digests")),
        ("other key length on a digest", Json(|j| { copies(j, "keyslots", 1..2); j["keyslots"]["1"]["key_size"] = json!(32); j["keyslots"]["1"]["area"]["offset"] = json!("290816"); digest(j)["keyslots"] = json!(["0", "1"]); }), Opens("keyslot 1 is invalid and not used: LUKS2 header: keyslots/1: key_size is 32, but must be 64")),
    ]
}

#[rustfmt::skip] // one breakage a row
pub(super) fn segment_rows() -> Vec<Row> {
    use Break::Json;
    fn segment(value: &mut Value) -> &mut Value {
        &mut value["segments"]["0"]
    }
    vec![
        ("33 segments", Json(|j| copies(j, "segments", 1..33)), Load("segments: 33 objects, but at most 32")),
        ("no segment", Json(|j| (j["segments"], j["digests"]["0"]["segments"]) = (json!({}), json!([]))), Unlock("there is no encrypted segment")),
        ("segments with a gap", Json(|j| { copies(j, "segments", 2..3); segment(j)["size"] = json!("4096"); }), Load("segments/2: segment numbers have a gap")),
        ("a dynamic segment before another", Json(|j| copies(j, "segments", 1..2)), Load("segments/0: only the last segment may be dynamic")),
        ("segments overlap", Json(|j| { segment(j)["size"] = json!("4096"); copies(j, "segments", 1..2); }), Load("segments/1: offset 1048576 overlaps segments/0")),
        ("segment of unknown type", Json(|j| segment(j)["type"] = json!("of-tomorrow")), Unlock("type 'of-tomorrow' is not supported")),
        ("linear segment", Json(|j| segment(j)["type"] = json!("linear")), Unlock("there is no encrypted segment")),
        ("linear segment after an encrypted one", Json(|j| { segment(j)["size"] = json!("4096"); j["segments"]["1"] = json!({"type": "linear", "offset": "1052672", "size": "dynamic"}); }), Unlock("segment 1 is stored unencrypted")),
        ("linear segment before an encrypted one", Json(|j| { segment(j)["offset"] = json!("1052672"); j["segments"]["1"] = segment(j).take(); *segment(j) = json!({"type": "linear", "offset": "1048576", "size": "4096"}); j["digests"]["0"]["segments"] = json!(["1"]); }), Unlock("segment 0 is stored unencrypted")),
        ("segment cipher null", Json(|j| segment(j)["encryption"] = json!("cipher_null-ecb")), Unlock("segment 0: cipher 'cipher_null-ecb' does not encrypt")),
        ("segment cipher null, IV mode too", Json(|j| segment(j)["encryption"] = json!("cipher_null-ecb-null")), Unlock("segment 0: cipher 'cipher_null-ecb' does not encrypt")),
        ("segment cipher null, of the kernel's notation", Json(|j| segment(j)["encryption"] = json!("capi:ecb(cipher_null)-null")), Unlock("does not encrypt")),
        ("segment IV null", Json(|j| segment(j)["encryption"] = json!("aes-xts-null")), Unlock("segment 0: cipher 'aes-xts-null' has no IV")),
        ("segment without IV", Json(|j| segment(j)["encryption"] = json!("aes-ecb")), Unlock("segment 0: cipher 'aes-ecb' has no IV")),
        ("segment over the keyslots", Json(|j| segment(j)["offset"] = json!("32768")), Load("segments/0: offset 32768 overlaps the keyslot areas")),
        ("segment offset odd", Json(|j| segment(j)["offset"] = json!("1048577")), Load("segments/0: offset 1048577 is not a multiple of 512")),
        ("segment size odd", Json(|j| segment(j)["size"] = json!("512")), Load("segments/0: size 512 is not a multiple of 4096")),
        ("segment size 0", Json(|j| segment(j)["size"] = json!("0")), Load("segments/0: size is 0")),
        ("segment size wraps", Json(|j| segment(j)["size"] = json!("18446744073709547520")), Unlock("segments/0: it ends beyond the largest device")),
        ("segment without the name of a cipher", Json(|j| segment(j)["encryption"] = json!("")), Load("segments/0: encryption is not the name of a cipher")),
        ("segment size in words", Json(|j| segment(j)["size"] = json!("Dynamic")), Load("segments/0: size is not a string of decimal")),
        ("sector size 0", Json(|j| segment(j)["sector_size"] = json!(0)), Load("sector_size is 0")),
        ("sector size 513", Json(|j| segment(j)["sector_size"] = json!(513)), Load("sector_size is 513, which is not allowed")),
        ("sector size 8192", Json(|j| segment(j)["sector_size"] = json!(8192)), Load("sector_size is 8192")),
        ("iv tweak missing", Json(|j| remove(segment(j), "iv_tweak")), Load("iv_tweak is missing")),
        ("iv tweak odd", Json(|j| segment(j)["iv_tweak"] = json!("1")), Unlock("segments/0: iv_tweak is not a multiple")),
        ("segment cipher unknown", Json(|j| segment(j)["encryption"] = json!("seed-xts-plain64")), Unlock("LUKS2 segment: cipher 'seed-xts-plain64' is not supported")),
        ("segment cipher capi, of an unknown mode", Json(|j| segment(j)["encryption"] = json!("capi:gcm(aes)-plain64")), Unlock("is not supported (its mode)")),
        ("segment cipher for other sectors", Json(|j| { segment(j)["encryption"] = json!("aes-xts-tcw"); segment(j)["sector_size"] = json!(4096) }), Unlock("takes data units of 512 bytes only, not 4096")),
        ("integrity without a journal", Json(|j| segment(j)["integrity"] = json!({"type": "hmac(sha256)"})), Load("journal_encryption is missing")),
        ("integrity of tomorrow", Json(|j| segment(j)["integrity"] = json!({"type": "of-tomorrow", "journal_encryption": "none", "journal_integrity": "none"})), Unlock("of-tomorrow")),
        ("journal with a cipher", Json(|j| segment(j)["integrity"] = json!({"type": "hmac(sha256)", "journal_encryption": "ctr(aes)", "journal_integrity": "none"})), Unlock("of its journal is not supported")),
        ("integrity a text", Json(|j| segment(j)["integrity"] = json!("x")), Load("integrity is not an object")),
        ("segment in re-encryption", Json(|j| segment(j)["flags"] = json!(["in-reencryption"])), Unlock("it is being re-encrypted")),
        ("unknown segment flag", Json(|j| segment(j)["flags"] = json!(["of-tomorrow"])), Opens("")),
        ("33 tokens", Json(|j| { j["tokens"]["0"] = json!({"type": "x", "keyslots": []}); copies(j, "tokens", 1..33); }), Load("tokens: 33 objects")),
        ("token without type", Json(|j| j["tokens"]["0"] = json!({"keyslots": []})), Load("tokens/0: type is missing")),
        ("token names no keyslot", Json(|j| j["tokens"]["3"] = json!({"type": "x", "keyslots": ["1"]})), Load("tokens/3: refers to keyslots/1")),
        ("unknown token", Json(|j| j["tokens"]["31"] = json!({"type": "x", "keyslots": ["0"], "y": {}})), Opens("")),
    ]
}

fn slot(value: &mut Value) -> &mut Value {
    &mut value["keyslots"]["0"]
}

fn remove(value: &mut Value, key: &str) {
    value.as_object_mut().unwrap().shift_remove(key);
}

/// Copies object 0 of a section under other names.
fn copies(value: &mut Value, section: &str, names: std::ops::Range<u32>) {
    let object = value[section]["0"].clone();
    names.for_each(|name| value[section][name.to_string()] = object.clone());
}
