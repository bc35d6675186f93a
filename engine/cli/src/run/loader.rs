//! What glibc's loader says about a program: libraries that are missing or too old.
//!
//! The loader lists the libraries of a program instead of starting it. It knows the libraries that
//! the program is linked to, not those that the running program opens.

use std::path::Path;
use std::process::{Command, Stdio};

use super::libraries::Libraries;

/// The newest release of rdma-core whose symbols Feroce's libraries have.
const NEWEST_RELEASE: u32 = 65;

/// Debian packages of libraries that programs and Feroce load: prefix of the library's name, and
/// package.
const PACKAGES: &[(&str, &str)] = &[
    ("libmlx", "ibverbs-providers"),
    ("libefa", "ibverbs-providers"),
    ("libmana", "ibverbs-providers"),
    ("libibumad", "libibumad3"),
    ("libibmad", "libibmad5"),
    ("libelf.", "libelf1"),
    ("libz.", "zlib1g"),
];

/// Reasons why `program` will not start, or why it will not use Feroce's libraries.
pub fn obstacles(program: &Path, libraries: &Libraries) -> Vec<String> {
    let mut loader = Command::new(program);
    libraries.apply(&mut loader);
    loader.env("LD_TRACE_LOADED_OBJECTS", "1");
    let Ok(output) = loader.stdin(Stdio::null()).output() else { return Vec::new() };
    let (listed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut found = missing(&listed);
    found.extend(errors.lines().filter_map(|line| explain(line, program, libraries)));
    found
}

/// Returns the libraries in the loader's list: name, and path unless the library is missing.
fn entries(listed: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let lines = listed.lines().take_while(|line| !line.trim().is_empty());
    lines.filter_map(|line| {
        let line = line.trim();
        if let Some(name) = line.strip_suffix(" => not found") {
            return Some((name, None));
        }
        let (line, _address) = line.rsplit_once(" (0x")?;
        // A library that is named by its path has no arrow.
        let (_, path) = line.split_once(" => ").unwrap_or(("", line));
        Some((path.rsplit('/').next().unwrap_or(path), Some(path)))
    })
}

/// Explains libraries that are not found.
fn missing(listed: &str) -> Vec<String> {
    let names = entries(listed).filter(|(_, path)| path.is_none());
    let explain = |(name, _): (&str, _)| match package(name) {
        Some(package) => format!("{name} is missing (on Debian: package {package})"),
        None => format!("{name} is not installed"),
    };
    names.map(explain).collect()
}

fn package(library: &str) -> Option<&'static str> {
    PACKAGES.iter().find(|(start, _)| library.starts_with(start)).map(|(_, package)| *package)
}

/// Explains an error message of the loader; `None` for other lines.
fn explain(line: &str, program: &Path, libraries: &Libraries) -> Option<String> {
    let is_feroce = |path: &str| libraries.contains(Path::new(path));
    let own = format!("{}: ", program.display());
    let line = line.strip_prefix(&own)?;
    if let Some(failed) = line.strip_prefix("error while loading shared libraries: ") {
        let (object, reason) = failed.split_once(": ")?;
        return Some(match is_feroce(object) {
            true => unusable(object, reason),
            false => format!("the loader cannot load {object}: {reason}"),
        });
    }
    let (line, file) = line.strip_suffix(')')?.rsplit_once("' not found (required by ")?;
    // glibc quotes `so' or 'so'.
    let (object, version) =
        line.rsplit_once(": version `").or_else(|| line.rsplit_once(": version '"))?;
    let needs = match Path::new(file) == program {
        true => format!("the program needs version {version} of {object}"),
        false => format!("{file} needs version {version} of {object}"),
    };
    Some(match (is_feroce(object), is_feroce(file)) {
        (true, true) => format!("{needs}, which does not have it: install Feroce again"),
        (true, false) => format!(
            "{needs}, which is Feroce's and does not have it. Feroce has the symbols of rdma-core \
             up to release {NEWEST_RELEASE}: use a build for that release or an older one"
        ),
        (false, true) => format!(
            "{needs}, which does not have it: Feroce's libraries were built on a newer system. \
             Build them on this one"
        ),
        (false, false) => format!("{needs}, which does not have it: install a newer release"),
    })
}

