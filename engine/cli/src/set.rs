//! `feroce set`: the parameters of congestion control of a program that has an interface open.

use clap::{Args, ValueHint};
use feroce_engine::device::stat::{self, Request};

use crate::failure::Failure;
use crate::output;

/// Options of `feroce set`.
#[derive(Debug, Args)]
#[command(after_help = "\
Feroce's names take values with units (`ai_rate=40Mb/s`), NVIDIA's the numbers of NVIDIA's tools (`rpg_ai_rate=40`). \
`congestion` itself may change between dcqcn, timely, swift and a rate, to dcqcn only if the device was opened with it, or with `ecn`; \
on or off it is from the opening of the device. \
All are set, or none if one is refused. Root and the program's user may do it, in the network namespace of the \
interface.\n\n\
Exit codes: 0 set, 1 refused or nobody there, 2 wrong usage.")]
pub struct Options {
    /// The interface that the program has open
    #[arg(value_name = "IFACE", value_hint = ValueHint::Other)]
    interface: String,
    /// What to set [default: nothing; show all]
    #[arg(value_name = "NAME=VALUE", value_parser = parse_pair)]
    set: Vec<(String, String)>,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.trim().is_empty());
    let (name, value) = pair.ok_or_else(|| "expected NAME=VALUE".to_owned())?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Sets them, and shows what is in effect then.
pub fn run(options: &Options) -> Result<(), Failure> {
    let request = Request { queue_pairs: false, set: options.set.clone() };
    let snapshot = stat::ask(&options.interface, &request)?;
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
    fn pairs() {
        assert_eq!(parse_pair("g = 1/16"), Ok(("g".to_owned(), "1/16".to_owned())));
        for bad in ["g", "=1", ""] {
            assert!(parse_pair(bad).is_err(), "{bad}");
        }
    }
}
