//! `--freshness`: an older copy of an image is refused, and the newest one is not, also after a kill.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, Ended, FAST, call_with, noise};
use std::fs;
use std::path::Path;

const GCM: [&str; 6] = ["--cipher", "aes-gcm-random", "--integrity", "aead", "--sector-size", "512"];

/// A volume with a freshness file.
struct Fresh {
    dir: Dir,
    image: String,
    file: String,
    input: String,
}

impl Fresh {
    fn new(more: &[&str]) -> Self {
        let dir = Dir::new();
        let image = dir.image("image", 40);
        let words = ["luksFormat", "-q"].into_iter().chain(GCM).chain(FAST).chain([&*image]);
        call_with(b"secret", words).works();
        let (file, input) = (dir.name("record"), dir.file("input", &noise(300_000)));
        let fresh = Self { dir, image, file, input };
        fresh.import(&[&["--freshness-accept"], more].concat()).works();
        fresh
    }

    fn call(&self, words: &[&str], more: &[&str]) -> Ended {
        call_with(b"secret", [words, &["--freshness", &self.file], more].concat())
    }

    fn import(&self, more: &[&str]) -> Ended {
        self.call(&["import", &self.input, &self.image], more)
    }

    fn export(&self) -> Ended {
        self.call(&["export", "--range", "0:300000", &self.image, "-"], &[])
    }

    /// Starts a server on the volume.
    fn serve(&self, run: &Run, more: &[&str]) -> Named {
        Named::start(run, "data", &[&["--freshness", &self.file, &self.image], more].concat())
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.image).expect("as it should")
    }

    fn restore(&self, image: &[u8]) {
        fs::write(&self.image, image).expect("as it should");
    }

    /// Checks that the volume is refused with status 4 and these words, and that neither file is written to.
    #[track_caller]
    fn is_refused(&self, words: &str) {
        let before = (self.bytes(), fs::read(&self.file).expect("as it should"));
        self.import(&[]).fails(4, &[words, "--freshness-accept"]);
        self.export().fails(4, &[words, "--freshness-accept"]);
        assert!((self.bytes(), fs::read(&self.file).expect("as it should")) == before);
    }
}

#[test]
fn older_copy_is_refused_and_newest_is_opened() {
    let fresh = Fresh::new(&[]);
    let old = fresh.bytes();
    fresh.dir.file("input", &[7; 300_000]);
    fresh.import(&[]).works();
    let new = fresh.bytes();
    assert!(fresh.export().works().out == [7; 300_000]);
    fresh.restore(&old);
    fresh.is_refused("is older than");
    fresh.restore(&new);
    fresh.import(&[]).works();
    assert!(fresh.export().works().out == [7; 300_000]);
    // The user may accept an older copy, and then no other one.
    fresh.restore(&old);
    let accepted = fresh.import(&["--freshness-accept"]);
    assert!(accepted.code == 0 && accepted.err.contains("records; it is accepted nevertheless"), "{accepted:?}");
    fresh.export().works();
    fresh.restore(&new);
    fresh.is_refused("is older than");
    // An interrupted write of the newer record leaves the other one.
    assert_eq!(fresh.import(&["--freshness-accept"]).code, 0);
    let record = fs::read(&fresh.file).unwrap();
    for slot in [0, 4096] {
        let mut torn = record.clone();
        torn[slot + 100] ^= 1;
        fs::write(&fresh.file, &torn).unwrap();
        fresh.export().works();
    }
    fs::write(&fresh.file, record.iter().map(|byte| byte ^ u8::from(*byte == 5)).collect::<Vec<_>>()).unwrap();
}

#[test]
fn newest_state_of_killed_server_is_opened_and_an_earlier_one_is_refused() {
    let fresh = Fresh::new(&["--freshness-tags"]);
    let run = Run::new();
    let mut server = fresh.serve(&run, &[]);
    let mut client = server.connect();
    let mut copies = Vec::new();
    for value in 1..5 {
        client.write(0, &[value; 50_000]).unwrap();
        client.flush().unwrap();
        copies.push(fresh.bytes());
    }
    // In the journal, and not flushed.
    client.write(100_000, &noise(6000)).unwrap();
    server.kill();
    run.call(&["close", "data"]).works();
    let newest = fresh.bytes();
    let exported = fresh.export();
    assert_eq!(exported.code, 0, "{exported:?}");
    assert!(exported.out[..50_000] == [4; 50_000] && exported.err.contains("its tags are not compared"));
    for copy in &copies[..3] {
        fresh.restore(copy);
        fresh.is_refused("is older than");
    }
    // The last flush was recorded; what came after it was not acknowledged.
    fresh.restore(&copies[3]);
    assert_eq!(fresh.export().code, 0);
    fresh.restore(&newest);
    let server = fresh.serve(&run, &[]);
    server.connect().write(0, &[5; 512]).unwrap();
    run.call(&["close", "data"]).works();
    let (code, err) = server.ended();
    assert!(code == Some(0) && err.contains("its tags are not compared"), "{err}");
    // It was closed: the tags are compared, now and from now on.
    assert!(fresh.export().works().out[..512] == [5; 512]);
}

