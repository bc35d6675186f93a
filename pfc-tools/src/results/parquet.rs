//! Tables as Parquet, for pandas, DuckDB or R.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type as Schema;

use super::tables::{Columns, Type, Value};
use feroce_engine::files;

/// Rows buffered before a row group is written.
const GROUP: usize = 1 << 16;

/// A file being written.
pub(super) struct Writer {
    file: SerializedFileWriter<File>,
    columns: Columns,
    rows: Vec<Vec<Value>>,
}

impl Writer {
    pub fn create(path: &Path, columns: Columns) -> io::Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            // A fixed name, so that the same results give the same bytes with every build.
            .set_created_by("feroce-fabric".to_owned());
        let properties = Arc::new(properties.build());
        let schema = schema(columns).map_err(failed)?;
        let file = SerializedFileWriter::new(files::create(path)?, Arc::new(schema), properties);
        Ok(Self { file: file.map_err(failed)?, columns, rows: Vec::new() })
    }

    pub fn row(&mut self, values: Vec<Value>) -> io::Result<()> {
        self.rows.push(values);
        if self.rows.len() < GROUP { Ok(()) } else { self.flush() }
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.close().map(drop).map_err(failed)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.write_group().map_err(failed)?;
        self.rows.clear();
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for (number, (_, kind)) in self.columns.iter().enumerate() {
            let mut column = group.next_column()?.expect("one for each of the schema");
            let values = self.rows.iter().map(|row| &row[number]);
            match kind {
                Type::Text => write::<ByteArrayType>(&mut column, values, |value| match value {
                    Value::Text(text) => Some(ByteArray::from(text.as_str())),
                    _ => None,
                }),
                Type::Count => write::<Int64Type>(&mut column, values, |value| match value {
                    Value::Count(number) => i64::try_from(*number).ok(),
                    _ => None,
                }),
                Type::Real => write::<DoubleType>(&mut column, values, |value| match value {
                    Value::Real(number) => Some(*number),
                    _ => None,
                }),
                Type::Flag => write::<BoolType>(&mut column, values, |value| match value {
                    Value::Flag(flag) => Some(*flag),
                    _ => None,
                }),
            }?;
            column.close()?;
        }
        group.close().map(drop)
    }
}

/// Writes a column: its values, and which of them are missing.
fn write<'a, T: DataType>(
    column: &mut SerializedColumnWriter<'_>,
    values: impl Iterator<Item = &'a Value>,
    take: impl Fn(&Value) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let taken: Vec<Option<T::T>> = values.map(take).collect();
    let levels: Vec<i16> = taken.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = taken.into_iter().flatten().collect();
    column.typed::<T>().write_batch(&present, Some(&levels), None).map(drop)
}

fn schema(columns: Columns) -> Result<Schema, ParquetError> {
    let field = |&(name, kind): &(&str, Type)| {
        let (physical, logical) = match kind {
            Type::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Type::Count => (Physical::INT64, None),
            Type::Real => (Physical::DOUBLE, None),
            Type::Flag => (Physical::BOOLEAN, None),
        };
        let field = Schema::primitive_type_builder(name, physical);
        field.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    Schema::group_type_builder("results").with_fields(fields).build()
}

fn failed(error: ParquetError) -> io::Error {
    io::Error::other(error)
}
