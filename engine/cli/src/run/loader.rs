//! What glibc's loader says about a program: libraries that are missing or too old, and the
//! program's own copies of the libraries that Feroce replaces.
//!
//! The loader lists the libraries of a program, with the symbol versions that each needs, instead
//! of starting it. It knows the libraries that the program is linked to, not those that the running
//! program opens.

use std::path::Path;
use std::process::{Command, Stdio};

use super::libraries::Libraries;

/// The newest release of rdma-core whose symbols Feroce's libraries have.
const NEWEST_RELEASE: u32 = 65;

/// The newest symbol versions of Feroce's libraries: what precedes the number, and the number.
const NEWEST_VERSIONS: &[(&str, u32)] = &[("IBVERBS_1.", 18), ("RDMACM_1.", 5)];

/// The libraries that Feroce replaces.
const REPLACED: &[&str] = &["libibverbs", "librdmacm"];

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

/// Returns the library that the file `name` is a copy of, if Feroce replaces that library. A
/// bundled copy has a hash in its name: `libibverbs-1a2b3c4d.so.1.14.44.0`.
pub fn replaced(name: &str) -> Option<&'static str> {
    let is_copy = |library: &&&str| {
        let rest = name.strip_prefix(**library);
        rest.is_some_and(|rest| rest.starts_with(".so") || rest.starts_with('-'))
    };
    REPLACED.iter().find(is_copy).copied().filter(|_| name.contains(".so"))
}

