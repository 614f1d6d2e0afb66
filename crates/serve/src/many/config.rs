//! The file of `serve --config`: TOML with a table for each volume.
//!
//! The keys of a volume are those of an [`OpenConfig`], and a few of its own. docs/guide/many.md describes them. An
//! error names the line and the key. A volume that is added to a running server has the same keys.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inlock_frontend::nbd::throttle::ExportLimits;
use inlock_frontend::nbd::tls::TlsOptions;
use inlock_open::config::{ConfigError, OpenConfig, VolumeSource, values};
use inlock_open::host::Host;
use inlock_open::source::{KeySource, VolumeType};
use serde::Deserialize;
use serde::de::value::MapDeserializer;
use toml::{Spanned, Value};

use crate::error::{Error, Result, ResultExt};
use crate::trusted_config::Trust;

/// Maximum length of a file in bytes.
const MAX_LEN: u64 = 16 << 20;
/// Maximum number of volumes.
const MAX_VOLUMES: usize = 65_536;
/// Time that a helper has for a key.
const KEY_TIMEOUT: u64 = 30;

/// Bytes of requests in flight of a volume: two of the longest requests.
const MAX_IN_FLIGHT: u64 = 64 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileContent {
    /// In seconds. 0: volumes stay open.
    idle_timeout: Option<Spanned<Value>>,
    /// Volume of clients that name none.
    default: Option<Spanned<Value>>,
    tls: Option<Spanned<Value>>,
    tls_certificates: Option<Spanned<Value>>,
    tls_verify_peer: Option<Spanned<Value>>,
    #[serde(default)]
    volumes: BTreeMap<Spanned<String>, Keys>,
}

/// The table of a volume.
type Keys = BTreeMap<Spanned<String>, Spanned<Value>>;

/// A checked file.
#[derive(Clone, Default)]
pub(crate) struct Config {
    pub default: Option<String>,
    /// Of volumes without one, in seconds.
    pub idle_timeout: u64,
    pub tls: Option<TlsOptions>,
    pub volumes: BTreeMap<String, VolumeConfig>,
}

/// A volume of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct VolumeConfig {
    /// Options of opening it; if they change, an open volume is closed.
    pub opening: Opening,
    /// Path of the image without symbolic links.
    real_image: PathBuf,
    pub limits: ExportLimits,
    pub idle_timeout: Option<Duration>,
    /// Whether clients see it in the list of exports.
    pub listed: bool,
    pub max_clients: usize,
}

