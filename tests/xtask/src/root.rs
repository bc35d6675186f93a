//! Programs of another release of the distribution: a chroot, such as the Debian 13 that
//! `scripts/debian13.sh` makes. Feroce's programs and libraries are built outside of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::net::command_in;

/// Enters the chroot `$1` in the folder `$2`, where `$2` and the following arguments up to `--` are
/// folders of the host that keep their paths. The mounts end with the command: `ip netns exec`
/// gives it a mount namespace of its own.
const ENTER: &str = r#"
    root=$1 folder=$2
    shift
    # `feroce run` changes the mount at /, so that there must be one.
    mount --bind "$root" "$root"
    for place in proc sys dev; do mount --rbind "/$place" "$root/$place"; done
    mount -t tmpfs tmp "$root/tmp"
    while [ "$1" != -- ]; do
        mkdir -p "$root/$1"
        mount --bind "$1" "$root/$1"
        shift
    done
    shift
    exec chroot "$root" env --chdir="$folder" "$@"
"#;

/// A folder with the files of another release.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// The release below `folder`.
    pub fn new(folder: &Path) -> Result<Root> {
        let folder = std::path::absolute(folder)?;
        match folder.join("usr/bin/env").exists() {
            true => Ok(Root(folder)),
            false => Err(format!("there is no distribution in {}", folder.display()).into()),
        }
    }

    /// The path of a file of the release, seen from outside.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns true if the release has the program.
    pub fn has(&self, program: &str) -> bool {
        ["usr/bin", "usr/sbin"].iter().any(|folder| self.0.join(folder).join(program).exists())
    }

    /// Returns true if the program of the release loads a library whose name begins with `library`.
    pub fn needs(&self, program: &str, library: &str) -> bool {
        let file = std::fs::read(self.0.join("usr/bin").join(program)).unwrap_or_default();
        file.windows(library.len()).any(|bytes| bytes == library.as_bytes())
    }

    /// A command that runs in the network namespace `namespace` and in the chroot; the caller adds
    /// its arguments. The current folder is the first of `folders`, which are those of the host
    /// that the command needs.
    pub fn command_in(&self, namespace: &str, folders: &[&Path]) -> Command {
        let mut command = command_in(namespace, "sh");
        command.args(["-ec", ENTER, "sh"]).arg(&self.0).args(folders).arg("--");
        command
    }
}
