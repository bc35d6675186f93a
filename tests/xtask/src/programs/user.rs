//! An ordinary user for both ends: without capabilities, in a user namespace that can contain no
//! other.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::exit::{Guard, at_end};
use crate::process::output;
use crate::setup::{Work, copy_for_users};

/// Starts a command as the user. In the user namespace, its number is 1000.
const START: &str = "#!/bin/sh
exec setpriv --reuid 65534 --regid 65534 --clear-groups \\
    unshare --user --map-user=1000 --map-group=1000 --keep-caps sh -ec '
        echo 0 > /proc/sys/user/max_user_namespaces
        exec setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all --no-new-privs \"$@\"
    ' sh \"$@\"
";
/// The script in the user's folder.
const SCRIPT: &str = "user";

/// The user's copy of Feroce: the folders above the built one may be closed to the user.
#[derive(Debug)]
pub struct User {
    /// The folder with `feroce` and `lib`.
    pub folder: PathBuf,
    _guard: Guard,
}

impl User {
    /// Copies what is in `built` into the work folder, which the user may write to.
    pub fn new(work: &Work, built: &Path) -> Result<User> {
        let folder = copy_for_users(work, built)?;
        remove_domains(); // Those of root.
        let user = User { folder, _guard: at_end(remove_domains) };
        std::fs::write(user.start(), START)?;
        std::fs::set_permissions(user.start(), PermissionsExt::from_mode(0o755))?;
        let mut refused = Command::new(user.start());
        refused.args(["sh", "-c", "unshare --user true 2> /dev/null || echo refused"]);
        match output(&mut refused)?.trim() {
            "refused" => Ok(user),
            _ => Err("the user can make a user namespace".into()),
        }
    }

    /// The script that starts a command as the user.
    pub fn start(&self) -> PathBuf {
        self.folder.join(SCRIPT)
    }
}

/// Removes the files that perftest leaves for XRC domains. Another user cannot open them, not even
/// root (`fs.protected_regular`).
fn remove_domains() {
    for name in ["xrc_domain", "xrc_domain_client", "xrc_domain_server"] {
        let _ = std::fs::remove_file(Path::new("/tmp").join(name)); // Usually there is none.
    }
}