impl VolumeConfig {
    /// Whether an open volume can have this configuration instead of `other`, which it was opened with.
    pub(crate) fn is_opened_like(&self, other: &Self) -> bool {
        self.opening == other.opening && self.max_clients == other.max_clients
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Opening {
    image: PathBuf,
    pub config: OpenConfig,
    pub key_command: Vec<OsString>,
    pub key_timeout: Duration,
}

/// An error, and where it is.
struct Fault {
    at: Range<usize>,
    key: String,
    text: String,
}

impl Fault {
    fn new(at: Range<usize>, key: impl Into<String>, text: impl Into<String>) -> Self {
        Self { at, key: key.into(), text: text.into() }
    }

    fn locate(&self, text: &str) -> String {
        format!("line {}, {}: {}", line(text, self.at.start), self.key, self.text.trim_end_matches('.'))
    }
}

/// Volumes of a server by their names.
pub(crate) type VolumeConfigs = BTreeMap<String, VolumeConfig>;

/// Reads a file. `added`: volumes that were added at run time. `host`: is told of policies that protect little.
pub(crate) fn read(host: &dyn Host, path: &Path, trust: Trust, added: &VolumeConfigs) -> Result<Config> {
    let mut text = String::new();
    let file = trust.open_config(path)?;
    let cannot = || format!("cannot read {}", path.display());
    file.take(MAX_LEN + 1).read_to_string(&mut text).with_context(cannot)?;
    if text.len() as u64 > MAX_LEN {
        return Err(Error::ConfigTooLong { path: path.to_owned(), max: MAX_LEN });
    }
    parse(host, &text, added).map_err(|fault| Error::Config { path: path.to_owned(), fault })
}

/// Parses the text of a file. An error is the number of a line, and what is wrong there.
pub(crate) fn parse(host: &dyn Host, text: &str, added: &VolumeConfigs) -> Result<Config, String> {
    let content: FileContent = toml::from_str(text).map_err(|error| invalid(text, &error))?;
    convert(host, content, added).map_err(|fault| fault.locate(text))
}

/// Parses the table of a volume that is added to `others`. `idle_timeout`: that of volumes without one.
pub(crate) fn parse_volume(
    host: &dyn Host,
    name: &str,
    text: &str,
    idle_timeout: u64,
    others: &VolumeConfigs,
) -> Result<VolumeConfig, String> {
    let keys: Keys = toml::from_str(text).map_err(|error| invalid(text, &error))?;
    let mut volumes = Converter::new(host, others, idle_timeout);
    volumes.add(name, 0..0, keys).map_err(|fault| fault.locate(text))
}

/// Returns the number of the line with this byte.
fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn invalid(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start);
    // The types of all values below are checked later.
    let message = match error.message().starts_with("invalid type") {
        true => "expected a table for each volume, [volumes.NAME]".to_owned(),
        false => error.message().replace('\n', " "),
    };
    format!("line {}: {message}", line(text, start))
}

/// Converts the value of a key that is not one of a volume.
fn converted<'a, T>(
    key: &str,
    value: Option<&'a Spanned<Value>>,
    convert: impl FnOnce(&'a Value) -> Result<T, String>,
) -> Result<Option<T>, Fault> {
    let fault = |value: &Spanned<Value>, text| Fault::new(value.span(), key, text);
    value.map(|value| convert(value.as_ref()).map_err(|text| fault(value, text))).transpose()
}

fn convert(host: &dyn Host, content: FileContent, added: &VolumeConfigs) -> Result<Config, Fault> {
    let tls = tls_options(&content)?;
    let idle_timeout = converted("idle-timeout", content.idle_timeout.as_ref(), |value| number(value, 0))?.unwrap_or(0);
    let mut config = Config { idle_timeout, tls, ..Config::default() };
    // The file replaces the volumes that it has.
    let in_file: HashSet<&str> = content.volumes.keys().map(|name| name.as_ref().as_str()).collect();
    let kept: VolumeConfigs = added.iter().filter(|(name, _)| !in_file.contains(name.as_str())).map(owned).collect();
    let mut volumes = Converter::new(host, &kept, idle_timeout);
    for (name, keys) in content.volumes {
        let at = name.span();
        let name = name.into_inner();
        let volume = volumes.add(&name, at, keys)?;
        config.volumes.insert(name, volume);
    }
    config.default = converted("default", content.default.as_ref(), |value| {
        let default = text(value)?;
        let is_known = config.volumes.contains_key(default);
        if is_known { Ok(default.to_owned()) } else { Err(format!("there is no volume {default}")) }
    })?;
    Ok(config)
}

fn owned((name, volume): (&String, &VolumeConfig)) -> (String, VolumeConfig) {
    (name.clone(), volume.clone())
}

/// Converts volumes, which must not share images that one of them writes.
struct Converter<'a> {
    host: &'a dyn Host,
    idle_timeout: u64,
    /// Images, with their volume and whether it is writable.
    images: HashMap<PathBuf, (String, bool)>,
    count: usize,
}

impl<'a> Converter<'a> {
    /// `others`: volumes that the server has already.
    fn new(host: &'a dyn Host, others: &VolumeConfigs, idle_timeout: u64) -> Self {
        let mut images = HashMap::new();
        for (name, volume) in others {
            images.entry(volume.real_image.clone()).or_insert((name.clone(), !volume.opening.config.read_only));
        }
        Self { host, idle_timeout, images, count: others.len() }
    }

    fn add(&mut self, name: &str, at: Range<usize>, keys: Keys) -> Result<VolumeConfig, Fault> {
        let key = format!("volumes.{name}");
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            return Err(Fault::new(at, key, "a name has 1 to 255 bytes and no control characters"));
        }
        if self.count == MAX_VOLUMES {
            return Err(Fault::new(at, key, format!("a server has at most {MAX_VOLUMES} volumes")));
        }
        let mut volume = volume(self.host, &key, &at, keys, self.idle_timeout)?;
        let image = volume.opening.image.clone();
        volume.real_image = std::fs::canonicalize(&image).unwrap_or(image);
        let (image, writable) = (&volume.real_image, !volume.opening.config.read_only);
        if let Some((other, other_writable)) = self.images.get(image).filter(|_| !image.as_os_str().is_empty()) {
            if writable || *other_writable {
                let image = volume.opening.image.display();
                let text = format!("{image} is the image of volume {other} too; only read-only volumes share one");
                return Err(Fault::new(at, format!("{key}.image"), text));
            }
        } else {
            self.images.insert(image.clone(), (name.to_owned(), writable));
        }
        self.count += 1;
        Ok(volume)
    }
}

