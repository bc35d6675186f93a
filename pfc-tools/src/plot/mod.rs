//! Charts as values, drawn as SVG.
//!
//! The same chart gives the same bytes on every machine, since no font of the machine is measured.

mod axes;
mod chart;
mod downsample;
mod draw;
mod markdown;
mod page;

pub use chart::{Axis, Chart, Kind, Scale, Series};
pub use page::{Cell, Page, Part, Section, Table, Verdict};
