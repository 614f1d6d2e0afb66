//! Tables of devices with a hash tree: printed as they were read, and wrong words refused by their number.

use inlock_cipher::Hash;
use inlock_volume::table::{AnyTable, FecArguments, OnFault, ShowKeys, VerityLine, VerityTable};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const ROOT: &str = "a11d8eb43dc8a3aa3bb4ab3dd2a6ab1d1a4d7fc8b0ee4d8d1f0f6e6f0d7a3c55";

fn parse(text: &str) -> VerityTable {
    match AnyTable::parse(&text.replace("KEY", KEY).replace("ROOT", ROOT)) {
        Ok(AnyTable::Verity(table)) => *table,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn printed_verity_table_reads_back_and_hides_every_key() {
    let key = "9".repeat(128);
    for text in [
        "0 8192 verity 1 7:0 7:1 4096 4096 1024 1 sha256 ROOT 00ff\n",
        "0 8 verity 0 /dev/my\\ disk /dev/my\\ disk 512 524288 9 3 sha256 ROOT -\n",
        "0 8192 verity 1 7:0 7:1 4096 4096 1024 1 sha256 ROOT - 1 ignore_corruption\n",
        "0 8192 verity 1 7:0 7:1 4096 4096 1024 1 sha256 ROOT - 15 panic_on_corruption restart_on_error \
         ignore_zero_blocks check_at_most_once try_verify_in_tasklet use_fec_from_device 7:2 fec_blocks \
         1034 fec_start 17 fec_roots 24 root_hash_sig_key_desc my\\ key\n",
        "plain: 0 8192 crypt aes-xts-plain64 @ 0 /dev/x 0\n\
         root: 0 4096 verity 1 /dev/mapper/plain /dev/mapper/plain 4096 4096 512 513 sha256 ROOT -\n",
        "a: 0 8 linear 7:0 0\na: 8 8184 crypt aes-xts-plain64 @ 0 7:1 0\nb: 0 64 zero\n\
         root: 0 4096 verity 1 /dev/mapper/a /dev/mapper/b 4096 4096 512 0 sha256 ROOT -\n",
        "root: 0 4096 verity 1 7:0 7:1 4096 4096 512 0 sha256 ROOT -\n\
         top: 0 2048 crypt aes-xts-plain64 @ 0 /dev/mapper/root 0\ntop: 2048 8 zero\n",
        "a: 0 4096 crypt aes-xts-plain64 @ 8 7:0 0 1 sector_size:4096\n\
         root: 0 4096 verity 1 /dev/mapper/a 7:1 4096 4096 512 0 sha256 ROOT -\n\
         top: 0 4096 crypt aes-xts-plain64 @ 0 /dev/mapper/root 0\n",
    ] {
        let text = text.replace("ROOT", ROOT);
        let table = parse(&text.replace('@', &key));
        assert_eq!(*table.to_text(ShowKeys::Yes), text.replace('@', &key));
        assert_eq!(*table.to_text(ShowKeys::No), text.replace('@', &"0".repeat(128)));
        assert_eq!(table.has_key(), text.contains('@'), "{text}");
    }
}

#[test]
fn verity_table_has_its_fields_and_devices() {
    let table = parse(
        "0 16 verity 0 7:0 7:1 512 1024 99 5 sha1 000102030405060708090a0b0c0d0e0f10111213 - 11 ignore_zero_blocks \
         restart_on_corruption fec_start 3 fec_blocks 99 fec_roots 2 use_fec_from_device 7:1 panic_on_error",
    );
    let line = &table.verity;
    assert_eq!((table.sectors, line.hash_type, line.data_block_size, line.hash_block_size), (16, 0, 512, 1024));
    assert_eq!((line.data_blocks, line.hash_start, line.hash), (99, 5, Hash::Sha1));
    assert_eq!((line.root.len(), line.root[19], line.salt.len()), (20, 19, 0));
    assert_eq!((line.options.on_corruption, line.options.on_error), (Some(OnFault::Restart), Some(OnFault::Panic)));
    assert_eq!(line.options.fec, Some(FecArguments::new("7:1", 2, 99, 3)));
    assert_eq!(table.devices(), ["7:0", "7:1"]);
    let stacked = "p: 0 8192 crypt aes-xts-plain64 KEYKEY 0 7:3 0\n\
                   0 8192 verity 1 /dev/mapper/p 7:4 4096 4096 1024 1 sha256 ROOT -";
    assert_eq!(parse(stacked).devices(), ["7:3", "7:4"]);
    assert_eq!(parse(stacked).below_named("/dev/mapper/p").unwrap().table.sectors(), 8192);
    assert!(parse(stacked).below_named("p").is_none());
    // The kernel takes blocks of a page at most.
    let mut line = VerityLine::new("7:0", "7:1");
    assert!(line.has_blocks_of_the_kernel());
    line.data_block_size = 8192;
    assert!(!line.has_blocks_of_the_kernel());
    let commented = "# 0 8 verity\n#a: 0 8 verity\n0 8 zero";
    assert!(matches!(AnyTable::parse(commented), Ok(AnyTable::Lines(_))));
}

/// A table, and the place of the first wrong word with the beginning of the message.
const WRONG: &[(&str, (usize, usize), &str)] = &[
    ("1 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -", (1, 1), "expected 0"),
    ("0 0 verity 1 a b 4096 4096 1 1 sha256 ROOT -", (1, 2), "expected a number above zero"),
    ("0 99999999999999999 verity 1 a b 4096 4096 1 1 sha256 ROOT -", (1, 2), "expected a smaller number"),
    ("0 8 verity", (1, 4), "missing"),
    ("0 8 verity 2 a b 4096 4096 1 1 sha256 ROOT -", (1, 4), "expected 0 or 1"),
    ("0 8 verity x a b 4096 4096 1 1 sha256 ROOT -", (1, 4), "expected 0 or 1"),
    ("0 8 verity 1", (1, 5), "missing"),
    ("0 8 verity 1 a", (1, 6), "missing"),
    ("0 8 verity 1 a b 4095 4096 1 1 sha256 ROOT -", (1, 7), "expected the bytes of a block, a power of two"),
    ("0 8 verity 1 a b 256 4096 1 1 sha256 ROOT -", (1, 7), "expected the bytes of a block, a power of two"),
    ("0 8 verity 1 a b 1048576 4096 1 1 sha256 ROOT -", (1, 7), "expected the bytes of a block, a power of two"),
    ("0 8 verity 1 a b 4096 0 1 1 sha256 ROOT -", (1, 8), "expected the bytes of a block, a power of two"),
    ("0 9 verity 1 a b 4096 4096 1 1 sha256 ROOT -", (1, 9), "expected a number of data blocks"),
    ("0 8 verity 1 a b 4096 4096 0 1 sha256 ROOT -", (1, 9), "expected a number of data blocks"),
    ("0 8 verity 1 a b 4096 4096 2305843009213693953 1 sha256 ROOT -", (1, 9), "expected a number of data blocks"),
    ("0 8 verity 1 a b 4096 4096 1 2305843009213693953 sha256 ROOT -", (1, 10), "expected the first block"),
    ("0 8 verity 1 a b 4096 4096 1 -1 sha256 ROOT -", (1, 10), "expected the first block"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha255 ROOT -", (1, 11), "expected a supported hash"),
    ("0 8 verity 1 a b 4096 4096 1 1 ripemd160 ROOT -", (1, 11), "expected a supported hash"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha512 ROOT -", (1, 12), "expected the root hash, 128"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT00 -", (1, 12), "expected the root hash, 64"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 - -", (1, 12), "expected the root hash"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT", (1, 13), "missing"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT 0", (1, 13), "expected a salt"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT x0", (1, 13), "expected a salt"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 16", (1, 14), "expected the number of words that follow, 0 to 15"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - x", (1, 14), "expected the number of words"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 1", (1, 14), "expected 0, the number"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 0 ignore_corruption", (1, 14), "expected 1, the number"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 1 ignore", (1, 15), "expected one of ignore_corruption"),
    (
        "0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 2 ignore_corruption panic_on_corruption",
        (1, 16),
        "expected at most",
    ),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 2 panic_on_error restart_on_error", (1, 16), "expected at most"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 2 fec_roots 1", (1, 16), "expected 2 to 24"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 2 fec_roots 25", (1, 16), "expected 2 to 24"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 2 fec_start x", (1, 16), "expected a whole number of blocks"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 2 fec_roots 2", (1, 16), "expected use_fec_from_device"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 1 use_fec_from_device", (1, 16), "missing"),
    ("0 8 zero\n0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -", (1, 1), "expected NAME: before the line"),
    ("x: 0 8 zero\n0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -", (1, 1), "expected NAME: before the line"),
    (
        "x: 0 8 zero\nx: 8 8 zero\ny: 0 8 zero\nx: 0 8 zero\n0 8 verity 1 /dev/mapper/x /dev/mapper/y 4096 4096 1 1 \
         sha256 ROOT -",
        (4, 1),
        "expected NAME: before the line",
    ),
    (
        "x: 0 8 zero\n\ny: 0 9 nothing\n0 8 verity 1 /dev/mapper/x /dev/mapper/y 4096 4096 1 1 sha256 ROOT -",
        (3, 3),
        "expected crypt, linear",
    ),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -\n0 8 verity 1 a b", (2, 3), "expected one line of the target"),
    ("r: 0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -\nt: 0 8 linear 7:0 0", (2, 4), "expected /dev/mapper/NAME"),
    (
        "r: 0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -\nt: 0 8 linear /dev/mapper/r 0\nt: 8 8 crypt aes-xts-plain64 \
         KEYKEY 0 /dev/mapper/t 0",
        (3, 7),
        "expected /dev/mapper/NAME",
    ),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -\nt: 0 8 linear /dev/mapper/ 0", (2, 4), "expected /dev/mapper/NAME"),
    (
        "r: 0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -\nt: 0 8 linear /dev/mapper/r 0\nu: 8 8 zero",
        (3, 1),
        "expected one device on that of verity",
    ),
    ("r: 0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT -\nt: 8 8 linear /dev/mapper/r 0", (2, 1), "expected 0, the end"),
    ("0 8 verity 1 a b 4096 4096 1 1 sha256 ROOT - 0 x", (1, 14), "expected 1, the number"),
];

#[test]
fn wrong_verity_table_is_refused_by_its_wrong_word() {
    for (text, place, message) in WRONG {
        let error = AnyTable::parse(&text.replace("KEY", KEY).replace("ROOT", ROOT)).unwrap_err();
        assert_eq!(error.position(), Some(*place), "{text}: {error}");
        assert!(error.to_string().contains(&format!(": {message}")), "{text}: {error}");
        assert!(!error.to_string().contains("1e1f"), "{text}: {error}");
    }
    let long = format!("0 8 verity 1 a b 4096 4096 1 1 sha256 {ROOT} {}", "00".repeat(257));
    assert_eq!(AnyTable::parse(&long).unwrap_err().position(), Some((1, 13)));
    // The limit of keys is that of all devices together.
    let lines = |name: &str| -> String {
        (0..20).map(|at| format!("{name}: {} 8 crypt aes:64-cbc-lmk {} 0 7:0 0\n", 8 * at, KEY.repeat(64))).collect()
    };
    let both = |below: &str| {
        let verity = format!("r: 0 8 verity 1 /dev/mapper/a 7:1 4096 4096 1 1 sha256 {ROOT} -\n");
        AnyTable::parse(&format!("{below}{verity}{}", lines("t").replace("7:0", "/dev/mapper/r")))
    };
    assert!(both("a: 0 8 zero\n").is_ok());
    assert!(both(&lines("a")).unwrap_err().to_string().contains("2048 keys"));
    println!("COUNT verity_tables_refused {}", WRONG.len() + 2);
}
