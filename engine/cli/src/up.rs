//! `feroce up` and `feroce down`: starting and ending the daemons that own interfaces.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use feroce_engine::daemon::{self, Daemon, DaemonConfig, Dscps, Limits};
use feroce_engine::device::OpenError;
use feroce_engine::files;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::unistd::Group;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sd_notify::NotifyState;

use crate::config::SettingFlags;
use crate::failure::Failure;
use crate::{descriptors, output, privileges, signal, syscalls};

/// Group whose members may use the daemons of root, if the group exists.
const GROUP: &str = "rdma";
/// Environment variable in which a service manager names its socket (sd_notify(3)).
const NOTIFY: &str = "NOTIFY_SOCKET";
/// Line of a message to the service manager: programs can attach.
const READY: &[u8] = b"READY=1";
/// Environment variable that marks the process that `--detach` starts.
const DETACHED: &str = "_FEROCE_DETACHED";
/// Maximum time in which the kernel closes all descriptors of a process that has ended.
const CLOSING: Duration = Duration::from_secs(2);
/// Maximum time for a daemon to start or to end.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Options of `feroce up`.
#[derive(Debug, Args)]
#[command(after_help = "\
Programs find the daemon by themselves: `feroce run`, the drop-in libraries, `feroce perf`. Each \
gets QP numbers of its own, and sees only frames to its own QPs. The socket of a daemon is \
/run/feroce/NAMESPACE/IFACE for root, and in $XDG_RUNTIME_DIR/feroce for other users; who may use \
the socket may use the interface. docs/daemon.md has the details.")]
pub struct Options {
    /// Interfaces to own [default: the setting `interfaces`]
    #[arg(value_name = "IFACE", value_hint = ValueHint::Other)]
    interfaces: Vec<String>,
    /// Return once programs can attach; the daemon runs on
    #[arg(short, long)]
    detach: bool,
    /// Where a daemon in the background writes its messages once it is ready [default: nowhere]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "detach")]
    log: Option<PathBuf>,
    /// Never sleep: shorter latency, one CPU per daemon
    #[arg(long)]
    poll: bool,
    /// Do not restrict the daemon's system calls, for debugging
    #[arg(long)]
    no_seccomp: bool,
    /// Directory for the sockets [default: /run/feroce, or feroce in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    socket_dir: Option<PathBuf>,
    /// Group that may use the daemon [default: rdma for root, if that group exists]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Permissions of the socket, octal [default: 660 with a group, otherwise 600]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u32>,
    /// DSCPs that programs may use, such as `0,26,46` [default: all]
    #[arg(long, value_name = "LIST", value_parser = parse_dscps)]
    dscps: Option<Dscps>,
    #[command(flatten)]
    limits: LimitFlags,
    /// Settings
    #[command(flatten)]
    settings: SettingFlags,
}

/// Limits of each user; those of RDMA CM, of each program.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits per user")]
struct LimitFlags {
    /// Programs
    #[arg(long, value_name = "N", default_value_t = Limits::default().clients)]
    max_programs: u32,
    /// QPs, given to programs 256 at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().qps)]
    max_qps: u32,
    /// Connections of RDMA CM, per program
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    max_connections: u32,
    /// Ports of RDMA CM, per program
    #[arg(long, value_name = "N", default_value_t = Limits::default().services)]
    max_services: u32,
    /// Packets per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_packets: Option<u64>,
    /// Bytes per second, Ethernet headers included [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_bytes: Option<u64>,
}

/// Options of `feroce down`.
#[derive(Debug, Args)]
pub struct DownOptions {
    /// Interfaces whose daemons end [default: all in this network namespace]
    #[arg(value_name = "IFACE", value_hint = ValueHint::Other)]
    interfaces: Vec<String>,
    /// Directory of the sockets [default: as for `feroce up`]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    socket_dir: Option<PathBuf>,
}

