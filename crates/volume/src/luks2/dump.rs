//! The LUKS2 header as `cryptsetup luksDump` prints it.

use super::metadata::{
    Config, CryptSegment, Digest, DigestKind, Keyslot, KeyslotKdf, KeyslotKind, PassphraseKeyslot, Segment, SegmentKind,
};
use super::reencryption_keyslot::{self, Protection, ReencryptionKeyslot};
use super::{Luks2, token};
use crate::pbkdf::Argon2Cost;
use crate::printable::{Hex, Printable};
use std::fmt::{self, Formatter};

/// Writes the header.
pub(crate) fn write(luks2: &Luks2, f: &mut Formatter<'_>) -> fmt::Result {
    let (header, metadata) = (luks2.header(), luks2.metadata());
    writeln!(f, "LUKS header information")?;
    writeln!(f, "Version:       \t2")?;
    writeln!(f, "Epoch:         \t{}", header.seqid)?;
    writeln!(f, "Metadata area: \t{} [bytes]", header.hdr_size)?;
    writeln!(f, "Keyslots area: \t{} [bytes]", metadata.config.keyslots_size)?;
    writeln!(f, "UUID:          \t{}", Printable::new(luks2.uuid()))?;
    writeln!(f, "Label:         \t{}", Printable::new(luks2.label().unwrap_or("(no label)")))?;
    writeln!(f, "Subsystem:     \t{}", Printable::new(luks2.subsystem().unwrap_or("(no subsystem)")))?;
    write_config(&metadata.config, f)?;
    writeln!(f, "Data segments:")?;
    for (number, segment) in &metadata.segments {
        write_segment(*number, segment, f)?;
        writeln!(f)?;
    }
    writeln!(f, "Keyslots:")?;
    // The key of a segment that is being re-encrypted is the one of its first digest.
    let of_segment = |segment: &u32| metadata.digests.iter().find(|(_, digest)| digest.segments.contains(segment));
    let in_use = metadata.segments.iter().filter(|(_, segment)| !segment.is_backup());
    let bound: Vec<u32> = in_use.filter_map(|(segment, _)| Some(*of_segment(segment)?.0)).collect();
    for (&number, keyslot) in &metadata.keyslots {
        let digest = metadata.digests.iter().find(|(_, digest)| digest.keyslots.contains(&number));
        let is_bound = digest.is_some_and(|(number, _)| bound.contains(number));
        write_keyslot((number, is_bound), keyslot, digest, f)?;
    }
    writeln!(f, "Tokens:")?;
    for (number, token) in &metadata.tokens {
        writeln!(f, "  {number}: {}", Printable::new(&token.kind))?;
        if let Some(object) = luks2.map["tokens"][number.to_string()].as_object() {
            token::dump::write(object, f)?;
        }
        token.keyslots.iter().try_for_each(|keyslot| writeln!(f, "\tKeyslot:    {keyslot}"))?;
    }
    writeln!(f, "Digests:")?;
    metadata.digests.iter().try_for_each(|(number, digest)| write_digest(*number, digest, f))
}

fn write_config(config: &Config, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "Flags:       \t")?;
    match config.flags.is_empty() {
        true => writeln!(f, "(no flags)")?,
        false => {
            config.flags.iter().try_for_each(|flag| write!(f, "{} ", Printable::new(flag)))?;
            writeln!(f)?;
        }
    }
    if !config.requirements.is_empty() {
        write!(f, "Requirements:\t")?;
        config.requirements.iter().try_for_each(|requirement| write!(f, "{} ", Printable::new(requirement)))?;
        writeln!(f)?;
    }
    writeln!(f)
}

fn write_segment(number: u32, segment: &Segment, f: &mut Formatter<'_>) -> fmt::Result {
    let kind = match &segment.kind {
        SegmentKind::Crypt(_) => "crypt",
        SegmentKind::Linear => "linear",
        SegmentKind::Other(name) => name,
    };
    writeln!(f, "  {number}: {}", Printable::new(kind))?;
    writeln!(f, "\toffset: {} [bytes]", segment.offset)?;
    match segment.size {
        None => writeln!(f, "\tlength: (whole device)")?,
        Some(size) => writeln!(f, "\tlength: {size} [bytes]")?,
    }
    if let SegmentKind::Crypt(CryptSegment { cipher, sector_size, integrity, .. }) = &segment.kind {
        writeln!(f, "\tcipher: {}", Printable::new(cipher))?;
        writeln!(f, "\tsector: {sector_size} [bytes]")?;
        if let Some(integrity) = integrity {
            writeln!(f, "\tintegrity: {}", Printable::new(&integrity.kind))?;
            if let Some(len) = integrity.key_len {
                writeln!(f, "\tintegrity key size: {} [bits]", u64::from(len) * 8)?;
            }
        }
    }
    if !segment.flags.is_empty() {
        write!(f, "\tflags : ")?;
        let flags: Vec<_> = segment.flags.iter().map(|flag| Printable::new(flag).to_string()).collect();
        writeln!(f, "{}", flags.join(", "))?;
    }
    Ok(())
}

