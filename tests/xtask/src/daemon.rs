//! A daemon (`feroce up`) that owns an interface.

use std::path::Path;

use crate::Result;
use crate::exit::{Guard, at_end};
use crate::net::command_in;
use crate::process::output;

/// A daemon. Dropping it ends it.
#[derive(Debug)]
pub struct Daemon {
    _guard: Guard,
}

impl Daemon {
    /// Starts the program `feroce` as the daemon of `interface` in a namespace, with environment
    /// variables.
    pub fn start(
        feroce: &Path,
        namespace: &str,
        interface: &str,
        variables: &[(&str, String)],
    ) -> Result<Daemon> {
        let (feroce, namespace) = (feroce.display().to_string(), namespace.to_owned());
        let interface = interface.to_owned();
        let mut command = command_in(&namespace, &feroce);
        command.args(["up", &interface, "--detach"]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        output(&mut command)?;
        let guard = at_end(move || {
            let down = command_in(&namespace, &feroce).args(["down", &interface]).status();
            if !down.is_ok_and(|status| status.success()) {
                eprintln!("the daemon of {interface} does not end");
            }
        });
        Ok(Daemon { _guard: guard })
    }
}
