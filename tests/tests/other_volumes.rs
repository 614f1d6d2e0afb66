//! Inlock reads and writes volumes of cryptsetup and QEMU, and they read and write Inlock's.
//!
//! An independent decryptor (`oracle/reference.py`), and for LUKS1 also QEMU and nbdkit, judge the bytes. Reads are
//! compared twice: noise in the payload, decrypted by both, and plaintext encrypted by the reference and read by
//! Inlock. Writes go through NBD at random offsets and lengths, and are compared with a model and with the reference.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use inlock_tests::image::{
    CHEAP_ARGON2, CHEAP_PBKDF2, PAYLOAD, cryptsetup_format, difference, fill_with_noise, inlock_format, key_file,
    qemu_format, sparse,
};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::oracle::Volume;
use inlock_tests::process::{inlock, output, program, text};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::server::Server;

const PATIENCE: Duration = Duration::from_secs(60);
const PASSPHRASE: &[u8] = b"a passphrase with blanks and \xc3\xa4";

/// A volume of the matrix in its own directory.
struct Made {
    name: String,
    image: PathBuf,
    key: PathBuf,
    header: Option<PathBuf>,
    /// The reference's description of a volume without a header, and Inlock's options for it.
    plain: Option<(String, Vec<String>)>,
    dir: tempfile::TempDir,
}

impl Made {
    fn new(name: String) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let key = key_file(dir.path(), "key", PASSPHRASE)?;
        Ok(Self { name, image: dir.path().join("volume.img"), key, header: None, plain: None, dir })
    }

    fn oracle(&self) -> Volume<'_> {
        Volume {
            image: &self.image,
            key: &self.key,
            header: self.header.as_deref(),
            plain: self.plain.as_ref().map(|p| p.0.as_str()),
        }
    }

    /// Returns the options that name the header and the key.
    fn opening(&self) -> Vec<String> {
        let mut args = vec!["--key-file".to_owned(), self.key.display().to_string()];
        if let Some(header) = &self.header {
            args.extend(["--header".to_owned(), header.display().to_string()]);
        }
        args.extend(self.plain.iter().flat_map(|p| p.1.clone()));
        args
    }

    fn export(&self, range: Option<(u64, u64)>) -> Result<Vec<u8>> {
        let out = self.dir.path().join("plain.img");
        let mut command = inlock()?;
        command.args(["export", "-q"]).args(self.opening());
        if let Some((offset, len)) = range {
            command.args(["--range", &format!("{offset}:{len}")]);
        }
        text(command.arg(&self.image).arg(&out))?;
        let bytes = std::fs::read(&out)?;
        std::fs::remove_file(out)?;
        Ok(bytes)
    }

    fn serve(&self, more: &[&str]) -> Result<Server> {
        let opening = self.opening();
        let mut args: Vec<&str> = opening.iter().map(String::as_str).collect();
        args.extend(more);
        Server::inlock(self.dir.path(), "volume", &self.image, None, &args)
    }
}

fn same(what: &str, ours: &[u8], theirs: &[u8]) -> Result<()> {
    let difference = difference(ours, theirs);
    ensure!(difference.is_none(), "{what}: {}", difference.unwrap_or_default());
    Ok(())
}

/// Reads and writes the volume through Inlock, and compares with the reference.
fn check_volume(made: &Made, io: &str) -> Result<()> {
    let oracle = made.oracle();
    let offset = oracle.payload_offset()?;
    let len = std::fs::metadata(&made.image)?.len() - offset;
    ensure!(len == PAYLOAD, "the payload has {len} bytes");
    fill_with_noise(&made.image, offset, len, 1)?;
    same("export of noise", &made.export(None)?, &oracle.decrypt()?)?;
    let mut random = Random::new(2);
    let mut model = random.bytes(PAYLOAD as usize);
    oracle.encrypt(&model)?;
    same("export of the reference's plaintext", &made.export(None)?, &model)?;
    for _ in 0..3 {
        let from = random.below(PAYLOAD - 1);
        let len = 1 + random.below(PAYLOAD - from);
        let part = &model[from as usize..(from + len) as usize];
        same(&format!("export of {from}:{len}"), &made.export(Some((from, len)))?, part)?;
    }
    let mut server = made.serve(&["--io", io])?;
    random_operations(server.socket(), &mut model, &mut random)?;
    let status = server.terminate()?;
    ensure!(status.success(), "the server ends with {status}: {}", server.log_text());
    same("the reference after writes through NBD", &oracle.decrypt()?, &model)
}

