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
    let Some(sanitizer) = &options.sanitizer else { return libraries() };
    let libraries = sanitized_libraries(sanitizer)?;
    let feroce = libraries.with_file_name("feroce"); // It looks for the libraries beside itself.
    let new = libraries.with_file_name("feroce.new"); // The old one may be running.
    std::fs::copy(feroce_in(&built()), &new)?;
    std::fs::rename(new, feroce)?;
    Ok(libraries)
}

/// The path of AddressSanitizer's run-time library.
pub(super) fn sanitizer_runtime() -> Result<String> {
    let path = output(Command::new("cc").arg("-print-file-name=libasan.so"))?.trim().to_owned();
    // cc prints the bare name of a library that it does not have.
    match path.starts_with('/') {
        true => Ok(path),
        false => Err("cc has no libasan.so: on Debian it is in libgcc-12-dev".into()),
    }
}
