//! The shared library as programs see it: soname, symbols and versions, and its dependencies.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Symbols of the distribution's library.
const DISTRIBUTION: &str = include_str!("../symbols-44.txt");

/// Links the library and returns its path.
fn library() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/build-libs.sh");
    let built = Command::new(script).env("BUILD_PROFILE", "test").output().expect("a shell");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let output = String::from_utf8(built.stdout).expect("text");
    PathBuf::from(output.lines().last().expect("the folder")).join("libibverbs.so.1")
}

/// Returns type and name of each symbol that `path` exports, by `readelf`.
fn exported(path: &str) -> BTreeSet<String> {
    let output = Command::new("readelf").args(["--wide", "--dyn-syms", path]).output();
    let output = String::from_utf8(output.expect("binutils").stdout).expect("text");
    let symbols = output.lines().filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, kind, _, _, place, name] = columns.get(..8)?.try_into().ok()?;
        // A version node is an object symbol with the name of the version.
        let is_ours = place != "UND" && place != "ABS" && name.contains('@');
        is_ours.then(|| format!("{kind} {name}"))
    });
    symbols.collect()
}

#[test]
fn the_library_exports_every_symbol_of_the_distribution() {
    let wanted: BTreeSet<_> =
        DISTRIBUTION.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert!(wanted.len() > 170, "{}", wanted.len());
    let library = library();
    let ours = exported(library.to_str().expect("text"));
    let missing: Vec<_> = wanted.difference(&ours).collect();
    assert_eq!(missing, Vec::<&String>::new());
    // No other symbols, except librdmacm's: a stray symbol could replace one of the program's.
    let extra = ours.difference(&wanted).filter(|name| !name.ends_with("@@FEROCE_PRIVATE"));
    let extra: Vec<_> = extra.collect();
    assert_eq!(extra, Vec::<&String>::new());
}

#[test]
fn the_list_is_what_the_installed_library_exports() {
    let installed = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    let version = std::fs::read_link(installed).unwrap_or_default();
    if !version.to_string_lossy().ends_with(".44.0") {
        return; // another release exports more
    }
    let wanted: BTreeSet<_> =
        DISTRIBUTION.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert_eq!(exported(installed), wanted);
}

#[test]
fn soname_and_flags_are_as_programs_expect() {
    let library = library();
    let output = Command::new("readelf").args(["--wide", "--dynamic"]).arg(&library).output();
    let output = String::from_utf8(output.expect("binutils").stdout).expect("text");
    assert!(output.contains("Library soname: [libibverbs.so.1]"), "{output}");
    assert!(output.contains("NODELETE") && output.contains("NOW"), "{output}");
    let unversioned = library.with_file_name("libibverbs.so");
    assert_eq!(std::fs::read_link(unversioned).expect("a link").to_str(), Some("libibverbs.so.1"));
}
