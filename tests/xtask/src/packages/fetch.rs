//! Downloads packages and builds them, by cargo and pip, as the user who called sudo.
//!
//! target/packages has `NAME-VERSION`, a copy of the crate's files; `program/NAME`, a crate of our
//! own that depends on it; `build`, what cargo built; and `python`, a virtual environment.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::table::{Package, Source};
use crate::Result;
use crate::process::end_of;
use crate::setup::{as_caller, target};

/// A step of the preparation: its result, or why there is none.
pub type Step<T> = std::result::Result<T, String>;

/// The folder target/packages.
pub struct Store {
    folder: PathBuf,
    /// The clone of rdma-io's repository.
    rdma_io: Option<PathBuf>,
}

/// A test program of a crate.
#[derive(Debug)]
pub struct TestProgram {
    /// `lib`, or the name of the file below `tests`.
    pub name: String,
    /// The program.
    pub path: PathBuf,
    /// The folder that cargo runs it in.
    pub folder: PathBuf,
}

impl TestProgram {
    /// The name of a test in results.
    pub fn named(&self, test: &str) -> String {
        format!("{}::{test}", self.name)
    }

    /// The test, if `named` is one of this program.
    pub fn test<'a>(&self, named: &'a str) -> Option<&'a str> {
        named.strip_prefix(self.name.as_str())?.strip_prefix("::")
    }
}

impl Store {
    /// The store. `rdma_io` is a clone of the repository of that name.
    pub fn new(rdma_io: Option<PathBuf>) -> Result<Store> {
        let folder = target().join("packages");
        let store = Store { folder, rdma_io };
        let done = as_caller(Path::new("."), &["mkdir", "-p"]).arg(&store.folder).status()?;
        match done.success() {
            true => Ok(store),
            false => Err(format!("cannot make {}", store.folder.display()).into()),
        }
    }

    /// The folder of the programs that cargo built.
    pub fn built(&self) -> PathBuf {
        self.folder.join("build/debug")
    }

    /// Copies the files of a crate; returns their folder.
    pub fn fetch(&self, package: &Package) -> Result<Step<PathBuf>> {
        let from = match package.source {
            Source::Crates => match self.download(package)? {
                Ok(folder) => folder,
                Err(why) => return Ok(Err(why)),
            },
            Source::Clone { url, commit } => match &self.rdma_io {
                Some(folder) => std::path::absolute(folder)?,
                None => {
                    let why = format!("the crate has no tests; --rdma-io: {url}, commit {commit}");
                    return Ok(Err(why));
                }
            },
            Source::Pypi(_) => return Err(format!("{} is no crate", package.name).into()),
        };
        let name = match package.source {
            Source::Clone { .. } => format!("{}-{}-clone", package.name, package.version),
            Source::Crates | Source::Pypi(_) => format!("{}-{}", package.name, package.version),
        };
        // A repository may demand a toolchain of its own. A crate alone would belong to our
        // workspace, since its folder is below.
        let script = r#"
            [ -e "$2/.copied" ] && exit
            rm -rf "$2" && cp -r "$1" "$2" && cd "$2" && chmod -R u+w . && rm -f rust-toolchain.toml
            grep -q '^\[workspace\]' Cargo.toml || printf '\n[workspace]\n' >> Cargo.toml
            touch .copied"#;
        let to = self.folder.join(name);
        let mut command = as_caller(&self.folder, &["sh", "-c", script, "sh"]);
        match command.arg(&from).arg(&to).status()?.success() {
            true => Ok(Ok(to)),
            false => Err(format!("cannot copy {} to {}", from.display(), to.display()).into()),
        }
    }

    /// Downloads a crate; returns cargo's folder with its files. The crate's dependencies are not
    /// resolved: old crates resolve only with the Cargo.lock that is among their files.
    fn download(&self, package: &Package) -> Result<Step<PathBuf>> {
        let script = r#"
            cargo info --quiet "$1@$2" > /dev/null
            set -- "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$1-$2"
            [ -d "$1" ] && echo "$1""#;
        let mut command = as_caller(&self.folder, &["sh", "-ec", script, "sh"]);
        command.args([package.name, package.version]).stderr(Stdio::piped());
        let output = command.output()?;
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || folder.is_empty() {
            let log = end_of(&String::from_utf8_lossy(&output.stderr), 3);
            return Ok(Err(format!("cargo cannot download it{log}")));
        }
        Ok(Ok(folder.into()))
    }

