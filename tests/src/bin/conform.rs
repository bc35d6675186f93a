//! `feroce-conform`: see [`feroce_tests::conform::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    feroce_tests::conform::cli::main()
}
