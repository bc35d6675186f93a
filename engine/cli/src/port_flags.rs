//! Settings of one kind of port each, as options: made from the table of settings.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use feroce_engine::device::settings::{KEYS, Key};
use feroce_engine::port::kind::PortOption;

use crate::setting_flag::{Flag, setting};

/// The options that were given, with their values: a place for each setting that has an option.
#[derive(Debug, Default)]
pub struct PortFlags(Vec<Option<String>>);

/// The settings that have an option.
fn options() -> impl Iterator<Item = (&'static Key, PortOption)> {
    KEYS.iter().filter_map(|key| Some((key, key.port_option()?)))
}

impl PortFlags {
    /// Each setting with its option and the value given.
    pub(crate) fn flags(&self) -> impl Iterator<Item = Flag<'_>> {
        options().zip(&self.0).map(|((key, option), value)| (key.name, option.flag, value))
    }
}

impl Args for PortFlags {
    fn augment_args(mut command: Command) -> Command {
        for (key, option) in options() {
            let arg = Arg::new(key.name)
                .long(option.flag.trim_start_matches("--"))
                .value_name(option.value_name)
                .help(option.help)
                .allow_hyphen_values(true)
                .value_parser(setting(key.name));
            command = command.arg(arg);
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PortFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(options().map(|(key, _)| matches.get_one(key.name).cloned()).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
