//! Editing the header of a volume that is being served: keyslots change, the data and the server do not.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, FAST, FAST1};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::random::Random;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Costs without the format.
const COSTS1: &[&str] = FAST1.split_at(2).1;

/// Changes the header of `image`, or of `header`, in every way while clients write, and returns the passphrases.
fn edit(run: &Run, at: &[&str], costs: &[&str]) {
    let edit = |input: &[u8], words: &[&str], costs: &[&str]| {
        run.call_with(input, &[words, at, costs].concat()).works();
    };
    edit(b"secret\nadded\n", &["luksAddKey"], costs);
    edit(b"added\nchanged\n", &["luksChangeKey"], costs);
    edit(b"secret\nmore\n", &["luksAddKey"], costs);
    edit(b"secret", &["luksRemoveKey"], &[]);
}

#[test]
fn header_is_edited_while_volume_is_served() {
    let dir = Dir::new();
    let run = Run::new();
    for (image, costs) in [(dir.luks2("two"), &FAST[..]), (dir.luks1("one"), COSTS1)] {
        let server = Named::start(&run, "data", &[&image]);
        let stop = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut client = Connection::open(Path::new(&server.socket), PATIENCE, Mode::Simple).expect("a client");
                let mut random = Random::new(1);
                let mut model = client.read(0, 1 << 20).expect("readable");
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below((1 << 20) - 4096) as usize;
                    let bytes = random.bytes(4096);
                    client.write(at as u64, &bytes).expect("writable");
                    model[at..at + 4096].copy_from_slice(&bytes);
                }
                client.flush().expect("durable");
                model
            });
            edit(&run, &[&image], costs);
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("it ends")
        });
        // The key is wiped; the header of now gives it back.
        run.call(&["luksSuspend", "data"]).works();
        run.call_with(b"secret", &["luksResume", "data"]).fails(2, &["No key available with this passphrase."]);
        run.call_with(b"changed", &["luksResume", "data"]).works();
        run.call(&["close", "data"]).works();
        assert_eq!(server.ended().0, Some(0));
        for (passphrase, status) in [("changed", 0), ("more", 0), ("secret", 2), ("added", 2)] {
            let ended = run.call_with(passphrase.as_bytes(), &["open", "--test-passphrase", &image]);
            assert_eq!(ended.code, status, "{passphrase}: {ended:?}");
        }
        let exported = run.call_with(b"more", &["export", "--range", "0:1M", &image, "-"]);
        assert!(exported.code == 0 && exported.out == written, "the data have changed: {}", exported.err);
    }
}

#[test]
fn detached_header_is_edited_while_volume_is_served() {
    let dir = Dir::new();
    let run = Run::new();
    let (data, header) = (dir.image("data", 2), dir.name("header"));
    let format = [&["luksFormat", "-q", "--header", &header, &data][..], &FAST].concat();
    run.call_with(b"secret", &format).works();
    let server = Named::start(&run, "data", &["--header", &header, &data]);
    edit(&run, &["--header", &header, &data], &FAST);
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended().0, Some(0));
    run.call_with(b"more", &["open", "--test-passphrase", &header]).works();
}

#[test]
fn uuid_or_format_of_served_volume_is_refused() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let header = || std::fs::read(&image).expect("readable")[..32 << 10].to_vec();
    let server = Named::start(&run, "data", &[&image]);
    let before = header();
    let uuid = ["luksUUID", "-q", &image, "--uuid", "11111111-2222-3333-4444-555555555555"];
    run.call(&uuid).fails(5, &["is in use", "hint: "]);
    run.call_with(b"x", &[&["luksFormat", "-q", &image][..], &FAST].concat()).fails(5, &["is in use"]);
    assert!(header() == before, "the header has changed");
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended().0, Some(0));
    run.call(&uuid).works();
    assert_eq!(run.call(&["luksUUID", &image]).text(), "11111111-2222-3333-4444-555555555555\n");
}

#[test]
fn persistent_flags_are_stored_in_header() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let server = Named::start(&run, "data", &[&image]);
    run.call(&["refresh", "data", "--allow-discards", "--perf-same_cpu_crypt", "--persistent"]).works();
    let dump = run.call(&["luksDump", &image]);
    assert!(dump.text().contains("allow-discards") && dump.text().contains("same-cpu-crypt"), "{dump:?}");
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended().0, Some(0));
    let server = Named::start(&run, "data", &[&image]);
    assert_eq!(run.json(&["status", "data", "--json"])["allow_discards"], true);
    // Flags that are given replace those of the header, also in the process of the volume.
    run.call(&["refresh", "data", "--perf-submit_from_crypt_cpus", "--persistent"]).works();
    run.call(&["refresh", "data"]).works();
    let stored = || run.json(&["luksDump", &image, "--dump-json-metadata"])["config"]["flags"].clone();
    assert_eq!(stored(), serde_json::json!(["submit-from-crypt-cpus"]));
    let status = run.json(&["status", "data", "--json"]);
    assert_eq!(
        (&status["allow_discards"], &status["table_flags"][0]),
        (&false.into(), &"submit_from_crypt_cpus".into())
    );
    run.call(&["refresh", "data", "--persistent"]).works();
    assert!(stored().as_array().is_none_or(Vec::is_empty), "{}", stored());
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended().0, Some(0));

    let image = dir.luks1("one");
    let server = Named::start(&run, "data", &[&image]);
    run.call(&["refresh", "data", "--persistent"]).fails(1, &["not a valid LUKS2 device"]);
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended().0, Some(0));
}
