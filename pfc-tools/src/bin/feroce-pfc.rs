//! `feroce-pfc`: see [`feroce_pfc_tools::pfc::cli`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    feroce_pfc_tools::pfc::cli::main()
}
