//! The program `feroce-conform`: see [`feroce_conform::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    feroce_conform::cli::main()
}
