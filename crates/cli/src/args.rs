//! From words to a checked command: validates, never acts.
//!
//! Everything that can be refused without looking at a device is refused here, so that what the commands get is typed and
//! consistent: options against the verb, values against the type of volume, the number of arguments.

mod command;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use inlock_cipher::{CipherSpec, DataUnitSize, Sector};
use inlock_engine::OffloadOptions;
use inlock_volume::plain::{Plain, PlainHash};
use inlock_volume::table::CryptOptions;
use inlock_volume::{Hash, HeaderPolicy, KdfKind};

pub(crate) use command::{
    BenchmarkArgs, Command, CopyArgs, FormatArgs, HeaderArgs, Io, KdfArgs, KeyArgs, KeyFile, Kind, Luks, MountArgs,
    OpenArgs, Place, ResumeArgs, ServeArgs, SourceArgs,
};

use crate::bench::BenchArgs;
use crate::commands::zoned::ZonedArgs;
use crate::control::Name;
use crate::exit::Problem;
use crate::options::{self, Options, Verb};
use crate::table::TableArg;
use crate::way::Via;

/// A checked command line.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// What to do.
    pub command: Command,
    /// Say how it ended.
    pub verbose: bool,
    /// Ask nothing, show no progress.
    pub batch: bool,
}

/// Reads the words after the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<Invocation> {
    let mut command = Options::command();
    let words = std::iter::once(OsString::from("inlock")).chain(words);
    let matches = command.try_get_matches_from_mut(words).map_err(|error| explain(&error))?;
    let mut options = Options::from_arg_matches(&matches).map_err(|error| explain(&error))?;
    let mut words = std::mem::take(&mut options.words);
    old_aliases(&mut options, &mut words);
    let verb = if words.is_empty() { None } else { Some(verb_of(&words.remove(0))) };

    let (verbose, batch) = (options.verbose, options.batch_mode);
    let done = |command| Ok(Invocation { command, verbose, batch });
    if options.version {
        return done(Command::Version);
    }
    if options.help {
        return done(Command::Help(verb.transpose()?));
    }
    let verb = verb.ok_or_else(|| Problem::usage("Argument <action> missing."))??;
    check_options(verb, &command, &matches)?;
    if options.table.is_some() && verb != Verb::Reload {
        // The table stands for the source; what is said of it names this.
        words.insert(usize::from(verb == Verb::Import).min(words.len()), "--table".into());
    }
    check_operands(verb, &words)?;
    done(build(verb, options, words)?)
}

/// Aliases of cryptsetup that are more than another name: `create` has its arguments the other way round, and three aliases name a
/// type of volume.
fn old_aliases(options: &mut Options, words: &mut [OsString]) {
    let kind = match words.first().and_then(|word| word.to_str()) {
        Some("create") => {
            if let [_, name, device] = words {
                std::mem::swap(name, device);
            }
            "plain"
        }
        Some("plainOpen") => "plain",
        _ => return,
    };
    options.volume_type.get_or_insert_with(|| kind.to_owned());
}

/// Refuses options that the verb does not take.
fn check_options(verb: Verb, command: &clap::Command, matches: &ArgMatches) -> anyhow::Result<()> {
    for arg in command.get_arguments() {
        let given = matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        if let Some(long) = arg.get_long().filter(|long| given && !verb.allows(long)) {
            let message = format!("Option --{long} is not allowed with {} action.", verb.name());
            return Err(Problem::usage(message));
        }
    }
    Ok(())
}

fn check_operands(verb: Verb, words: &[OsString]) -> anyhow::Result<()> {
    let (names, least, most) = verb.operands();
    if words.len() < least {
        return Err(Problem::usage(format!("{}: requires {names} as arguments", verb.name())));
    }
    if let Some(extra) = words.get(most) {
        return Err(Problem::usage(format!("{}: unexpected argument '{}'", verb.name(), extra.display())));
    }
    if let Some(place) = words.iter().position(|word| word.is_empty()) {
        return Err(Problem::usage(format!("{}: argument {} is empty", verb.name(), place + 1)));
    }
    Ok(())
}

fn verb_of(word: &OsStr) -> anyhow::Result<Verb> {
    let name = word.to_string_lossy();
    if let Some(verb) = Verb::from_name(&name) {
        return Ok(verb);
    }
    Err(match &*name {
        "luksAddKey" | "luksRemoveKey" | "luksChangeKey" | "luksConvertKey" | "luksKillSlot" | "luksHeaderBackup"
        | "luksHeaderRestore" | "luksErase" | "erase" | "token" | "config" | "convert" | "repair" | "reencrypt" => {
            Problem::refused(
                format!("Action {name} is not available in this version."),
                "the header is in cryptsetup's own format, so that cryptsetup can do this to the same image",
            )
        }
        _ => Problem::usage(format!("Unknown action '{name}'.")),
    })
}

