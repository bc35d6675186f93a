//! The built library, for tests.

use std::path::PathBuf;
use std::process::Command;

/// Links the library and returns its path.
pub fn library() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/build-libs.sh");
    let built = Command::new(script).env("BUILD_PROFILE", "test").output().expect("a shell");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let output = String::from_utf8(built.stdout).expect("text");
    PathBuf::from(output.lines().last().expect("the folder")).join("librdmacm.so.1")
}
