//! The scenarios that come with the program.

/// Their names and texts.
pub const ALL: &[(&str, &str)] = &[("incast", include_str!("../scenarios/incast.toml"))];

/// The text of a scenario.
pub fn find(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// What others published, as lines of x and y: digitised figures.
pub const PUBLISHED: &[(&str, &str)] = &[];

/// The points of a published series.
pub fn published(file: &str) -> Option<&'static str> {
    PUBLISHED.iter().find(|(known, _)| *known == file).map(|(_, text)| *text)
}
