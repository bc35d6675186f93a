//! The output of `check --json` is what its schema in `docs` says.

use std::path::{Path, PathBuf};

use feroce_conform::check::{Checker, Filter, Format};
use feroce_conform::trace::Trace;
use serde_json::{Map, Value};

const SCHEMA: &str = "../docs/conform-check.schema.json";

/// Keywords of JSON Schema that [`violations`] knows, and those that say nothing about a value.
const KEYWORDS: [&str; 12] = [
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "type",
    "minimum",
    "enum",
    "required",
    "properties",
    "additionalProperties",
    "items",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => panic!("type {name}"),
    }
}

/// Adds the places at which `value` violates `rules`, a part of `schema`.
fn violations(schema: &Value, rules: &Value, value: &Value, at: &str, out: &mut Vec<String>) {
    for keyword in rules.as_object().expect("a schema").keys() {
        assert!(KEYWORDS.contains(&keyword.as_str()), "the test does not know {keyword}");
    }
    if let Some(name) = rules["$ref"].as_str() {
        let part = name.strip_prefix('#').and_then(|path| schema.pointer(path)).expect(name);
        return violations(schema, part, value, at, out);
    }
    let types = match &rules["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_of(value, name)) {
        out.push(format!("{at}: {value} is none of {types:?}"));
    }
    if rules["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        out.push(format!("{at}: {value}"));
    }
    if let (Some(least), Some(number)) = (rules["minimum"].as_i64(), value.as_i64())
        && number < least
    {
        out.push(format!("{at}: {number} is below {least}"));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        violations(schema, &rules["items"], item, &format!("{at}[{index}]"), out);
    }
    let empty = Map::new();
    let properties = rules["properties"].as_object().unwrap_or(&empty);
    for (name, field) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match (properties.get(name), &rules["additionalProperties"]) {
            (Some(rules), _) => violations(schema, rules, field, &at, out),
            (None, rules) if rules.is_object() => violations(schema, rules, field, &at, out),
            _ => out.push(format!("{at} is not in the schema")),
        }
    }
    for name in rules["required"].as_array().into_iter().flatten() {
        let name = name.as_str().expect("a name");
        if value.as_object().is_some_and(|fields| !fields.contains_key(name)) {
            out.push(format!("{at} has no {name}"));
        }
    }
}

fn schema() -> Value {
    let text = std::fs::read_to_string(root().join(SCHEMA)).expect(SCHEMA);
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_output_of_every_capture_matches_the_schema() {
    let schema = schema();
    let mut count = 0;
    for folder in ["hardware", "rxe", "softroce-public"] {
        for entry in std::fs::read_dir(root().join("captures").join(folder)).expect(folder) {
            let path = entry.expect(folder).path();
            let mut trace = Trace::open(std::slice::from_ref(&path)).expect("a capture");
            let (report, ended) = Checker::new(Filter::default(), false).check(&mut trace);
            ended.expect("read to the end");
            let mut out = Vec::new();
            Format::Json.write(&mut out, &report).expect("memory takes everything");
            let value: Value = serde_json::from_slice(&out).expect("JSON");
            let mut wrong = Vec::new();
            violations(&schema, &schema, &value, "", &mut wrong);
            assert!(wrong.is_empty(), "{}: {wrong:?}", path.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} captures");
}

/// The test would notice a field that is missing, new or of another type.
#[test]
fn other_output_violates_the_schema() {
    let schema = schema();
    let right = serde_json::json!({
        "version": 1, "files": [], "frames": 0, "packets": 0, "flows": [], "counts": {},
        "findings": [], "total": 0
    });
    let violated = |value: &Value| {
        let mut wrong = Vec::new();
        violations(&schema, &schema, value, "", &mut wrong);
        wrong.len()
    };
    assert_eq!(violated(&right), 0);
    let changes: [fn(&mut Map<String, Value>); 4] = [
        |fields| _ = fields.remove("total"),
        |fields| _ = fields.insert("more".to_owned(), Value::Null),
        |fields| _ = fields.insert("frames".to_owned(), Value::from("0")),
        |fields| _ = fields.insert("version".to_owned(), Value::from(2)),
    ];
    for change in changes {
        let mut value = right.clone();
        change(value.as_object_mut().expect("an object"));
        assert_eq!(violated(&value), 1, "{value}");
    }
}
