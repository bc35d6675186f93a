//! A private mount namespace in which `/dev/infiniband` and `/sys/class/infiniband` show Feroce's devices. The host's own
//! folders stay as they are, and what is mounted here ends with the program.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::sysfs::{Device, Entry};

/// Why the surroundings could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Needs privileges, or a system that allows it.
    #[error("no mount namespace of its own: {0}")]
    Namespace(nix::Error),
    /// A mount.
    #[error("cannot mount {}: {source}", place.display())]
    Mount {
        /// Where.
        place: PathBuf,
        /// The system's answer.
        source: nix::Error,
    },
    /// A file or folder.
    #[error("cannot make {}: {source}", place.display())]
    File {
        /// Which.
        place: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Makes the surroundings for `devices`, for this process from now on.
pub fn surround(devices: &[Device]) -> Result<(), MountError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(MountError::Namespace)?;
    // What is mounted from now on is nobody else's.
    mounted("none", Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    let [nodes, class, verbs] =
        ["/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs"].map(Path::new);
    for place in [nodes, class, verbs] {
        own(place)?;
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

/// A character device at `place`. Programs look whether it is one, and theirs to read and write; none gets further, for
/// that is the library's work. So any will do, and `/dev/null` does not need the right to make one.
fn node(place: &Path) -> Result<(), MountError> {
    write(place, "")?;
    mounted("/dev/null", place, None, MsFlags::MS_BIND)
}

fn fill(folder: &Path, entries: &[(String, Entry)]) -> Result<(), MountError> {
    for (path, entry) in entries {
        let place = folder.join(path);
        match entry {
            Entry::File(text) => write(&place, text)?,
            Entry::Link(to) => {
                make_parent(&place)?;
                symlink(to, &place).map_err(failed(&place))?;
            }
        }
    }
    Ok(())
}

/// An empty folder at `place`, over what is there. Where nothing is, the folder above is put together anew from what is
/// in it.
fn own(place: &Path) -> Result<(), MountError> {
    if !place.is_dir() {
        let above = place.parent().expect("below the root");
        mirror(above)?;
        fs::create_dir(place).map_err(failed(place))?;
    }
    empty(place)
}

fn empty(place: &Path) -> Result<(), MountError> {
    mounted("tmpfs", place, Some("tmpfs"), MsFlags::MS_NOSUID)
}

/// Puts a folder of ours over `folder`, with everything bound that is in it.
fn mirror(folder: &Path) -> Result<(), MountError> {
    // The way to what will be covered.
    let kept = fs::File::open(folder).map_err(failed(folder))?;
    let covered = PathBuf::from(format!("/proc/self/fd/{}", kept.as_raw_fd()));
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(failed(folder))?;
    empty(folder)?;
    for entry in entries {
        let name = entry.file_name();
        let (from, to) = (covered.join(&name), folder.join(&name));
        let Ok(kind) = fs::symlink_metadata(&from).map(|metadata| metadata.file_type()) else {
            continue; // Gone meanwhile.
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
        mounted(&from, &to, None, MsFlags::MS_BIND | MsFlags::MS_REC)?;
    }
    Ok(())
}

fn mounted(
    from: impl AsRef<OsStr>,
    place: &Path,
    kind: Option<&str>,
    flags: MsFlags,
) -> Result<(), MountError> {
    let done = mount(Some(from.as_ref()), place, kind, flags, None::<&str>);
    done.map_err(|source| MountError::Mount { place: place.to_owned(), source })
}

fn make_parent(place: &Path) -> Result<(), MountError> {
    let above = place.parent().expect("below the root");
    fs::create_dir_all(above).map_err(failed(above))
}

fn write(place: &Path, text: &str) -> Result<(), MountError> {
    make_parent(place)?;
    fs::write(place, text).map_err(failed(place))
}

fn failed(place: &Path) -> impl Fn(std::io::Error) -> MountError {
    let place = place.to_owned();
    move |source| MountError::File { place: place.clone(), source }
}
