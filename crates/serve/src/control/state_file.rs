//! The state file of a volume, `NAME.json`: its versions, the part that never changes, and why a file cannot be used.
//!
//! Of a file of any version this one can read what is needed to detach what a process left behind:
//! [`Remains`]. The rest belongs to the version. A file that cannot be read is not a missing one: it may be all that
//! is known of a device.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::info::RuntimeInfo;
use super::name::Name;
use crate::attach::stale::StaleDevice;
use crate::error::Error;
use crate::method::AttachMethod;

/// Version of the files that this program writes. Increased if an older program would misunderstand the rest of a file.
/// Files without a version were written before there were any, and are read like those of version 1.
const VERSION: u32 = 1;

/// Extension of a state file that a forced close has set aside, in the place of `json`.
pub(crate) const SET_ASIDE: &str = "unreadable";

/// Returns the path that a forced close gives a state file which it cannot read.
pub fn aside(path: &Path) -> PathBuf {
    path.with_extension(SET_ASIDE)
}

/// Maximum length of a state file, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// The frozen part of every state file: names and meaning of these fields are those of all versions, before and after
/// this one. A later version may add fields to the file, but none that detaching needs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Remains {
    /// Version of the file; 0 before there were any.
    #[serde(default)]
    pub version: u32,
    /// Name of the volume.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// [`AttachMethod::name`].
    pub via: String,
    /// The data device, for messages.
    #[serde(default, with = "inlock_open::path_text::optional")]
    pub device: Option<PathBuf>,
    /// Path of the device or file that it is attached as. `None`: the process may have died before it knew the path.
    #[serde(default, with = "inlock_open::path_text::optional")]
    pub node: Option<PathBuf>,
    /// Identifies a block device of this process. Its name was `mark` before there were versions.
    #[serde(default, alias = "mark")]
    pub device_cookie: Option<u32>,
    /// File that the volume is mounted over with FUSE. Before there were versions it was not written, and always
    /// `NAME.volume`.
    #[serde(default, with = "inlock_open::path_text::optional")]
    pub mounted_over: Option<PathBuf>,
}

impl Remains {
    /// Returns the device or file that the process leaves behind when it dies.
    pub fn stale_device(&self) -> StaleDevice<'_> {
        StaleDevice {
            name: &self.name,
            method: &self.via,
            node: self.node.as_deref(),
            cookie: self.device_cookie,
            mounted_over: self.mounted_over.as_deref(),
        }
    }
}

/// Content of the state file of a name.
#[derive(Debug)]
pub enum StateFile {
    /// There is none.
    Missing,
    /// This version can read all of it.
    Whole(Box<RuntimeInfo>),
    /// This version cannot.
    Unusable(Box<Unusable>),
}

/// A state file of which this version can read the frozen part at most.
#[derive(Debug)]
pub struct Unusable {
    /// The frozen part.
    pub remains: Option<Remains>,
    /// Reason.
    pub fault: Fault,
}

/// Reason why a state file cannot be used. Completes the sentence "State file PATH ...".
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The system refuses to read it.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// It has this many bytes.
    #[error("is damaged: it has {0} bytes, more than any version writes")]
    TooLong(u64),
    /// It is not what any version writes.
    #[error("is damaged: {0}")]
    Damaged(serde_json::Error),
    /// It names another volume.
    #[error("is that of another volume, {0:?}")]
    OtherName(String),
    /// Its version.
    #[error("is of a newer version of Inlock (format {0}, and this one reads up to {VERSION})")]
    Newer(u32),
    /// A way to attach volumes that this version does not know.
    #[error("is of a version of Inlock that attached it by {0:?}, which this one does not know")]
    Method(String),
}

impl StateFile {
    /// Reads the state file of `name` at `path`.
    pub(crate) fn read(path: &Path, name: &Name) -> Self {
        let read = || -> Result<Vec<u8>, Fault> {
            let len = std::fs::metadata(path).map_err(Fault::Read)?.len();
            if len > MAX_LEN {
                return Err(Fault::TooLong(len));
            }
            std::fs::read(path).map_err(Fault::Read)
        };
        match read().and_then(|text| Self::parse(&text, name)) {
            Ok(state) => state,
            // A link to a missing file exists.
            Err(Fault::Read(error)) if error.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
                Self::Missing
            }
            Err(fault) => Self::Unusable(Box::new(Unusable { remains: None, fault })),
        }
    }

    fn parse(text: &[u8], name: &Name) -> Result<Self, Fault> {
        let remains: Remains = serde_json::from_slice(text).map_err(Fault::Damaged)?;
        if remains.name != name.as_str() {
            return Err(Fault::OtherName(remains.name));
        }
        if AttachMethod::from_name(&remains.via).is_none() {
            // What it left behind cannot be told, so nothing of it must be forgotten.
            return Err(Fault::Method(remains.via));
        }
        let info = match remains.version {
            ..=VERSION => serde_json::from_slice(text).map_err(Fault::Damaged),
            newer => Err(Fault::Newer(newer)),
        };
        Ok(match info {
            Ok(info) => Self::Whole(info),
            Err(fault) => Self::Unusable(Box::new(Unusable { remains: Some(remains), fault })),
        })
    }

    /// Returns the path of the device or file that the volume is attached as.
    pub(crate) fn node(&self) -> Option<&Path> {
        match self {
            Self::Missing => None,
            Self::Whole(info) => info.node.as_deref(),
            Self::Unusable(unusable) => unusable.remains.as_ref()?.node.as_deref(),
        }
    }

    /// Returns the process of the volume.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Missing => None,
            Self::Whole(info) => Some(info.pid),
            Self::Unusable(unusable) => Some(unusable.remains.as_ref()?.pid),
        }
    }
}

