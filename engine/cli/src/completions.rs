//! `feroce completions`: shell completion scripts, from the description of the command line.
//!
//! clap_complete writes the scripts. Values that are known only on the user's machine are completed
//! by a shell function that this file adds: every value called `IFACE` is the name of a network
//! interface. clap_complete's dynamic engine could do this, too, but is unstable, and its scripts
//! must come from exactly the installed version of the program.

use std::fmt::Write;

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::{man, output};

/// Options of `feroce completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Install the script as\n  \
bash: /usr/share/bash-completion/completions/feroce\n  \
zsh:  /usr/share/zsh/site-functions/_feroce\n  \
fish: /usr/share/fish/vendor_completions.d/feroce.fish")]
pub struct Options {
    /// Shell
    shell: Shell,
}

/// Placeholder for the names of interfaces in a script of clap_complete.
const INTERFACES: &str = "@INTERFACES@";

/// Prints the completion script of `command`.
pub fn run(options: &Options, command: Command) -> Result<(), Failure> {
    output::bytes(script(options.shell, command).as_bytes())
}

fn script(shell: Shell, command: Command) -> String {
    let pages = man::pages(command.clone());
    // Possible values must be static; the process ends soon.
    let names: Vec<&'static str> =
        man::names(&pages).map(|name| &*name.to_owned().leak()).collect();
    let mut command = with_placeholders(command).mut_subcommand("man", |man| {
        man.mut_arg("name", |name| name.value_parser(PossibleValuesParser::new(names)))
    });
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "feroce", &mut script);
    let mut script = String::from_utf8(script).expect("clap_complete writes text");
    if shell == Shell::Fish {
        fish_positionals(&command, &mut Vec::new(), &mut script);
    }
    with_interfaces(shell, &script)
}

/// Gives every value called `IFACE` the placeholder as its only possible value.
fn with_placeholders(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let is_interface = |names: &[clap::builder::Str]| names == ["IFACE"];
        match arg.get_value_names() {
            Some(names) if is_interface(names) => {
                arg.value_parser(PossibleValuesParser::new([INTERFACES]))
            }
            _ => arg,
        }
    });
    command.mut_subcommands(with_placeholders)
}

/// Adds the possible values of positional arguments, which clap_complete leaves out for fish.
fn fish_positionals<'a>(command: &'a Command, path: &mut Vec<&'a str>, script: &mut String) {
    for arg in command.get_positionals() {
        let values = arg.get_possible_values();
        let values: Vec<_> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
        if let ([first, rest @ ..], false) = (path.as_slice(), values.is_empty()) {
            let mut condition = format!("__fish_feroce_using_subcommand {first}");
            for name in rest {
                let _ = write!(condition, "; and __fish_seen_subcommand_from {name}");
            }
            let values = values.join(" ");
            let _ = writeln!(script, "complete -c feroce -n \"{condition}\" -f -a \"{values}\"");
        }
    }
    for child in command.get_subcommands() {
        path.push(child.get_name());
        fish_positionals(child, path, script);
        path.pop();
    }
}

/// Replaces the placeholder by a call of a function that lists the interfaces.
fn with_interfaces(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            BASH_FUNCTION.to_owned() + &script.replace(INTERFACES, "$(_feroce_interfaces)")
        }
        Shell::Zsh => {
            let script = script.replace(&format!("({INTERFACES})"), "_feroce_interfaces");
            // `#compdef` must stay the first line.
            script.replacen('\n', &format!("\n{ZSH_FUNCTION}"), 1)
        }
        Shell::Fish => {
            FISH_FUNCTION.to_owned() + &script.replace(INTERFACES, "(_feroce_interfaces)")
        }
        _ => script.replace(INTERFACES, ""),
    }
}

const BASH_FUNCTION: &str = "\
_feroce_interfaces() {
    command ls /sys/class/net 2> /dev/null
}

";

const ZSH_FUNCTION: &str = "
_feroce_interfaces() {
    local -a interfaces=(/sys/class/net/*(N:t))
    _describe 'interface' interfaces
}
";

const FISH_FUNCTION: &str = "\
function _feroce_interfaces
    command ls /sys/class/net 2> /dev/null
end

";