fn build(verb: Verb, options: Options, words: Vec<OsString>) -> anyhow::Result<Command> {
    let mut words = words.into_iter().map(PathBuf::from);
    let mut word = || words.next().ok_or_else(|| Problem::usage("an argument is missing"));
    Ok(match verb {
        Verb::LuksFormat => Command::LuksFormat(Box::new(format_args(options, word()?, word().ok())?)),
        Verb::IsLuks => Command::IsLuks(header_args(options, word()?)?),
        Verb::LuksUuid => Command::LuksUuid(header_args(options, word()?)?),
        Verb::LuksDump => {
            let json = options.dump_json_metadata;
            Command::LuksDump { at: header_args(options, word()?)?, json }
        }
        Verb::Open if options.test_passphrase => Command::TestPassphrase(source_args(&options, word()?)?),
        Verb::Open => {
            let image = word()?;
            let name = word().map_err(|_| Problem::usage("open: requires <source> <name> as arguments"))?;
            Command::Open(Box::new(open_args(&options, image, name_of(&name)?)?))
        }
        Verb::Mount => {
            let (image, dir) = (word()?, word()?);
            Command::Mount(Box::new(mount_args(options, image, dir)?))
        }
        Verb::Umount => Command::Umount { dir: word()?, deferred: options.deferred },
        Verb::Serve => Command::Serve(Box::new(serve_args(options, word()?)?)),
        Verb::Status => Command::Status { name: name_of(&word()?)?, json: options.json },
        Verb::List => Command::List { json: options.json },
        Verb::Top => {
            let names = words.map(|word| name_of(&word)).collect::<anyhow::Result<_>>()?;
            Command::Top { names, once: options.once, json: options.json }
        }
        Verb::Suspend => Command::Suspend(name_of(&word()?)?),
        Verb::Reload => {
            let name = name_of(&word()?)?;
            let table = options.table.as_deref().ok_or_else(|| Problem::usage("reload: --table is missing"))?;
            Command::Reload { name, table: TableArg::parse(table)?, policy: policy_of(&options) }
        }
        Verb::Resume => {
            let name = name_of(&word()?)?;
            Command::Resume(ResumeArgs { name, key: key_args(&options)?, header: options.header })
        }
        Verb::Refresh => Command::Refresh { name: name_of(&word()?)?, flags: flags_of(&options) },
        Verb::Resize => Command::Resize(name_of(&word()?)?),
        Verb::Close => Command::Close { name: name_of(&word()?)?, deferred: options.deferred },
        Verb::Export => {
            let (image, out) = (word()?, word()?);
            Command::Export(copy_args(&options, image, out)?)
        }
        Verb::Import => {
            let (input, image) = (word()?, word()?);
            Command::Import(copy_args(&options, image, input)?)
        }
        Verb::Benchmark => Command::Benchmark(benchmark_args(options)?),
        Verb::Bench => Command::Bench(BenchArgs::new(&options, &word()?.to_string_lossy())?),
        Verb::Table => {
            let (showkeys, json) = (options.showkeys, options.json);
            Command::Table { source: source_args(&options, word()?)?, showkeys, json }
        }
        Verb::Zoned => {
            let (action, path) = (word()?, word()?);
            Command::Zoned(ZonedArgs::new(&options, &action.to_string_lossy(), path)?)
        }
    })
}

fn name_of(word: &Path) -> anyhow::Result<Name> {
    let text = word.to_str().unwrap_or("\0");
    Name::new(text).map_err(|why| Problem::usage(format!("Name '{}' cannot be used: {why}.", word.display())))
}

fn header_args(options: Options, image: PathBuf) -> anyhow::Result<HeaderArgs> {
    let luks = match kind_of(&options)? {
        Kind::Luks(luks) => luks,
        _ => return Err(Problem::usage("This action works on LUKS volumes only.")),
    };
    Ok(HeaderArgs { image, header: options.header, luks })
}

