//! Reads TOML text into types that implement `Deserialize`.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

/// Parses `text`.
///
/// # Errors
/// A description of the error; with the line if the text is not TOML.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let parsed = DeTable::parse(text).map_err(|error| error.to_string())?;
    serde_json::from_value(table(parsed.get_ref())?).map_err(|error| error.to_string())
}

fn table(table: &DeTable<'_>) -> Result<Value, String> {
    let entries =
        table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), of(value.get_ref())?)));
    Ok(Value::Object(entries.collect::<Result<Map<_, _>, String>>()?))
}

fn of(from: &DeValue<'_>) -> Result<Value, String> {
    Ok(match from {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Integer(number) => {
            let value = i64::from_str_radix(number.as_str(), number.radix());
            value.map_err(|_| format!("{} is too large", number.as_str()))?.into()
        }
        DeValue::Array(values) => {
            let values = values.iter().map(|value| of(value.get_ref()));
            Value::Array(values.collect::<Result<_, _>>()?)
        }
        DeValue::Table(values) => table(values)?,
        DeValue::Float(_) | DeValue::Datetime(_) => {
            return Err("fractions and dates are not allowed".to_owned());
        }
    })
}
