//! For tests that cannot run where they were started. The test harness knows no such result: the
//! test passes, and `scripts/test.sh` names it and its reason at the end.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Names the file that collects the skipped tests.
const FILE: &str = "SKIPPED_TESTS";

/// Says that the running test is skipped because of `reason`; the test must then return.
///
/// Prints a line, and appends `PROGRAM: TEST<TAB>REASON` to the file that the environment variable
/// `SKIPPED_TESTS` names.
///
/// # Panics
/// If the file cannot be written: the test would count as one that has run.
pub fn skip(reason: &str) {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    // Bypasses the test harness, which shows output only if a test fails.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
    if let Some(path) = std::env::var_os(FILE) {
        record(Path::new(&path), &reason).expect(FILE);
    }
}

/// Appends a line. One write, so that lines of several processes do not mix.
fn record(path: &Path, reason: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{}\t{reason}\n", test_name()).as_bytes())
}

/// The program without its hash, and the test, after which the harness names its thread.
fn test_name() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_stem()?.to_str());
    let program = program.and_then(|name| Some(name.rsplit_once('-')?.0)).unwrap_or("a test");
    match std::thread::current().name() {
        Some(test) => format!("{program}: {test}"),
        None => program.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_by_its_program_and_thread() {
        assert_eq!(
            test_name(),
            "feroce_test_skip: tests::a_test_is_named_by_its_program_and_thread"
        );
    }

    #[test]
    fn a_line_is_appended_for_each_skipped_test() {
        let path = std::env::temp_dir().join(format!("fr-skip-{}", std::process::id()));
        for reason in ["no root", "one CPU"] {
            record(&path, reason).expect("a temporary file");
        }
        let written = std::fs::read_to_string(&path).expect("the file");
        std::fs::remove_file(&path).expect("the file");
        let name = "feroce_test_skip: tests::a_line_is_appended_for_each_skipped_test";
        assert_eq!(written, format!("{name}\tno root\n{name}\tone CPU\n"));
        assert!(record(Path::new("/no/such/folder"), "why").is_err());
    }
}
