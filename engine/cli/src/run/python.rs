//! Python packages that bring their own copies of the libraries that Feroce replaces.
//!
//! A wheel keeps such libraries in a folder `NAME.libs` beside its package. Python loads them when
//! the program imports the package, so the loader cannot list them when the program starts.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::libraries::Libraries;
use super::{loader, program};

/// Returns a message for each copied library in the packages of the interpreter that runs
/// `program`, unless Feroce's libraries are preloaded. Only the interpreter's own folders are read:
/// the user's packages and PYTHONPATH are not.
pub fn obstacles(program: &Path, libraries: &Libraries) -> Vec<String> {
    let python = interpreter(program).filter(|_| !libraries.is_preloaded());
    let Some(python) = python else { return Vec::new() };
    let copies = prefixes(&python).into_iter().flat_map(|prefix| copies(&prefix));
    let explain = |(library, path): (&str, PathBuf)| {
        format!(
            "a Python package has its own {library} ({}). If the program imports that package, \
             use `feroce run --preload`",
            path.display()
        )
    };
    copies.map(explain).collect()
}

/// Returns the Python that runs the program `file`: `file` itself, or the interpreter of a script.
fn interpreter(file: &Path) -> Option<PathBuf> {
    let is_python = |path: &Path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
    };
    let mut start = [0; 256];
    let read = File::open(file).ok()?.read(&mut start).ok()?;
    let Some(line) = start[..read].strip_prefix(b"#!") else {
        return is_python(file).then(|| file.to_owned());
    };
    let line = String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next()?).into_owned();
    let mut words = line.split_whitespace();
    let first = Path::new(words.next()?);
    if is_python(first) {
        return Some(first.to_owned());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    let is_env = first.file_name().is_some_and(|name| name == "env");
    let found = program::find(name.as_ref()).ok()?;
    (is_env && is_python(&found)).then_some(found)
}

/// Returns the folders below which the interpreter's packages are: that of a virtual environment,
/// and that of the installation unless the environment excludes it.
fn prefixes(python: &Path) -> Vec<PathBuf> {
    let above = |path: &Path| path.parent()?.parent().map(Path::to_owned);
    let installed = python.canonicalize().ok().and_then(|path| above(&path));
    let environment = std::path::absolute(python).ok().and_then(|path| above(&path));
    let Some(environment) = environment else { return Vec::from_iter(installed) };
    let Ok(configuration) = std::fs::read_to_string(environment.join("pyvenv.cfg")) else {
        return Vec::from_iter(installed);
    };
    let uses_system = configuration.lines().any(|line| {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let is_true = value.trim().eq_ignore_ascii_case("true");
        name.trim() == "include-system-site-packages" && is_true
    });
    [environment].into_iter().chain(installed.filter(|_| uses_system)).collect()
}

/// Returns the copied libraries in the packages below `prefix`: the library, and the copy's path.
fn copies(prefix: &Path) -> Vec<(&'static str, PathBuf)> {
    let named = |folder: PathBuf, start: &'static str, end: &'static str| {
        entries(&folder).into_iter().filter(move |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(start) && name.ends_with(end)
        })
    };
    // Debian's Python has its own packages in lib/python3, and those of pip in local/lib.
    let versions = ["lib", "local/lib"].map(|lib| named(prefix.join(lib), "python3", ""));
    let places = versions.into_iter().flatten().flat_map(|version| {
        ["site-packages", "dist-packages"].map(|packages| version.join(packages))
    });
    let files = places.flat_map(|place| named(place, "", ".libs")).flat_map(|libs| entries(&libs));
    let copies = files.filter_map(|file| {
        let library = loader::replaced(&file.file_name()?.to_string_lossy())?;
        Some((library, file))
    });
    copies.collect()
}

/// Returns the files and folders in `folder`, sorted; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(listed) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<_> = listed.flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}
