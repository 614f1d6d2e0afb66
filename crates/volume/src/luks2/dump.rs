//! The LUKS2 header as `cryptsetup luksDump` prints it.
use super::Luks2;
use std::fmt;
pub(crate) fn write(luks2: &Luks2, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{}", luks2.uuid())
}