fn tls_options(content: &FileContent) -> Result<Option<TlsOptions>, Fault> {
    let FileContent { tls, tls_certificates: dir, tls_verify_peer: verify, .. } = content;
    let at = [tls, dir, verify].into_iter().flatten().next().map(Spanned::span).unwrap_or_default();
    let mode = converted("tls", tls.as_ref(), text)?;
    let dir = converted("tls-certificates", dir.as_ref(), text)?.map(PathBuf::from);
    let verify = converted("tls-verify-peer", verify.as_ref(), flag)?.unwrap_or(false);
    crate::tls::options("", mode, dir.as_ref(), verify).map_err(|text| {
        let (key, text) = text.split_once(' ').unwrap_or(("tls", &text));
        Fault::new(at, key.trim_end_matches(':'), text)
    })
}

/// Converts the table of a volume, which is called `key` and begins at `at`.
fn volume(host: &dyn Host, key: &str, at: &Range<usize>, keys: Keys, idle_timeout: u64) -> Result<VolumeConfig, Fault> {
    let opening = Opening {
        image: PathBuf::new(),
        config: OpenConfig::default(),
        key_command: Vec::new(),
        key_timeout: Duration::from_secs(KEY_TIMEOUT),
    };
    let mut limits = ExportLimits::default();
    limits.in_flight = Some(MAX_IN_FLIGHT);
    let mut volume =
        VolumeConfig { opening, real_image: PathBuf::new(), limits, idle_timeout: None, listed: true, max_clients: 16 };
    let mut idle_timeout = idle_timeout;
    let mut options = Vec::new();
    for (name, value) in keys {
        let fault = |text: String| Fault::new(name.span(), format!("{key}.{}", name.as_ref()), text);
        match own_key(&mut volume, &mut idle_timeout, name.as_ref(), value.as_ref()) {
            Some(result) => result.map_err(fault)?,
            None => {
                check_option(name.as_ref(), value.as_ref()).map_err(fault)?;
                options.push((name, value.into_inner()));
            }
        }
    }
    volume.idle_timeout = Some(Duration::from_secs(idle_timeout)).filter(|time| !time.is_zero());
    volume.opening.config = config(key, &options)?;
    let source = volume.opening.checked(host).map_err(|Refusal { option, text }| {
        match options.iter().find(|(name, _)| name.as_ref() == option) {
            Some((name, _)) => Fault::new(name.span(), format!("{key}.{option}"), text),
            None => Fault::new(at.clone(), key, text),
        }
    })?;
    let encrypted = matches!(source.options.volume_type, VolumeType::Luks(_) | VolumeType::Plain(_));
    let sources = [
        !matches!(source.options.key.source, KeySource::Ask),
        !volume.opening.key_command.is_empty(),
        source.options.key.volume_key.is_some(),
    ];
    let count = sources.iter().filter(|given| **given).count();
    match (encrypted, count) {
        (true, 1) | (false, 0) => Ok(volume),
        (true, _) => {
            let text = "exactly one of key-file, key-command and volume-key-file is needed";
            Err(Fault::new(at.clone(), key, text))
        }
        (false, _) => Err(Fault::new(at.clone(), key, "a volume of this type takes no key")),
    }
}

/// Converts the keys of a volume that are options of opening it.
fn config(key: &str, options: &[(Spanned<String>, Value)]) -> Result<OpenConfig, Fault> {
    let current = Cell::new(None);
    // `false` is as if the key were not there.
    let given = options.iter().filter(|(_, value)| value.as_bool() != Some(false));
    let entries = given.map(|(name, value)| {
        current.set(Some(name));
        (name.as_ref().as_str(), value.clone())
    });
    OpenConfig::deserialize(MapDeserializer::new(entries)).map_err(|error: toml::de::Error| {
        let (at, name) = current.get().map_or((0..0, ""), |name| (name.span(), name.as_ref()));
        Fault::new(at, format!("{key}.{name}"), error.message())
    })
}

