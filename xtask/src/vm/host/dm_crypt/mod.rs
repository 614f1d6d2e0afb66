//! Compares Inlock's bytes with dm-crypt's, both ways.
//!
//! Inlock encrypts a known plaintext, the guest decrypts it through dm-crypt; the guest encrypts the same plaintext
//! through dm-crypt, Inlock decrypts it; both ciphertexts have to be the same. One group of combinations is made wrong
//! on purpose: were it found right, nothing that this comparison says would count.

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
use combinations::{Combination, Group, groups, others};

/// The guest counts in these.
const STEP: u64 = 64 << 10;
/// Bytes of a combination: in a usual run, and with `--full`.
const EACH: (u64, u64) = (256 << 10, 16 << 20);
/// Bytes of a combination that is not on the list of those in use.
const EACH_OTHER: u64 = 64 << 10;
/// Bytes of the long one, aes-xts-plain64.
const LONG: u64 = 256 << 20;
/// With `--full` the combinations are divided among so many machines.
pub(super) const FULL_ROUNDS: usize = 8;
/// The host works through a combination in pieces of this size.
const PIECE: usize = 1 << 20;

/// A group with its place on the disks.
struct Placed {
    group: Group,
    start: u64,
    /// Whether its ciphertext is wrong on purpose.
    wrong: bool,
}

impl Placed {
    fn len(&self) -> u64 {
        self.group.each * self.group.combinations.len() as u64
    }

    /// The combinations with their distance from the group's start.
    fn places(&self) -> impl Iterator<Item = (&Combination, u64)> {
        self.group.combinations.iter().enumerate().map(|(n, c)| (c, n as u64 * self.group.each))
    }

    /// The device's table: the groups' lines on `/dev/vda`, then the same on `/dev/vdd`.
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
    let placed = if scene.full { place(EACH.1, scene.round, FULL_ROUNDS)? } else { place(EACH.0, 0, 1)? };
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

/// The groups of a round with their places. The long one comes first, in the first round; the wrong one last, in each.
fn place(each: u64, round: usize, rounds: usize) -> Result<Vec<Placed>> {
    let mut long = groups(LONG)?;
    long.retain(|group| group.combinations[0].word == "aes-xts-plain64");
    let mut wrong = groups(EACH.0)?;
    wrong.retain(|group| group.combinations[0].word == "aes-cbc-plain64");
    ensure!(long.len() == 1 && wrong.len() == 1, "the list has not got both aes-xts-plain64 and aes-cbc-plain64");
    long[0].combinations.truncate(1);
    let right = long.into_iter().chain(groups(each)?).chain(others(EACH_OTHER)?).enumerate();
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

/// A combination's cipher and the number of the sector that comes next.
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

/// Findings about one combination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    /// dm-crypt reads what Inlock wrote.
    kernel_reads: bool,
    /// Inlock reads what dm-crypt wrote.
    inlock_reads: bool,
    /// Both wrote the same.
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
            // The disks are there, so what is missing is the cipher.
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

/// Files that the guest left.
struct Disks {
    ours: File,
    plain: File,
    decrypted: File,
    theirs: File,
}

impl Disks {
    /// Compares `len` bytes: of the plaintext from `plain_at` on, of the others from `at` on.
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
