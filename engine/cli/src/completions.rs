//! `feroce completions`: shell completion scripts, from the description of the command line.
//!
//! clap_complete writes the scripts. Values that are known only on the user's machine are completed
//! by a shell function that this file adds: every value called `IFACE` is the name of a network
//! interface. clap_complete's dynamic engine could do this, too, but is unstable, and its scripts
//! must come from exactly the installed version of the program.

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
    let names: Vec<&'static str> = man::names(&pages).map(|name| &*name.to_owned().leak()).collect();
    let mut command = with_placeholders(command).mut_subcommand("man", |man| {
        man.mut_arg("name", |name| name.value_parser(PossibleValuesParser::new(names)))
    });
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "feroce", &mut script);
    let script = String::from_utf8(script).expect("clap_complete writes text");
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

/// Replaces the placeholder by a call of a function that lists the interfaces.
fn with_interfaces(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => BASH_FUNCTION.to_owned() + &script.replace(INTERFACES, "$(_feroce_interfaces)"),
        Shell::Zsh => {
            let script = script.replace(&format!("({INTERFACES})"), "_feroce_interfaces");
            // The first line must stay the first.
            script.replacen('\n', &format!("\n{ZSH_FUNCTION}"), 1)
        }
        Shell::Fish => FISH_FUNCTION.to_owned() + &script.replace(INTERFACES, "(_feroce_interfaces)"),
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
