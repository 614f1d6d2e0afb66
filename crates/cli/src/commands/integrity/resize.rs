//! `integrity resize`: gives a volume another length.

use std::path::{Path, PathBuf};

use inlock_integrity::Fill;
use serde_json::{Value, json};

use crate::args::integrity::integrity_options;
use crate::args::options::Options;
use crate::commands::resize::sectors_of;
use crate::commands::wipe::{fill_of, watch};
use crate::error::CliError;
use crate::host::context;
use crate::system::signals;
use crate::ui::print::print_stderr;
use crate::ui::progress::{Progress, Show};
use inlock_open::device::OpenMode;
use inlock_open::integrity::IntegrityDevices;
use inlock_open::integrity_format;
use inlock_open::integrity_options::IntegrityOptions;
use inlock_serve::control::client::Client;
use inlock_serve::control::name::Name;

/// Another length of a volume.
pub(super) struct ResizeArgs {
    image: PathBuf,
    integrity: IntegrityOptions,
    /// `None`: as many as fit.
    sectors: Option<u64>,
    /// Content of new blocks. `None`: nothing is written.
    fill: Option<Fill>,
    show: Show,
}

impl ResizeArgs {
    /// Lets the process of an open volume resize it; new blocks are wiped in steps.
    fn resize_running(&self, name: &Name) -> anyhow::Result<()> {
        if Client::of(context(), name)?.status()?.integrity.is_none() {
            let message = format!("Volume {name} is not a volume of dm-integrity.");
            return Err(CliError::refused(message, "run `inlock resize NAME`"));
        }
        let command = json!({"command": "resize", "sectors": self.sectors, "wipe": self.fill.is_some()});
        let step = || -> anyhow::Result<(u64, u64)> {
            let reply = Client::of(context(), name)?.command(&command, None)?;
            let sectors = |field: &str| reply.get(field).and_then(Value::as_u64).unwrap_or(0);
            Ok((sectors("sectors"), sectors("wanted")))
        };
        let (mut len, mut wanted) = step()?;
        if len == wanted {
            return Ok(());
        }
        let caught = signals::catch()?;
        let mut progress = Progress::start(self.show, &self.image, Some((wanted - len) * 512), false);
        while len < wanted {
            if let Some(signal) = caught.take() {
                drop(progress);
                print_stderr(format_args!(
                    "Resize interrupted at {len} sectors. Run the command again to continue it."
                ));
                return Err(CliError::Interrupted(signal).into());
            }
            let before = len;
            (len, wanted) = step()?;
            progress.add(len.saturating_sub(before) * 512);
        }
        progress.finish();
        Ok(())
    }

    pub(super) fn new(options: &Options, image: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            image,
            integrity: integrity_options(options)?,
            sectors: sectors_of(options)?,
            fill: (options.wipe || options.integrity_lazy).then(|| fill_of(options)),
            show: Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency),
        })
    }

    pub(super) fn run(&self) -> anyhow::Result<()> {
        if let Some(name) = running(&self.image) {
            if self.fill == Some(Fill::Marks) {
                return Err(CliError::refused(
                    "Option --integrity-lazy is not possible while the volume is open.",
                    "use --wipe, or leave it out: the tags of new blocks are computed",
                ));
            }
            return self.resize_running(&name);
        }
        let devices =
            IntegrityDevices::open(context(), &self.image, self.integrity.data_device.as_deref(), OpenMode::Write)?;
        let (image, sectors, fill) = (&self.image, self.sectors, self.fill);
        watch(image, fill.unwrap_or(Fill::Zeroes), self.show, |watch| {
            integrity_format::resize(&devices, image, &self.integrity, sectors, fill, watch)
        })
    }
}

/// Returns the name of a running volume that is given in place of a device, as integritysetup names it.
fn running(image: &Path) -> Option<Name> {
    let name = image.to_str().filter(|name| !name.contains('/') && !image.exists())?;
    let name = Name::new(name).ok()?;
    Client::of(context(), &name).is_ok().then_some(name)
}
