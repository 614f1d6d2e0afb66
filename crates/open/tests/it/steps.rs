//! What is asked and told, and in which order with the checks of a policy.

use crate::export::Export;
use crate::{Image, PASSPHRASE, opened};
use inlock_engine::Access;
use inlock_engine::store::file::IoMode;
use inlock_open::host::{Context, Host, Level};
use inlock_open::keyring::KeyLink;
use inlock_open::open::ask_key;
use inlock_open::settings::Settings;
use inlock_open::source::{Luks, NoJournal, VolumeType};
use inlock_open::table::TableSource;
use inlock_open::{ErrorKind, KeySource, OpenOptions, Result, open};
use inlock_testing::Verdict;
use inlock_volume::plain::Plain;
use inlock_volume::{FileDevice, Secret, luks1};
use std::ffi::OsStr;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zeroize::Zeroizing;

/// A program that wants to hear everything.
#[derive(Clone, Default)]
pub(crate) struct Curious(Arc<Mutex<Vec<String>>>);

impl Curious {
    pub(crate) fn context(&self) -> Context {
        Context::new(self.clone(), Settings::default())
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }

    fn add(&self, text: String) {
        self.0.lock().expect("no panic").push(text);
    }
}

impl Host for Curious {
    fn tell(&self, level: Level, text: &dyn Display) {
        match level {
            Level::Metadata => self.add(format!("{level:?}: {}", &text.to_string()[..1])),
            _ => self.add(format!("{level:?}: {text}")),
        }
    }

    fn is_wanted(&self, _level: Level) -> bool {
        true
    }

    fn can_ask(&self) -> bool {
        true
    }

    fn ask(&self, _prompt: &str, _timeout: Option<Duration>) -> Result<Zeroizing<Vec<u8>>> {
        self.add("asked".to_owned());
        Ok(Zeroizing::new(PASSPHRASE.into()))
    }
}

#[test]
fn curious_program_is_told_each_step() {
    let program = Curious::default();
    let image = Image::new();
    let export = Export::new(std::fs::read(image.path()).expect("an image"), |_| Verdict::Pass);
    for path in [image.path(), export.uri()] {
        opened(&program.context(), &OpenOptions::luks(&path, KeySource::Ask), false).expect("it opens");
        let name = path.display().to_string();
        let lock = format!("Debug: Acquiring read lock for the header on {name}.");
        let mut heard = program.heard();
        for (at, rest) in [(2, ", UUID"), (4, " most ")] {
            heard[at] = heard[at].split(rest).next().expect("a part").to_owned();
        }
        let first = match path == image.path() {
            true => format!("Debug: Opening {name} (Read)."),
            false => format!("Debug: Connecting to {name} (Read)."),
        };
        let wanted = [
            first,
            lock.clone(),
            format!("Debug: LUKS2 header on {name} loaded"),
            "Metadata: {".to_owned(),
            "Notice: Unlocking takes at".to_owned(),
            "asked".to_owned(),
            lock,
            "Detail: Key slot 0 unlocked.".to_owned(),
        ];
        assert_eq!(heard, wanted);
    }
}

#[test]
fn wipe_of_a_volume_without_integrity_is_refused_before_a_key_is_asked_for() {
    let program = Curious::default();
    let image = Image::new();
    let plain = VolumeType::Plain(Plain::default());
    let luks = OpenOptions::luks(image.path(), KeySource::Ask);
    for mut options in [luks, OpenOptions::new(image.path(), plain, KeySource::Ask)] {
        options.no_journal = Some(NoJournal::ResumeWipe);
        let error = open(&program.context(), &options, false, None).map(drop).expect_err("it has none");
        assert_eq!(error.kind(), ErrorKind::NeedsIntegrity);
        assert!(!program.heard().contains(&"asked".to_owned()));
        options.no_journal = Some(NoJournal::Option);
        open(&program.context(), &options, false, None).map(drop).expect("it opens");
        assert_eq!(program.heard().iter().filter(|text| text.contains("has no effect")).count(), 1);
    }
}