/// An option that a volume cannot have.
struct Refusal {
    option: &'static str,
    text: String,
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Self {
        Self { option: error.option, text: error.reason().trim_end_matches('.').to_owned() }
    }
}

impl Opening {
    /// Converts the options. Each opening does: a table is read again.
    pub(crate) fn source(&self, host: &dyn Host) -> Result<VolumeSource> {
        self.checked(host).map_err(|Refusal { option, text }| Error::Request(format!("{option}: {text}.")))
    }

    fn checked(&self, host: &dyn Host) -> Result<VolumeSource, Refusal> {
        let source = self.config.source(host, self.image.clone())?;
        let is_table = matches!(source.options.volume_type, VolumeType::Table(_));
        let refused = |text: &str| Err(Refusal { option: "image", text: text.to_owned() });
        match (self.image.as_os_str().is_empty(), is_table) {
            (true, false) => refused("image is missing"),
            (false, true) => refused("a volume with table takes no image"),
            _ => Ok(source),
        }
    }
}

/// Applies a key that is no option of opening a volume. `None`: it is one, or unknown.
fn own_key(volume: &mut VolumeConfig, idle_timeout: &mut u64, name: &str, value: &Value) -> Option<Result<(), String>> {
    Some(match name {
        "image" => text(value).map(|image| volume.opening.image = image.into()),
        "key-command" => words(value).map(|words| volume.opening.key_command = words),
        "key-timeout" => number(value, 1).map(|secs| volume.opening.key_timeout = Duration::from_secs(secs)),
        "idle-timeout" => number(value, 0).map(|secs| *idle_timeout = secs),
        "listed" => flag(value).map(|listed| volume.listed = listed),
        "max-operations" => number(value, 1).map(|rate| volume.limits.operations = Some(rate)),
        "max-bytes" => size(value).map(|rate| volume.limits.bytes = Some(rate)),
        "max-in-flight" => size(value).map(|most| volume.limits.in_flight = Some(most)),
        "max-clients" => number(value, 1).map(|most| volume.max_clients = usize::try_from(most).unwrap_or(usize::MAX)),
        _ => return None,
    })
}

/// Whether a volume has a key with the name of this option.
pub fn has_key(option: &str) -> bool {
    OpenConfig::names().contains(&option)
}

/// Refuses an unknown key, and a value that would be the input of the server.
fn check_option(name: &str, value: &Value) -> Result<(), String> {
    match value.as_str() {
        _ if !has_key(name) => Err("unknown key".to_owned()),
        Some("-") => Err("a server does not read its standard input".to_owned()),
        _ => Ok(()),
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().filter(|text| !text.is_empty()).ok_or_else(|| "expected a string".to_owned())
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "expected true or false".to_owned())
}

fn number(value: &Value, least: u64) -> Result<u64, String> {
    let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
    number.filter(|number| *number >= least).ok_or_else(|| format!("expected a number of at least {least}"))
}

/// A number of bytes, or one with a unit.
fn size(value: &Value) -> Result<u64, String> {
    match value {
        Value::String(text) => {
            values::size(text).and_then(|size| if size == 0 { Err("is zero".into()) } else { Ok(size) })
        }
        _ => number(value, 1),
    }
}

