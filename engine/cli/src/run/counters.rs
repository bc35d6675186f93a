//! Live counters below `/sys/class/infiniband`: a process of its own, which ends with the program.
//!
//! The kernel makes the content of a sysfs file for each reader. Here the files are those of a
//! tmpfs. The kernel reports each opening to the process before the file is opened (fanotify's
//! `FAN_OPEN_PERM`), and the process writes the current value first: the one that `feroce stat`
//! shows, at most [`FRESH`] old. It then replaces the opened file by a new one, so that a reader
//! keeps the value of its opening, however many reads it needs. A reader that wants a newer value
//! opens the file again; in sysfs a read at offset 0 is enough.
//!
//! Where the kernel refuses to report openings, as in a user namespace, the process replaces the
//! files every [`INTERVAL`] instead.
//!
//! An opening waits for the process: at most [`TIMEOUT`] for a program that does not answer, but
//! without limit while the process itself is stopped (`SIGSTOP`). If the process is killed, the
//! files keep their last values.
//!
//! The process is not a child of the program, which may wait for all of its children: it is started
//! by a process that ends at once. It ends when no other process uses the files, and removes the
//! private folder if they are in one (`view.rs`). It closes all descriptors that it inherits, such
//! as the lock of `flock`.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use feroce_engine::counters::Counter;
use feroce_engine::device::stat::{self, Request, StatError};
use feroce_engine::time::{Clock, Duration, Instant};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyResponse, InitFlags, MarkFlags, MaskFlags, Response,
};
use nix::sys::signal::{SigSet, Signal};

use super::users::Users;

/// Name by which this program is started as the process: its first argument, and its name in lists.
const NAME: &CStr = c"feroce-counters";
/// Values that are younger are not queried again.
const FRESH: Duration = Duration::from_millis(1);
/// Interval of writing the values if openings are not seen.
const INTERVAL: Duration = Duration::from_millis(100);
/// A program that did not answer is not queried again for this time. If the kernel does not report
/// openings, this also holds if no program serves the counters.
const RETRY: Duration = Duration::from_secs(1);
/// Interval of looking for other processes after the program's end.
const OTHERS: Duration = Duration::from_secs(1);
/// Maximum time that an opening waits for a program that does not answer.
const TIMEOUT: Duration = Duration::from_millis(200);
/// What the process writes when it is ready.
const READY: &[u8] = b"ready\n";

/// Counters that Linux has in `counters`; all others are in `hw_counters`.
const PORT_COUNTERS: [Counter; 5] = [
    Counter::PortXmitData,
    Counter::PortXmitPackets,
    Counter::PortRcvData,
    Counter::PortRcvPackets,
    Counter::PortRcvErrors,
];

/// The folder of the port, below the device's, and those of its counters.
const PORT: &str = "ports/1";
const FOLDERS: [&str; 2] = ["counters", "hw_counters"];
/// Name of a new file in the port's folder.
const NEW: &str = ".new";

/// Names of rxe for counters with the same meaning.
const NAMES_OF_RXE: [(&str, Counter); 4] = [
    ("sent_pkts", Counter::PortXmitPackets),
    ("rcvd_pkts", Counter::PortRcvPackets),
    ("rcvd_seq_err", Counter::PacketSeqErr),
    ("rcvd_rnr_err", Counter::RnrNakRetryErr),
];

/// Returns the counters as paths below the device's folder, each with its name in a snapshot.
pub fn files() -> impl Iterator<Item = (String, &'static str)> {
    let own = Counter::ALL.iter().map(|counter| {
        let folder = FOLDERS[usize::from(!PORT_COUNTERS.contains(counter))];
        (format!("{PORT}/{folder}/{}", counter.name()), counter.name())
    });
    let of_rxe = NAMES_OF_RXE
        .iter()
        .map(|(name, counter)| (format!("{PORT}/{}/{name}", FOLDERS[1]), counter.name()));
    own.chain(of_rxe)
}

/// Starts the process for `devices`: interfaces and the folders of their devices. Of a private
/// folder that has them, `private` is the path, and the locked folder: the process removes it.
/// Returns when the process is ready.
///
/// # Errors
/// The process cannot be started.
pub fn start(devices: &[(&str, &Path)], private: Option<(&Path, File)>) -> io::Result<()> {
    let mut command = process();
    command.arg("start").arg(std::process::id().to_string());
    command.arg(private.as_ref().map_or(Path::new(""), |(root, _)| root));
    if let Some((_, lock)) = private {
        command.stdin(lock); // The process holds the lock as long as it runs.
    }
    for (interface, folder) in devices {
        command.arg(interface).arg(folder);
    }
    let mut starter = command.stdout(Stdio::piped()).spawn()?;
    let mut answer = Vec::new();
    starter.stdout.take().map_or(Ok(0), |mut output| output.read_to_end(&mut answer))?;
    starter.wait()?;
    match answer == READY {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&answer).trim().to_owned())),
    }
}