fn key_args(options: &Options) -> anyhow::Result<KeyArgs> {
    let file = options.key_file.as_ref().map(|path| match path.to_str() {
        Some("-") => KeyFile::Stdin,
        _ => KeyFile::Path(path.clone()),
    });
    if file.is_none() && options.keyfile_offset.is_some() {
        return Err(Problem::usage("Option --keyfile-offset needs --key-file."));
    }
    if options.tries == Some(0) {
        return Err(Problem::usage("Option --tries needs a number above zero."));
    }
    if options.keyfile_size == Some(0) {
        return Err(Problem::usage("Option --keyfile-size needs a number above zero."));
    }
    Ok(KeyArgs {
        file,
        offset: options.keyfile_offset.unwrap_or(0),
        size: options.keyfile_size,
        slot: options.key_slot,
        tries: options.tries.unwrap_or(3),
        timeout_secs: options.timeout.filter(|secs| *secs > 0),
        verify: options.verify_passphrase,
    })
}

fn kind_of(options: &Options) -> anyhow::Result<Kind> {
    Ok(match options.volume_type.as_deref() {
        None | Some("luks") => Kind::Luks(Luks::Any),
        Some("luks1") => Kind::Luks(Luks::One),
        Some("luks2") => Kind::Luks(Luks::Two),
        Some("plain") => Kind::Plain(plain_args(options)?),
        Some("raw") => Kind::Raw,
        Some(other) => return Err(Problem::usage(format!("Unrecognized metadata device type {other}."))),
    })
}

fn source_args(options: &Options, image: PathBuf) -> anyhow::Result<SourceArgs> {
    let (mut kind, mut image) = (kind_of(options)?, image);
    let mut name = format!("type {}", options.volume_type.as_deref().unwrap_or("luks"));
    if let Some(table) = &options.table {
        if options.volume_type.is_some() {
            return Err(Problem::usage("Option --type is not allowed with --table."));
        }
        let table = TableArg::parse(table)?;
        (image, name, kind) = (table.image(), "--table".to_owned(), Kind::Table(table));
    }
    let not_allowed = |option: &str| Err(Problem::usage(format!("Option --{option} is not allowed with {name}.")));
    if !matches!(kind, Kind::Plain(_)) {
        let given = [
            (options.cipher.is_some(), "cipher"),
            (options.key_size.is_some(), "key-size"),
            (options.hash.is_some(), "hash"),
            (options.sector_size.is_some(), "sector-size"),
            (options.iv_large_sectors, "iv-large-sectors"),
            (options.spdk_tweak, "spdk-tweak"),
            (options.offset.is_some(), "offset"),
            (options.skip.is_some(), "skip"),
            (options.size.is_some(), "size"),
        ];
        if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
            return not_allowed(option);
        }
    }
    if !matches!(kind, Kind::Luks(_)) {
        if options.header.is_some() {
            return not_allowed("header");
        }
        if options.key_slot.is_some() {
            return not_allowed("key-slot");
        }
        if options.expect_uuid.is_some() {
            return not_allowed("expect-uuid");
        }
    }
    if matches!(kind, Kind::Raw | Kind::Table(_)) && options.key_file.is_some() {
        return not_allowed("key-file");
    }
    let (header, key) = (options.header.clone(), key_args(options)?);
    Ok(SourceArgs { image, header, kind, key, flags: flags_of(options), policy: policy_of(options) })
}

/// The policy that a volume is held against.
fn policy_of(options: &Options) -> HeaderPolicy {
    let mut policy = HeaderPolicy::new();
    policy.allow_null_cipher = options.allow_null_cipher;
    policy.allow_null_iv = options.allow_null_iv;
    policy.allow_linear_segment = options.allow_linear_segment;
    policy.required_ciphers = options.require_cipher.clone().map_or_else(Vec::new, |ciphers| ciphers.0);
    policy.expected_uuid.clone_from(&options.expect_uuid);
    policy
}

/// What is said about discards and about dm-crypt's threads.
fn flags_of(options: &Options) -> CryptOptions {
    CryptOptions {
        allow_discards: options.allow_discards,
        same_cpu_crypt: options.same_cpu_crypt,
        high_priority: options.high_priority,
        submit_from_crypt_cpus: options.submit_from_crypt_cpus,
        no_read_workqueue: options.no_read_workqueue,
        no_write_workqueue: options.no_write_workqueue,
    }
}

