//! Errors of the command line, with tips that help.

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Removes a tip that misleads, and adds one for a subcommand that is another's.
pub fn improved(mut error: Error) -> Error {
    let text = |error: &Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        // "To pass '--html' as a value, use '-- --html'": nobody means a file of this name.
        ErrorKind::UnknownArgument => {
            let tip = error.get(ContextKind::Suggested).map(ToString::to_string);
            if tip.is_some_and(|tip| tip.contains("as a value")) {
                error.remove(ContextKind::Suggested);
            }
        }
        ErrorKind::InvalidSubcommand => {
            let wanted = text(&error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let paths = paths(&crate::command_line(), &wanted);
            if !paths.is_empty() {
                let tips: Vec<_> =
                    paths.iter().map(|path| format!("there is `{path}`").into()).collect();
                error.remove(ContextKind::SuggestedSubcommand);
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
            }
        }
        _ => {}
    }
    error
}

/// The commands below `command` whose last word is `name`, such as `feroce conform check`.
fn paths(command: &Command, name: &str) -> Vec<String> {
    let of_child = |child: &Command| match child.get_name() == name {
        true => vec![name.to_owned()],
        false => paths(child, name),
    };
    let below = command.get_subcommands().flat_map(of_child);
    below.map(|path| format!("{} {path}", command.get_name())).collect()
}
