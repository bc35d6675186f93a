//! A private mount namespace in which `/dev/infiniband` and `/sys/class/infiniband` show Feroce's
//! devices. The host's own folders stay unchanged, and the mounts end with the program.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::sysfs::{Device, Entry};

/// Why the mounts could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The process may not create a mount namespace.
    #[error("cannot create a mount namespace: {0}")]
    Namespace(nix::Error),
    /// A mount failed.
    #[error("cannot mount {}: {source}", place.display())]
    Mount {
        /// Mount point.
        place: PathBuf,
        /// The system's error.
        source: nix::Error,
    },
    /// A file or folder cannot be created.
    #[error("cannot create {}: {source}", place.display())]
    File {
        /// Path.
        place: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Creates the mount namespace for `devices`. It applies to this process from now on.
pub fn create(devices: &[Device]) -> Result<(), MountError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(MountError::Namespace)?;
    // Mounts from now on do not propagate to other namespaces.
    mount_at("none", Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    let [nodes, class, verbs] =
        ["/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs"].map(Path::new);
    for place in [nodes, class, verbs] {
        cover(place)?;
    }
    write(&verbs.join("abi_version"), "6\n")?;
    node(&nodes.join("rdma_cm"))?;
    for device in devices {
        node(&nodes.join(&device.node))?;
        fill(&class.join(&device.name), &device.entries)?;
        fill(&verbs.join(&device.node), &device.verbs)?;
    }
    Ok(())
}

/// Creates a character device at `place`. Programs check that the file is a character device that
/// they can read and write; only the library uses it. Any character device will do, and
/// bind-mounting `/dev/null` requires no permission to create a node.
fn node(place: &Path) -> Result<(), MountError> {
    write(place, "")?;
    mount_at("/dev/null", place, None, MsFlags::MS_BIND)
}

fn fill(folder: &Path, entries: &[(String, Entry)]) -> Result<(), MountError> {
    for (path, entry) in entries {
        let place = folder.join(path);
        match entry {
            Entry::File(text) => write(&place, text)?,
            Entry::Link(to) => {
                create_parent(&place)?;
                symlink(to, &place).map_err(failed(&place))?;
            }
        }
    }
    Ok(())
}

/// Mounts an empty folder over `place`. If `place` does not exist, the parent folder is rebuilt
/// from its own content first, so that the folder can be created.
fn cover(place: &Path) -> Result<(), MountError> {
    if !place.is_dir() {
        let parent = place.parent().expect("not the root");
        mirror(parent)?;
        fs::create_dir(place).map_err(failed(place))?;
    }
    mount_empty(place)
}

fn mount_empty(place: &Path) -> Result<(), MountError> {
    mount_at("tmpfs", place, Some("tmpfs"), MsFlags::MS_NOSUID)
}

/// Mounts a new folder over `folder`, with all its entries bound into it.
fn mirror(folder: &Path) -> Result<(), MountError> {
    // Keeps the covered folder reachable.
    let kept = fs::File::open(folder).map_err(failed(folder))?;
    let covered = PathBuf::from(format!("/proc/self/fd/{}", kept.as_raw_fd()));
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(failed(folder))?;
    mount_empty(folder)?;
    for entry in entries {
        let name = entry.file_name();
        let (from, to) = (covered.join(&name), folder.join(&name));
        let Ok(kind) = fs::symlink_metadata(&from).map(|metadata| metadata.file_type()) else {
            continue; // The entry is gone.
        };
        if kind.is_symlink() {
            let target = fs::read_link(&from).map_err(failed(&from))?;
            symlink(target, &to).map_err(failed(&to))?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to).map_err(failed(&to))?;
        } else {
            write(&to, "")?;
        }
        mount_at(&from, &to, None, MsFlags::MS_BIND | MsFlags::MS_REC)?;
    }
    Ok(())
}

fn mount_at(
    from: impl AsRef<OsStr>,
    place: &Path,
    kind: Option<&str>,
    flags: MsFlags,
) -> Result<(), MountError> {
    let done = mount(Some(from.as_ref()), place, kind, flags, None::<&str>);
    done.map_err(|source| MountError::Mount { place: place.to_owned(), source })
}

fn create_parent(place: &Path) -> Result<(), MountError> {
    let parent = place.parent().expect("not the root");
    fs::create_dir_all(parent).map_err(failed(parent))
}

fn write(place: &Path, text: &str) -> Result<(), MountError> {
    create_parent(place)?;
    fs::write(place, text).map_err(failed(place))
}

fn failed(place: &Path) -> impl Fn(std::io::Error) -> MountError {
    let place = place.to_owned();
    move |source| MountError::File { place: place.clone(), source }
}
