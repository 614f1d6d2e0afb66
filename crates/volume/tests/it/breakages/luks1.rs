//! Damaged LUKS1 headers. There is no checksum and no second copy to fall back on.

use super::Verdict::{Load, Opens, Unlock};
use super::{Verdict, check, options};
use crate::support::{PASSPHRASE, chain, luks1_image, secret};
use inlock_volume::{HeaderDevice, MemoryDevice, Volume};

/// Without a checksum, a flipped bit may show only in a passphrase that opens nothing.
#[test]
fn every_bit_flip_of_a_luks1_header_opens_or_is_refused() {
    let whole = luks1_image();
    let device = MemoryDevice::new(whole[..1 << 19].to_vec());
    let key = Volume::load(&device).unwrap().unlock(&device, &secret(PASSPHRASE), &options()).unwrap().key;
    let (mut opened, mut refused) = (0, 0);
    for at in 0..592 {
        for bit in 0..8 {
            device.write_all_at(&[whole[at] ^ 1 << bit], at as u64).unwrap();
            let outcome = Volume::load(&device).map_err(|error| chain(&error)).and_then(|volume| {
                volume.dump("image").to_string();
                volume.unlock(&device, &secret(PASSPHRASE), &options()).map_err(|error| chain(&error))
            });
            match outcome {
                Ok(unlocked) => {
                    assert_eq!(unlocked.key.as_bytes(), key.as_bytes(), "{at}.{bit}: a wrong key");
                    opened += 1;
                }
                Err(message) => {
                    assert!(!message.is_empty());
                    refused += 1;
                }
            }
        }
        device.write_all_at(&whole[at..=at], at as u64).unwrap();
    }
    println!("{opened} flips still open, {refused} are refused");
    assert!(opened > 2000 && refused > 1000, "{opened} {refused}");
}

