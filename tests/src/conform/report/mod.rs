//! A page about a check: what went wrong, as a graph of PSNs over time and as a ladder.

use super::check::Report;

/// The page.
pub fn html(report: &Report) -> String {
    format!("{}", report.frames)
}
