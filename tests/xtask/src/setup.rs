//! What a command needs before it starts: packages, programs of this workspace, hugepages, a
//! temporary folder. The functions of `scripts/lib.sh` install and build.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;
use crate::exit::{Guard, at_end};

/// Packages at this end.
pub const PROGRAM_PACKAGES: &[&str] = &[
    "ibverbs-utils",
    "perftest",
    "rdmacm-utils",
    "ucx-utils",
    "libfabric-bin",
    "iproute2",
    "ethtool",
    "tshark",
];

/// Packages to build the workspace and to make namespaces.
pub const BUILD_PACKAGES: &[&str] = &[
    "libelf-dev",
    "zlib1g-dev",
    "clang",
    "m4",
    "libpcap-dev",
    "make",
    "pkg-config",
    "iproute2",
    "ethtool",
];

/// A call of functions of `scripts/lib.sh`. `script` sees `arguments` as `"$@"`.
fn lib(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c"]);
    command.arg(format!(". scripts/lib.sh; {script}")).arg("xtask").args(arguments);
    command
}

fn run_lib(script: &str, arguments: &[&str]) -> Result<String> {
    let output = lib(script, arguments).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        let name = script.split(' ').find(|word| !word.ends_with(';')).unwrap_or(script);
        return Err(format!("{name} of scripts/lib.sh failed: {}", arguments.join(" ")).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// A command in `folder` that runs as the user who called sudo. `cargo` is among its programs.
pub fn as_caller(folder: &Path, words: &[&str]) -> Command {
    const SCRIPT: &str = "find_cargo; folder=$1; shift; PATH=$(dirname \"$cargo\"):$PATH; \
                          as_caller env -C \"$folder\" \"$@\"";
    let mut command = lib(SCRIPT, &[]);
    command.arg(folder).args(words).stdin(Stdio::null());
    command
}

/// Fails without root.
pub fn need_root() -> Result {
    use std::os::unix::fs::MetadataExt;
    // The files of /proc/self belong to the effective user.
    match std::fs::metadata("/proc/self")?.uid() == 0 {
        true => Ok(()),
        false => Err("network namespaces and AF_XDP need root: run it with sudo".into()),
    }
}

/// Installs the Debian packages that are missing.
pub fn need_packages(packages: &[&str]) -> Result {
    run_lib("need_packages \"$@\" >&2", packages).map(drop)
}

/// The path of a Python interpreter with scapy and its RoCE layers; installs scapy below `target`
/// if there is none.
pub fn need_scapy() -> Result<String> {
    need_packages(&["python3-venv"])?;
    run_lib("need_scapy >&2; echo \"$python\"", &[])
}

/// Builds with arguments of cargo (`--bin NAME`, `--lib`), as the user who called sudo. The profile
/// is `BUILD_PROFILE`.
pub fn build(what: &[&str]) -> Result {
    run_lib("find_cargo; build \"$@\" >&2", what).map(drop)
}

/// Builds in the release profile, whatever `BUILD_PROFILE` says.
pub fn build_release(what: &[&str]) -> Result {
    run_lib("BUILD_PROFILE=release; find_cargo; build \"$@\" >&2", what).map(drop)
}

/// The folder with what [`build`] built.
pub fn built() -> PathBuf {
    let is_test = std::env::var("BUILD_PROFILE").is_ok_and(|profile| profile == "test");
    target().join(if is_test { "debug" } else { "release" })
}

/// The absolute path of the target folder.
pub fn target() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    std::path::absolute(folder).expect("the current folder exists")
}

/// The program `feroce` in `folder`, ready for a subcommand.
pub fn feroce_in(folder: &Path) -> PathBuf {
    folder.join("feroce")
}

/// Copies what is in `built` into the work folder, which all users may write to then: the folders
/// above the built one may be closed to them. Returns the folder with `feroce` and `lib`.
pub fn copy_for_users(work: &Work, built: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let folder = work.file("user");
    std::fs::create_dir(&folder)?;
    let mut copy = Command::new("cp");
    copy.arg("-r").args([&feroce_in(built), &built.join("lib"), &folder]);
    if crate::process::run(&mut copy)? != 0 {
        return Err(format!("cannot copy {}", built.display()).into());
    }
    std::fs::set_permissions(work.path(), PermissionsExt::from_mode(0o1777))?;
    Ok(folder)
}

/// Builds `feroce` and returns its path. `$FEROCE` or `$FEROCE_CONFORM` name one that exists.
pub fn feroce() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FEROCE_CONFORM") {
        return Ok(path.into());
    }
    println!("Building feroce");
    build(&["--bin", "feroce"])?;
    Ok(feroce_in(&built()))
}

/// Builds what programs run on, `feroce` and the C libraries, unless they are `built` already. The
/// profile is `BUILD_PROFILE`.
pub fn build_what_programs_need(built: bool) -> Result {
    if !built {
        println!("Building");
        build(&["--bin", "feroce"])?;
        libraries()?;
    }
    Ok(())
}

/// Builds the C libraries; returns their folder. The profile is `BUILD_PROFILE`.
pub fn libraries() -> Result<PathBuf> {
    link_libraries(&mut Command::new("scripts/build-libs.sh"))
}

/// Builds the C libraries with a sanitizer of the compiler.
pub fn sanitized_libraries(sanitizer: &str) -> Result<PathBuf> {
    link_libraries(Command::new("scripts/build-libs.sh").env("SANITIZER", sanitizer))
}

/// Builds the C libraries in the release profile, whatever `BUILD_PROFILE` says.
pub fn libraries_release() -> Result<PathBuf> {
    link_libraries(Command::new("scripts/build-libs.sh").env("BUILD_PROFILE", "release"))
}

fn link_libraries(command: &mut Command) -> Result<PathBuf> {
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.lines().last() {
        Some(folder) if output.status.success() => Ok(folder.into()),
        _ => Err("scripts/build-libs.sh failed".into()),
    }
}

/// Reserves hugepages of 2 MiB, so that at least `count` are free, until the guard is dropped.
/// Prints a note and continues where the machine has too few.
pub fn reserve_hugepages(count: u64) -> Result<Option<Guard>> {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";
    let Ok(before) = std::fs::read_to_string(FILE) else {
        println!("no hugepages on this machine: ordinary pages are used");
        return Ok(None);
    };
    let before: u64 = before.trim().parse()?;
    let free = free_hugepages()?;
    if free >= count {
        return Ok(None);
    }
    let guard = at_end(move || drop(std::fs::write(FILE, before.to_string())));
    std::fs::write(FILE, (before + count - free).to_string())?;
    let free = free_hugepages()?;
    if free < count {
        println!("only {free} of {count} hugepages are free: the rest will be ordinary pages");
    }
    Ok(Some(guard))
}

fn free_hugepages() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    Ok(line.unwrap_or("0").trim().parse()?)
}

/// A temporary folder that is removed when dropped, and at a signal.
#[derive(Debug)]
pub struct Work {
    path: PathBuf,
    _guard: Guard,
}

impl Work {
    /// Makes the folder.
    pub fn new() -> Result<Work> {
        let path = tempfile::Builder::new().prefix("feroce-").tempdir()?.keep();
        let removed = path.clone();
        let guard = at_end(move || drop(std::fs::remove_dir_all(removed)));
        Ok(Work { path, _guard: guard })
    }

    /// The path of `name` in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The program `cargo`.
pub fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
