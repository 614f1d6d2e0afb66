//! Outputs of programs: every file that a result is written to is opened here (docs/decisions/locks-and-outputs.md).
//!
//! [`Output::take`] refuses an input of the program and what is served, locked or mounted; [`Output::existing`] tells
//! what is overwritten. Nothing changes before [`Output::begin`]. A new file has another name until
//! [`Output::finish`], when all data are on stable storage. If an error or a signal comes first
//! ([`Host::before_end`](crate::Host::before_end)), it is removed, and a file that existed is cut.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inlock_volume::{FileDevice, HeaderDevice};
use rustix::fs::{OFlags, SeekFrom, seek};
use tempfile::{NamedTempFile, TempPath};

use crate::backing;
use crate::device::Device;
use crate::durable;
use crate::error::{Error, ErrorKind, Result, ResultExt as _, cannot_open};
use crate::host::Context;
use crate::lock::{self, DeviceLock, Mode};

/// Length of the zeroes that are written at once.
const ZEROES: usize = 1 << 20;

/// An output and its locks.
pub struct Output {
    context: Context,
    name: PathBuf,
    /// `None`: created by [`Output::begin`].
    file: Option<File>,
    /// A file or block device that was there.
    existing: Option<Metadata>,
    output_type: OutputType,
    /// A block device, opened exclusively.
    exclusive: Option<File>,
    lock: Option<DeviceLock>,
    unfinished: Arc<Mutex<Unfinished>>,
    /// Gives the output up when a signal ends the program.
    cleanup: Option<Box<dyn Send>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputType {
    /// A regular file, written without zeroes, and the next offset.
    Sparse(u64),
    /// A file or a block device, written sequentially.
    Storage,
    /// A pipe, a socket, a character device.
    Stream,
}

/// Work that an output leaves if it is not finished.
#[derive(Default)]
enum Unfinished {
    #[default]
    Nothing,
    /// A new file, not under its name yet.
    Temporary(TempPath),
    /// A file that existed, and the length that it is cut to.
    Cut(File, u64),
    /// A part of the data stays.
    Part,
    /// A signal is about to terminate the process.
    GivenUp,
}

impl Unfinished {
    fn give_up(&mut self, name: &Path, context: &Context) {
        let name = name.display();
        let incomplete = || context.failure(format_args!("{name} is not complete."));
        match std::mem::replace(self, Self::GivenUp) {
            Self::Nothing | Self::GivenUp => {}
            Self::Temporary(path) => drop(path),
            Self::Cut(file, len) => match file.set_len(len) {
                Ok(()) => {
                    context.failure(format_args!("{name} was cut to {len} bytes, since it is not complete."));
                }
                Err(_) => incomplete(),
            },
            Self::Part => incomplete(),
        }
    }
}

impl Output {
    /// Opens and locks `path`, or standard output. Does not create a file. `inputs`: what the program reads.
    pub fn take(context: &Context, path: Option<&Path>, inputs: &[&Path]) -> Result<Self> {
        let name = path.map_or_else(|| "standard output".into(), Path::to_owned);
        let mut output = Self {
            context: context.clone(),
            name,
            file: None,
            existing: None,
            output_type: OutputType::Stream,
            exclusive: None,
            lock: None,
            unfinished: Arc::default(),
            cleanup: None,
        };
        // Standard output may be an input, too.
        let written = path.unwrap_or(Path::new("/proc/self/fd/1"));
        if inputs.iter().any(|input| backing::overlap(input, written)) {
            return Err(Error::new(ErrorKind::OutputIsInput, "The output file is the image itself."));
        }
        let Some(path) = path else {
            if inlock_engine::startup::stdout_was_closed() {
                // What the runtime has opened in its place takes all data.
                return Err(output.cannot_write(rustix::io::Errno::BADF.into()));
            }
            // Not through the standard library, which buffers lines.
            let out = io::stdout().as_fd().try_clone_to_owned().map_err(|error| output.cannot_write(error))?;
            output.use_file(out.into())?;
            if output.output_type != OutputType::Stream {
                // The shell may have opened it for appending.
                output.output_type = OutputType::Storage;
            }
            return Ok(output);
        };
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() || found.file_type().is_block_device() => {
                output.open(false)?;
                output.existing = Some(found);
            }
            Ok(_) => output.output_type = OutputType::Stream,
            Err(_) => output.output_type = OutputType::Sparse(0),
        }
        Ok(output)
    }

