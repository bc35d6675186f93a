//! Slowdowns by flow size, with the flows that did not finish.

use super::data::{Measured, ReportError, Row, grouped, is_ended, number, text};
use crate::fabric::scenario::Figure;
use crate::plot::{Cell, Part, Table};
use crate::results::format_number;

/// A flow with an end: its size in KB, and its slowdown if it finished.
type Flow = (f64, Option<f64>);

/// Groups flows by size into at most ten groups with equal numbers of flows, finished or not. Each
/// has the largest size, the sorted slowdowns of its finished flows, and the number of others.
pub(super) fn by_size(mut flows: Vec<Flow>) -> Vec<(f64, Vec<f64>, usize)> {
    flows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let group = |flows: &[Flow]| {
        let mut slowdowns: Vec<f64> = flows.iter().filter_map(|flow| flow.1).collect();
        slowdowns.sort_by(f64::total_cmp);
        let unfinished = flows.len() - slowdowns.len();
        (flows[flows.len() - 1].0, slowdowns, unfinished)
    };
    flows.chunks(flows.len().div_ceil(10).max(1)).map(group).collect()
}

/// A quantile of sorted values, in thousandths; `None` without values.
pub(super) fn quantile(sorted: &[f64], permille: usize) -> Option<f64> {
    sorted.get((sorted.len() * permille / 1000).min(sorted.len().checked_sub(1)?)).copied()
}

/// The flows of each case that started and have an end.
pub(super) fn flows(
    figure: &Figure,
    measured: &Measured,
) -> Result<Vec<(String, Vec<Flow>)>, ReportError> {
    let cases = grouped(figure, measured.rows("flows")?, |row| text(row, "case").to_owned());
    let flow = |row: &Row| {
        let slowdown = number(row, "slowdown");
        (number(row, "size_bytes") / 1e3, Some(slowdown).filter(|value| value.is_finite()))
    };
    let own = |(case, rows): (String, Vec<Row>)| {
        let flows = rows.iter().filter(|row| is_ended(row)).map(flow);
        (case, flows.collect())
    };
    Ok(cases.into_iter().map(own).collect())
}

/// The table of slowdowns by flow size.
pub(super) fn table(figure: &Figure, measured: &Measured) -> Result<Part, ReportError> {
    let head = ["case", "flows up to, KB", "flows", "unfinished", "median", "95 %", "99 %"];
    let mut rows = Vec::new();
    for (case, flows) in flows(figure, measured)? {
        for (size, slowdowns, unfinished) in by_size(flows) {
            let mut row = vec![
                Cell::Text(case.clone()),
                Cell::Number(format_number(size)),
                Cell::Number((slowdowns.len() + unfinished).to_string()),
                Cell::Number(unfinished.to_string()),
            ];
            row.extend([500, 950, 990].map(|permille| {
                Cell::Number(quantile(&slowdowns, permille).map_or_else(String::new, format_number))
            }));
            rows.push(row);
        }
    }
    Ok(Part::Table(Table { head: head.map(String::from).into(), rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_grouped_by_size() {
        let flows: Vec<Flow> =
            (0..25).rev().map(|n| (f64::from(n), Some(f64::from(100 - n)))).collect();
        let groups = by_size(flows);
        assert_eq!(groups.len(), 9);
        assert_eq!(groups[0], (2.0, vec![98.0, 99.0, 100.0], 0));
        assert_eq!(groups[8], (24.0, vec![76.0], 0));
        assert!(by_size(Vec::new()).is_empty());
    }

    /// The longest flows are those that do not finish: without them the group would look fast.
    #[test]
    fn unfinished_flows_stay_in_their_group() {
        let groups = by_size(vec![(1.0, Some(2.0)), (9.0, None), (9.0, Some(3.0))]);
        assert_eq!(groups, [(1.0, vec![2.0], 0), (9.0, vec![], 1), (9.0, vec![3.0], 0)]);
        assert_eq!((quantile(&[], 500), quantile(&[1.0, 2.0], 990)), (None, Some(2.0)));
    }
}
