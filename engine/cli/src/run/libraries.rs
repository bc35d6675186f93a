//! Feroce's libraries: their folder, and the environment in which the loader prefers them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;

/// The libraries that verbs applications load. The second needs the first.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Feroce's libraries.
#[derive(Debug)]
pub struct Libraries {
    /// The folder that contains them.
    folder: PathBuf,
    is_preloaded: bool,
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
        if is_preloaded && !found.join(other).exists() {
            return Err(Failure::Plan(format!(
                "there is no {other} in {}: scripts/build-libs.sh builds it",
                found.display()
            )));
        }
        if is_preloaded && found.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
            return Err(Failure::Plan(format!(
                "--preload is not possible: the path {} has a space or a colon, which separate \
                 the entries of LD_PRELOAD. Install Feroce elsewhere",
                found.display()
            )));
        }
        Ok(Self { folder: found.clone(), is_preloaded })
    }

    /// Libraries in `folder`.
    #[cfg(test)]
    pub fn at(folder: &Path, is_preloaded: bool) -> Self {
        Self { folder: folder.to_owned(), is_preloaded }
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
        if self.is_preloaded {
            let [first, second] = NAMES.map(|name| self.folder.join(name));
            let both = ahead(first.as_os_str(), second.as_os_str());
            command.env(PRELOAD, ahead(&both, &variable(PRELOAD)));
        }
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
