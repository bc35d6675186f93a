//! The program and the libraries that the rows run on.

use std::path::PathBuf;
use std::process::Command;

use super::Options;
use crate::Result;
use crate::process::output;
use crate::setup::{build, built, feroce_in, libraries, sanitized_libraries};

/// Builds what the rows run on. Returns the folder of the C libraries.
pub(super) fn libraries_for(options: &Options) -> Result<PathBuf> {
    if options.built && options.sanitizer.is_none() {
        return Ok(built().join("lib"));
    }
    println!("Building");
    if !options.built {
        build(&["--bin", "feroce"])?;
    }
    let Some(sanitizer) = options.sanitizer else { return libraries() };
    let libraries = sanitized_libraries(sanitizer.name())?;
    let feroce = libraries.with_file_name("feroce"); // It looks for the libraries beside itself.
    let new = libraries.with_file_name("feroce.new"); // The old one may be running.
    std::fs::copy(feroce_in(&built()), &new)?;
    std::fs::rename(new, feroce)?;
    Ok(libraries)
}

/// A sanitizer of the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sanitizer {
    /// Finds misuse of memory
    Address,
    /// Finds accesses of two threads that nothing orders
    Thread,
}

impl Sanitizer {
    /// Name of the compiler's option, and of the files in tests/programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    /// The words that start a program with the run-time library, which writes what it finds to
    /// `target/programs/NAME.PID`. The program is not instrumented: without LD_PRELOAD it would
    /// load the library too late. Others' programs end without freeing what they have, and with
    /// threads that still run.
    pub(super) fn wrap(self, runtime: &str) -> Vec<String> {
        let (variable, options) = match self {
            Self::Address => ("ASAN_OPTIONS", "detect_leaks=0:verify_asan_link_order=0"),
            Self::Thread => ("TSAN_OPTIONS", "report_thread_leaks=0:report_destroy_locked=0"),
        };
        let [known, reports] = ["tests/programs/NAME.supp", "target/programs/NAME"].map(|path| {
            let path = path.replace("NAME", self.name());
            std::path::absolute(path).expect("a path").display().to_string()
        });
        let options = format!("{options}:exitcode=99:suppressions={known}:log_path={reports}");
        vec!["env".to_owned(), format!("{variable}={options}"), format!("LD_PRELOAD={runtime}")]
    }

    /// The reports of this run, and of earlier ones unless [`Sanitizer::forget`] was called.
    fn reports(self) -> Vec<PathBuf> {
        let files = std::fs::read_dir("target/programs").into_iter().flatten().flatten();
        let is_report = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == self.name());
        let mut reports: Vec<PathBuf> = files.map(|file| file.path()).filter(is_report).collect();
        reports.sort();
        reports
    }

    /// Removes the reports of earlier runs.
    pub(super) fn forget(self) -> Result<()> {
        self.reports().iter().try_for_each(std::fs::remove_file)?;
        Ok(())
    }

    /// Fails if a report names an error. A program that never ends by itself, such as a server, has
    /// no exit code that tells of them.
    pub(super) fn check(self) -> Result<()> {
        let mut errors = Vec::new();
        for report in self.reports() {
            if self.names_error(&String::from_utf8_lossy(&std::fs::read(&report)?)) {
                errors.push(report.display().to_string());
            }
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(format!("the sanitizer has reported: {}", errors.join(" ")).into()),
        }
    }

    /// Returns true if a report names an error. AddressSanitizer also warns of coroutines, which it
    /// cannot follow.
    fn names_error(self, report: &str) -> bool {
        let errors = ["ERROR: AddressSanitizer", "AddressSanitizer: CHECK failed"];
        self == Self::Thread || errors.iter().any(|error| report.contains(error))
    }

    /// The path of the run-time library.
    pub(super) fn runtime(self) -> Result<String> {
        let library = format!("lib{}san.so", &self.name()[..1]);
        let path = output(Command::new("cc").arg(format!("-print-file-name={library}")))?;
        let path = path.trim().to_owned();
        // cc prints the bare name of a library that it does not have.
        match path.starts_with('/') {
            true => Ok(path),
            false => Err(format!("cc has no {library}: on Debian it is in libgcc-12-dev").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_sanitizer_count() {
        let of_coroutines = "==27214==WARNING: ASan doesn't fully support makecontext/swapcontext \
                             functions and may produce false positives in some cases!";
        let freed = "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x6020";
        let race = "WARNING: ThreadSanitizer: data race (pid=1)";
        let segv = "==1==ERROR: ThreadSanitizer: SEGV on unknown address";
        for (sanitizer, report, is_error) in [
            (Sanitizer::Address, of_coroutines, false),
            (Sanitizer::Address, freed, true),
            (Sanitizer::Thread, race, true),
            (Sanitizer::Thread, segv, true),
        ] {
            assert_eq!(sanitizer.names_error(report), is_error, "{report}");
        }
    }
}
