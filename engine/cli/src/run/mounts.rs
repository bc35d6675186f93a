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

use super::sysfs::Device;
use super::tree::{PLACES, Tree, TreeError};

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
    #[error(transparent)]
    File(#[from] TreeError),
}

/// Creates the mount namespace for `devices`. It applies to this process from now on.
pub fn create(devices: &[Device]) -> Result<(), MountError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(MountError::Namespace)?;
    // Mounts from now on do not propagate to other namespaces.
    mount_at("none", Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE)?;
    let [nodes, _, verbs] = PLACES.map(Path::new);
    for place in PLACES {
        cover(Path::new(place))?;
    }
    let tree = Tree::new(Path::new("/"));
    tree.file(&verbs.join("abi_version"), "6\n")?;
    node(&tree, &nodes.join("rdma_cm"))?;
    let (mut copied, mut prepared) = (BTreeSet::new(), BTreeSet::new());
    for device in devices {
        node(&tree, &nodes.join(&device.node))?;
        if prepared.insert(&device.pci.folder) {
            pci(&tree, device, &mut copied)?;
        }
        tree.device(device)?;
    }
    Ok(())
}

/// Makes the PCI device's folder one to which folders can be added: `infiniband` and
/// `infiniband_verbs`, each with a file system of its own, and `net` if it is missing.
fn pci(tree: &Tree, device: &Device, copied: &mut BTreeSet<PathBuf>) -> Result<(), MountError> {
    let folder = &device.pci.folder;
    match &device.pci.stand_in {
        Some(files) => {
            mirror_once(Path::new("/sys/devices"), copied)?;
            tree.fill(folder, files)?;
            let (bus, address) = (device.pci.bus(), device.pci.address());
            let parent = folder.parent().expect("below /sys/devices");
            let buses = parent.join("pci_bus").join(&bus);
            tree.folder(&buses)?;
            for (class, name, to) in [
                ("/sys/class/pci_bus", &bus, buses.as_path()),
                ("/sys/bus/pci/devices", &address, folder.as_path()),
            ] {
                let class = Path::new(class);
                if class.is_dir() {
                    mirror_once(class, copied)?;
                    tree.class_link(to, &class.join(name))?;
                }
            }
        }
        None => mirror(folder)?,
    }
    if let Some(node) = device.pci.numa_node {
        // Below the kernel's file, the copy has an empty one.
        let place = folder.join("numa_node");
        umount(&place).map_err(|source| MountError::Mount { place: place.clone(), source })?;
        tree.file(&place, format!("{node}\n"))?;
    }
    for name in ["infiniband", "infiniband_verbs"] {
        let place = folder.join(name);
        tree.folder(&place)?;
        mount_empty(&place)?;
    }
    Ok(tree.net(device)?)
}

/// Creates a character device at `place`. Programs check that the file is a character device that
/// they can read and write; only the library uses it. Any character device will do, and
/// bind-mounting `/dev/null` requires no permission to create a node.
fn node(tree: &Tree, place: &Path) -> Result<(), MountError> {
    tree.file(place, "")?;
    mount_at("/dev/null", place, None, MsFlags::MS_BIND)
}

/// Mounts an empty folder over `place`. If `place` does not exist, the parent folder is rebuilt
/// from its own content first, so that the folder can be created.
fn cover(place: &Path) -> Result<(), MountError> {
    if !place.is_dir() {
        let parent = place.parent().expect("not the root");
        mirror(parent)?;
        fs::create_dir(place).map_err(TreeError::at(place))?;
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
    let kept = fs::File::open(folder).map_err(TreeError::at(folder))?;
    let covered = PathBuf::from(format!("/proc/self/fd/{}", kept.as_raw_fd()));
    let entries = fs::read_dir(folder).map_err(TreeError::at(folder))?;
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(TreeError::at(folder))?;
    mount_empty(folder)?;
    for entry in entries {
        let name = entry.file_name();
        let (from, to) = (covered.join(&name), folder.join(&name));
        let Ok(kind) = fs::symlink_metadata(&from).map(|metadata| metadata.file_type()) else {
            continue; // The entry is gone.
        };
        if kind.is_symlink() {
            let target = fs::read_link(&from).map_err(TreeError::at(&from))?;
            symlink(target, &to).map_err(TreeError::at(&to))?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to).map_err(TreeError::at(&to))?;
        } else {
            fs::write(&to, "").map_err(TreeError::at(&to))?;
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
