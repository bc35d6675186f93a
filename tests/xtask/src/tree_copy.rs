//! The copy of the working tree in which `xtask mutants` and `xtask mutation` change the sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::process::output;
use crate::setup::{cargo, target};

/// The copy and its build. Both are kept between runs, so that only the crates that a change
/// affects are built again.
pub struct Copy {
    /// Of `tree`, of its build, and of logs.
    pub base: PathBuf,
    /// The copy of the working tree.
    pub tree: PathBuf,
}

impl Copy {
    /// Copies the files of the working tree that git does not ignore. Files that are the same
    /// already stay untouched, so that cargo builds only changed files.
    pub fn updated() -> Result<Copy> {
        let base = std::path::absolute(target().join("mutants"))?;
        let tree = base.join("tree");
        let mut git = Command::new("git");
        git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
        let listed = output(&mut git)?;
        let wanted: BTreeSet<&Path> =
            listed.lines().map(Path::new).filter(|file| file.is_file()).collect();
        std::fs::create_dir_all(&tree)?;
        for file in files_below(&tree)? {
            if !wanted.contains(file.strip_prefix(&tree)?) {
                std::fs::remove_file(file)?;
            }
        }
        for file in wanted {
            let (copy, text) = (tree.join(file), std::fs::read(file)?);
            if std::fs::read(&copy).is_ok_and(|old| old == text) {
                continue;
            }
            std::fs::create_dir_all(copy.parent().unwrap_or(&tree))?;
            std::fs::copy(file, &copy)?;
        }
        Ok(Copy { base, tree })
    }

    /// Cargo in the copy, which builds tests there. A smaller optimisation builds faster; the swarm
    /// is quick enough.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", self.base.join("build"));
        command.env("CARGO_PROFILE_TEST_OPT_LEVEL", "1").env("CARGO_PROFILE_TEST_DEBUG", "0");
        command.env("CARGO_INCREMENTAL", "1");
        command
    }
}

/// All files below a folder.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(files_below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    Ok(files)
}
