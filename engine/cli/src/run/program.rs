//! The program to be started: its path, and whether Feroce's libraries can replace the ones it
//! loads.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use rustix::fs::fgetxattr;

use super::libraries::Libraries;
use super::loader;
use crate::failure::Failure;

/// Debian packages of verbs applications: prefix of the program's name, and package.
const PACKAGES: &[(&str, &str)] = &[
    ("ibv_", "ibverbs-utils"),
    ("ib_", "perftest"),
    ("raw_ethernet_", "perftest"),
    ("rping", "rdmacm-utils"),
    ("ucmatose", "rdmacm-utils"),
    ("udaddy", "rdmacm-utils"),
    ("udpong", "rdmacm-utils"),
    ("mckey", "rdmacm-utils"),
    ("cmtime", "rdmacm-utils"),
    ("rstream", "rdmacm-utils"),
    ("riostream", "rdmacm-utils"),
    ("rcopy", "rdmacm-utils"),
    ("rdma_", "rdmacm-utils"),
    ("fio", "fio"),
    ("qperf", "qperf"),
    ("ucx_", "ucx-utils"),
    ("fi_", "libfabric-bin"),
    ("dtest", "dapl2-utils"),
    ("mpirun", "openmpi-bin"),
    ("qemu-system-", "qemu-system-x86"),
];

/// Finds `name` in PATH, as a shell does.
///
/// # Errors
/// [`Failure::Program`], with the package that contains the program.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let given = Path::new(name);
    if given.components().count() > 1 {
        return Ok(given.to_owned()); // Errors appear when it is started.
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    let is_program = |place: &PathBuf| {
        place
            .metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    places.find(is_program).ok_or_else(|| Failure::Program {
        program: given.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::NotFound, missing(&name.to_string_lossy())),
    })
}

/// The message for a program that was not found.
fn missing(name: &str) -> String {
    match PACKAGES.iter().find(|(start, _)| name.starts_with(start)).map(|(_, package)| package) {
        Some(package) => format!("not found (on Debian: package {package})"),
        None => "not found in PATH (sudo uses its own PATH)".to_owned(),
    }
}

/// How a program is linked.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// Dynamically, with glibc's loader.
    Loaded,
    /// With another loader, or the program is a script: not inspected.
    Other,
    /// Statically.
    Static,
}

/// Reasons why `program` will not use Feroce's libraries, or why it will not start.
pub fn obstacles(program: &Path, libraries: &Libraries) -> Vec<String> {
    let Ok(file) = File::open(program) else { return Vec::new() };
    let mut found = Vec::new();
    match kind(&file) {
        Some(Kind::Static) => found
            .push("the program is statically linked: its libraries cannot be replaced".to_owned()),
        Some(Kind::Loaded) => found.extend(loader::obstacles(program, libraries)),
        Some(Kind::Other) | None => {}
    }
    if let Some((rights, removal)) = own_rights(&file).filter(|_| !Uid::effective().is_root()) {
        found.push(format!(
            "the program {rights}, so the loader ignores the caller's libraries: run it as root, \
             or remove the right (`{removal}`)"
        ));
    }
    found
}

/// The rights that `file` has beside those of its caller, and the command that removes them.
fn own_rights(file: &File) -> Option<(&'static str, &'static str)> {
    let mut capabilities = [0_u8; 64];
    if file.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o6000 != 0) {
        Some(("is setuid or setgid", "chmod ug-s"))
    } else if fgetxattr(file, "security.capability", &mut capabilities).is_ok() {
        Some(("has file capabilities", "setcap -r"))
    } else {
        None
    }
}

/// The kind, from the program headers of a 64-bit ELF file; `None` if they cannot be read.
fn kind(file: &File) -> Option<Kind> {
    const PT_INTERP: u32 = 3;
    let mut header = [0; 64];
    if file.read_exact_at(&mut header, 0).is_err() || header[..5] != *b"\x7fELF\x02" {
        return Some(Kind::Other);
    }
    let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let table = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let (size, count) = (u64::from(short(54)), u64::from(short(56)));
    for row in 0..count {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.checked_add(row * size)?).ok()?;
        if entry[..4] != PT_INTERP.to_le_bytes() {
            continue;
        }
        let place = u64::from_le_bytes(entry[8..16].try_into().ok()?);
        let mut name = [0; 64];
        let read = file.read_at(&mut name, place).ok()?;
        let name = String::from_utf8_lossy(&name[..read]);
        let is_glibc = name.split('\0').next().is_some_and(|name| name.contains("/ld-linux"));
        return Some(if is_glibc { Kind::Loaded } else { Kind::Other });
    }
    Some(Kind::Static)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_by_program_name() {
        assert!(missing("ib_write_bw").contains("package perftest"));
        assert!(missing("ibv_devinfo").contains("package ibverbs-utils"));
        assert!(missing("rdma_server").contains("package rdmacm-utils"));
        assert!(missing("my-program").contains("PATH"));
    }

    /// A version 2 capability set (`struct vfs_cap_data`) with CAP_NET_RAW, effective.
    const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn programs_with_rights_of_their_own_are_recognized() {
        let path = std::env::temp_dir().join(format!("fr-rights-{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        let removal = |file: &File| own_rights(file).map(|(_, removal)| removal);
        assert_eq!(removal(&file), None);
        file.set_permissions(PermissionsExt::from_mode(0o4755)).expect("own file");
        assert_eq!(removal(&file), Some("chmod ug-s"));
        file.set_permissions(PermissionsExt::from_mode(0o755)).expect("own file");
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::fsetxattr(&file, "security.capability", &NET_RAW, flags);
        std::fs::remove_file(path).expect("own file");
        match set {
            Ok(()) => assert_eq!(removal(&file), Some("setcap -r")),
            Err(error) => feroce_test_skip::skip(&format!("setting file capabilities: {error}")),
        }
    }

    #[test]
    fn kinds_of_programs_are_recognized() {
        let own = File::open("/proc/self/exe").expect("this test");
        assert_eq!(kind(&own), Some(Kind::Loaded));
        let script = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("text");
        assert_eq!(kind(&script), Some(Kind::Other));
        // A file without program headers names no loader.
        let path = std::env::temp_dir().join(format!("fr-static-{}", std::process::id()));
        let mut header = [0_u8; 64];
        header[..5].copy_from_slice(b"\x7fELF\x02");
        std::fs::write(&path, header).expect("a file");
        let found = obstacles(&path, &Libraries::at(Path::new("/"), false));
        std::fs::remove_file(&path).expect("a file");
        assert!(
            matches!(found.as_slice(), [one] if one.contains("statically linked")),
            "{found:?}"
        );
    }

    #[test]
    fn installed_programs_are_found() {
        let shell = find(OsStr::new("sh")).expect("a shell");
        assert_eq!(obstacles(&shell, &Libraries::at(Path::new("/"), false)), Vec::<String>::new());
        let found = find(OsStr::new("ib_no_such_program")).expect_err("none").to_string();
        assert!(found.contains("perftest"), "{found}");
    }
}
