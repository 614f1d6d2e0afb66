//! Connecting to a cluster, opening an image and taking its lock.

use crate::error::OpenError;
use crate::ffi::{Cluster, Image, IoContext, Libraries, is};
use crate::name::{NO_CONF, RbdName};
use crate::options::{ImageFacts, StoreOptions};
use inlock_engine::Errno;
use rustix::io::Errno as Number;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};

/// `RBD_FEATURE_EXCLUSIVE_LOCK`
const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_JOURNALING`
const JOURNALING: u64 = 1 << 6;

/// Options that a name may override. librbd's cache is off: it would hold writes that this process has seen completed,
/// and would report their failure to another operation. Messages go to no terminal, since each failure has its own.
const DEFAULTS: [(&str, &str); 3] = [("rbd_cache", "false"), ("log_to_stderr", "false"), ("err_to_stderr", "false")];

fn is_refusal(error: Errno) -> bool {
    is(error, Number::ACCESS) || is(error, Number::PERM)
}

/// Returns a text for the libraries. Names have no zero.
fn c(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Whether the configuration has a value for an option. One that is too long to be read is one.
fn is_set(cluster: &Cluster, option: &CStr) -> bool {
    !cluster.conf(option).is_ok_and(|value| value.is_empty())
}

/// Whether the configuration has a key, or names a keyring that exists.
fn has_key(cluster: &Cluster) -> bool {
    if is_set(cluster, c"key") || is_set(cluster, c"keyfile") {
        return true;
    }
    let keyrings = cluster.conf(c"keyring").unwrap_or_default();
    let mut names = keyrings.split(|c: char| c == ',' || c == ';' || c.is_whitespace()).filter(|name| !name.is_empty());
    names.any(|name| std::path::Path::new(name).exists())
}

/// One opening of an image.
pub(crate) struct Opening<'a> {
    pub(crate) name: &'a RbdName,
    pub(crate) options: &'a StoreOptions,
    pub(crate) read_only: bool,
    /// The caller no longer waits.
    pub(crate) is_given_up: &'a AtomicBool,
}

impl Opening<'_> {
    /// Returns the image and its facts. Blocks.
    pub(crate) fn run(&self) -> Result<(Image, ImageFacts), OpenError> {
        let libraries = Libraries::load(self.options.library_dir.as_deref())?;
        let id = self.name.id.as_deref().map(c);
        let cluster = Cluster::new(&libraries, id.as_ref()).map_err(self.failed("make a client of Ceph"))?;
        self.configure(&cluster)?;
        cluster.connect().map_err(|error| self.cannot_connect(&cluster, error))?;
        let fsid = cluster.fsid().map_err(self.failed("read the identity of the cluster"))?;
        let io = self.open_pool(cluster)?;
        let pool = io.pool_id();
        let image = self.open_image(io)?;
        let features = image.features().map_err(self.failed("read the image's features"))?;
        let is_locked = !self.read_only && features & EXCLUSIVE_LOCK != 0;
        if is_locked {
            self.lock(&image)?;
        }
        let id = image.id().map_err(self.failed("read the image's identity"))?;
        let snapshot = self.name.snapshot.as_deref().map(|snapshot| format!("@{snapshot}")).unwrap_or_default();
        let stripe_count = image.stripe_count().map_err(self.failed("read the image's striping"))?;
        let object_size = image.object_size().map_err(self.failed("read the image's object size"))?;
        let facts = ImageFacts {
            size: image.size().map_err(self.failed("read the image's size"))?,
            stripe_period: object_size.saturating_mul(stripe_count),
            object_size,
            stripe_count,
            has_journal: features & JOURNALING != 0,
            is_clone: image.overlap().map_err(self.failed("read the length of the image's parent"))? > 0,
            is_locked,
            identity: format!("{fsid}/{pool}/{}/{id}{snapshot}", self.name.namespace),
        };
        Ok((image, facts))
    }

    /// Returns the error of an action without messages of its own.
    fn failed(&self, what: &'static str) -> impl Fn(Errno) -> OpenError + use<'_> {
        move |source| match () {
            () if is_refusal(source) => OpenError::NotAllowed { id: self.id(), what },
            () if is(source, Number::TIMEDOUT) => self.timed_out(),
            () => OpenError::Ceph { what, source },
        }
    }

    fn id(&self) -> String {
        self.name.id.clone().unwrap_or_else(|| "admin".to_owned())
    }

    pub(crate) fn timed_out(&self) -> OpenError {
        OpenError::TimedOut(self.options.connect_timeout.as_secs())
    }

    fn configure(&self, cluster: &Cluster) -> Result<(), OpenError> {
        let conf = self.name.conf.as_deref();
        if conf != Some(NO_CONF) {
            match (conf, cluster.read_conf(conf.map(c).as_ref())) {
                (_, Ok(())) => {}
                (Some(path), Err(source)) => return Err(OpenError::Config { path: path.to_owned(), source }),
                // Options of the name may be enough.
                (None, Err(error)) if is(error, Number::NOENT) => {}
                (None, Err(source)) => return Err(OpenError::Config { path: "of this host".to_owned(), source }),
            }
        }
        let seconds = |time: std::time::Duration| time.as_secs().max(1).to_string();
        let connect = seconds(self.options.connect_timeout);
        let store = seconds(self.options.store_timeout);
        let timeouts =
            [("client_mount_timeout", &*connect), ("rados_mon_op_timeout", &connect), ("rados_osd_op_timeout", &store)];
        let own = self.name.options.iter().map(|(option, value)| (option.as_str(), value.as_str()));
        for (option, value) in DEFAULTS.into_iter().chain(timeouts).chain(own) {
            let set = cluster.set_conf(&c(option), &c(value));
            set.map_err(|source| OpenError::Option { option: option.to_owned(), source })?;
        }
        Ok(())
    }

    fn cannot_connect(&self, cluster: &Cluster, source: Errno) -> OpenError {
        match () {
            () if is(source, Number::TIMEDOUT) => self.timed_out(),
            () if is(source, Number::NOENT) && !is_set(cluster, c"mon_host") => OpenError::NoMonitors,
            // Without a key, Ceph connects as a stranger, and is refused.
            () if is(source, Number::NOENT) || is_refusal(source) && !has_key(cluster) => {
                OpenError::NoKeyring(self.id())
            }
            // Such as a key with a cipher that this release does not know.
            () if is(source, Number::IO) && has_key(cluster) => OpenError::UnreadableKey { id: self.id(), source },
            () if is_refusal(source) || is(source, Number::OPNOTSUPP) => {
                OpenError::AuthRefused { id: self.id(), source }
            }
            () => OpenError::Ceph { what: "connect to the cluster", source },
        }
    }

    fn open_pool(&self, cluster: Cluster) -> Result<IoContext, OpenError> {
        let io = IoContext::new(cluster, &c(&self.name.pool)).map_err(|error| {
            if is(error, Number::NOENT) {
                return OpenError::UnknownPool(self.name.pool.clone());
            }
            self.failed("use the pool")(error)
        })?;
        if !self.name.namespace.is_empty() {
            let namespace = c(&self.name.namespace);
            // A client may be limited to its namespace; then the image decides.
            if matches!(io.has_namespace(&namespace), Ok(false)) {
                return Err(OpenError::UnknownNamespace(self.name.namespace.clone()));
            }
            io.set_namespace(&namespace);
        }
        Ok(io)
    }

    fn open_image(&self, io: IoContext) -> Result<Image, OpenError> {
        let image = Image::open(io, &c(&self.name.image), self.read_only).map_err(|error| {
            if is(error, Number::NOENT) {
                return OpenError::UnknownImage(self.name.image.clone());
            }
            self.failed("open the image")(error)
        })?;
        if let Some(snapshot) = &self.name.snapshot {
            image.set_snapshot(&c(snapshot)).map_err(|error| {
                if is(error, Number::NOENT) {
                    return OpenError::UnknownSnapshot(snapshot.clone());
                }
                self.failed("read the snapshot")(error)
            })?;
        }
        Ok(image)
    }

    /// Fails if the caller no longer waits: it has its error, and must not lose or take a lock afterwards.
    fn check_awaited(&self) -> Result<(), OpenError> {
        if self.is_given_up.load(Ordering::Acquire) { Err(self.timed_out()) } else { Ok(()) }
    }

    /// Takes the exclusive lock. librbd itself would ask a client that works for it, and would get it from most; so the
    /// owner is looked up first. The lock of a client that has died is free.
    fn lock(&self, image: &Image) -> Result<(), OpenError> {
        let failed = self.failed("lock the image");
        let owner = image.lock_owner().map_err(|error| match error {
            error if is(error, Number::BUSY) => OpenError::LockedByHand,
            error => failed(error),
        })?;
        if let Some(owner) = owner {
            let is_alive = image.watchers().map_err(&failed)?.contains(&owner);
            if is_alive && !self.options.steal_lock {
                return Err(OpenError::Locked(owner));
            }
            self.check_awaited()?;
            if is_alive {
                image.break_lock(&c(&owner)).map_err(self.failed("take the image's lock from another client"))?;
            }
        }
        self.check_awaited()?;
        image.acquire_lock().map_err(|error| {
            if is(error, Number::ROFS) || is(error, Number::BUSY) {
                return OpenError::Locked("an unknown address".to_owned());
            }
            failed(error)
        })
    }
}
