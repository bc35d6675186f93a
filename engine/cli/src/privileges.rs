//! Giving up privileges once everything that needs them is open.
//!
//! What stays is CAP_NET_ADMIN, without which the kernel resolves no neighbour for us: the device follows the
//! host while it runs. Sockets, maps and memory that are open stay usable.

use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use feroce_engine::device::OpenError;
use feroce_engine::device::settings::Settings;
use nix::unistd::{Gid, Uid, User};

use crate::failure::Failure;

/// The one privilege that is kept, where there was one to keep.
const KEPT: Capability = Capability::CAP_NET_ADMIN;

/// The user of the setting `user`, if it names one.
///
/// # Errors
/// As for [`find`].
pub fn find_of(settings: &Settings) -> Result<Option<User>, Failure> {
    settings.user.as_deref().map(find).transpose()
}

/// The user called `name`.
///
/// # Errors
/// [`Failure::Plan`] if there is none.
pub fn find(name: &str) -> Result<User, Failure> {
    match User::from_name(name) {
        Ok(Some(user)) => Ok(user),
        Ok(None) => Err(Failure::Plan(format!(
            "there is no user called `{name}` to turn into (setting `user`)"
        ))),
        Err(error) => Err(Failure::Plan(format!("cannot look up the user `{name}`: {error}"))),
    }
}

/// Turns the process into `user`, if there is one, and gives up every privilege but [`KEPT`], for good.
///
/// Capabilities belong to threads: this is for the moment in which there is only the calling one, from which
/// all later threads inherit. What threads a port may have started already keep is said in a warning.
///
/// # Errors
/// [`OpenError::System`]: nothing is to be done with more privileges than asked for.
pub fn give_up(user: Option<&User>) -> Result<(), OpenError> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed("read the privileges"))?;
    let kept: CapsHashSet = permitted.into_iter().filter(|cap| *cap == KEPT).collect();
    if let Some(user) = user {
        become_user(user)
            .map_err(|error| failed("turn into the user of the setting `user`")(error))?;
    }
    let sets = [
        (CapSet::Ambient, CapsHashSet::new()),
        (CapSet::Inheritable, CapsHashSet::new()),
        (CapSet::Effective, kept.clone()),
        (CapSet::Permitted, kept.clone()),
    ];
    for (set, capabilities) in &sets {
        caps::set(None, *set, capabilities).map_err(failed("give up privileges"))?;
    }
    nix::sys::prctl::set_no_new_privs().map_err(failed("forbid new privileges"))?;
    let others = threads_beyond(&kept);
    if others > 0 {
        tracing::warn!(
            threads = others,
            "threads of the port keep their privileges: --user takes those from them, too"
        );
    }
    Ok(())
}

/// Whether the process is `user` as it is.
pub fn is_already(user: &User) -> bool {
    Uid::effective() == user.uid && Gid::effective() == user.gid
}

fn become_user(user: &User) -> io::Result<()> {
    if is_already(user) {
        return Ok(());
    }
    // Kept across the change by this thread; what it needs no longer goes afterwards.
    nix::sys::prctl::set_keepcaps(true)?;
    let name = std::ffi::CString::new(user.name.as_str()).map_err(io::Error::other)?;
    nix::unistd::initgroups(&name, user.gid)?;
    nix::unistd::setresgid(user.gid, user.gid, user.gid)?;
    nix::unistd::setresuid(user.uid, user.uid, user.uid)?;
    Ok(())
}

/// How many threads can do more than `kept`.
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
