//! Tables of devices with integrity protection: printed as they were read, and wrong words refused by their number.

use inlock_volume::table::{AnyTable, IntegrityMode, IntegrityTable, ShowKeys};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn parse(text: &str) -> IntegrityTable {
    match AnyTable::parse(text) {
        Ok(AnyTable::Integrity(table)) => *table,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn printed_integrity_table_reads_back_and_hides_every_key() {
    for text in [
        "0 2048 integrity 7:0 0 4 J 1 internal_hash:crc32c\n".to_owned(),
        "0 2048 integrity 7:0 0 - D 1 internal_hash:sha256\n".to_owned(),
        "0 2048 integrity /dev/my\\ disk 16 4 R 0\n".to_owned(),
        "0 2048 integrity 7:0 0 4 J 1 internal_hash:my\\ hash\\\\\n".to_owned(),
        format!(
            "0 2048 integrity 7:0 8 32 J 15 meta_device:7:1 block_size:4096 recalculate reset_recalculate \
             allow_discards journal_sectors:1024 interleave_sectors:1 buffer_sectors:128 journal_watermark:50 \
             commit_time:10000 fix_padding fix_hmac internal_hash:hmac(sha256):{KEY} \
             journal_crypt:ctr(aes):{KEY} journal_mac:hmac(sha256):{KEY}\n"
        ),
        "0 2048 integrity 7:0 0 8 B 4 buffer_sectors:128 sectors_per_bit:32768 bitmap_flush_interval:10000 \
         internal_hash:xxhash64\n"
            .to_owned(),
        format!(
            "data_dif: 0 2048 integrity 7:0 32768 28 J 1 block_size:4096\n\
             data: 0 2048 crypt capi:gcm(aes)-random {KEY} 8 /dev/mapper/data_dif 0 3 allow_discards \
             integrity:28:aead sector_size:4096\n"
        ),
        format!(
            "x: 0 2048 integrity 7:0 32768 48 D 0\n\
             y: 0 2048 crypt capi:authenc(hmac(sha256),xts(aes))-random {KEY}{KEY}{KEY}{KEY} 0 /dev/mapper/x 0 2 \
             integrity:48:aead integrity_key_size:64\n"
        ),
    ] {
        let table = parse(&text);
        assert_eq!(*table.to_text(ShowKeys::Yes), text);
        assert_eq!(*table.to_text(ShowKeys::No), text.replace(KEY, &"0".repeat(64)));
        assert_eq!(table.has_key(), text.contains(KEY), "{text}");
        assert!(!format!("{table:?}").contains("1e, 1f") && !format!("{table:?}").contains("1e1f"), "{text}");
    }
    let table = parse("0 2048 integrity 7:0 8 32 B 2 meta_device:7:1 internal_hash:sha256");
    assert_eq!((table.devices(), table.integrity.mode), (vec!["7:0", "7:1"], IntegrityMode::Bitmap));
    // A device without a name has none that another line could use.
    assert!(
        AnyTable::parse("0 8 integrity 7:0 0 28 D 0\n0 8 crypt capi:gcm(aes)-random 00 0 /dev/mapper/ 0 0").is_err()
    );
}

/// A table, and the place of the first wrong word with the beginning of the message.
const WRONG: [(&str, (usize, usize), &str); 34] = [
    ("1 8 integrity 7:0 0 4 J 0", (1, 1), "expected 0"),
    ("0 0 integrity 7:0 0 4 J 0", (1, 2), "expected a number above zero"),
    ("0 99999999999999999 integrity 7:0 0 4 J 0", (1, 2), "expected a smaller number"),
    ("0 8 zero\n0 8 integrity 7:0 0 4 J 0", (1, 3), "expected integrity"),
    ("0 8 integrity", (1, 4), "missing"),
    ("0 8 integrity 7:0 x 4 J 0", (1, 5), "expected a whole number"),
    ("0 8 integrity 7:0 0 0 J 0", (1, 6), "expected the bytes of a tag"),
    ("0 8 integrity 7:0 0 256 J 0", (1, 6), "expected the bytes of a tag"),
    ("0 8 integrity 7:0 0 - J 0", (1, 6), "expected the bytes of a tag"),
    ("0 8 integrity 7:0 0 4 X 0", (1, 7), "expected a mode"),
    ("0 8 integrity 7:0 0 4 JJ 0", (1, 7), "expected a mode"),
    ("0 8 integrity 7:0 0 4 J", (1, 8), "missing"),
    ("0 8 integrity 7:0 0 4 J 19", (1, 8), "expected the number of options that follow, 0 to 18"),
    ("0 8 integrity 7:0 0 4 J 1", (1, 8), "expected 0, the number"),
    ("0 8 integrity 7:0 0 4 J 0 recalculate", (1, 8), "expected 1, the number"),
    ("0 8 integrity 7:0 0 4 J 1 discards", (1, 9), "expected one of journal_sectors"),
    ("0 8 integrity 7:0 0 4 J 1 journal_sectors", (1, 9), "expected one of journal_sectors"),
    ("0 8 integrity 7:0 0 4 J 1 commit_time:1s", (1, 9), "expected a whole number below 2^32"),
    ("0 8 integrity 7:0 0 4 J 1 commit_time:4294967296", (1, 9), "expected a whole number below 2^32"),
    ("0 8 integrity 7:0 0 4 J 1 block_size:8192", (1, 9), "expected block_size:BYTES"),
    ("0 8 integrity 7:0 0 4 J 1 block_size:1000", (1, 9), "expected block_size:BYTES"),
    ("0 8 integrity 7:0 0 4 J 1 meta_device:", (1, 9), "expected one of journal_sectors"),
    ("0 8 integrity 7:0 0 4 J 1 internal_hash:", (1, 9), "expected one of journal_sectors"),
    ("0 8 integrity 7:0 0 4 J 1 journal_mac:hmac(sha256):5a5", (1, 9), "expected two hexadecimal digits"),
    ("0 8 integrity 7:0 0 4 J 1 journal_mac:hmac(sha256):5a5x", (1, 9), "expected the key in hexadecimal"),
    ("a: 0 8 integrity 7:0 0 28 D 0\n0 16 crypt", (2, 2), "expected 8, the length"),
    ("a: 0 8 integrity 7:0 0 28 D 0\n0 8 linear 7:0 0", (2, 3), "expected one line of the target crypt"),
    ("a: 0 8 integrity 7:0 0 28 D 0\n0 8 crypt aes-xts-plain64 @ 0 /dev/mapper/a 0", (2, 4), "expected a supported"),
    ("a: 0 8 integrity 7:0 0 28 D 0\n0 8 crypt capi:gcm(aes)-random @ 0 7:0 0", (2, 7), "expected /dev/mapper/NAME"),
    ("a: 0 8 integrity 7:0 0 28 D 0\n0 8 crypt capi:gcm(aes)-random @ 0 /dev/mapper/a 8", (2, 8), "expected 0"),
    (
        "a: 0 8 integrity 7:0 0 28 D 0\n0 8 crypt capi:gcm(aes)-random @ 0 /dev/mapper/a 0",
        (2, 8),
        "expected the option",
    ),
    (
        "a: 0 8 integrity 7:0 0 28 D 0\n0 8 crypt capi:gcm(aes)-random @ 0 /dev/mapper/a 0 1 integrity:28:none",
        (2, 10),
        "expected integrity:BYTES:aead",
    ),
    (
        "a: 0 8 integrity 7:0 0 28 D 0\n0 8 crypt capi:gcm(aes)-random @@ 0 /dev/mapper/a 0 1 integrity:28:aead",
        (2, 5),
        "expected a key of another length",
    ),
    (
        "a: 0 8 integrity 7:0 0 28 D 0\nb: 0 8 crypt capi:gcm(aes)-random @ 0 /dev/mapper/a 0 1 integrity:28:aead\n\
         c: 0 8 crypt capi:gcm(aes)-random @ 0 /dev/mapper/b 0 1 integrity:28:aead",
        (3, 3),
        "expected one line of the target crypt",
    ),
];

#[test]
fn wrong_integrity_table_is_refused_by_its_wrong_word() {
    for (text, place, message) in WRONG {
        let error = AnyTable::parse(&text.replace('@', KEY)).unwrap_err();
        assert_eq!(error.position(), Some(place), "{text}: {error}");
        let shown = error.to_string();
        let (_, what) = shown.split_once(": ").unwrap();
        // A key behind it, or the word itself, is not shown.
        assert!(what.starts_with(message) || shown.contains(&format!(": {message}")), "{text}: {error}");
        assert!(!shown.contains("5a5") && !shown.contains("1e1f"), "{text}: {error}");
    }
    for forgotten in [format!("hmac(sha256):{KEY}"), KEY.to_owned()] {
        let error = AnyTable::parse(&format!("0 8 integrity 7:0 0 32 J 1 {forgotten}")).unwrap_err().to_string();
        assert!(error.contains("word 9") && !error.contains("0001"), "{error}");
    }
    let commented = format!("# no integrity\n#a: no integrity\n0 8 crypt aes-xts-plain64 {KEY}{KEY} 0 7:0 0");
    assert!(matches!(AnyTable::parse(&commented), Ok(AnyTable::Lines(_))));
    let alone = format!("0 8 crypt capi:gcm(aes)-random {KEY} 0 7:0 0 1 integrity:28:aead");
    assert!(AnyTable::parse(&alone).is_err());
    let xts = format!("0 8 crypt aes-xts-plain64 {KEY} 0 7:0 0 1 integrity:16:none");
    assert!(AnyTable::parse(&xts).unwrap_err().to_string().contains("a line of the target integrity before"));
}
