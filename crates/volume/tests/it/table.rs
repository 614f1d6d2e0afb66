//! Tables: the kernel's verdicts, positions of errors, and parsing of printed tables.

use crate::support::with;
use inlock_volume::table::{CryptOptions, ShowKeys, Table, TableFault, Target};
use inlock_volume::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use std::collections::BTreeMap;

/// Length of the device that `@DEV@` stands for, in sectors.
const SECTORS: u64 = 32768;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn line(rest: &str) -> String {
    format!("0 128 crypt aes-xts-plain64 {KEY}{KEY} {rest}")
}

/// Returns Inlock's verdict on a line: `accept`, `device` if it depends on the device, or the number of the wrong word
/// and its fault.
fn verdict(line: &str) -> String {
    let line = line.replace("@DEV@", "/dev/loop0").replace("@SECTORS@", &SECTORS.to_string());
    let line = line.replace("\\n", "\n").replace("\\t", "\t");
    match Table::parse(&line) {
        Ok(table) => {
            let reaches = |line: &inlock_volume::table::TableLine| {
                let segment = line.segment();
                line.device().is_some() && segment.data_offset.0 + line.sectors > SECTORS
            };
            let there = table.devices().iter().all(|device| *device == "/dev/loop0");
            if there && !table.lines().iter().any(reaches) { "accept" } else { "device" }.to_owned()
        }
        Err(error) => {
            let fault = format!("{:?}", error.fault());
            let name: String = fault.chars().take_while(|letter| letter.is_ascii_alphabetic()).collect();
            error.position().map_or(name.clone(), |(_, word)| format!("{word} {name}"))
        }
    }
}

/// A line of the file has the kernel's verdict, the table, Inlock's verdict, and the reason if they differ.
#[test]
fn lines_are_accepted_and_refused_as_by_the_kernel() {
    let file = include_str!("../../../../tests/table/verdicts.txt");
    let mut counts: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in file.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let fields: Vec<&str> = row.split('\t').collect();
        let [kernel, line, expected, why @ ..] = &fields[..] else { panic!("not a row: {row}") };
        let found = verdict(line);
        if found != *expected {
            wrong.push(format!("{kernel}\t{line}\t{found}"));
        }
        let differs = (*kernel == "accept") != (*expected == "accept");
        assert_eq!(differs, why.len() == 1, "a reason where they differ, and only there: {row}");
        *counts.entry((kernel, differs)).or_default() += 1;
    }
    assert!(wrong.is_empty(), "rows as they are now:\n{}", wrong.join("\n"));
    assert!(counts.values().sum::<usize>() >= 150, "{counts:?}");
    assert!(counts[&("accept", false)] >= 60 && counts[&("reject", false)] >= 60, "{counts:?}");
}

/// These lines are not in the file: the kernel's answer to an empty name depends on what else it loads at that moment.
#[test]
fn cipher_without_a_name_is_refused() {
    for cipher in ["capi:", "capi:-plain64"] {
        assert_eq!(verdict(&format!("0 @SECTORS@ crypt {cipher} {KEY} 0 @DEV@ 0")), "4 Cipher");
    }
}

#[test]
fn error_names_the_word_and_what_was_expected_but_never_the_key() {
    let text = |line: &str| Table::parse(line).unwrap_err().to_string();
    assert_eq!(
        text(&line("12x /dev/loop0 0")),
        "table line 1, word 6 (iv_offset) '12x': expected a whole number of 512-byte sectors"
    );
    assert_eq!(
        text(&line("4 /dev/loop0 0 1 sector_size:4096")),
        "table line 1, word 6 (iv_offset) '4': expected a multiple of 8, the sectors of sector_size"
    );
    assert_eq!(
        text(&line("0 /dev/loop0 0 2 allow_discards")),
        "table line 1, word 9 (number of options) '2': expected 1, the number of options that follow"
    );
    assert!(
        text(&line("0 /dev/loop0 0 1 discards"))
            .starts_with("table line 1, word 10 (option) 'discards': expected one of")
    );
    assert!(text("# two lines\n\n0 8 zero\n9 8 zero").starts_with("table line 4, word 1 (start) '9': expected 8,"));
    assert!(text("0 8 zero\n7 8 zero").contains("'7': expected 8"), "an overlap is refused as well");
    assert!(text("0 8 cache x").contains("expected crypt, linear, zero, error, integrity or verity"));
    assert_eq!(text(" \n#0 8 zero\n"), "the table has no line");
    for key in
        [format!("{KEY}5a5a5a5a"), "5a5a5a5a5".into(), format!("5a5a5a5a5a5a5a5ax{KEY}"), ":64:logon:5a5a5a5a".into()]
    {
        let error = text(&format!("0 128 crypt aes-xts-plain64 {key} 0 /dev/loop0 0"));
        assert!(error.starts_with("table line 1, word 5 (key): ") && !error.contains("5a5a5a5a"), "{error}");
    }
}

