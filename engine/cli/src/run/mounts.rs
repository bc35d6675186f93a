//! A private mount namespace in which `/dev/infiniband` and `/sys/class/infiniband` show Feroce's
//! devices. The host's own folders stay unchanged, and the mounts end with the program.
//!
//! As for a kernel driver, the files of an RNIC are below its PCI device, in `infiniband`, and
//! `/sys/class/infiniband` has a link to them. A PCI device is shown as a copy of its folder, with
//! everything in it bound to its own place, so that a folder can be added.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

use super::entry::Entry;
use super::sysfs::Device;

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
    let (mut copied, mut prepared) = (BTreeSet::new(), BTreeSet::new());
    for device in devices {
        node(&nodes.join(&device.node))?;
        if prepared.insert(&device.pci.folder) {
            pci(device, &mut copied)?;
        }
        for (kind, name, entries) in
            [(class, &device.name, &device.entries), (verbs, &device.node, &device.verbs)]
        {
            let kind_name = kind.file_name().expect("a name");
            let place = device.pci.folder.join(kind_name).join(name);
            fill(&place, entries)?;
            link_class(&place, &kind.join(name))?;
        }
    }
    Ok(())
}

/// Makes the PCI device's folder one to which folders can be added: `infiniband` and
/// `infiniband_verbs`, each with a file system of its own, and `net` if it is missing.
fn pci(device: &Device, copied: &mut BTreeSet<PathBuf>) -> Result<(), MountError> {
    let folder = &device.pci.folder;
    match &device.pci.stand_in {
        Some(files) => {
            mirror_once(Path::new("/sys/devices"), copied)?;
            fill(folder, files)?;
            let (bus, address) = (device.pci.bus(), device.pci.address());
            let parent = folder.parent().expect("below /sys/devices");
            let buses = parent.join("pci_bus").join(&bus);
            fs::create_dir_all(&buses).map_err(failed(&buses))?;
            for (class, name, to) in [
                ("/sys/class/pci_bus", &bus, buses.as_path()),
                ("/sys/bus/pci/devices", &address, folder.as_path()),
            ] {
                let class = Path::new(class);
                if class.is_dir() {
                    mirror_once(class, copied)?;
                    link_class(to, &class.join(name))?;
                }
            }
        }
        None => mirror(folder)?,
    }
    if let Some(node) = device.pci.numa_node {
        // Below the kernel's file, the copy has an empty one.
        let place = folder.join("numa_node");
        umount(&place).map_err(|source| MountError::Mount { place: place.clone(), source })?;
        write(&place, format!("{node}\n"))?;
    }
    for name in ["infiniband", "infiniband_verbs"] {
        let place = folder.join(name);
        fs::create_dir_all(&place).map_err(failed(&place))?;
        mount_empty(&place)?;
    }
    let net = folder.join("net");
    if !net.exists() {
        let interface = Path::new("/sys/class/net").join(&device.interface);
        fs::create_dir(&net).map_err(failed(&net))?;
        let place = net.join(&device.interface);
        symlink(interface, &place).map_err(failed(&place))?;
    }
    Ok(())
}

/// Creates the link `at`, in a folder of `/sys/class` or such, that leads to `folder`. Like the
/// kernel's links, it is relative to its own folder.
fn link_class(folder: &Path, at: &Path) -> Result<(), MountError> {
    let below = folder.strip_prefix("/sys").unwrap_or(folder);
    let depth = at.parent().map_or(0, |parent| parent.components().count() - 2);
    let up: PathBuf = std::iter::repeat_n("..", depth).collect();
    symlink(up.join(below), at).map_err(failed(at))
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
            Entry::File(bytes) => write(&place, bytes)?,
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

/// As [`mirror`], if `copied` does not say that it is done.
fn mirror_once(folder: &Path, copied: &mut BTreeSet<PathBuf>) -> Result<(), MountError> {
    if copied.insert(folder.to_owned()) { mirror(folder) } else { Ok(()) }
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

fn write(place: &Path, bytes: impl AsRef<[u8]>) -> Result<(), MountError> {
    create_parent(place)?;
    fs::write(place, bytes).map_err(failed(place))
}

fn failed(place: &Path) -> impl Fn(std::io::Error) -> MountError {
    let place = place.to_owned();
    move |source| MountError::File { place: place.clone(), source }
}
