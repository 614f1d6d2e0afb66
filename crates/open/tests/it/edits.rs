//! Changes of a header, and what another program does to it meanwhile.

use crate::steps::Curious;
use crate::tokens::make_tokens;
use crate::{Image, PASSPHRASE, Program, silent};
use inlock_open::edit::{Checked, OpenedKeyslot};
use inlock_open::header::Header;
use inlock_open::host::Context;
use inlock_open::secret::Ask;
use inlock_open::settings::Settings;
use inlock_open::source::{HeaderOptions, KeyOptions, Luks};
use inlock_open::{ErrorKind, KeySource};
use inlock_volume::{HeaderPolicy, KdfKind, KdfRule, NewKeyslot, Secret, Volume};

fn options(image: &Image, policy: &HeaderPolicy) -> HeaderOptions {
    HeaderOptions { image: image.path(), header: None, luks: Luks::Any, policy: policy.clone() }
}

fn opened(image: &Image, header: &Header) -> OpenedKeyslot {
    let (context, path) = (silent(), image.path());
    let ask = Ask { context: &context, device: &path, prompt: None, verify: false };
    header.open_keyslot(&KeyOptions::new(KeySource::bytes(PASSPHRASE)), ask).expect("the keyslot")
}

fn keyslot(iterations: u32) -> NewKeyslot {
    let mut new = NewKeyslot::new(KdfKind::Pbkdf2);
    new.kdf.forced_iterations = Some(iterations);
    new
}

#[test]
fn header_that_another_program_changed_must_still_comply() {
    let image = Image::new();
    let mut policy = HeaderPolicy::default();
    let mut rule = KdfRule::any(KdfKind::Pbkdf2);
    rule.iterations = 1000..=2000;
    policy.kdfs = vec![rule];
    let load = |policy: &HeaderPolicy| Header::load_to_edit(&silent(), &options(&image, policy)).expect("a header");
    for (iterations, refused) in [(2000, None), (2001, Some(ErrorKind::AgainstPolicy))] {
        let mut header = load(&policy);
        let key = opened(&image, &header).key;
        let mut other = load(&HeaderPolicy::default());
        other
            .edit(&[], |volume, device| {
                volume.add_keyslot(device, &key, &Secret::new("other".into()), &keyslot(iterations))
            })
            .expect("another keyslot");
        let mut has_changed = false;
        let edited = header.edit(&[], |volume, device| {
            has_changed = true;
            volume.set_uuid(device, None)
        });
        assert_eq!((edited.map_err(|error| error.kind()).err(), has_changed), (refused, refused.is_none()));
    }
}

#[test]
fn part_that_was_checked_must_be_there_under_the_lock() {
    let cases = [
        (Checked::Token(0), Checked::Token(0)),
        (Checked::Token(0), Checked::Token(1)),
        (Checked::Token(0), Checked::Keyslot(0)),
        (Checked::Keyslot(0), Checked::Token(0)),
        (Checked::Keyslot(0), Checked::Keyslot(0)),
    ];
    for (checked, changed) in cases {
        let image = Image::new();
        make_tokens(&image, "", 2);
        let load = || Header::load_to_edit(&silent(), &options(&image, &HeaderPolicy::default())).expect("a header");
        let mut header = load();
        let key = opened(&image, &header).key;
        let by_another = load().edit(&[], |volume, device| match (volume, changed) {
            (Volume::Luks2(luks2), Checked::Token(number)) => {
                luks2.replace_token(device, number, r#"{"type":"y","keyslots":[]}"#)
            }
            (volume, Checked::Keyslot(number)) => {
                volume.change_keyslot(device, number, &key, &Secret::new("other".into()), &keyslot(1000)).map(drop)
            }
            _ => panic!("a LUKS2 volume"),
        });
        by_another.expect("it is changed");
        let edited = header.edit(&[checked], |_, _| Ok(())).map_err(|error| error.kind()).err();
        let is_same = format!("{checked:?}") == format!("{changed:?}");
        assert_eq!(edited, is_same.then_some(ErrorKind::HeaderChanged), "{checked:?}, {changed:?}");
    }
}

#[test]
fn keyslot_that_a_token_opens_is_told() {
    let image = Image::new();
    let script = format!("#!/bin/sh\nprintf {PASSPHRASE}\n");
    let helpers = make_tokens(&image, &script, 1);
    let program = Curious::default();
    let (context, path) = (program.context(), image.path());
    let header = Header::load(&context, &options(&image, &HeaderPolicy::default()), false).expect("a header");
    let ask = Ask { context: &context, device: &path, prompt: None, verify: false };
    let mut key = KeyOptions::new(KeySource::Ask);
    key.tokens.helpers = Some(helpers);
    for by_token in [true, false] {
        program.heard();
        key.tokens.kind = by_token.then(|| "x".to_owned());
        assert_eq!(header.open_keyslot(&key, ask).expect("it opens").number, 0);
        let heard = program.heard();
        assert_eq!(heard.iter().filter(|text| *text == "Detail: Key slot 0 unlocked.").count(), 1, "{heard:?}");
        assert_eq!(heard.contains(&"asked".to_owned()), !by_token, "{heard:?}");
    }
}

#[test]
fn keyslot_without_room_for_a_second_one_is_overwritten_with_a_warning() {
    // Key material of 64 bytes, 4000 times, in blocks of 4096 bytes.
    const AREA: u64 = 63 * 4096;
    for (areas, warnings) in [(1, 1), (2, 0)] {
        let image = Image::with(|options| options.keyslots_len = Some(areas * AREA));
        let program = Curious::default();
        let mut header =
            Header::load_to_edit(&program.context(), &options(&image, &HeaderPolicy::default())).expect("a header");
        let key = opened(&image, &header).key;
        let number = header.change_keyslot(0, &key, &Secret::new("new".into()), keyslot(1000)).expect("it is changed");
        assert_eq!(number, 0);
        let heard = program.heard();
        let wanted = "Warning: there is no space for a second keyslot; keyslot 0 is overwritten, and a power cut \
                      destroys it";
        assert_eq!(heard.iter().filter(|text| *text == wanted).count(), warnings, "{heard:?}");
    }
}

#[test]
fn user_who_mistypes_a_passphrase_is_told_and_asked_again() {
    let image = Image::new();
    let (program, path) = (Program::default(), image.path());
    let context = Context::new(program.clone(), Settings::default());
    let header = Header::load(&context, &options(&image, &HeaderPolicy::default()), false).expect("a header");
    let ask = Ask { context: &context, device: &path, prompt: None, verify: false };
    header.open_keyslot(&KeyOptions::new(KeySource::Ask), ask).expect("the keyslot");
    let prompt = format!("Enter passphrase for {}: ", path.display());
    let said = ["Notice: No key available with this passphrase.", "Detail: Key slot 0 unlocked."];
    assert_eq!(program.heard(), [&*prompt, said[0], &*prompt, said[1]]);
}
