//! What the kernel asks about the one file, answered from a blocking device.
//!
//! The file is as long as the device and never changes its length by a client's doing. Reads and writes end at its end, as a
//! block device's do. Nothing is cached here: a write that was answered is in the store's hands, and `fsync` is the
//! device's flush.

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use inlock_engine::{BlockingDevice, Buffer, Device, RequestError};
use rustix::fs::FallocateFlags;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// The longest read or write that the kernel is asked to send: what it sends at most without being told otherwise.
const LARGEST_REQUEST: u32 = 1 << 20;

/// Requests of the page cache that may be under way at once.
const BACKGROUND: u16 = 64;

/// Attributes are asked for again each time, so that a volume that has grown shows it.
const ATTRIBUTES_LAST: Duration = Duration::ZERO;

/// The file.
pub(super) struct VolumeFile {
    device: BlockingDevice,
    made: SystemTime,
    /// Where reads put their bytes before the kernel takes them.
    buffers: Mutex<Vec<Buffer>>,
}

impl VolumeFile {
    /// With memory for so many threads, each of which answers one request at a time.
    pub(super) fn new(device: &Arc<Device>, threads: usize) -> Self {
        let device = BlockingDevice::with_calls(Arc::clone(device), threads);
        let buffers = (0..threads).map(|_| Buffer::new(LARGEST_REQUEST as usize)).collect();
        Self { device, made: SystemTime::now(), buffers: Mutex::new(buffers) }
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_only(&self) -> bool {
        self.device.device().access().read_only
    }

    fn attributes(&self) -> FileAttr {
        FileAttr {
            ino: INodeNo::ROOT,
            size: self.device.len(),
            // Holes of the store do not read as zeroes, so they are none of this file's.
            blocks: self.device.len().div_ceil(512),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind: FileType::RegularFile,
            perm: if self.read_only() { 0o400 } else { 0o600 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: u32::try_from(self.device.device().mapping().unit_len()).unwrap_or(4096).max(4096),
            flags: 0,
        }
    }

    /// Bytes from `offset` that lie in the file, at most `len`.
    fn within(&self, offset: u64, len: u64) -> u64 {
        self.device.len().saturating_sub(offset).min(len)
    }

    fn write_bytes(&self, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let len = self.within(offset, data.len() as u64) as usize;
        if len == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        self.device.write_at(&data[..len], offset).map_err(number)?;
        Ok(len as u32)
    }

    fn allocate(&self, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        if self.read_only() {
            return Err(Errno::EROFS);
        }
        // A hole that was punched into a file reads as zeroes, a discarded data unit does not: there is nothing here that
        // a punch could mean. Who asks for it to get zeroes (a loop device does) writes them instead.
        if mode.difference(FallocateFlags::KEEP_SIZE) != FallocateFlags::ZERO_RANGE {
            return Err(Errno::EOPNOTSUPP);
        }
        let inside = self.within(offset, len);
        if inside < len && !mode.contains(FallocateFlags::KEEP_SIZE) {
            return Err(Errno::ENOSPC);
        }
        self.device.write_zeroes(offset, inside).map_err(number)
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A kernel that takes less says how much it takes, and gets that.
        if let Err(most) = config.set_max_write(LARGEST_REQUEST) {
            let _ = config.set_max_write(most);
        }
        if let Err(most) = config.set_max_readahead(LARGEST_REQUEST) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND);
        // Direct I/O of a loop device is asynchronous with it; older kernels do without.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn getattr(&self, _req: &Request, _ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_LAST, &self.attributes());
    }

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Times are taken and forgotten. Whose the volume is, and how long, is not a client's to say.
        let other_len = size.is_some_and(|size| size != self.device.len());
        if other_len || mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&ATTRIBUTES_LAST, &self.attributes());
    }

    fn open(&self, _req: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.read_only() && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        // The kernel's pages of it stay good between opens: nobody else writes the volume.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.within(offset, u64::from(size.min(LARGEST_REQUEST))) as usize;
        let Some(mut buffer) = self.buffers().pop() else { return reply.error(Errno::ENOMEM) };
        let bytes = &mut buffer.data_mut()[..len];
        match self.device.read_at(bytes, offset) {
            Ok(()) => reply.data(bytes),
            Err(error) => reply.error(number(error)),
        }
        self.buffers().push(buffer);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_bytes(offset, data) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer(self.device.flush().map_err(number), reply);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(self.allocate(offset, length, mode), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.device.len() / 512;
        reply.statfs(blocks, 0, 0, 1, 0, 512, 255, 512);
    }
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn number(error: RequestError) -> Errno {
    match error {
        // What a file on a read-only file system answers.
        RequestError::ReadOnly => Errno::EROFS,
        error => Errno::from_i32(error.errno().raw_os_error()),
    }
}
