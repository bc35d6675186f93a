//! Dropping privileges after everything that requires them is open.
//!
//! CAP_NET_ADMIN is kept: the kernel resolves neighbours only with this capability, and the device
//! follows the host's neighbour table while it runs. Open sockets, maps and memory stay usable.

use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use feroce_engine::device::OpenError;
use feroce_engine::device::settings::Settings;
use nix::unistd::{Gid, Uid, User};

use crate::failure::Failure;

/// The capability that is kept, if the process has it.
const KEPT: Capability = Capability::CAP_NET_ADMIN;

/// The user of the setting `user`, if set.
///
/// # Errors
/// As for [`find`].
pub fn find_of(settings: &Settings) -> Result<Option<User>, Failure> {
    settings.user.as_deref().map(find).transpose()
}

/// Looks up the user `name`.
///
/// # Errors
/// [`Failure::Plan`] if there is no such user.
pub fn find(name: &str) -> Result<User, Failure> {
    match User::from_name(name) {
        Ok(Some(user)) => Ok(user),
        Ok(None) => Err(Failure::Plan(format!("there is no user `{name}` (setting `user`)"))),
        Err(error) => Err(Failure::Plan(format!("cannot look up the user `{name}`: {error}"))),
    }
}

/// Switches to `user`, if given, and drops every capability but [`KEPT`], permanently.
///
/// Capabilities belong to threads, and new threads inherit them: call this while the calling thread
/// is the only one. If a port has already started threads that keep capabilities, a warning says
/// so.
///
/// # Errors
/// [`OpenError::System`] if a step fails: the process must not continue with more privileges than
/// requested.
pub fn give_up(user: Option<&User>) -> Result<(), OpenError> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed("read the privileges"))?;
    let kept: CapsHashSet = permitted.into_iter().filter(|cap| *cap == KEPT).collect();
    if let Some(user) = user {
        become_user(user)
            .map_err(|error| failed("switch to the user of the setting `user`")(error))?;
    }
    let sets = [
        (CapSet::Ambient, CapsHashSet::new()),
        (CapSet::Inheritable, CapsHashSet::new()),
        (CapSet::Effective, kept.clone()),
        (CapSet::Permitted, kept.clone()),
    ];
    for (set, capabilities) in &sets {
        caps::set(None, *set, capabilities).map_err(failed("drop privileges"))?;
    }
    nix::sys::prctl::set_no_new_privs().map_err(failed("forbid new privileges"))?;
    let others = threads_beyond(&kept);
    if others > 0 {
        tracing::warn!(
            threads = others,
            "threads of the port keep their privileges; --user removes theirs, too"
        );
    }
    Ok(())
}

/// Returns true if the process already has the user and group of `user`.
pub fn is_already(user: &User) -> bool {
    Uid::effective() == user.uid && Gid::effective() == user.gid
}

fn become_user(user: &User) -> io::Result<()> {
    if is_already(user) {
        return Ok(());
    }
    // This thread keeps its capabilities across the change; `give_up` drops them afterwards.
    nix::sys::prctl::set_keepcaps(true)?;
    let name = std::ffi::CString::new(user.name.as_str()).map_err(io::Error::other)?;
    nix::unistd::initgroups(&name, user.gid)?;
    nix::unistd::setresgid(user.gid, user.gid, user.gid)?;
    nix::unistd::setresuid(user.uid, user.uid, user.uid)?;
    Ok(())
}

/// Number of threads with capabilities beyond `kept`.
fn threads_beyond(kept: &CapsHashSet) -> usize {
    let allowed = kept.iter().fold(0, |mask, cap| mask | cap.bitmask());
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let effective = |task: io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    tasks.filter_map(effective).filter(|mask| mask & !allowed != 0).count()
}

fn failed<E: std::error::Error + Send + Sync + 'static>(
    action: &'static str,
) -> impl Fn(E) -> OpenError {
    move |error| OpenError::System { action, source: io::Error::other(error.to_string()) }
}