    /// Returns the file or block device whose data [`Output::begin`] discards. A user may have to confirm that.
    pub fn existing(&self) -> Option<&Metadata> {
        self.existing.as_ref()
    }

    fn cannot_write(&self, error: io::Error) -> Error {
        let name = self.name.display();
        match error.kind() {
            io::ErrorKind::BrokenPipe => {
                Error::with_source(ErrorKind::OutputClosed, format!("The reader of {name} has closed it."), error)
            }
            io::ErrorKind::ResourceBusy => cannot_open(&self.name, false)(error),
            _ => Error::with_source(ErrorKind::Failed, format!("cannot write {name}"), error),
        }
    }

    fn open(&mut self, create: bool) -> Result<()> {
        // Only the owner may read plaintext; an existing file keeps its mode.
        let file = OpenOptions::new().write(true).create(create).truncate(false).mode(0o600).open(&self.name);
        self.use_file(file.map_err(|error| self.cannot_write(error))?)
    }

    /// Locks an open file, if it is storage.
    fn use_file(&mut self, file: File) -> Result<()> {
        let metadata = file.metadata().map_err(|error| self.cannot_write(error))?;
        if metadata.file_type().is_block_device() {
            self.output_type = OutputType::Storage;
            // Fails for one that is in use, such as a mounted one.
            let flags = OFlags::EXCL.bits().cast_signed();
            let again = format!("/proc/self/fd/{}", file.as_raw_fd());
            let exclusive = OpenOptions::new().write(true).custom_flags(flags).open(again);
            self.exclusive = Some(exclusive.map_err(|error| self.cannot_write(error))?);
        } else if metadata.is_file() {
            self.output_type = OutputType::Sparse(0);
            if let Some(device) = backing::loop_device_in_use(&metadata) {
                let text = format!("Device {} is in use, as the file of {}.", self.name.display(), device.display());
                return Err(Error::new(ErrorKind::LoopDeviceInUse, text).about(&device));
            }
        }
        let again = file.try_clone().map_err(|error| self.cannot_write(error))?;
        let device = Device::of_file(&self.context, &self.name, again).map_err(|error| self.cannot_write(error))?;
        if self.output_type != OutputType::Stream {
            self.lock = Some(lock::whole_device(&device, Mode::Exclusive)?);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Prepares it for `len` bytes, and discards its previous contents.
    pub fn begin(&mut self, len: u64) -> Result<()> {
        let (context, name, unfinished) = (self.context.clone(), self.name.clone(), Arc::clone(&self.unfinished));
        // The lock is not released: the process terminates.
        let give_up = move || unfinished.lock().unwrap_or_else(PoisonError::into_inner).give_up(&name, &context);
        let cleanup = self.context.host().before_end(Box::new(give_up));
        self.cleanup = Some(cleanup.with_context(|| format!("cannot write {}", self.name.display()))?);
        let unfinished = match &self.file {
            None if self.output_type == OutputType::Stream || self.name.is_symlink() => {
                // A symbolic link that leads to nothing: the file that it names is created.
                self.open(true)?;
                self.prepare(len)?
            }
            None => {
                let (file, path) = temporary(&self.name, 0o600).map_err(|error| self.cannot_write(error))?.into_parts();
                self.file = Some(file);
                Unfinished::Temporary(path)
            }
            Some(_) => self.prepare(len)?,
        };
        *self.unfinished() = unfinished;
        Ok(())
    }

    fn unfinished(&self) -> MutexGuard<'_, Unfinished> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a signal from giving the output up. Blocks if it has: nothing is written to a file that was cut.
    fn still_wanted(&self) -> MutexGuard<'_, Unfinished> {
        loop {
            match self.unfinished() {
                unfinished if !matches!(*unfinished, Unfinished::GivenUp) => return unfinished,
                _ => std::thread::park(),
            }
        }
    }

    /// Prepares an open file or device for `len` bytes.
    fn prepare(&self, len: u64) -> Result<Unfinished> {
        let Some(file) = &self.file else { return Ok(Unfinished::Nothing) };
        if matches!(self.output_type, OutputType::Sparse(_)) {
            let emptied = file.set_len(0).and_then(|()| file.try_clone());
            return Ok(Unfinished::Cut(emptied.map_err(|error| self.cannot_write(error))?, 0));
        }
        if self.output_type == OutputType::Stream {
            return Ok(Unfinished::Nothing);
        }
        let ends = || Ok((seek(file, SeekFrom::Current(0))?, FileDevice::new(file.try_clone()?).len()?));
        let (at, end) = ends().map_err(|error| self.cannot_write(error))?;
        if self.exclusive.is_none() {
            // Standard output: the shell has emptied the file, or opened it for appending. Otherwise the rest stays.
            let start = file.try_clone().map_err(|error| self.cannot_write(error))?;
            let appends = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::APPEND));
            return Ok(if appends || at == end { Unfinished::Cut(start, end) } else { Unfinished::Part });
        }
        let room = end.saturating_sub(at);
        if room < len {
            let text = format!("{} has only {room} bytes; {len} bytes are needed.", self.name.display());
            return Err(Error::new(ErrorKind::OutputTooSmall, text));
        }
        Ok(Unfinished::Part)
    }

    /// Whether zeroes can be left out.
    pub fn is_sparse(&self) -> bool {
        matches!(self.output_type, OutputType::Sparse(_))
    }

    /// Appends data.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let Some(mut file) = self.file.as_ref() else { return Ok(()) };
        let written = match self.output_type {
            OutputType::Stream => file.write_all(data),
            OutputType::Storage => {
                let _until_written = self.still_wanted();
                file.write_all(data)
            }
            OutputType::Sparse(at) => {
                let _until_written = self.still_wanted();
                file.write_all_at(data, at)
            }
        };
        written.map_err(|error| self.cannot_write(error))?;
        self.advance(data.len() as u64);
        Ok(())
    }

    /// Writes all of it.
    pub fn write_all(mut self, bytes: &[u8]) -> Result<()> {
        self.begin(bytes.len() as u64)?;
        self.write(bytes)?;
        self.finish()
    }

    /// Appends `len` zeroes.
    pub fn zeroes(&mut self, mut len: u64) -> Result<()> {
        if self.is_sparse() {
            self.advance(len);
            return Ok(());
        }
        let zeroes = vec![0; ZEROES];
        while len > 0 {
            let step = len.min(ZEROES as u64);
            self.write(&zeroes[..step as usize])?;
            len -= step;
        }
        Ok(())
    }

    fn advance(&mut self, len: u64) {
        if let OutputType::Sparse(at) = &mut self.output_type {
            *at += len;
        }
    }

    /// Syncs the data, gives a new file its name, and syncs that.
    pub fn finish(self) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.output_type != OutputType::Stream) else { return Ok(()) };
        let mut unfinished = self.still_wanted();
        let sync = || {
            if let OutputType::Sparse(len) = self.output_type {
                // Only now: a file that another end of the process leaves does not look complete.
                file.set_len(len)?;
            }
            file.sync_all()
        };
        sync().map_err(|error| self.cannot_write(error))?;
        match std::mem::take(&mut *unfinished) {
            Unfinished::Temporary(path) => {
                place(path, &self.name).map_err(|error| self.cannot_write(error))?;
                durable::sync_name(file, &self.name)
            }
            Unfinished::Cut(..) if self.is_sparse() && self.name.is_symlink() => durable::sync_name(file, &self.name),
            _ => Ok(()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.unfinished().give_up(&self.name, &self.context);
    }
}

