//! What packagers install beside the program: shell completions and man pages, from the same description
//! of the command line.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output;

/// Options of `feroce completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Where they belong: bash /usr/share/bash-completion/completions/feroce, zsh \
/usr/share/zsh/site-functions/_feroce, fish /usr/share/fish/vendor_completions.d/feroce.fish.")]
pub struct CompletionOptions {
    /// Shell
    shell: Shell,
}

/// Options of `feroce man`.
#[derive(Debug, Args)]
pub struct ManOptions {
    /// Write feroce.1 and a page for each command to this folder, which is made if it is not there [default:
    /// print feroce.1]
    folder: Option<PathBuf>,
}

/// Prints the completions of `command`.
pub fn completions(options: &CompletionOptions, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "feroce", &mut script);
    output::bytes(&script)
}

/// Prints the page of `command`, or writes all pages.
pub fn man(options: &ManOptions, command: Command) -> Result<(), Failure> {
    match &options.folder {
        Some(folder) => write_pages(folder, command).map_err(Failure::Output),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).map_err(Failure::Output)?;
            output::bytes(&page)
        }
    }
}

fn write_pages(folder: &Path, command: Command) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)
}
