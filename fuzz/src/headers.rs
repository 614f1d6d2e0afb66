//! LUKS headers from outside: load, describe, try a passphrase.

use inlock_volume::luks2::binary_header::{BLOCK_LEN, BinaryHeader, Copy, SECOND_OFFSETS, write_checksum};
use inlock_volume::{Hash, KdfLimits, Secret, UnlockOptions, Volume};

use crate::device::Prefixed;

/// Long enough for the offsets in a small header.
const DEVICE_LEN: u64 = 24 << 20;
/// The passphrase of the volumes in the corpus.
const PASSPHRASE: &[u8] = b"fuzz";

/// Returns the limits of the key derivation. A header with higher costs must be refused, not computed.
fn limits() -> KdfLimits {
    let mut limits = KdfLimits::default();
    limits.memory_kib = 1024;
    limits.argon2_time = 8;
    limits.argon2_work_kib = 8192;
    limits.argon2_lanes = 4;
    limits.pbkdf2_iterations = 4000;
    limits
}

/// Loads the header on the device, and calls all functions that do not write.
fn exercise(device: &Prefixed<'_>) {
    let volume = match Volume::load(device) {
        Ok(volume) => volume,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error without a reason");
            return;
        }
    };
    let shown = volume.dump("/dev/null").to_string();
    assert!(shown.contains("UUID:"), "a description without a UUID: {shown}");
    assert!(volume.active_keyslots().len() <= 32, "{} keyslots", volume.active_keyslots().len());
    let mut options = UnlockOptions::default();
    options.limits = limits();
    let policy = &mut options.policy;
    (policy.allow_null_cipher, policy.allow_null_iv, policy.allow_linear_segment) = (true, true, true);
    if let Ok(unlocked) = volume.unlock(device, &Secret::new(PASSPHRASE.to_vec()), &options) {
        let mut next = Some(0);
        for segment in &unlocked.segments {
            assert_eq!(Some(segment.start.0), next, "the segments leave a gap");
            next = segment.sectors.map(|sectors| segment.start.0 + sectors);
        }
        let nothing = unlocked.segments.is_empty() && unlocked.authenticated.is_none();
        assert!(!nothing, "unlocked, and nothing to serve");
    }
}

/// Returns a device whose length the first byte chooses: the length of the data, or a large one.
fn device(data: &[u8]) -> Option<Prefixed<'_>> {
    let (choice, bytes) = data.split_first()?;
    let len = if choice & 1 == 0 { DEVICE_LEN } else { bytes.len() as u64 };
    Some(Prefixed { bytes, len: len.max(bytes.len() as u64) })
}

/// Loads a LUKS1 header.
pub fn luks1_header(data: &[u8]) {
    if let Some(device) = device(data) {
        exercise(&device);
    }
}

/// Loads the start of a LUKS2 device: binary header and JSON area. The checksum is corrected first, so that the checks
/// behind it are reached. With bit 1 of the first byte, the second copy is derived from the first.
pub fn luks2_header(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let mut image = bytes.to_vec();
    if image.len() < BLOCK_LEN {
        return luks1_header(data);
    }
    let announced = u64::from_be_bytes(image[8..16].try_into().expect("eight bytes"));
    let area = if SECOND_OFFSETS[..3].contains(&announced) { announced as usize } else { 16 << 10 };
    image.resize(image.len().max(area), 0);
    let (block, json) = image.split_at_mut(BLOCK_LEN);
    let block: &mut [u8; BLOCK_LEN] = block.try_into().expect("split there");
    if choice & 4 == 0 {
        write_checksum(block, &json[..area - BLOCK_LEN], Hash::Sha256);
    }
    if choice & 2 != 0 {
        let mut second = image[..area].to_vec();
        second[..6].copy_from_slice(b"SKUL\xba\xbe");
        second[256..264].copy_from_slice(&(area as u64).to_be_bytes());
        let (block, json) = second.split_at_mut(BLOCK_LEN);
        write_checksum(block.try_into().expect("split there"), json, Hash::Sha256);
        image.truncate(area);
        image.extend(second);
    }
    let len = if choice & 1 == 0 { DEVICE_LEN } else { image.len() as u64 };
    exercise(&Prefixed { bytes: &image, len });
}

/// Loads LUKS2 metadata under two valid binary headers.
pub fn luks2_json(data: &[u8]) {
    const MOST: usize = (64 << 10) - BLOCK_LEN;
    let json = &data[..data.len().min(MOST)];
    let hdr_size = SECOND_OFFSETS.into_iter().find(|size| json.len() < *size as usize - BLOCK_LEN);
    let header = BinaryHeader {
        hdr_size: hdr_size.unwrap_or(64 << 10),
        seqid: 3,
        label: "fuzz".to_owned(),
        subsystem: String::new(),
        csum_alg: Hash::Sha256,
        uuid: "6c0b2a5c-0c3c-4a52-8f2e-8a2f6d1c0b1e".to_owned(),
    };
    let mut area = json.to_vec();
    area.resize(header.json_len(), 0);
    let mut image = Vec::new();
    for copy in [Copy::Primary, Copy::Secondary] {
        image.extend(header.encode(copy, &[7; 64], &area));
        image.extend(&area);
    }
    exercise(&Prefixed { bytes: &image, len: DEVICE_LEN });
}
