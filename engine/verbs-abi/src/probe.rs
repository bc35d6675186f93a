//! Compares the layout of every structure with the system's `verbs.h` and `rdma_cma.h`, by a C
//! program.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use super::{Layout, attributes, cma, context, objects, work};

/// Structures that are longer than in the headers of release 44; later releases have the same
/// length.
const GROWN: [&str; 3] = ["ibv_qp_ex", "ibv_port_attr", "verbs_context"];

/// Rust structures that C spells as one number or array, without a name.
const SKIPPED: [&str; 3] = ["ibv_send_wr.wr", "ibv_send_wr.qp_type", "ibv_send_wr.bind_mw"];

fn layouts() -> impl Iterator<Item = &'static Layout> {
    let tables =
        [attributes::LAYOUTS, context::LAYOUTS, objects::LAYOUTS, work::LAYOUTS, cma::LAYOUTS];
    tables.into_iter().flatten()
}

/// Union members by their paths.
fn paths() -> impl Iterator<Item = &'static (&'static str, &'static str, usize)> {
    work::PATHS.iter().chain(cma::CMA_PATHS)
}

fn is_later(path: &str) -> bool {
    let later = objects::LATER.iter().chain(attributes::LATER_ATTRIBUTES);
    path == "verbs_context.later" || later.copied().any(|name| name == path)
}

/// Returns the offset that field offsets count from: 0, or that of `context` in `verbs_context`.
fn origin(layout: &Layout) -> usize {
    let context = layout.fields.iter().find(|(name, ..)| *name == "context");
    match (layout.name, context) {
        ("verbs_context", Some((_, offset, _))) => *offset,
        _ => 0,
    }
}

/// Returns the lines that the C program must print: `name offset size`.
fn expected() -> Vec<String> {
    let mut lines = Vec::new();
    for layout in layouts() {
        for (field, offset, size) in layout.fields {
            let path = format!("{}.{}", layout.name, field.trim_start_matches("r#"));
            if !is_later(&path) && !SKIPPED.contains(&path.as_str()) {
                let offset = offset.cast_signed() - origin(layout).cast_signed();
                lines.push(format!("{path} {offset} {size}"));
            }
        }
        if !GROWN.contains(&layout.name) {
            lines.push(format!("{} {}", layout.name, layout.size));
        }
    }
    lines.extend(paths().map(|(name, path, offset)| format!("{name}:{path} {offset}")));
    lines
}

/// Returns a C program that prints the lines.
fn program() -> String {
    let mut text =
        "#include <rdma/rdma_cma.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n"
            .to_owned();
    for layout in layouts() {
        let (name, from) = (
            layout.name,
            match origin(layout) {
                0 => "0".to_owned(),
                _ => format!("(long)offsetof(struct {}, context)", layout.name),
            },
        );
        for (field, ..) in layout.fields {
            let field = field.trim_start_matches("r#");
            let path = format!("{name}.{field}");
            if !is_later(&path) && !SKIPPED.contains(&path.as_str()) {
                writeln!(
                    text,
                    "printf(\"{path} %ld %zu\\n\", \
                     (long)offsetof(struct {name}, {field}) - {from}, \
                     sizeof(((struct {name} *)0)->{field}));"
                )
                .expect("a string");
            }
        }
        if !GROWN.contains(&name) {
            writeln!(text, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").expect("a string");
        }
    }
    for (name, path, _) in paths() {
        writeln!(text, "printf(\"{name}:{path} %zu\\n\", offsetof(struct {name}, {path}));")
            .expect("a string");
    }
    text + "return 0; }\n"
}

#[test]
fn a_c_program_sees_the_same_offsets() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or(folder, PathBuf::from).join("probe");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (source, binary) = (folder.join("offsets.c"), folder.join("offsets"));
    std::fs::write(&source, program()).expect("a file");
    let built = Command::new("cc").arg("-w").arg(&source).arg("-o").arg(&binary).status();
    assert!(built.expect("a C compiler").success(), "install libibverbs-dev and librdmacm-dev");
    let output = Command::new(&binary).output().expect("it runs");
    let output = String::from_utf8(output.stdout).expect("text");
    let expected = expected();
    assert!(expected.len() > 300, "{} fields", expected.len());
    let differences: Vec<_> =
        output.lines().zip(&expected).filter(|(output, expected)| output != expected).collect();
    assert_eq!(differences, [], "C and Rust");
    assert_eq!(output.lines().count(), expected.len());
}
