//! `benchmark`: the lines that scripts parse.

use crate::harness::call;

/// Words of the line that starts with `start`.
fn line<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let found = text.lines().find(|line| line.trim_start().starts_with(start));
    found.unwrap_or_else(|| panic!("no line {start:?} in {text}")).split_whitespace().collect()
}

#[test]
fn benchmark_lines_are_those_of_cryptsetup() {
    let ciphers = call(["benchmark", "--cipher", "aes-xts-plain64", "--key-size", "512"]);
    let text = ciphers.works().text();
    assert!(text.starts_with("# Tests are approximate using memory only (no storage IO).\n"), "{text}");
    assert!(text.contains("\n#     Algorithm |       Key |      Encryption |      Decryption\n"), "{text}");
    let words = line(text, "aes-xts");
    assert_eq!((words[1], words[3], words[5], words.len()), ("512b", "MiB/s", "MiB/s", 6), "{text}");
    assert!(words[2].parse::<f64>().unwrap() > 0.0 && words[4].parse::<f64>().unwrap() > 0.0);

    // The IV may be left out.
    for (cipher, name) in [("serpent-cbc", "serpent-cbc"), ("capi:xts(aes)", "aes-xts")] {
        assert_eq!(line(call(["benchmark", "-c", cipher]).works().text(), name)[3], "MiB/s");
    }
    call(["benchmark", "-c", "aes-nonsense"]).fails(1, &["unsupported mode 'nonsense'"]);

    let pbkdf2 = call(["benchmark", "--hash", "sha256"]);
    let words = line(pbkdf2.works().text(), "PBKDF2-sha256");
    assert!(words[1].parse::<u64>().unwrap() > 0);
    assert_eq!(words[2..].join(" "), "iterations per second for 256-bit key");

    let argon2 = call(["benchmark", "--pbkdf", "argon2id", "--pbkdf-memory", "64", "--pbkdf-force-iterations", "4"]);
    let words = line(argon2.works().text(), "argon2id");
    assert_eq!(words[1..5].join(" "), "4 iterations, 64 memory,");
}
