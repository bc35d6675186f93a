//! A private folder with the files of Feroce's devices, which a preloaded library shows to the
//! program at their places, for a process that may not mount: an ordinary user, or a container
//! without CAP_SYS_ADMIN.
//!
//! The folder has the files at the same paths, below the folder instead of the root, with the same
//! links. The folders on the way hold links to the host's other entries, so that a path that leaves
//! a shown folder by `..`, and the host's own files of a PCI device, lead to the host. The file
//! `shown` lists the paths that the library changes.
//!
//! The process of the counters removes the folder when no process uses it. The folder is locked
//! until then: `feroce run` removes folders of the same user without a lock, whose process was
//! killed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::entry::Entry;
use super::sysfs::Device;
use super::tree::{PLACES, Tree, TreeError};

/// The file that lists the paths at which the library shows the folder's files, one per line.
const LIST: &str = "shown";
/// The links to PCI devices.
const BUS: &str = "/sys/bus/pci/devices";
/// Beginning of the folders' names.
const PREFIX: &str = "feroce-run-";

/// The folder. Dropping this value removes the folder, unless another process keeps it.
#[derive(Debug)]
pub struct View {
    root: PathBuf,
    /// The folder, locked.
    lock: Option<File>,
}

/// Why the folder cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The folder itself.
    #[error("cannot create a folder in {} (TMPDIR names another): {source}", place.display())]
    Folder {
        /// Where it would be.
        place: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file or folder in it.
    #[error(transparent)]
    File(#[from] TreeError),
}

impl View {
    /// Creates the folder for `devices` in the folder for temporary files.
    pub fn create(devices: &[Device]) -> Result<Self, ViewError> {
        let parent = std::env::temp_dir();
        remove_abandoned(&parent);
        let view = Self::new(&parent)
            .map_err(|source| ViewError::Folder { place: parent.clone(), source })?;
        let tree = Tree::new(&view.root);
        let [nodes, _, verbs] = PLACES.map(Path::new);
        let mut shown: BTreeSet<PathBuf> = PLACES.map(PathBuf::from).into();
        let mut prepared = BTreeSet::new();
        tree.file(&verbs.join("abi_version"), "6\n")?;
        node(&tree, &nodes.join("rdma_cm"))?;
        for device in devices {
            node(&tree, &nodes.join(&device.node))?;
            match &device.pci.stand_in {
                _ if !prepared.insert(&device.pci.folder) => {}
                Some(files) => stand_in(&tree, device, files, &mut shown)?,
                None => of_host(&tree, device, &mut shown)?,
            }
            tree.device(device)?;
        }
        complete(&tree, &shown)?;
        let lines: Vec<_> = shown.iter().map(|path| format!("{}\n", path.display())).collect();
        tree.file(&Path::new("/").join(LIST), lines.concat())?;
        Ok(view)
    }

    /// Creates an empty folder that only its user can enter, and locks it.
    fn new(parent: &Path) -> std::io::Result<Self> {
        loop {
            let root = nix::unistd::mkdtemp(&parent.join(format!("{PREFIX}XXXXXX")))?;
            // Another `feroce run` may remove the folder before it is locked.
            match Self::locked(&root) {
                Ok(view) if is_same(&view.root, &view.lock()?) => return Ok(view),
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn locked(root: &Path) -> std::io::Result<Self> {
        let root = fs::canonicalize(root)?; // The library compares real paths with it.
        let lock = File::open(&root)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Self { root, lock: Some(lock) })
    }

    /// Returns the folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns where the files of `device` are.
    pub fn folder_of(&self, device: &Device) -> PathBuf {
        Tree::new(&self.root).place(&device.folder())
    }

    /// Leaves the folder to another process, which has the lock by another descriptor.
    pub fn leave(mut self) {
        self.lock = None;
    }

    /// Returns the locked folder for another process.
    pub fn lock(&self) -> std::io::Result<File> {
        self.lock.as_ref().ok_or(std::io::ErrorKind::NotFound)?.try_clone()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.lock.is_some() {
            remove(&self.root);
        }
    }
}

fn remove(root: &Path) {
    let _ = fs::remove_dir_all(root); // Another process may have removed it.
}

/// Removes folders of this user in `parent` whose process was killed.
fn remove_abandoned(parent: &Path) {
    let user = nix::unistd::Uid::effective().as_raw();
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.filter_map(Result::ok) {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        let Some(folder) = is_ours.then(|| File::open(entry.path()).ok()).flatten() else {
            continue;
        };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&entry.path());
        }
    }
}

fn is_same(path: &Path, file: &File) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    let (Ok(path), Ok(file)) = (fs::symlink_metadata(path), file.metadata()) else { return false };
    id(path) == id(file)
}

