//! The shared library as programs see it: soname, symbols and versions, and its dependencies.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::library;

/// Symbols of release 44, from the distribution's library.
const RELEASE_44: &str = include_str!("../symbols-44.txt");
/// Symbols that later releases added, from their .map files.
const LATER: &str = include_str!("../symbols-after-44.txt");

fn readelf(what: &str, path: &str) -> String {
    let output = Command::new("readelf").args(["--wide", what, path]).output();
    String::from_utf8(output.expect("binutils").stdout).expect("text")
}

/// Returns type and name of each symbol that `path` exports.
fn exported(path: &str) -> BTreeSet<String> {
    let output = readelf("--dyn-syms", path);
    let symbols = output.lines().filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, kind, _, _, place, name] = columns.get(..8)?.try_into().ok()?;
        // A version node is an object symbol with the name of the version.
        let is_ours = place != "UND" && place != "ABS" && name.contains('@');
        is_ours.then(|| format!("{kind} {name}"))
    });
    symbols.collect()
}

/// Returns the lines of a list of symbols.
fn lines(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

fn of_44() -> BTreeSet<String> {
    lines(RELEASE_44).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_exactly_the_symbols_of_every_release() {
    let mut wanted = of_44();
    assert_eq!(wanted.iter().filter(|symbol| symbol.starts_with("FUNC r")).count(), 68);
    wanted.extend(lines(LATER).map(|line| {
        let [_, node, name] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        format!("FUNC {name}@@{node}")
    }));
    assert_eq!(exported(library().to_str().expect("text")), wanted);
}

#[test]
fn the_list_is_what_the_installed_library_exports() {
    let installed = "/usr/lib/x86_64-linux-gnu/librdmacm.so.1";
    let version = std::fs::read_link(installed).unwrap_or_default();
    if !version.to_string_lossy().ends_with(".44.0") {
        return feroce_test_skip::skip("librdmacm of rdma-core 44 is not installed");
    }
    assert_eq!(exported(installed), of_44());
}

#[test]
fn it_requires_the_private_version_of_libibverbs() {
    let library = library();
    let path = library.to_str().expect("text");
    let output = readelf("--dynamic", path);
    assert!(output.contains("Library soname: [librdmacm.so.1]"), "{output}");
    assert!(output.contains("Shared library: [libibverbs.so.1]"), "{output}");
    assert!(output.contains("NODELETE") && output.contains("NOW"), "{output}");
    // With the distribution's libibverbs, the loader reports that this version is missing.
    assert!(readelf("--version-info", path).contains("FEROCE_PRIVATE"));
    let unversioned = library.with_file_name("librdmacm.so");
    assert_eq!(std::fs::read_link(unversioned).expect("a link").to_str(), Some("librdmacm.so.1"));
}
