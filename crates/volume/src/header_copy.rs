//! The two copies of a LUKS2 header.

/// One of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The one at the start of the device.
    Primary,
    /// The one behind it.
    Secondary,
}
