//! Live counters below `/sys/class/infiniband`: a process of its own, which ends with the program.
//!
//! The files of sysfs are made when they are read. Here they are files of a tmpfs, and a process
//! that sees each read before it happens (fanotify's `FAN_ACCESS_PERM`) writes the present values
//! first: those that `feroce stat` shows. Values are at most [`FRESH`] old. Where the kernel
//! refuses this, as in a user namespace, the process writes them every [`INTERVAL_MILLIS`].
//!
//! The process is no child of the program, which may wait for all of its children: it is started by
//! a process that ends at once. It ends when no other process uses the mount namespace.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use feroce_engine::counters::Counter;
use feroce_engine::device::stat::{self, Request, Snapshot};
use feroce_engine::time::{Clock, Duration, Instant};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyResponse, InitFlags, MarkFlags, MaskFlags, Response,
};

/// Name by which this program is started as the process: its first argument, and its name in lists.
const NAME: &CStr = c"feroce-counters";
/// Values that are younger are not asked for again.
const FRESH: Duration = Duration::from_millis(1);
/// Interval of writing the values if reads are not seen; and of looking for other processes after
/// the program's end.
const INTERVAL_MILLIS: u8 = 100;
/// Maximum time that a read waits for a program that does not answer.
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
        let kind = if PORT_COUNTERS.contains(counter) { "counters" } else { "hw_counters" };
        (format!("ports/1/{kind}/{}", counter.name()), counter.name())
    });
    let of_rxe = NAMES_OF_RXE
        .iter()
        .map(|(name, counter)| (format!("ports/1/hw_counters/{name}"), counter.name()));
    own.chain(of_rxe)
}

/// Starts the process for `devices`: interfaces and the folders of their devices. Returns when it
/// is ready.
///
/// # Errors
/// The process cannot be started.
pub fn start(devices: &[(&str, &Path)]) -> io::Result<()> {
    let mut command = process();
    command.arg("start").arg(std::process::id().to_string());
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
    // `current_exe` is wrong in a chroot after `mounts::create`: this program's file belongs to the
    // mounts from before, so the kernel gives its path in the host's root.
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

/// Starts the process that stays. It becomes a child of `init` when this one ends.
fn detach(arguments: &[String]) -> io::Result<()> {
    process().arg("serve").args(arguments).current_dir("/").spawn().map(drop)
}

fn serve(arguments: &[String]) -> io::Result<()> {
    // Signals of the terminal are for the program.
    nix::unistd::setsid()?;
    let (program, devices) = arguments.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let program: i32 = program.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let clock = Clock::start();
    let devices = devices.chunks_exact(2);
    let devices = devices.map(|pair| Device::open(&pair[0], Path::new(&pair[1])));
    let mut devices = devices.collect::<io::Result<Vec<_>>>()?;
    let reads = see_reads(&devices).ok();
    let program = Program::open(program)?;
    io::stdout().write_all(READY)?;
    // The starter waits for the end of this file.
    rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    while program.runs_or_left_others() {
        let timeout = match (&reads, program.runs()) {
            (Some(_), true) => PollTimeout::NONE,
            _ => PollTimeout::from(INTERVAL_MILLIS),
        };
        wait(reads.as_ref(), &program, timeout);
        match &reads {
            Some(reads) => answer(reads, &mut devices, clock)?,
            None => devices.iter_mut().for_each(|device| device.refresh(clock)),
        }
    }
    Ok(())
}

/// Asks the kernel to report reads of the devices' files before they happen.
fn see_reads(devices: &[Device]) -> nix::Result<Fanotify> {
    let flags = InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
    let reads = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)?;
    for device in devices {
        let mark = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
        let here = File::open(&device.folder).map_err(|_| nix::Error::ENOENT)?;
        reads.mark(mark, MaskFlags::FAN_ACCESS_PERM, here.as_fd(), Some("."))?;
    }
    Ok(reads)
}