#[test]
#[rustfmt::skip] // one breakage a row
fn broken_luks1_headers() {
    type Luks1Row = (&'static str, fn(&mut Vec<u8>), Verdict);
    fn put(image: &mut [u8], at: usize, value: u32) { image[at..at + 4].copy_from_slice(&value.to_be_bytes()); }
    fn cipher(image: &mut [u8], name: &[u8], mode: &[u8]) {
        image[8..72].fill(0);
        image[8..8 + name.len()].copy_from_slice(name);
        image[40..40 + mode.len()].copy_from_slice(mode);
    }
    let rows: Vec<Luks1Row> = vec![
        ("magic lost", |i| i[0] = 0, Load("not a LUKS volume")),
        ("version 0", |i| i[7] = 0, Load("version 0 is not supported")),
        ("version 65535", |i| i[6..8].fill(255), Load("version 65535 is not supported")),
        ("version 2", |i| i[7] = 2, Load("header size is")),
        ("cipher without end", |i| i[8..40].fill(b'a'), Load("LUKS1 header: cipher name is not a zero-terminated")),
        ("mode without end", |i| i[40..72].fill(b'a'), Load("cipher mode is not a zero-terminated")),
        ("hash without end", |i| i[72..104].fill(b'a'), Load("hash is not a zero-terminated")),
        ("uuid without end", |i| i[168..208].fill(b'a'), Opens("the UUID is damaged: LUKS1 header: uuid is not a zero-terminated")),
        ("hash with control", |i| i[72] = 7, Load("hash is not a zero-terminated")),
        ("cipher with %n", |i| i[8..11].copy_from_slice(b"%n\0"), Unlock("cipher '%n-xts-plain64' is not supported")),
        ("cipher not ASCII", |i| i[8] = 0xe9, Load("cipher name is not")),
        ("cipher seed", |i| i[8..13].copy_from_slice(b"seed\0"), Unlock("cipher 'seed-xts-plain64' is not supported (its cipher)")),
        ("cipher of another volume", |i| i[8..16].copy_from_slice(b"serpent\0"), Unlock("no key available")),
        ("cipher of the kernel's notation without parentheses", |i| i[8..13].copy_from_slice(b"capi:"), Unlock("is not supported (its specification)")),
        ("cipher null", |i| cipher(i, b"cipher_null", b"ecb"), Unlock("the cipher does not encrypt")),
        ("cipher null with a mode", |i| i[8..20].copy_from_slice(b"cipher_null\0"), Unlock("is not supported (its mode)")),
        ("IV null", |i| cipher(i, b"aes", b"xts-null"), Unlock("segment 0: cipher 'aes-xts-null' has no IV")),
        ("mode unknown", |i| i[40..44].copy_from_slice(b"wtf\0"), Unlock("cipher 'aes-wtf' is not supported")),
        ("hash unknown", |i| i[72..77].copy_from_slice(b"md44\0"), Unlock("hash 'md44' is not supported")),
        ("other hash", |i| i[72..77].copy_from_slice(b"sha1\0"), Unlock("no key available with this passphrase")),
        ("payload offset 1", |i| put(i, 104, 1), Load("keyslots/0: offset 4096 and size 128000 exceed 512, the end of the space before")),
        ("payload over the last keyslot", |i| put(i, 104, 1800), Load("keyslots/7: offset")),
        ("payload offset 0 (detached)", |i| put(i, 104, 0), Opens("")),
        ("payload offset 2^32 - 1", |i| put(i, 104, u32::MAX), Opens("")),
        ("key bytes 0", |i| put(i, 108, 0), Load("key bytes is 0, but must be from 1 to 512")),
        ("key bytes 513", |i| put(i, 108, 513), Load("key bytes is 513")),
        ("key bytes 2^31", |i| put(i, 108, 1 << 31), Load("key bytes is 2147483648")),
        ("key bytes 2^32 - 1", |i| put(i, 108, u32::MAX), Load("key bytes is 4294967295")),
        ("key bytes 24", |i| put(i, 108, 24), Unlock("does not take a key of 192 bits")),
        ("key bytes 64", |i| put(i, 108, 64), Load("keyslots/1: offset 135168 overlaps keyslots/0")),
        ("digest wrong", |i| i[112] ^= 1, Unlock("no key available with this passphrase")),
        ("digest iterations 0", |i| put(i, 164, 0), Load("digest iterations is 0")),
        ("digest iterations 2^32 - 1", |i| put(i, 164, u32::MAX), Unlock("pbkdf2 iterations 4294967295 exceeds the limit")),
        ("active flag 0", |i| put(i, 208, 0), Unlock("no usable keyslot")),
        ("active flag 1", |i| put(i, 256, 1), Opens("keyslot 1 is invalid and not used: LUKS1 header: keyslots/1: active flag is 1")),
        ("no active keyslot", |i| put(i, 208, 0xdead), Unlock("no usable keyslot is available")),
        ("another active keyslot", |i| { put(i, 256, 0x00ac71f3); put(i, 260, 1000); }, Opens("")),
        ("iterations 0", |i| put(i, 212, 0), Unlock("no usable keyslot")),
        ("iterations 2^31", |i| put(i, 212, 1 << 31), Unlock("pbkdf2 iterations 2147483648 exceeds the limit")),
        ("keyslot over the header", |i| put(i, 248, 1), Load("keyslots/0: offset 512 overlaps the header")),
        ("keyslot at 0", |i| put(i, 248, 0), Load("keyslots/0: offset 0 overlaps the header")),
        ("keyslot over another", |i| put(i, 296, 9), Load("keyslots/1: offset 4608 overlaps keyslots/0")),
        ("keyslot at 2^32 - 1", |i| put(i, 248, u32::MAX), Load("exceed")),
        ("stripes 0", |i| put(i, 252, 0), Load("keyslots/0: stripes is 0, but must be 4000")),
        ("stripes 2^32 - 1", |i| put(i, 252, u32::MAX), Load("stripes is 4294967295")),
        ("stripes of an unused keyslot", |i| put(i, 300, 4001), Load("keyslots/1: stripes is 4001")),
        ("salt wrong", |i| i[216] ^= 1, Unlock("no key available with this passphrase")),
        ("key material wrong", |i| i[4096] ^= 1, Unlock("no key available with this passphrase")),
    ];
    let whole = luks1_image();
    let mut wrong = Vec::new();
    for (name, change, expected) in &rows {
        let mut image = whole.clone();
        change(&mut image);
        check(name, &image, expected, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} breakages of LUKS1 headers", rows.len());
    assert!(rows.len() >= 40);
}
