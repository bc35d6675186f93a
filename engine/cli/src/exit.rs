//! Exit codes: one table for all subcommands. `--help`, the man pages and docs/exit-codes.md show
//! the same table.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Command;

/// Why the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "conform"), allow(dead_code))]
pub enum Exit {
    /// The command did its work and found nothing to report.
    Ok,
    /// The command could not do its work.
    Failed,
    /// The command line is wrong.
    Usage,
    /// The input of `feroce conform` or `feroce pfc` cannot be used.
    Unusable,
    /// The command did its work and found something that should not be.
    Findings,
    /// `feroce run` found the program but cannot start it.
    CannotStart,
    /// `feroce run` cannot find the program.
    NotFound,
    /// A signal ended the command.
    Interrupted,
}

/// The subcommands that a row of the table applies to.
#[derive(Debug, Clone, Copy)]
enum Scope {
    All,
    Only(&'static [&'static str]),
    Except(&'static [&'static str]),
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    exit: Exit,
    code: u8,
    name: &'static str,
    meaning: &'static str,
    scope: Scope,
}

/// The table, in the order of the codes. A code has one meaning per subcommand.
const TABLE: &[Row] = &[
    Row { exit: Exit::Ok, code: 0, name: "ok", meaning: "done; nothing found", scope: Scope::All },
    Row {
        exit: Exit::Failed,
        code: 1,
        name: "failed",
        meaning: "the command could not do its work; the message says why",
        scope: Scope::All,
    },
    Row {
        exit: Exit::Usage,
        code: 2,
        name: "usage",
        meaning: "the command line is wrong",
        scope: Scope::Except(&["conform", "pfc"]),
    },
    Row {
        exit: Exit::Unusable,
        code: 2,
        name: "unusable",
        meaning: "the command line, a file or an interface cannot be used",
        scope: Scope::Only(&["conform", "pfc"]),
    },
    Row {
        exit: Exit::Findings,
        code: 3,
        name: "findings",
        meaning: "a rule is violated, a replay differs from the capture, or an injected item fails",
        scope: Scope::Only(&["conform"]),
    },
    Row {
        exit: Exit::Findings,
        code: 3,
        name: "findings",
        meaning: "there is an error or a warning",
        scope: Scope::Only(&["doctor"]),
    },
    Row {
        exit: Exit::Findings,
        code: 3,
        name: "findings",
        meaning: "a gate fails, a lossless network has losses, NAKs or timeouts, or a deadlock was \
                  found",
        scope: Scope::Only(&["fabric"]),
    },
    Row {
        exit: Exit::Findings,
        code: 3,
        name: "findings",
        meaning: "`--check` has found wrong data",
        scope: Scope::Only(&["perf"]),
    },
    Row {
        exit: Exit::Findings,
        code: 3,
        name: "findings",
        meaning: "`decode`, `watch`: a malformed frame; `plan`: an objection; `doctor`: an error \
                  or a warning; `watchdog`: a storm; `deadlock`: one is possible; `send`: a signal \
                  stopped it early",
        scope: Scope::Only(&["pfc"]),
    },
    Row {
        exit: Exit::CannotStart,
        code: 126,
        name: "cannot-start",
        meaning: "PROGRAM cannot be started; once started, its own exit code",
        scope: Scope::Only(&["run"]),
    },
    Row {
        exit: Exit::NotFound,
        code: 127,
        name: "not-found",
        meaning: "PROGRAM was not found",
        scope: Scope::Only(&["run"]),
    },
    Row {
        exit: Exit::Interrupted,
        code: 130,
        name: "interrupted",
        meaning: "Ctrl-C or SIGTERM; the results until then were printed",
        scope: Scope::Only(&["perf"]),
    },
];

impl Exit {
    /// The code that the process exits with.
    pub fn code(self) -> u8 {
        let row = TABLE.iter().find(|row| row.exit == self);
        row.expect("every variant has a row").code // All rows of a variant have one code.
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl Scope {
    fn includes(self, subcommand: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(&subcommand),
            Self::Except(names) => !names.contains(&subcommand),
        }
    }

    fn text(self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Only(names) => names.join(", "),
            Self::Except(names) => format!("all but {}", names.join(", ")),
        }
    }
}

/// The codes, names and meanings for a subcommand; for all subcommands if `subcommand` is empty.
fn rows(subcommand: &str) -> impl Iterator<Item = (u8, String)> {
    let rows =
        TABLE.iter().filter(move |row| subcommand.is_empty() || row.scope.includes(subcommand));
    rows.map(move |row| {
        let text = format!("{}: {}", row.name, row.meaning);
        match (subcommand, row.scope) {
            ("", scope @ (Scope::Only(_) | Scope::Except(_))) => {
                (row.code, format!("{text} ({})", scope.text()))
            }
            _ => (row.code, text),
        }
    })
}

/// Adds the exit codes to the help of `command` and its subcommands.
pub fn with_help(command: Command) -> Command {
    add_help(command, "")
}

fn add_help(command: Command, subcommand: &str) -> Command {
    let mut text = command.get_after_help().map_or_else(String::new, |text| format!("{text}\n\n"));
    text += "Exit codes:";
    for (code, meaning) in rows(subcommand) {
        let _ = write!(text, "\n  {code:>3}  {meaning}");
    }
    command.after_help(text).mut_subcommands(|child| {
        let name = match subcommand {
            "" => child.get_name().to_owned(),
            parent => parent.to_owned(),
        };
        add_help(child, &name)
    })
}

/// The section of a man page, in roff. `subcommand` is empty for the page of `feroce`.
pub fn man_section(subcommand: &str) -> String {
    let mut text = ".SH \"EXIT STATUS\"\n".to_owned();
    for (code, meaning) in rows(subcommand) {
        let _ = writeln!(text, ".TP\n\\fB{code}\\fR\n{}", meaning.replace('-', "\\-"));
    }
    text
}

/// The table of docs/exit-codes.md.
#[cfg(test)]
fn markdown() -> String {
    let mut text = "| code | name | meaning | subcommands |\n|---|---|---|---|\n".to_owned();
    for row in TABLE {
        let Row { code, name, meaning, scope, .. } = row;
        let _ = writeln!(text, "| {code} | {name} | {meaning} | {} |", scope.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/exit-codes.md");
        let page = std::fs::read_to_string(page).expect("docs/exit-codes.md");
        assert!(page.contains(&markdown()), "the table must be:\n{}", markdown());
    }

    #[test]
    fn a_variant_has_one_code() {
        for row in TABLE {
            assert_eq!(row.exit.code(), row.code, "{row:?}");
        }
    }

    #[test]
    fn a_code_has_one_meaning_per_subcommand() {
        let command = crate::command_line();
        let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        assert!(names.contains(&"perf"), "{names:?}");
        for subcommand in names {
            let codes: Vec<_> = rows(subcommand).map(|(code, _)| code).collect();
            assert!(codes.is_sorted_by(|a, b| a < b), "{subcommand}: {codes:?}");
        }
    }

    #[test]
    #[cfg(all(feature = "fabric", feature = "pfc", feature = "conform"))]
    fn the_table_names_existing_subcommands() {
        let command = crate::command_line();
        for row in TABLE {
            let (Scope::Only(names) | Scope::Except(names)) = row.scope else { continue };
            for name in names {
                assert!(command.find_subcommand(name).is_some(), "{row:?}: {name}");
            }
        }
    }
}
