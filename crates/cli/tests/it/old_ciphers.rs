//! Legacy ciphers with blocks of 8 bytes: read-only, and not for new volumes.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, FAST, FAST1, call, call_with, noise};
use inlock_tests::nbd::{Connection, Mode};
use std::path::Path;
use std::time::Duration;

/// Specifications, and key sizes in bits.
const OLD: [(&str, &str); 3] =
    [("des3_ede-cbc-plain64", "192"), ("blowfish-cbc-plain64", "256"), ("cast5-cbc-plain64", "128")];

#[test]
fn legacy_cipher_is_read_only() {
    let dir = Dir::new();
    let image = dir.file("image", &noise(64 << 10));
    let input = dir.file("input", &[0; 4096]);
    for (cipher, bits) in OLD {
        let key = dir.file("key", &noise(1 << 10)[..bits.parse::<usize>().unwrap() / 8]);
        let plain = ["--type", "plain", "-c", cipher, "-s", bits, "-d", &key];
        let content = call(["export", &image, "-"].iter().chain(&plain));
        assert!(content.works().out.len() == 64 << 10 && content.out != noise(64 << 10), "{cipher}: it was decrypted");

        let run = Run::new();
        let server = Named::start(&run, "old", &[&[image.as_str()], plain.as_slice()].concat());
        let mut client =
            Connection::open(Path::new(&server.socket), Duration::from_secs(60), Mode::Simple).expect("as it should");
        assert!(client.read(0, 64 << 10).unwrap() == content.out, "{cipher}");
        assert!(client.write(0, &[0; 512]).unwrap_err().to_string().ends_with("error 1"), "{cipher}: EPERM");
        assert_eq!(run.json(&["status", "old", "--json"])["read_only"], true);
        run.call(&["close", "old"]).works();
        let (status, warning) = server.ended();
        assert_eq!(status, Some(0));
        let words = ["warning: ", cipher, " is a legacy cipher; opened read-only\n"];
        assert!(words.iter().all(|word| warning.contains(word)), "{warning}");

        call(["import", &input, &image].iter().chain(&plain))
            .fails(1, &["is read-only.", "export it, and import the result"]);
        assert!(std::fs::read(&image).unwrap() == noise(64 << 10), "{cipher}: something was written");
    }
}

#[test]
fn format_with_legacy_cipher_is_refused() {
    let dir = Dir::new();
    for (cipher, bits) in OLD {
        for cost in [&FAST[..], &FAST1] {
            let image = dir.image("image", 24);
            let format = ["luksFormat", "-q", &image, "-c", cipher, "-s", bits];
            call_with(b"secret", format.iter().chain(cost)).fails(1, &["8 bytes are too short for a new volume"]);
            assert!(std::fs::read(&image).unwrap() == vec![0; 24 << 20], "{cipher}: something was written");
        }
    }
}