/// Reads and writes random ranges of odd lengths over two connections, and updates the model.
fn random_operations(socket: &Path, model: &mut [u8], random: &mut Random) -> Result<()> {
    let mut connections =
        [Connection::open(socket, PATIENCE, Mode::Simple)?, Connection::open(socket, PATIENCE, Mode::Extended)?];
    for n in 0..160u64 {
        let connection = &mut connections[(n % 2) as usize];
        let longest = *random.pick(&[16, 700, 4096, 9000, 200_000]);
        let offset = random.below(PAYLOAD - longest);
        let len = (1 + random.below(longest)) as usize;
        let range = offset as usize..offset as usize + len;
        if random.below(2) == 0 {
            same("a read through NBD", &connection.read(offset, len)?, &model[range])?;
        } else {
            let data = random.bytes(len);
            connection.write(offset, &data)?;
            model[range].copy_from_slice(&data);
        }
    }
    let [mut first, second] = connections;
    same("everything through NBD", &first.read(0, PAYLOAD as usize)?, model)?;
    first.flush()?;
    first.disconnect()?;
    second.disconnect()
}

fn check_all(made: Vec<Result<Made>>, what: &str) -> Result<()> {
    let mut failures = Vec::new();
    let all = made.len();
    for (n, volume) in made.into_iter().enumerate() {
        let volume = volume?;
        if let Err(error) = check_volume(&volume, ["uring", "sync", "auto"][n % 3]) {
            failures.push(format!("{}: {error:#}", volume.name));
        }
    }
    count(what, all - failures.len());
    ensure!(failures.is_empty(), "{} of {all} volumes:\n{}", failures.len(), failures.join("\n"));
    Ok(())
}

fn by_cryptsetup(len: u64, args: &[&str]) -> Result<Made> {
    let made = Made::new(args.join(" "))?;
    cryptsetup_format(&made.image, len, &made.key, args).context(made.name.clone())?;
    // luksFormat does not extend a shorter file by the header's padding.
    let offset = made.oracle().payload_offset()?;
    std::fs::File::options().write(true).open(&made.image)?.set_len(offset + PAYLOAD)?;
    Ok(made)
}

#[test]
fn luks1_volumes_of_cryptsetup() -> Result<()> {
    let mut made = Vec::new();
    for cipher in ["aes-xts-plain64", "aes-xts-plain", "aes-cbc-essiv:sha256", "aes-cbc-plain64", "aes-cbc-plain"] {
        for bits in ["256", "512"] {
            if bits == "512" && cipher.contains("cbc") {
                continue;
            }
            for hash in ["sha1", "sha256", "sha512"] {
                let args = ["--type=luks1", "--cipher", cipher, "--key-size", bits, "--hash", hash];
                made.push(by_cryptsetup(8 << 20, &[&args[..], &["--pbkdf-force-iterations=1000"]].concat()));
            }
        }
    }
    check_all(made, "luks1_volumes_of_cryptsetup")
}

#[test]
fn luks2_volumes_of_cryptsetup() -> Result<()> {
    let mut made = Vec::new();
    let argon = |kind: &'static str| [&[kind][..], &CHEAP_ARGON2].concat();
    let kdfs = [CHEAP_PBKDF2.to_vec(), argon("--pbkdf=argon2i"), argon("--pbkdf=argon2id")];
    for (n, kdf) in kdfs.iter().enumerate() {
        for hash in ["sha1", "sha256", "sha512"] {
            for bits in ["256", "512"] {
                let sector = ["512", "1024", "2048", "4096"][(made.len() + n) % 4];
                let mut args = vec!["--type=luks2", "--cipher=aes-xts-plain64", "--key-size", bits, "--hash", hash];
                args.extend(["--sector-size", sector]);
                args.extend(kdf);
                made.push(by_cryptsetup(20 << 20, &args));
            }
        }
    }
    for sector in ["512", "1024", "2048", "4096"] {
        for cipher in ["aes-xts-plain64", "aes-cbc-essiv:sha256", "aes-cbc-plain64"] {
            let bits = if cipher.contains("xts") { "512" } else { "256" };
            let mut args = vec!["--type=luks2", "--cipher", cipher, "--key-size", bits, "--sector-size", sector];
            args.extend(["--label", "a label", "--subsystem", "a subsystem"]);
            args.extend(CHEAP_PBKDF2);
            made.push(by_cryptsetup(20 << 20, &args));
        }
    }
    check_all(made, "luks2_volumes_of_cryptsetup")
}

