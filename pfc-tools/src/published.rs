//! Published curves that reports show beside results.

/// Published curves, digitised: lines of x and y.
pub const ALL: &[(&str, &str)] = &[
    ("fig10-means-blue", include_str!("../scenarios/published/fig10-means-blue.csv")),
    ("fig10-means-red", include_str!("../scenarios/published/fig10-means-red.csv")),
    ("fig10-rate-gbps-blue", include_str!("../scenarios/published/fig10-rate-gbps-blue.csv")),
    ("fig10-rate-gbps-red", include_str!("../scenarios/published/fig10-rate-gbps-red.csv")),
    ("fig12a-means-g16", include_str!("../scenarios/published/fig12a-means-g16.csv")),
    ("fig12a-means-g256", include_str!("../scenarios/published/fig12a-means-g256.csv")),
    ("fig12a-q2to1-kb-g16", include_str!("../scenarios/published/fig12a-q2to1-kb-g16.csv")),
    ("fig12a-q2to1-kb-g256", include_str!("../scenarios/published/fig12a-q2to1-kb-g256.csv")),
    ("fig12b-means-g16", include_str!("../scenarios/published/fig12b-means-g16.csv")),
    ("fig12b-means-g256", include_str!("../scenarios/published/fig12b-means-g256.csv")),
    ("fig12b-q16to1-kb-g16", include_str!("../scenarios/published/fig12b-q16to1-kb-g16.csv")),
    ("fig12b-q16to1-kb-g256", include_str!("../scenarios/published/fig12b-q16to1-kb-g256.csv")),
    ("fig13a-means-first", include_str!("../scenarios/published/fig13a-means-first.csv")),
    ("fig13a-means-second", include_str!("../scenarios/published/fig13a-means-second.csv")),
    ("fig13a-strawman-blue", include_str!("../scenarios/published/fig13a-strawman-blue.csv")),
    ("fig13a-strawman-red", include_str!("../scenarios/published/fig13a-strawman-red.csv")),
    ("fig13b-means-first", include_str!("../scenarios/published/fig13b-means-first.csv")),
    ("fig13b-means-second", include_str!("../scenarios/published/fig13b-means-second.csv")),
    ("fig13b-timer-blue", include_str!("../scenarios/published/fig13b-timer-blue.csv")),
    ("fig13b-timer-red", include_str!("../scenarios/published/fig13b-timer-red.csv")),
    ("fig13c-means-first", include_str!("../scenarios/published/fig13c-means-first.csv")),
    ("fig13c-means-second", include_str!("../scenarios/published/fig13c-means-second.csv")),
    ("fig13c-red-blue", include_str!("../scenarios/published/fig13c-red-blue.csv")),
    ("fig13c-red-red", include_str!("../scenarios/published/fig13c-red-red.csv")),
    ("fig13d-means-first", include_str!("../scenarios/published/fig13d-means-first.csv")),
    ("fig13d-means-second", include_str!("../scenarios/published/fig13d-means-second.csv")),
    ("fig13d-red-timer-blue", include_str!("../scenarios/published/fig13d-red-timer-blue.csv")),
    ("fig13d-red-timer-red", include_str!("../scenarios/published/fig13d-red-timer-red.csv")),
    ("fig19-cdf-dcqcn", include_str!("../scenarios/published/fig19-cdf-dcqcn.csv")),
    ("fig19-cdf-dctcp", include_str!("../scenarios/published/fig19-cdf-dctcp.csv")),
    ("ns3-16to1-queue-g16", include_str!("../scenarios/published/ns3-16to1-queue-g16.csv")),
    ("ns3-16to1-queue-g256", include_str!("../scenarios/published/ns3-16to1-queue-g256.csv")),
    ("ns3-20to1-queue-cdf", include_str!("../scenarios/published/ns3-20to1-queue-cdf.csv")),
    ("ns3-2to1-queue-g16", include_str!("../scenarios/published/ns3-2to1-queue-g16.csv")),
    ("ns3-2to1-queue-g256", include_str!("../scenarios/published/ns3-2to1-queue-g256.csv")),
];

/// The points of a published series.
pub fn find(file: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == file).map(|(_, text)| *text)
}

/// Parses lines of two numbers; other lines are headings.
pub(crate) fn points(text: &str) -> Vec<(f64, f64)> {
    let point = |line: &str| {
        let (x, y) = line.split_once(',')?;
        Some((x.trim().parse().ok()?, y.trim().parse().ok()?))
    };
    text.lines().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_files_may_have_a_heading() {
        assert_eq!(points("x_ms,y\n# digitised\n1,2\n3.5, 4\n"), [(1.0, 2.0), (3.5, 4.0)]);
    }
}