/// Parses octal permissions.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected octal permissions such as 660".to_owned())
}

fn parse_dscps(text: &str) -> Result<Dscps, String> {
    let bit = |number: &str| {
        let dscp = number.trim().parse::<u32>().ok().filter(|dscp| *dscp < 64);
        dscp.map(|dscp| 1 << dscp)
    };
    let bits = text.split(',').try_fold(0u64, |bits, number| Some(bits | bit(number)?));
    bits.map(Dscps).ok_or_else(|| "expected numbers from 0 to 63, such as 0,26".to_owned())
}

/// Runs the daemons until a signal ends them.
pub fn run(options: &Options) -> Result<(), Failure> {
    let settings = options.settings.load()?;
    let interfaces = match options.interfaces.as_slice() {
        [] => settings.interfaces.clone(),
        given => given.to_vec(),
    };
    if interfaces.is_empty() {
        let message = "no interface given: `feroce up IFACE`, or the setting `interfaces`";
        return Err(Failure::Usage(message.to_owned()));
    }
    if options.detach && std::env::var_os(DETACHED).is_none() {
        return detach(&interfaces);
    }
    let log = options.detach.then(|| options.open_log()).transpose()?;
    let config = options.config()?;
    if let Some(log) = &log {
        // The log may have been one of the caller's descriptors: `--log >(logger)`.
        descriptors::close_inherited(Some(log.as_raw_fd()));
        // Otherwise the process has the name of the link /proc/self/exe.
        nix::sys::prctl::set_name(c"feroce").map_err(|error| OpenError::System {
            action: "name the process",
            source: error.into(),
        })?;
    }
    signal::watch();
    let mut daemons = Vec::new();
    for interface in &interfaces {
        let daemon = Daemon::open(interface, &settings.device_config(), config.clone())?;
        let port = daemon.port();
        let socket = daemon.socket().display();
        output::line(&format!("{interface}: {} of MTU {}, socket {socket}", port.kind, port.mtu))?;
        daemons.push(daemon);
    }
    let sockets: Vec<_> = daemons.iter().map(|daemon| daemon.socket().to_owned()).collect();
    let _cleaner = Cleaner::start(&sockets).map_err(|source| OpenError::System {
        action: "start the process that removes the sockets",
        source,
    })?;
    privileges::give_up(None)?; // New threads have no more than this one.
    if !options.no_seccomp {
        syscalls::restrict().map_err(|error| {
            Failure::Plan(format!(
                "cannot restrict the system calls of the daemon (option --no-seccomp): {error}"
            ))
        })?;
    }
    for daemon in &mut daemons {
        daemon.start()?;
    }
    let owned = format!("programs can attach: {}", interfaces.join(", "));
    notify(&[NotifyState::Ready, NotifyState::Status(&owned)]);
    if let Some(log) = log {
        // From the terminal of the command that started this process.
        rustix::stdio::dup2_stderr(&log)
            .map_err(|error| Failure::Plan(format!("cannot write messages to a file: {error}")))?;
    }
    serve(&mut daemons)?;
    if !options.detach {
        let ending = "ends the connections of programs";
        notify(&[NotifyState::Stopping, NotifyState::Status(ending)]);
    }
    drop(daemons);
    Ok(())
}

/// Waits for a signal while the daemons serve their programs.
fn serve(daemons: &mut Vec<Daemon>) -> Result<(), Failure> {
    while !signal::interrupted() {
        std::thread::sleep(Duration::from_millis(100));
        if daemons.iter().any(Daemon::has_failed) {
            return Err(Failure::Plan(
                "the daemon has failed; its programs lose their devices".to_owned(),
            ));
        }
        // Programs on an interface that is gone lose their devices. The others stay.
        daemons.retain(|daemon| !daemon.is_lost());
        if daemons.is_empty() {
            let lost = "the interface is gone, or another program has taken its frames";
            return Err(Failure::Plan(format!("{lost}; the programs lose their devices")));
        }
    }
    Ok(())
}