#[test]
fn printed_table_reads_back_and_hides_the_key() {
    let text = format!(
        "0 128 crypt aes-xts-plain64 {KEY}{KEY} 16 /dev/my\\ disk 2048 5 allow_discards no_read_workqueue \
         no_write_workqueue sector_size:4096 iv_large_sectors\n128 8 linear 7:0 0\n136 1 zero\n137 7 error\n"
    );
    let table = Table::parse(&text).unwrap();
    assert_eq!(*table.to_text(ShowKeys::Yes), text);
    assert_eq!(*table.to_text(ShowKeys::No), text.replace(&format!("{KEY}{KEY}"), &"0".repeat(128)));
    assert_eq!(table.devices(), ["/dev/my disk", "7:0"]);
    assert_eq!(table.sectors(), 144);
    assert_eq!(table.options().names(), ["allow_discards", "no_read_workqueue", "no_write_workqueue"]);
    let first = table.lines()[0].segment();
    assert_eq!((first.iv_offset, first.data_offset, first.large_iv), (Sector(16), Sector(2048), true));
    assert!(!format!("{table:?}").contains("1f"), "no key in a debug print");
    // Options are printed in the kernel's order, and their number only if there are any.
    let shuffled = line("0 7:0 0 3 IV_LARGE_SECTORS no_write_workqueue Allow_Discards");
    let table = Table::parse(&shuffled).unwrap();
    assert!(table.to_text(ShowKeys::Yes).ends_with(" 0 7:0 0 3 allow_discards no_write_workqueue iv_large_sectors\n"));
    let none = Table::parse(&line("0 7:0 0 0")).unwrap();
    assert!(none.to_text(ShowKeys::Yes).ends_with(" 0 7:0 0\n"));
    let null = "0 8 crypt cipher_null-ecb - 0 7:0 0\n";
    assert_eq!(*Table::parse(null).unwrap().to_text(ShowKeys::No), null);
}

#[test]
fn volume_has_a_line_and_inlock_says_what_the_kernel_would_refuse() {
    let segment = with!(
        Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(4096).unwrap());
        data_offset: Sector(32768),
    );
    let key = VolumeKey::new(&[0x17; 64]);
    let options = with!(CryptOptions::default(); allow_discards: true);
    let of = |segment| Table::of_volume(&[segment], &key, options, "/dev/sda1", (32768 + 1000) * 512);
    let text = format!(
        "0 1000 crypt aes-xts-plain64 {} 0 /dev/sda1 32768 2 allow_discards sector_size:4096\n",
        "17".repeat(64)
    );
    assert_eq!(*of(segment).to_text(ShowKeys::Yes), text);
    let refuses = |segment| match &of(segment).lines()[0].target {
        Target::Crypt(line) => line.kernel_refuses().map(|why| why.to_string()),
        _ => unreachable!("it is encrypted"),
    };
    assert_eq!(refuses(segment), None);
    let large = with!(segment; unit: DataUnitSize::MAX);
    assert_eq!(refuses(large).unwrap(), "sector_size:65536 is more than its 4096");
    assert_eq!(
        refuses(with!(segment; iv_offset: Sector(3))).unwrap(),
        "iv_offset 3 is not a multiple of the sector size"
    );
    let between = with!(segment; data_offset: Sector(32769));
    assert_eq!(refuses(between).unwrap(), "offset 32769 is not a multiple of the sector size");
    let long = format!("{}\n", line("0 7:0 0")).repeat(9000);
    assert_eq!(Table::parse(&long).unwrap_err().fault(), &TableFault::TooLong);
    let many: String = (0..1025).map(|start| format!("{start} 1 zero\n")).collect();
    assert_eq!(Table::parse(&many).unwrap_err().fault(), &TableFault::TooLong);
    // Each key takes mappings of its own, whose number is limited for a process.
    let keys = |lines: u64| -> String {
        let key = KEY.repeat(64);
        (0..lines).map(|start| format!("{start} 1 crypt aes:64-cbc-plain64 {key} 0 7:0 0\n")).collect()
    };
    assert_eq!(Table::parse(&keys(32)).unwrap().lines().len(), 32);
    assert_eq!(Table::parse(&keys(33)).unwrap_err().fault(), &TableFault::TooLong);
}
