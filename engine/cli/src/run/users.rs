//! The program, and the processes that it leaves: they use its files.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The variable in which `libsysview.so.1`, in a program, finds the private folder.
pub const VARIABLE: &str = "FEROCE_SYSVIEW";

/// The processes that use the files.
#[derive(Debug)]
pub struct Users {
    /// Readable when the program has ended.
    program: OwnedFd,
    id: i32,
    mark: Mark,
}

/// How a process that uses the files is recognized.
#[derive(Debug)]
enum Mark {
    /// It is in this mount namespace.
    Namespace(PathBuf),
    /// It was started with this environment variable.
    Variable(Vec<u8>),
}

impl Users {
    /// Returns the users of the program `id`: in the mount namespace of this process, or of the
    /// private folder `root`.
    pub fn open(id: i32, root: Option<&Path>) -> io::Result<Self> {
        let pid = rustix::process::Pid::from_raw(id).ok_or(io::ErrorKind::InvalidInput)?;
        let program = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        let mark = match root {
            None => Mark::Namespace(fs::read_link("/proc/self/ns/mnt")?),
            Some(root) => Mark::Variable(format!("{VARIABLE}={}", root.display()).into_bytes()),
        };
        Ok(Self { program, id, mark })
    }

    /// Returns true until the program ends.
    pub fn program_runs(&self) -> bool {
        let mut files = [PollFd::new(self.program.as_fd(), PollFlags::POLLIN)];
        poll(&mut files, PollTimeout::ZERO) == Ok(0)
    }

    /// Returns true if the program or another process uses the files.
    pub fn exist(&self) -> bool {
        self.program_runs() || self.are_left()
    }

    fn are_left(&self) -> bool {
        let own = std::process::id().cast_signed();
        let Ok(processes) = fs::read_dir("/proc") else { return false };
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut others = ids.filter(|id: &i32| *id != own && *id != self.id);
        others.any(|id| match &self.mark {
            Mark::Namespace(own) => {
                fs::read_link(format!("/proc/{id}/ns/mnt")).is_ok_and(|other| other == *own)
            }
            // Processes of other users cannot be read, and do not use the files.
            Mark::Variable(variable) => fs::read(format!("/proc/{id}/environ"))
                .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == variable)),
        })
    }
}

impl AsFd for Users {
    /// A descriptor that is readable when the program has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
