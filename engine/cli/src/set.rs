//! `feroce set`: congestion control parameters of a program that has an interface open.

use clap::{Args, ValueHint};
use feroce_engine::device::stat::Request;

use crate::failure::Failure;
use crate::{figures, output};

/// Options of `feroce set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Feroce's parameter names take values with units (`ai_rate=40Mb/s`), NVIDIA's names the numbers of \
NVIDIA's tools (`rpg_ai_rate=40`). `congestion` can be changed to another algorithm or a fixed \
rate; to dcqcn only if the device was opened with dcqcn or with `ecn`. Congestion control cannot \
be turned on or off while the device is open. If one parameter is refused, none is set. Allowed \
for root and the program's user, in the network namespace of the interface.")]
pub struct Options {
    /// Interface that the program has open
    #[arg(value_name = "IFACE", value_hint = ValueHint::Other)]
    interface: String,
    /// Parameters to set [default: none; show all]
    #[arg(value_name = "NAME=VALUE", value_parser = parse_pair)]
    set: Vec<(String, String)>,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.trim().is_empty());
    let (name, value) = pair.ok_or_else(|| "expected NAME=VALUE".to_owned())?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Sets the parameters and prints all parameters in effect.
pub fn run(options: &Options) -> Result<(), Failure> {
    let request = Request { queue_pairs: false, set: options.set.clone() };
    let snapshot = figures::program(&options.interface, &request)?;
    output::line(&format!("{:<24}{}", "congestion", snapshot.congestion))?;
    for (name, value) in &snapshot.congestion_params {
        output::line(&format!("{name:<24}{value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_parsed() {
        assert_eq!(parse_pair("g = 1/16"), Ok(("g".to_owned(), "1/16".to_owned())));
        for bad in ["g", "=1", ""] {
            assert!(parse_pair(bad).is_err(), "{bad}");
        }
    }
}