impl Unusable {
    /// Returns the error for the file at `path`, which must stay until the name is closed.
    pub(crate) fn error(&self, path: &Path, name: &Name) -> Error {
        let (name, path, fault) = (name.to_string(), path.to_owned(), self.fault.to_string());
        Error::StateFile {
            name,
            path,
            fault,
            is_newer: matches!(self.fault, Fault::Newer(_)),
            remains: self.remains.is_some(),
        }
    }

    /// Returns the word for it in lists.
    pub fn state(&self) -> &'static str {
        if matches!(self.fault, Fault::Newer(_)) { "newer" } else { "unreadable" }
    }
}

/// Returns the text of a state file. `file`: the path of a volume that is attached as a file.
pub(crate) fn text(info: &RuntimeInfo, file: &Path) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Written<'a> {
        version: u32,
        #[serde(skip_serializing_if = "Option::is_none", with = "inlock_open::path_text::optional")]
        mounted_over: Option<PathBuf>,
        #[serde(flatten)]
        info: &'a RuntimeInfo,
    }
    let method = AttachMethod::from_name(&info.via);
    let has_file = matches!(method, Some(AttachMethod::Fuse | AttachMethod::Loop));
    serde_json::to_string_pretty(&Written { version: VERSION, mounted_over: has_file.then(|| file.to_owned()), info })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse(text: &str) -> StateFile {
        StateFile::parse(text.as_bytes(), &Name::new("data").unwrap()).unwrap()
    }

    fn info(via: &str) -> RuntimeInfo {
        let written = json!({
            "name": "data", "pid": 7, "started": 8, "type": "RAW", "device": "/dev/sdx", "segments": [],
            "read_only": false, "allow_discards": false, "offload": "none", "via": via, "node": "/dev/node",
            "device_cookie": u32::MAX, "ring": "sync", "threads": 1
        });
        serde_json::from_value(written).unwrap()
    }

    /// Fails if a field of the frozen part gets another name or meaning: programs that know these are in use.
    #[test]
    fn written_file_has_the_frozen_part() {
        for (via, file) in
            [("loop", json!("/run/data.volume")), ("fuse", json!("/run/data.volume")), ("nbd", Value::Null)]
        {
            let written: Value =
                serde_json::from_str(&text(&info(via), Path::new("/run/data.volume")).unwrap()).unwrap();
            let frozen = ["version", "name", "pid", "via", "device", "node", "device_cookie", "mounted_over"];
            let found = frozen.map(|field| written[field].clone());
            let values = json!([1, "data", 7, via, "/dev/sdx", "/dev/node", u32::MAX, file]);
            assert_eq!(Value::from(found.to_vec()), values, "{written}");
            let StateFile::Whole(read) = parse(&written.to_string()) else { panic!("{written}") };
            assert_eq!(serde_json::to_value(&*read).unwrap(), serde_json::to_value(info(via)).unwrap());
        }
    }

    #[test]
    fn file_that_is_longer_than_any_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.json");
        let text = text(&info("nbd"), Path::new("/run/data.volume")).unwrap();
        for (len, is_whole) in [(MAX_LEN, true), (MAX_LEN + 1, false)] {
            std::fs::write(&path, text.clone() + &" ".repeat(len as usize - text.len())).unwrap();
            let state = StateFile::read(&path, &Name::new("data").unwrap());
            assert_eq!(matches!(state, StateFile::Whole(_)), is_whole, "{state:?}");
        }
    }

    #[test]
    fn frozen_part_of_any_version_is_read() {
        let old =
            r#"{"name": "data", "pid": 7, "via": "ublk", "device": "/dev/sdx", "node": "/dev/ublkb3", "mark": 9}"#;
        let new = r#"{"version": 2, "name": "data", "pid": 7, "via": "ublk", "device": "/dev/sdx",
            "node": "/dev/ublkb3", "device_cookie": 9, "mounted_over": "/run/file", "type": {}, "segments": "new"}"#;
        for (text, version, mounted_over) in [(old, 0, None), (new, 2, Some("/run/file"))] {
            let StateFile::Unusable(unusable) = parse(text) else { panic!("{text}") };
            assert_eq!(matches!(unusable.fault, Fault::Newer(2)), version == 2, "{:?}", unusable.fault);
            let remains = unusable.remains.unwrap();
            let expected = Remains {
                version,
                name: "data".into(),
                pid: 7,
                via: "ublk".into(),
                device: Some("/dev/sdx".into()),
                node: Some("/dev/ublkb3".into()),
                device_cookie: Some(9),
                mounted_over: mounted_over.map(Into::into),
            };
            assert_eq!(remains, expected);
            let stale = remains.stale_device();
            assert_eq!((stale.name, stale.method, stale.cookie), ("data", "ublk", Some(9)));
            assert_eq!((stale.node, stale.mounted_over), (remains.node.as_deref(), remains.mounted_over.as_deref()));
        }
        // The process had published what identifies its device, and died before it knew the node.
        let StateFile::Unusable(early) =
            parse(r#"{"version": 9, "name": "data", "pid": 7, "via": "nbd", "device_cookie": 1}"#)
        else {
            panic!()
        };
        assert_eq!(early.remains.unwrap().node, None);
    }
}