impl Options {
    /// Opens the file for the messages of a process in the background: the log, or /dev/null.
    fn open_log(&self) -> Result<File, OpenError> {
        let opened = match &self.log {
            Some(path) => files::append(path).map_err(|error| files::named(path, &error)),
            None => File::options().write(true).open("/dev/null"),
        };
        opened.map_err(|source| OpenError::System {
            action: "open the file for messages (option --log)",
            source,
        })
    }

    fn config(&self) -> Result<DaemonConfig, Failure> {
        let group = match (&self.group, nix::unistd::geteuid().is_root()) {
            (Some(name), _) => Some(find_group(name)?.ok_or_else(|| {
                Failure::Usage(format!("there is no group `{name}` (option --group)"))
            })?),
            (None, true) => find_group(GROUP)?,
            (None, false) => None,
        };
        let LimitFlags { max_packets, max_bytes, .. } = self.limits;
        Ok(DaemonConfig {
            directory: self.socket_dir.clone(),
            group: group.map(|group| group.gid.as_raw()),
            mode: self.mode,
            limits: Limits {
                clients: self.limits.max_programs,
                qps: self.limits.max_qps,
                connections: self.limits.max_connections,
                services: self.limits.max_services,
                packets: max_packets,
                bytes: max_bytes,
            },
            dscps: self.dscps.unwrap_or_default(),
            polls: self.poll,
        })
    }
}

/// Environment variable that marks the process that removes the sockets of a killed daemon.
const CLEANER: &str = "_FEROCE_CLEANER";

/// A child process that removes the sockets once this process has ended, even by a signal. The
/// child waits for the end of its standard input.
struct Cleaner {
    child: std::process::Child,
}

impl Cleaner {
    fn start(sockets: &[PathBuf]) -> io::Result<Self> {
        let child = Command::new("/proc/self/exe")
            .args(sockets)
            .env(CLEANER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { child })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait(); // An error would mean that the child has been reaped.
    }
}

/// If this process was started as the cleaner, waits for the daemon's end, removes sockets and
/// their directories, and returns true.
pub fn clean_if_called() -> bool {
    if std::env::var_os(CLEANER).is_none() {
        return false;
    }
    // No privilege is needed to remove the user's own files.
    let _ = privileges::give_up(None);
    let _ = io::copy(&mut io::stdin(), &mut io::sink()); // Until the daemon has ended.
    for socket in std::env::args_os().skip(1).map(PathBuf::from) {
        // The kernel may close the daemon's socket after its pipe. A socket that is still served
        // later is a successor's.
        let end = Instant::now() + CLOSING;
        while daemon::is_served(&socket) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        if daemon::is_served(&socket) {
            continue;
        }
        let _ = std::fs::remove_file(&socket);
        socket.parent().map(std::fs::remove_dir);
    }
    true
}

fn find_group(name: &str) -> Result<Option<Group>, Failure> {
    Group::from_name(name)
        .map_err(|error| Failure::Plan(format!("cannot look up the group `{name}`: {error}")))
}

/// Starts the same command in the background, and waits until it is ready.
fn detach(interfaces: &[String]) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::Plan(format!("cannot start in the background: {error}"));
    let socket = std::env::temp_dir().join(format!("feroce-up-{}", std::process::id()));
    let _removed = RemoveFile(&socket);
    let ready = UnixDatagram::bind(&socket).map_err(failed)?;
    ready.set_read_timeout(Some(Duration::from_millis(100))).map_err(failed)?;
    let mut child = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env(NOTIFY, &socket)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let end = Instant::now() + TIME_LIMIT;
    loop {
        let mut message = [0; 4096];
        let length = ready.recv(&mut message).unwrap_or(0);
        if message[..length].split(|byte| *byte == b'\n').any(|line| line == READY) {
            let names = interfaces.join(", ");
            return output::line(&format!("{names}: process {}", child.id()));
        }
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Err(Failure::Plan(format!("the daemon has ended at once ({status})")));
        }
        if Instant::now() > end {
            let _ = child.kill(); // The child may have ended.
            return Err(Failure::Plan(format!("the daemon was not ready within {TIME_LIMIT:?}")));
        }
    }
}