/// The message for a library of Feroce that cannot be loaded.
fn unusable(object: &str, reason: &str) -> String {
    format!("the loader cannot load Feroce's {object} ({reason}): install Feroce again")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "\tlinux-vdso.so.1 (0x7f6c400d)
\t/opt/feroce/libibverbs.so.1 (0x7f6c400c)
\tlibibverbs-1a2b3c4d.so.1.14.44.0 => /venv (1)/libibverbs-1a2b3c4d.so.1.14.44.0 (0x7f6c3fed)
\tlibmlx5.so.1 => not found
";

    #[test]
    fn the_list_of_libraries_is_read() {
        let hashed = "libibverbs-1a2b3c4d.so.1.14.44.0";
        let path = format!("/venv (1)/{hashed}");
        let expected = [
            ("linux-vdso.so.1", Some("linux-vdso.so.1")),
            ("libibverbs.so.1", Some("/opt/feroce/libibverbs.so.1")),
            (hashed, Some(path.as_str())),
            ("libmlx5.so.1", None),
        ];
        assert_eq!(entries(LISTED).collect::<Vec<_>>(), expected);
        assert_eq!(
            missing(LISTED),
            ["libmlx5.so.1 is missing (on Debian: package ibverbs-providers)"]
        );
    }

    #[test]
    fn the_newest_release_is_that_of_the_libraries() {
        let engine = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder");
        for library in ["libibverbs", "librdmacm"] {
            let list = engine.join(library).join("symbols-after-44.txt");
            // The package of this crate does not contain the others.
            let Ok(list) = std::fs::read_to_string(list) else { return };
            let releases = list.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok());
            assert_eq!(releases.max(), Some(NEWEST_RELEASE), "{library}");
        }
    }

    #[test]
    fn errors_of_the_loader_are_explained() {
        let feroce = Libraries::at(Path::new("/usr/lib"));
        let explain = |line: &str| explain(line, Path::new("./p"), &feroce);
        for (line, words) in [
            (
                "./p: /usr/lib/libibverbs.so.1: version `IBVERBS_1.99' not found (required by ./p)",
                Some(
                    "the program needs version IBVERBS_1.99 of /usr/lib/libibverbs.so.1, which is",
                ),
            ),
            (
                "./p: /usr/lib/libibverbs.so.1: version 'IBVERBS_PRIVATE_99' not found (required \
                 by /x/libmlx5.so.1)",
                Some("/x/libmlx5.so.1 needs version IBVERBS_PRIVATE_99 of"),
            ),
            (
                "./p: /bin/libc.so.6: version `GLIBC_9' not found (required by \
                 /usr/lib/libibverbs.so.1)",
                Some("Feroce's libraries were built on a newer system"),
            ),
            (
                "./p: /bin/libefa.so.1: version `EFA_9' not found (required by ./p)",
                Some("the program needs version EFA_9 of /bin/libefa.so.1, which does not have it"),
            ),
            (
                "./p: error while loading shared libraries: /usr/lib/libibverbs.so.1: \
                 file too short",
                Some("cannot load Feroce's /usr/lib/libibverbs.so.1 (file too short)"),
            ),
            // Neither keeps a program from starting.
            ("./p: /bin/libx.so.1: weak version `X_9' not found (required by ./p)", None),
            ("./p: /bin/libx.so.1: no version information available (required by ./p)", None),
        ] {
            let found = explain(line);
            match words {
                Some(words) => {
                    assert!(found.as_ref().is_some_and(|found| found.contains(words)), "{found:?}")
                }
                None => assert_eq!(found, None),
            }
        }
    }
}