#[test]
fn policy_refuses_before_a_device_is_used_or_a_key_is_asked_for() {
    let program = Curious::default();
    let image = Image::new();
    let raw = OpenOptions::new(image.path(), VolumeType::Raw, KeySource::Ask);
    let luks = || OpenOptions::luks(image.path(), KeySource::Ask);
    let plain = OpenOptions::new(image.path(), VolumeType::Plain(Plain::default()), KeySource::Ask);
    let table = |line: &str| {
        let table = TableSource::parse(OsStr::new(line)).expect("a table");
        OpenOptions::new("/nonexistent", VolumeType::Table(table), KeySource::Ask)
    };
    let digits = "ab".repeat(32);
    let verity = table(&format!("0 8 verity 1 /nonexistent /nonexistent2 4096 4096 1 1 sha256 {digits} -"));
    let integrity = table("0 8 integrity /nonexistent 0 4 D 1 internal_hash:crc32c");
    let linear = table("0 8 linear /nonexistent 0");
    let refuse = |what: &str, mut options: OpenOptions, run: &dyn Fn(&Context, &OpenOptions) -> Result<()>| {
        options.policy.required_ciphers = vec!["aes-cbc-essiv:sha256".parse().expect("a cipher")];
        let error = run(&program.context(), &options).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::AgainstPolicy, "{what}: {error}");
        assert!(!program.heard().contains(&"asked".to_owned()), "{what}");
    };
    let all = [
        ("raw", raw),
        ("plain", plain),
        ("luks", luks()),
        ("verity", verity),
        ("integrity", integrity),
        ("linear", linear),
    ];
    for (what, options) in all {
        refuse(what, options, &|context, options| open(context, options, false, None).map(drop));
    }
    refuse("ask", luks(), &|context, options| ask_key(context, options).map(drop));
    // Without the policy, both ask.
    let context = program.context();
    ask_key(&context, &luks()).expect("the key");
    let volume = open(&context, &luks(), false, None).expect("it opens");
    volume.into_device(IoMode::Sync, Access::default()).expect("a device");
    assert_eq!(program.heard().iter().filter(|text| *text == "asked").count(), 2);
}

#[test]
fn key_is_linked_for_luks2_alone() {
    // No key is added: the volumes are opened, and not used.
    let link = match KeyLink::parse("@u::inlock test") {
        Ok(link) => link,
        Err(error) => {
            println!("SKIPPED: no kernel keyring can be used here: {error}");
            return;
        }
    };
    let [one, two] = [Image::new(), Image::new()];
    let file = std::fs::File::options().read(true).write(true).open(one.path()).expect("the image");
    file.set_len(0).and_then(|()| file.set_len(4 << 20)).expect("room");
    let mut options = luks1::FormatOptions::default();
    options.kdf.forced_iterations = Some(1000);
    luks1::format(&FileDevice::new(file), options, &Secret::new(PASSPHRASE.into())).expect("a volume");
    for (image, refused) in [(one, Some(ErrorKind::KeyLinkNeedsLuks2)), (two, None)] {
        let program = Curious::default();
        let mut options = OpenOptions::luks(image.path(), KeySource::Ask);
        options.links = vec![link.clone()];
        let found = open(&program.context(), &options, false, None).map(drop);
        assert_eq!(found.map_err(|error| error.kind()).err(), refused);
        assert_eq!(program.heard().contains(&"asked".to_owned()), refused.is_none());
    }
}

#[test]
fn numbers_of_blocks_that_repeat_on_a_device_are_told() {
    let (one, other) = (Image::new(), Image::new());
    let crypt = |start: u32, iv: &str, number: u64, image: &Image| {
        let key = "ab".repeat(32);
        format!("{start} 8 crypt aes-cbc-{iv} {key} {number} {} {start}\n", image.path().display())
    };
    let behind = 1 << 32;
    let cases = [
        (crypt(0, "plain", 0, &one) + &crypt(8, "plain", behind, &one), vec![&one]),
        (crypt(0, "plain", 0, &one) + &crypt(8, "plain", behind - 8, &one), vec![]),
        (crypt(0, "plain64", 0, &one) + &crypt(8, "plain64", behind, &one), vec![]),
        (crypt(0, "plain", 0, &one) + &crypt(8, "plain", behind, &other), vec![]),
        (crypt(0, "plain", 0, &other) + "8 8 zero\n" + &crypt(16, "plain", behind, &other), vec![&other]),
    ];
    for (text, told) in cases {
        let program = Curious::default();
        let file = one.0.path().join("table");
        std::fs::write(&file, &text).expect("a file");
        let table = VolumeType::Table(TableSource::parse(file.as_os_str()).expect("a table"));
        let options = OpenOptions::new("/nonexistent", table, KeySource::Ask);
        open(&program.context(), &options, false, None).map(drop).expect("it opens");
        let heard: Vec<_> = program.heard().into_iter().filter(|heard| heard.contains("repeat in a volume")).collect();
        let named: Vec<_> = told.iter().map(|image| format!("Warning: {}: ", image.path().display())).collect();
        assert!(heard.len() == named.len() && heard.iter().zip(&named).all(|(text, name)| text.starts_with(name)));
    }
}

#[test]
fn holes_that_are_not_known_are_refused_before_a_key_is_asked_for() {
    let image = Image::new();
    let export = Export::new(std::fs::read(image.path()).expect("an image"), |_| Verdict::Pass);
    for path in [image.path(), export.uri()] {
        for volume_type in [VolumeType::Luks(Luks::Any), VolumeType::Plain(Plain::default())] {
            let program = Curious::default();
            let mut options = OpenOptions::new(&path, volume_type, KeySource::Ask);
            options.zero_holes = true;
            let error = open(&program.context(), &options, false, None).map(drop).expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::NoHoles, "{error}");
            assert!(!program.heard().contains(&"asked".to_owned()));
        }
    }
}