#[test]
fn detached_headers_of_cryptsetup() -> Result<()> {
    let mut made = Vec::new();
    for kind in ["luks1", "luks2"] {
        let mut volume = Made::new(format!("detached {kind}"))?;
        let header = volume.dir.path().join("header.img");
        sparse(&volume.image, PAYLOAD)?;
        sparse(&header, 16 << 20)?;
        let mut command = program("cryptsetup");
        command.args(["luksFormat", "-q", "--type", kind, "--header"]).arg(&header);
        command.args(if kind == "luks1" { &CHEAP_PBKDF2[1..] } else { &CHEAP_PBKDF2[..] });
        text(command.arg("--key-file").arg(&volume.key).arg(&volume.image))?;
        volume.header = Some(header);
        made.push(Ok(volume));
    }
    check_all(made, "detached_headers_of_cryptsetup")
}

#[test]
fn every_keyslot_of_cryptsetup_opens() -> Result<()> {
    let mut opened = 0;
    for kind in ["luks1", "luks2"] {
        let cheap = if kind == "luks1" { &CHEAP_PBKDF2[1..] } else { &CHEAP_PBKDF2[..] };
        let mut args = vec!["--type", kind];
        args.extend(cheap);
        let made = by_cryptsetup(20 << 20, &args)?;
        for slot in 1..8 {
            let key = key_file(made.dir.path(), &format!("key{slot}"), format!("slot {slot}").as_bytes())?;
            let mut command = program("cryptsetup");
            command.args(["luksAddKey", "-q"]).args(cheap).args(["--key-slot", &slot.to_string(), "--key-file"]);
            text(command.arg(&made.key).arg(&made.image).arg(&key))?;
        }
        let plain = made.oracle().decrypt()?;
        for slot in 0..8 {
            let name = if slot == 0 { "key".to_owned() } else { format!("key{slot}") };
            let key = made.dir.path().join(&name);
            for chosen in [None, Some(slot)] {
                let out = made.dir.path().join("out");
                let mut command = inlock()?;
                command.args(["export", "-q"]).arg("--key-file").arg(&key).arg(&made.image).arg(&out);
                if let Some(slot) = chosen {
                    command.args(["--key-slot", &slot.to_string()]);
                }
                text(&mut command)?;
                same(&format!("{kind} slot {slot}"), &std::fs::read(&out)?, &plain)?;
                opened += 1;
            }
            let other = ((slot + 1) % 8).to_string();
            let mut wrong = inlock()?;
            wrong.args(["export", "--key-slot", &other, "--key-file"]).arg(&key).arg(&made.image).arg("-");
            ensure!(output(&mut wrong)?.status.code() == Some(2), "{kind}: the key of slot {slot} opens slot {other}");
        }
    }
    count("keyslots_of_cryptsetup_opened", opened);
    Ok(())
}

#[test]
fn volumes_of_qemu() -> Result<()> {
    let mut made = Vec::new();
    let options = [
        "",
        ",hash-alg=sha1",
        ",hash-alg=sha512",
        ",cipher-alg=aes-128",
        ",cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=plain64",
        ",cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256",
        ",cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=plain",
        ",cipher-alg=aes-128,cipher-mode=xts,ivgen-alg=plain",
    ];
    for options in options {
        let volume = Made::new(format!("qemu {options}"))?;
        qemu_format(&volume.image, PAYLOAD, &volume.key, options)?;
        made.push(Ok(volume));
    }
    check_all(made, "volumes_of_qemu")
}

