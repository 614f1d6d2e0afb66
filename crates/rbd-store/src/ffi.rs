//! librados and librbd, loaded when they are first used, and the operations in flight at an image.
//!
//! All of the crate's `unsafe` code. A handle of the libraries has one owner, which closes it. A raw pointer holds the
//! memory of an operation from before its start until its completion, so that nothing moves or touches it. Threads of
//! librbd may outlive all handles, so the libraries are never unloaded.
#![allow(unsafe_code)]

use crate::error::OpenError;
use inlock_engine::store::StoreOperation;
use inlock_engine::store::asynchronous::Pending;
use inlock_engine::{Buffer, Errno};
use libloading::Library;
use rustix::io::Errno as Number;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Oldest interface of librbd with every function below: that of Ceph 15.
const MIN_VERSION: (c_int, c_int) = (1, 15);
/// `RBD_LOCK_MODE_EXCLUSIVE`
const EXCLUSIVE: c_int = 0;
/// `EVENT_TYPE_EVENTFD`
const EVENTFD: c_int = 2;
/// Completions to take in one call.
const BATCH: usize = 64;
/// Lock owners and watchers to list at first.
const LISTED: usize = 64;
/// Watchers to list at most.
const MAX_LISTED: usize = 65_536;
/// Longest value of an option that is read.
const MAX_VALUE: usize = 4096;

