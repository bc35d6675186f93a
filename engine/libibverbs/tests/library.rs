//! The shared library as programs see it: soname, symbols and versions, and its dependencies.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Symbols of release 44, from the distribution's library.
const RELEASE_44: &str = include_str!("../symbols-44.txt");
/// Symbols that later releases added, from their .map files.
const LATER: &str = include_str!("../symbols-after-44.txt");

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

/// Returns the lines of a list of symbols.
fn lines(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

/// Returns the `name@version` of each symbol that a release up to the newest in the lists exports.
fn wanted() -> BTreeSet<String> {
    let of_44 = lines(RELEASE_44).map(|line| {
        let name = line.split(' ').nth(1).expect("a name");
        name.replace("@@", "@")
    });
    let later = lines(LATER).map(|line| {
        let [_, node, name] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        format!("{name}@{node}")
    });
    of_44.chain(later).collect()
}

#[test]
fn the_library_exports_the_symbols_of_every_release() {
    let wanted = wanted();
    assert!(wanted.len() > 500, "{}", wanted.len());
    let library = library();
    let exported = exported(library.to_str().expect("text"));
    let missing: Vec<_> = lines(RELEASE_44).filter(|line| !exported.contains(*line)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "of release 44, with their type and default version");
    let named = |line: &String| line.split(' ').nth(1).unwrap_or("").replace("@@", "@");
    let ours: BTreeSet<_> = exported.iter().map(named).collect();
    let missing: Vec<_> = wanted.difference(&ours).collect();
    assert_eq!(missing, Vec::<&String>::new());
    // No other symbols, except librdmacm's: a stray symbol could replace one of the program's.
    let extra = ours.difference(&wanted).filter(|name| !name.ends_with("@FEROCE_PRIVATE"));
    let extra: Vec<_> = extra.collect();
    assert_eq!(extra, Vec::<&String>::new());
}

/// Other tests may be copying the folders meanwhile.
#[test]
fn linking_again_changes_nothing_in_the_folders() {
    let changed = || {
        let folder = library().parent().expect("a folder").to_owned();
        [folder.clone(), folder.join("rsocket")].map(|folder| {
            folder.metadata().and_then(|folder| folder.modified()).expect("the time of a change")
        })
    };
    assert_eq!(changed(), changed());
}

/// Calls a function of every private node, by the names that libmlx5 of that release uses.
#[test]
fn programs_that_name_a_private_node_get_real_functions() {
    let library = library();
    for node in ["34", "57", "59", "64", "65"] {
        let program = format!(
            r#"
import ctypes
library = ctypes.CDLL("{}")
find = ctypes.CDLL(None).dlvsym
find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
def of(name):
    at = find(library._handle, name, b"IBVERBS_PRIVATE_{node}")
    assert at, name
    return at
text = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)(of(b"ibv_wr_opcode_str"))
assert text(15) == b"atomic-write" and text(12) == b"unknown" and text(99) == b"unknown"
number = ctypes.CFUNCTYPE(ctypes.c_int)
assert number(of(b"ibv_cmd_create_cq_ex2"))() == 95
assert number(of(b"verbs_register_driver_{node}"))() is not None
allow = ctypes.c_bool.from_address(of(b"verbs_allow_disassociate_destroy"))
assert not allow.value
at, byte, number = ctypes.c_void_p, ctypes.c_uint8, ctypes.c_uint
real = ctypes.CFUNCTYPE(ctypes.c_int, at, byte, number, at)
assert real(of(b"ibv_query_gid_type"))(None, 9, 0, None) == -1
"#,
            library.display()
        );
        let done = Command::new("python3").args(["-c", &program]).output().expect("python3");
        assert!(done.status.success(), "{node}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// A Python wheel has a copy of libibverbs with a hash in file name and SONAME, and programs that
/// name the copy for their symbol versions. Preloaded, Feroce's functions take the place of the
/// copy's: with `feroce run --preload`.
#[test]
fn a_preloaded_library_takes_the_place_of_a_bundled_copy() {
    let library = library();
    let folder = std::env::temp_dir().join(format!("fr-bundled-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = |name: &str| folder.join(name);
    let name = "libibverbs-1a2b3c4d.so.1.14.44.0";
    let (copy, program) = (file(name), file("program"));
    let source = "int ibv_rate_to_mult(int rate) { return 100 + rate; }\n\
                  int ibv_fork_init(void) { return 101; }\n";
    let versions = "IBVERBS_1.0 { global: ibv_rate_to_mult; local: *; };\n\
                    IBVERBS_1.1 { global: ibv_fork_init; } IBVERBS_1.0;\n";
    let main = "#include <stdio.h>\nint ibv_rate_to_mult(int), ibv_fork_init(void);\n\
                int main(void) { printf(\"%d %d\", ibv_rate_to_mult(3), ibv_fork_init()); }\n";
    for (name, text) in [("copy.c", source), ("versions.map", versions), ("main.c", main)] {
        std::fs::write(file(name), text).expect("a file");
    }
    let build = |words: &[&str]| {
        let built = Command::new("cc").current_dir(&folder).args(words).output().expect("cc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    };
    let soname = format!("-Wl,-soname,{name}");
    let map = "-Wl,--version-script=versions.map";
    build(&["-shared", "-fPIC", "-o", name, "copy.c", &soname, map]);
    build(&["-o", "program", "main.c", copy.to_str().expect("text"), "-Wl,-rpath,$ORIGIN"]);
    let run = |preloaded: &str| {
        let output = Command::new(&program).env("LD_PRELOAD", preloaded).output();
        String::from_utf8(output.expect("the program").stdout).expect("text")
    };
    let (before, after) = (run(""), run(library.to_str().expect("text")));
    std::fs::remove_dir_all(&folder).expect("just made");
    assert_eq!((before.as_str(), after.as_str()), ("103 101", "4 0"));
}

#[test]
fn the_list_is_what_the_installed_library_exports() {
    let installed = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    let version = std::fs::read_link(installed).unwrap_or_default();
    if !version.to_string_lossy().ends_with(".44.0") {
        // Another release exports more.
        return feroce_test_skip::skip("libibverbs of rdma-core 44 is not installed");
    }
    let wanted: BTreeSet<_> = lines(RELEASE_44).map(str::to_owned).collect();
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