/// Creates a file in the directory of `path`, which is removed unless it is placed.
fn temporary(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix("inlock-").suffix(".incomplete");
    // The library's own way to open it names the temporary file in errors.
    let create = |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path);
    builder.make_in(directory, create)
}

/// Gives a complete file its name, which no other file has.
fn place(file: TempPath, name: &Path) -> io::Result<()> {
    let Err(error) = file.persist_noclobber(name) else { return Ok(()) };
    if error.error.kind() == io::ErrorKind::AlreadyExists {
        return Err(error.error);
    }
    // A file system without hard links may not rename without replacing, either: what is replaced is a file of our own.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(name)?;
    error.path.persist(name).map_err(|error| {
        let _ = std::fs::remove_file(name);
        error.error
    })
}

/// Writes a file that only its owner can read, and that has no name before it is complete.
///
/// Fails with [`ErrorKind::OutputExists`] if something has the name, a link to nothing included.
pub fn write_new(context: &Context, path: &Path, bytes: &[u8]) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(not_new(io::ErrorKind::AlreadyExists.into()));
    }
    let (mut file, unplaced) = temporary(path, 0o400).map_err(not_new)?.into_parts();
    let unplaced = Arc::new(Mutex::new(Some(unplaced)));
    let last = Arc::clone(&unplaced);
    let remove = move || drop(last.lock().unwrap_or_else(PoisonError::into_inner).take());
    let _cleanup = context.host().before_end(Box::new(remove))?;
    file.write_all(bytes).and_then(|()| file.sync_all())?;
    if let Some(unplaced) = unplaced.lock().unwrap_or_else(PoisonError::into_inner).take() {
        place(unplaced, path).map_err(not_new)?;
    }
    durable::sync_name(&file, path)
}

