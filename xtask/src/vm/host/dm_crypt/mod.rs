//! Compares the ciphertext of Inlock with that of dm-crypt, in both directions.
//!
//! Inlock encrypts a known plaintext, and the guest decrypts it through dm-crypt; the guest encrypts the same plaintext
//! through dm-crypt, and Inlock decrypts it; both ciphertexts must be equal. As the control, one group of combinations
//! is deliberately wrong, and must be reported.

mod combinations;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use inlock_cipher::{InOut, IvNumber, SectorCipher, new_sector_cipher};
use inlock_tests::random::Random;

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;
use combinations::{Combination, Group, Variants, groups, others};

/// Unit of positions and lengths in the guest.
const STEP: u64 = 64 << 10;
/// Length of a combination in bytes, in a usual run and with `--full`. With an IV offset, sector numbers exceed 2^32 in
/// the middle of the shorter one.
const EACH: (u64, u64) = (64 << 10, 16 << 20);
/// Length in bytes of a combination outside of the list.
const EACH_OTHER: u64 = 64 << 10;
/// Length of the long combination, aes-xts-plain64, in bytes, in a usual run and with `--full`. Sector numbers exceed
/// 2^16 in the middle of the shorter one.
const LONG: (u64, u64) = (64 << 20, 256 << 20);
/// Number of machines that share the combinations with `--full`.
pub(super) const FULL_ROUNDS: usize = 8;
/// Length of the pieces in which the host processes a combination.
const PIECE: usize = 1 << 20;

/// A group with its position on the disks.
struct Placed {
    group: Group,
    start: u64,
    /// Whether its ciphertext is deliberately wrong.
    wrong: bool,
}

impl Placed {
    fn len(&self) -> u64 {
        self.group.each * self.group.combinations.len() as u64
    }

    /// Returns the combinations with their distance from the group's start.
    fn places(&self) -> impl Iterator<Item = (&Combination, u64)> {
        self.group.combinations.iter().enumerate().map(|(n, c)| (c, n as u64 * self.group.each))
    }

    /// Returns the device's table: the lines of the groups on `/dev/vda`, then the same on `/dev/vdd`.
    fn table(&self) -> String {
        let mut lines = String::new();
        for (device, base) in [("/dev/vda", 0), ("/dev/vdd", self.len())] {
            for (combination, at) in self.places() {
                let (start, sectors, offset) = ((base + at) / 512, self.group.each / 512, (self.start + at) / 512);
                lines += &(combination.line(start, sectors, device, offset) + "\n");
            }
        }
        lines
    }
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let placed = place(scene.full, scene.round)?;
    let (last, longest) = (placed.last().context("nothing to compare")?, placed.iter().map(Placed::len).max());
    let total = last.start + last.len();
    let longest = longest.unwrap_or_default();
    for name in ["ours.img", "plain.img", "decrypted.img", "theirs.img"] {
        let path = scene.folder.join(name);
        File::create(&path)?.set_len(if name == "plain.img" { longest } else { total })?;
        scene.disks.push(path);
    }
    let plain = open(scene.folder, "plain.img")?;
    let mut random = Random::new(1);
    for at in (0..longest).step_by(PIECE) {
        plain.write_all_at(&random.bytes(PIECE.min((longest - at) as usize)), at)?;
    }
    let ours = open(scene.folder, "ours.img")?;
    let mut list = String::new();
    for (n, placed) in placed.iter().enumerate() {
        list += &format!("{n} {} {}\n", placed.start / STEP, placed.len() / STEP);
        scene.files.push((format!("vm/tables/{n}"), placed.table().into_bytes()));
        for (combination, at) in placed.places() {
            let shift = if placed.wrong { combination.unit.sectors() } else { 0 };
            let mut context = Stream::new(combination, shift)?;
            let mut piece = Vec::new();
            for done in (0..placed.group.each).step_by(PIECE) {
                piece.resize(PIECE.min((placed.group.each - done) as usize), 0);
                plain.read_exact_at(&mut piece, at + done)?;
                context.encrypt(&mut piece);
                ours.write_all_at(&piece, placed.start + at + done)?;
            }
        }
    }
    scene.files.push(("vm/groups".to_owned(), list.into_bytes()));
    Ok(Box::new(move |scene, report| judge(&placed, scene, report)))
}

/// Returns the groups of a round with their positions. The long one comes first, in the first round; the wrong one
/// last, in each.
fn place(full: bool, round: usize) -> Result<Vec<Placed>> {
    let (rounds, each, long, number) =
        if full { (FULL_ROUNDS, EACH.1, LONG.1, Variants::All) } else { (1, EACH.0, LONG.0, Variants::Pairs) };
    let mut long = groups(long)?;
    long.retain(|group| group.combinations[0].word == "aes-xts-plain64");
    let mut wrong = groups(EACH.0)?;
    wrong.retain(|group| group.combinations[0].word == "aes-cbc-plain64");
    ensure!(long.len() == 1 && wrong.len() == 1, "the list has not got both aes-xts-plain64 and aes-cbc-plain64");
    long[0].combinations.truncate(1);
    let right = long.into_iter().chain(groups(each)?).chain(others(EACH_OTHER, number)?).enumerate();
    let right = right.filter(|(n, _)| n % rounds == round).map(|(_, group)| (group, false));
    let all = right.chain(wrong.into_iter().map(|group| (group, true)));
    let mut start = 0;
    let place = |(group, wrong)| {
        let placed = Placed { group, start, wrong };
        start = (start + placed.len()).next_multiple_of(1 << 20);
        placed
    };
    Ok(all.map(place).collect())
}

