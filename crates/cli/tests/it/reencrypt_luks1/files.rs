//! Files of a LUKS1 re-encryption that are damaged, those of another one, or removed in part.

use super::*;

/// All devices that are encrypted have files of the same names.
#[test]
fn files_of_an_encryption_are_not_taken_for_those_of_another_device() {
    for kind in [Kind::Encrypt, Kind::EncryptDetached] {
        let turn = Interrupted::new(kind);
        stop(&turn);
        let other = turn.place.images.file("other", &std::fs::read(&turn.image).unwrap());
        let before = turn.place.all();
        let mut words = turn.words();
        words.pop();
        let ended = turn.place.reencrypt(&[&words[..], &[&other]].concat());
        ended.fails(1, &["is that of a device with another name", "in another directory"]);
        assert!(turn.place.all() == before, "{kind:?}");
        turn.go_on();
    }
}

/// Kills it at the first write to the device after the zone is kept, so that a part may be new.
#[test]
fn damaged_file_of_a_zone_that_is_being_written_is_refused() {
    if !have("strace") {
        return;
    }
    let turn = Interrupted::new(Kind::Reencrypt);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-P", &turn.image, "-e", "trace=pwrite64"]);
    command.args(["-e", "inject=pwrite64:signal=KILL:when=2"]).arg(inlock().get_program());
    command.args(["reencrypt", "-q"]).args(COSTS).args(turn.words());
    assert_ne!(turn.place.run_in(command, b"secret").code, 0);
    let zone = turn.place.files.path(&format!("LUKS-{UUID}.zone"));
    let whole = std::fs::read(&zone).unwrap();
    let mut flipped = whole.clone();
    flipped[5000] ^= 1;
    for damaged in [&[][..], &whole[..whole.len() / 2], &flipped, &vec![0; whole.len()]] {
        std::fs::write(&zone, damaged).unwrap();
        let before = turn.place.all();
        turn.place.reencrypt(&turn.words()).fails(1, &["zone cannot be used: it is damaged", "hint: "]);
        assert!(turn.place.all() == before, "{} bytes", damaged.len());
    }
    std::fs::write(&zone, whole).unwrap();
    turn.go_on();
}

#[test]
fn new_header_of_another_volume_is_refused() {
    let [turn, other] = [0, 1].map(|_| Interrupted::new(Kind::Reencrypt));
    let changed = "99999999-2222-4333-8444-555555555555";
    call(["luksUUID", "-q", &other.image, "--uuid", changed]).works();
    stop(&turn);
    stop(&other);
    let name = |place: &Place, uuid| place.files.path(&format!("LUKS-{uuid}.new"));
    let own = name(&turn.place, UUID);
    let kept = std::fs::read(&own).unwrap();
    std::fs::copy(name(&other.place, changed), &own).unwrap();
    turn.place.reencrypt(&turn.words()).fails(1, &["it has the header of another volume"]);
    std::fs::write(&own, kept).unwrap();
    turn.go_on();
}

#[test]
fn removal_of_the_files_that_was_killed_is_finished() {
    if !have("strace") {
        return;
    }
    for kind in [Kind::Reencrypt, Kind::Reduce, Kind::Encrypt] {
        let mut kills = 0;
        for when in 1.. {
            let turn = Interrupted::new(kind);
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null"]);
            command.args([
                "-e",
                "trace=unlink,unlinkat",
                "-e",
                &format!("inject=unlink,unlinkat:signal=KILL:when={when}"),
            ]);
            command.arg(inlock().get_program()).args(["reencrypt", "-q"]).args(COSTS).args(turn.words());
            if turn.place.run_in(command, b"secret").code == 0 {
                break;
            }
            // All of its files are gone.
            if turn.place.left().is_empty() {
                break;
            }
            kills += 1;
            let ended = turn.place.reencrypt(&turn.words());
            assert_eq!(ended.code, 0, "{kind:?} {when}: {}", ended.err);
            assert_eq!(turn.place.left(), [""; 0], "{kind:?} {when}");
            turn.check();
        }
        assert!(kills >= 3, "{kind:?}: {kills}");
    }
}
