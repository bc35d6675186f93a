//! The scenarios that come with the program.

/// Their names and texts.
pub const ALL: &[(&str, &str)] = &[
    ("deadlock-fat-tree", include_str!("../scenarios/deadlock-fat-tree.toml")),
    ("deadlock-ring", include_str!("../scenarios/deadlock-ring.toml")),
    ("engine-hosts", include_str!("../scenarios/engine-hosts.toml")),
    ("fat-tree", include_str!("../scenarios/fat-tree.toml")),
    ("fig10", include_str!("../scenarios/fig10.toml")),
    ("fig12", include_str!("../scenarios/fig12.toml")),
    ("fig13", include_str!("../scenarios/fig13.toml")),
    ("fig15-fig16", include_str!("../scenarios/fig15-fig16.toml")),
    ("fig18", include_str!("../scenarios/fig18.toml")),
    ("fig19", include_str!("../scenarios/fig19.toml")),
    ("fig20", include_str!("../scenarios/fig20.toml")),
    ("fig3-fig8", include_str!("../scenarios/fig3-fig8.toml")),
    ("fig4-fig9", include_str!("../scenarios/fig4-fig9.toml")),
    ("fixed-point", include_str!("../scenarios/fixed-point.toml")),
    ("go-back-0", include_str!("../scenarios/go-back-0.toml")),
    ("hpcc-incast", include_str!("../scenarios/hpcc-incast.toml")),
    ("incast", include_str!("../scenarios/incast.toml")),
    ("live", include_str!("../scenarios/live.toml")),
    ("live-incast", include_str!("../scenarios/live-incast.toml")),
    ("phase-margin", include_str!("../scenarios/phase-margin.toml")),
    ("pmax", include_str!("../scenarios/pmax.toml")),
    ("semantics", include_str!("../scenarios/semantics.toml")),
    ("web-search", include_str!("../scenarios/web-search.toml")),
];

/// The text of a scenario.
pub fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// What others published, as lines of x and y: digitised figures.
pub const PUBLISHED: &[(&str, &str)] = &[
    ("fig10-rate-gbps-blue", include_str!("../scenarios/published/fig10-rate-gbps-blue.csv")),
    ("fig10-rate-gbps-red", include_str!("../scenarios/published/fig10-rate-gbps-red.csv")),
    ("fig12a-q2to1-kb-g16", include_str!("../scenarios/published/fig12a-q2to1-kb-g16.csv")),
    ("fig12a-q2to1-kb-g256", include_str!("../scenarios/published/fig12a-q2to1-kb-g256.csv")),
    ("fig12b-q16to1-kb-g16", include_str!("../scenarios/published/fig12b-q16to1-kb-g16.csv")),
    ("fig12b-q16to1-kb-g256", include_str!("../scenarios/published/fig12b-q16to1-kb-g256.csv")),
    ("fig13a-strawman-blue", include_str!("../scenarios/published/fig13a-strawman-blue.csv")),
    ("fig13a-strawman-red", include_str!("../scenarios/published/fig13a-strawman-red.csv")),
    ("fig13b-timer-blue", include_str!("../scenarios/published/fig13b-timer-blue.csv")),
    ("fig13b-timer-red", include_str!("../scenarios/published/fig13b-timer-red.csv")),
    ("fig13c-red-blue", include_str!("../scenarios/published/fig13c-red-blue.csv")),
    ("fig13c-red-red", include_str!("../scenarios/published/fig13c-red-red.csv")),
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
pub fn published(file: &str) -> Option<&'static str> {
    PUBLISHED.iter().find(|(known, _)| *known == file).map(|(_, text)| *text)
}