/// Creates a stand-in, and the links to it. Adds the paths that are shown.
fn stand_in(
    tree: &Tree,
    device: &Device,
    files: &[(String, Entry)],
    shown: &mut BTreeSet<PathBuf>,
) -> Result<(), TreeError> {
    let folder = device.pci.folder.as_path();
    tree.fill(folder, files)?;
    tree.net(device)?;
    let (bus, above) = (device.pci.bus(), folder.parent().unwrap_or(folder));
    let buses = above.join("pci_bus").join(&bus);
    tree.folder(&buses)?;
    shown.insert(above.to_owned());
    for (class, name, to) in
        [(BUS, device.pci.address(), folder), ("/sys/class/pci_bus", bus, buses.as_path())]
    {
        let at = Path::new(class).join(name);
        if Path::new(class).is_dir() {
            tree.class_link(to, &at)?;
            shown.insert(at);
        }
    }
    Ok(())
}

/// Creates what a PCI device of the host has besides its own entries, and the links to it. Adds the
/// paths that are shown.
///
/// The device's folder itself is not shown: a link in place of the host's entry would lead to
/// itself.
fn of_host(tree: &Tree, device: &Device, shown: &mut BTreeSet<PathBuf>) -> Result<(), TreeError> {
    let folder = device.pci.folder.as_path();
    let mut added = vec!["infiniband", "infiniband_verbs"];
    if let Some(node) = device.pci.numa_node {
        tree.file(&folder.join("numa_node"), format!("{node}\n"))?;
        added.push("numa_node");
    }
    if !folder.join("net").exists() {
        tree.net(device)?;
        added.push("net");
    }
    shown.extend(added.iter().map(|name| folder.join(name)));
    // Where the interface's own device is a folder of the PCI device, as of virtio, it has no RNIC
    // in it.
    let of_interface = Path::new("/sys/class/net").join(&device.interface).join("device");
    for at in [Path::new(BUS).join(device.pci.address()), of_interface] {
        if fs::canonicalize(&at).is_ok_and(|real| real == folder) {
            tree.class_link(folder, &at)?;
            shown.extend(added.iter().map(|name| at.join(name)));
        }
    }
    Ok(())
}

/// Creates links to the host's entries in all folders that lead to shown ones.
fn complete(tree: &Tree, shown: &BTreeSet<PathBuf>) -> Result<(), TreeError> {
    let above: BTreeSet<_> = shown.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    let on_the_way = above.into_iter().filter(|folder| {
        let is_shown = shown.iter().any(|path| folder.starts_with(path));
        folder.parent().is_some() && !is_shown && !tree.place(folder).is_symlink()
    });
    on_the_way.into_iter().try_for_each(|folder| lead_on(tree, folder))
}

/// Creates links to the host's entries of `folder` that are not there yet.
fn lead_on(tree: &Tree, folder: &Path) -> Result<(), TreeError> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        let real = entry.path();
        let place = tree.place(&real);
        if fs::symlink_metadata(&place).is_err() {
            // Programs take names from where links of sysfs lead to.
            let to = if real.is_symlink() { fs::canonicalize(&real) } else { Ok(real) };
            if let Ok(to) = to {
                symlink(to, &place).map_err(TreeError::at(&place))?;
            }
        }
    }
    Ok(())
}

