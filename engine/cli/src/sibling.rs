//! Programs beside this one: `feroce fabric ...` becomes `feroce-fabric ...`, as cargo finds `cargo-...`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::failure::Failure;

/// Everything behind the name of the program.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// What that program takes: `--help` shows it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Becomes the program `name`: that in this program's folder, else the one that PATH finds. Returns only if there is none.
pub fn run(name: &str, options: &Options) -> Result<(), Failure> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name));
    let source = Command::new(&program).args(&options.arguments).exec();
    Err(Failure::Program { program, source })
}