#[test]
fn volumes_without_a_header() -> Result<()> {
    let mut made = Vec::new();
    for (n, unit) in [512, 1024, 4096, 16384, 65536].into_iter().enumerate() {
        for (cipher, key_len) in [("aes-xts-plain64", 64), ("aes-cbc-essiv:sha256", 32), ("aes-xts-plain", 32)] {
            // Units of 512 bytes have no large IVs.
            for large in 0..if unit == 512 { 1 } else { 2 } {
                // An IV offset is a multiple of the data unit. The last one makes 32-bit IVs wrap.
                let skip = [0u64, 128, 1 << 20, (1 << 32) - 256][(n + large) % 4];
                let offset = [0, 128][n % 2];
                let mut volume = Made::new(format!("plain {cipher} {key_len} {unit} {skip} {offset} {large}"))?;
                std::fs::write(&volume.key, Random::new(n as u64).bytes(key_len))?;
                sparse(&volume.image, offset * 512 + PAYLOAD)?;
                let mut args = vec!["--type=plain".to_owned(), format!("--cipher={cipher}")];
                args.extend([format!("--key-size={}", key_len * 8), format!("--sector-size={unit}")]);
                args.extend([format!("--offset={offset}"), format!("--skip={skip}")]);
                if large == 1 {
                    args.push("--iv-large-sectors".to_owned());
                }
                volume.plain = Some((format!("{cipher},{unit},{offset},{skip},{large}"), args));
                made.push(Ok(volume));
            }
        }
    }
    check_all(made, "volumes_without_a_header")
}

/// Checks that `cryptsetup` accepts a volume of Inlock.
fn cryptsetup_accepts(made: &Made, kind: &str) -> Result<()> {
    let head = made.header.as_deref().unwrap_or(&made.image);
    text(program("cryptsetup").args(["isLuks", "--type", kind]).arg(head))?;
    let dump = text(program("cryptsetup").arg("luksDump").arg(head))?;
    let uuid = text(inlock()?.arg("luksUUID").arg(head))?;
    ensure!(dump.contains(uuid.trim()) && uuid.trim().len() == 36, "the UUID {uuid} is not in {dump}");
    text(program("cryptsetup").args(["open", "--test-passphrase", "--key-file"]).arg(&made.key).arg(head))?;
    let wrong = key_file(made.dir.path(), "wrong", b"something else")?;
    let refused =
        output(program("cryptsetup").args(["open", "--test-passphrase", "--key-file"]).arg(&wrong).arg(head))?;
    ensure!(refused.status.code() == Some(2), "cryptsetup opens it with a wrong key: {}", refused.status);
    Ok(())
}

#[test]
fn volumes_of_inlock_open_in_cryptsetup() -> Result<()> {
    let argon = |kind: &'static str| [&["--type=luks2", kind][..], &CHEAP_ARGON2].concat();
    let luks1 = || vec!["--type=luks1", "--pbkdf-force-iterations=1000"];
    let luks2 = || [&["--type=luks2"][..], &CHEAP_PBKDF2].concat();
    let mut rows: Vec<Vec<&str>> = vec![argon("--pbkdf=argon2i"), argon("--pbkdf=argon2id"), luks1(), luks2()];
    for bits in ["256", "512"] {
        rows.push([luks1(), vec!["--key-size", bits, "--cipher=aes-xts-plain64"]].concat());
        rows.push([luks2(), vec!["--key-size", bits, "--cipher=aes-xts-plain64"]].concat());
    }
    for hash in ["sha1", "sha256", "sha512"] {
        rows.push([luks1(), vec!["--hash", hash]].concat());
        rows.push([luks2(), vec!["--hash", hash]].concat());
    }
    for cipher in ["aes-cbc-essiv:sha256", "aes-cbc-plain64"] {
        rows.push([luks1(), vec!["--key-size=256", "--cipher", cipher]].concat());
        rows.push([luks2(), vec!["--key-size=256", "--cipher", cipher]].concat());
    }
    for sector in ["512", "1024", "2048", "4096"] {
        rows.push([luks2(), vec!["--sector-size", sector, "--label", "ours"]].concat());
    }
    let mut made = Vec::new();
    for args in &rows {
        let volume = Made::new(args.join(" "))?;
        inlock_format(&volume.image, 20 << 20, &volume.key, args).context(volume.name.clone())?;
        cryptsetup_accepts(&volume, if volume.name.contains("luks1") { "luks1" } else { "luks2" })
            .context(volume.name.clone())?;
        let offset = volume.oracle().payload_offset()?;
        std::fs::File::options().write(true).open(&volume.image)?.set_len(offset + PAYLOAD)?;
        made.push(Ok(volume));
    }
    check_all(made, "volumes_of_inlock_checked")
}