type Handle = *mut c_void;
type Place = *mut Handle;
type Text = *const c_char;
type OnExtent = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `rbd_image_watcher_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// `rbd_image_info_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct ImageInfo {
    size: u64,
    object_size: u64,
    object_count: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

macro_rules! library {
    ($name:ident { $(fn $function:ident($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        struct $name {
            $($function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            fn load(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($function: {
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        // SAFETY: the type is that of the function in the library's header, which keeps it.
                        *unsafe { library.get::<Function>(stringify!($function)) }?
                    },)*
                })
            }
        }
    };
}

library!(Rados {
    fn rados_create(Place, Text) -> c_int;
    fn rados_conf_read_file(Handle, Text) -> c_int;
    fn rados_conf_set(Handle, Text, Text) -> c_int;
    fn rados_conf_get(Handle, Text, *mut c_char, usize) -> c_int;
    fn rados_connect(Handle) -> c_int;
    fn rados_shutdown(Handle);
    fn rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
    fn rados_ioctx_create(Handle, Text, Place) -> c_int;
    fn rados_ioctx_destroy(Handle);
    fn rados_ioctx_set_namespace(Handle, Text);
    fn rados_ioctx_get_id(Handle) -> i64;
    fn rados_set_pool_full_try(Handle);
    fn rados_pool_reverse_lookup(Handle, i64, *mut c_char, usize) -> c_int;
});

library!(Rbd {
    fn rbd_version(*mut c_int, *mut c_int, *mut c_int);
    fn rbd_namespace_exists(Handle, Text, *mut bool) -> c_int;
    fn rbd_open(Handle, Text, Place, Text) -> c_int;
    fn rbd_open_read_only(Handle, Text, Place, Text) -> c_int;
    fn rbd_close(Handle) -> c_int;
    fn rbd_snap_set(Handle, Text) -> c_int;
    fn rbd_stat(Handle, *mut ImageInfo, usize) -> c_int;
    fn rbd_get_size(Handle, *mut u64) -> c_int;
    fn rbd_get_features(Handle, *mut u64) -> c_int;
    fn rbd_get_overlap(Handle, *mut u64) -> c_int;
    fn rbd_get_stripe_count(Handle, *mut u64) -> c_int;
    fn rbd_get_id(Handle, *mut c_char, usize) -> c_int;
    fn rbd_lock_acquire(Handle, c_int) -> c_int;
    fn rbd_is_exclusive_lock_owner(Handle, *mut c_int) -> c_int;
    fn rbd_lock_break(Handle, c_int, Text) -> c_int;
    fn rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    fn rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
    fn rbd_watchers_list_cleanup(*mut Watcher, usize);
    fn rbd_diff_iterate2(Handle, Text, u64, u64, u8, u8, OnExtent, *mut c_void) -> c_int;
    fn rbd_set_image_notification(Handle, c_int, c_int) -> c_int;
    fn rbd_poll_io_events(Handle, *mut Handle, c_int) -> c_int;
    fn rbd_aio_create_completion(*mut c_void, *const c_void, Place) -> c_int;
    fn rbd_aio_get_arg(Handle) -> *mut c_void;
    fn rbd_aio_get_return_value(Handle) -> isize;
    fn rbd_aio_release(Handle);
    fn rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    fn rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
    fn rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    fn rbd_aio_flush(Handle, Handle) -> c_int;
});

/// The functions of both libraries.
pub(crate) struct Libraries {
    rados: Rados,
    rbd: Rbd,
}

impl Libraries {
    /// Loads the libraries from `dir`, or from where the system's loader looks.
    pub(crate) fn load(dir: Option<&Path>) -> Result<Arc<Self>, OpenError> {
        // In this order, so that librbd uses the same librados.
        let rados = load_one("librados.so.2", dir, Rados::load)?;
        let rbd = load_one("librbd.so.1", dir, Rbd::load)?;
        let (mut major, mut minor, mut extra) = (0, 0, 0);
        // SAFETY: the function writes three numbers.
        unsafe { (rbd.rbd_version)(&raw mut major, &raw mut minor, &raw mut extra) };
        if (major, minor) < MIN_VERSION {
            let reason = format!("its version {major}.{minor} is older than {}.{}", MIN_VERSION.0, MIN_VERSION.1);
            return Err(OpenError::NoLibrary { name: "librbd.so.1".to_owned(), reason });
        }
        Ok(Arc::new(Self { rados, rbd }))
    }
}

/// Loads a library for good, and finds its functions.
fn load_one<T>(
    name: &str,
    dir: Option<&Path>,
    load: impl FnOnce(&Library) -> Result<T, libloading::Error>,
) -> Result<T, OpenError> {
    let failed = |error: libloading::Error| OpenError::NoLibrary {
        name: name.to_owned(),
        reason: std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
    };
    let file = dir.map_or_else(|| name.into(), |dir| dir.join(name));
    // SAFETY: initializers of Ceph's libraries have no preconditions.
    let library = unsafe { Library::new(file) }.map_err(failed)?;
    load(&ManuallyDrop::new(library)).map_err(failed)
}

/// Returns the error of a call that failed.
fn check(returned: c_int) -> Result<(), Errno> {
    if returned < 0 { Err(errno(returned.into())) } else { Ok(()) }
}

fn errno(returned: i64) -> Errno {
    Errno::from_raw_os_error(returned.checked_neg().and_then(|n| i32::try_from(n).ok()).unwrap_or(0))
}

/// Returns whether an error has this number.
pub(crate) fn is(error: Errno, number: Number) -> bool {
    error.raw_os_error() == number.raw_os_error()
}

/// Returns the text of the library's buffer up to its end.
fn text(buffer: &[u8]) -> String {
    CStr::from_bytes_until_nul(buffer).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

fn pointer(text: Option<&CString>) -> Text {
    text.map_or(null(), |text| text.as_ptr())
}

/// A client of a cluster.
pub(crate) struct Cluster {
    libraries: Arc<Libraries>,
    handle: Handle,
}

// SAFETY: handles of librados and librbd may be used by several threads at once.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    pub(crate) fn new(libraries: &Arc<Libraries>, id: Option<&CString>) -> Result<Self, Errno> {
        let mut handle = null_mut();
        // SAFETY: the text ends with zero; the function writes a handle unless it fails.
        check(unsafe { (libraries.rados.rados_create)(&raw mut handle, pointer(id)) })?;
        Ok(Self { libraries: Arc::clone(libraries), handle })
    }

    fn rados(&self) -> &Rados {
        &self.libraries.rados
    }

    /// Reads a configuration file, `None`: the usual one.
    pub(crate) fn read_conf(&self, path: Option<&CString>) -> Result<(), Errno> {
        // SAFETY: the handle is open, the text ends with zero.
        check(unsafe { (self.rados().rados_conf_read_file)(self.handle, pointer(path)) })
    }

    pub(crate) fn set_conf(&self, option: &CStr, value: &CStr) -> Result<(), Errno> {
        // SAFETY: the handle is open, the texts end with zero.
        check(unsafe { (self.rados().rados_conf_set)(self.handle, option.as_ptr(), value.as_ptr()) })
    }

    pub(crate) fn conf(&self, option: &CStr) -> Result<String, Errno> {
        let mut value = vec![0; MAX_VALUE];
        // SAFETY: the function writes at most the length that it is given.
        check(unsafe {
            (self.rados().rados_conf_get)(self.handle, option.as_ptr(), value.as_mut_ptr().cast(), value.len())
        })?;
        Ok(text(&value))
    }

    /// Connects. Blocks.
    pub(crate) fn connect(&self) -> Result<(), Errno> {
        // SAFETY: the handle is open.
        check(unsafe { (self.rados().rados_connect)(self.handle) })
    }

    pub(crate) fn fsid(&self) -> Result<String, Errno> {
        let mut id = [0; 64];
        // SAFETY: the function writes at most the length that it is given.
        check(unsafe { (self.rados().rados_cluster_fsid)(self.handle, id.as_mut_ptr().cast(), id.len()) })?;
        Ok(text(&id))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and this is its last use.
        unsafe { (self.rados().rados_shutdown)(self.handle) }
    }
}

/// A pool and a namespace in it.
pub(crate) struct IoContext {
    pub(crate) cluster: Cluster,
    handle: Handle,
}

// SAFETY: as for `Cluster`.
unsafe impl Send for IoContext {}
// SAFETY: as for `Cluster`.
unsafe impl Sync for IoContext {}

impl IoContext {
    /// Opens a pool of a connected cluster. Blocks.
    pub(crate) fn new(cluster: Cluster, pool: &CStr) -> Result<Self, Errno> {
        let mut handle = null_mut();
        // SAFETY: the handle is open, the text ends with zero; the function writes a handle unless it fails.
        check(unsafe { (cluster.rados().rados_ioctx_create)(cluster.handle, pool.as_ptr(), &raw mut handle) })?;
        // Writes to a full pool fail, instead of waiting for space.
        // SAFETY: the handle is open.
        unsafe { (cluster.rados().rados_set_pool_full_try)(handle) };
        Ok(Self { cluster, handle })
    }

    /// Blocks.
    pub(crate) fn has_namespace(&self, namespace: &CStr) -> Result<bool, Errno> {
        let mut exists = false;
        // SAFETY: the handle is open, the text ends with zero; the function writes one truth value.
        check(unsafe {
            (self.cluster.libraries.rbd.rbd_namespace_exists)(self.handle, namespace.as_ptr(), &raw mut exists)
        })?;
        Ok(exists)
    }

    pub(crate) fn set_namespace(&self, namespace: &CStr) {
        // SAFETY: the handle is open, the text ends with zero.
        unsafe { (self.cluster.rados().rados_ioctx_set_namespace)(self.handle, namespace.as_ptr()) }
    }

    /// Returns whether the cluster has the pool. Blocks if it has not.
    pub(crate) fn has_pool(&self) -> Result<bool, Errno> {
        let mut name = [0; 256];
        let (rados, cluster) = (self.cluster.rados(), self.cluster.handle);
        // SAFETY: the handle is open; the function writes at most the length that it is given.
        let found = check(unsafe {
            (rados.rados_pool_reverse_lookup)(cluster, self.pool_id(), name.as_mut_ptr().cast(), name.len())
        });
        match found {
            Ok(()) => Ok(true),
            Err(error) if is(error, Number::NOENT) => Ok(false),
            // A name that is longer.
            Err(error) if is(error, Number::RANGE) => Ok(true),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn pool_id(&self) -> i64 {
        // SAFETY: the handle is open.
        unsafe { (self.cluster.rados().rados_ioctx_get_id)(self.handle) }
    }
}

impl Drop for IoContext {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and this is its last use. The cluster is shut down later.
        unsafe { (self.cluster.rados().rados_ioctx_destroy)(self.handle) }
    }
}

/// An open image.
pub(crate) struct Image {
    pub(crate) io: IoContext,
    handle: Handle,
}

// SAFETY: as for `Cluster`.
unsafe impl Send for Image {}
// SAFETY: as for `Cluster`.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image. Blocks.
    pub(crate) fn open(io: IoContext, image: &CStr, read_only: bool) -> Result<Self, Errno> {
        let mut handle = null_mut();
        let rbd = &io.cluster.libraries.rbd;
        let open = if read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        // SAFETY: the handle is open, the text ends with zero; the function writes a handle unless it fails.
        check(unsafe { open(io.handle, image.as_ptr(), &raw mut handle, null()) })?;
        Ok(Self { io, handle })
    }

    fn rbd(&self) -> &Rbd {
        &self.io.cluster.libraries.rbd
    }

    /// Reads from a snapshot from now on. Blocks.
    pub(crate) fn set_snapshot(&self, snapshot: &CStr) -> Result<(), Errno> {
        // SAFETY: the handle is open, the text ends with zero.
        check(unsafe { (self.rbd().rbd_snap_set)(self.handle, snapshot.as_ptr()) })
    }

    fn number(&self, function: unsafe extern "C" fn(Handle, *mut u64) -> c_int) -> Result<u64, Errno> {
        let mut number = 0;
        // SAFETY: the handle is open; the function writes one number.
        check(unsafe { function(self.handle, &raw mut number) })?;
        Ok(number)
    }

    /// Returns the current length in bytes. Blocks if another client has changed the image.
    pub(crate) fn size(&self) -> Result<u64, Errno> {
        self.number(self.rbd().rbd_get_size)
    }

    pub(crate) fn features(&self) -> Result<u64, Errno> {
        self.number(self.rbd().rbd_get_features)
    }

    pub(crate) fn object_size(&self) -> Result<u64, Errno> {
        let mut info = std::mem::MaybeUninit::<ImageInfo>::zeroed();
        // SAFETY: the handle is open; the function writes at most the length that it is given.
        check(unsafe { (self.rbd().rbd_stat)(self.handle, info.as_mut_ptr(), size_of::<ImageInfo>()) })?;
        // SAFETY: zeroes are a value of every field, and so is what the function has written.
        Ok(unsafe { info.assume_init() }.object_size)
    }

    pub(crate) fn overlap(&self) -> Result<u64, Errno> {
        self.number(self.rbd().rbd_get_overlap)
    }

    pub(crate) fn stripe_count(&self) -> Result<u64, Errno> {
        self.number(self.rbd().rbd_get_stripe_count)
    }

    pub(crate) fn id(&self) -> Result<String, Errno> {
        let mut id = [0; 256];
        // SAFETY: the handle is open; the function writes at most the length that it is given.
        check(unsafe { (self.rbd().rbd_get_id)(self.handle, id.as_mut_ptr().cast(), id.len()) })?;
        Ok(text(&id))
    }

    /// Takes the exclusive lock, and keeps it from other clients. Blocks.
    pub(crate) fn acquire_lock(&self) -> Result<(), Errno> {
        // SAFETY: the handle is open.
        check(unsafe { (self.rbd().rbd_lock_acquire)(self.handle, EXCLUSIVE) })
    }

    /// Asks the cluster whether this client has the lock. Blocks.
    pub(crate) fn has_lock(&self) -> Result<bool, Errno> {
        let mut is_owner = 0;
        // SAFETY: the handle is open; the function writes one number.
        check(unsafe { (self.rbd().rbd_is_exclusive_lock_owner)(self.handle, &raw mut is_owner) })?;
        Ok(is_owner != 0)
    }

    /// Takes the lock from a client for good. Blocks.
    pub(crate) fn break_lock(&self, owner: &CStr) -> Result<(), Errno> {
        // SAFETY: the handle is open, the text ends with zero.
        check(unsafe { (self.rbd().rbd_lock_break)(self.handle, EXCLUSIVE, owner.as_ptr()) })
    }

    /// Returns the address of the client that has the lock. Blocks.
    pub(crate) fn lock_owner(&self) -> Result<Option<String>, Errno> {
        let mut owners = [null_mut(); LISTED];
        let (mut mode, mut count) = (0, owners.len());
        // SAFETY: the handle is open; the function writes at most `count` pointers, and their number.
        let listed = unsafe {
            (self.rbd().rbd_lock_get_owners)(self.handle, &raw mut mode, owners.as_mut_ptr(), &raw mut count)
        };
        match check(listed) {
            Ok(()) => {}
            Err(error) if is(error, Number::NOENT) => return Ok(None),
            Err(error) => return Err(error),
        }
        let count = count.min(owners.len());
        // SAFETY: the function has written `count` texts that end with zero.
        let owner = owners[..count].first().map(|owner| unsafe { CStr::from_ptr(*owner) });
        let owner = owner.map(|owner| owner.to_string_lossy().into_owned());
        // SAFETY: the texts are freed once, after their last use.
        unsafe { (self.rbd().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// Returns the addresses of the clients that have the image open for writing. Blocks.
    pub(crate) fn watchers(&self) -> Result<Vec<String>, Errno> {
        let mut watchers = vec![Watcher { address: null_mut(), id: 0, cookie: 0 }; LISTED];
        let count = loop {
            let mut count = watchers.len();
            // SAFETY: the handle is open; the function writes at most `count` watchers, and their number.
            let listed =
                check(unsafe { (self.rbd().rbd_watchers_list)(self.handle, watchers.as_mut_ptr(), &raw mut count) });
            match listed {
                Ok(()) => break count.min(watchers.len()),
                Err(error) if is(error, Number::RANGE) && watchers.len() < MAX_LISTED => {
                    watchers.resize(watchers.len() * 4, watchers[0]);
                }
                Err(error) => return Err(error),
            }
        };
        let address = |watcher: &Watcher| {
            // SAFETY: the function has written a text that ends with zero.
            unsafe { CStr::from_ptr(watcher.address) }.to_string_lossy().into_owned()
        };
        let addresses = watchers[..count].iter().map(address).collect();
        // SAFETY: the texts are freed once, after their last use.
        unsafe { (self.rbd().rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        Ok(addresses)
    }

    /// Calls `each` for ranges that hold data, in ascending order, until it returns false. Blocks.
    pub(crate) fn for_each_extent(
        &self,
        offset: u64,
        len: u64,
        mut each: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(), Errno> {
        extern "C" fn on_extent(offset: u64, len: usize, exists: c_int, argument: *mut c_void) -> c_int {
            // SAFETY: the argument is the address of `each` below, which lives and is used by this call alone.
            let each = unsafe { &mut *argument.cast::<&mut dyn FnMut(u64, u64) -> bool>() };
            if exists == 0 || each(offset, len as u64) { 0 } else { STOPPED }
        }
        /// Ends the iteration.
        const STOPPED: c_int = -Number::CANCELED.raw_os_error();
        let argument = (&raw mut each).cast();
        // SAFETY: the handle is open; the function calls `on_extent` with the argument before it returns only.
        let done =
            unsafe { (self.rbd().rbd_diff_iterate2)(self.handle, null(), offset, len, 1, 0, on_extent, argument) };
        if done == STOPPED { Ok(()) } else { check(done) }
    }

    /// Makes completions readable on an event descriptor, which the caller keeps as long as the image.
    fn notify(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: the handle is open; librbd writes to the descriptor, no memory.
        check(unsafe { (self.rbd().rbd_set_image_notification)(self.handle, fd.as_raw_fd(), EVENTFD) })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and this is its last use. Nothing is in flight: `Operations` leaks it otherwise.
        unsafe { (self.rbd().rbd_close)(self.handle) };
    }
}

/// An owned value whose address is fixed. Leaked unless taken.
struct Pinned<T>(NonNull<T>);

// SAFETY: it owns the value.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T> Pinned<T> {
    fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    fn take(self) -> T {
        // SAFETY: the pointer is that of a leaked box, and `self` is its only owner.
        *unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

/// An operation at librbd.
enum Flight {
    Waiting {
        pending: Pinned<Pending>,
        /// End of the part of the operation that is in flight.
        end: u64,
        since: Instant,
    },
    /// The engine has its failure. librbd may still use the memory.
    Abandoned(#[expect(dead_code, reason = "kept alive")] Option<Buffer>),
}

/// Arguments of an operation for librbd.
enum Call {
    Read(u64, *mut c_char, usize),
    Write(u64, *const c_char, usize),
    Discard(u64, u64),
    Flush,
}

/// An image with its operations in flight.
pub(crate) struct Operations {
    /// Leaked, if operations remain in flight.
    image: ManuallyDrop<Image>,
    /// librbd writes to it for as long as the image is open: leaked with it, so that its number is not used again.
    events: ManuallyDrop<OwnedFd>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    flights: HashMap<usize, Flight>,
    last: usize,
}

impl Operations {
    /// Makes completions readable on an event descriptor.
    pub(crate) fn new(image: Image, events: OwnedFd) -> Result<Self, Errno> {
        if let Err(error) = image.notify(events.as_fd()) {
            // In this order, in case that librbd has kept the descriptor.
            drop(image);
            drop(events);
            return Err(error);
        }
        Ok(Self { image: ManuallyDrop::new(image), events: ManuallyDrop::new(events), table: Mutex::default() })
    }

    /// Returns the event descriptor.
    pub(crate) fn events(&self) -> &OwnedFd {
        &self.events
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table().flights.is_empty()
    }

    /// Starts an operation; of a discard, the part of `len` bytes from `offset`. It may complete before this returns.
    pub(crate) fn start(&self, pending: Pending, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let pending = Pinned::new(pending);
        // SAFETY: the value lives, and nothing else has its address yet.
        let call = match unsafe { &mut *pending.0.as_ptr() }.operation_mut() {
            StoreOperation::Read { offset, buffer, range } => {
                let memory = &mut buffer.data_mut()[range.clone()];
                Call::Read(*offset, memory.as_mut_ptr().cast(), memory.len())
            }
            StoreOperation::Write { offset, data, range, .. } => {
                let memory = &data.bytes()[range.clone()];
                Call::Write(*offset, memory.as_ptr().cast(), memory.len())
            }
            StoreOperation::Discard { .. } => Call::Discard(offset, len),
            StoreOperation::Sync => Call::Flush,
            _ => return drop(pending.take()),
        };
        let number = {
            let mut table = self.table();
            table.last = table.last.wrapping_add(1);
            let number = table.last;
            table.flights.insert(number, Flight::Waiting { pending, end, since: Instant::now() });
            number
        };
        if let Err(error) = self.call(&call, number) {
            let flight = self.table().flights.remove(&number);
            if let Some(Flight::Waiting { pending, .. }) = flight {
                pending.take().complete(Err(error));
            }
        }
    }

    fn call(&self, call: &Call, number: usize) -> Result<(), Errno> {
        let rbd = self.image.rbd();
        let mut completion = null_mut();
        // The argument is a number, not an address.
        let argument = std::ptr::without_provenance_mut(number);
        // SAFETY: the function writes a handle unless it fails; there is no callback.
        check(unsafe { (rbd.rbd_aio_create_completion)(argument, null(), &raw mut completion) })?;
        let image = self.image.handle;
        // SAFETY: the handles are open. The memory is valid and is not touched until the flight is removed from the
        // table, which its completion does, or the failure of this call, after which librbd does not use it.
        let started = unsafe {
            match *call {
                Call::Read(offset, memory, len) => (rbd.rbd_aio_read)(image, offset, len, memory, completion),
                Call::Write(offset, memory, len) => (rbd.rbd_aio_write)(image, offset, len, memory, completion),
                Call::Discard(offset, len) => (rbd.rbd_aio_discard)(image, offset, len, completion),
                Call::Flush => (rbd.rbd_aio_flush)(image, completion),
            }
        };
        check(started).inspect_err(|_| {
            // SAFETY: the operation has not started: this is the last use of the completion.
            unsafe { (rbd.rbd_aio_release)(completion) }
        })
    }

    /// Takes completed operations, and passes each to `each`, with the end of its part and the return value. Returns
    /// whether there may be more.
    pub(crate) fn poll(&self, mut each: impl FnMut(Pending, u64, i64)) -> bool {
        let rbd = self.image.rbd();
        let mut completions = [null_mut(); BATCH];
        // SAFETY: the handle is open; the function writes at most as many handles as there is room for.
        let count = unsafe { (rbd.rbd_poll_io_events)(self.image.handle, completions.as_mut_ptr(), BATCH as c_int) };
        let count = usize::try_from(count).unwrap_or(0).min(BATCH);
        for completion in &completions[..count] {
            // SAFETY: librbd has given the completion to this thread, which releases it after its last use.
            let (number, result) = unsafe {
                let number = (rbd.rbd_aio_get_arg)(*completion).addr();
                let result = (rbd.rbd_aio_get_return_value)(*completion);
                (rbd.rbd_aio_release)(*completion);
                (number, result as i64)
            };
            let flight = self.table().flights.remove(&number);
            if let Some(Flight::Waiting { pending, end, .. }) = flight {
                each(pending.take(), end, result);
            }
        }
        count == BATCH
    }

    /// Fails operations started until `limit`, and returns their number. Their memory stays until librbd has completed
    /// them.
    pub(crate) fn abandon(&self, limit: Instant) -> usize {
        let mut table = self.table();
        let late = |(number, flight): (&usize, &Flight)| match flight {
            Flight::Waiting { since, .. } if *since <= limit => Some(*number),
            _ => None,
        };
        let late: Vec<usize> = table.flights.iter().filter_map(late).collect();
        for number in &late {
            if let Some(Flight::Waiting { pending, .. }) = table.flights.remove(number) {
                let memory = pending.take().fail_and_keep_memory();
                table.flights.insert(*number, Flight::Abandoned(memory));
            }
        }
        late.len()
    }
}

impl Drop for Operations {
    fn drop(&mut self) {
        let table = std::mem::take(&mut *self.table());
        if table.flights.is_empty() {
            // SAFETY: neither is used again; librbd writes to the descriptor until the image is closed.
            unsafe {
                ManuallyDrop::drop(&mut self.image);
                ManuallyDrop::drop(&mut self.events);
            }
        } else {
            // librbd may use the memory for as long as the process lives.
            std::mem::forget(table);
        }
    }
}