    /// Writes our own program that uses the crate, tests/packages/NAME.rs; returns its folder.
    pub fn own_program(&self, package: &Package) -> Result<PathBuf> {
        let name = package.name.replace('-', "_");
        let source = std::fs::read_to_string(format!("tests/packages/{name}.rs"))?;
        let Package { name, version, .. } = package;
        let folder = self.folder.join("program").join(name);
        let manifest = format!(
            "[package]\nname = \"{name}-program\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [workspace]\n\n[dependencies]\n{name} = \"={version}\"\n\
             tokio = {{ version = \"1\", features = [\"rt\", \"macros\", \"time\"] }}\n"
        );
        let script = r#"
            mkdir -p "$1/src"
            printf '%s' "$2" > "$1/Cargo.toml"
            printf '%s' "$3" > "$1/src/main.rs""#;
        let mut command = as_caller(&self.folder, &["sh", "-ec", script, "sh"]);
        match command.arg(&folder).args([&manifest, &source]).status()?.success() {
            true => Ok(folder),
            false => Err(format!("cannot write {}", folder.display()).into()),
        }
    }

    /// cargo in the folder of a crate. As for a dependency, lints do not stop it. Without debug
    /// information, all crates together need 2.5 GB, with it 8 GB.
    fn cargo(&self, folder: &Path, words: &[&str]) -> Command {
        let build = format!("CARGO_TARGET_DIR={}", self.folder.join("build").display());
        let settings = [&build, "RUSTFLAGS=--cap-lints=warn", "CARGO_PROFILE_DEV_DEBUG=0"];
        let mut all = vec!["env"];
        all.extend(settings);
        all.push("cargo");
        all.extend(words);
        as_caller(folder, &all)
    }

    /// Builds the tests of a crate with the versions of its Cargo.lock; returns the test programs,
    /// or the end of the log.
    pub fn test_programs(&self, folder: &Path, select: &[&str]) -> Result<Step<Vec<TestProgram>>> {
        let mut command =
            self.cargo(folder, &["test", "--locked", "--no-run", "--message-format=json"]);
        let output = command.args(select).stderr(Stdio::piped()).output()?;
        if !output.status.success() {
            return Ok(Err(compiler_log(&output.stdout, &output.stderr)));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Ok(text.lines().filter_map(test_program).collect()))
    }

    /// Builds a crate; the error is the end of the log.
    pub fn build(&self, folder: &Path, select: &[&str]) -> Result<Step<()>> {
        let mut command = self.cargo(folder, &["build", "--message-format=json"]);
        let output = command.args(select).stderr(Stdio::piped()).output()?;
        Ok(match output.status.success() {
            true => Ok(()),
            false => Err(compiler_log(&output.stdout, &output.stderr)),
        })
    }

    /// Installs Python packages; returns the interpreter.
    pub fn python(&self, packages: &[&str]) -> Result<Step<String>> {
        let script = r#"
            [ -e python/bin/pip ] || python3 -m venv python
            exec python/bin/pip install --quiet --disable-pip-version-check "$@""#;
        let mut command = as_caller(&self.folder, &["sh", "-ec", script, "sh"]);
        let output = command.args(packages).stderr(Stdio::piped()).output()?;
        if !output.status.success() {
            let log = end_of(&String::from_utf8_lossy(&output.stderr), 3);
            return Ok(Err(format!("pip cannot install it:{log}")));
        }
        Ok(Ok(self.folder.join("python/bin/python").display().to_string()))
    }
}

/// The test program that a message of cargo names.
fn test_program(line: &str) -> Option<TestProgram> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let path = message["executable"].as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    let is_test = target["kind"][0] == "test";
    let name = if is_test { target["name"].as_str()? } else { "lib" };
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(TestProgram { name: name.to_owned(), path: path.into(), folder: folder.to_owned() })
}

/// The errors of the compiler, or the last lines of cargo.
fn compiler_log(messages: &[u8], errors: &[u8]) -> String {
    let rendered = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let message = &message["message"];
        let text = message["rendered"].as_str()?.to_owned();
        (message["level"] == "error").then_some(text)
    };
    let text = String::from_utf8_lossy(messages);
    let first: Vec<String> = text.lines().filter_map(rendered).take(3).collect();
    end_of(&first.concat(), 30) + &end_of(&String::from_utf8_lossy(errors), 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_name_test_programs() {
        let line = |kind: &str, test: bool| {
            format!(
                r#"{{"manifest_path":"/x/Cargo.toml","target":{{"kind":["{kind}"],"name":"imm"}},
                    "profile":{{"test":{test}}},"executable":"/b/imm-1"}}"#
            )
            .replace('\n', "")
        };
        let program = test_program(&line("test", true)).expect("a test program");
        assert_eq!((program.name.as_str(), program.folder.as_path()), ("imm", Path::new("/x")));
        assert_eq!(program.named("a::b"), "imm::a::b");
        assert_eq!(program.test("imm::a::b"), Some("a::b"));
        assert_eq!(program.test("immediate::a"), None);
        let program = test_program(&line("lib", true)).expect("the tests of the library");
        assert_eq!(program.name, "lib");
        assert!(test_program(&line("bin", false)).is_none());
        assert!(test_program(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
