//! The files and links of the devices, at their places or below a folder that stands for the root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::sysfs::Device;

/// The root of the places.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
}

/// A file or folder cannot be created or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot create {}: {source}", place.display())]
pub struct TreeError {
    place: PathBuf,
    source: std::io::Error,
}

impl TreeError {
    /// Returns the error for `place`.
    pub fn at(place: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self { place: place.to_owned(), source }
    }
}

/// Folders of the device nodes, of the devices, and of their verbs.
pub const PLACES: [&str; 3] =
    ["/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs"];

impl Tree {
    /// Places are below `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns where the absolute path `path` is.
    pub fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Writes a file. Creates the folders above it.
    pub fn file(&self, path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), TreeError> {
        let place = self.place(path);
        self.parent(&place)?;
        fs::write(&place, bytes).map_err(TreeError::at(&place))
    }

    /// Creates the link `path`, which contains `to`, and the folders above it.
    pub fn link(&self, to: &Path, path: &Path) -> Result<(), TreeError> {
        let place = self.place(path);
        self.parent(&place)?;
        symlink(to, &place).map_err(TreeError::at(&place))
    }

    /// Creates the link `at`, in a folder of `/sys/class` or such, that leads to `folder`. Like
    /// those of the kernel, it is relative to its place.
    pub fn class_link(&self, folder: &Path, at: &Path) -> Result<(), TreeError> {
        let below = folder.strip_prefix("/sys").unwrap_or(folder);
        let depth = at.parent().map_or(0, |parent| parent.components().count() - 2);
        let up: PathBuf = std::iter::repeat_n("..", depth).collect();
        self.link(&up.join(below), at)
    }

    /// Creates a folder and those above it.
    pub fn folder(&self, path: &Path) -> Result<(), TreeError> {
        let place = self.place(path);
        fs::create_dir_all(&place).map_err(TreeError::at(&place))
    }

    /// Creates `entries` below `folder`.
    pub fn fill(&self, folder: &Path, entries: &[(String, Entry)]) -> Result<(), TreeError> {
        for (path, entry) in entries {
            let path = folder.join(path);
            match entry {
                Entry::File(bytes) => self.file(&path, bytes)?,
                Entry::Link(to) => self.link(to, &path)?,
            }
        }
        Ok(())
    }

    /// Creates the files of `device` below its PCI device, and the links that lead to them.
    pub fn device(&self, device: &Device) -> Result<(), TreeError> {
        let [_, class, verbs] = PLACES.map(Path::new);
        for (kind, name, entries) in
            [(class, &device.name, &device.entries), (verbs, &device.node, &device.verbs)]
        {
            let folder = device.pci.folder.join(kind.file_name().expect("a name")).join(name);
            self.fill(&folder, entries)?;
            self.class_link(&folder, &kind.join(name))?;
        }
        Ok(())
    }

    /// Creates the folder `net` of the PCI device, unless there is one.
    pub fn net(&self, device: &Device) -> Result<(), TreeError> {
        let net = device.pci.folder.join("net");
        if self.place(&net).exists() {
            return Ok(());
        }
        let interface = Path::new("/sys/class/net").join(&device.interface);
        self.link(&interface, &net.join(&device.interface))
    }

    fn parent(&self, place: &Path) -> Result<(), TreeError> {
        let parent = place.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(TreeError::at(parent))
    }
}