fn plain_args(options: &Options) -> anyhow::Result<Plain> {
    let mut cipher = cipher_of(options)?;
    if options.spdk_tweak {
        if cipher != CipherSpec::AES_XTS_PLAIN64 {
            return Err(Problem::usage("Option --spdk-tweak needs the cipher aes-xts-plain64."));
        }
        cipher.iv = inlock_cipher::IvMode::SpdkUpper;
    }
    let unit = options.sector_size.map_or(Ok(DataUnitSize::SECTOR), DataUnitSize::new)?;
    if options.iv_large_sectors && unit == DataUnitSize::SECTOR {
        return Err(Problem::usage("Option --iv-large-sectors needs --sector-size above 512."));
    }
    let fits = |sectors: Option<u64>| sectors.is_none_or(|n| Sector(n).to_bytes().is_some());
    if !fits(options.offset) || !fits(options.size) {
        return Err(Problem::usage("The offset or the size does not fit 64 bits of bytes."));
    }
    if options.size == Some(0) {
        return Err(Problem::usage("The size of the volume is zero."));
    }
    let hash = options.hash.as_deref().unwrap_or("sha256");
    Ok(Plain {
        cipher,
        key_len: key_len_of(options, cipher, false)?,
        hash: hash.parse::<PlainHash>().map_err(|_| Problem::hash(hash))?,
        offset: Sector(options.offset.unwrap_or(0)),
        skip: Sector(options.skip.unwrap_or(0)),
        size: options.size,
        unit,
        large_iv: options.iv_large_sectors,
    })
}

fn hash_of(options: &Options) -> anyhow::Result<Option<Hash>> {
    let parse = |name: &str| name.parse().map_err(|_| Problem::hash(name).into());
    options.hash.as_deref().map(parse).transpose()
}

fn cipher_of(options: &Options) -> anyhow::Result<CipherSpec> {
    match options.cipher.as_deref() {
        None => Ok(CipherSpec::AES_XTS_PLAIN64),
        Some(text) => text.parse().map_err(|error| {
            anyhow::Error::from(error).context(Problem::Refused {
                message: format!("No known cipher specification pattern detected in '{text}'."),
                hint: "a cipher is written CIPHER-MODE-IV, such as aes-xts-plain64 or serpent-cbc-essiv:sha256",
            })
        }),
    }
}

/// The length of the volume key in bytes; the default of 256 bits is doubled for XTS in LUKS, as cryptsetup does it.
fn key_len_of(options: &Options, cipher: CipherSpec, double_for_xts: bool) -> anyhow::Result<usize> {
    let bits = match options.key_size {
        Some(bits) => bits,
        None if double_for_xts && cipher.mode == inlock_cipher::ChainMode::Xts => 512,
        None => 256,
    };
    if bits % 8 != 0 {
        return Err(Problem::usage("Key size must be a multiple of 8 bits"));
    }
    let len = bits as usize / 8;
    if cipher.can_use_key_len(len) {
        return Ok(len);
    }
    let takes: Vec<String> = cipher.key_lens().iter().map(|len| (len * 8).to_string()).collect();
    let takes = match takes.as_slice() {
        [one] => one.clone(),
        [few @ .., last] if few.len() < 6 => format!("{} or {last}", few.join(", ")),
        [first, .., last] => format!("{first} to {last}"),
        [] => "none".to_owned(),
    };
    Err(Problem::usage(format!("Cipher {cipher} takes no key of {bits} bits; it takes {takes} bits.")))
}

