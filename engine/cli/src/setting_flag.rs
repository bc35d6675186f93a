//! One setting as an option of the command line: its name, its option and the parser of its values.

use feroce_engine::device::settings::{KEYS, Origin, Settings};

/// Name of a setting, its option, and the option's value.
pub type Flag<'a> = (&'static str, &'static str, &'a Option<String>);

/// A parser that accepts the values of the setting `name` and keeps the text.
pub fn setting(
    name: &'static str,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| parsed(name, text).map(|_| text.to_owned())
}

/// A parser for the values of the setting `name`; `read` takes the value from the settings.
pub fn value_of<T: 'static>(
    name: &'static str,
    read: fn(&Settings) -> T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| parsed(name, text).map(|settings| read(&settings))
}

/// The default settings with one value parsed from `text`.
fn parsed(name: &'static str, text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    let key = KEYS.iter().find(|key| key.name == name).expect("in the table");
    let set = settings.set(name, text, Origin::Default);
    set.map(|()| settings).map_err(|_| format!("expected {}", key.refusal(text)))
}
