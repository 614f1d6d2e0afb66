//! Tokens of a program that can be interrupted.

use crate::{Image, PASSPHRASE, kind, opened};
use inlock_open::host::{Context, Host, Interruptions};
use inlock_open::settings::Settings;
use inlock_open::{ErrorKind, KeySource, OpenOptions, Result};
use inlock_volume::{FileDevice, Volume};
use std::fs::Permissions;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIGINT: i32 = 2;

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
    let helpers = image.0.path().join("helpers");
    std::fs::create_dir(&helpers).expect("a directory");
    let helper = helpers.join("x");
    std::fs::write(&helper, "#!/bin/sh\nexec sleep 1000\n").expect("a helper");
    std::fs::set_permissions(&helper, Permissions::from_mode(0o755)).expect("a helper");
    let file = std::fs::File::options().read(true).write(true).open(image.path()).expect("the image");
    let device = FileDevice::new(file);
    let Ok(Volume::Luks2(mut luks2)) = Volume::load(&device) else { panic!("a LUKS2 volume") };
    for _ in 0..2 {
        luks2.add_token(&device, None, r#"{"type":"x","keyslots":["0"]}"#).expect("a token");
    }
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
