//! What packagers install beside the program: shell completions and man pages, from the same description
//! of the command line.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Command, ValueHint};
use clap_complete::Shell;
use feroce_engine::device::settings::KEYS;

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
    #[arg(value_hint = ValueHint::DirPath)]
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
            write_page(command, &mut page).map_err(Failure::Output)?;
            output::bytes(&page)
        }
    }
}

fn write_pages(folder: &Path, mut command: Command) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    command.build();
    let commands = std::iter::once(&command).chain(command.get_subcommands());
    for command in commands {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        let mut page = Vec::new();
        write_page(command.clone(), &mut page)?;
        std::fs::write(folder.join(format!("{name}.1")), page)?;
    }
    Ok(())
}

/// The page that the description of the command line gives, and what it does not know.
fn write_page(command: Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    let source = concat!("feroce ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).source(source).manual("Feroce").render(page)?;
    page.extend_from_slice(FILES.as_bytes());
    for key in KEYS.iter() {
        let (variable, about) = (key.variable(), key.about);
        writeln!(page, ".TP\n\\fB{variable}\\fR\n{about}: {}", key.expects())?;
    }
    page.extend_from_slice(SEE_ALSO.as_bytes());
    Ok(())
}

const FILES: &str = "\
.SH FILES
.TP
\\fI/etc/feroce.toml\\fR
Settings of the host, a line \\(oqsetting = value\\(cq each.
.SH ENVIRONMENT
Each variable goes before the file, and an option before the variable. An empty one is as good as none.
.TP
\\fBFEROCE_CONFIG\\fR
Another file than \\fI/etc/feroce.toml\\fR; empty for none.
";

const SEE_ALSO: &str = "\
.SH SEE ALSO
\\fBferoce\\fR(1), \\fBferoce-config\\fR(1), \\fBferoce-doctor\\fR(1)
";