fn format_args(options: Options, image: PathBuf, key_file: Option<PathBuf>) -> anyhow::Result<FormatArgs> {
    let version = match kind_of(&options)? {
        Kind::Luks(Luks::Any | Luks::Two) => 2,
        Kind::Luks(Luks::One) => 1,
        _ => return Err(Problem::usage("luksFormat makes LUKS volumes only.")),
    };
    if version == 1 {
        if options.label.is_some() || options.subsystem.is_some() {
            return Err(Problem::usage("Options --label and --subsystem are supported only for LUKS2 volumes."));
        }
        if options.sector_size.is_some_and(|size| size != 512) {
            return Err(Problem::usage("Unsupported encryption sector size: LUKS1 has 512 bytes."));
        }
    }
    let sector_size = match options.sector_size.map(DataUnitSize::new).transpose() {
        Ok(size) if size.is_none_or(|size| size <= DataUnitSize::LUKS_MAX) => size,
        _ => {
            return Err(Problem::usage("Unsupported encryption sector size: LUKS2 has 512, 1024, 2048 or 4096 bytes."));
        }
    };
    let mut key = key_args(&options)?;
    if let Some(path) = key_file {
        if key.file.is_some() {
            return Err(Problem::usage("The key file is named twice: by --key-file and by the argument."));
        }
        key.file = Some(if path.as_os_str() == "-" { KeyFile::Stdin } else { KeyFile::Path(path) });
        key.offset = options.keyfile_offset.unwrap_or(0);
    }
    let slots = if version == 1 { 8 } else { 32 };
    if key.slot.is_some_and(|slot| slot >= slots) {
        return Err(Problem::usage(format!("Key slot is invalid: LUKS{version} has slots 0 to {}.", slots - 1)));
    }
    for (name, text) in [("label", &options.label), ("subsystem", &options.subsystem)] {
        // 48 bytes on the disk, with the closing zero.
        if text.as_ref().is_some_and(|text| text.len() > 47 || text.contains('\0')) {
            return Err(Problem::usage(format!("Option --{name} takes at most 47 bytes.")));
        }
    }
    let cipher = cipher_of(&options)?;
    let kdf = kdf_args(&options)?;
    if version == 1 && kdf.kind.is_some_and(|kind| kind != KdfKind::Pbkdf2) {
        return Err(Problem::usage("LUKS1 has no other PBKDF than pbkdf2."));
    }
    let policy = policy_of(&options);
    Ok(FormatArgs {
        image,
        version,
        key,
        cipher,
        key_len: key_len_of(&options, cipher, true)?,
        sector_size,
        offset: options.offset,
        kdf,
        hash: hash_of(&options)?.unwrap_or(Hash::Sha256),
        header: options.header,
        uuid: options.uuid,
        label: options.label,
        subsystem: options.subsystem,
        policy,
    })
}

fn kdf_args(options: &Options) -> anyhow::Result<KdfArgs> {
    let kind = match options.pbkdf.as_deref() {
        None => None,
        Some(name) => match KdfKind::from_name(name) {
            None => return Err(Problem::usage(format!("Unknown PBKDF '{name}': argon2id, argon2i or pbkdf2."))),
            kind => kind,
        },
    };
    if options.pbkdf_force_iterations.is_some() && options.iter_time.is_some() {
        return Err(Problem::usage("PBKDF forced iterations cannot be combined with iteration time option."));
    }
    let zero = [
        (options.pbkdf_force_iterations, "pbkdf-force-iterations"),
        (options.iter_time, "iter-time"),
        (options.pbkdf_memory, "pbkdf-memory"),
        (options.pbkdf_parallel, "pbkdf-parallel"),
    ];
    if let Some((_, option)) = zero.iter().find(|(value, _)| *value == Some(0)) {
        return Err(Problem::usage(format!("Option --{option} needs a number above zero.")));
    }
    Ok(KdfArgs {
        kind,
        iter_time_ms: options.iter_time,
        force_iterations: options.pbkdf_force_iterations,
        memory_kib: options.pbkdf_memory,
        parallel: options.pbkdf_parallel,
    })
}

fn open_args(options: &Options, image: PathBuf, name: Name) -> anyhow::Result<OpenArgs> {
    check_threads(options)?;
    let place = match (options.launched, options.foreground) {
        (true, _) => Place::Launched,
        (false, true) => Place::Here,
        (false, false) => Place::Background,
    };
    Ok(OpenArgs {
        source: source_args(options, image)?,
        name,
        via: options.via.as_deref().and_then(Via::from_name),
        place,
        read_only: options.read_only,
        threads: options.threads,
        metrics: options.metrics.clone(),
    })
}

fn mount_args(options: Options, image: PathBuf, dir: PathBuf) -> anyhow::Result<MountArgs> {
    if options.foreground {
        return Err(Problem::usage("Option --foreground is not allowed with mount action."));
    }
    let name = match &options.name {
        Some(name) => name.clone(),
        None => {
            // The last part of the path, as far as a name may have it.
            let last = image.file_name().unwrap_or_default().to_string_lossy();
            let plain = |c: char| if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) { c } else { '_' };
            name_of(Path::new(&last.chars().map(plain).collect::<String>()))?
        }
    };
    Ok(MountArgs { open: open_args(&options, image, name)?, dir, options: options.mount_options })
}

fn check_threads(options: &Options) -> anyhow::Result<()> {
    match options.threads {
        Some(0 | 1025..) => Err(Problem::usage("Option --threads takes 1 to 1024.")),
        _ => Ok(()),
    }
}

