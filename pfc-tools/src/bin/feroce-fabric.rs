//! `feroce-fabric`: see [`feroce_pfc_tools::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    feroce_pfc_tools::cli::main()
}
