//! `feroce run` with programs that the loader does not start: symbol versions that Feroce lacks, and
//! libraries that cannot be loaded. The programs and all libraries are C of a few lines, compiled
//! here. Needs root; skipped with a message without root.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::installed::{Installed, assert_message};
use common::{Pair, text};

/// A function that returns the number of its library.
const LIBRARY: &str =
    "int ibv_number(void) { return NUMBER; }\nint ibv_newer(void) { return 10 * NUMBER; }\n";
/// Prints the numbers of the libraries whose functions the program gets.
const PROGRAM: &str = "#include <stdio.h>\nint ibv_number(void), ibv_newer(void);\n\
     int main(void) { printf(\"%d %d\\n\", ibv_number(), NEWER); return 0; }\n";

/// Feroce with a stand-in for its libraries, and a network for it.
struct Scene {
    pair: Pair,
    installed: Installed,
}

impl Scene {
    /// Feroce's libraries have the number 1.
    fn new(name: &str) -> Option<Self> {
        let pair = Pair::new()?;
        let scene = Self { pair, installed: Installed::new(name).with_library() };
        let feroce = scene.path("lib/feroce");
        scene.library(&feroce.join("libibverbs.so.1"), "libibverbs.so.1", 1, "IBVERBS_1.1");
        Some(scene)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.installed.0.join(name)
    }

    /// Compiles `source` with the words `options`.
    fn compile(&self, output: &Path, source: &str, options: &str) {
        let file = self.path("source.c");
        std::fs::write(&file, source).expect("a file");
        std::fs::create_dir_all(output.parent().expect("a folder")).expect("a folder");
        let built = Command::new("cc")
            .arg("-o")
            .args([output, &file])
            .args(options.split_whitespace())
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "{}", text(&built.stderr));
    }

    /// A library with `number`, whose functions have the symbol version IBVERBS_1.1, and `newer`.
    fn library(&self, output: &Path, soname: &str, number: u32, newer: &str) {
        let versions = match newer {
            "IBVERBS_1.1" => "IBVERBS_1.1 { global: ibv_*; local: *; };\n".to_owned(),
            _ => format!(
                "IBVERBS_1.1 {{ global: ibv_number; local: *; }};\n{newer} {{ global: ibv_newer; \
                 }} IBVERBS_1.1;\n"
            ),
        };
        let map = self.path("versions.map");
        std::fs::write(&map, versions).expect("a file");
        let options = format!(
            "-shared -fPIC -DNUMBER={number} -Wl,-soname,{soname} -Wl,--version-script={}",
            map.display()
        );
        self.compile(output, LIBRARY, &options);
    }

    /// A program that is linked to `library`, which is found below `folder` by RUNPATH or, with
    /// "--disable-new-dtags", by RPATH.
    fn program(&self, name: &str, library: &Path, newer: &str, tags: &str) -> PathBuf {
        let program = self.path(name);
        let folder = library.parent().expect("a folder").display();
        let options = format!("{} -DNEWER={newer} -Wl,{tags},-rpath,{folder}", library.display());
        self.compile(&program, PROGRAM, &options);
        program
    }

    fn run(&self, options: &str, program: &Path) -> Output {
        let around = "env -u LD_LIBRARY_PATH -u LD_PRELOAD";
        self.installed.run(&self.pair, around, &format!("-i v0 {options} {}", program.display()))
    }
}

#[track_caller]
fn assert_clean(output: &Output, printed: &str) {
    assert_message(output, 0, &[]);
    assert_eq!((text(&output.stderr).as_str(), text(&output.stdout).trim()), ("", printed));
}

#[test]
fn missing_symbol_versions_are_explained() {
    let Some(scene) = Scene::new("versions") else { return };
    let newer = scene.path("newer/libibverbs.so.1");
    scene.library(&newer, "libibverbs.so.1", 2, "IBVERBS_1.99");
    let program = scene.program("program", &newer, "ibv_newer()", "--enable-new-dtags");
    let explained = ["the program needs version IBVERBS_1.99", "up to release 65"];
    assert_message(&scene.run("", &program), 1, &explained);
    // A program that does not use the newer function runs.
    let older = scene.program("older", &newer, "0", "--enable-new-dtags");
    assert_clean(&scene.run("", &older), "1 0");
}

#[test]
fn libraries_of_feroce_that_cannot_be_loaded_are_named() {
    let Some(scene) = Scene::new("broken") else { return };
    let feroce = scene.path("lib/feroce/libibverbs.so.1");
    let program = scene.program("program", &feroce, "0", "--enable-new-dtags");
    assert_clean(&scene.run("", &program), "1 0");
    std::fs::write(&feroce, "").expect("a file");
    let named = ["cannot load Feroce's", "libibverbs.so.1 (file too short)", "install Feroce"];
    assert_message(&scene.run("", &program), 127, &named);
}