struct RemoveFile<'a>(&'a Path);

impl Drop for RemoveFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0); // The file may not exist.
    }
}

/// Sends a message to the service manager, or to `feroce up --detach`, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Ends daemons and waits for their end.
pub fn down(options: &DownOptions) -> Result<(), Failure> {
    let running = daemon::running(options.socket_dir.as_deref())
        .map_err(|error| Failure::Plan(format!("cannot look for daemons: {error}")))?;
    let wanted = |name: &str| {
        options.interfaces.is_empty() || options.interfaces.iter().any(|wanted| wanted == name)
    };
    for name in &options.interfaces {
        if !running.iter().any(|daemon| daemon.interface == *name) {
            let owned: Vec<&str> = running.iter().map(|daemon| daemon.interface.as_str()).collect();
            let others = match owned.as_slice() {
                [] => "there is none; `feroce up` starts one".to_owned(),
                owned => format!("there is one on {}", owned.join(", ")),
            };
            return Err(Failure::Plan(format!(
                "no daemon owns {name} in this network namespace: {others}"
            )));
        }
    }
    let mut ending: Vec<_> = running.iter().filter(|daemon| wanted(&daemon.interface)).collect();
    let pids: BTreeSet<i32> = ending.iter().map(|daemon| daemon.pid).collect();
    // A process that owns several interfaces ends as a whole.
    ending = running.iter().filter(|daemon| pids.contains(&daemon.pid)).collect();
    let mut processes = Vec::new();
    for pid in pids {
        processes.extend(end(pid)?.map(|process| (pid, process)));
    }
    let limit = Instant::now() + TIME_LIMIT;
    for (pid, process) in &processes {
        wait_for_end(*pid, process, limit)?;
    }
    for daemon in ending {
        output::line(&format!("{}: ended", daemon.interface))?;
    }
    io::stdout().flush().map_err(Failure::Output)
}

/// Waits until a daemon's process has ended: its sockets are removed and its interfaces free.
fn wait_for_end(pid: i32, process: &OwnedFd, limit: Instant) -> Result<(), Failure> {
    let mut watched = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    let time = limit.saturating_duration_since(Instant::now());
    let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    match nix::poll::poll(&mut watched, time) {
        Ok(0) => Err(Failure::Plan(format!("process {pid} does not end"))),
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Plan(format!("cannot wait for process {pid}: {error}"))),
    }
}

/// Asks a daemon's process to end. Returns a descriptor of the process, `None` if it has ended.
fn end(pid: i32) -> Result<Option<OwnedFd>, Failure> {
    // The kernel reports 0 for a process of another pid namespace.
    let target = Pid::from_raw(pid).ok_or_else(|| {
        Failure::Plan("a daemon runs in another pid namespace: end it there".to_owned())
    })?;
    let asked = pidfd_open(target, PidfdFlags::empty()).and_then(|process| {
        pidfd_send_signal(&process, Signal::TERM)?;
        Ok(process)
    });
    match asked {
        Ok(process) => Ok(Some(process)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(Failure::Plan(format!("cannot end process {pid}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dscps_and_modes_are_parsed() {
        assert_eq!(parse_dscps("0, 26,63"), Ok(Dscps(1 | 1 << 26 | 1 << 63)));
        assert!(parse_dscps("64").is_err() && parse_dscps("").is_err());
        assert_eq!(parse_mode("660"), Ok(0o660));
        assert!(parse_mode("8").is_err() && parse_mode("1777").is_err());
    }
}