fn write_keyslot(
    (number, is_bound): (u32, bool),
    keyslot: &Keyslot,
    digest: Option<(&u32, &Digest)>,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    let kind = match &keyslot.kind {
        KeyslotKind::Luks2(_) => "luks2",
        KeyslotKind::Reencryption(_) => reencryption_keyslot::KIND,
        KeyslotKind::Other(name) => name,
    };
    let unbound = if is_bound { "" } else { " (unbound)" };
    writeln!(f, "  {number}: {}{unbound}", Printable::new(kind))?;
    writeln!(f, "\tKey:        {} bits", u64::from(keyslot.key_len) * 8)?;
    let priority = match keyslot.priority {
        0 => "ignored",
        1 => "normal",
        _ => "preferred",
    };
    writeln!(f, "\tPriority:   {priority}")?;
    if let KeyslotKind::Luks2(slot) = &keyslot.kind {
        write_passphrase_keyslot(slot, f)?;
    }
    if let KeyslotKind::Reencryption(slot) = &keyslot.kind {
        write_reencryption(slot, f)?;
    }
    writeln!(f, "\tArea offset:{} [bytes]", keyslot.area_offset)?;
    writeln!(f, "\tArea length:{} [bytes]", keyslot.area_len)?;
    if let Some((digest, _)) = digest {
        writeln!(f, "\tDigest ID:  {digest}")?;
    }
    Ok(())
}

fn write_passphrase_keyslot(slot: &PassphraseKeyslot, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\tCipher:     {}", Printable::new(&slot.area_cipher))?;
    writeln!(f, "\tCipher key: {} bits", u64::from(slot.area_key_len) * 8)?;
    let argon2 = |name, cost: &Argon2Cost, f: &mut Formatter<'_>| {
        writeln!(f, "\tPBKDF:      {name}")?;
        writeln!(f, "\tTime cost:  {}", cost.time)?;
        writeln!(f, "\tMemory:     {}", cost.memory_kib)?;
        writeln!(f, "\tThreads:    {}", cost.lanes)
    };
    match &slot.kdf {
        KeyslotKdf::Pbkdf2 { hash, iterations } => {
            writeln!(f, "\tPBKDF:      pbkdf2")?;
            writeln!(f, "\tHash:       {}", Printable::new(hash))?;
            writeln!(f, "\tIterations: {iterations}")?;
        }
        KeyslotKdf::Argon2i(cost) => argon2("argon2i", cost, f)?,
        KeyslotKdf::Argon2id(cost) => argon2("argon2id", cost, f)?,
        KeyslotKdf::Other(name) => writeln!(f, "\tPBKDF:      {}", Printable::new(name))?,
    }
    write_bytes("Salt:       ", &slot.salt, f)?;
    writeln!(f, "\tAF stripes: {}", slot.stripes)?;
    writeln!(f, "\tAF hash:    {}", Printable::new(&slot.af_hash))
}

fn write_reencryption(slot: &ReencryptionKeyslot, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\tMode:       {}", slot.mode.name())?;
    writeln!(f, "\tDirection:  {}", slot.direction.name())?;
    writeln!(f, "\tResilience: {}", slot.resilience)?;
    match (&slot.resilience.protection, slot.resilience.shift) {
        (Protection::Checksum { hash, block }, None) => {
            writeln!(f, "\tHash:       {}", Printable::new(hash))?;
            writeln!(f, "\tHash data:  {block} [bytes]")
        }
        // Without a space, as in cryptsetup.
        (Protection::None, Some(shift)) => writeln!(f, "\tShift size: {shift}[bytes]"),
        _ => Ok(()),
    }
}

fn write_digest(number: u32, digest: &Digest, f: &mut Formatter<'_>) -> fmt::Result {
    match &digest.kind {
        DigestKind::Other(name) => writeln!(f, "  {number}: {}", Printable::new(name)),
        DigestKind::Pbkdf2 { hash, iterations, salt, digest } => {
            writeln!(f, "  {number}: pbkdf2")?;
            writeln!(f, "\tHash:       {}", Printable::new(hash))?;
            writeln!(f, "\tIterations: {iterations}")?;
            write_bytes("Salt:       ", salt, f)?;
            write_bytes("Digest:     ", digest, f)
        }
    }
}

/// Writes bytes in rows of 16, with the name before the first.
fn write_bytes(name: &str, bytes: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    for (row, bytes) in bytes.chunks(16).enumerate() {
        writeln!(f, "\t{}{}", if row == 0 { name } else { "            " }, Hex(bytes))?;
    }
    Ok(())
}