fn words(value: &Value) -> Result<Vec<OsString>, String> {
    let words = value.as_array().map(|words| words.iter().map(|word| text(word).map(OsString::from)));
    match words.map(Iterator::collect) {
        Some(Ok(words)) if !Vec::is_empty(&words) && Path::new(&words[0]).is_absolute() => Ok(words),
        _ => Err("expected an array of strings, the first an absolute path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::store::file::IoMode;
    use inlock_frontend::nbd::tls::TlsMode;
    use inlock_open::engine::EngineOptions;
    use inlock_open::host::Silent;

    fn parse(text: &str) -> Result<Config, String> {
        super::parse(&Silent, text, &VolumeConfigs::new())
    }

    #[test]
    fn file_reads_with_its_options() {
        let text = "idle-timeout = 5\ndefault = \"a\"\n[volumes.a]\nimage = \"/a\"\ntype = \"plain\"\nkey-file = \"/k\"\n\
            max-bytes = \"1M\"\nmax-operations = 10\nmax-in-flight = \"2M\"\nengine = \"afalg\"\nengine-threshold = \"64K\"\nholes = \"noise\"\n[volumes.b]\nimage = \"/b\"\nkey-command = [\"/bin/x\", \"y\"]\n\
            read-only = true\nlisted = false\nidle-timeout = 0\nholes = \"zero\"\n";
        let config = parse(text).unwrap();
        let (a, b) = (&config.volumes["a"], &config.volumes["b"]);
        assert_eq!((a.limits.operations, a.limits.bytes), (Some(10), Some(1 << 20)));
        assert_eq!((a.limits.in_flight, b.limits.in_flight), (Some(2 << 20), Some(64 << 20)));
        assert_eq!((a.idle_timeout, b.idle_timeout), (Some(Duration::from_secs(5)), None));
        assert_eq!(
            (a.listed, b.listed, a.opening.config.read_only, b.opening.config.read_only),
            (true, false, false, true)
        );
        assert!(matches!(a.opening.source(&Silent).unwrap().options.volume_type, VolumeType::Plain(_)));
        let engine = |volume: &VolumeConfig| volume.opening.source(&Silent).unwrap().engine;
        assert_eq!((engine(a), engine(b)), (Some(EngineOptions { threshold: 65536 }), None));
        let zero_holes = |volume: &VolumeConfig| volume.opening.source(&Silent).unwrap().options.zero_holes;
        assert_eq!((zero_holes(a), zero_holes(b)), (false, true));
        assert_eq!(b.opening.key_command, ["/bin/x", "y"]);
        assert!(parse("").unwrap().volumes.is_empty());
        let text = "tls = \"require\"\ntls-certificates = \"/d\"\ntls-verify-peer = true\n";
        let expected = TlsOptions { mode: TlsMode::Required, certificates: "/d".into(), verify_peer: true };
        assert_eq!(parse(text).unwrap().tls, Some(expected));
    }

    #[test]
    fn errors_name_line_and_key() {
        let volume = "[volumes.a]\nimage = \"/a\"\ntype = \"raw\"\n";
        for (text, expected) in [
            ("x = 1\n".to_owned(), "line 1: unknown field `x`"),
            (format!("{volume}{volume}"), "line 4: duplicate key"),
            (
                format!("{volume}[volumes.b]\nimage = \"/a\"\ntype = \"raw\"\n"),
                "line 4, volumes.b.image: /a is the image",
            ),
            (format!("{volume}colour = 1\n"), "line 4, volumes.a.colour: unknown key"),
            (format!("{volume}cipher = \"x\"\n"), "line 4, volumes.a.cipher: is not allowed with type raw"),
            (format!("{volume}read-only = 1\n"), "line 4, volumes.a.read-only: expected true or false"),
            (format!("{volume}max-operations = 0\n"), "line 4, volumes.a.max-operations: expected a number"),
            (format!("{volume}max-bytes = \"x\"\n"), "line 4, volumes.a.max-bytes: "),
            (format!("{volume}max-in-flight = 0\n"), "line 4, volumes.a.max-in-flight: expected a number"),
            (format!("{volume}threads = 0\n"), "line 4, volumes.a.threads: takes 1 to 1024"),
            (
                format!("{volume}engine = \"x\"\n"),
                "line 4, volumes.a.engine: invalid value 'x': one of software, afalg",
            ),
            (
                format!("{volume}threads = -1\n"),
                "line 4, volumes.a.threads: invalid value '-1': not a number from 0 to 65535",
            ),
            (format!("{volume}key-slot = \"x\"\n"), "line 4, volumes.a.key-slot: invalid value 'x': not a number"),
            (format!("{volume}holes = \"x\"\n"), "line 4, volumes.a.holes: invalid value 'x': one of noise, zero"),
            (format!("{volume}holes = \"zero\"\n"), "line 4, volumes.a.holes: is not allowed with type raw"),
            (format!("{volume}holes = true\n"), "line 4, volumes.a.holes: expected a string or a number"),
            (format!("{volume}engine-threshold = 512\n"), "line 4, volumes.a.engine-threshold: needs engine afalg"),
            (format!("{volume}read-only = true\nthreads = -1\n"), "line 5, volumes.a.threads: invalid value '-1'"),
            (
                format!("{volume}read-only = true\nexpect-uuid = 5\n"),
                "line 5, volumes.a.expect-uuid: is not allowed with type raw",
            ),
            (
                "[volumes.a]\nimage = \"/a\"\ntype = \"plain\"\ncipher = \"aes-wtf\"\nkey-file = \"/k\"\n".to_owned(),
                "line 4, volumes.a.cipher: No known cipher specification pattern detected in 'aes-wtf': ",
            ),
            (
                "[volumes.a]\nimage = \"/a\"\npolicy = \"/missing\"\nkey-file = \"/k\"\n".to_owned(),
                "line 3, volumes.a.policy: Device /missing does not exist or access denied: No such file",
            ),
            (format!("{volume}key-file = \"-\"\n"), "line 4, volumes.a.key-file: a server does not read"),
            (format!("default = \"b\"\n{volume}"), "line 1, default: there is no volume b"),
            ("[volumes.a]\nimage = \"/a\"\n".to_owned(), "line 1, volumes.a: exactly one of key-file"),
            ("[volumes.a]\ntype = \"raw\"\n".to_owned(), "line 1, volumes.a: image is missing"),
            ("tls = \"x\"\n".to_owned(), "line 1, tls: takes 'off', 'on' or 'require'"),
            ("default = \"b\"\ntls = \"on\"\n".to_owned(), "line 2, tls: needs tls-certificates"),
            ("tls-certificates = \"/d\"\n".to_owned(), "line 1, tls-certificates: needs tls with 'on' or 'require'"),
            ("tls-verify-peer = 1\n".to_owned(), "line 1, tls-verify-peer: expected true or false"),
            ("tls = 1\n".to_owned(), "line 1, tls: expected a string"),
            ("tls-certificates = 1\n".to_owned(), "line 1, tls-certificates: expected a string"),
            ("default = 1\n".to_owned(), "line 1, default: expected a string"),
            ("\nidle-timeout = -1\n".to_owned(), "line 2, idle-timeout: expected a number of at least 0"),
            ("volumes = 1\n".to_owned(), "line 1: expected a table for each volume, [volumes.NAME]"),
            ("[volumes]\na = 1\n".to_owned(), "line 2: expected a table for each volume, [volumes.NAME]"),
            ("[volumes.\"\"]\nimage = \"/a\"\n".to_owned(), "line 1, volumes.: a name has"),
            ("[volumes.a]\nimage = \"/a\"\nkey-command = [\"x\"]\n".to_owned(), "line 3, volumes.a.key-command: "),
        ] {
            let error = parse(&text).map(|_| ()).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let shared = "[volumes.a]\nimage = \"/a\"\ntype = \"raw\"\nread-only = true\n";
        assert!(parse(&format!("{shared}{}", shared.replace(".a", ".b"))).is_ok(), "read-only volumes share an image");
    }

    #[test]
    fn options_of_stores_and_smallest_values_are_taken() {
        let table = |more: &str| format!("[volumes.a]\nimage = \"/a\"\ntype = \"raw\"\n{more}\n");
        let volume = |more: &str| parse(&table(more)).unwrap().volumes["a"].clone();
        for (io, expected) in [("uring", IoMode::Uring), ("sync", IoMode::Sync), ("auto", IoMode::Auto)] {
            assert_eq!(volume(&format!("io = \"{io}\"")).opening.source(&Silent).unwrap().io, expected);
        }
        let least = volume("max-operations = 1\nmax-bytes = 1\nmax-in-flight = 1\nmax-clients = 1\nthreads = 1");
        let limits = least.limits;
        assert_eq!((limits.operations, limits.bytes, limits.in_flight), (Some(1), Some(1), Some(1)));
        assert_eq!((least.max_clients, least.opening.source(&Silent).unwrap().threads), (1, Some(1)));
        // As if they were not given; and a value counts, not how it is written.
        assert!(volume("read-only = false\nallow-discards = false\nthreads = false") == volume(""));
        assert!(volume("threads = 2\nholes = \"noise\"") == volume("holes = \"noise\"\nthreads = \"2\""));
        assert!(volume("threads = 2") != volume("threads = 3"));
        // The table says what its images are.
        let lines = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(lines.path(), "0 8 zero\n").unwrap();
        let text = format!("[volumes.a]\nimage = \"/a\"\ntable = \"{}\"\n", lines.path().display());
        let error = parse(&text).map(|_| ()).unwrap_err();
        assert!(error.contains("a volume with table takes no image"), "{error}");
        let named = |len: usize| parse(&table("").replace("volumes.a", &format!("volumes.{}", "n".repeat(len))));
        assert!(named(255).is_ok() && named(256).is_err());
    }

    #[test]
    fn file_of_the_longest_length_is_read_and_no_other_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volumes.toml");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            super::read(&Silent, &path, Trust::Checked, &VolumeConfigs::new()).map(|config| config.volumes.len())
        };
        let mut bytes = b"[volumes.a]\nimage = \"/a\"\ntype = \"raw\"\n#".to_vec();
        bytes.resize(MAX_LEN as usize, b'x');
        assert_eq!(read(&bytes).unwrap(), 1);
        bytes.push(b'x');
        assert!(read(&bytes).unwrap_err().to_string().ends_with("has more than 16777216 bytes."));
        // Not in UTF-8.
        assert!(read(b"[volumes.a]\nimage = \"/a\"\ntype = \"raw\"\n# \xff\n").is_err());
    }

    #[test]
    fn server_has_a_limited_number_of_volumes() {
        let table = |name: &str| format!("[volumes.{name}]\nimage = \"/{name}\"\ntype = \"raw\"\n");
        let one = parse(&table("x")).unwrap().volumes.remove("x").unwrap();
        let added: VolumeConfigs = (1..MAX_VOLUMES).map(|number| (number.to_string(), one.clone())).collect();
        assert!(super::parse(&Silent, &table("a"), &added).is_ok());
        let error = super::parse(&Silent, &format!("{}{}", table("a"), table("b")), &added).map(|_| ()).unwrap_err();
        assert_eq!(error, "line 4, volumes.b: a server has at most 65536 volumes");
    }

    #[test]
    fn added_volume_is_checked_like_one_of_the_file() {
        let raw = |image: &str| format!("image = \"{image}\"\ntype = \"raw\"\n");
        let file = format!("idle-timeout = 5\n[volumes.a]\n{}[volumes.r]\n{}read-only = true\n", raw("/a"), raw("/r"));
        let Config { idle_timeout, volumes, .. } = parse(&file).unwrap();
        let add = |name: &str, text: &str| parse_volume(&Silent, name, text, idle_timeout, &volumes);
        let b = add("b", &raw("/b")).unwrap();
        assert_eq!(b.idle_timeout, Some(Duration::from_secs(5)));
        let in_file = parse(&format!("idle-timeout = 5\n[volumes.b]\n{}", raw("/b"))).unwrap();
        assert_eq!(in_file.volumes["b"], b);
        assert!(add("b", &format!("{}read-only = true\n", raw("/r"))).is_ok(), "read-only volumes share an image");
        for (name, text, expected) in [
            ("b", raw("/a"), "line 1, volumes.b.image: /a is the image of volume a too"),
            ("b", raw("/r"), "line 1, volumes.b.image: /r is the image"),
            ("b", format!("{}colour = 1\n", raw("/b")), "line 3, volumes.b.colour: unknown key"),
            ("b", format!("{}[x]\ny = 1\n", raw("/b")), "line 3, volumes.b.x: unknown key"),
            ("b", "image = \n".to_owned(), "line 1: "),
            ("", raw("/b"), "line 1, volumes.: a name has"),
            ("b\n", raw("/b"), "line 1, volumes.b\n: a name has"),
        ] {
            let error = add(name, &text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        // A file that is loaded again must agree with what was added, unless it has the volume itself.
        let added = VolumeConfigs::from([("b".to_owned(), b)]);
        let error = super::parse(&Silent, &format!("[volumes.c]\n{}", raw("/b")), &added).map(|_| ()).unwrap_err();
        assert!(error.starts_with("line 1, volumes.c.image: /b is the image of volume b"), "{error}");
        super::parse(&Silent, &format!("[volumes.b]\n{}", raw("/b")), &added).unwrap();
    }
}