/// The cipher of a combination, and the number of the next sector.
struct Stream {
    cipher: Box<dyn SectorCipher>,
    large_iv: bool,
    sector: u64,
}

impl Stream {
    fn new(of: &Combination, shift: u64) -> Result<Self> {
        let cipher = new_sector_cipher(&of.spec, &of.key, of.unit, of.large_iv.into()).with_context(|| of.name())?;
        Ok(Self { cipher, large_iv: of.large_iv, sector: of.iv_offset + shift })
    }

    fn next(&mut self, len: usize) -> IvNumber {
        let per_unit = if self.large_iv { self.cipher.unit().sectors() } else { 1 };
        let number = IvNumber(self.sector / per_unit);
        self.sector += len as u64 / 512;
        number
    }

    fn encrypt(&mut self, data: &mut [u8]) {
        let first = self.next(data.len());
        self.cipher.encrypt(first, InOut::InPlace(data));
    }

    fn decrypt(&mut self, data: &mut [u8]) {
        let first = self.next(data.len());
        self.cipher.decrypt(first, InOut::InPlace(data));
    }
}

/// Results of one combination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    /// dm-crypt decrypts Inlock's ciphertext.
    kernel_reads: bool,
    /// Inlock decrypts dm-crypt's ciphertext.
    inlock_reads: bool,
    /// Both ciphertexts are equal.
    same_ciphertext: bool,
}

impl Found {
    const RIGHT: Self = Self { kernel_reads: true, inlock_reads: true, same_ciphertext: true };
    const WRONG: Self = Self { kernel_reads: false, inlock_reads: true, same_ciphertext: false };
}

fn judge(placed: &[Placed], scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let disks = ["ours.img", "plain.img", "decrypted.img", "theirs.img"].map(|name| open(scene.folder, name));
    let [ours, plain, decrypted, theirs] = disks;
    let disks = Disks { ours: ours?, plain: plain?, decrypted: decrypted?, theirs: theirs? };
    let (mut compared, mut lacking, mut bytes) = (0, 0, 0);
    let word = |same| if same { "same" } else { "DIFFERENT" };
    report.notes.push(format!("{:<60} {:<15} {:<15} ciphertext", "dm-crypt", "kernel reads", "Inlock reads"));
    for (n, placed) in placed.iter().enumerate() {
        let said = report.data.iter().find(|(key, _)| *key == n.to_string()).map(|(_, text)| text.clone());
        let said = said.unwrap_or_else(|| "the guest says nothing".to_owned());
        for (combination, at) in placed.places() {
            let name = combination.name();
            // The disks exist, so the cipher is missing.
            if said.contains("No such file or directory") {
                report.notes.push(format!("{name:<60} the kernel lacks it"));
                lacking += 1;
                continue;
            }
            if said != "copied" {
                report.outcomes.push(Outcome::Fail(name, said.clone()));
                continue;
            }
            let found = disks.compare(combination, at, placed.start + at, placed.group.each)?;
            if placed.wrong {
                report.outcomes.push(if found == Found::WRONG {
                    Outcome::Ok(format!("wrong:{name}"))
                } else {
                    Outcome::Fail(format!("wrong:{name}"), format!("ciphertext made wrong on purpose: {found:?}"))
                });
                continue;
            }
            let [kernel, inlock, same] = [found.kernel_reads, found.inlock_reads, found.same_ciphertext].map(word);
            report.notes.push(format!("{name:<60} {kernel:<15} {inlock:<15} {same}"));
            compared += 1;
            bytes += placed.group.each;
            report.outcomes.push(if found == Found::RIGHT {
                Outcome::Ok(name)
            } else {
                Outcome::Fail(name, format!("{found:?}"))
            });
        }
    }
    report.notes.push(format!(
        "dm-crypt: {compared} combinations compared, {lacking} that the kernel lacks, {bytes} bytes each way"
    ));
    report.counts.push(("dm_crypt_combinations".to_owned(), compared));
    report.counts.push(("dm_crypt_bytes".to_owned(), bytes));
    Ok(())
}

/// Files written by the guest.
struct Disks {
    ours: File,
    plain: File,
    decrypted: File,
    theirs: File,
}

impl Disks {
    /// Compares `len` bytes, at `plain_at` of the plaintext and at `at` of the others.
    fn compare(&self, of: &Combination, plain_at: u64, at: u64, len: u64) -> Result<Found> {
        let mut found = Found::RIGHT;
        let mut context = Stream::new(of, 0)?;
        for done in (0..len).step_by(PIECE) {
            let len = PIECE.min((len - done) as usize);
            let read = |file: &File, at: u64| -> Result<Vec<u8>> {
                let mut piece = vec![0; len];
                file.read_exact_at(&mut piece, at + done)?;
                Ok(piece)
            };
            let plain = read(&self.plain, plain_at)?;
            let mut theirs = read(&self.theirs, at)?;
            found.kernel_reads &= read(&self.decrypted, at)? == plain;
            found.same_ciphertext &= read(&self.ours, at)? == theirs;
            context.decrypt(&mut theirs);
            found.inlock_reads &= theirs == plain;
        }
        Ok(found)
    }
}

fn open(folder: &Path, name: &str) -> Result<File> {
    let path = folder.join(name);
    File::options().read(true).write(true).open(&path).with_context(|| format!("cannot open {}", path.display()))
}
