//! Our own programs in `tests/programs`, and the examples of librpma's sources: compiled against
//! the distribution's headers and libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::process::run;
use crate::rows::Row;
use crate::setup::{Work, need_packages};

/// Our programs.
const FOLDER: &str = "tests/programs";
/// The script that runs the examples of librpma.
const EXAMPLES: &str = "rpma-example";
const VERBS: &[&str] = &["-Wl,--as-needed", "-lrdmacm", "-libverbs", "-lpthread", "-ldl"];

/// A program that needs packages of its own. Rows of the program are skipped where the packages
/// cannot be installed.
struct Recipe {
    program: &'static str,
    packages: &'static [&'static str],
    /// The compiler; empty for a script.
    compiler: &'static str,
    libraries: &'static [&'static str],
}

const RECIPES: &[Recipe] = &[
    Recipe {
        program: "gloo",
        packages: &["libgloo-dev", "g++"],
        compiler: "c++",
        libraries: &["-lgloo", "-libverbs"],
    },
    Recipe {
        program: "librpma",
        packages: &["librpma-dev"],
        compiler: "cc",
        libraries: &["-lrpma", "-libverbs"],
    },
    Recipe {
        program: "iser-target",
        packages: &["tgt", "libiscsi-bin", "qemu-utils", "qemu-block-extra"],
        compiler: "",
        libraries: &[],
    },
    Recipe {
        program: "collectives",
        packages: &["openmpi-bin", "libopenmpi-dev"],
        compiler: "mpicc",
        libraries: &[],
    },
];

/// Our programs in the work folder.
#[derive(Debug, Default)]
pub struct Own {
    /// Programs that are not there, and why.
    missing: Vec<(&'static str, String)>,
}

impl Own {
    /// Makes our programs, and the packages of those that `rows` use. `installs` says whether the
    /// programs of the rows are the packages of this machine. `rpma` is the folder with librpma's
    /// sources.
    pub fn make(work: &Work, rows: &[Row], installs: bool, rpma: Option<&Path>) -> Result<Own> {
        for entry in std::fs::read_dir(FOLDER)? {
            make(work, &entry?.path())?;
        }
        let mut own = Own::default();
        for recipe in RECIPES.iter().filter(|recipe| rows.iter().any(|row| recipe.is_for(row))) {
            if !installs {
                own.missing.push((recipe.program, "runs with this machine's packages only".into()));
            } else if need_packages(recipe.packages).is_err() {
                let packages = recipe.packages.join(", ");
                own.missing.push((recipe.program, format!("cannot install {packages}")));
            } else if !recipe.compiler.is_empty() {
                recipe.compile(work)?;
            }
        }
        match rpma {
            Some(folder) => make_examples(work, &folder.join("examples"))?,
            None => own.missing.push((EXAMPLES, "needs librpma's sources: --rpma FOLDER".into())),
        }
        Ok(own)
    }

    /// Why the row's programs are not there.
    pub fn lacks(&self, row: &Row) -> Option<String> {
        let found = self.missing.iter().find(|(name, _)| row.words().any(|word| word == *name));
        found.map(|(_, reason)| reason.clone())
    }
}

/// Compiles the program `name`, one source, into the work folder.
pub fn compile_one(work: &Work, name: &str) -> Result {
    make(work, &Path::new(FOLDER).join(format!("{name}.c")))
}

impl Recipe {
    fn is_for(&self, row: &Row) -> bool {
        row.words().any(|word| word == self.program)
    }

    fn compile(&self, work: &Work) -> Result {
        let is_cxx = self.compiler == "c++";
        let source = format!("{FOLDER}/{}.{}", self.program, if is_cxx { "cc" } else { "c" });
        compile(work, self.compiler, self.program, &[source.into()], self.libraries)
    }
}

/// Copies a script; compiles a source, and the sources of a folder to one program, unless a recipe
/// does.
fn make(work: &Work, path: &Path) -> Result {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let has_recipe = RECIPES.iter().any(|recipe| recipe.program == stem);
    if path.is_dir() {
        compile(work, "cc", &stem, &sources(path)?, VERBS)
    } else if path.extension().is_none() {
        std::fs::copy(path, work.file(&stem))?;
        Ok(())
    } else if path.extension().is_some_and(|extension| extension == "c") && !has_recipe {
        compile(work, "cc", &stem, &[path.to_owned()], VERBS)
    } else {
        Ok(())
    }
}

/// The C sources in a folder.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| format!("no sources in {}: {error}", folder.display()))?;
    let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let is_c = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "c");
    Ok(files.into_iter().filter(is_c).collect())
}

fn compile(
    work: &Work,
    compiler: &str,
    program: &str,
    sources: &[PathBuf],
    libraries: &[&str],
) -> Result {
    let mut command = Command::new(compiler);
    command.args(["-D_GNU_SOURCE", "-Wall", "-O1", "-o"]).arg(work.file(program));
    command.args(sources).args(libraries);
    match run(&mut command)? {
        0 => Ok(()),
        _ => Err(format!("{program} does not compile").into()),
    }
}

/// Compiles each example of librpma, `NAME/server.c` and `NAME/client.c`, to `rpma-NAME-server` and
/// `rpma-NAME-client`. Examples for persistent memory use ordinary memory.
fn make_examples(work: &Work, folder: &Path) -> Result {
    need_packages(&["librpma-dev", "libprotobuf-c-dev"])?;
    let is_pmem = |file: &PathBuf| file.to_string_lossy().contains("map_file");
    let mut common = sources(&folder.join("common"))?;
    common.retain(|file| !is_pmem(file));
    common.extend(sources(&folder.join("common/gpspm"))?);
    let include = format!("-I{}", folder.join("common").display());
    let libraries = ["-lrpma", "-libverbs", "-lprotobuf-c"];
    let options: Vec<&str> = [include.as_str()].into_iter().chain(libraries).collect();
    for entry in std::fs::read_dir(folder)? {
        let example = entry?.path();
        let ends = ["server.c", "client.c"].map(|file| example.join(file));
        if !ends.iter().all(|file| file.exists()) {
            continue;
        }
        let mut shared = sources(&example)?;
        shared.retain(|file| !ends.contains(file));
        let name = example.file_name().unwrap_or_default().to_string_lossy();
        for end in &ends {
            let files: Vec<PathBuf> =
                [end].into_iter().chain(&shared).chain(&common).cloned().collect();
            let side = end.file_stem().unwrap_or_default().to_string_lossy();
            compile(work, "cc", &format!("rpma-{name}-{side}"), &files, &options)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_programs_that_cannot_be_made_are_skipped() {
        let row = |line: &str| Row::parse(line).expect("a row");
        let own =
            Own { missing: vec![("gloo", "no gloo".into()), (EXAMPLES, "no sources".into())] };
        assert_eq!(own.lacks(&row("g | w | gloo 0 | gloo 1 | p")).as_deref(), Some("no gloo"));
        let example =
            row("r | 1 | rpma-example 1 server SERVER | rpma-example 1 client SERVER | p");
        assert_eq!(own.lacks(&example).as_deref(), Some("no sources"));
        assert_eq!(own.lacks(&row("l | w | librpma server | librpma client | p")), None);
        assert_eq!(own.lacks(&row("m | w | - | ranks ucx collectives | p")), None);
    }

    #[test]
    fn every_recipe_has_its_source() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../programs");
        for recipe in RECIPES {
            let suffix = match recipe.compiler {
                "" => "",
                "c++" => ".cc",
                _ => ".c",
            };
            let path = format!("{folder}/{}{suffix}", recipe.program);
            assert!(Path::new(&path).exists(), "{path}");
        }
    }
}
