//! Tables as CSV.

use std::fs::File;
use std::io;
use std::path::Path;

use super::tables::{Columns, Value};

/// A file being written.
pub(super) type Writer = csv::Writer<File>;

pub(super) fn create(path: &Path, columns: Columns) -> io::Result<Writer> {
    let mut writer = csv::Writer::from_path(path)?;
    writer.write_record(columns.iter().map(|(name, _)| name))?;
    Ok(writer)
}

pub(super) fn row(writer: &mut Writer, values: &[Value]) -> io::Result<()> {
    for value in values {
        match value {
            Value::Text(text) => writer.write_field(text),
            Value::Count(number) => writer.write_field(number.to_string()),
            Value::Real(number) => writer.write_field(number.to_string()),
            Value::Flag(flag) => writer.write_field(flag.to_string()),
            Value::Missing => writer.write_field(""),
        }?;
    }
    Ok(writer.write_record(None::<&[u8]>)?)
}
