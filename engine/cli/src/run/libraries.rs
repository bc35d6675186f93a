//! Feroce's libraries: their folder, and the environment in which the loader prefers them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::users::VARIABLE;
use crate::failure::Failure;

/// The libraries that verbs applications load. The second needs the first.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// The library that shows the files of the devices to a program without mounts.
const SYSVIEW: &str = "libsysview.so.1";

/// Feroce's libraries.
#[derive(Debug)]
pub struct Libraries {
    /// The folder that contains them.
    folder: PathBuf,
    is_preloaded: bool,
    /// Folder with the files that the program finds by the library for them.
    view: Option<PathBuf>,
}

impl Libraries {
    /// Finds the libraries: beside this program in a build folder, or in the installed place.
    /// With `is_preloaded`, programs get them by LD_PRELOAD, too.
    ///
    /// # Errors
    /// [`Failure::Plan`] if the libraries are not there, or if LD_PRELOAD cannot name them.
    pub fn find(is_preloaded: bool) -> Result<Self, Failure> {
        let failed =
            |source| Failure::Plan(format!("cannot find the path of this program: {source}"));
        let own = std::env::current_exe().map_err(failed)?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        let places = [folder.join("lib"), folder.join("../lib/feroce")];
        let [needed, other] = NAMES;
        let found = places.iter().find(|place| place.join(needed).exists()).ok_or_else(|| {
            let [built, installed] = &places;
            Failure::Plan(format!(
                "there is no {needed} in {} or {}: scripts/build-libs.sh builds it",
                built.display(),
                installed.display()
            ))
        })?;
        let libraries = Self { folder: found.clone(), is_preloaded, view: None };
        if is_preloaded {
            libraries.can_preload(other).map_err(Failure::Plan)?;
        }
        Ok(libraries)
    }

    /// Returns why LD_PRELOAD cannot name the library `name`, if that is so.
    fn can_preload(&self, name: &str) -> Result<(), String> {
        let folder = &self.folder;
        if !folder.join(name).exists() {
            let folder = folder.display();
            return Err(format!("there is no {name} in {folder}: scripts/build-libs.sh builds it"));
        }
        if folder.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
            return Err(format!(
                "LD_PRELOAD cannot name {name}: the path {} has a space or a colon, which separate \
                 its entries. Install Feroce elsewhere",
                folder.display()
            ));
        }
        Ok(())
    }

    /// Returns why programs cannot be shown files by the library for that, if they cannot.
    pub fn can_show_files(&self) -> Result<(), String> {
        self.can_preload(SYSVIEW)
    }

    /// Shows programs the files in `root`.
    pub fn show_files(&mut self, root: &Path) {
        self.view = Some(root.to_owned());
    }

    /// Libraries in `folder`.
    #[cfg(test)]
    pub fn at(folder: &Path, is_preloaded: bool) -> Self {
        Self { folder: folder.to_owned(), is_preloaded, view: None }
    }

    /// Returns true if programs get the libraries by LD_PRELOAD.
    pub fn is_preloaded(&self) -> bool {
        self.is_preloaded
    }

    /// Returns true if `file` is a library in Feroce's folder.
    pub fn contains(&self, file: &Path) -> bool {
        let folder = file.parent().and_then(|parent| parent.canonicalize().ok());
        folder.is_some() && folder == self.folder.canonicalize().ok()
    }

    /// Sets the environment in which `command` uses the libraries: they come ahead of the
    /// caller's.
    pub fn apply(&self, command: &mut Command) {
        const PATH: &str = "LD_LIBRARY_PATH";
        const PRELOAD: &str = "LD_PRELOAD";
        let variable = |name| std::env::var_os(name).unwrap_or_default();
        command.env(PATH, ahead(self.folder.as_os_str(), &variable(PATH)));
        let verbs = NAMES.into_iter().filter(|_| self.is_preloaded);
        let names = verbs.chain(self.view.is_some().then_some(SYSVIEW));
        let files: Vec<_> = names.map(|name| self.folder.join(name).into_os_string()).collect();
        if let Some(first) = files.into_iter().reduce(|first, next| ahead(&first, &next)) {
            command.env(PRELOAD, ahead(&first, &variable(PRELOAD)));
        }
        match &self.view {
            Some(root) => command.env(VARIABLE, root),
            None => command.env_remove(VARIABLE), // that of another `feroce run` around
        };
    }
}

/// Joins two lists of paths.
fn ahead(first: &OsStr, others: &OsStr) -> OsString {
    let mut joined = first.to_owned();
    if !others.is_empty() {
        joined.push(":");
        joined.push(others);
    }
    joined
}