#[test]
fn unit_of_an_older_copy_is_refused_if_tags_are_recorded() {
    let fresh = Fresh::new(&["--freshness-tags", "--integrity-no-journal"]);
    let old = fresh.bytes();
    fresh.dir.file("input", &[9; 4096]);
    fresh.import(&["--integrity-no-journal"]).works();
    let new = fresh.bytes();
    assert!(fresh.export().works().out[..4096] == [9; 4096]);
    // All that the second import changed is eight units and their tags; the old ones fit each other.
    let changed: Vec<usize> = (0..old.len()).filter(|at| old[*at] != new[*at]).collect();
    assert!(changed.len() > 4200 && changed.len() < 4400, "{}", changed.len());
    fresh.restore(&old);
    let exported = call_with(b"secret", ["export", "--range", "0:300000", &fresh.image, "-"]);
    assert!(exported.works().out == noise(300_000), "without the file it is a whole volume");
    fresh.is_refused("is older than");
    // Without the journal nothing tells the state after a kill.
    fresh.restore(&new);
    let run = Run::new();
    let mut server = fresh.serve(&run, &["--integrity-no-journal"]);
    server.connect().write(0, &[1; 4096]).unwrap();
    server.kill();
    fresh.is_refused("was used without the journal and not closed");
    let accepted = fresh.import(&["--freshness-accept"]);
    assert!(accepted.code == 0 && accepted.err.contains("without a comparison"), "{accepted:?}");
    fresh.export().works();
}

#[test]
fn accepted_volume_keeps_its_digest_of_tags() {
    let fresh = Fresh::new(&["--freshness-tags"]);
    fresh.import(&["--freshness-accept"]).works();
    // Without the journal only the tags tell the state.
    fresh.import(&["--integrity-no-journal"]).works();
    // Also if the power fails before the first close.
    let run = Run::new();
    let mut server = fresh.serve(&run, &["--freshness-accept"]);
    server.kill();
    run.call(&["close", "data"]).works();
    let exported = fresh.export();
    assert!(exported.code == 0 && exported.err.contains("its tags are not compared"), "{exported:?}");
}

#[test]
fn volume_whose_server_cannot_start_is_recorded_as_closed() {
    let fresh = Fresh::new(&["--freshness-tags"]);
    let socket = format!("unix:{}", fresh.dir.name("missing/socket"));
    for more in [&[][..], &["--integrity-no-journal"]] {
        let served = fresh.call(&["serve", "--nbd", &socket, &fresh.image], more);
        assert!(served.code != 0 && served.err.contains("missing/socket"), "{served:?}");
        fresh.export().works();
    }
}

#[test]
fn changed_header_is_refused() {
    let fresh = Fresh::new(&[]);
    let old = fresh.bytes();
    let (old_key, new_key) = (fresh.dir.file("old", b"secret"), fresh.dir.file("new", b"another"));
    let words = ["luksAddKey", "-q", "--key-file", &old_key].into_iter().chain(FAST).chain([&*fresh.image, &new_key]);
    call_with(b"", words).works();
    fresh.is_refused("The header of device");
    fresh.import(&["--freshness-accept"]).works();
    fresh.export().works();
    // Old passphrases do not come back with an old header.
    let new = fresh.bytes();
    fresh.restore(&[&old[..1 << 20], &new[1 << 20..]].concat());
    fresh.is_refused("The header of device");
    // A header that is changed while the volume is open belongs to it.
    fresh.restore(&new);
    let run = Run::new();
    let server = fresh.serve(&run, &[]);
    let words = ["luksRemoveKey", "-q", "--key-file", &new_key, &fresh.image];
    call_with(b"", words).works();
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
    fresh.export().works();
}