/// This program as the process, without standard input and error.
fn process() -> Command {
    // `current_exe` may be wrong after `mounts::create`: this program's file belongs to the mounts
    // from before, and the kernel's path leads through them, or begins at a mount of the file's
    // folder.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(OsStr::from_bytes(NAME.to_bytes())).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs the process if this program was started as it. Returns false otherwise.
pub fn run_if_called() -> bool {
    let mut arguments = std::env::args();
    if arguments.next().is_none_or(|name| name.as_bytes() != NAME.to_bytes()) {
        return false;
    }
    let _ = nix::sys::prctl::set_name(NAME); // The kernel's name is that of the file, `exe`.
    crate::descriptors::close_inherited(None);
    let arguments: Vec<String> = arguments.collect();
    let done = match arguments.split_first() {
        Some((stage, rest)) if stage == "start" => detach(rest),
        Some((_, rest)) => serve(rest),
        None => Ok(()),
    };
    if let Err(error) = done {
        println!("{error}");
    }
    true
}

/// Starts the process that serves the counters. It becomes a child of `init` when the current
/// process ends.
fn detach(arguments: &[String]) -> io::Result<()> {
    let mut command = process();
    command.stdin(Stdio::inherit()).arg("serve").args(arguments).current_dir("/").spawn().map(drop)
}

fn serve(arguments: &[String]) -> io::Result<()> {
    // Signals of the terminal are for the program.
    nix::unistd::setsid()?;
    let [program, root, devices @ ..] = arguments else { return Err(invalid()) };
    let root = (!root.is_empty()).then_some(Path::new(root));
    let program = program.parse().map_err(|_| invalid())?;
    let users = Users::open(program, root)?;
    if root.is_some() {
        // A service manager ends all processes of a service at once. This one ends after the
        // others, which is soon.
        let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
        SigSet::from_iter(signals).thread_block()?;
    }
    let devices = devices.chunks_exact(2);
    let open = |pair: &[String]| Device::open(&pair[0], program, Path::new(&pair[1]));
    let devices = devices.map(open);
    let mut devices = devices.collect::<io::Result<Vec<_>>>()?;
    let openings = see_openings(&devices).ok();
    let clock = Clock::start();
    if openings.is_none() {
        devices.iter_mut().for_each(|device| device.update(clock));
    }
    io::stdout().write_all(READY)?;
    // The starter waits for the end of this file.
    rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    let done = follow(&users, &mut devices, openings.as_ref(), clock);
    if let Some(root) = root {
        // Without live counters, the files stay as long as they are used.
        while users.exist() {
            wait(None, &users, timeout(Some(Instant::default() + OTHERS), Instant::default()));
        }
        let _ = fs::remove_dir_all(root); // The program may have removed it.
    }
    done
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

/// Writes the counters of `devices` until no process uses them.
fn follow(
    users: &Users,
    devices: &mut [Device],
    openings: Option<&Fanotify>,
    clock: Clock,
) -> io::Result<()> {
    while users.exist() {
        let now = clock.now();
        let others = (!users.program_runs()).then_some(now + OTHERS);
        let queries = openings.is_none().then(|| devices.iter().map(|device| device.query_at));
        let until = queries.into_iter().flatten().chain(others).min();
        wait(openings, users, timeout(until, now));
        match openings {
            Some(openings) => answer(openings, devices, clock)?,
            None => devices.iter_mut().for_each(|device| device.update(clock)),
        }
    }
    Ok(())
}

/// Makes the kernel report openings of the devices' counters before they happen.
fn see_openings(devices: &[Device]) -> nix::Result<Fanotify> {
    let flags = InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
    let openings = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)?;
    let events = MaskFlags::FAN_OPEN_PERM | MaskFlags::FAN_EVENT_ON_CHILD;
    for device in devices {
        let port = File::open(device.folder.join(PORT)).map_err(|_| nix::Error::ENOENT)?;
        for folder in FOLDERS {
            openings.mark(MarkFlags::FAN_MARK_ADD, events, port.as_fd(), Some(folder))?;
        }
    }
    Ok(openings)
}

/// Returns the time from `now` to `until` for `poll`, rounded up.
fn timeout(until: Option<Instant>, now: Instant) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    let millis = until.saturating_since(now).as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}