/// Creates a character device at `path`: a link, as an ordinary user may create no node.
fn node(tree: &Tree, path: &Path) -> Result<(), TreeError> {
    tree.link(Path::new("/dev/null"), path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    use super::*;
    use crate::run::pci::PciDevice;

    fn device() -> Device {
        let entries = |path: &str| vec![(path.to_owned(), Entry::from_text("text"))];
        Device {
            name: "feroce0".to_owned(),
            node: "uverbs0".to_owned(),
            interface: "lo".to_owned(),
            pci: PciDevice {
                folder: "/sys/devices/pcif0ce:00/f0ce:00:00.0".into(),
                stand_in: Some(entries("vendor")),
                numa_node: None,
            },
            entries: entries("ports/1/state"),
            verbs: entries("ibdev"),
        }
    }

    #[test]
    fn the_folder_has_the_files_and_leads_to_the_host() {
        let view = View::create(&[device()]).expect("a folder for temporary files");
        let root = view.root().to_owned();
        assert_eq!(fs::metadata(&root).expect("a folder").permissions().mode() & 0o777, 0o700);
        let shown = fs::read_to_string(root.join(LIST)).expect("a list");
        for path in PLACES.into_iter().chain(["/sys/devices/pcif0ce:00"]) {
            assert!(shown.lines().any(|line| line == path), "{path} is not in: {shown}");
        }
        let class = root.join("sys/class/infiniband/feroce0");
        let real = root.join("sys/devices/pcif0ce:00/f0ce:00:00.0/infiniband/feroce0");
        assert_eq!(fs::canonicalize(&class).expect("a link"), real);
        let text = |path: &str| fs::read_to_string(class.join(path)).expect(path);
        assert_eq!(text("ports/1/state"), "text\n");
        assert_eq!(text("../../vendor"), "text\n");
        // From the stand-in on, `..` leads to the host.
        assert!(class.join("../../../../system/cpu").is_dir());
        assert!(root.join("sys/class/net/lo/address").exists());
        let node = fs::metadata(root.join("dev/infiniband/uverbs0")).expect("a node");
        assert!(node.file_type().is_char_device());
        drop(view);
        assert!(!root.exists());
    }

    /// Any folder of the host can stand for a PCI device that exists.
    #[test]
    fn a_device_of_the_host_keeps_its_entries() {
        let folder = PathBuf::from("/sys/devices/system/cpu");
        let pci = PciDevice { folder: folder.clone(), stand_in: None, numa_node: Some(3) };
        let view = View::create(&[Device { pci, ..device() }]).expect("a folder");
        let shown = fs::read_to_string(view.root().join(LIST)).expect("a list");
        let is_shown = |name: &str| shown.lines().any(|line| Path::new(line) == folder.join(name));
        assert!(is_shown("infiniband") && is_shown("numa_node") && !is_shown(""), "{shown}");
        let class = view.root().join("sys/class/infiniband/feroce0");
        let text = |path: &str| fs::read_to_string(class.join(path)).expect(path);
        assert_eq!(
            (text("../../numa_node"), text("ports/1/state")),
            ("3\n".into(), "text\n".into())
        );
        let online = fs::read_to_string(folder.join("online")).expect("CPUs");
        assert_eq!(text("../../online"), online);
        assert!(class.join("../../net/lo/address").exists());
        assert!(
            class.join("../../../node").exists() || !Path::new("/sys/devices/system/node").exists()
        );
        assert!(!folder.join("infiniband").exists());
    }

    #[test]
    fn folders_without_a_lock_are_removed() {
        let parent = std::env::temp_dir().join(format!("fr-views-{}", std::process::id()));
        fs::create_dir(&parent).expect("a folder");
        let [kept, abandoned] = [0, 1].map(|_| View::new(&parent).expect("a folder"));
        let [kept_root, root] = [&kept, &abandoned].map(|view| view.root().to_owned());
        abandoned.leave();
        remove_abandoned(&parent);
        assert!(kept_root.exists() && !root.exists());
        drop(kept);
        fs::remove_dir(&parent).expect("nothing is left");
    }
}