#[test]
fn older_header_in_the_second_copy_is_refused() {
    let fresh = Fresh::new(&[]);
    let (old_key, new_key) = (fresh.dir.file("old", b"secret"), fresh.dir.file("new", b"another"));
    let words = ["luksAddKey", "-q", "--key-file", &old_key].into_iter().chain(FAST).chain([&*fresh.image, &new_key]);
    call_with(b"", words).works();
    let old = fresh.bytes();
    call_with(b"", ["luksRemoveKey", "-q", "--key-file", &new_key, &fresh.image]).works();
    fresh.import(&["--freshness-accept"]).works();
    let new = fresh.bytes();
    // The header from before the removal, with a higher sequence number than the newest one.
    fresh.restore(&old);
    for label in ["a", "b", "c", "d", "e", "f"] {
        call_with(b"", ["config", "-q", "--label", label, &fresh.image]).works();
    }
    let raised = fresh.bytes();
    fresh.restore(&[&new[..16384], &raised[16384..1 << 20], &new[1 << 20..]].concat());
    let export = ["export", "--range", "0:300000", &fresh.image, "-"];
    assert_eq!(call_with(b"another", export).code, 0, "without the file the removed passphrase opens it");
    let refused = call_with(b"another", [&export[..], &["--freshness", &fresh.file]].concat());
    assert!(refused.code == 4 && refused.err.contains("The header of device"), "{refused:?}");
}

#[test]
fn header_that_was_changed_before_a_kill_is_accepted() {
    let fresh = Fresh::new(&[]);
    let (old_key, new_key) = (fresh.dir.file("old", b"secret"), fresh.dir.file("new", b"another"));
    let run = Run::new();
    let mut server = fresh.serve(&run, &[]);
    let mut client = server.connect();
    let words = ["luksAddKey", "-q", "--key-file", &old_key].into_iter().chain(FAST).chain([&*fresh.image, &new_key]);
    call_with(b"", words).works();
    client.write(0, &[3; 5000]).unwrap();
    client.flush().unwrap();
    server.kill();
    run.call(&["close", "data"]).works();
    assert!(fresh.export().works().out[..5000] == [3; 5000]);
    call_with(b"another", ["export", "--range", "0:512", "--freshness", &fresh.file, &fresh.image, "-"]).works();
}

#[test]
fn wrong_files_and_options_are_explained() {
    let fresh = Fresh::new(&[]);
    let other = Fresh::new(&[]);
    let missing = fresh.dir.name("missing");
    let export = |file: &str, image: &str| call_with(b"secret", ["export", "--freshness", file, image, "-"]);
    export(&missing, &fresh.image).fails(4, &["does not exist", "--freshness-accept"]);
    assert!(!Path::new(&missing).exists());
    export(&other.file, &fresh.image).fails(4, &["has no record of the volume"]);
    let text = fresh.dir.file("text", &[b'x'; 9000]);
    let import = |more: &[&str]| call_with(b"secret", ["import", &fresh.input, &fresh.image].iter().chain(more));
    import(&["--freshness", &text, "--freshness-accept"]).fails(1, &["is not a freshness file"]);
    assert!(fs::read(&text).unwrap() == [b'x'; 9000]);
    // Files that are shorter than a record, or longer than both.
    for content in [vec![b'k'; 64], vec![0; 9000]] {
        let text = fresh.dir.file("text", &content);
        import(&["--freshness", &text, "--freshness-accept"]).fails(1, &["is not a freshness file"]);
        assert!(fs::read(&text).unwrap() == content);
    }
    let record = fs::read(&other.file).unwrap();
    import(&["--freshness", &other.file, "--freshness-accept"]).fails(1, &["has records of another volume"]);
    assert!(fs::read(&other.file).unwrap() == record);
    // A read-only open records nothing, so it cannot accept anything.
    fresh.call(&["export", &fresh.image, "-"], &["--freshness-accept"]).fails(1, &["needs a writable open"]);
    import(&["--freshness-accept"]).fails(1, &["Option --freshness-accept needs --freshness."]);
    import(&["--freshness-tags"]).fails(1, &["Option --freshness-tags needs --freshness."]);
    fresh.import(&["--integrity-no-journal"]).fails(1, &["needs --freshness-tags"]);
    let run = Run::new();
    let server = fresh.serve(&run, &[]);
    let taken = call_with(b"secret", ["import", &other.input, &other.image, "--freshness", &fresh.file]);
    taken.fails(5, &["is in use", "use a file for each volume"]);
    run.call(&["close", "data"]).works();
    drop(server);
    let plain = fresh.dir.luks2("luks2");
    export(&fresh.file, &plain).fails(1, &["needs a LUKS2 volume with integrity protection"]);
    call_with(b"", ["export", "--type", "raw", "--freshness", &fresh.file, &plain, "-"])
        .fails(1, &["Option --freshness is not allowed with type raw."]);
}