fn not_new(error: io::Error) -> Error {
    let exists = error.kind() == io::ErrorKind::AlreadyExists;
    Error::from_source(if exists { ErrorKind::OutputExists } else { ErrorKind::Failed }, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Host, Level};
    use crate::settings::Settings;
    use inlock_tests::wait::eventually;
    use std::fmt::Display;

    /// Whether a thread of this process sleeps.
    fn sleeps(name: &str) -> bool {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let read = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        let mut named = tasks.filter(|task| read(task, "comm").trim_end() == name);
        named.any(|task| read(&task, "stat").contains(") S "))
    }

    type Act = Box<dyn FnOnce() + Send>;

    /// Remembers what is told, and what a signal is to do.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<String>>>, Arc<Mutex<Option<Act>>>);

    impl Host for Told {
        fn tell(&self, level: Level, text: &dyn Display) {
            assert_eq!(level, Level::Failure);
            self.0.lock().unwrap().push(text.to_string());
        }

        fn before_end(&self, act: Act) -> Result<Box<dyn Send>> {
            *self.1.lock().unwrap() = Some(act);
            Ok(Box::new(()))
        }
    }

    impl Told {
        fn signal(&self) {
            let act = self.1.lock().unwrap().take();
            act.unwrap()();
        }
    }

    fn context(told: &Told) -> Context {
        Context::new(told.clone(), Settings::default())
    }

    #[test]
    fn nothing_is_written_to_an_output_that_a_signal_has_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        std::fs::write(&path, "before").unwrap();
        let told = Told::default();
        let mut output = Output::take(&context(&told), Some(&path), &[]).unwrap();
        assert_eq!(output.existing().unwrap().len(), 6);
        output.begin(6).unwrap();
        output.write(b"a part").unwrap();
        told.signal();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let cut = format!("{} was cut to 0 bytes, since it is not complete.", path.display());
        assert_eq!(*told.0.lock().unwrap(), [cut]);
        // It ends with the process, as after a signal.
        let writes = move || (output.write(b"more").is_ok(), output.finish().is_ok());
        let writer = std::thread::Builder::new().name("late-writer".into()).spawn(writes).unwrap();
        eventually("it has stopped or written", || sleeps("late-writer") || writer.is_finished(), |has| *has);
        assert!(!writer.is_finished());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn existing_output_is_cut_if_it_is_not_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        std::fs::write(&path, "before").unwrap();
        let told = Told::default();
        let mut output = Output::take(&context(&told), Some(&path), &[]).unwrap();
        drop(Output::take(&context(&told), Some(&path), &[]).err().expect("it is locked"));
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        output.begin(6).unwrap();
        output.write(b"a part").unwrap();
        drop(output);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        assert_eq!(told.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn new_file_is_removed_before_a_signal_ends_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let told = Told::default();
        let mut output = Output::take(&context(&told), Some(&dir.path().join("output")), &[]).unwrap();
        output.begin(4).unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        told.signal();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        assert!(told.0.lock().unwrap().is_empty());
    }

    #[test]
    fn new_output_has_its_name_only_when_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        let told = Told::default();
        let begun = || {
            let mut output = Output::take(&context(&told), Some(&path), &[]).unwrap();
            assert!(output.existing().is_none());
            output.begin(8192).unwrap();
            output.write(b"data").unwrap();
            output.zeroes(8188).unwrap();
            assert!(!path.exists());
            output
        };
        drop(begun());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        begun().finish().unwrap();
        let written = std::fs::read(&path).unwrap();
        assert!(written.starts_with(b"data\0") && written.len() == 8192);
        assert!(told.0.lock().unwrap().is_empty());
    }

    #[test]
    fn input_is_refused_as_output_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("image"), dir.path().join("link"));
        std::fs::write(&path, "data").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = Output::take(&context(&Told::default()), Some(&link), &[&path]).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::OutputIsInput);
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn new_file_never_replaces_another_one_or_a_dangling_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("key"), dir.path().join("link"));
        std::os::unix::fs::symlink("nothing", &link).unwrap();
        let context = context(&Told::default());
        write_new(&context, &path, b"key").unwrap();
        for taken in [&path, &link] {
            assert_eq!(write_new(&context, taken, b"other").unwrap_err().kind(), ErrorKind::OutputExists);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"key");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
    }
}