#[test]
fn detached_header_of_inlock_opens_in_cryptsetup() -> Result<()> {
    let mut made = Vec::new();
    for kind in ["luks1", "luks2"] {
        let mut volume = Made::new(format!("our detached {kind}"))?;
        let header = volume.dir.path().join("header.img");
        sparse(&volume.image, PAYLOAD)?;
        sparse(&header, 16 << 20)?;
        let mut command = inlock()?;
        command.args(["luksFormat", "-q", "--type", kind, "--header"]).arg(&header);
        command.args(if kind == "luks1" { &CHEAP_PBKDF2[1..] } else { &CHEAP_PBKDF2[..] });
        text(command.arg("--key-file").arg(&volume.key).arg(&volume.image))?;
        volume.header = Some(header);
        cryptsetup_accepts(&volume, kind)?;
        made.push(Ok(volume));
    }
    check_all(made, "detached_headers_of_inlock")
}

#[test]
fn luks1_volumes_of_inlock_are_read_by_qemu_and_nbdkit() -> Result<()> {
    let mut read = 0;
    for args in [["--cipher=aes-xts-plain64", "--key-size=512"], ["--cipher=aes-xts-plain64", "--key-size=256"]] {
        let made = Made::new(args.join(" "))?;
        let all = [&["--type=luks1", "--pbkdf-force-iterations=1000"][..], &args].concat();
        inlock_format(&made.image, 8 << 20, &made.key, &all)?;
        let offset = made.oracle().payload_offset()?;
        std::fs::File::options().write(true).open(&made.image)?.set_len(offset + PAYLOAD)?;
        let plain = Random::new(3).bytes(PAYLOAD as usize);
        let raw = made.dir.path().join("raw.img");
        std::fs::write(&raw, &plain)?;
        text(inlock()?.args(["import"]).args(made.opening()).arg(&raw).arg(&made.image))?;

        let secret = format!("secret,id=s,file={}", made.key.display());
        let source = format!("driver=luks,key-secret=s,file.filename={}", made.image.display());
        let by_qemu = made.dir.path().join("qemu.raw");
        let convert = ["convert", "--object", &secret, "--image-opts", &source, "-O", "raw"];
        text(program("qemu-img").args(convert).arg(&by_qemu))?;
        same("qemu-img convert", &std::fs::read(&by_qemu)?, &plain)?;

        let by_nbdkit = made.dir.path().join("nbdkit.raw");
        let mut nbdkit = program("nbdkit");
        nbdkit.args(["-U", "-", "file"]).arg(&made.image).arg("--filter=luks");
        nbdkit.arg(format!("passphrase=+{}", made.key.display()));
        text(nbdkit.arg("--run").arg(format!("nbdcopy \"$uri\" {}", by_nbdkit.display())))?;
        same("nbdkit --filter=luks", &std::fs::read(&by_nbdkit)?, &plain)?;
        read += 2;
    }
    count("luks1_volumes_of_inlock_read_by_others", read);
    Ok(())
}

#[test]
fn comparison_detects_one_wrong_byte() -> Result<()> {
    let made = by_cryptsetup(8 << 20, &["--type=luks1", "--pbkdf-force-iterations=1000"])?;
    let oracle = made.oracle();
    let model = Random::new(4).bytes(PAYLOAD as usize);
    oracle.encrypt(&model)?;
    same("untouched", &oracle.decrypt()?, &model)?;
    fill_with_noise(&made.image, oracle.payload_offset()? + 777_777, 1, 5)?;
    ensure!(same("one byte damaged", &oracle.decrypt()?, &model).is_err(), "the damage is not seen");
    Ok(())
}
