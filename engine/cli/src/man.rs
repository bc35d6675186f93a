//! `feroce man`: manual pages, from the description of the command line.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Command, ValueHint};
use feroce_engine::device::settings::KEYS;
use feroce_engine::files;

use crate::exit;
use crate::failure::Failure;
use crate::output;

/// Options of `feroce man`.
#[derive(Debug, Args)]
pub struct Options {
    /// Page to print: a subcommand, such as `perf` or `fabric run` [default: feroce]
    #[arg(value_name = "NAME", conflicts_with = "out")]
    name: Vec<String>,
    /// Write all pages to this folder, which is created if it does not exist
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

/// Subcommands that do not read the settings of the host.
const WITHOUT_SETTINGS: [&str; 5] = ["fabric", "pfc", "conform", "top", "metrics"];

/// Prints a page of `command`, or writes all pages.
///
/// # Errors
/// [`Failure::Usage`] if no page has the name.
pub fn run(options: &Options, command: Command) -> Result<(), Failure> {
    let pages = pages(command);
    if let Some(folder) = &options.out {
        return write_pages(folder, &pages).map_err(Failure::Output);
    }
    let name = options.name.join("-");
    let name = match name.as_str() {
        "" | "feroce" => "feroce".to_owned(),
        name if name.starts_with("feroce-") => name.to_owned(),
        name => format!("feroce-{name}"),
    };
    let Some((name, command)) = pages.iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = names(&pages).collect();
        return Err(Failure::Usage(format!(
            "there is no manual page {name}; the pages are {}",
            known.join(", ")
        )));
    };
    output::bytes(&page(name, command).map_err(Failure::Output)?)
}

/// Every command with the name of its page, in the order of the command line.
pub fn pages(mut command: Command) -> Vec<(String, Command)> {
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages);
    pages
}

fn collect(command: &Command, pages: &mut Vec<(String, Command)>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    pages.push((name.to_owned(), command.clone()));
    command.get_subcommands().for_each(|child| collect(child, pages));
}

/// The names that `feroce man` takes, without the prefix `feroce-`.
pub fn names(pages: &[(String, Command)]) -> impl Iterator<Item = &str> {
    pages.iter().map(|(name, _)| name.strip_prefix("feroce-").unwrap_or(name))
}

fn write_pages(folder: &Path, pages: &[(String, Command)]) -> std::io::Result<()> {
    files::create_folder(folder)?;
    for (name, command) in pages {
        files::write(folder.join(format!("{name}.1")), page(name, command)?)?;
    }
    Ok(())
}

/// The page of a command: the description of its command line, exit codes, files and variables.
fn page(name: &str, command: &Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let source = concat!("feroce ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command.clone()).source(source).manual("Feroce").render(&mut page)?;
    let words: Vec<_> = name.split('-').skip(1).collect();
    let subcommand = words.first().copied().unwrap_or_default();
    page.extend_from_slice(exit::man_section(subcommand).as_bytes());
    if !WITHOUT_SETTINGS.contains(&subcommand) {
        page.extend_from_slice(FILES.as_bytes());
        for key in KEYS.iter() {
            let (variable, about) = (key.variable(), key.about);
            writeln!(page, ".TP\n\\fB{variable}\\fR\n{about}: {}", key.expects())?;
        }
    }
    page.extend_from_slice(b".SH \"SEE ALSO\"\n");
    if words.len() > 1 {
        writeln!(page, "\\fBferoce\\-{subcommand}\\fR(1),")?;
    }
    page.extend_from_slice(SEE_ALSO.as_bytes());
    Ok(page)
}

const FILES: &str = "\
.SH FILES
.TP
\\fI/etc/feroce.toml\\fR
Settings of the host, one line \\(oqsetting = value\\(cq each.
.SH ENVIRONMENT
A variable overrides the file; an option overrides the variable. An empty variable counts as unset.
.TP
\\fBFEROCE_CONFIG\\fR
Configuration file to read instead of \\fI/etc/feroce.toml\\fR; empty for none.
.TP
\\fBFEROCE_LOG\\fR
Least severe messages to print on standard error: error, warn (default), info, debug or trace.
";

const SEE_ALSO: &str = "\
\\fBferoce\\fR(1), \\fBferoce\\-config\\fR(1), \\fBferoce\\-doctor\\fR(1)
";