/// Reasons why `program` will not start, or why it will not use Feroce's libraries.
pub fn obstacles(program: &Path, libraries: &Libraries) -> Vec<String> {
    let mut loader = Command::new(program);
    libraries.apply(&mut loader);
    loader.env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_VERBOSE", "1");
    let Ok(output) = loader.stdin(Stdio::null()).output() else { return Vec::new() };
    let (listed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut found = missing(&listed);
    found.extend(errors.lines().filter_map(|line| explain(line, program, libraries)));
    if libraries.is_preloaded() {
        found.extend(too_new(&listed, libraries));
    } else {
        found.extend(copies(&listed, libraries));
    }
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

/// Names the program's own copies of Feroce's libraries.
fn copies(listed: &str, libraries: &Libraries) -> Vec<String> {
    let found = entries(listed).filter_map(|(name, path)| {
        let (library, path) = (replaced(name)?, path?);
        (!libraries.contains(Path::new(path))).then(|| {
            format!(
                "the program uses its own {library} ({path}), not Feroce's. With `feroce run \
                 --preload` it uses Feroce's"
            )
        })
    });
    found.collect()
}

/// Names symbol versions that only the program's own copies have. The loader binds their symbols to
/// the copies, although Feroce's libraries are preloaded.
fn too_new(listed: &str, libraries: &Libraries) -> Vec<String> {
    let mut file = "";
    let mut found = Vec::new();
    for line in listed.lines().skip_while(|line| !line.contains("Version information:")).skip(1) {
        if let Some(name) = line.strip_suffix(':') {
            file = name.trim();
            continue;
        }
        // A library, the version that the file needs of it, and the path of the library.
        let Some((needed, path)) = line.trim().split_once(") => ") else { continue };
        let Some((library, version)) = needed.rsplit_once(" (") else { continue };
        let is_copy = replaced(library).is_some() && path != "not found";
        if is_copy && is_too_new(version) && !libraries.contains(Path::new(path)) {
            found.push(format!(
                "{file} needs version {version} of the program's own {library}. Feroce has the \
                 symbols of rdma-core up to release {NEWEST_RELEASE}: newer functions are those of \
                 {library}, and fail with Feroce's objects"
            ));
        }
    }
    found
}

fn is_too_new(version: &str) -> bool {
    NEWEST_VERSIONS.iter().any(|(start, newest)| {
        let number = version.strip_prefix(start).and_then(|number| number.parse::<u32>().ok());
        number.is_some_and(|number| number > *newest)
    })
}

/// Explains an error message of the loader; `None` for other lines.
fn explain(line: &str, program: &Path, libraries: &Libraries) -> Option<String> {
    let is_feroce = |path: &str| libraries.contains(Path::new(path));
    let own = format!("{}: ", program.display());
    if let Some(failed) = line.strip_prefix("ERROR: ld.so: object '") {
        let (object, reason) = failed.split_once("' from LD_PRELOAD cannot be preloaded (")?;
        let reason = reason.strip_suffix("): ignored.")?;
        return is_feroce(object)
            .then(|| format!("--preload has no effect: {}", unusable(object, reason)));
    }
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
        (false, true) if replaced(object.rsplit('/').next()?).is_some() => {
            format!("{needs}, the program's own: Feroce's libraries work only with each other")
        }
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

\tVersion information:
\t./program:
\t\tlibibverbs-1a2b3c4d.so.1.14.44.0 (IBVERBS_1.1) => /venv (1)/libibverbs-1a2b3c4d.so.1.14.44.0
\t\tlibibverbs-1a2b3c4d.so.1.14.44.0 (IBVERBS_1.19) => /venv (1)/libibverbs-1a2b3c4d.so.1.14.44.0
\t\tlibibverbs-1a2b3c4d.so.1.14.44.0 (IBVERBS_PRIVATE_99) => not found
\t\tlibc.so.6 (GLIBC_2.34) => /lib/x86_64-linux-gnu/libc.so.6
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
        let newer = too_new(LISTED, &Libraries::at(Path::new("/opt/feroce"), true));
        let named = |one: &String| one.starts_with("./program needs version IBVERBS_1.19 of");
        assert!(newer.len() == 1 && newer.iter().all(named), "{newer:?}");
    }

    #[test]
    fn copies_are_recognized_by_name() {
        for (name, library) in [
            ("libibverbs.so.1", Some("libibverbs")),
            ("libibverbs-1a2b3c4d.so.1.14.44.0", Some("libibverbs")),
            ("librdmacm-1a2b3c4d.so.1.3.44.0", Some("librdmacm")),
            ("librdmacm.so.1.3.44.0", Some("librdmacm")),
            ("libibverbsx.so.1", None),
            ("libibverbs-dev", None),
            ("libmlx5-1a2b3c4d.so.1", None),
        ] {
            assert_eq!(replaced(name), library, "{name}");
        }
    }

    #[test]
    fn the_newest_versions_are_those_of_the_libraries() {
        let engine = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder");
        for (library, (start, newest)) in REPLACED.iter().zip(NEWEST_VERSIONS) {
            let map = engine.join(library).join(format!("{library}.map"));
            // The package of this crate does not contain the others.
            let Ok(map) = std::fs::read_to_string(map) else {
                return feroce_test_skip::skip("the libraries are not beside this package");
            };
            let numbers = map.lines().filter_map(|line| {
                line.strip_prefix(start)?.split_once(' ')?.0.parse::<u32>().ok()
            });
            assert_eq!(numbers.max(), Some(*newest), "{library}");
            let list = engine.join(library).join("symbols-after-44.txt");
            let list = std::fs::read_to_string(list).expect("the symbols");
            let releases = list.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok());
            assert_eq!(releases.max(), Some(NEWEST_RELEASE), "{library}");
        }
    }

    #[test]
    fn errors_of_the_loader_are_explained() {
        let feroce = Libraries::at(Path::new("/usr/lib"), true);
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
                "./p: /x/libibverbs.so.1: version `FEROCE_PRIVATE' not found (required by \
                 /usr/lib/librdmacm.so.1)",
                Some("/x/libibverbs.so.1, the program's own: Feroce's libraries work only with"),
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
            (
                "ERROR: ld.so: object '/usr/lib/librdmacm.so.1' from LD_PRELOAD cannot be \
                 preloaded (file too short): ignored.",
                Some("--preload has no effect: the loader cannot load Feroce's"),
            ),
            // Neither keeps a program from starting.
            ("./p: /bin/libx.so.1: weak version `X_9' not found (required by ./p)", None),
            ("./p: /bin/libx.so.1: no version information available (required by ./p)", None),
            (
                "ERROR: ld.so: object 'libmine.so' from LD_PRELOAD cannot be preloaded (cannot \
                 open shared object file): ignored.",
                None,
            ),
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
