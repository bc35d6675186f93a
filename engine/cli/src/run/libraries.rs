//! Feroce's libraries: their folder, and the environment in which the loader prefers them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;

/// The library that verbs applications load.
const LIBRARY: &str = "libibverbs.so.1";

/// Feroce's libraries.
#[derive(Debug)]
pub struct Libraries {
    /// The folder that contains them.
    folder: PathBuf,
}

impl Libraries {
    /// Finds the libraries: beside this program in a build folder, or in the installed place.
    ///
    /// # Errors
    /// [`Failure::Plan`] if the libraries are not there.
    pub fn find() -> Result<Self, Failure> {
        let failed =
            |source| Failure::Plan(format!("cannot find the path of this program: {source}"));
        let own = std::env::current_exe().map_err(failed)?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        let places = [folder.join("lib"), folder.join("../lib/feroce")];
        let found = places.iter().find(|place| place.join(LIBRARY).exists()).ok_or_else(|| {
            let [built, installed] = &places;
            Failure::Plan(format!(
                "there is no {LIBRARY} in {} or {}: scripts/build-libs.sh builds it",
                built.display(),
                installed.display()
            ))
        })?;
        Ok(Self { folder: found.clone() })
    }

    /// Libraries in `folder`.
    #[cfg(test)]
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
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
        let variable = |name| std::env::var_os(name).unwrap_or_default();
        command.env(PATH, ahead(self.folder.as_os_str(), &variable(PATH)));
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
