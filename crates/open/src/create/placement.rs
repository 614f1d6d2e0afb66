//! Where the data of a new volume begin: as asked for, and as zones and images of Ceph RBD want it.

use inlock_rbd_store::RbdStore;
use inlock_volume::{DataUnitSize, ZoneFault, Zones};

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, ZoneHint};
use crate::remote::Remote;
use crate::zones;

use super::format::{Format, Placement};
use super::options::{CreateOptions, DataStart};

/// Returns the place that the options ask for; on a zoned device, one that fits the zones of `holder`, which has the
/// data. `device` has the header.
pub(super) fn find(options: &CreateOptions, device: &Device, holder: &Device) -> Result<Placement> {
    let asked = asked(options);
    let attached = device.identity() == holder.identity();
    if let Some(image) = holder.remote().and_then(Remote::rbd) {
        return on_image(options, asked, image, holder, attached);
    }
    let Some(zones) = &holder.zones else { return Ok(asked) };
    on_zones(options, asked, zones, attached).map_err(|fault| {
        let hint = match fault {
            ZoneFault::Header { .. } => ZoneHint::Detached,
            ZoneFault::Unit { .. } => ZoneHint::Unit,
            _ => ZoneHint::Offset,
        };
        zones::unfit(&holder.path, hint)(fault)
    })
}

/// Returns the place that the options ask for.
fn asked(options: &CreateOptions) -> Placement {
    let usual = Placement { offset: None, unit: options.data_unit().flatten() };
    let offset = match options.start {
        DataStart::Usual => None,
        DataStart::At(sectors) => Some(sectors),
        // The start of the data itself, in cryptsetup's manual an absolute alignment.
        DataStart::Aligned(sectors) if options.header.is_some() => Some(sectors),
        DataStart::Aligned(sectors) => {
            let header_len = Format::new(options, Placement { unit: None, ..usual }).header_len();
            header_len.div_ceil(512).checked_next_multiple_of(sectors)
        }
    };
    Placement { offset, ..usual }
}

/// Returns the place that is asked for; otherwise, the data begin where librbd's own encryption finds them, too: at a
/// multiple of the stripe period.
fn on_image(
    options: &CreateOptions,
    asked: Placement,
    image: &RbdStore,
    holder: &Device,
    attached: bool,
) -> Result<Placement> {
    let (facts, path) = (image.facts(), holder.path.display());
    if facts.has_journal {
        let text = format!("Device {path} has the feature journaling, which encrypted images cannot have.");
        return Err(Error::new(ErrorKind::JournaledImage, text).about(&holder.path));
    }
    if facts.is_clone {
        holder.context().warn(format_args!(
            "{path} is a clone: parts that are never written read as noise here, and in librbd as the parent's data; \
             flatten it first: rbd flatten POOL/IMAGE"
        ));
    }
    if asked.offset.is_some() || !attached {
        return Ok(asked);
    }
    let usual = Format::new(options, asked).data_offset();
    let aligned = usual.checked_next_multiple_of(facts.stripe_period.max(512));
    Ok(Placement { offset: aligned.map(|bytes| bytes / 512), ..asked })
}

fn on_zones(options: &CreateOptions, asked: Placement, zones: &Zones, attached: bool) -> Result<Placement, ZoneFault> {
    let offset = match asked.offset.map(|sectors| sectors.saturating_mul(512)) {
        Some(bytes) => {
            zones.check_offset(bytes)?;
            if attached {
                zones.check_header(bytes)?;
            }
            bytes
        }
        None if attached => {
            let header = Format::new(options, asked);
            zones.place_behind_header(header.header_len(), header.least_header_len())?
        }
        None => 0,
    };
    let most = if options.version == 1 { DataUnitSize::SECTOR } else { DataUnitSize::LUKS_MAX };
    let unit = match asked.unit {
        None if zones.len.is_multiple_of(most.bytes() as u64) => zones.largest_unit(most),
        given => given.unwrap_or(DataUnitSize::SECTOR),
    };
    zones.check_unit(unit)?;
    Ok(Placement { offset: Some(offset / 512), unit: Some(unit) })
}
