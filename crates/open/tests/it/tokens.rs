//! Tokens of a program that can be interrupted.

use crate::{Image, PASSPHRASE, kind, opened};
use inlock_open::host::{Context, Host, Interruptions, Level};
use inlock_open::settings::Settings;
use inlock_open::{ErrorKind, KeySource, OpenOptions, Result};
use inlock_volume::{FileDevice, Volume};
use std::fmt::Display;
use std::fs::Permissions;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zeroize::Zeroizing;

const SIGINT: i32 = 2;

/// Makes helpers for tokens of type `x`, and that many tokens in the header.
pub(crate) fn make_tokens(image: &Image, script: &str, count: usize) -> PathBuf {
    let helpers = image.0.path().join("helpers");
    std::fs::create_dir(&helpers).expect("a directory");
    let helper = helpers.join("x");
    std::fs::write(&helper, script).expect("a helper");
    std::fs::set_permissions(&helper, Permissions::from_mode(0o755)).expect("a helper");
    let file = std::fs::File::options().read(true).write(true).open(image.path()).expect("the image");
    let device = FileDevice::new(file);
    let Ok(Volume::Luks2(mut luks2)) = Volume::load(&device) else { panic!("a LUKS2 volume") };
    for _ in 0..count {
        luks2.add_token(&device, None, r#"{"type":"x","keyslots":["0"]}"#).expect("a token");
    }
    helpers
}

/// A program that is interrupted as soon as a helper runs. Counts the helpers.
#[derive(Clone, Default)]
struct Interrupted(Arc<AtomicUsize>);

struct Signal(PipeReader, #[allow(dead_code)] PipeWriter);

impl Host for Interrupted {
    fn interruptions(&self) -> Result<Option<Box<dyn Interruptions>>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let (reader, writer) = std::io::pipe()?;
        Ok(Some(Box::new(Signal(reader, writer))))
    }
}

impl Interruptions for Signal {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn take(&self) -> Option<i32> {
        Some(SIGINT)
    }
}

#[test]
fn interrupted_helper_ends_the_search_for_a_token() {
    let image = Image::new();
    let helpers = make_tokens(&image, "#!/bin/sh\nexec sleep 1000\n", 2);
    for is_requested in [false, true] {
        let program = Interrupted::default();
        let mut options = OpenOptions::luks(image.path(), KeySource::bytes(PASSPHRASE));
        options.key.tokens.helpers = Some(helpers.clone());
        options.key.tokens.kind = is_requested.then(|| "x".to_owned());
        let context = Context::new(program.clone(), Settings::default());
        assert_eq!(kind(opened(&context, &options, false)), ErrorKind::Interrupted(SIGINT));
        assert_eq!(program.0.load(Ordering::SeqCst), 1, "neither another helper nor the passphrase");
    }
}

/// A program whose user types a PIN of this length, which begins with 1234.
struct Typist(usize);

impl Host for Typist {
    fn can_ask(&self) -> bool {
        true
    }

    fn ask(&self, _prompt: &str, _timeout: Option<Duration>) -> Result<Zeroizing<Vec<u8>>> {
        let mut pin = b"1234".to_vec();
        pin.resize(self.0, b'0');
        Ok(Zeroizing::new(pin))
    }
}

#[test]
fn pin_that_fits_no_pipe_is_an_error() {
    let image = Image::new();
    let script =
        format!("#!/bin/sh\n[ $INLOCK_TOKEN_PIN_FD ] || exit 2\n[ $(head -c 4 <&3) = 1234 ] && printf {PASSPHRASE}\n");
    let helpers = make_tokens(&image, &script, 1);
    let mut options = OpenOptions::luks(image.path(), KeySource::Ask);
    (options.key.tokens.helpers, options.key.tokens.only) = (Some(helpers), true);
    let open = |pin| opened(&Context::new(Typist(pin), Settings::default()), &options, false);
    for pin in [4, 4096] {
        open(pin).expect("it opens");
    }
    assert_eq!(kind(open(1 << 20)), ErrorKind::TokenFailed);
}

/// A program that notes what is said to its user.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<String>>>);

impl Host for Listener {
    fn tell(&self, level: Level, text: &dyn Display) {
        if level == Level::Notice {
            self.0.lock().expect("no panic").push(text.to_string());
        }
    }
}

#[test]
fn helper_says_forty_lines_and_4096_bytes() {
    let image = Image::new();
    // What the helper says comes from a file, so that it is one program for all cases.
    let said = image.0.path().join("said");
    let script = format!("#!/bin/sh\ncat {} >&2\nprintf {PASSPHRASE}\n", said.display());
    let helpers = make_tokens(&image, &script, 1);
    let mut options = OpenOptions::luks(image.path(), KeySource::Ask);
    options.key.tokens.helpers = Some(helpers);
    let lines = |count: usize| (0..count).map(|number| format!("line {number}")).collect::<Vec<_>>();
    let more = "(more messages are left out)".to_owned();
    let cases = [
        (String::new(), vec![]),
        ("one".to_owned(), vec!["one".to_owned()]),
        ("one\ntwo  \nthree".to_owned(), ["one", "two", "three"].map(str::to_owned).to_vec()),
        (lines(40).join("\n") + "\n", lines(40)),
        (lines(41).join("\n") + "\n", [lines(40), vec![more.clone()]].concat()),
        ("x".repeat(4096), vec!["x".repeat(4096)]),
        ("x".repeat(4097), vec!["x".repeat(4096), more.clone()]),
        ("x".repeat(10_000) + "\n", vec!["x".repeat(4096), more]),
    ];
    for (text, wanted) in cases {
        std::fs::write(&said, &text).expect("a file");
        let program = Listener::default();
        opened(&Context::new(program.clone(), Settings::default()), &options, false).expect("it opens");
        let heard = std::mem::take(&mut *program.0.lock().expect("no panic"));
        let wanted: Vec<String> = wanted.iter().map(|line| format!("token 0 (x): {line}")).collect();
        assert_eq!(heard, wanted, "{} bytes", text.len());
    }
}
