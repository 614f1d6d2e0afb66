//! `--persistent`: stores the flags of a running volume in its LUKS2 header.

use std::path::Path;

use inlock_volume::{EditError, HeaderPolicy, Volume};

use crate::args::options::Options;
use crate::error::CliError;
use crate::host::context;
use inlock_open::header::Header;
use inlock_open::source::{HeaderOptions, Luks};
use inlock_serve::control::client::Client;
use inlock_serve::control::name::Name;

/// Flags of a device-mapper table that a header can store. There, they are written with dashes.
const FLAGS: &[&str] =
    &["allow_discards", "same_cpu_crypt", "submit_from_crypt_cpus", "no_read_workqueue", "no_write_workqueue"];

/// The flag of a volume with integrity protection that is used without its journal.
const NO_JOURNAL: &str = "no_journal";

/// Checks the options that go with `--persistent`.
pub(super) fn check_options(options: &Options) -> anyhow::Result<()> {
    if options.persistent && options.high_priority {
        return Err(CliError::usage("Option --perf-high_priority cannot be combined with --persistent."));
    }
    Ok(())
}

/// Fails unless the header is LUKS2, before the volume is opened.
pub(super) fn check_header(image: &Path, header: Option<&Path>) -> anyhow::Result<()> {
    load(image, header).map(drop)
}

/// Stores the flags of a running volume, which was opened or refreshed with `--persistent`: the header's are not among
/// them.
pub(super) fn store(name: &Name) -> anyhow::Result<()> {
    let status = Client::of(context(), name)?.status()?;
    let (info, integrity) = (status.info, status.integrity);
    let mut header = load(&info.device, info.header.as_deref())?;
    let mut flags: Vec<String> = Vec::new();
    if info.allow_discards {
        flags.push(FLAGS[0].to_owned());
    }
    flags.extend(info.table_flags.into_iter().filter(|flag| FLAGS.contains(&&**flag)));
    // Without integrity protection the flag has no effect, and stays as it is.
    let own = if integrity.is_some() { NO_JOURNAL } else { "" };
    if integrity.is_some_and(|state| state.mode == "direct") {
        flags.push(NO_JOURNAL.to_owned());
    }
    Ok(header.edit(&[], |volume, device| {
        let Volume::Luks2(luks2) = volume else { return Err(EditError::NeedsLuks2("a flag")) };
        let mut all: Vec<String> = flags.iter().map(|flag| flag.replace('_', "-")).collect();
        // Flags that Inlock does not know stay.
        let others = luks2.metadata().config.flags.iter();
        let is_known = |flag: &str| FLAGS.contains(&flag) || flag == own;
        all.extend(others.filter(|flag| !is_known(&flag.replace('-', "_"))).cloned());
        luks2.set_flags(device, &all.iter().map(String::as_str).collect::<Vec<_>>())
    })?)
}

fn load(image: &Path, header: Option<&Path>) -> anyhow::Result<Header> {
    let at = HeaderOptions {
        image: image.to_owned(),
        header: header.map(Path::to_owned),
        luks: Luks::Any,
        policy: HeaderPolicy::default(),
    };
    let header = Header::load_to_edit(context(), &at)?;
    header.check_luks2()?;
    Ok(header)
}