/// Sleeps until a file is opened, the program ends, or `timeout`.
fn wait(openings: Option<&Fanotify>, users: &Users, timeout: PollTimeout) {
    let openings = openings.map(|openings| PollFd::new(openings.as_fd(), PollFlags::POLLIN));
    let mut files: Vec<_> = openings.into_iter().collect();
    if users.program_runs() {
        files.push(PollFd::new(users.as_fd(), PollFlags::POLLIN));
    }
    let _ = poll(&mut files, timeout); // After a signal, the loop looks around as well.
}

/// Writes the values of the files that are about to be opened, and lets the openings go on.
fn answer(openings: &Fanotify, devices: &mut [Device], clock: Clock) -> io::Result<()> {
    let events = match openings.read_events() {
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(()),
        events => events?,
    };
    for event in &events {
        let Some(file) = event.fd() else { continue };
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        if let Ok(metadata) = fs::metadata(path) {
            let opened = FileId::of(&metadata);
            devices.iter_mut().for_each(|device| device.prepare(opened, clock));
        }
        openings.write_response(FanotifyResponse::new(file, Response::FAN_ALLOW))?;
    }
    Ok(())
}

/// A device and its files.
struct Device {
    /// The names under which the program may serve its statistics: at a daemon, or by itself.
    names: [String; 2],
    folder: PathBuf,
    files: Vec<CounterFile>,
    /// The values of the last answer.
    counters: BTreeMap<String, u64>,
    /// The program is not queried before this time.
    query_at: Instant,
}

impl Device {
    /// The device on `interface` of the process `program`.
    fn open(interface: &str, program: i32, folder: &Path) -> io::Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let files = files().map(|(path, name)| {
            CounterFile::replace(folder.join(path), folder.join(PORT).join(NEW), name, zero())
        });
        let files = files.collect::<io::Result<_>>()?;
        let (counters, query_at) = (BTreeMap::new(), Instant::default());
        let names = [stat::name_at_daemon(interface, program), interface.to_owned()];
        Ok(Self { names, folder, files, counters, query_at })
    }

    /// Writes the current value to the file `opened`, if the file belongs to this device. Only its
    /// reader keeps this file: the next reader finds a new one.
    ///
    /// A second reader may have looked up the file before it was replaced. The file then no longer
    /// belongs to the device and keeps the value of the first reader.
    fn prepare(&mut self, opened: FileId, clock: Clock) {
        let Some(at) = self.files.iter().position(|file| file.id == opened) else { return };
        self.query(FRESH, FRESH, clock);
        let text = self.text(self.files[at].name);
        // Without memory for files, the values stay.
        let _ = self.files[at].write(text).and_then(|()| self.files[at].renew());
    }

    /// Replaces the files whose values have changed, if a query is due.
    fn update(&mut self, clock: Clock) {
        if !self.query(INTERVAL, RETRY, clock) {
            return;
        }
        for at in 0..self.files.len() {
            let text = self.text(self.files[at].name);
            if text != self.files[at].text {
                self.files[at].text = text;
                let _ = self.files[at].renew(); // As above.
            }
        }
    }

    /// Queries the current values, if a query is due. Returns true if the program answered;
    /// otherwise the last values stay. The next query is due after `fresh`, or after `absent` if no
    /// program has the device open.
    fn query(&mut self, fresh: Duration, absent: Duration, clock: Clock) -> bool {
        if clock.now() < self.query_at {
            return false;
        }
        let query = |name: &str| stat::query_within(name, &Request::default(), TIMEOUT);
        let answer = match query(&self.names[0]) {
            Err(StatError::NoEndpoint { .. }) => query(&self.names[1]),
            answer => answer,
        };
        let pause = match &answer {
            Ok(_) => fresh,
            Err(StatError::NoEndpoint { .. }) => absent,
            Err(_) => RETRY,
        };
        self.query_at = clock.now() + pause;
        answer.map(|snapshot| self.counters = snapshot.counters).is_ok()
    }

    fn text(&self, name: &str) -> String {
        self.counters.get(name).map_or_else(zero, |value| format!("{value}\n"))
    }
}

/// The text of a counter before anything was counted.
fn zero() -> String {
    "0\n".to_owned()
}

/// Identifies a file, whatever its name is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The file of a counter, which no reader has opened yet.
struct CounterFile {
    path: PathBuf,
    /// Name of the next file until it is complete. It is in no folder whose openings are reported,
    /// because this process would wait for its own response.
    new: PathBuf,
    /// Name of the counter.
    name: &'static str,
    file: File,
    id: FileId,
    text: String,
}