/// Sleeps until a file is read, the program ends, or `timeout`.
fn wait(reads: Option<&Fanotify>, program: &Program, timeout: PollTimeout) {
    let mut files: Vec<_> =
        reads.map(|reads| PollFd::new(reads.as_fd(), PollFlags::POLLIN)).into_iter().collect();
    if program.runs() {
        files.push(PollFd::new(program.file.as_fd(), PollFlags::POLLIN));
    }
    let _ = poll(&mut files, timeout); // After a signal, the loop looks around as well.
}

/// Writes the values of the devices whose files are about to be read, and lets the reads go on.
fn answer(reads: &Fanotify, devices: &mut [Device], clock: Clock) -> io::Result<()> {
    let events = match reads.read_events() {
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(()),
        events => events?,
    };
    for event in &events {
        let Some(file) = event.fd() else { continue };
        let path =
            fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        let path = path.unwrap_or_default();
        if let Some(device) = devices.iter_mut().find(|device| device.has_counter(&path)) {
            device.refresh(clock);
        }
        reads.write_response(FanotifyResponse::new(file, Response::FAN_ALLOW))?;
    }
    Ok(())
}

/// A device and its files.
struct Device {
    interface: String,
    folder: PathBuf,
    /// The files, each with the name of its counter and the text in it.
    files: Vec<(File, &'static str, String)>,
    asked_at: Option<Instant>,
}

impl Device {
    fn open(interface: &str, folder: &Path) -> io::Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let open = |(path, name): (String, &'static str)| {
            let file = OpenOptions::new().write(true).open(folder.join(path))?;
            Ok((file, name, String::new()))
        };
        let files = files().map(open).collect::<io::Result<_>>()?;
        Ok(Self { interface: interface.to_owned(), folder, files, asked_at: None })
    }

    fn has_counter(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.folder).unwrap_or(Path::new(""));
        let kind = below.parent().and_then(Path::file_name).unwrap_or_default();
        kind == "counters" || kind == "hw_counters"
    }

    /// Writes the present values. Without a program that has the device open, the last ones stay.
    fn refresh(&mut self, clock: Clock) {
        let now = clock.now();
        if self.asked_at.is_some_and(|at| now.saturating_since(at) < FRESH) {
            return;
        }
        if let Ok(snapshot) = stat::query_within(&self.interface, &Request::default(), TIMEOUT) {
            self.write(&snapshot);
        }
        self.asked_at = Some(clock.now());
    }

    fn write(&mut self, snapshot: &Snapshot) {
        let values: &BTreeMap<String, u64> = &snapshot.counters;
        for (file, name, written) in &mut self.files {
            let text = format!("{}\n", values.get(*name).copied().unwrap_or(0));
            if text == *written {
                continue;
            }
            let length = u64::try_from(text.len()).expect("a short text");
            let done = file.write_all_at(text.as_bytes(), 0).and_then(|()| file.set_len(length));
            if done.is_ok() {
                *written = text;
            }
        }
    }
}

/// The program, and the processes that it leaves.
struct Program {
    /// Readable when the program has ended.
    file: std::os::fd::OwnedFd,
    id: i32,
    namespace: PathBuf,
}

impl Program {
    fn open(id: i32) -> io::Result<Self> {
        let pid = rustix::process::Pid::from_raw(id).ok_or(io::ErrorKind::InvalidInput)?;
        let file = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        Ok(Self { file, id, namespace: fs::read_link("/proc/self/ns/mnt")? })
    }

    fn runs(&self) -> bool {
        let mut files = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        poll(&mut files, PollTimeout::ZERO) == Ok(0)
    }

    /// Returns true if the program or another process uses the mount namespace.
    fn runs_or_left_others(&self) -> bool {
        self.runs() || self.left_others()
    }

    fn left_others(&self) -> bool {
        let own = std::process::id().cast_signed();
        let Ok(processes) = fs::read_dir("/proc") else { return false };
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut others = ids.filter(|id: &i32| *id != own && *id != self.id);
        others.any(|id| {
            fs::read_link(format!("/proc/{id}/ns/mnt")).is_ok_and(|other| other == self.namespace)
        })
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
}
