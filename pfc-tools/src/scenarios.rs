//! The scenarios that come with the program.

/// Their names and texts.
pub const ALL: &[(&str, &str)] = &[
    ("fig13", include_str!("../scenarios/fig13.toml")),
    ("fig19", include_str!("../scenarios/fig19.toml")),
    ("fig20", include_str!("../scenarios/fig20.toml")),
    ("fig3-fig8", include_str!("../scenarios/fig3-fig8.toml")),
    ("fig4-fig9", include_str!("../scenarios/fig4-fig9.toml")),
    ("fixed-point", include_str!("../scenarios/fixed-point.toml")),
    ("go-back-0", include_str!("../scenarios/go-back-0.toml")),
    ("live", include_str!("../scenarios/live.toml")),
    ("incast", include_str!("../scenarios/incast.toml")),
    ("web-search", include_str!("../scenarios/web-search.toml")),
];

/// The text of a scenario.
pub fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
