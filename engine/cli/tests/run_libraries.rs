//! `feroce run` with programs that have their own copies of Feroce's libraries, or that the loader
//! does not start: symbol versions that Feroce lacks, and libraries that cannot be loaded. The
//! programs and all libraries are C of a few lines, compiled here. Needs root; skipped with a
//! message without root.

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

/// The file name of a bundled copy, which is also its SONAME.
const BUNDLED: &str = "libibverbs-1a2b3c4d.so.1.14.44.0";

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
        let cm = feroce.join("librdmacm.so.1");
        scene.compile(&cm, "", "-shared -fPIC -Wl,-soname,librdmacm.so.1");
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

    /// A program that is linked to `library` and finds it by RUNPATH or, with
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

/// The program asks for the symbol versions of the copy, by the copy's name. The loader checks them
/// in the copy, and takes the functions from the first library that has the version.
#[test]
fn a_bundled_copy_is_named_and_preload_takes_its_place() {
    let Some(scene) = Scene::new("bundled") else { return };
    let copy = scene.path("nixl.libs").join(BUNDLED);
    scene.library(&copy, BUNDLED, 2, "IBVERBS_1.1");
    let program = scene.program("program", &copy, "ibv_newer()", "--enable-new-dtags");
    let output = scene.run("", &program);
    let path = copy.display().to_string();
    assert_message(&output, 0, &["its own libibverbs", &path, "`feroce run --preload`"]);
    assert_eq!(text(&output.stdout), "2 20\n");
    assert_clean(&scene.run("--preload", &program), "1 10");

    // A library that the program opens later gets Feroce's functions, too.
    let plugin = scene.path("plugin.so");
    let options = format!("-shared -fPIC {path} -Wl,-rpath,{}", scene.path("nixl.libs").display());
    scene.compile(
        &plugin,
        "int ibv_number(void);\nint f(void) { return ibv_number(); }\n",
        &options,
    );
    let opens = format!(
        "#include <dlfcn.h>\nint main(void) {{\n\
         int (*f)(void) = dlsym(dlopen(\"{}\", RTLD_NOW | RTLD_LOCAL), \"f\"); return f(); }}\n",
        plugin.display()
    );
    let opener = scene.path("opener");
    scene.compile(&opener, &opens, "-ldl");
    assert_message(&scene.run("", &opener), 2, &[]);
    assert_message(&scene.run("--preload", &opener), 1, &[]);
}

/// RPATH precedes LD_LIBRARY_PATH.
#[test]
fn a_copy_that_the_program_finds_first_is_named() {
    let Some(scene) = Scene::new("rpath") else { return };
    let copy = scene.path("own/libibverbs.so.1");
    scene.library(&copy, "libibverbs.so.1", 2, "IBVERBS_1.1");
    let program = scene.program("rpath", &copy, "ibv_newer()", "--disable-new-dtags");
    let path = copy.display().to_string();
    let output = scene.run("", &program);
    assert_message(&output, 0, &["its own libibverbs", &path, "--preload"]);
    assert_eq!(text(&output.stdout), "2 20\n");
    assert_clean(&scene.run("--preload", &program), "1 10");
    // RUNPATH does not.
    let program = scene.program("runpath", &copy, "ibv_newer()", "--enable-new-dtags");
    assert_clean(&scene.run("", &program), "1 10");
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

    // The functions of a bundled copy that Feroce lacks stay those of the copy.
    let copy = scene.path("nixl.libs").join(BUNDLED);
    scene.library(&copy, BUNDLED, 2, "IBVERBS_1.99");
    let program = scene.program("bundled", &copy, "ibv_newer()", "--enable-new-dtags");
    let output = scene.run("--preload", &program);
    let named = [program.to_str().expect("text"), "needs version IBVERBS_1.99 of", BUNDLED];
    assert_message(&output, 0, &named);
    assert_eq!(text(&output.stdout), "1 20\n");
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
    assert_message(&scene.run("--preload", Path::new("true")), 0, &["--preload has no effect"]);
    std::fs::remove_file(scene.path("lib/feroce/librdmacm.so.1")).expect("a file");
    let output = scene.run("--preload", Path::new("true"));
    assert_message(&output, 1, &["there is no librdmacm.so.1 in", "build-libs"]);
}

/// Python opens the libraries when the program imports the package.
#[test]
fn copies_in_python_packages_are_named() {
    let Some(scene) = Scene::new("python") else { return };
    let packages = scene.path("venv/lib/python3.12/site-packages");
    let copy = packages.join("nixl.libs").join(BUNDLED);
    std::fs::create_dir_all(packages.join("nixl.libs")).expect("a folder");
    std::fs::create_dir_all(scene.path("venv/bin")).expect("a folder");
    let python = scene.path("venv/bin/python3");
    std::os::unix::fs::symlink("/bin/true", &python).expect("a link");
    std::fs::write(scene.path("venv/pyvenv.cfg"), "home = /usr/bin\n").expect("a file");
    assert_clean(&scene.run("", &python), "");
    std::fs::write(&copy, "").expect("a file");
    let script = scene.path("script");
    std::fs::write(&script, format!("#!{}\n", python.display())).expect("a file");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("mine");
    let path = copy.display().to_string();
    for program in [&python, &script] {
        let named = ["a Python package has its own libibverbs", path.as_str(), "--preload"];
        assert_message(&scene.run("", program), 0, &named);
        assert_clean(&scene.run("--preload", program), "");
    }
}

#[test]
fn preloaded_libraries_precede_those_of_the_caller() {
    let Some(scene) = Scene::new("order") else { return };
    let mine = scene.path("mine.so");
    scene.compile(&mine, "", "-shared -fPIC");
    let around = format!("env LD_PRELOAD={}", mine.display());
    let run = |options: &str| {
        let arguments = format!("-q -i v0 {options} printenv LD_PRELOAD");
        text(&scene.installed.run(&scene.pair, &around, &arguments).stdout).trim().to_owned()
    };
    assert_eq!(run(""), mine.display().to_string());
    let folder = scene.path("bin/../lib/feroce").display().to_string();
    let expected = format!("{folder}/libibverbs.so.1:{folder}/librdmacm.so.1:{}", mine.display());
    assert_eq!(run("--preload"), expected);

    // The loader separates the entries by spaces, too.
    let spaced = scene.path("a folder");
    for folder in ["bin", "lib"] {
        std::fs::create_dir_all(&spaced).expect("a folder");
        let copied = Command::new("cp").arg("-r").arg(scene.path(folder)).arg(&spaced).status();
        assert!(copied.is_ok_and(|status| status.success()));
    }
    let feroce = spaced.join("bin/feroce");
    let mut command = scene.pair.run(0, feroce.to_str().expect("text"));
    command.args(["run", "-i", "v0", "--preload", "true"]).env("FEROCE_CONFIG", "");
    assert_message(&command.output().expect("feroce"), 1, &["a space or a colon", "elsewhere"]);
}
