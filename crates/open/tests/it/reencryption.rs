//! Volumes whose re-encryption was interrupted.

use crate::export::Export;
use crate::steps::Curious;
use crate::{Image, PASSPHRASE, opened, silent};
use inlock_engine::Errno;
use inlock_open::reencryption::{NewParameters, Offline, ZoneProtection, is_hot};
use inlock_open::secret::Ask;
use inlock_open::source::{FreshnessOptions, HeaderOptions, KeyOptions, Luks, NoJournal};
use inlock_open::{ErrorKind, KeySource, OpenOptions, Result, open};
use inlock_testing::{Call, Verdict};
use inlock_volume::luks2::reencryption::ReencryptionMode;
use inlock_volume::{Hash, HeaderPolicy, KdfKind, NewKeyslot, VolumeKey};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// First byte of the data.
const DATA: u64 = 16 << 20;
/// Longest zone.
const ZONE: u64 = 64 << 10;

/// Begins a re-encryption, and goes on with it for one zone.
fn begin(image: &Path, protection: ZoneProtection) -> Result<bool> {
    reencrypt(image, |new| new.protection = protection, |done| done > 0)
}

/// Begins a re-encryption, and goes on with it until it is stopped. Returns whether it has reached its end.
fn reencrypt(image: &Path, change: impl FnOnce(&mut NewParameters), is_stopped: impl Fn(u64) -> bool) -> Result<bool> {
    let (context, policy) = (silent(), HeaderPolicy::default());
    let at = HeaderOptions { image: image.to_owned(), header: None, luks: Luks::Two, policy };
    let mut offline = Offline::open(&context, &at)?;
    let ask = Ask { context: &context, device: image, prompt: None, verify: false };
    let key = offline.header().open_keyslot(&KeyOptions::new(KeySource::bytes(PASSPHRASE)), ask)?;
    let mut keyslot = NewKeyslot::new(KdfKind::Pbkdf2);
    keyslot.kdf.forced_iterations = Some(1000);
    let mut new = NewParameters {
        mode: ReencryptionMode::Reencrypt,
        cipher: None,
        key_len: None,
        unit: None,
        keeps_key: false,
        key: None,
        keyslot,
        other_keyslots: Vec::new(),
        hash: Hash::Sha256,
        protection: ZoneProtection::Journal,
        data_len: None,
        longest_moved: None,
    };
    change(&mut new);
    offline.begin(&new, &[key])?;
    offline.run(Some(ZONE), false, &mut |done, _| match is_stopped(done) {
        false => ControlFlow::Continue(()),
        true => ControlFlow::Break(()),
    })
}

#[test]
fn volume_in_reencryption_has_neither_a_wipe_to_resume_nor_freshness() {
    let image = Image::new();
    assert!(!begin(&image.path(), ZoneProtection::Journal).expect("it begins"));
    let program = Curious::default();
    let options = || OpenOptions::luks(image.path(), KeySource::Ask);
    let mut wipe = options();
    wipe.no_journal = Some(NoJournal::ResumeWipe);
    let mut fresh = options();
    fresh.freshness = Some(FreshnessOptions { file: image.0.path().join("fresh"), accept: true, tags: false });
    for options in [wipe, fresh] {
        let error = open(&program.context(), &options, true, None).map(drop).expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::NeedsIntegrity, "{error}");
        assert!(!program.heard().contains(&"asked".to_owned()));
    }
    let mut with_option = options();
    with_option.no_journal = Some(NoJournal::Option);
    opened(&program.context(), &with_option, true).expect("it opens");
    assert_eq!(program.heard().iter().filter(|text| text.contains("has no effect")).count(), 1);
}

#[test]
fn both_keys_of_a_volume_in_reencryption_are_known() {
    let image = Image::new();
    assert!(!begin(&image.path(), ZoneProtection::Journal).expect("it begins"));
    let options = OpenOptions::luks(image.path(), KeySource::bytes(PASSPHRASE));
    let known = || open(&silent(), &options, false, None).expect("it opens").info;
    let (info, again) = (known(), known());
    // What is new, and what is old.
    assert_eq!(info.segments.len(), 2);
    let fingerprint = info.check.expect("a check").fingerprint().expect("a hash");
    assert!(fingerprint.is_of(&again.check.expect("a check")));
}

#[test]
fn volume_whose_zone_cannot_be_recovered_is_not_opened() {
    let fails = Arc::new(AtomicBool::new(true));
    for (protection, is_lost) in [(ZoneProtection::None, true), (ZoneProtection::Journal, false)] {
        fails.store(true, Ordering::SeqCst);
        let export = Export::new(std::fs::read(Image::new().path()).expect("an image"), {
            let fails = Arc::clone(&fails);
            move |call| match call {
                Call::Write { offset, .. } if offset >= DATA && fails.load(Ordering::SeqCst) => {
                    Verdict::Fail(Errno::IO)
                }
                _ => Verdict::Pass,
            }
        });
        let options = OpenOptions::luks(export.uri(), KeySource::bytes(PASSPHRASE));
        let kind = |writing| opened(&silent(), &options, writing).map(drop).map_err(|error| error.kind());
        begin(&export.uri(), protection).expect_err("the zone is not written");
        let at = HeaderOptions { image: export.uri(), header: None, luks: Luks::Two, policy: HeaderPolicy::default() };
        let header = inlock_open::header::Header::load(&silent(), &at, false).expect("a header");
        assert!(is_hot(&header).expect("a re-encryption"));
        assert_eq!(kind(false), Err(ErrorKind::ZoneHot));
        let expected = if is_lost { ErrorKind::ZoneLost } else { ErrorKind::Failed };
        assert_eq!(kind(true), Err(expected));
        fails.store(false, Ordering::SeqCst);
        assert_eq!(kind(true), if is_lost { Err(ErrorKind::ZoneLost) } else { Ok(()) });
    }
}

/// No new volume gets such a key, but a change of the cipher keeps it.
#[test]
fn key_with_equal_halves_is_told() {
    for (key, count) in [([1; 32], 1), (std::array::from_fn(|at| at as u8), 0)] {
        let program = Curious::default();
        let image = Image::with(|options| {
            options.cipher = "aes-cbc-plain64".parse().expect("a cipher");
            (options.key_len, options.volume_key) = (32, Some(VolumeKey::new(&key)));
        });
        let change = |new: &mut NewParameters| {
            (new.keeps_key, new.cipher) = (true, Some("aes-xts-plain64".parse().expect("a cipher")));
        };
        assert!(reencrypt(&image.path(), change, |_| false).expect("it ends"));
        opened(&program.context(), &OpenOptions::luks(image.path(), KeySource::Ask), false).expect("it opens");
        let warning = format!("Warning: {}: both halves of the XTS volume key are equal", image.path().display());
        assert_eq!(program.heard().iter().filter(|text| **text == warning).count(), count);
    }
}
