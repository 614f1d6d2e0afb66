//! The driver of each method of attaching, and the choice among them.

use std::sync::Arc;

use inlock_engine::Device;

use super::attachment::{AttachOptions, Attachment, Driver};
use crate::error::{Error, Result};
use crate::method::AttachMethod;

/// Returns its driver, or why this build has none. Nothing else depends on the features.
pub(crate) fn driver(method: AttachMethod) -> Result<&'static dyn Driver, &'static str> {
    match method {
        #[cfg(feature = "ublk")]
        AttachMethod::Ublk => Ok(&super::ublk::Ublk),
        #[cfg(not(feature = "ublk"))]
        AttachMethod::Ublk => Err("inlock was built without the feature 'ublk'"),
        AttachMethod::Nbd => Ok(&super::nbd::Nbd),
        #[cfg(feature = "fuse")]
        AttachMethod::Loop => Ok(&super::file::Loop),
        #[cfg(feature = "fuse")]
        AttachMethod::Fuse => Ok(&super::file::Fuse),
        #[cfg(not(feature = "fuse"))]
        AttachMethod::Loop | AttachMethod::Fuse => Err("inlock was built without the feature 'fuse'"),
    }
}

/// Attaches `device`, or recovers a device for it.
pub(crate) fn attach(
    method: AttachMethod,
    device: &Arc<Device>,
    options: &AttachOptions<'_>,
) -> Result<Box<dyn Attachment>> {
    driver(method).map_err(Error::other)?.attach(device, options)
}

/// Returns the reason why it cannot work here, as far as it is known before trying.
fn missing(method: AttachMethod) -> Option<String> {
    driver(method).map_or_else(|missing| Some(missing.to_owned()), Driver::missing)
}

/// Returns the requested method, or for `None` the preferred one of those that work. `zoned`: the volume has sequential
/// zones, and is writable.
pub(crate) fn choose(asked: Option<AttachMethod>, zoned: bool) -> Result<AttachMethod> {
    if zoned {
        return choose_for_zones(asked);
    }
    let best = AttachMethod::ALL.into_iter().find(|method| missing(*method).is_none());
    let Some(asked) = asked else {
        return best.ok_or_else(|| {
            let reason = |method: &AttachMethod| Some(format!("{}: {}", method.name(), missing(*method)?));
            let missing: Vec<String> = AttachMethod::ALL.iter().filter_map(reason).collect();
            Error::NoMethod { missing: missing.join("; ") }
        });
    };
    match missing(asked) {
        None => Ok(asked),
        Some(missing) => Err(Error::MethodMissing { method: asked, missing, best }),
    }
}

fn choose_for_zones(asked: Option<AttachMethod>) -> Result<AttachMethod> {
    if let Some(method) = asked.filter(|method| *method != AttachMethod::Ublk) {
        return Err(Error::MethodWithoutZones { method });
    }
    match missing(AttachMethod::Ublk) {
        None => Ok(AttachMethod::Ublk),
        Some(missing) => Err(Error::ZonesMissing { missing }),
    }
}