impl CounterFile {
    /// Replaces `path` by a file with `text`.
    fn replace(path: PathBuf, new: PathBuf, name: &'static str, text: String) -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        let id = FileId::of(&file.metadata()?);
        fs::rename(&new, &path)?;
        Ok(Self { path, new, name, file, id, text })
    }

    /// Leaves the current file to its readers and replaces it by a new one.
    fn renew(&mut self) -> io::Result<()> {
        let (path, new) = (self.path.clone(), self.new.clone());
        *self = Self::replace(path, new, self.name, self.text.clone())?;
        Ok(())
    }

    fn write(&mut self, text: String) -> io::Result<()> {
        if text != self.text {
            self.file.write_all_at(text.as_bytes(), 0)?;
            self.file.set_len(u64::try_from(text.len()).expect("a short text"))?;
            self.text = text;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_where_linux_has_them() {
        let paths: Vec<_> = files().collect();
        for (path, name) in [
            ("ports/1/counters/port_xmit_data", "port_xmit_data"),
            ("ports/1/counters/port_rcv_packets", "port_rcv_packets"),
            ("ports/1/hw_counters/out_of_sequence", "out_of_sequence"),
            ("ports/1/hw_counters/np_cnp_sent", "np_cnp_sent"),
            ("ports/1/hw_counters/sent_pkts", "port_xmit_packets"),
            ("ports/1/hw_counters/rcvd_rnr_err", "rnr_nak_retry_err"),
        ] {
            assert!(paths.contains(&(path.to_owned(), name)), "{path}");
        }
        let mut unique: Vec<_> = paths.iter().map(|(path, _)| path).collect();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), paths.len());
    }
    /// A device in a temporary folder, which the tests remove.
    fn device(name: &str) -> Device {
        let folder = std::env::temp_dir().join(format!("fr-{name}-{}", std::process::id()));
        for kind in FOLDERS {
            fs::create_dir_all(folder.join(PORT).join(kind)).expect("a folder");
        }
        Device::open("fr-none", 0, &folder).expect("a device")
    }

    /// Reads `count` bytes.
    fn bytes(file: &mut File, count: usize) -> String {
        let mut read = vec![0; count];
        file.read_exact(&mut read).expect("a long enough text");
        String::from_utf8(read).expect("digits")
    }

    #[test]
    fn a_reader_sees_one_value() {
        let mut device = device("one-value");
        let clock = Clock::start();
        let path = device.files[0].path.clone();
        let opened = || {
            let file = File::open(&path).expect("a file");
            let id = FileId::of(&file.metadata().expect("a file"));
            (file, id)
        };
        let name = device.files[0].name.to_owned();
        let mut rest = String::new();
        // The kernel reports openings. No program answers, so the values stay as set here.
        device.counters.insert(name.clone(), 1234);
        let (mut first, id) = opened();
        device.prepare(id, clock);
        assert_eq!(bytes(&mut first, 2), "12");
        device.counters.insert(name.clone(), 99);
        // A second reader had looked up the file before it was prepared for the first one.
        device.prepare(id, clock);
        let (mut second, id) = opened();
        device.prepare(id, clock);
        first.read_to_string(&mut rest).expect("text");
        assert_eq!(std::mem::take(&mut rest), "34\n");
        assert_eq!(bytes(&mut second, 3), "99\n");
        // At its end, a longer value must not show.
        device.counters.insert(name, 45_678);
        let (mut third, id) = opened();
        device.prepare(id, clock);
        second.read_to_string(&mut rest).expect("text");
        assert_eq!(rest, "");
        assert_eq!(bytes(&mut third, 6), "45678\n");
        let left: Vec<_> = fs::read_dir(device.folder.join(PORT)).expect("a folder").collect();
        assert_eq!(left.len(), 2, "{left:?}");
        fs::remove_dir_all(&device.folder).expect("the folder");
    }

    #[test]
    fn an_absent_program_is_queried_again_after_a_second() {
        let mut device = device("absent");
        let clock = Clock::start();
        assert!(!device.query(INTERVAL, RETRY, clock));
        let now = clock.now();
        assert!(device.query_at > now + RETRY / 2 && device.query_at <= now + RETRY);
        assert!(timeout(Some(device.query_at), now).as_millis().is_some_and(|ms| ms > 500));
        fs::remove_dir_all(&device.folder).expect("the folder");
    }
}