fn serve_args(options: Options, image: PathBuf) -> anyhow::Result<ServeArgs> {
    check_threads(&options)?;
    let source = source_args(&options, image)?;
    if options.nbd.is_none() && options.run.is_none() {
        return Err(Problem::usage("serve: --nbd unix:PATH or --nbd tcp:HOST:PORT is missing."));
    }
    let place = place(&options)?;
    if options.metrics.is_some() && options.name.is_none() {
        return Err(Problem::refused("Option --metrics needs --name.", "the name is the figures' label"));
    }
    let export_name = options.export_name.unwrap_or_default();
    if export_name.len() > 4096 {
        return Err(Problem::usage("The name of an export has at most 4096 bytes."));
    }
    let offload = offload_options(options.offload.as_deref(), options.offload_threads)?;
    let io = match options.io.as_deref() {
        Some("uring") => Io::Uring,
        Some("sync") => Io::Sync,
        _ => Io::Auto,
    };
    Ok(ServeArgs {
        source,
        listen: options.nbd,
        export_name,
        place,
        name: options.name,
        metrics: options.metrics,
        run: options.run,
        read_only: options.read_only,
        io,
        threads: options.threads,
        offload,
        insecure: options.insecure,
    })
}

fn place(options: &Options) -> anyhow::Result<Place> {
    match (options.launched, options.background) {
        (true, _) => Ok(Place::Launched),
        (false, false) => Ok(Place::Here),
        (false, true) if options.name.is_none() => {
            Err(Problem::refused("Option --background needs --name.", "`inlock close NAME` ends what has a name"))
        }
        (false, true) if options.run.is_some() => {
            Err(Problem::usage("Option --run serves while a command runs, so --background has no meaning."))
        }
        (false, true) => Ok(Place::Background),
    }
}

fn offload_options(policy: Option<&str>, threads: Option<u16>) -> anyhow::Result<OffloadOptions> {
    let mut offload = OffloadOptions::default();
    if let Some(threads) = threads.map(usize::from) {
        if !(1..=OffloadOptions::MAX_THREADS).contains(&threads) {
            return Err(Problem::usage(format!(
                "Option --offload-threads takes 1 to {}; --offload none does without.",
                OffloadOptions::MAX_THREADS
            )));
        }
        offload.threads = threads;
    }
    if let Some(policy) = policy {
        offload.policy = policy.parse().map_err(|e| Problem::usage(format!("Option --offload '{policy}' is {e}.")))?;
    }
    Ok(offload)
}

fn copy_args(options: &Options, image: PathBuf, other: PathBuf) -> anyhow::Result<CopyArgs> {
    if image.as_os_str() == "-" {
        return Err(Problem::usage("The image cannot be standard input or output."));
    }
    Ok(CopyArgs {
        source: source_args(options, image)?,
        other: Some(other).filter(|path| path.as_os_str() != "-"),
        range: options.range,
        progress_json: options.progress_json,
        progress_secs: options.progress_frequency.filter(|secs| *secs > 0),
    })
}

fn benchmark_args(options: Options) -> anyhow::Result<BenchmarkArgs> {
    let cipher = options.cipher.as_ref().map(|_| cipher_of(&options)).transpose()?;
    let key_len = cipher.map(|cipher| key_len_of(&options, cipher, true)).transpose()?;
    Ok(BenchmarkArgs { cipher, key_len, kdf: kdf_args(&options)?, hash: hash_of(&options)? })
}

/// clap's complaint in cryptsetup's words where it has them.
fn explain(error: &clap::Error) -> anyhow::Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let option = context(ContextKind::InvalidArg);
    let name = option.split(' ').next().unwrap_or_default();
    Problem::usage(match error.kind() {
        ErrorKind::UnknownArgument if options::is_only_cryptsetups(name) => {
            return Problem::refused(
                format!("Option {name} of cryptsetup is not available in this version."),
                "leave it out, or let cryptsetup do this: the format is the same",
            );
        }
        ErrorKind::InvalidValue if name == "--hash" && context(ContextKind::InvalidValue).is_empty() => {
            format!("{name}: missing argument (-h is --hash; help is -? or --help)")
        }
        ErrorKind::UnknownArgument => match context(ContextKind::SuggestedArg) {
            suggestion if suggestion.is_empty() => format!("{name}: unknown option"),
            suggestion => format!("{name}: unknown option; is {suggestion} meant?"),
        },
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => format!("{name}: missing argument"),
        ErrorKind::InvalidValue => {
            let valid = context(ContextKind::ValidValue);
            format!("{name}: invalid value '{}': one of {valid}", context(ContextKind::InvalidValue))
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("{name}: invalid value '{}': {why}", context(ContextKind::InvalidValue))
        }
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8".to_owned(),
        _ => {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    })
}
