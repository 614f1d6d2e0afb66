//! The LUKS1 header as `cryptsetup luksDump` prints it.

use super::Luks1;
use crate::printable::{Hex, Printable};
use std::fmt;

/// Writes the header; `device` is the path that the first line names.
pub(crate) fn write(luks1: &Luks1, device: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "LUKS header information for {}\n", Printable::new(device))?;
    writeln!(f, "Version:       \t1")?;
    writeln!(f, "Cipher name:   \t{}", Printable::new(&luks1.cipher_name))?;
    writeln!(f, "Cipher mode:   \t{}", Printable::new(&luks1.cipher_mode))?;
    writeln!(f, "Hash spec:     \t{}", Printable::new(&luks1.hash_spec))?;
    writeln!(f, "Payload offset:\t{}", luks1.payload_offset)?;
    writeln!(f, "MK bits:       \t{}", u64::from(luks1.key_len) * 8)?;
    writeln!(f, "MK digest:     \t{}", Hex(&luks1.digest))?;
    writeln!(f, "MK salt:       \t{}", Hex(&luks1.digest_salt[..16]))?;
    writeln!(f, "               \t{}", Hex(&luks1.digest_salt[16..]))?;
    writeln!(f, "MK iterations: \t{}", luks1.digest_iterations)?;
    writeln!(f, "UUID:          \t{}\n", Printable::new(&luks1.uuid))?;
    for (number, slot) in luks1.keyslots.iter().enumerate() {
        if !slot.active {
            writeln!(f, "Key Slot {number}: DISABLED")?;
            continue;
        }
        writeln!(f, "Key Slot {number}: ENABLED")?;
        writeln!(f, "\tIterations:         \t{}", slot.iterations)?;
        writeln!(f, "\tSalt:               \t{}", Hex(&slot.salt[..16]))?;
        writeln!(f, "\t                      \t{}", Hex(&slot.salt[16..]))?;
        writeln!(f, "\tKey material offset:\t{}", slot.offset)?;
        writeln!(f, "\tAF stripes:            \t{}", slot.stripes)?;
    }
    Ok(())
}
